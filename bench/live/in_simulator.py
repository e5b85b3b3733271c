"""The workloads of in_service.py in `ductile sim`, with a profile of the jobs."""
import json
import random
import re
import shutil
import statistics
import subprocess

from in_service import FIXED_SIZE, KINDS, NOBODY, interval_of, parts_of, workload  # noqa: E402


def in_workload(args, name, profiles):
    """Seconds per step by slots, with nobody on the others; and how many times as long steps take while others are
    there: each kind beside each as often as the workload has work of both."""
    work = dict.fromkeys(KINDS, 0.0)  # seconds on one slot
    for _, kind, length, *_ in workload(name, args.slots):
        work[kind] += length * KINDS[kind][2] * profiles[kind]["steps"]["1"][NOBODY]
    beside = [(work[kind] * work[other], seconds / times[NOBODY]) for kind, p in profiles.items()
              for times in p["steps"].values() for other, seconds in times.items() if other != NOBODY]
    neighbours = sum(weight * factor for weight, factor in beside) / sum(weight for weight, _ in beside)
    return {kind: {**p, "steps": {n: times[NOBODY] for n, times in p["steps"].items()},
                   "neighbours": max(1.0, neighbours)} for kind, p in profiles.items()}


def seconds_beside(jobs, job, since, to):
    """For how much of that time some other job held slots."""
    edges, held = [], 0.0
    for other in jobs:
        if other is job:
            continue
        ends = [when for when, _ in other["granted"][1:]] + [other["ended"]]
        edges += [(max(since, when), min(to, end)) for (when, slots), end in zip(other["granted"], ends) if slots]
    for begin, end in sorted(edges):
        held += max(0.0, end - max(begin, since))
        since = max(since, end)
    return held


def profiles_during(jobs, profiles):
    """The profiles with the times that the jobs of one turn had, and how many times as long as in the profile its steps
    took; the time beside other jobs counts as what it would have been alone. What did not run in the turn takes as many
    times as long as what did."""
    sums = {}
    for job in jobs:
        slowed = profiles[job["kind"]]["neighbours"]
        for slots, steps, since, to in job["measured"]:
            entry = sums.setdefault((job["kind"], str(slots)), [0, 0.0])
            entry[0] += steps
            entry[1] += to - since - seconds_beside(jobs, job, since, to) * (1 - 1 / slowed)
    expected = sum(steps * profiles[kind]["steps"][n] for (kind, n), (steps, _) in sums.items())
    factor = sum(seconds for _, seconds in sums.values()) / expected if expected else 1.0
    found = {key: seconds / steps for key, (steps, seconds) in sums.items()}
    return {kind: {**p, "steps": {n: found.get((kind, n), factor * s) for n, s in p["steps"].items()}}
            for kind, p in profiles.items()}, factor


def mean_of(profiles):
    return {"steps": {n: {k: statistics.mean(p["steps"][n][k] for p in profiles) for k in times}
                      for n, times in profiles[0]["steps"].items()},
            **{what: statistics.mean(p[what] for p in profiles) for what in ("start", "end", "resize")}}


def write_application(folder, kind, profile, slots):
    folder.mkdir(parents=True)
    _, batch, steps = KINDS[kind]
    epochs, rows = 20, ["progress,iteration,metric,grad_sqr,grad_var"]
    for epoch in range(1, epochs + 1):
        done = steps * epoch / epochs
        rows.append(f"{done},{done},0,1,1")
    (folder / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
    placements = ["placement,local_bsz,step_time,sync_time"]
    scaling = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    one = profile["steps"]["1"]
    for n in range(1, slots + 1):
        step = profile["steps"][str(n)]
        row = f"{-(-batch // n)},{step},{max(0.0, step - one / n) if n > 1 else 0.0}"
        placements.append(f"{n},{row}")
        scaling.append(f"1,{n},{row}")
    (folder / "placements-cpu.csv").write_text("\n".join(placements) + "\n")
    (folder / "scalability-cpu.csv").write_text("\n".join(scaling) + "\n")


def knows_resize(args):
    """Whether this simulator tells the change of a running job from a start."""
    if not hasattr(args, "knows_resize"):
        said = subprocess.run([args.build / "bin" / "ductile", "sim", "--help"], capture_output=True, text=True, check=True)
        args.knows_resize = re.search(r"^\s+--resize\b", said.stdout, re.MULTILINE) is not None
    return args.knows_resize


def simulated(args, name, label, profiles, draw=None, budget="exact"):
    """The jobs, each with its completion time; with `draw`, of a workload that differs a little."""
    policy, one = parts_of(label)
    folder = args.out / "sim"
    shutil.rmtree(folder, ignore_errors=True)
    jobs = workload(name, args.slots)
    if draw:
        jobs = [(*job[:4], max(0.0, job[4] + draw.uniform(-0.5, 0.5))) for job in jobs]
        profiles = {kind: {**p, "steps": {n: s * draw.uniform(0.97, 1.03) for n, s in p["steps"].items()}}
                    for kind, p in profiles.items()}
    for kind in KINDS:
        write_application(folder / "traces" / kind, kind, profiles[kind], args.slots)
    # The jobs before the workload, which do not count, and time for all of them.
    later = 60 + sum(KINDS[kind][2] * p["steps"]["1"] + p["start"] + p["end"] + interval_of(args, label)
                     for kind, p in profiles.items())
    rows = ["name,time,application,num_replicas,batch_size,scaling,work"]
    scaling = "rigid" if policy in FIXED_SIZE else "strong"
    rows += [f"first-{kind},0,{kind},1,{KINDS[kind][1]},{scaling},1" for kind in KINDS]
    for job, kind, length, asked, arrival in sorted(jobs, key=lambda j: j[4]):
        rows.append(f"{job},{later + arrival:.3f},{kind},{1 if one else asked},{KINDS[kind][1]},{scaling},{length}")
    (folder / "jobs.csv").write_text("\n".join(rows) + "\n")
    (folder / "cluster.toml").write_text(f'[[nodes]]\ntype = "cpu"\ncount = 1\ndevices = {args.slots}\n')
    pause = statistics.mean(profiles[kind]["start"] + profiles[kind]["end"] for _, kind, *_ in jobs)
    words = [args.build / "bin" / "ductile", "sim", folder / "jobs.csv", "--applications", folder / "traces",
             "--cluster", folder / "cluster.toml", "--policy", policy, "--interval", str(interval_of(args, label)),
             "--as-service", "--neighbours", str(next(iter(profiles.values()))["neighbours"]), "--budget", budget, "--information", args.information, "--restart", str(pause), "--json",
             "--out", folder / "out"]
    if knows_resize(args):
        words += ["--resize", str(min(pause, statistics.mean(profiles[kind]["resize"] for _, kind, *_ in jobs)))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "out" / "runs.json").read_text())[0]["jobs"]
    return [{**{k: j[k] for k in ("name", "device_seconds", "paused", "restarts")}, "jct": j["finish"] - j["arrival"],
             "waited": j["start"] - j["arrival"]} for j in found if not j["name"].startswith("first-")]


def mean_jct(jobs):
    return statistics.mean(job["jct"] for job in jobs)


def jittered(args, name, label, profiles):
    """The 5th, 50th and 95th percentile of the mean completion times of workloads that differ a little; None where
    none was asked for."""
    draw = random.Random(f"jitter {name}")
    found = sorted(mean_jct(simulated(args, name, label, profiles, draw)) for _ in range(args.jitter))
    return [found[round(part * (len(found) - 1))] for part in (0.05, 0.5, 0.95)] if found else None
