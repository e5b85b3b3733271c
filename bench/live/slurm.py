#!/usr/bin/python3
"""The same jobs as plain Slurm batch jobs of the sizes that were asked for, and in a pool of Ductile.

Usage: bench/live/slurm.py OUT [--workloads a,b] [--rounds 2] [--nodes 2]
                           [--steps 100] [--together] [--build build/release]

A Slurm of so many nodes with one core each (tests/slurm/testbed.py). As plain jobs each is one
`sbatch` of a `ductile train` with the nodes that its user asked for, with its time limit, scheduled
with backfill every second. In the pool each may have from one node to all; `ductile server` lives
beside Slurm, has no pilot when the first job comes, and borrows the same nodes. Both take turns; with
--together they run at the same time, each in a Slurm of its own, so that whatever else the machine
does hinders both alike.

A job's time is from its submission to the end of its processes: of `ductile train` by the clock of
its batch script, in the pool as the service records it. Its weights have the same bits in both.
Workload a was there while this was written; b was kept apart. It resumes where it stopped: what lies
in OUT is not run again. Writes OUT/report.json and prints a table.
"""
import argparse
import concurrent.futures
import json
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

LIMIT = 10  # minutes; the same for all, and for no job too short


def workload(name, nodes, shortest):
    """(name, batch, steps, nodes asked for, seconds until the next)."""
    draw = random.Random(f"slurm {name}")
    jobs = []
    for number in range(12):
        steps = shortest * draw.choice([1, 1, 1, 2, 2, 3, 6, 12])
        jobs.append((f"{name}-{number}", draw.choice([64, 128]), steps, draw.choice([1, 1, nodes]),
                     draw.expovariate(1 / 5.0)))
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


def plain(args, testbed, jobs):
    """One batch job each."""
    folder = args.out / "plain"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    submitted = {}

    def submit(name, batch, steps, asked):
        words = [str(args.ductile), "-q", "train", "--out", str(folder / name)]
        if asked > 1:
            words += ["--launcher", "srun --overlap -N1 -n1 -w {host}", "--listen", "127.0.0.1", "--hosts", "$HOSTS"]
        words += options_of(args, batch, steps)
        line = " ".join(w if w == "$HOSTS" else f"'{w}'" for w in words)
        script = folder / f"{name}.sh"
        script.write_text("#!/bin/bash\nHOSTS=$(scontrol show hostnames | sed 's/$/=127.0.0.1:1/' | paste -sd,)\n"
                          f"{line}\necho $? $(date +%s.%N) > {folder}/{name}.part\n"
                          f"mv {folder}/{name}.part {folder}/{name}.done\n")
        submitted[name] = time.time()
        testbed.slurm("sbatch", "--parsable", f"--nodes={asked}", "--ntasks-per-node=1", f"--time={LIMIT}",
                      f"--job-name={name}", f"--output={folder}/{name}.log", str(script))

    submit_each(jobs, submit)
    until(lambda: all((folder / f"{j[0]}.done").exists() for j in jobs), 900, "plain jobs")
    out = {}
    for name, *_ in jobs:
        status, end = (folder / f"{name}.done").read_text().split()
        assert status == "0", (folder / f"{name}.log").read_text()
        out[name] = {"jct": float(end) - submitted[name], "digest": digest_of(folder / name)}
    until(lambda: not testbed.slurm("squeue", "-h").strip(), 60, "Slurm is empty")
    return out


def pooled(args, testbed, jobs):
    """In a pool of the same nodes."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile"))
    service = Service(testbed, args.ductile, f'name = "lab"\ndevices = 1\nmin = 0\nmax = {args.nodes}\n'
                      f'partition = "main"\ntime_limit = 60\nidle = 10\n', args.policy, folder)
    numbers = {}

    def submit(name, batch, steps, asked):
        numbers[name] = service.submit(name, options_of(args, batch, steps), 1, args.nodes)

    try:
        submit_each(jobs, submit)
        out = {}
        for name, *_ in jobs:
            record = service.finish(numbers[name], 900)
            assert record["phase"] == "finished", record
            out[name] = {"jct": record["ended"] - record["submitted"], "digest": digest_of(record["run"]),
                         "generations": record["generation"]}
    finally:
        service.stop()
    until(lambda: not testbed.slurm("squeue", "-h").strip(), 60, "Slurm is empty")
    if not args.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--workloads", default="a,b")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of the shortest job")
    parser.add_argument("--policy", default="ductile")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--keep", action="store_true", help="the folders of services, to look into")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.out = args.out.resolve()
    args.ductile = args.build.resolve() / "bin" / "ductile"
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    rows = []
    slurms = {how: Testbed(args.nodes, port, {"CPUS": "1", "GPUS": "0"})
              for how, port in ((plain, 17500), (pooled, 17600))}

    def kept(how, name, round_number):
        file = args.out / f"{name}-{round_number}-{how.__name__}.json"
        if not file.exists():
            file.write_text(json.dumps(how(args, slurms[how], workload(name, args.nodes, args.steps)), indent=1))
        return json.loads(file.read_text())

    try:
        for round_number in range(args.rounds):
            for name in args.workloads.split(","):
                order = (plain, pooled) if round_number % 2 == 0 else (pooled, plain)
                with concurrent.futures.ThreadPoolExecutor(2 if args.together else 1) as pool:
                    waiting = {how.__name__: pool.submit(kept, how, name, round_number) for how in order}
                done = {how: future.result() for how, future in waiting.items()}
                means = {how: statistics.mean(j["jct"] for j in jobs.values()) for how, jobs in done.items()}
                same = sum(job["digest"] == done["pooled"][n]["digest"] for n, job in done["plain"].items())
                rows.append({"workload": name, "round": round_number, **means, "jobs": len(done["plain"]),
                             "same_bits": same, "steps": args.steps,
                             "ratio": means["plain"] / means["pooled"]})
                print(json.dumps(rows[-1]), flush=True)
    finally:
        for testbed in slurms.values():
            testbed.down()
    (args.out / "report.json").write_text(json.dumps(rows, indent=1))
    print("\n| workload | round | plain Slurm, mean s | pool, mean s | ratio | same bits |\n|---|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['workload']} | {r['round']} | {r['plain']:.1f} | {r['pooled']:.1f} | {r['ratio']:.2f} | "
              f"{r['same_bits']} of {r['jobs']} |")


if __name__ == "__main__":
    main()
