"""What the loss of a worker of a Python job costs: with the process that workers are forked from, and without.

    python3 bench/python/replace.py build/release [--rounds 3] [--kills 6] [--workers 2]

Alternately a run with it and one without: members are killed, one after the other. Of each replacement the seconds from
its start to its first loss, of the clock and of its processor; of those that are left, the longest time between two steps
after the kill, less the usual one."""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def lines(path):
    try:
        with open(path) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return []


def steps(run):
    return [line["time"] for line in lines(os.path.join(run, "metrics.jsonl")) if "train/loss" in line]


def told(path):
    try:
        with open(path) as file:
            return {int(pid): (float(wall), float(cpu)) for pid, wall, cpu in (line.split() for line in file)}
    except OSError:
        return {}


def wait(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise SystemExit("nothing happens any more")
        time.sleep(0.01)


def members(ductile, run):
    out = subprocess.run([ductile, "status", run, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    try:
        now = json.loads(out)
        return [w["process"] for w in now["workers"] if "ranks" in w and w["generation"] == now["generation"]["number"]]
    except (ValueError, KeyError):
        return []


def round_of(a, zygote, draw):
    """[(wall, cpu) of each replacement], [pause of those that were left], seconds of processor of all."""
    ductile = os.path.join(a.build, "bin", "ductile")
    replaced, pauses = [], []
    with tempfile.TemporaryDirectory() as folder:
        run, note = os.path.join(folder, "run"), os.path.join(folder, "told")
        env = dict(os.environ, DUCTILE_ZYGOTE="on" if zygote else "off", DUCTILE_TOLD=note)
        job = subprocess.Popen([ductile, "train", os.path.join(HERE, "replace_job.py:Job"), "--out", run, "--workers", str(a.workers),
                                "--set", f"python.interpreter={a.python}"], env=env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        try:
            wait(lambda: len(told(note)) == a.workers and len(steps(run)) > 20)
            for _ in range(a.kills):
                wait(lambda: len(members(ductile, run)) == a.workers)
                time.sleep(draw.uniform(0.3, 0.6))
                before, known = steps(run), told(note)
                usual = statistics.median(b - a for a, b in zip(before[-20:], before[-19:]))
                os.kill(draw.choice(members(ductile, run)), signal.SIGKILL)
                killed = time.time()
                wait(lambda: len(told(note)) > len(known))
                replaced += [value for pid, value in told(note).items() if pid not in known]
                wait(lambda: steps(run)[-1] > killed + 1)
                after = [t for t in steps(run) if t > killed - 5]
                pauses.append(max(b - a for a, b in zip(after, after[1:]) if b > killed and a < killed + 0.5) - usual)
        finally:
            job.send_signal(signal.SIGKILL)
            job.wait()
            for pid in told(note):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
    return replaced, pauses


def shown(values):
    values = sorted(values)
    return f"median {statistics.median(values):.3f} s ({values[0]:.3f} to {values[-1]:.3f}, {len(values)} of them)"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--python", default="/usr/bin/python3")
    a = parser.parse_args()
    draw, found = random.Random(1), {True: ([], []), False: ([], [])}
    for _ in range(a.rounds):
        for zygote in (True, False):
            replaced, pauses = round_of(a, zygote, draw)
            found[zygote][0].extend(replaced)
            found[zygote][1].extend(pauses)
            print(f"{'with' if zygote else 'without'}: first loss after {shown([wall for wall, _ in replaced])}, processor "
                  f"{shown([cpu for _, cpu in replaced])}, pause {shown(pauses)}", flush=True)
    for zygote, (replaced, pauses) in found.items():
        print(f"{'with' if zygote else 'without'} the zygote\n  first loss of a replacement, since its start: "
              f"{shown([wall for wall, _ in replaced])}\n  processor time until then: {shown([cpu for _, cpu in replaced])}\n"
              f"  pause of those that are left: {shown(pauses)}")


if __name__ == "__main__":
    main()
