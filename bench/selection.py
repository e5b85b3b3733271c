#!/usr/bin/python3
"""What choosing examples saves: CPU seconds to an accuracy, and of a look against a step.

Usage: bench/selection.py target --data FASHION_MNIST_FOLDER [--seeds 3] [--epochs 10] [--target 0.90]
                                 [--methods plain,selective:beta=1,...] [--build FOLDER]
       bench/selection.py look --data CIFAR10_FOLDER [--model resnet8] [--rounds 3]

target: the job of examples/fashion_mnist_cnn.toml with each method; a method is NAME or
  NAME:KEY=VALUE+KEY=VALUE, where KEY is one of the method's options (train.NAME.KEY, but train.selective.KEY of
  stale_selective), or with a dot any option. Runs have one compute thread and one loader thread. A run
  ends at the target, and at the end of its epochs where it does not reach it;
  its CPU seconds are those of its worker then, start-up and evaluations included. With --ends
  a second run without a target tells the accuracy at the end.
look: CPU seconds per sample of a look (a forward pass in evaluation mode) against a whole step, from
  runs of selective with beta so large that almost nothing is kept, and of plain, of two lengths each.

Times are CPU times of all processes, since wall times mean nothing on a machine that does other work.
Prints a JSON line per run and a Markdown table.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def train(args, sets, run):
    words = [str(args.build / "bin" / "ductile"), "-q", "train", "--out", str(run)]
    for s in sets:
        words += ["--set", s]
    env = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def sets_of(method):
    name, _, options = method.partition(":")
    out = [f"train.method={name}"]
    group = name if name in ("infobatch", "graded") else "selective"
    for option in filter(None, options.split("+")):
        out.append(option if "." in option.split("=")[0] else f"train.{group}.{option}")
    return out


def job(args, more):
    sets = ["optimizer.lr=0.1", "optimizer.momentum=0.9", "optimizer.weight_decay=5e-4",
            "optimizer.sgd.nesterov=true", "train.batch_size=128", "train.threads=1",
            "loader.threads=1", "checkpoint.every_seconds=0", "checkpoint.at_end=false",
            f"data.path={args.data}"] + more
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        seconds = train(args, sets, run)
        return seconds, lines_of(run / "events.jsonl")


def last(events, kind):
    return next((e for e in reversed(events) if e["kind"] == kind), None)


def run_to(args, method, seed, target):
    more = ["data.format=idx", "augment.flip=true", "model.name=cnn", "schedule.warmup_epochs=0.5",
            f"train.epochs={args.epochs}", f"train.eval_every_epochs={args.eval_every}",
            "train.log_every=1000000", f"seed={seed}"] + sets_of(method)
    if target:
        more += ["target.metric=accuracy", f"target.value={target}"]
    events = job(args, more)[1]
    summary, reached = last(events, "summary"), last(events, "target")
    out = {"method": method, "seed": seed, "epochs": args.epochs, "accuracy": summary["final"]["accuracy"],
           "cpu_seconds": summary["cost"]["core_seconds"], "updates": summary["updates"],
           "samples_forward": summary["samples_forward"], "samples": summary["samples"],
           "flops": summary["flops"], "reached": reached is not None, "target": target}
    print(json.dumps(out), flush=True)
    return out


def thousands(runs, key):
    return f"{statistics.mean(r[key] for r in runs) / 1e3:.0f} k" if runs else "-"


def part(method, runs, base):
    seconds = [r["cpu_seconds"] for r in runs]
    if not runs:
        return ["-"] * 6
    mean = statistics.mean(seconds)
    base.setdefault("seconds", mean)
    accuracy = statistics.mean(r["accuracy"] for r in runs)
    return [f"{mean:.1f} ({min(seconds):.1f} to {max(seconds):.1f})", f"{mean / base['seconds']:.2f}",
            thousands(runs, "samples_forward"), thousands(runs, "samples"),
            f"{statistics.mean(r['flops'] for r in runs) / 1e12:.2f}", f"{100 * accuracy:.2f} %"]


def target(args):
    rows, base_to, base_end = [], {}, {}
    for method in args.methods.split(","):
        seeds = range(1, args.seeds + 1)
        to = [run_to(args, method, seed, args.target) for seed in seeds]
        reached = [r for r in to if r["reached"]]
        row = [method, f"{len(reached)} of {len(to)}"] + part(method, reached, base_to)
        if args.ends:
            row += part(method, [run_to(args, method, seed, None) for seed in seeds], base_end)
        rows.append(row)
    columns = ["CPU s (least to most)", "of the first row", "forward", "back-propagated", "TFLOP", "accuracy"]
    head = ["method", f"reached {args.target:.0%}"] + [f"to it: {columns[0]}"] + columns[1:]
    if args.ends:
        head += [f"to the end: {columns[0]}"] + columns[1:]
    table(head, rows)


def look(args):
    shared = ["data.format=cifar10", f"model.name={args.model}", "train.epochs=1000", "augment.pad=4",
              "augment.flip=true", "train.eval_every_epochs=0", "data.test_limit=128", "optimizer.lr=0.001"]
    # Hardly more than looks: what is above almost all of the history alone is kept.
    looks = ["train.method=selective", "train.selective.first_epochs=0", "train.selective.beta=1000"]
    rounds = []
    for _ in range(args.rounds):
        costs = []
        for more, size in ((["train.method=plain"], "train.max_steps={}"), (looks, "data.train_limit={}")):
            seconds, done = [], []
            for steps in (args.steps // 4, args.steps):
                sets = list(more)
                if size.startswith("train"):
                    sets.append(size.format(steps))
                else:  # one pass over so many samples, all looked at
                    sets += [size.format(128 * steps), "train.epochs=1"]
                took, events = job(args, shared + sets)
                end = last(events, "summary")
                seconds.append(took)
                done.append((end["samples_forward"] - end["samples"], end["samples"]))
            costs.append((seconds[1] - seconds[0], done[1][0] - done[0][0], done[1][1] - done[0][1]))
        step = costs[0][0] / costs[0][2]
        seen = (costs[1][0] - costs[1][2] * step) / costs[1][1]
        rounds.append((1e6 * seen, 1e6 * step, seen / step))
        print(json.dumps({"look_us": rounds[-1][0], "step_us": rounds[-1][1], "ratio": rounds[-1][2]}), flush=True)
    table(["model", "us of CPU per sample: look", "whole step", "ratio, median (least to most)"],
          [[args.model, f"{statistics.median(r[0] for r in rounds):.0f}",
            f"{statistics.median(r[1] for r in rounds):.0f}",
            f"{statistics.median(r[2] for r in rounds):.3f} "
            f"({min(r[2] for r in rounds):.3f} to {max(r[2] for r in rounds):.3f})"]])


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("target", "look"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eval-every", type=float, default=0.5, help="epochs between evaluations")
    parser.add_argument("--target", type=float, default=0.90)
    parser.add_argument("--methods", default="plain,selective:beta=1,selective:beta=2,stale_selective:beta=1,"
                        "stale_selective:beta=2,infobatch")
    parser.add_argument("--ends", action="store_true", help="also run to the end, without a target")
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    {"target": target, "look": look}[args.what](args)


if __name__ == "__main__":
    main()
