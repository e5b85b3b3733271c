"""Replaying workloads under scheduling policies in virtual time, without torch: what `ductile sim` does.

    import ductile
    run = ductile.sim.run("workload-1.csv", policy="ductile")
    run["summary"]["mean_jct"]                               # seconds
    [(job["name"], job["finish"] - job["arrival"]) for job in run["jobs"]]

A workload is the name of a CSV file in one of the forms of docs/guides/simulator.md, a list of dictionaries with its
columns as keys, or None: synthetic jobs. A cluster is the name of a cluster file (docs/guides/clusters.md), a dictionary
with what such a file says, or None: 16 nodes with 4 T4 each. The same arguments give the same results, apart from the
`decision_seconds` of summaries, which are measured. Results are dictionaries and lists; times are in seconds from the
start of the workload. Ctrl-C ends a simulation; other threads run meanwhile.
"""

import csv
import io
import os

from ductile._errors import Error
from ductile._native import base, named_or_tree, parsed, path_of, text_of

__all__ = ["compare", "read", "run", "synthetic"]

_WHOLE = ("num_replicas", "batch_size", "team", "preemptible", "movable", "replica_devices")
_REAL = ("time", "work", "checkpoint", "transfer", "replica_rate", "latency", "seconds")


def run(workload=None, cluster=None, policy="ductile", *, seed=0, jobs=None, applications=None, scenario=None, load=1.0,
        budget=None, information="own", device_cost=None, noise=0.0, unique=False, interval=None, restart=None,
        interference=0.0, control=False, tiers=False, services=0, teams=1, progress=None):
    """One policy on one workload, with the history of each job.

    policy        one of ductile.sched.policies()
    seed          of everything that is drawn
    jobs          how many synthetic ones (160), or the first so many of the workload (all)
    applications  a folder of traces; None: the folder `traces` beside the workload's file, or those that are built in
    scenario      faults: the name of a file, or a dictionary with what such a file says
    load          makes arrivals so many times as dense
    budget        what jobs declare of their length: None (nothing), "exact", or a factor by which it is wrong
    information   what the policy is told: "own", "published", "full", "profiled"
    device_cost   of policy ductile: seconds that a job may wait for each device second saved
    noise         the standard deviation of the logarithm of what jobs measure
    unique        each job is the only one of its application
    interval      seconds between rounds; None: those of the policy
    restart       seconds of a change of devices; None: those of the applications
    interference  the slowdown, from 0 to 1, of jobs on several nodes that share one
    control       changes also go through the real control plane
    tiers, services, teams   of synthetic jobs: whether they have service levels; how many inference services; how many teams
    progress      is called with (policy, seconds, finished jobs, jobs), now and then

    Returns a dictionary: `workload`, `policy`, `seed`, `end` (s), `jobs` (each with name, application, tier, team, arrival,
    start, finish, device_seconds, paused, restarts, node_losses), `rounds` (each with time, active, waiting, used, usable,
    goodput), `timeline` (each with job, from, to, nodes: pairs of a node's number and devices), and `summary` (mean_jct,
    median_jct, p90_jct, p99_jct, makespan, device_hours, restarts, utilisation, worst_fairness and more; the guide has
    their meaning).

    Raises AbsenceError for a file that is not there, RefusalError for an argument or a file that is wrong, which it names,
    and TryAgainError if the workload does not end within 1e8 s."""
    arguments = _arguments([policy], seed, jobs, load, budget, information, device_cost, noise, unique, interval, restart,
                           interference, control, tiers, services, teams)
    text = base.simulate(text_of(arguments, "ductile.sim.run()"), named_or_tree(cluster, "cluster"),
                         [] if workload is None else [_source(workload, "workload")], path_of(applications),
                         _scenario(scenario), True, progress)
    return parsed(text)[0]


def compare(workloads=None, cluster=None, policies=("ductile", "sia", "tiresias", "fifo"), *, seed=0, seeds=1, bound=False,
            jobs=None, applications=None, scenario=None, load=1.0, budget=None, information="own", device_cost=None,
            noise=0.0, unique=False, interval=None, restart=None, interference=0.0, control=False, tiers=False,
            services=0, teams=1, progress=None):
    """Several policies on the same workloads, each with `seeds` seeds from `seed` on: what `ductile sim --json` prints.

    workloads   one workload, or a list of them (of names of files, or of lists of dictionaries); None: synthetic jobs
    bound       also estimate the least mean completion time that is possible (minutes of processor time)
    The rest is as for run().

    Returns a dictionary: `cluster`, `policies` (the means of each one's runs) and `runs` (a summary of each run, with
    policy, workload and seed)."""
    arguments = _arguments(list(policies), seed, jobs, load, budget, information, device_cost, noise, unique, interval,
                           restart, interference, control, tiers, services, teams)
    arguments.update(seeds=seeds, bound=bound)
    if isinstance(policies, str):
        raise Error("invalid_argument", f"policies: a list of names is needed, such as [{policies!r}]")
    if workloads is None:
        sources = []
    elif isinstance(workloads, (str, os.PathLike)) or (workloads and isinstance(workloads[0], dict)):
        sources = [_source(workloads, "workload")]
    else:
        sources = [_source(workload, f"workload-{number}") for number, workload in enumerate(workloads)]
    return parsed(base.simulate(text_of(arguments, "ductile.sim.compare()"), named_or_tree(cluster, "cluster"), sources,
                                path_of(applications), _scenario(scenario), False, progress))


def synthetic(jobs=160, hours=None, *, seed=0, applications=None, tiers=False, services=0, teams=1):
    """Jobs in the proportions of Pollux's trace, as a list of dictionaries that run() takes: `jobs` arrivals over
    `hours` (None: 8 for 160 jobs). The other arguments are as for run()."""
    arguments = {"jobs": jobs, "hours": hours or 0, "seed": seed, "tiers": tiers, "services": services, "teams": teams}
    return _rows(base.synthetic(text_of(arguments, "ductile.sim.synthetic()"), path_of(applications)))


def read(file, applications=None):
    """The jobs of a workload file in any of its forms, as a list of dictionaries that run() takes."""
    return _rows(base.read_workload(path_of(file), path_of(applications)))


def _arguments(policies, seed, jobs, load, budget, information, device_cost, noise, unique, interval, restart,
               interference, control, tiers, services, teams):
    budget = 0 if budget is None else 1 if budget == "exact" else budget
    given = {"interval": interval, "restart": restart, "device_cost": device_cost}
    for name, value in given.items():
        if value is not None and not value >= 0:
            raise Error("invalid_argument", f"{name} = {value}: at least 0 is possible")
    return {"policies": policies, "seed": seed, "jobs": jobs or 0, "load": load, "budget": budget,
            "information": information, "noise": noise, "unique": unique, "interference": interference,
            "control": control, "tiers": tiers, "services": services, "teams": teams,
            **{name: value for name, value in given.items() if value is not None}}


def _source(workload, name):
    if isinstance(workload, (str, os.PathLike)):
        return os.fspath(workload), None
    rows = list(workload)
    columns = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise Error("invalid_argument", f"{name}: job {number} is {type(row).__name__}; a dictionary is needed, with keys "
                        "name, time, application, num_replicas")
        columns += [key for key in row if key not in columns]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: "" if value is None else int(value) if isinstance(value, bool) else value
                         for key, value in row.items()})
    return name, out.getvalue()


def _rows(text):
    rows = []
    for row in csv.DictReader(io.StringIO(text)):
        kept = {key: value for key, value in row.items() if value != ""}
        rows.append({key: int(value) if key in _WHOLE else float(value) if key in _REAL else value
                     for key, value in kept.items()})
    return rows


def _scenario(scenario):
    if scenario is None:
        return None
    if isinstance(scenario, dict):
        return _toml(scenario)
    try:
        with open(scenario, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        code = "not_found" if isinstance(error, FileNotFoundError) else "unavailable"
        raise Error(code, f"{scenario}: {error.strerror}") from None


def _toml(scenario):
    lines = [f"{key} = {text_of(value, key)}" for key, value in scenario.items() if key != "fault"]
    for fault in scenario.get("fault", []):
        lines += ["[[fault]]", *(f"{key} = {text_of(value, key)}" for key, value in fault.items())]
    return "\n".join(lines) + "\n"
