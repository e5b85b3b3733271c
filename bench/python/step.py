"""What a step of a Python job costs beside the plain PyTorch loop: seconds of processor time a step.

    python3 bench/python/step.py build/release [--rounds 5] [--ranks 1]

Both train the same net on the same data with SGD, one thread, alternately, in processes of their own; the
time of a process is that of its steps alone (the difference of a long run and a short one)."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds_of(command, env):
    before = children_seconds()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return children_seconds() - before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--short", type=int, default=50)
    parser.add_argument("--long", type=int, default=450)
    a = parser.parse_args()
    job = os.path.join(HERE, "step_job.py")
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE",
               ATEN_CPU_CAPABILITY="avx2", PYTHONPATH=os.path.join(a.build, "python"))

    def job_of(steps):
        with tempfile.TemporaryDirectory() as folder:
            return seconds_of([os.path.join(a.build, "bin", "ductile"), "train", job + ":Job", "--json",
                               "--out", os.path.join(folder, "run"), "--set", f"python.interpreter={a.python}",
                               "--set", f"train.max_steps={steps}", "--set", f"train.virtual_ranks={a.ranks}"], env)

    def loop_of(steps):
        return seconds_of([a.python, job, str(steps)], env)

    rows = []
    for _ in range(a.rounds):
        row = [(run(a.long) - run(a.short)) / (a.long - a.short) for run in (loop_of, job_of)]
        rows.append(row)
        print(f"plain loop {1e3 * row[0]:.2f} ms   Ductile {1e3 * row[1]:.2f} ms   ratio {row[1] / row[0]:.3f}", flush=True)
    plain, ours = (sorted(1e3 * seconds for seconds in column) for column in zip(*rows))
    ratios = sorted(theirs / mine for mine, theirs in rows)
    print(json.dumps({"ranks": a.ranks} | {name: {"median": statistics.median(c), "least": c[0], "most": c[-1]} for name, c in (
        ("plain_ms", plain), ("ductile_ms", ours), ("ratio", ratios))} | {"ratio_of_the_least": ours[0] / plain[0]}))
    sys.exit(0)


if __name__ == "__main__":
    main()
