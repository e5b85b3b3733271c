#!/usr/bin/python3
"""What losing, adding and taking away workers costs a job, from its own records.

A job of a few workers runs while workers are killed (SIGKILL), stopped (SIGSTOP), the job is resized
and, at the end, preempted and resumed. All times are of one clock (the machine's): when the script
acted, when the controller noted what it did (events.jsonl), when a step was committed
(metrics.jsonl, one line a step).

  bench/elastic_recovery.py [--workers 3] [--kills 20] [--stops 5] [--resizes 6]
                            [--set KEY=VALUE ...] [--bin build/release/bin] [--output FILE.md]
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def lines(path):
    try:
        with open(path) as file:
            text = file.read()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


class Job:
    def __init__(self, binary, folder, workers, sets, words=()):
        self.binary, self.run = binary, folder / "run"
        command = ["train", "--out", self.run, "--workers", workers, *words]
        for key in sets:
            command += ["--set", key]
        self.process = self.start(*command)

    def command(self, *words):
        return [str(w) for w in (self.binary / "ductile", "-q", *words)]

    def start(self, *words):
        return subprocess.Popen(self.command(*words), stdout=subprocess.DEVNULL)

    def status(self):
        done = subprocess.run(self.command("status", self.run, "--json"), capture_output=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def workers(self):
        """Process ids by worker."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.run).encode() in words and b"--worker" in words:
                found[int(words[words.index(b"--worker") + 1])] = int(entry.name)
        return found

    def wait_for(self, workers):
        """Until so many workers step; False where the job ended."""
        while self.process.poll() is None:
            status = self.status()
            if status and len(status["workers"]) == workers and all(
                    w["phase"] == "running" and "ranks" in w for w in status["workers"]):
                return True
            time.sleep(0.1)
        return False

    def end(self):
        if self.process.poll() is None:
            for number in (signal.SIGINT, signal.SIGINT):
                self.process.send_signal(number)
                time.sleep(1.2)  # what comes within a second is the same request
            self.process.wait()

    def after(self, moment, generations=1):
        """(when the peers' loss was noted, when the next generation was formed, when a step of it was
        committed); None where nothing came."""
        noted = formed = None
        deadline = time.time() + 60
        while time.time() < deadline:
            events = [e for e in lines(self.run / "events.jsonl")
                      if e["kind"] == "control" and e["time"] >= moment - 0.002]
            for e in events:
                if e["event"] in ("lost", "unreachable", "left") and noted is None:
                    noted = e["time"]
            forms = [e["time"] for e in events if e["event"] == "generation"]
            if len(forms) >= generations:
                formed = forms[generations - 1]
                steps = [m["time"] for m in lines(self.run / "metrics.jsonl")
                         if m["time"] > formed and "train/loss" in m]
                if steps:
                    return noted or formed, formed, steps[0]
            if self.process.poll() is not None:
                return None
            time.sleep(0.02)
        return None


def options(text, *counts):
    """A parser with what both benches of losses take, and `counts`: the numbers (name, default) of one of them."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    for name, default in counts:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    parser.add_argument("--output", type=pathlib.Path)
    return parser


def machine():
    with open("/proc/cpuinfo") as cpu:
        model = next(line.split(":")[1].strip() for line in cpu if line.startswith("model name"))
    return f"{model}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}."


def table(rows):
    text = "| milliseconds | median | least | most | times |\n|---|---|---|---|---|\n"
    return text + "".join(f"| {name} | {summary(values)} |\n" for name, values in rows.items())


def summary(values):
    if not values:
        return "-"
    ordered = sorted(values)
    return (f"{1000 * statistics.median(ordered):.0f} | {1000 * ordered[0]:.0f} | "
            f"{1000 * ordered[-1]:.0f} | {len(ordered)}")


def main():
    arguments = options(__doc__, ("workers", 3), ("kills", 20), ("stops", 5), ("resizes", 6)).parse_args()
    sets = ["train.virtual_ranks=8", "train.batch_size=32", "model.name=resnet8", "augment.pad=2",
            "data.train_limit=1024", "train.epochs=100000", "train.eval_every_epochs=0",
            "train.log_every=1", "checkpoint.every_seconds=30", *arguments.sets]
    rng = random.Random(1)
    rows = {}

    def add(name, seconds):
        rows.setdefault(name, []).append(seconds)

    with tempfile.TemporaryDirectory() as folder:
        job = Job(arguments.bin.resolve(), pathlib.Path(folder), arguments.workers, sets)
        try:
            losses = ([("kill", signal.SIGKILL)] * arguments.kills +
                      [("stop", signal.SIGSTOP)] * arguments.stops)
            for kind, number in losses:
                if not job.wait_for(arguments.workers):
                    sys.exit("the job ended early")
                time.sleep(rng.uniform(0.2, 0.6))
                worker, pid = rng.choice(sorted(job.workers().items()))
                begin = time.time()
                os.kill(pid, number)
                times = job.after(begin)
                if times is None:
                    sys.exit("no step after a loss")
                noted, formed, step = times
                add(f"{kind}: until it is noticed", noted - begin)
                add(f"{kind}: from there to the next generation", formed - noted)
                add(f"{kind}: from there to its first committed step", step - formed)
                add(f"{kind}: until the next committed step, in all", step - begin)
                if not job.wait_for(arguments.workers):
                    sys.exit("the job ended early")
                add(f"{kind}: until all workers step again", time.time() - begin)
            wanted = arguments.workers
            for i in range(arguments.resizes):
                if not job.wait_for(wanted):
                    sys.exit("the job ended early")
                time.sleep(rng.uniform(0.2, 0.6))
                shrink = i % 2 == 0
                wanted += -1 if shrink else 1
                begin = time.time()
                subprocess.run(job.command("resize", job.run, wanted), check=True)
                times = job.after(begin)
                if times is None:
                    sys.exit("no step after a resize")
                _, formed, step = times
                before = [m["time"] for m in lines(job.run / "metrics.jsonl") if m["time"] <= formed]
                name = "one worker less" if shrink else "one worker more"
                add(f"{name}: from the command to the first step without or with it", step - begin)
                add(f"{name}: of that the job did not step for", step - max(before))
            if not job.wait_for(wanted):
                sys.exit("the job ended early")
            times = [m["time"] for m in lines(job.run / "metrics.jsonl")][-200:]
            for first, second in zip(times, times[1:]):
                add("for comparison: one step", second - first)
            begin = time.time()
            subprocess.run(job.command("preempt", job.run), check=True)
            add("preempt: until all processes are gone", time.time() - begin)
            ends = [e["time"] for e in lines(job.run / "events.jsonl")
                    if e["kind"] == "control" and e["event"] == "left" and e["time"] > begin]
            add("preempt: until the last worker was reaped", max(ends) - begin)
            job.process.wait()
            begin = time.time()
            job.process = job.start("resume", job.run)
            while not (steps := [m for m in lines(job.run / "metrics.jsonl") if m["time"] > begin]):
                time.sleep(0.02)
            add("resume: until the first committed step (it loads the program)",
                steps[0]["time"] - begin)
        finally:
            job.end()
    text = (f"# Losing, adding and taking away workers\n\n`bench/elastic_recovery.py "
            f"{' '.join(sys.argv[1:])}`: {arguments.workers} workers, {' '.join(sets)}.\n"
            f"{machine()}\n\n{table(rows)}")
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
