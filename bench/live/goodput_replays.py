#!/usr/bin/python3
"""Real jobs whose batches the scheduler orders by their goodput, and the replay of each.

Usage: bench/live/goodput_replays.py OUT [--policies ductile,pollux] [--jobs 6] [--slots 2] [--build build/release]

Jobs of one kind and several lengths arrive at `ductile up`, which resizes them and, as they let it
(train.rate_control = "goodput"), orders their batches. Each finished run is then repeated from its
record alone (`ductile train --replay`, with another number of workers): the weights must have the same
digest. Beside them the same jobs with a batch of their own, at the same times: what the orders gain. The
bits do not depend on what else the machine does; the times do. Prints a table, writes OUT/goodput.json.
"""
import argparse
import json
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from real_vs_sim import ROOT, Up, digest_of, get  # noqa: E402

BATCH = 32  # that a job begins with


def workload(count):
    """(epochs, arrival in seconds) of each job."""
    draw, now, out = random.Random("goodput"), 0.0, []
    for _ in range(count):
        out.append((draw.choice([60, 100, 160]), now))
        now += draw.expovariate(1 / 10.0)
    return out


def submit(up, args, number, epochs, free):
    options = ["model.name=mlp", "model.hidden=[64]", "data.train_limit=10000", "data.test_limit=100",
               f"train.epochs={epochs}", f"train.batch_size={BATCH}", "train.virtual_ranks=4", "train.threads=1",
               "train.log_every=20", "checkpoint.every_seconds=5"]
    if free:
        options += ["train.rate_control=goodput", "train.noise.patience=50", "train.noise.max_batch=2048"]
    words = [args.build / "bin" / "ductile", "-q", "submit", "--folder", up.folder, "--name",
             f"{'free' if free else 'own'}-{number}", "--min", "1", "--max", str(args.slots)]
    words += [word for option in options for word in ("--set", option)]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def orders_of(up, number):
    """How often a batch was ordered, as the service's events say."""
    after, count = 0, 0
    while True:
        page = get(up.folder, f"/v1/events?job={number}&after={after}&limit=1000")
        count += sum(event["kind"] == "batch" for event in page["events"])
        if len(page["events"]) < 1000:
            return count
        after = page["after"]


def replay(args, run, number):
    """Whether the run's record alone leads to its weights."""
    again = args.out / f"again-{number}"
    shutil.rmtree(again, ignore_errors=True)
    done = subprocess.run([args.build / "bin" / "ductile", "-q", "train", "--replay", run, "--workers", str(args.slots),
                           "--out", again], capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        return False
    return digest_of(again) == digest_of(run)


def live(args, policy, free):
    jobs, up = workload(args.jobs), Up(args, policy)
    try:
        begin, numbers = time.time(), []
        for i, (epochs, arrival) in enumerate(jobs):
            time.sleep(max(0.0, begin + arrival - time.time()))
            numbers.append(submit(up, args, i, epochs, free))
        up.finish()
        found = [up.record(number) for number in numbers]
        orders = [orders_of(up, number) for number in numbers] if free else []
    finally:
        up.end()
    out = {"jct": statistics.mean(r["ended"] - r["submitted"] for r in found),
           "finished": sum(r["phase"] == "finished" for r in found),
           "allocations": sum(r["generation"] for r in found)}
    if free:
        out["orders"] = orders
        out["same"] = sum(replay(args, pathlib.Path(r["run"]), i) for i, r in enumerate(found))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--policies", default="ductile,pollux")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = {}
    for policy in args.policies.split(","):
        rows[policy] = {"free": live(args, policy, True), "own": live(args, policy, False)}
        (args.out / "goodput.json").write_text(json.dumps(rows, indent=1))
    print("| policy | jobs | batches ordered | allocations | same bits as its replay | mean time, s | with a batch of their own, s |")
    print("|---|---|---|---|---|---|---|")
    for policy, row in rows.items():
        free, own = row["free"], row["own"]
        print(f"| {policy} | {free['finished']} of {args.jobs} | {sum(free['orders'])} | {free['allocations']} | "
              f"{free['same']} of {args.jobs} | {free['jct']:.1f} | {own['jct']:.1f} |")


if __name__ == "__main__":
    main()
