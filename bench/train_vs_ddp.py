#!/usr/bin/python3
"""Data-parallel training on one host: Ductile's elastic workers against DistributedDataParallel.

  bench/train_vs_ddp.py --data CIFAR10_FOLDER [--model resnet20] [--rounds 5] [--seconds 10]
                        [--build build/release] [--markdown FILE]

Every worker has one thread on a core of its own and a batch of 128 (two workers: 256 a step). A
round takes one burst of each, in turns: one Ductile worker, two (`ductile train --workers 2`,
canonical reduction, checkpoints off), one torch process, two under DistributedDataParallel (gloo,
its best: in-memory batches, gradients as views of the buckets, no buffer broadcast), and two
Ductile runs of one worker side by side, which have nothing to say to each other. Start-up and the
first windows of each burst are not counted. Prints a JSON line a round and, as medians with their
spread: ours / theirs with one and with two workers, and how much of two free-running processes two
workers together reach (scaling efficiency), on both sides.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import train_vs_torch as base

RIVAL = [
    "--threads", "1", "--memory-format", "channels_last", "--foreach", "off", "--driven"]


def rate(folder, batch):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "train/loss" in line]
    first, last = lines[base.WARM_UP_WINDOWS - 1], lines[-1]
    return (last["step"] - first["step"]) * batch / (last["seconds"] - first["seconds"])


def start(args, folder, workers, max_steps, core=None):
    """A run of the command line: one worker in one process, or an elastic job of several."""
    job = folder / "job.toml"
    settings = argparse.Namespace(model=args.model, data=args.data, precision="fp32", threads=1)
    base.job_file(settings, folder, max_steps)
    text = job.read_text().replace(f"batch_size = {base.BATCH}",
                                   f"batch_size = {base.BATCH * workers}\nvirtual_ranks = {workers}")
    job.write_text(text)
    command = [args.build / "bin" / "ductile", "-q", "train", job, "--out", folder / "run"]
    if workers > 1:
        command += ["--workers", str(workers)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    return subprocess.Popen(command, env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"),
                            stdout=subprocess.DEVNULL)


def burst(args, workers, steps, copies=1):
    """Samples/s of all copies together."""
    with tempfile.TemporaryDirectory() as name:
        folders = [pathlib.Path(name) / str(c) for c in range(copies)]
        for folder in folders:
            folder.mkdir()
        cores = [None] if workers > 1 else range(copies)
        runs = [start(args, f, workers, steps, c) for f, c in zip(folders, cores)]
        for run in runs:
            if run.wait() != 0:
                raise SystemExit(f"train_vs_ddp: {' '.join(map(str, run.args))} failed")
        return sum(rate(f / "run", base.BATCH * workers) for f in folders)


class Rival:
    """One process of torch on a core, or several that train together, from `core` on."""

    def __init__(self, args, ranks=1, core=0):
        environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE", GLOO_SOCKET_IFNAME="lo")
        with tempfile.NamedTemporaryFile() as meeting:
            self.meeting = pathlib.Path(meeting.name)  # gone again: the ranks make it
        self.ranks = []
        for rank in range(ranks):
            command = ["/usr/bin/python3", base.HERE / "train_rival.py",
                       base.JOBS[args.model]["rival"], "--data", args.data, "--seconds", args.seconds,
                       "--ranks", ranks, "--rank", rank, "--rendezvous", f"file://{self.meeting}",
                       "--core", core + rank, *RIVAL]
            self.ranks.append(subprocess.Popen(
                [str(c) for c in command], env=environment, text=True,
                stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))

    def go(self):
        self.ranks[0].stdin.write("go\n")
        self.ranks[0].stdin.flush()

    def answer(self):
        for line in self.ranks[0].stdout:
            record = json.loads(line)
            if "wall_s" in record:
                return record["samples"] / record["wall_s"]
        raise SystemExit("train_vs_ddp: the rival ended early")

    def close(self):
        self.ranks[0].stdin.close()
        for rank in self.ranks:
            rank.wait()
        self.meeting.unlink(missing_ok=True)


def together(*rivals):
    for rival in rivals:
        rival.go()
    return sum(rival.answer() for rival in rivals)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(base.JOBS), default="resnet20")
    parser.add_argument("--data", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--build", type=pathlib.Path, default=base.HERE.parent / "build" / "release")
    parser.add_argument("--markdown", help="append the result to this file")
    args = parser.parse_args()
    args.data = str(pathlib.Path(args.data).resolve())

    one, other, ddp = Rival(args), Rival(args, core=1), Rival(args, ranks=2)
    for rival in (one, other, ddp):  # warm-up; and the ranks learn how many steps a burst takes
        together(rival)
    together(ddp)
    probe = burst(args, 1, 6 * base.LOG_EVERY)
    steps = max(6, round(probe * args.seconds / base.BATCH / base.LOG_EVERY)) * base.LOG_EVERY
    rows = []
    for number in range(args.rounds):
        row = {"torch 1": together(one), "ductile 1": burst(args, 1, steps),
               "torch ddp 2": together(ddp), "ductile 2": burst(args, 2, steps),
               "torch 1+1": together(one, other), "ductile 1+1": burst(args, 1, steps, copies=2)}
        rows.append(row)
        print(json.dumps({"round": number, **{k: round(v, 1) for k, v in row.items()}}), flush=True)
    for rival in (one, other, ddp):
        rival.close()

    def median(above, below):
        ratios = [row[above] / row[below] for row in rows]
        return (f"{above} / {below}: {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f})")

    result = "; ".join(median(*pair) for pair in [
        ("ductile 1", "torch 1"), ("ductile 2", "torch ddp 2"),
        ("ductile 2", "ductile 1+1"), ("torch ddp 2", "torch 1+1")])
    print(result)
    if args.markdown:
        with open(args.markdown, "a") as out:
            out.write(f"- {args.model}, fp32, batch {base.BATCH} a worker, {args.rounds} rounds of "
                      f"{args.seconds:g} s: {result}. `bench/train_vs_ddp.py --model {args.model} "
                      f"--data DIR --rounds {args.rounds} --seconds {args.seconds:g}`\n")


if __name__ == "__main__":
    main()
