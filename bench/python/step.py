"""What a step of a Python job costs beside the plain PyTorch loop: seconds of processor time a step.

    python3 bench/python/step.py build/release [--blocks 20] [--slices 10] [--steps 10] [--ranks 1]

Both train the same net on the same data with SGD, one thread, each in processes of its own. Both run from the
beginning to the end of the measurement, and only one at a time: after some steps it is stopped and the other
goes on, so that whatever else the machine does meets both alike. A block is some slices of each; the processor
time of a block is that of all threads of all its processes (of the controller, too), over the steps that were
begun in it."""

import argparse
import json
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # it has just ended
        return ""


class Side:
    """One of the two: its processes, and how many steps they have begun."""

    def __init__(self, command, env, counter, losses=1):
        self._losses = losses  # of a step
        with open(counter, "wb") as file:
            file.write(bytes(8))
        with open(counter, "rb") as file:
            self._counter = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
        self._root = subprocess.Popen(command, env=dict(env, STEP_COUNTER=counter), start_new_session=True,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes = []

    def steps(self):
        return struct.unpack("q", self._counter)[0] // self._losses

    def go_until(self, steps):
        while self.steps() < steps:
            if self._root.poll() is not None:
                sys.exit(f"step.py: a side ended with {self._root.returncode} after {self.steps()} steps")
            time.sleep(0.002)

    def find_processes(self):
        parents = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            if stat := read(f"/proc/{name}/stat"):
                parents.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(name))
        self.processes, new = [], [self._root.pid]
        while new:
            self.processes += new
            new = [child for pid in new for child in parents.get(pid, [])]

    def send(self, number):
        for pid in self.processes:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def seconds(self):
        total = 0
        for pid in self.processes:
            for thread in os.listdir(f"/proc/{pid}/task"):
                total += int((read(f"/proc/{pid}/task/{thread}/schedstat") or "0").split()[0])
        return total / 1e9

    def end(self):
        self.find_processes()
        self.send(signal.SIGKILL)
        self._root.wait()


def measure(sides, a):
    for side in sides:
        side.go_until(30)
        side.find_processes()
        side.send(signal.SIGSTOP)
    rows = []
    for block in range(a.blocks):
        before = [(side.seconds(), side.steps()) for side in sides]
        for _ in range(a.slices):
            for side in random.sample(sides, len(sides)):
                goal = side.steps() + a.steps
                side.send(signal.SIGCONT)
                side.go_until(goal)
                side.send(signal.SIGSTOP)
        row = [(side.seconds() - seconds) / (side.steps() - steps) for side, (seconds, steps) in zip(sides, before)]
        rows.append(row)
        print(f"plain loop {1e3 * row[0]:.3f} ms   Ductile {1e3 * row[1]:.3f} ms   ratio {row[1] / row[0]:.4f}",
              flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--slices", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--python", default="/usr/bin/python3")
    a = parser.parse_args()
    job = os.path.join(HERE, "step_job.py")
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE",
               ATEN_CPU_CAPABILITY="avx2", PYTHONPATH=os.path.abspath(os.path.join(a.build, "python")))
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side([a.python, job], env, os.path.join(folder, "plain")),
                 Side([os.path.join(a.build, "bin", "ductile"), "train", job + ":Job", "--json", "--out",
                       os.path.join(folder, "run"), "--set", f"python.interpreter={a.python}", "--set",
                       f"train.virtual_ranks={a.ranks}"], env, os.path.join(folder, "ductile"), a.ranks)]
        try:
            rows = measure(sides, a)
        finally:
            for side in sides:
                side.end()
    plain, ours = (sorted(1e3 * seconds for seconds in column) for column in zip(*rows))
    ratios = sorted(theirs / mine for mine, theirs in rows)
    print(json.dumps({"ranks": a.ranks} | {name: {"median": statistics.median(c), "least": c[0], "most": c[-1]} for name, c in (
        ("plain_ms", plain), ("ductile_ms", ours), ("ratio", ratios))}))


if __name__ == "__main__":
    main()
