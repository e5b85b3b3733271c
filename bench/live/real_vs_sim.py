#!/usr/bin/python3
"""Real jobs under each policy on the slots of this machine, and the same workload in the simulator.

Usage: bench/live/real_vs_sim.py OUT [--policies fifo,tiresias,pollux,sia,ductile] [--workloads a,b]
                                 [--slots 2] [--rounds 1] [--interval 10] [--profiles before,after] [--jitter 0] [--data FOLDER]
                                 [--build build/release]

1. Each kind of job runs in a service on each number of slots, beside jobs of each kind on the others, which
   slow it down more or less: its time per step, and the seconds that a start and an end take (the profile).
   In a workload it runs beside each kind as often as there is work of that kind.
   By default profiles are taken before the first workload and after the last one, and their means count.
   The machine's speed changes within an hour, so the jobs of each turn (one workload under one policy) are
   measured as they run as well, and the simulator is given those times too: what is left is its own error.
2. Each workload runs under each policy with `ductile up`, jobs arriving when they should. Policies
   take turns.
3. The same workload runs in `ductile sim` with the profile. Its rounds are those of the service, and jobs
   declare their steps, as jobs with `train.max_steps` do here.
   With --jitter N it runs N times more, each job coming up to half a second sooner or later and each kind of step
   taking up to 3 % more or less, as it is in reality: some policies decide quite otherwise then, and the table
   gives the range that nine in ten of these runs have beside the real mean.
4. Each kind of job runs alone to its end; the weights of every job must have that digest.

FOLDER has fashion-mnist and cifar10 as `ductile data` takes them. Workload a was there while this was
written; b was kept apart. Policies that do not resize jobs run each with the slots that it asks for;
the others may give it from one slot to all. Policies decide every --interval seconds, and `ductile` at events as well: with
jobs of seconds, rounds of 10 s are a handicap of the others, so that a comparison of policies wants --interval 1. It wants a quiet machine, and resumes where it stopped:
what lies in OUT is not run again. Writes OUT/report.json and prints a table.
"""
import argparse
import array
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "service"))
sys.dont_write_bytecode = True
from asking import UnixConnection  # noqa: E402

RESIZES = {"fifo": False, "srtf": False, "tiresias": False, "gavel": False}

# Options beside the batch; steps of the shortest job.
KINDS = {
    "digits_cnn": (["data.format=digits", "model.name=cnn", "optimizer.lr=0.05"], 128, 400),
    "fashion_cnn": (["data.format=idx", "data.path={data}/fashion-mnist", "model.name=cnn",
                     "optimizer.lr=0.05", "data.test_limit=512"], 128, 400),
    "resnet8": (["data.format=cifar10", "data.path={data}/cifar10", "model.name=resnet8",
                 "data.test_limit=512"], 128, 150),
    "resnet20": (["data.format=cifar10", "data.path={data}/cifar10", "model.name=resnet20",
                  "data.test_limit=512"], 128, 60),
    "gpt": (["data.format=tokens", "data.path={out}/text.bin", "data.test_path={out}/text_test.bin",
             "data.tokens.type=u16", "data.tokens.sequence_length=64", "data.test_limit=32", "model.name=gpt",
             "model.layers=2", "model.heads=4", "model.dim=64", "optimizer.name=adamw",
             "optimizer.lr=0.001"], 32, 200),
}


def workload(name, slots):
    """(name, kind, length in multiples of the kind's shortest, slots asked for, arrival)."""
    draw = random.Random(f"live {name}")
    jobs, now = [], 0.0
    for number in range(14):
        kind = draw.choice(sorted(KINDS))
        length = draw.choice([1, 1, 2, 2, 3, 5])
        jobs.append((f"{name}-{number}-{kind}", kind, length, draw.choice([1, 1, slots]), now))
        now += draw.expovariate(1 / 8.0)
    return jobs


def options_of(args, kind, length):
    sets, batch, steps = KINDS[kind]
    words = [s.format(data=args.data, out=args.out.resolve()) for s in sets]
    words += [f"train.batch_size={batch}", f"train.max_steps={steps * length}", "train.epochs=100000",
              f"train.virtual_ranks={args.slots}", "train.eval_every_epochs=0", "train.log_every=5"]
    return [w for word in words for w in ("--set", word)]


def get(folder, path):
    connection = UnixConnection(folder / "api.sock", timeout=60)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def records(run, file):
    return [json.loads(line) for line in (run / file).read_text().splitlines()]


def digest_of(run):
    return [r for r in records(run, "events.jsonl") if r.get("kind") == "end"][-1]["weights_digest"]


def train(args, run, kind, length, workers):
    """Starts it; the run's folder is made by it."""
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    words = [args.build / "bin" / "ductile", "-q", "train", "--out", run, "--workers", str(workers),
             "--set", "train.threads=1", *options_of(args, kind, length)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)


class Up:
    """`ductile up` with so many slots under a policy; the jobs that are handed to it."""

    def __init__(self, args, policy):
        self.args, self.folder = args, args.out / "service"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.process = subprocess.Popen(
            [args.build / "bin" / "ductile", "up", "--folder", self.folder, "--devices", str(args.slots), "--policy",
             policy, "--interval", str(args.interval)], env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"), stdout=subprocess.DEVNULL,
            stderr=open(args.out / "service.log", "a"))
        while not (self.folder / "api.sock").exists():
            time.sleep(0.05)
        time.sleep(0.5)

    def submit(self, name, least, most, kind, length):
        done = subprocess.run([self.args.build / "bin" / "ductile", "submit", "--folder", self.folder, "--name", name,
                               "--min", str(least), "--max", str(most), *options_of(self.args, kind, length)],
                              check=True, capture_output=True, text=True)
        return int(done.stdout)

    def finish(self):
        while get(self.folder, "/v1/jobs?live=1&limit=1000")["jobs"]:
            time.sleep(0.1)

    def cancel(self, pattern):
        subprocess.run([self.args.build / "bin" / "ductile", "cancel", "--folder", self.folder, pattern],
                       capture_output=True)  # nothing left of that name is no fault

    def record(self, number):
        return get(self.folder, f"/v1/jobs/{number}")

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


LENGTH = 2  # of the jobs of a profile


def profile(args):
    """{kind: profile}: {slots: {kind on the other slots: seconds per step}}, the seconds from a submission to a job's
    first step, and those of its end. The service has run jobs of all kinds before: a workload has one cold start at
    most."""
    up = Up(args, "fifo")
    try:
        for kind in KINDS:
            up.submit(f"first-{kind}", 1, 1, kind, 1)
        up.finish()
        kinds = list(KINDS)
        random.Random(f"profile {time.time()}").shuffle(kinds)  # the machine's speed changes meanwhile
        return {kind: profile_of(args, up, kind) for kind in kinds}
    finally:
        up.end()


def profile_of(args, up, kind):
    out, start, end = {}, [], []
    for slots in range(1, args.slots + 1):
        times = out[str(slots)] = {}
        for other in KINDS if slots < args.slots else [kind]:
            record = run_beside(args, up, kind, slots, other)
            steps = [r for r in records(pathlib.Path(record["run"]), "metrics.jsonl") if "train/loss" in r]
            times[other] = (steps[-1]["time"] - steps[0]["time"]) / (steps[-1]["step"] - steps[0]["step"])
            start.append(steps[0]["time"] - times[other] * steps[0]["step"] - record["submitted"])
            end.append(record["ended"] - steps[-1]["time"])
    return {"steps": out, "start": statistics.median(start), "end": statistics.median(end)}


def run_beside(args, up, kind, slots, other):
    """The record of a job that ran on so many slots while all others had jobs of another kind."""
    beside = int(slots < args.slots)
    if beside:  # the other one first, so that all of this one is beside it
        up.submit(f"beside-{kind}-{slots}-{other}-0", 1, 1, other, LENGTH)
        while not any(job["phase"] == "running" for job in get(up.folder, "/v1/jobs?live=1&limit=1000")["jobs"]):
            time.sleep(0.05)
    number = up.submit(f"{kind}-{slots}-{other}", slots, slots, kind, LENGTH)
    while (phase := up.record(number)["phase"]) != "finished":
        assert phase in ("queued", "running"), phase
        waiting = [job for job in get(up.folder, "/v1/jobs?live=1&limit=1000")["jobs"] if job["phase"] == "queued"]
        if slots < args.slots and not waiting:
            up.submit(f"beside-{kind}-{slots}-{other}-{beside}", 1, 1, other, 1)
            beside += 1
        time.sleep(0.2)
    up.cancel(f"beside-{kind}-{slots}-{other}-*")
    up.finish()
    return up.record(number)


def in_workload(args, name, profiles):
    """Seconds per step by slots alone: beside each kind as often as the workload has work of it."""
    work = dict.fromkeys(KINDS, 0.0)
    for _, kind, length, *_ in workload(name, args.slots):
        work[kind] += length * KINDS[kind][2] * statistics.mean(profiles[kind]["steps"]["1"].values())

    def weighted(times):
        total = sum(work[k] for k in times)
        return sum(work[k] * t for k, t in times.items()) / total if total else statistics.mean(times.values())

    return {kind: {**p, "steps": {n: weighted(times) for n, times in p["steps"].items()}} for kind, p in profiles.items()}


def measured(run):
    """Of a job that has run in a service: [slots, steps, seconds] of each generation that logged twice."""
    slots = {r["generation"]: int(re.search(r"with (\d+) of", r["text"]).group(1))
             for r in records(run, "events.jsonl") if r.get("event") == "generation"}
    by_generation = {}
    for r in records(run, "metrics.jsonl"):
        if "train/loss" in r:
            by_generation.setdefault(r["generation"], []).append(r)
    return [[slots[n], rows[-1]["step"] - rows[0]["step"], rows[-1]["time"] - rows[0]["time"]]
            for n, rows in by_generation.items() if len(rows) > 1]


def profiles_during(args, name, turn, turns, profiles):
    """The profiles with the times that the jobs of one turn had; where a kind did not run on a number of slots in it,
    those of the other turns of the same workload, and else the profile's."""
    def times(chosen):
        sums = {}
        for jobs in chosen:
            for (_, kind, *_), job in zip(workload(name, args.slots), jobs):
                for slots, steps, seconds in job["measured"]:
                    entry = sums.setdefault((kind, str(slots)), [0, 0.0])
                    entry[0] += steps
                    entry[1] += seconds
        return {key: seconds / steps for key, (steps, seconds) in sums.items()}

    found = {**times(turns), **times([turn])}
    return {kind: {**p, "steps": {n: found.get((kind, n), seconds) for n, seconds in p["steps"].items()}}
            for kind, p in profiles.items()}


def mean_of(profiles):
    return {"steps": {n: {k: statistics.mean(p["steps"][n][k] for p in profiles) for k in times}
                      for n, times in profiles[0]["steps"].items()},
            **{what: statistics.mean(p[what] for p in profiles) for what in ("start", "end")}}


def kept(path, make):
    """What lies there, or is made now."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = make()
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(value, indent=1))
        temporary.rename(path)
    return json.loads(path.read_text())


def real(args, name, policy, digests):
    """One workload under one policy: jobs with arrival, start, end, changes and whether their weights
    are those of the job alone."""
    jobs, up = workload(name, args.slots), Up(args, policy)
    try:
        begin, numbers = time.time(), {}
        for job, kind, length, asked, arrival in jobs:
            time.sleep(max(0.0, begin + arrival - time.time()))
            free = RESIZES.get(policy, True)
            numbers[job] = up.submit(job, 1 if free else asked, args.slots if free else asked, kind, length)
        up.finish()
        out = []
        for job, kind, length, asked, arrival in jobs:
            record = up.record(numbers[job])
            out.append({"name": job, "arrival": arrival, "jct": record["ended"] - record["submitted"],
                        "waited": record["started"] - record["submitted"],
                        "allocations": record["generation"], "phase": record["phase"],
                        "measured": measured(pathlib.Path(record["run"])),
                        "same_bits": digest_of(pathlib.Path(record["run"])) == digests[f"{kind}-{length}"]})
        return out
    finally:
        up.end()


def alone(args):
    """{kind-length: digest of the weights} of each job, run alone."""
    out = {}
    for kind, length in sorted({(k, n) for w in args.workloads for _, k, n, _, _ in workload(w, args.slots)}):
        run = args.out / "alone" / f"{kind}-{length}"
        shutil.rmtree(run, ignore_errors=True)
        assert train(args, run, kind, length, args.slots).wait() == 0
        out[f"{kind}-{length}"] = digest_of(run)
    return out


def simulated(args, name, policy, profiles, draw=None):
    """The mean completion time in our seconds; with `draw`, of a workload that differs a little."""
    folder = args.out / "sim"
    shutil.rmtree(folder, ignore_errors=True)
    jobs = workload(name, args.slots)
    if draw:
        jobs = [(*job[:4], max(0.0, job[4] + draw.uniform(-0.5, 0.5))) for job in jobs]
        profiles = {kind: {**p, "steps": {n: s * draw.uniform(0.97, 1.03) for n, s in p["steps"].items()}}
                    for kind, p in profiles.items()}
    for kind, length in {(k, n) for _, k, n, _, _ in jobs}:
        application = folder / "traces" / f"{kind}-{length}"
        application.mkdir(parents=True)
        _, batch, steps = KINDS[kind]
        epochs, rows = 20, ["progress,iteration,metric,grad_sqr,grad_var"]
        for epoch in range(1, epochs + 1):
            done = steps * length * epoch / epochs
            rows.append(f"{done},{done},0,1,1")
        (application / f"validation-{batch}.csv").write_text("\n".join(rows) + "\n")
        placements = ["placement,local_bsz,step_time,sync_time"]
        scaling = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
        one = profiles[kind]["steps"]["1"]
        for slots in range(1, args.slots + 1):
            step = profiles[kind]["steps"][str(slots)]
            sync = max(0.0, step - one / slots) if slots > 1 else 0.0
            row = f"{-(-batch // slots)},{step},{sync}"
            placements.append(f"{slots},{row}")
            scaling.append(f"1,{slots},{row}")
        (application / "placements-cpu.csv").write_text("\n".join(placements) + "\n")
        (application / "scalability-cpu.csv").write_text("\n".join(scaling) + "\n")
    rows = ["name,time,application,num_replicas,batch_size,scaling"]
    for job, kind, length, asked, arrival in jobs:
        scaling = "strong" if RESIZES.get(policy, True) else "rigid"
        rows.append(f"{job},{arrival:.3f},{kind}-{length},{asked},{KINDS[kind][1]},{scaling}")
    (folder / "jobs.csv").write_text("\n".join(rows) + "\n")
    (folder / "cluster.toml").write_text(f'[[nodes]]\ntype = "cpu"\ncount = 1\ndevices = {args.slots}\n')
    pause = statistics.mean(profiles[kind]["start"] + profiles[kind]["end"] for _, kind, *_ in jobs)
    words = [args.build / "bin" / "ductile", "sim", folder / "jobs.csv", "--applications", folder / "traces",
             "--cluster", folder / "cluster.toml", "--policy", policy, "--interval", str(args.interval),
             "--as-service", "--budget", "exact", "--restart", str(pause), "--json", "--out", folder / "out"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"][0]["mean_jct"]


def jittered(args, name, policy, profiles):
    """The 5th, 50th and 95th percentile of the mean completion times of workloads that differ a little; None where
    none was asked for."""
    draw = random.Random(f"jitter {name}")
    found = sorted(simulated(args, name, policy, profiles, draw) for _ in range(args.jitter))
    return [found[round(part * (len(found) - 1))] for part in (0.05, 0.5, 0.95)] if found else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--policies", default="fifo,tiresias,pollux,sia,ductile")
    parser.add_argument("--workloads", default="a,b")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--interval", type=float, default=10)
    parser.add_argument("--profiles", default="before,after")
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.data, args.build = args.data.resolve(), args.build.resolve()
    args.policies, args.workloads = args.policies.split(","), args.workloads.split(",")
    args.out.mkdir(parents=True, exist_ok=True)
    text = b"".join(f.read_bytes() for f in sorted(ROOT.glob("docs/**/*.md")))
    numbers = array.array("H", list(text))
    (args.out / "text.bin").write_bytes(numbers[:len(text) * 9 // 10].tobytes())
    (args.out / "text_test.bin").write_bytes(numbers[len(text) * 9 // 10:].tobytes())

    def profiles_of(when):
        return [kept(args.out / f"profile-{when}.json", lambda: profile(args))] if when in args.profiles.split(",") else []

    profiled = profiles_of("before")
    digests = kept(args.out / "alone.json", lambda: alone(args))
    turns = [(n, name, policy) for n in range(args.rounds) for name in args.workloads for policy in args.policies]
    done = {turn: kept(args.out / f"real-{turn[1]}-{turn[2]}-{turn[0]}.json",
                       lambda turn=turn: real(args, *turn[1:], digests)) for turn in turns}
    profiled += profiles_of("after")
    profiles = {k: mean_of([p[k] for p in profiled]) for k in KINDS}
    rows = []
    for (round_number, name, policy), jobs in done.items():
        expected = in_workload(args, name, profiles)
        rows.append({"workload": name, "policy": policy, "round": round_number,
                     "real": statistics.mean(j["jct"] for j in jobs), "sim": simulated(args, name, policy, expected),
                     "allocations": sum(j["allocations"] for j in jobs),
                     "finished": sum(j["phase"] == "finished" for j in jobs),
                     "same_bits": sum(j["same_bits"] for j in jobs), "jobs": len(jobs)})
        rows[-1]["ratio"] = rows[-1]["real"] / rows[-1]["sim"]
        of_workload = [found for turn, found in done.items() if turn[1] == name and turn[0] == round_number]
        during = profiles_during(args, name, jobs, of_workload, expected)
        rows[-1]["sim_during"] = simulated(args, name, policy, during)
        rows[-1]["jittered"] = jittered(args, name, policy, during)
        if rows[-1]["jittered"]:
            rows[-1]["ratio_jittered"] = rows[-1]["real"] / rows[-1]["jittered"][1]
        rows[-1]["ratio_during"] = rows[-1]["real"] / rows[-1]["sim_during"]
    (args.out / "report.json").write_text(json.dumps({"profiles": profiled, "rows": rows}, indent=1))
    print("\n| workload | policy | real s | simulated s | real / simulated | simulated with the times of the turn, s | "
          "real / simulated | jittered, s (5th, 50th, 95th percentile) | real / jittered median | allocations | same bits |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        spread = ", ".join(f"{s:.1f}" for s in r["jittered"]) if r["jittered"] else "-"
        print(f"| {r['workload']} | {r['policy']} | {r['real']:.1f} | {r['sim']:.1f} | {r['ratio']:.3f} | "
              f"{r['sim_during']:.1f} | {r['ratio_during']:.3f} | {spread} | {r.get('ratio_jittered', 0):.3f} | {r['allocations']} | {r['same_bits']} of {r['jobs']} |")


if __name__ == "__main__":
    main()
