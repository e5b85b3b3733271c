"""The pipeline planner, without torch: what `ductile plan` does.

    import ductile
    report = ductile.plan.plan("gpt:layers=24", devices=8, batch=128)
    report["evaluation"]["seconds"]            # of one iteration
    report["plan"]["stages"]

A graph is the name of a file (`ductile profile` writes one) or of a built-in graph ("mmt", "candle:8",
"gpt:layers=24,hidden=2048"; graphs() lists them), or a dictionary as graph() and ductile.capture() return it. Devices are a number (V100s, four
a node), the name of a cluster file, or a dictionary with what such a file says. Times are in seconds, sizes in bytes.
Ctrl-C ends a search; other threads run meanwhile.
"""

from ductile._native import base, named_or_tree, parsed, text_of

__all__ = ["Picture", "baselines", "draw", "evaluate", "graph", "graphs", "megatron_options", "page", "plan"]


class Picture(str):
    """A text that is an SVG; a notebook shows it as a picture."""

    def _repr_svg_(self):
        return str(self)


def plan(graph, devices=8, batch=128, *, micro_batch=None, objective="time", optimizer_state=None, replicas=None,
         runnable=False, time_limit=60.0, baselines=()):
    """Cuts a model into a graph of pipeline stages on the devices.

    batch            samples of one iteration
    micro_batch      samples; None: all divisors of the batch are tried
    objective        "time", or "throughput": only the steady state
    optimizer_state  bytes of the optimiser per byte of parameters: 0 SGD, 1 momentum, 2 Adam; None: the graph's
    replicas         of each stage; None: as many as serve it best
    runnable         only plans that `ductile train --plan` runs: a device for each replica of each stage, and equal
                     micro-batches
    time_limit       seconds of the search
    baselines        planners of others to compare with; baselines() lists them

    Returns a dictionary as `ductile plan --json` prints it (docs/guides/planner.md names the fields): `feasible`, `plan`,
    `evaluation` (seconds, throughput, bubble, stages ...), `search` (bounds and gaps), `baselines`. Where no plan fits the
    memory, `feasible` is False and `advice` says what would help. The same arguments give the same plan, unless the time
    limit ends the search.

    Raises AbsenceError for a graph or file that is not there, RefusalError for an argument or a file that is wrong."""
    arguments = {"batch": batch, "objective": objective, "runnable": runnable, "time_limit": time_limit,
                 "baselines": list(baselines)}
    if micro_batch is not None:
        arguments["micro_batch"] = max(micro_batch, 0)
    if replicas is not None:
        arguments["replicas"] = _at_least(1, replicas, "replicas")
    if optimizer_state is not None:
        arguments["optimizer_state"] = _at_least(0, optimizer_state, "optimizer_state")
    return parsed(base.make_plan(text_of(arguments, "ductile.plan.plan()"), named_or_tree(graph, "graph"),
                                 named_or_tree(devices, "devices")))


def evaluate(graph, plan, devices=8):
    """A plan that is given, simulated for one iteration; returns a dictionary as plan() does.

    plan    what plan() returned, its "plan", or the name of a file with one

    Raises RefusalError, which names stage and field, if the plan does not fit the graph or the devices."""
    return parsed(_judge(graph, plan, devices, "json"))


def draw(graph, plan, devices=8):
    """The stages and the timeline of a plan as an SVG, which a notebook shows."""
    return Picture(_judge(graph, plan, devices, "svg"))


def page(graph, plan, devices=8):
    """The same with all figures, as the text of an HTML page that needs nothing else."""
    return _judge(graph, plan, devices, "html")


def megatron_options(graph, plan):
    """The options of Megatron-LM that run the plan, as one line. Raises RefusalError if it cannot run it."""
    return base.megatron(named_or_tree(graph, "graph"), text_of(_plan_of(plan), "plan"))


def graph(graph, devices=8, optimizer_state=None):
    """The graph of that name or file as a dictionary (docs/reference/graph.schema.json). Built-in graphs are priced for
    the first of the devices; `optimizer_state` is as for plan()."""
    state = -1.0 if optimizer_state is None else _at_least(0, optimizer_state, "optimizer_state")
    return parsed(base.graph(named_or_tree(graph, "graph"), named_or_tree(devices, "devices"), state))


def graphs():
    """The built-in graphs: a list of dictionaries with `name`, `help` and `parameters` (each with name, value, min, max,
    help)."""
    return parsed(base.graphs())


def baselines():
    """The planners of others: a list of dictionaries with `name` and `help`."""
    return parsed(base.baselines())


def _at_least(least, value, name):
    if not value >= least:
        from ductile._errors import Error

        raise Error("invalid_argument", f"{name} = {value}: at least {least} is possible")
    return value


def _plan_of(plan):
    return plan["plan"] if isinstance(plan, dict) and "plan" in plan else plan


def _judge(graph, plan, devices, form):
    return base.judge(named_or_tree(graph, "graph"), named_or_tree(devices, "devices"),
                      named_or_tree(_plan_of(plan), "plan"), form)
