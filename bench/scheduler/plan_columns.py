#!/usr/bin/env python3
"""The plans.csv of a model for `ductile sim`: what `ductile plan` finds on so many devices of a type.

    bench/scheduler/plan_columns.py MODEL -o plans.csv [--ductile PROGRAM] [--time-limit 5]

Kinds of plans: `graph` (the planner's own: stages, replicas and splits as it likes), `pipeline` (1F1B
with equal stages, one replica of the whole pipeline), `data` (the whole model on each device, its
optimiser state sharded). A kind that does not fit so many devices has no row for them.
"""
import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Sia's types: devices of a node, nodes, memory, arithmetic, memory traffic, links in a node and out.
TYPES = {
    "aws": (4, 6, "16 GB", "32 TFLOP/s", "300 GB/s", "12 GB/s", "50 Gbit/s"),
    "rtx": (8, 3, "11 GB", "54 TFLOP/s", "616 GB/s", "12 GB/s", "50 Gbit/s"),
    "dgx-ext": (8, 2, "40 GB", "150 TFLOP/s", "1.5 TB/s", "300 GB/s", "200 Gbit/s"),
}
BASELINES = {"pipeline": "equal", "data": "data"}


def counts(per_node, nodes):
    """The numbers of devices that a policy may give."""
    out = [1]
    while out[-1] * 2 <= per_node:
        out.append(out[-1] * 2)
    return out + [per_node * n for n in range(2, nodes + 1)]


def plans_on(args, kind, devices, batch, folder):
    per_node, _, memory, flops, traffic, intra, inter = TYPES[kind]
    file = folder / "devices.toml"
    nodes = max(1, devices // per_node)
    file.write_text(f'[[nodes]]\ntype = "{kind}"\ncount = {nodes}\ndevices = {min(devices, per_node)}\n'
                    f'memory = "{memory}"\nflops = "{flops}"\nmemory_bandwidth = "{traffic}"\n'
                    f'intra_bandwidth = "{intra}"\ninter_bandwidth = "{inter}"\n'
                    'inter_latency = "20 us"\n')
    done = subprocess.run(
        [args.ductile, "plan", args.model, "--devices", str(file), "--batch", str(batch),
         "--optimizer-state", "2", "--time-limit", str(args.time_limit), "--baseline",
         ",".join(BASELINES.values()), "--json"],
        capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{args.model} on {devices} {kind}: {done.stderr.strip()}")
    answer = json.loads(done.stdout)
    if answer["feasible"]:
        yield "graph", answer["evaluation"]
    of = {row["name"]: row for row in answer.get("baselines", [])}
    for name, baseline in BASELINES.items():
        if "evaluation" in of.get(baseline, {}):
            yield name, of[baseline]["evaluation"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=[48, 192])
    parser.add_argument("--time-limit", type=float, default=5)
    parser.add_argument("--ductile", default=str(HERE.parents[1] / "build/release/bin/ductile"))
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for kind, (per_node, nodes, *_) in TYPES.items():
            for devices in counts(per_node, nodes):
                for batch in args.batch:
                    for name, found in plans_on(args, kind, devices, batch, pathlib.Path(scratch)):
                        if found["fits"]:
                            rows.append([name, kind, devices, batch, f"{found['seconds']:.6g}"])
                print(f"{devices} {kind}", file=sys.stderr, flush=True)
    with open(args.output, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["plan", "type", "devices", "batch", "seconds"])
        out.writerows(rows)


if __name__ == "__main__":
    main()
