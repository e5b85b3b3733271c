#!/usr/bin/python3
"""How long a service takes to do what somebody waits for, on an idle machine: a job's first step, a pause, a move.

Usage: bench/service/latency.py [--rounds 10] [--build build/release]

submit   from the start of `ductile submit` to the first step of a small job in its metrics, of `ductile up`
pause    from the start of `ductile preempt` until no process of the job is left, its state saved
move     from the start of `ductile drain` until the job has done a step on the other node and has no process on the
         drained one, of `ductile server` with two nodes (needs root: the nodes are network namespaces)

Prints each time, and a Markdown row with median, quartiles and the longest of each.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python"))
sys.dont_write_bytecode = True
import asking  # noqa: E402
import emulated  # noqa: E402

PATIENCE = 60
SMALL = """[data]
format = "digits"
[model]
name = "mlp"
[train]
epochs = 1000000
virtual_ranks = 2
log_every = 1
threads = 1
"""


def wait(condition, what):
    return asking.wait(condition, what, PATIENCE, 0.002)


def last_step(run):
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return json.loads(lines[-1])["step"]
    except (OSError, IndexError, ValueError, KeyError):
        return 0


def workers_of(run):
    found = {}
    for entry in os.listdir("/proc"):
        try:
            words = pathlib.Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace") if entry.isdigit() else ""
        except OSError:
            continue
        if "ductile-worker" in words and str(run) in words:
            found[int(entry)] = words
    return found


class Service:
    def __init__(self, build, folder, words, at_home=lambda words: words):
        self.ductile, self.folder = str(build / "bin" / "ductile"), folder
        self.log = open(folder / "log", "w")
        words = [self.ductile, *words, "--folder", str(folder / "service"), "--no-page"]
        (folder / "service").mkdir()
        self.process = subprocess.Popen(at_home(words), stdout=self.log, stderr=self.log)
        wait(lambda: self.ask("jobs").returncode == 0, f"a service; see {self.log.name}")
        (folder / "job.toml").write_text(SMALL)

    def ask(self, *words):
        return subprocess.run([self.ductile, *words, "--folder", str(self.folder / "service")], capture_output=True, text=True)

    def do(self, *words):
        done = self.ask(*words)
        if done.returncode:
            sys.exit(f"ductile {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, name, *more):
        number = self.do("submit", str(self.folder / "job.toml"), "--name", name, "--max", "1", *more)
        return number, self.folder / "service" / "runs" / f"{number}-{name}"

    def cancel(self, number, run):
        self.do("cancel", number)
        wait(lambda: not workers_of(run), "the end of a job that was cancelled")

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


def first_steps(service, rounds):
    for i in range(rounds):
        begin = time.monotonic()
        number, run = service.submit(f"first-{i}")
        wait(lambda: last_step(run) >= 1, "a first step")
        yield time.monotonic() - begin
        service.cancel(number, run)


def pauses(service, rounds):
    number, run = service.submit("paused")
    for _ in range(rounds):
        step = last_step(run)
        wait(lambda: last_step(run) >= step + 50, "steps")
        begin = time.monotonic()
        service.do("preempt", number)
        wait(lambda: not workers_of(run), "a pause")
        yield time.monotonic() - begin
        service.do("resume", number)
    service.cancel(number, run)


def moves(service, rounds):
    number, run = service.submit("moved")
    for _ in range(rounds):
        step = last_step(run)
        wait(lambda: last_step(run) >= step + 50 and len(workers_of(run)) == 1, "steps")
        nodes = json.loads(service.do("nodes", "--json"))
        busy = [n["node"] for n in nodes if n["free"] < n["devices"]]
        before = set(workers_of(run))
        begin = time.monotonic()
        service.do("drain", busy[0])
        wait(lambda: not before & set(workers_of(run)), "a move")
        step = last_step(run)
        wait(lambda: last_step(run) > step, "a step on the other node")
        yield time.monotonic() - begin
        service.do("undrain", busy[0])
    service.cancel(number, run)


def of_two_nodes(build, folder):
    try:
        hosts = emulated.Hosts(3)
    except unittest.SkipTest as error:
        print(f"move: skipped: {error}", flush=True)
        return None, None
    (folder / "cluster.toml").write_text(
        f'[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = {json.dumps(hosts.names[1:])}\n'
        f"addresses = {json.dumps([emulated.address(h) for h in (1, 2)])}\n")
    return hosts, Service(build, folder, ["server", str(folder / "cluster.toml"), "--launcher", emulated.LAUNCHER, "--listen",
                                          emulated.address(0)], hosts.at_home)


def measured(name, asked, times):
    seconds = []
    for s in times:
        seconds.append(s)
        print(f"{name}: {s:.3f} s", flush=True)
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"| {name} | {asked} | {middle:.2f} ({low:.2f} to {high:.2f}), longest {max(seconds):.2f} | {len(seconds)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    rows, hosts = [], None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-latency-"))
    try:
        (folder / "one").mkdir()
        service = Service(args.build, folder / "one", ["up", "--devices", "2"])
        rows.append(measured("submit to the first step", "1.5 s", first_steps(service, args.rounds)))
        rows.append(measured("preempt until the devices are free", "1 s", pauses(service, args.rounds)))
        service.stop()
        (folder / "two").mkdir()
        hosts, service = of_two_nodes(args.build, folder / "two")
        if service:
            rows.append(measured("move to another node", "3 s", moves(service, args.rounds)))
            service.stop()
    finally:
        if hosts:
            hosts.end()
        shutil.rmtree(folder, ignore_errors=True)
    print("\n| | asked | seconds: median (quartiles) | rounds |\n|---|---|---|---|\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
