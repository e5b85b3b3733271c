"""A PyTorch module as the graph of operators that `ductile plan` reads. `docs/design/033-capture.md` has the reasons."""

import torch

from ductile import _seeds, _subjects
from ductile._calls import Calls
from ductile._check import Check, Kept, coupled
from ductile._errors import Error, told
from ductile._operators import LOSS, Grouping, Operator, check_leaves, tied_classes
from ductile._passes import Passes, loss_parameters
from ductile._seeds import seed_all
from ductile._trace import INPUT, Recorder, Ref, Untraceable, remedy, tensors

_SHOWN = 6  # names in a note


class Graph(dict):
    """A graph as docs/reference/graph.schema.json describes it. `notes`: what is worth knowing of it, as sentences; `samples`: the
    largest number that was measured at once."""

    notes = ()
    samples = 0


def capture(job, example=None, *, leaf=(), batch=None, shares=None, rounds=7, times=True, check=True, progress=None, model=None):
    """The graph of operators of a model, with what each costs on this machine: what `ductile plan`, ductile.plan.plan() and
    evaluate() take.

    job      a ductile.Job, of which the loss is the last operator; or a torch.nn.Module, on the CPU
    example  of a module: a function that takes a number n and returns inputs of n samples, or inputs of at least 2 samples (a
             smaller number has the first ones). A tuple holds the arguments of forward(), and so does a dictionary whose keys are
             all names of arguments; anything else is the one argument. Tensors have the samples in their first dimension: [n, ...].
             None: the module's own method example(n)
    leaf     modules that stay whole, by their path ("encoder.gate") or class ("Gate")
    batch    the largest number of samples that is run at once; None: the job's batch, that of the example, or 32
    shares   the numbers of samples that are measured; None: 1, 2, 4 ... up to the batch
    rounds   passes for each of them, of which medians count
    times    False: seconds are those of a V100, from operations and bytes; nothing is timed
    check    False: operators are not compared with the module
    progress a function that is told the share of the work that is done, from 0 to 1
    model    of a module: a file to which its operators are written, too, for the numbers of samples in `shares`. A job whose
             model.library names it trains the module in C++, by stages or not, from the weights that it has now

    Returns a dictionary (docs/reference/graph.schema.json): times in seconds, as a fixed part and one per sample, with the
    threads that torch has now; bytes, those of `output_bytes`, `activation_bytes` and edges per sample; `shape` of one sample. Its
    attribute `notes` has sentences on what a plan should heed. The module's parameters, buffers and modes, and all generators, are
    as before.

    Raises RefusalError, with file and line, for what is no graph of operators: ways that depend on values, a tensor that
    two operators change; and where an operator's bits are not the module's."""
    return of_subject(lambda: _subjects.of(job, example, batch), leaf, shares, rounds, times, check, progress, model)


def of_subject(make, leaf=(), shares=None, rounds=7, times=True, check=True, progress=None, model=None):
    """What capture() does, of the subject that `make` makes."""
    if isinstance(leaf, str):
        leaf = (leaf,)
    if rounds < 1:
        raise Error("invalid_argument", f"rounds = {rounds}: at least 1 is possible")
    with _seeds.kept():
        subject = make()
        try:
            with Kept(subject.root) as kept, torch.enable_grad():
                return _Capture(subject, kept, tuple(leaf)).graph(shares, rounds, times, check, progress or (lambda share: None),
                                                                    model)
        except Untraceable as why:
            raise why.as_error() from None


class _Capture:
    def __init__(self, subject, kept, leaf):
        self.subject, self.kept, self.leaf, self.notes = subject, kept, leaf, []
        self.root = subject.root
        for name, tensor in [*self.root.named_parameters(), *self.root.named_buffers()]:
            if tensor.device.type != "cpu":
                raise Error("invalid_argument", f"{subject.name}: {name} lies on {tensor.device}; it has to lie on the cpu")
        check_leaves(self.root, leaf)
        self.root.train()

    def graph(self, shares, rounds, times, check, progress, model):
        from ductile._measure import Measurement

        shares = _shares(shares, self.subject.most)
        calls = self._recorded()
        is_job = isinstance(self.subject, _subjects.OfJob)
        self.operators = Grouping(self.root, calls, {LOSS} if is_job or model else ()).operators
        self.passes = Passes(self.subject, calls, self.operators)
        if is_job:
            self._add_loss(calls)
        if not self.operators:
            raise Error("invalid_argument", f"{self.subject.name}: forward() calls no function of torch, so there are no operators")
        self._note_inputs(calls)
        largest = max(shares[-1], calls.samples[0])
        if check:
            self._check(largest)
        self._note_coupled(largest)
        if model:
            from ductile._cells import Cells

            Cells(self.subject, self.passes, self.kept).write(model, shares)
        measurement = Measurement(self.subject, self.passes, self._seeds, shares, rounds, times, progress, self.kept.restore)
        self.notes += measurement.notes
        graph = Graph(self._described(measurement))
        graph.notes, graph.samples = tuple(self.notes), shares[-1]
        return graph

    # ---- Recording.

    def _recorded(self):
        most = self.subject.most
        if most < 2:
            raise Error("invalid_argument", f"{self.subject.name}: there is one sample; what grows with the samples is found by running 2 "
                        "numbers of them, so give at least 2")
        samples = (2, 3, 5) if most >= 5 else (2, 3, 4) if most == 4 else tuple(range(1, most + 1))
        return Calls([self._recording(n) for n in samples], samples)

    def _recording(self, samples):
        recorder = Recorder(self.root, self.leaf)
        seed_all(self.subject.seed)
        try:
            with recorder.watching():
                self.subject.call(samples)
        except (Error, Untraceable, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise Error("invalid_argument", f"{self.subject.name}, with {samples} sample{'s' * (samples > 1)}:\n{told(error)[1]}") from None
        if recorder.results is None:
            raise Error("invalid_argument", f"{self.subject.name}: loss() never calls the model, so its operators are not known")
        whole = {m for node in recorder.nodes if node.is_module for m in self.root.get_submodule(node.target).modules()}
        assigned = self.kept.assigned(whole)
        if assigned:
            self._refuse_assigned(*assigned)
        self.kept.restore()
        return recorder

    def _refuse_assigned(self, module, key):
        path = next(p for p, m in self.root.named_modules() if m is module)
        code = getattr(type(module).forward, "__code__", None)
        self.kept.restore()
        raise Untraceable(code and (code.co_filename, code.co_firstlineno), f"the buffer {path + '.' if path else ''}{key} is assigned anew "
                          "in forward(), which no operator does", f"Change its values (self.{key}.copy_(...)). {remedy(path)}")

    # ---- The loss of a job.

    def _add_loss(self, calls):
        made = {ref for op in self.operators for ref in op.outputs}
        op = Operator(LOSS, LOSS, len(self.operators))
        op.is_loss = True
        results = list(dict.fromkeys(ref for ref in calls.results if isinstance(ref, Ref)))
        if any(ref.node != INPUT and ref not in made for ref in results):
            raise Error("invalid_argument", f"{self.subject.name}: forward() returns a tensor that depends on no input; let loss() make it")
        if len(tensors(calls.recordings[0].output)) and not isinstance(calls.recordings[0].output, (torch.Tensor, tuple, list, dict)):
            raise Error("invalid_argument", f"{self.subject.name}: forward() returns a {type(calls.recordings[0].output).__name__}; tensors, "
                        "and tuples, lists and dictionaries of them can be handed to loss()")
        op.inputs, op.outputs = results, [Ref(len(calls.nodes), 0)]
        self.operators.append(op)
        samples = calls.samples[-1]
        seed_all(self.subject.seed)
        made = {}
        self.passes.run(self.subject.inputs(samples), samples, lambda found: made.update(found) or {})
        if not made[op.outputs[0]].requires_grad:
            raise Error("invalid_argument", f"{self.subject.name}: loss() gives a number that depends on no parameter, so there is nothing "
                        "to differentiate; it was made under torch.no_grad(), or detached")
        op.parameters = loss_parameters(self.passes, op, samples, {ref: self.passes.made[ref] for ref in op.inputs})
        self.kept.restore()
        if op.parameters:
            self.notes.append(f"loss() uses {_listed(op.parameters)} by itself; their bytes are counted where the model uses them")

    def _seeds(self, made):
        """Gradients of the results: the loss, or all that the module gives."""
        if self.operators[-1].is_loss:
            refs = self.operators[-1].outputs
        else:
            refs = [ref for ref in dict.fromkeys(self.passes.calls.results) if isinstance(ref, Ref) and ref in made]
        return {ref: torch.ones_like(made[ref]) for ref in refs if made[ref].requires_grad}

    # ---- Checks and notes.

    def _check(self, largest):
        check = Check(self.subject, self.passes, self.kept, self.leaf)
        notes = [check.run(n) for n in sorted({self.passes.calls.samples[0], largest})]
        self.notes += [note for note in notes[-1:] if note]

    def _note_inputs(self, calls):
        read = {ref.output for op in self.operators for ref in op.inputs if ref.node == INPUT}
        unread = [name for i, name in enumerate(calls.recordings[0].input_names) if i not in read]
        if unread:
            self.notes.append(f"no operator reads {_listed(unread)}, which the model is given")
        used = {name for op in self.operators for name in op.parameters}
        unused = [name for name in self.passes.parameters if name not in used]
        if unused:
            self.notes.append(f"no operator uses {_listed(unused)}, so no plan counts these parameters")

    def _note_coupled(self, largest):
        if largest < 4:
            return
        seed_all(self.subject.seed)
        found = coupled(self.passes, self.subject.inputs(largest), largest, self.kept)
        if found:
            self.notes.append(f"{_listed(found)}: what a sample gets depends on the others beside it, so micro-batches and replicas change it "
                              "(batch norm does so)")

    # ---- The graph.

    def _described(self, measurement):
        tied, owner = tied_classes(self.operators), {ref: op for op in self.operators for ref in op.outputs}
        counted, ops, edges = set(), [], []
        for op, of_class in zip(self.operators, tied):
            described = self._operator(op, measurement, counted)
            if of_class >= 0:
                described["tied"] = of_class
            ops.append(described)
            for ref in op.inputs:
                if ref.node != INPUT:
                    edges.append({"from": owner[ref].name, "to": op.name, "output": owner[ref].outputs.index(ref),
                                  "bytes": measurement.bytes_of(ref)})
        return {"format": "ductile.graph", "version": 1, "name": self.subject.name, "ops": ops, "edges": edges}

    def _operator(self, op, measurement, counted):
        from ductile._measure import PHASES

        out = {"name": op.name, "kind": op.kind, "recomputable": True}
        for phase in PHASES:
            out[phase] = measurement.seconds(op, phase)
        weights = [self.passes.parameters[name] for name in op.parameters]
        out["parameter_bytes"] = 0 if op.is_loss else sum(p.numel() * p.element_size() for p in weights)
        always, held = measurement.held(op)
        given = [ref for ref in op.inputs if ref.node == INPUT and ref not in counted]
        counted.update(given)
        out["activation_bytes"] = held + sum(measurement.bytes_of(ref) for ref in given)
        if always:
            out["fixed_bytes"] = always
        # While the backward pass runs: the gradients of what it reads and gives, and of its largest weight.
        passing = sum(measurement.bytes_of(ref) for ref in [*op.inputs, *op.outputs] if ref.node != INPUT)
        largest = max((p.numel() * p.element_size() for p in weights), default=0)
        if passing or largest:
            out["workspace_bytes"] = {"fixed": largest, "per_sample": passing} if largest else passing
        if op.outputs:
            out["output_bytes"] = measurement.bytes_of(op.outputs[0])
            shape = measurement.shape(op.outputs[0])
            if shape and all(shape):
                out["shape"] = shape
        return out


def _shares(wanted, most):
    wanted = list(wanted or ())
    if not wanted:
        powers = []
        while 2 ** len(powers) < most:
            powers.append(2 ** len(powers))
        return [*powers, most]
    for n in wanted:
        if not isinstance(n, int) or n < 1:
            raise Error("invalid_argument", f"shares: {n!r} is no number of samples")
    found = sorted({n for n in wanted if n <= most})
    if not found:
        raise Error("invalid_argument", f"--shares: all are larger than a batch, which has {most} samples here (--batch)")
    return found


def _listed(names):
    shown = ", ".join(names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def for_command(text, args, options):
    """What `ductile capture` asks a worker for: the graph, its notes, and the number of samples that its figures are for."""
    graph = of_subject(lambda: _subjects.named(text, args, options["inputs"], options["batch"]), options["leaf"], options["shares"] or None,
                       options["rounds"], options["times"], options["check"], options["progress"], options["model"])
    return {"graph": dict(graph), "notes": list(graph.notes), "samples": graph.samples}
