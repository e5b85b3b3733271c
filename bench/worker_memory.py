#!/usr/bin/python3
"""What each worker of a job by stages has in memory: the whole state, or that of its stages.

Usage: bench/worker_memory.py [--width 1024] [--layers 12] [--stages 2 4] [--steps 60]
                                [--optimizer adamw] [--batch 64] [--set OPTION=VALUE ...]
                                [--build build/release]

The model is an mlp of `layers` linear layers of width x width (the first one reads an image) and a
small last one, in equal stages, with a worker for each. Modes:
  whole      every worker holds all of the state
  by stage   train.shard_optimizer, with shard_copies = 1
  a copy     the same with shard_copies = 2, where there are more than two workers
Each mode is a job of its own, in which /proc/PID/status of every worker is read every 20 ms. The
figures are medians over the second half of a worker's samples: RssAnon (the process's own memory),
RssShmem (arenas, those of others as far as the worker reads them), and VmHWM (the highest of all
memory together, since the start) at the end, in MiB. Prints a JSON line a mode, with the least and
the greatest worker, and the size of the state. Nothing is timed, so the machine may be busy.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

MIB = 1 << 20


def sizes(args):
    """The floats of the model's weights and biases."""
    widths = [784] + [args.width] * args.layers + [10]
    return sum(a * b + b for a, b in zip(widths, widths[1:]))


def stages(args, number):
    layers = [f"fc{i + 1}" for i in range(args.layers)]
    each = args.layers // number
    parts = [layers[s * each:(s + 1) * each] for s in range(number)]
    parts[-1] += layers[number * each:] + [f"fc{args.layers + 1}"]
    return [" ".join(part) for part in parts]


def workers_of(run):
    """The processes of the run's workers."""
    out = []
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ductile-worker") and str(run).encode() in words:
            out.append(int(folder.name))
    return out


def status_of(process):
    try:
        text = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in ("RssAnon", "RssShmem", "VmHWM"):
            fields[name] = int(value.split()[0]) * 1024 / MIB
    return fields if len(fields) == 3 else None


def measure(args, number, options):
    """What the workers of one job had, in the order of their processes' numbers."""
    sets = [
        "data.format=digits", "model.name=mlp",
        "model.hidden=" + json.dumps([args.width] * args.layers), f"train.batch_size={args.batch}",
        "train.method=pipelined", f"train.virtual_ranks={number}",
        "train.pipelined.stages=" + json.dumps(stages(args, number)), "train.epochs=1000000",
        f"train.max_steps={args.steps}", "train.eval_every_epochs=0", "data.test_limit=32",
        f"optimizer.name={args.optimizer}", "optimizer.lr=0.0001", "train.threads=1",
        "checkpoint.every_seconds=0", "checkpoint.at_end=false", *options, *args.set,
    ]
    samples = {}
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        words = [args.build / "bin" / "ductile", "-q", "train", "--out", run, "--workers",
                 str(number)]
        for s in sets:
            words += ["--set", s]
        job = subprocess.Popen(words, stdout=subprocess.DEVNULL,
                               env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"))
        while job.poll() is None:
            for process in workers_of(run):
                if fields := status_of(process):
                    samples.setdefault(process, []).append(fields)
            time.sleep(0.02)
        if job.returncode != 0:
            raise SystemExit(f"the job failed: {' '.join(map(str, words))}")
    out = []
    for _, seen in sorted(samples.items()):
        half = seen[len(seen) // 2:]
        out.append({name: statistics.median(s[name] for s in half)
                    for name in ("RssAnon", "RssShmem")} | {"VmHWM": seen[-1]["VmHWM"]})
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    args = parser.parse_args()
    for number in args.stages:
        modes = {"whole": [],
                 "by stage": ["train.shard_optimizer=true", "train.shard_copies=1"]}
        if number > 2:
            modes["a copy"] = ["train.shard_optimizer=true", "train.shard_copies=2"]
        for mode, options in modes.items():
            each = measure(args, number, options)
            figures = {"stages": number, "mode": mode, "weights": sizes(args) * 4 / MIB}
            for name in ("RssAnon", "RssShmem", "VmHWM"):
                values = sorted(worker[name] for worker in each)
                figures[name] = [round(values[0]), round(values[-1])]
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
