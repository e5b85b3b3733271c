#!/usr/bin/python3
"""The same jobs as plain Slurm batch jobs, and in a pool of Ductile.

Usage: bench/live/slurm.py OUT [--rivals asked,one,asked-nice,one-nice] [--workloads a,b] [--rounds 2] [--nodes 2]
                           [--steps 100] [--gap 5] [--together] [--build build/release]

A Slurm of so many nodes with one core each (tests/slurm/testbed.py). As plain jobs each is one
`sbatch` of a `ductile train`. The testbed's Slurm looks for what it can start of the queue, in its order, at each
submission and end and each second (sched_interval=1); its backfill looks each three seconds (bf_interval=3).
In the pool each may have from one node to all; `ductile server` lives
beside Slurm, has no pilot when the first job comes, and borrows the same nodes. All take turns; with
--together each rival and a pool of its own run at the same time, each in a Slurm of its own, so that whatever else the
machine does hinders both alike.

The rivals:
  asked        the nodes that its user asked for, all with one time limit; first come, first served, and backfill has
               nothing to go by
  one          one node for each job, else the same
  asked-nice   as asked, and all users know how long their jobs take: `--nice` is that time in seconds,
               so that shorter ones go first, and `--time` half as much again, as backfill wants it
  one-nice     both
How long a job takes is measured before, alone on one node and on all. Slurm counts limits in minutes: with jobs of seconds
all have the same one, so give --steps and --gap for which the jobs take minutes (--steps 6000 --gap 120, say).

A job's time is from right before its submission's command (`sbatch`, `ductile submit`) to the end of its processes: of
`ductile train` by the clock of its batch script, in the pool as the service records it. Of that, "waited" is until it was
given nodes (the script begins; the service starts it), and "start" from there to its first step. Its weights have the
same bits in all.
Workload a was there while this was written; b was kept apart. It resumes where it stopped: what lies
in OUT is not run again. Writes OUT/report.json and prints a table.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/slurm"))
from testbed import Service, Testbed, digest_of, until  # noqa: E402

RIVALS = ["asked", "one", "asked-nice", "one-nice"]


def workload(name, nodes, shortest, gap):
    """(name, batch, steps, nodes asked for, seconds until the next)."""
    draw = random.Random(f"slurm {name}")
    jobs = []
    for number in range(12):
        steps = shortest * draw.choice([1, 1, 1, 2, 2, 3, 6, 12])
        jobs.append((f"{name}-{number}", draw.choice([64, 128]), steps, draw.choice([1, 1, nodes]),
                     draw.expovariate(1 / gap)))
    return jobs


def options_of(args, batch, steps):
    words = ["data.format=digits", "model.name=cnn", "optimizer.lr=0.05", f"train.batch_size={batch}",
             f"train.max_steps={steps}", "train.epochs=100000", f"train.virtual_ranks={args.nodes}",
             "train.threads=1", "train.eval_every_epochs=0", "train.log_every=5"]
    return [w for word in words for w in ("--set", word)]


def submit_each(jobs, submit):
    for job in jobs:
        begin = time.time()
        submit(*job[:4])
        time.sleep(max(0.0, begin + job[4] - time.time()))


def alone(args):
    """{"batch nodes": [seconds of a start and an end, seconds of a step]} of jobs that run by themselves."""
    out = {}
    for batch in (64, 128):
        for nodes in sorted({1, args.nodes}):
            run = args.out / f"alone-{batch}-{nodes}"
            shutil.rmtree(run, ignore_errors=True)
            begin = time.time()
            subprocess.run([args.ductile, "-q", "train", "--out", run, "--workers", str(nodes),
                            *options_of(args, batch, 3 * args.steps)], check=True, stdout=subprocess.DEVNULL)
            rate = first_step(run)[1]
            out[f"{batch} {nodes}"] = [time.time() - begin - 3 * args.steps * rate, rate]
    return out


def first_step(run):
    """When the first step of a run began, and the seconds of a step in its first generation."""
    rows = [json.loads(line) for line in (pathlib.Path(run) / "metrics.jsonl").read_text().splitlines()]
    rows = [r for r in rows if "train/loss" in r]
    rows = [r for r in rows if r["generation"] == rows[0]["generation"]]
    rate = (rows[-1]["time"] - rows[0]["time"]) / max(1, rows[-1]["step"] - rows[0]["step"])
    return rows[0]["time"] - rate * rows[0]["step"], rate


def facts(run, submitted, began, ended):
    return {"jct": ended - submitted, "waited": began - submitted, "start": first_step(run)[0] - began,
            "digest": digest_of(run)}


def plain(args, testbed, jobs, rival, known):
    """One batch job each."""
    folder = args.out / f"plain-{rival}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sizes, _, nice = rival.partition("-")
    submitted = {}

    def seconds(batch, steps, nodes):
        start, step = known[f"{batch} {nodes}"]
        return start + steps * step

    longest = max(seconds(batch, steps, 1) for _, batch, steps, *_ in jobs)

    def submit(name, batch, steps, asked):
        nodes = asked if sizes == "asked" else 1
        takes = seconds(batch, steps, nodes)
        limit = math.ceil(1.5 * takes / 60) if nice else 10 + math.ceil(2 * longest / 60)
        words = [str(args.ductile), "-q", "train", "--out", str(folder / name)]
        if nodes > 1:
            words += ["--launcher", "srun --overlap -N1 -n1 -w {host}", "--listen", "127.0.0.1", "--hosts", "$HOSTS"]
        words += options_of(args, batch, steps)
        line = " ".join(w if w == "$HOSTS" else f"'{w}'" for w in words)
        script = folder / f"{name}.sh"
        script.write_text("#!/bin/bash\nBEGIN=$(date +%s.%N)\n"
                          "HOSTS=$(scontrol show hostnames | sed 's/$/=127.0.0.1:1/' | paste -sd,)\n"
                          f"{line}\necho $? $BEGIN $(date +%s.%N) > {folder}/{name}.part\n"
                          f"mv {folder}/{name}.part {folder}/{name}.done\n")
        submitted[name] = time.time()
        testbed.slurm("sbatch", "--parsable", f"--nodes={nodes}", "--ntasks-per-node=1", f"--time={limit}",
                      *([f"--nice={math.ceil(takes)}"] if nice else []),
                      f"--job-name={name}", f"--output={folder}/{name}.log", str(script))

    submit_each(jobs, submit)
    until(lambda: all((folder / f"{j[0]}.done").exists() for j in jobs), args.patience, "plain jobs")
    out = {}
    for name, *_ in jobs:
        status, begin, end = (folder / f"{name}.done").read_text().split()
        assert status == "0", (folder / f"{name}.log").read_text()
        out[name] = facts(folder / name, submitted[name], float(begin), float(end))
    until(lambda: not testbed.slurm("squeue", "-h").strip(), 60, "Slurm is empty")
    return out


def pooled(args, testbed, jobs):
    """In a pool of the same nodes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile"))
    service = Service(testbed, args.ductile, f'name = "lab"\ndevices = 1\nmin = 0\nmax = {args.nodes}\n'
                      f'partition = "main"\ntime_limit = 60\nidle = 10\n', args.policy, folder)
    numbers, submitted = {}, {}

    def submit(name, batch, steps, asked):
        submitted[name] = time.time()
        numbers[name] = service.submit(name, options_of(args, batch, steps), 1, args.nodes)

    try:
        submit_each(jobs, submit)
        out = {}
        for name, *_ in jobs:
            record = service.finish(numbers[name], args.patience)
            assert record["phase"] == "finished", record
            out[name] = {**facts(record["run"], submitted[name], record["started"], record["ended"]),
                         "generations": record["generation"]}
    finally:
        service.stop()
    until(lambda: not testbed.slurm("squeue", "-h").strip(), 60, "Slurm is empty")
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def play(args, slurms, name, round_number, known):
    """{how: jobs} of a workload in a round. Another one begins in each."""
    jobs = workload(name, args.nodes, args.steps, args.gap)

    def kept(how):
        file = args.out / f"{name}-{round_number}-{how}.json"
        if not file.exists():
            pool = how.startswith("pool")
            done = pooled(args, slurms["pool"], jobs) if pool else plain(args, slurms["plain"], jobs, how, known)
            file.write_text(json.dumps(done, indent=1))
        return json.loads(file.read_text())

    if not args.together:
        hows = [*args.rivals, "pool"]
        first = round_number % len(hows)
        return {how: kept(how) for how in hows[first:] + hows[:first]}
    done = {}
    for rival in args.rivals:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            waiting = {how: pool.submit(kept, how) for how in (rival, f"pool-{rival}")}
        done |= {how: future.result() for how, future in waiting.items()}
    return done


def mean(jobs, what="jct"):
    return statistics.mean(job[what] for job in jobs.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--workloads", default="a,b")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of the shortest job")
    parser.add_argument("--gap", type=float, default=5, help="mean seconds between two arrivals")
    parser.add_argument("--patience", type=float, default=7200, help="seconds for all jobs of a workload")
    parser.add_argument("--policy", default="ductile")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--keep", action="store_true", help="the folders of services, to look into")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.rivals = args.rivals.split(",")
    if unknown := set(args.rivals) - set(RIVALS):
        parser.error(f"no such rival: {', '.join(unknown)}")
    args.out = args.out.resolve()
    args.ductile = args.build.resolve() / "bin" / "ductile"
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    file = args.out / "alone.json"
    if not file.exists():
        file.write_text(json.dumps(alone(args), indent=1))
    known = json.loads(file.read_text())
    rows = []
    slurms = {how: Testbed(args.nodes, port, {"CPUS": "1", "GPUS": "0"}) for how, port in (("plain", 17500), ("pool", 17600))}
    try:
        for round_number in range(args.rounds):
            for name in args.workloads.split(","):
                done = play(args, slurms, name, round_number, known)
                for rival in args.rivals:
                    jobs, pool = done[rival], done[f"pool-{rival}" if args.together else "pool"]
                    rows.append({"workload": name, "round": round_number, "rival": rival, "jobs": len(jobs),
                                 "same_bits": sum(job["digest"] == pool[n]["digest"] for n, job in jobs.items()),
                                 "steps": args.steps, "gap": args.gap, "ratio": mean(jobs) / mean(pool),
                                 **{who: {what: mean(of, what) for what in ("jct", "waited", "start")}
                                    for who, of in (("plain", jobs), ("pool", pool))}})
                    print(json.dumps(rows[-1]), flush=True)
    finally:
        for testbed in slurms.values():
            testbed.down()
    (args.out / "report.json").write_text(json.dumps(rows, indent=1))
    print("\n| workload | round | rival | plain Slurm, mean s | waited | start | pool, mean s | waited | start | ratio | "
          "same bits |\n" + "|---" * 11 + "|")
    for r in rows:
        print(f"| {r['workload']} | {r['round'] + 1} | {r['rival']} | " +
              " | ".join(f"{r[who][what]:.1f}" for who in ("plain", "pool") for what in ("jct", "waited", "start")) +
              f" | {r['ratio']:.2f} | {r['same_bits']} of {r['jobs']} |")


if __name__ == "__main__":
    main()
