#!/usr/bin/env python3
"""All scheduling policies on the published workloads, one table a cluster.

    bench/scheduler/policies.py TRACES [-o FILE] [--policies a,b] [--only NAME] [--ductile PROGRAM]

TRACES is a folder with pollux/ and sia/ (workloads, traces, results). For each set of workloads
every policy runs on each of its files, interleaved; the table gives means over the files. With
pollux/results/jobload also says for how many jobs Tiresias and Optimus differ from the authors'
files. Exit code 1 where they do.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HOMOGENEOUS = [("t4", 16, 4)]
MIXED = [("aws", 6, 4), ("dgx-ext", 2, 8), ("rtx", 3, 8)]
SETS = [
    ("pollux-0.5", "pollux/workloads-0.5", HOMOGENEOUS),
    ("pollux-1", "pollux/workloads", HOMOGENEOUS),
    ("pollux-1.5", "pollux/workloads-1.5", HOMOGENEOUS),
    ("pollux-2", "pollux/workloads-2.0", HOMOGENEOUS),
    ("pollux-realistic", "pollux/workloads-realistic", HOMOGENEOUS),
    ("sia-philly", "sia/workloads/philly", MIXED),
    ("sia-saturn", "sia/workloads/saturn", MIXED),
    ("sia-newtrace", "sia/workloads/newtrace", MIXED),
]
# (name in the table, policy, what jobs declare)
RUNS = [
    ("ductile", "ductile", "exact"),
    ("ductile, budgets off by up to 2", "ductile", "2"),
    ("ductile, nothing declared", "ductile", "none"),
    ("pollux", "pollux", "none"),
    ("sia", "sia", "none"),
    ("gavel", "gavel", "none"),
    ("tiresias", "tiresias", "none"),
    ("optimus (oracle)", "optimus", "exact"),
    ("srtf (oracle)", "srtf", "exact"),
    ("fifo", "fifo", "none"),
]
# The oracle of Optimus is of one device type. SRTF ranks by that of the first type, and places jobs
# on the fastest type that has room.
NOT_MIXED = {"optimus"}


def cluster_file(folder, nodes):
    path = pathlib.Path(folder) / "cluster.toml"
    path.write_text("".join(
        f'[[nodes]]\ntype = "{t}"\ncount = {n}\ndevices = {d}\n' for t, n, d in nodes))
    return path


def run(program, workload, policy, budget, cluster, out):
    done = subprocess.run(
        [program, "sim", "-q", str(workload), "--policy", policy, "--budget", budget,
         "--cluster", str(cluster), "--json", "--out", str(out)],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{policy} on {workload}: {done.stderr.strip()}")
    return json.loads(done.stdout)["policies"][0]


def differences(out, reference, name):
    """Jobs whose completion time is not the authors', to the second."""
    jobs = json.loads((out / "runs.json").read_text())[0]["jobs"]
    expected = reference["jcts"][name]
    return sum(abs(j["finish"] - j["arrival"] - expected[j["name"]]) > 0.5 for j in jobs), len(jobs)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--policies", help="only these")
    parser.add_argument("--only", help="only sets whose name begins so")
    parser.add_argument("--ductile", default=str(pathlib.Path(__file__).resolve().parents[2] /
                                                 "build/release/bin/ductile"))
    args = parser.parse_args()
    chosen = set(args.policies.split(",")) if args.policies else None
    text, wrong = [], 0
    for name, folder, nodes in SETS:
        if args.only and not name.startswith(args.only):
            continue
        files = sorted((args.traces / folder).glob("*.csv"))
        if not files:
            text.append(f"## {name}\n\nnot there: {folder}\n")
            continue
        mixed = len(nodes) > 1
        rows = {label: [] for label, policy, _ in RUNS
                if (not chosen or policy in chosen) and not (mixed and policy in NOT_MIXED)}
        replay = []
        with tempfile.TemporaryDirectory() as scratch:
            cluster = cluster_file(scratch, nodes)
            for file in files:
                for label, policy, budget in RUNS:
                    if label not in rows:
                        continue
                    out = pathlib.Path(scratch) / "out"
                    rows[label].append(run(args.ductile, file, policy, budget, cluster, out))
                    load = {"pollux-1": "1.0", "pollux-2": "2.0"}.get(name, name[7:])
                    results = args.traces / f"pollux/results/jobload/{policy}-{load}.json"
                    if policy in ("tiresias", "optimus") and not mixed and results.exists():
                        off, jobs = differences(out, json.loads(results.read_text()), file.stem)
                        replay.append(f"{policy} {file.stem}: {jobs - off} of {jobs} jobs")
                        wrong += off
                print(f"{name} {file.name}", file=sys.stderr, flush=True)
        text.append(f"## {name}: {len(files)} workloads\n")
        text.append("| policy | mean JCT s | median | p99 | makespan | GPU h | restarts | used % | "
                    "worst rho | mean rho | decision ms |")
        text.append("| --- |" + " ---: |" * 10)
        for label, runs in rows.items():
            def mean(key, scale=1.0):
                return scale * sum(r[key] for r in runs) / len(runs)
            text.append(
                f"| {label} | {mean('mean_jct'):,.0f} | {mean('median_jct'):,.0f} | "
                f"{mean('p99_jct'):,.0f} | {mean('makespan'):,.0f} | {mean('device_hours'):,.0f} | "
                f"{mean('restarts'):.2f} | {mean('utilisation', 100):.1f} | "
                f"{max(r['worst_fairness'] for r in runs):.2f} | {mean('mean_fairness'):.2f} | "
                f"{mean('decision_seconds', 1e3):.3f} |")
        text.append("")
        text.append("Mean JCT by workload: " + "; ".join(
            f"{label} " + ", ".join(f"{r['mean_jct']:,.0f}" for r in runs)
            for label, runs in rows.items()) + ".\n")
        if replay:
            text.append("Equal to the authors' files to the second: " + "; ".join(replay) + ".\n")
        if args.output:  # whatever ends it, what is done is there
            args.output.write_text("\n".join(text))
    if not args.output:
        print("\n".join(text))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
