#!/usr/bin/env python3
"""Scheduling policies in every scenario of bench/scheduler/scenarios, one table each.

    bench/scheduler/scenarios.py TRACES [-o FILE] [--only a,b] [--policies p,q] [--budget exact]
        [--spot FOLDER] [--ductile PROGRAM]

TRACES is a folder with pollux/ and sia/; FOLDER has the traces of spot machines that some scenarios
name, and without it those are skipped. A scenario says which workloads, on which cluster, what is
changed in them (from a seed) and with which options all policies run; its defaults are below. The
workloads 1 and 2 were in sight while Ductile's policy was made; 3 and 4 were run only to judge what
1 and 2 had suggested, but as its rules were chosen with these judgements known, they are not unseen.
Each table gives both halves. Those of scenarios with `unseen` had no part in any choice. Virtual
time: figures do not depend on the machine. `ratios.py` makes the tables of ratios.
"""
import argparse
import csv
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import tomllib

import fleet

HERE = pathlib.Path(__file__).resolve().parent
# (name in the table, policy, what jobs declare)
RUNS = [
    ("ductile, budgets", "ductile", "exact"),
    ("ductile, nothing declared", "ductile", "none"),
    ("sia", "sia", "none"),
    ("tiresias", "tiresias", "none"),
    ("srtf, budgets", "srtf", "exact"),
]
REGIONAL = [
    ("regional, budgets", "regional", "exact"),
    ("regional, nothing declared", "regional", "none"),
]
HALVES = [("shown", (1, 2)), ("kept apart", (3, 4))]


def changed(rows, scenario, number):
    """The jobs of a workload as the scenario has them, in order of time."""
    draw = random.Random(1000 * scenario.get("seed", 0) + number)
    lengths = []
    times = scenario.get("times", 1)
    if times < 1:
        rows = [row for row in rows if draw.random() < times]
    elif times > 1:
        rows = [dict(row, name=f"{row['name']}-{copy}",
                     time=str(max(0.0, float(row["time"]) + draw.uniform(-600, 600) * (copy > 0))))
                for row in rows for copy in range(int(times))]
    if "pareto" in scenario:  # cut, and then divided by their mean: as much work as before
        lengths = [min(draw.paretovariate(scenario["pareto"]), scenario["longest"]) for _ in rows]
    for i, row in enumerate(rows):
        if "application" in scenario:
            row["application"] = scenario["application"]
            row["batch_size"] = "0"
        if lengths:
            row["work"] = f"{lengths[i] * len(lengths) / sum(lengths):.6f}"
        if "burst" in scenario:
            first = rows[i - i % scenario["burst"]]
            row["time"] = str(float(first["time"]) + 3 * (i % scenario["burst"]))
        if row["application"] in scenario.get("replace", []):
            row["application"] = "planned"
            row["num_replicas"] = str(scenario["asks"])
            row["batch_size"] = "0"
        if "scaling" in scenario:
            row["scaling"] = scenario["scaling"]
        if "regions" in scenario:
            row["region"] = f"region-{draw.randrange(scenario['regions'])}"
            row["transfer"] = str(scenario["transfer"])
    return sorted(rows, key=lambda row: float(row["time"]))


def write_workload(source, scenario, number, target):
    with open(source, newline="") as file:
        rows = changed(list(csv.DictReader(file)), scenario, number)
    with open(target, "w", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        out.writerows(rows)


def write_faults(scenario, folder, target):
    """The nodes come and go as the machines of a trace did."""
    nodes = list(range(sum(count for _, count, _ in scenario["cluster"])))
    trace = (folder / scenario["spot"]).resolve()
    target.write_text(f'lost_work_seconds = {scenario["lost_work"]}\n[[fault]]\nkind = "reclaim"\n'
                      f'trace = "{trace}"\nnodes = {nodes}\nnotice = {scenario["notice"]}\n')


def write_applications(traces, scenario, kinds, target):
    """The applications of the traces, and `planned`, which has the plans of these kinds."""
    target.mkdir()
    for folder in traces.iterdir():
        if folder.is_dir():
            (target / folder.name).symlink_to(folder.resolve())
    planned = target / "planned"
    planned.mkdir()
    for file in (traces / scenario["noise_of"]).glob("validation-*.csv"):
        (planned / file.name).symlink_to(file.resolve())
    lines = (HERE / scenario["plans"]).read_text().splitlines()
    kept = [line for line in lines[1:] if not kinds or line.split(",")[0] in kinds]
    (planned / "plans.csv").write_text("\n".join([lines[0], *kept]) + "\n")
    return target


def run(program, workload, traces, policy, budget, cluster, arguments):
    done = subprocess.run(
        [program, "sim", "-q", str(workload), "--applications", str(traces), "--policy", policy,
         "--budget", budget, "--cluster", str(cluster), "--json", *arguments],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{policy} on {workload}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)["policies"][0]


def play(scenario, name, args, scratch):
    """Lines of the scenario's table, by load."""
    cluster = scratch / "cluster.toml"
    regions = ([f'region = "region-{i}"\n' for i in range(scenario["regions"])]
               if "regions" in scenario else [""])  # each has these nodes
    cluster.write_text("".join(
        f'[[nodes]]\ntype = "{t}"\ncount = {n}\ndevices = {d}\n{region}'
        for region in regions for t, n, d in scenario["cluster"]))
    halves = [("unseen", scenario["unseen"])] if "unseen" in scenario else HALVES
    runs_of = (REGIONAL if "regions" in scenario else []) + RUNS
    if "kinds" in scenario:  # Ductile's rows once for each kind of plans, too
        runs_of = [(f"{label}, {kind} alone", policy, budget, [kind])
                   for label, policy, budget in RUNS[:2] for kind in scenario["kinds"]]
        runs_of = [(*row, []) for row in RUNS[:2]] + runs_of + [(*row, []) for row in RUNS[2:]]
    applications = {}
    faults = []
    if "spot" in scenario:
        write_faults(scenario, args.spot, scratch / "faults.toml")
        faults = ["--scenario", str(scratch / "faults.toml")]
    text = [f"## {name}: {scenario['title']}", "",
            f"`--cluster` {scenario['cluster']}, {' '.join(scenario.get('arguments', [])) or 'no option'}",
            "", "| load | policy |" + "".join(
                f" {half}: mean JCT s | p99 | GPU h | restarts | worst rho |" for half, _ in halves),
            "| ---: | --- |" + " ---: |" * 5 * len(halves)]
    for load in scenario.get("load", [1]):
        for label, policy, budget, *kinds in runs_of:
            if args.policies and policy not in args.policies.split(","):
                continue
            if args.budget and budget != args.budget:
                continue
            cells = []
            for _, numbers in halves:
                runs = []
                for folder in scenario["workloads"]:
                    for number in numbers:
                        target = scratch / f"workload-{number}.csv"
                        write_workload(args.traces / folder / f"workload-{number}.csv", scenario,
                                       number, target)
                        extra = ["--load", str(load), "--seed", "1", *faults,
                                 *scenario.get("arguments", []),
                                 *(scenario.get("ductile", []) if policy == "ductile" else [])]
                        known = args.traces / folder.split("/")[0] / "traces"
                        if "kinds" in scenario:
                            key = (known, *kinds[0])
                            if key not in applications:
                                applications[key] = write_applications(
                                    known, scenario, kinds[0],
                                    scratch / f"applications-{len(applications)}")
                            known = applications[key]
                        runs.append(run(args.ductile, target, known, policy, budget, cluster,
                                        extra))
                if None in runs:
                    cells += ["-"] * 5
                    continue

                def mean(key, runs=runs):
                    return sum(r[key] for r in runs) / len(runs)
                cells += [f"{mean('mean_jct'):,.0f}", f"{mean('p99_jct'):,.0f}",
                          f"{mean('device_hours'):,.0f}", f"{mean('restarts'):.2f}",
                          f"{max(r['worst_fairness'] for r in runs):.2f}"]
            text.append(f"| {load} | {label} | " + " | ".join(cells) + " |")
    if "authors" in scenario:
        means = json.loads((args.traces / scenario["authors"]).read_text())["avgs"]
        halves = [sum(means[f"workload-{n}"] for n in numbers) / len(numbers)
                  for _, numbers in halves]
        text.append(f"| 1 | pollux, its authors' file | {halves[0]:,.0f} | | | | | {halves[1]:,.0f} | | | | |")
    return text + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--spot", type=pathlib.Path)
    parser.add_argument("--only", help="only these scenarios, by name")
    parser.add_argument("--policies", help="only their rows; those of others do not change")
    parser.add_argument("--budget", help="only the rows in which jobs declare this")
    parser.add_argument("--ductile", default=str(HERE.parents[1] / "build/release/bin/ductile"))
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else None
    text = []
    for file in sorted((HERE / "scenarios").glob("*.toml")):
        if chosen and file.stem not in chosen:
            continue
        scenario = tomllib.loads(file.read_text())
        if "spot" in scenario and not args.spot:
            print(f"{file.stem}: skipped, since --spot is not given", file=sys.stderr)
            continue
        if "fleet" in scenario:
            text += [f"## {file.stem}: {scenario['title']}", ""]
            text += fleet.table(scenario, args.ductile, scenario["seeds"], scenario["policies"])
        else:
            with tempfile.TemporaryDirectory() as scratch:
                text += play(scenario, file.stem, args, pathlib.Path(scratch))
        print(file.stem, file=sys.stderr, flush=True)
        if args.output:  # whatever ends it, what is done is there
            args.output.write_text("\n".join(text))
    if not args.output:
        print("\n".join(text))


if __name__ == "__main__":
    main()
