#!/usr/bin/python3
"""What it costs to be elastic and exact: the same job in four modes, alternately in one run.

Usage: bench/elastic_cost.py [--model resnet20] [--rounds 5] [--steps 120] [--batch 128]
                             [--set OPTION=VALUE ...] [--build build/release]

Modes:
  plain      one process, no controller: elasticity off
  elastic    one worker under a controller: step commit, heartbeats, leases; nothing to exchange
  fast       two workers, reduction = "fast": the quickest all-reduce
  canonical  two workers, canonical reduction: what users get
Two workers without elasticity are no mode of the program, so the price is told in two ratios of the
same run: elastic / plain is what commit, heartbeat and controller cost; canonical / fast is what
the order of the sum costs. Their product is the cost of both.

Each burst is a whole job; a job of a quarter of the steps is run beside it, and the difference of
the two counts, so that starting processes and loading data do not. CPU time is that of the job's
processes, all together, a step; wall time follows from the same differences. The jobs have two
virtual ranks in all modes, and as many threads as cores together. Prints a JSON line a burst, then
medians over rounds with their spread. Wall times need a quiet machine; CPU times suffer less.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile
import time

MODES = {
    "plain": [],
    "elastic": ["--workers", "1"],
    "fast": ["--workers", "2", "--set", "train.reduction=fast"],
    "canonical": ["--workers", "2"],
}


def burst(args, mode, steps):
    """Seconds of CPU and wall time of one job."""
    sets = [
        "data.format=digits", f"model.name={args.model}", f"train.batch_size={args.batch}",
        "train.virtual_ranks=2", "train.epochs=1000000", f"train.max_steps={steps}",
        "train.eval_every_epochs=0", "data.test_limit=32", "optimizer.lr=0.01",
        "checkpoint.every_seconds=0", "checkpoint.at_end=false", *args.set,
    ]
    with tempfile.TemporaryDirectory() as folder:
        words = [args.build / "bin" / "ductile", "-q", "train", "--out",
                 pathlib.Path(folder) / "run", *MODES[mode]]
        for s in sets:
            words += ["--set", s]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begin = time.monotonic()
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL,
                       env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"))
        wall = time.monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, wall


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    args = parser.parse_args()
    short = max(1, args.steps // 4)
    rounds = []
    for number in range(args.rounds):
        figures = {}
        for mode in MODES:
            cpu_short, wall_short = burst(args, mode, short)
            cpu, wall = burst(args, mode, args.steps)
            steps = args.steps - short
            figures[mode] = dict(cpu_ms=1000 * (cpu - cpu_short) / steps,
                                 samples_per_second=args.batch * steps / (wall - wall_short))
            print(json.dumps(dict(round=number, mode=mode, **figures[mode])), flush=True)
        rounds.append(figures)

    def ratio(over, under, figure):
        values = [r[over][figure] / r[under][figure] for r in rounds]
        return dict(median=statistics.median(values), low=min(values), high=max(values))

    for name, (over, under) in dict(elastic=("elastic", "plain"),
                                    exact=("canonical", "fast")).items():
        print(json.dumps(dict(cost=name, cpu=ratio(over, under, "cpu_ms"),
                              samples_per_second=ratio(over, under, "samples_per_second"))))
    both = [r["elastic"]["cpu_ms"] / r["plain"]["cpu_ms"] * r["canonical"]["cpu_ms"] /
            r["fast"]["cpu_ms"] for r in rounds]
    print(json.dumps(dict(cost="both, CPU", median=statistics.median(both), low=min(both),
                          high=max(both))))


if __name__ == "__main__":
    main()
