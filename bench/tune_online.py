#!/usr/bin/python3
"""What tune.online repairs: runs whose learning rate is 100 times too small or too large, with and without it.

Usage: bench/tune_online.py --data FASHION_MNIST_FOLDER [--off 100] [--seeds 2] [--build build/release]

The tuner's first trials are the job's rate and others 10 and 100 times as large and as small, so with --off 100 or 10 the
best known rate is among them; with --off 30 or 300 it is not.

The mlp on the digits (10 epochs) and on Fashion-MNIST (5 epochs), SGD with momentum, cosine. "Samples to it"
counts every sample that was trained, those of dropped trials included, until the first evaluation within half a
percentage point of what the default run of that seed has at its end. The rivals know as much as the tuner does, the range
of the learning rate: a random search draws from it and trains each draw to its end until one gets there (its median and
quartiles are over 10,000 orders of the draws), and the best known run is the fastest of all, which nobody could know
beforehand. Prints a JSON line per run and two Markdown tables.
"""
import argparse
import itertools
import json
import math
import pathlib
import random
import statistics
import subprocess
import tempfile

LR = 0.1
BATCH = 128
RANGE = (1e-5, 1.0)  # tune.lr, by default
SHARED = ["model.name=mlp", f"train.batch_size={BATCH}", "train.threads=1", "loader.threads=1",
          "train.eval_every_epochs=0.25", "train.log_every=1000000", "checkpoint.every_seconds=0",
          "checkpoint.at_end=false"]


def train(args, sets):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        words = [str(args.build / "bin" / "ductile"), "-q", "train", "--out", str(run)]
        for s in SHARED + sets:
            words += ["--set", s]
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        if done.returncode:
            return None, events, done.stderr.strip()
        return next(e for e in events if e["kind"] == "summary"), events, ""


def measure(args, task, kind, factor, seed, sets, target):
    end, events, error = train(args, sets)
    chosen = [m["setting"]["lr"] for e in events if e["kind"] == "tune" for m in e["moves"] if m["what"] == "chosen"]
    out = {"task": task, "run": kind, "lr": LR * factor, "seed": seed, "lr_found": chosen, "error": error}
    if end:
        out["accuracy"] = end["final"]["accuracy"]
        out["samples"] = end["samples"]
        goal = (out["accuracy"] if target is None else target) - 0.005
        reached = [e["step"] for e in events if e["kind"] == "evaluation" and e["accuracy"] >= goal]
        out["samples_to_default"] = reached[0] * BATCH if reached else None  # each step is an update
    print(json.dumps(out), flush=True)
    return out


def random_search(draws, orders=10_000):
    """Samples until the first draw is there, in random orders: all of those before it are trained to their ends."""
    draw, sums = random.Random(1), []
    if not any(r["samples_to_default"] for r in draws):
        return None
    for _ in range(orders):
        total = 0
        for r in draw.sample(draws, len(draws)):
            total += r["samples_to_default"] or r.get("samples") or r["samples_planned"]
            if r["samples_to_default"]:
                break
        sums.append(total)
    return statistics.quantiles(sums, n=4)


def drawn_runs(args, task, sets, targets):
    """Full runs at learning rates drawn from the range, one after the other; seeds in turn."""
    draw, out = random.Random(7), []
    for i in range(args.draws):
        lr = math.exp(draw.uniform(*map(math.log, RANGE)))
        seed = 1 + i % args.seeds
        run = measure(args, task, "drawn", lr / LR, seed, [*sets, f"optimizer.lr={lr}", f"seed={seed}"], targets[seed])
        run.setdefault("samples_to_default", None)
        out.append(run)
    whole = max(r.get("samples", 0) for r in out)
    for run in out:
        run["samples_planned"] = whole  # of one that ended with an error: it cost at most this
    return out


def rival_row(task, tuned, draws, others):
    """A run that never got there is longer than any other: the median counts it."""
    known = [r["samples_to_default"] for r in [*draws, *others] if r.get("samples_to_default")]
    ours = [r.get("samples_to_default") or math.inf for r in tuned]
    mine, best = statistics.median(ours), min(known, default=math.inf)
    there = f"{mine / 1e3:.1f} k ({sum(x < math.inf for x in ours)} of {len(ours)})" if mine < math.inf else "never"
    quartiles = random_search(draws)
    if quartiles is None:  # none of the draws got there
        low = middle = high = sum(r.get("samples") or r["samples_planned"] for r in draws)
        searched = f"more than {middle / 1e3:.0f} k"
    else:
        low, middle, high = quartiles
        searched = f"{middle / 1e3:.0f} k ({low / 1e3:.0f} to {high / 1e3:.0f})"
    return [task, there, f"{best / 1e3:.1f} k", f"{mine / best:.2f}", searched,
            ("more than " if quartiles is None else "") + f"{middle / mine:.1f}"]


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for r in rows:
        print("| " + " | ".join(r) + " |")


def values(runs, key, form):
    return ", ".join(form(r[key]) if r.get(key) is not None else "never" for r in runs)


def row(task, kind, lr, runs):
    if any(r["error"] for r in runs):
        return [task, kind, f"{lr:g}", "ends with an error", "", "", ""]
    found = "; ".join(", ".join(f"{x:.3g}" for x in r["lr_found"]) for r in runs)
    return [task, kind, f"{lr:g}", found, values(runs, "accuracy", lambda x: f"{100 * x:.2f} %"),
            values(runs, "samples_to_default", lambda x: f"{x / 1e3:.1f} k"),
            f"{statistics.mean(r['samples'] for r in runs) / 1e3:.0f} k"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--off", type=float, default=100, help="factor by which the job's rate is too small or too large")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--draws", type=int, default=12, help="full runs of the random search; 0: none")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    args = parser.parse_args()
    print_rows, rivals = [], []
    for task, sets in (("digits", ["data.format=digits", "train.epochs=10"]),
                       ("Fashion-MNIST", ["data.format=idx", f"data.path={args.data}", "train.epochs=5"])):
        targets, tuned, others = {}, [], []
        for kind, factor in itertools.product(("plain", "tuned"), (1, 1 / args.off, args.off)):
            runs = []
            for seed in range(1, args.seeds + 1):
                more = sets + [f"optimizer.lr={LR * factor}", f"seed={seed}", f"tune.online={str(kind == 'tuned').lower()}"]
                runs.append(measure(args, task, kind, factor, seed, more, targets.get(seed)))
                targets.setdefault(seed, runs[-1].get("accuracy"))
            if kind == "plain":
                others += runs
            elif factor != 1:  # so many times off
                tuned += runs
            print_rows.append(row(task, kind, LR * factor, runs))
        if args.draws:
            rivals.append(rival_row(task, tuned, drawn_runs(args, task, sets, targets), others))
    table(["task", "run", "optimizer.lr", "found", "accuracy at the end", "samples to it", "samples in all"], print_rows)
    if rivals:
        table(["task", f"tuned, {args.off:g} times off: samples to it (median; how many got there)", "best known run", "ratio",
               "random search with full runs: median (quartiles)", "ratio"], rivals)


if __name__ == "__main__":
    main()
