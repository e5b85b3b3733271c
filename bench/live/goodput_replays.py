#!/usr/bin/python3
"""Real jobs whose batches the scheduler orders by their goodput, and the replay of each.

Usage: bench/live/goodput_replays.py OUT [--policies ductile,pollux] [--rounds 2] [--jobs 6] [--slots 2]
                                     [--build build/release]

Jobs of one kind and several lengths arrive at `ductile up`, which resizes them and, as they let it
(train.rate_control = "goodput"), orders their batches. Each finished run is then repeated from its
record alone (`ductile train --replay`, with another number of workers): the weights must have the same
digest. Besides, the same jobs with a batch of their own, at the same times: what the orders gain. Which of the two runs first
alternates over rounds. The
bits do not depend on what else the machine does; the times do. Prints a table, writes OUT/goodput.json.

Both do the same epochs, but an epoch of large batches may teach less. So beside the time to the end there is the
time to equal loss: of each job, from its submission until its training loss, as the mean of a whole epoch, is for the
first time as low as where the worse of its two runs ended.
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
from in_service import ROOT, Up, digest_of, get, logged  # noqa: E402

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


def losses(record):
    """[seconds since the submission, mean training loss] of each epoch of a job's run."""
    epochs = {}
    for row in logged(pathlib.Path(record["run"])):
        epochs.setdefault(math.ceil(row["epoch"]), []).append(row)
    return [[rows[-1]["time"] - record["submitted"], statistics.mean(r["train/loss"] for r in rows)]
            for _, rows in sorted(epochs.items())]


def to_equal_loss(free, own):
    """The mean seconds of the jobs of both until each has the loss with which the worse of its two runs ended."""
    out = {"free": [], "own": []}
    for curves in zip(free["losses"], own["losses"]):
        target = max(curve[-1][1] for curve in curves)
        for who, curve in zip(out, curves):
            out[who].append(next(seconds for seconds, loss in curve if loss <= target))
    return {who: statistics.mean(seconds) for who, seconds in out.items()}


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
           "allocations": sum(r["generation"] for r in found), "losses": [losses(r) for r in found]}
    if free:
        out["orders"] = orders
        out["same"] = sum(replay(args, pathlib.Path(r["run"]), i) for i, r in enumerate(found))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--policies", default="ductile,pollux")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--interval", type=float, default=10)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.build, args.intervals = args.build.resolve(), {"": args.interval}
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(args.rounds):
        for policy in args.policies.split(","):
            found = {free: live(args, policy, free) for free in ((True, False) if n % 2 == 0 else (False, True))}
            rows.append({"policy": policy, "round": n, "free": found[True], "own": found[False],
                         "equal_loss": to_equal_loss(found[True], found[False])})
            (args.out / "goodput.json").write_text(json.dumps(rows, indent=1))
    print("| policy | round | first | jobs | batches ordered | allocations | same bits as its replay | mean time, s | with a batch "
          "of their own, s | to equal loss, s | with a batch of their own, s |\n" + "|---" * 11 + "|")
    for row in rows:
        free, own, equal = row["free"], row["own"], row["equal_loss"]
        print(f"| {row['policy']} | {row['round'] + 1} | {'ordered' if row['round'] % 2 == 0 else 'their own'} | "
              f"{free['finished']} of {args.jobs} | {sum(free['orders'])} | {free['allocations']} | {free['same']} of {args.jobs} | "
              f"{free['jct']:.1f} | {own['jct']:.1f} | {equal['free']:.1f} | {equal['own']:.1f} |")


if __name__ == "__main__":
    main()
