#!/usr/bin/env python3
"""A day of a fleet of ten regions in `ductile sim`: tiers, services, failures, spot nodes, maintenance.

    bench/fleet/ten_regions.py [--scale N] [--hours H] [--seed S] [--policy LIST] [--keep FOLDER]

It writes the cluster, the jobs, their applications and the faults that ten_regions.toml describes, all
drawn from the seed, runs each policy on them, and prints a Markdown table. A fleet at --scale N has one
N-th of the nodes, and of the jobs. `partitions` is policy `tiers` with a part of the fleet for each tier,
as large as what the tier asks for on average (services are Premium). Jobs arrive for H hours, and all run to their end; `done` counts
those that end within the H hours. Each round is a minute, for every policy (--information published),
and nobody declares how long a job is. For a policy that does not size services, each has what its peak
takes from the beginning, and keeps it. Times are virtual: the figures, except for decision times, do not
depend on the machine.
"""
import argparse
import csv
import json
import math
import pathlib
import random
import subprocess
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICES = 8     # of a node
REPLICAS = 25   # of a service, on average
RATE = 10       # requests per second that a replica answers
BUSY = 0.9      # of that, what comes
SIZING = {"regional", "ductile"}  # policies that size services


def write_rows(file, header, rows):
    with open(file, "w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(header)
        writer.writerows(rows)


class Fleet:
    """The nodes, in the order of the cluster file: their regions and types."""

    def __init__(self, spec, scale, share=1):
        region = spec["region"][0]
        self.regions = [f"region-{i}" for i in range(region["count"])]
        self.types = {name: max(1, round(share * count / scale)) for name, count in region["nodes"].items()}
        self.groups = []  # (region, type, spot, first node, nodes)
        node = 0
        for name in self.regions:
            for kind, count in self.types.items():
                spot = round(count * region["spot_share"])
                for is_spot, number in ((False, count - spot), (True, spot)):
                    if number:
                        self.groups.append((name, kind, is_spot, node, number))
                        node += number
        self.nodes = node
        self.spot_nodes = sum(g[4] for g in self.groups if g[2])
        self.devices = node * DEVICES

    def write(self, file):
        file.write_text("".join(
            f'[[nodes]]\ntype = "{kind}"\ncount = {number}\ndevices = {DEVICES}\nregion = "{region}"\n'
            f"spot = {'true' if spot else 'false'}\n" for region, kind, spot, _, number in self.groups))


def write_applications(folder, types, demands):
    """One for each number of devices asked for, with plans for a quarter to twice of it."""
    def application(name, kinds, demand):
        sub = folder / name
        sub.mkdir(parents=True)
        hour = [[3600, 3600, 1, 1]]  # steps of a second, on what is asked for
        write_rows(sub / "validation-1.csv", ["progress", "iteration", "grad_sqr", "grad_var"], hour)
        plans = []
        for kind in kinds:
            for k in (demand // 4, demand // 2, demand, 2 * demand):
                speed = k / demand if k <= demand else (k / demand) ** 0.9
                plans.append(["fleet", kind, k, 1, 1 / speed])
        write_rows(sub / "plans.csv", ["plan", "type", "devices", "batch", "seconds"], plans)

    for demand in demands:
        application(f"train-{demand}", types, demand)
        for kind in types:
            application(f"train-{demand}-{kind}", [kind], demand)
    serve = folder / "serve"  # a replica is a model cut over the devices of a node
    serve.mkdir()
    write_rows(serve / "validation-1.csv", ["progress", "iteration", "grad_sqr", "grad_var"],
               [[1, 1, 1, 1]])
    for kind in types:
        write_rows(serve / f"placements-{kind}.csv",
                   ["placement", "local_bsz", "step_time", "sync_time"], [[1, 1, 1, 0], [1, 2, 2, 0]])
    write_rows(serve / "pipeline.csv", ["type", "stages", "micro_batches"],
               [[kind, DEVICES, 1] for kind in types])


def jobs_of(spec, fleet, hours, draw, peak):
    """Rows of the workload; `peak`: services hold what their peak takes from the beginning."""
    how, serve = spec["jobs"], spec["services"]
    rows = []
    for i in range(int(fleet.devices * serve["share"] / (REPLICAS * serve["replicas"]))):
        phase = (i % len(fleet.regions)) / len(fleet.regions)
        team = draw.randrange(spec["teams"])

        def replicas(hour, phase=phase):
            return REPLICAS * (1 + serve["swing"] * math.sin(2 * math.pi * (hour / 24 + phase)))
        load = "; ".join(f"{3600 * h}:{RATE * BUSY * replicas(h):.1f}" for h in range(0, 25, 2))
        floor = math.ceil(REPLICAS * (1 + serve["swing"])) if peak else math.floor(
            REPLICAS * (1 - serve["swing"]))
        rows.append({"name": f"service-{i}", "time": 0, "application": "serve",
                     "num_replicas": floor * serve["replicas"], "tier": "premium", "team": team,
                     "work": 1, "scaling": "adaptive", "region": fleet.regions[i % len(fleet.regions)],
                     "load": load, "replica_rate": RATE, "latency": 0.5,
                     "replica_devices": serve["replicas"], "seconds": 3600 * hours})
    mean = sum(d * w for d, w in zip(how["demands"], how["demand_weights"])) / sum(how["demand_weights"])
    rate = fleet.devices * (1 - serve["share"]) * how["load"] / (mean * how["mean_hours"] * 3600)
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        if now >= 3600 * hours:
            return rows
        demand = draw.choices(how["demands"], how["demand_weights"])[0]
        application = f"train-{demand}"
        if draw.random() < how["typed"]:
            application += "-" + draw.choices(list(fleet.types), list(fleet.types.values()))[0]
        length = how["mean_hours"] * math.exp(how["sigma"] * draw.gauss(0, 1) - how["sigma"] ** 2 / 2)
        rows.append({"name": f"job-{len(rows)}", "time": round(now, 3), "application": application,
                     "num_replicas": demand, "scaling": "adaptive",
                     "tier": draw.choices(list(how["tiers"]), list(how["tiers"].values()))[0],
                     "team": draw.randrange(spec["teams"]), "work": f"{max(length, 1e-3):.6f}",
                     "region": draw.choice(fleet.regions)})


def write_jobs(file, rows):
    names = ["name", "time", "application", "num_replicas", "scaling", "tier", "team", "work", "region",
             "load", "replica_rate", "latency", "replica_devices", "seconds"]
    write_rows(file, names, [[row.get(name, "") for name in names] for row in rows])


def write_faults(file, spec, fleet, hours):
    """Until the last job has arrived."""
    fault, care = spec["faults"], spec["maintenance"]
    text = [f'lost_work_seconds = {fault["lost_work_seconds"]}']

    def add(kind, every, lasts, more):
        count = max(1, int(3600 * hours / every))
        text.append(f'[[fault]]\nkind = "{kind}"\nat = {every:.0f}\nevery = {max(every, 1):.3f}\n'
                    f"count = {count}\nfor = {3600 * lasts}\n{more}")
    add("node_loss", 3600 * fault["node_mtbf_hours"] / fleet.nodes, fault["repair_hours"], "")
    if fleet.spot_nodes:
        add("reclaim", 3600 * fault["spot_reclaim_hours"] / fleet.spot_nodes, fault["spot_away_hours"],
            f'notice = {fault["spot_notice_seconds"]}\n')
    for k in range(1, math.ceil(hours / care["every_hours"])):
        region = fleet.regions[k % len(fleet.regions)]
        nodes = [n for name, _, _, first, number in fleet.groups if name == region
                 for n in range(first, first + int(number * care["share"]))]
        if nodes:
            text.append(f'[[fault]]\nkind = "maintenance"\nat = {3600 * k * care["every_hours"]}\n'
                        f'for = {3600 * care["hours"]}\nnotice = {care["notice_seconds"]}\n'
                        f"nodes = {nodes}\n")
    file.write_text("\n".join(text))


def play(args, folder, fleet, policy, rows, spec, hours):
    """The figures of `ductile sim` and its only run."""
    folder.mkdir(parents=True)
    fleet.write(folder / "cluster.toml")
    write_faults(folder / "faults.toml", spec, fleet, hours)
    write_jobs(folder / "jobs.csv", rows)
    done = subprocess.run(
        [args.ductile, "sim", "-q", str(folder / "jobs.csv"), "--applications",
         str(folder.parent / "applications"), "--cluster", str(folder / "cluster.toml"), "--scenario",
         str(folder / "faults.toml"), "--policy", policy, "--restart", str(spec["jobs"]["restart_seconds"]),
         "--seed", str(args.seed), "--interval", "60", "--information", "published", "--budget", "none",
         "--out", str(folder / "out"), "--json"],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{policy}: {done.stderr.strip()}")
    return json.loads(done.stdout)["policies"][0], json.loads((folder / "out" / "runs.json").read_text())[0]


def plays(args, folder, fleet, policy, rows, spec, hours):
    """One, or with partitions one for each tier."""
    if policy != "partitions":
        return [play(args, folder / policy, fleet, policy, rows, spec, hours)]
    served = spec["services"]["share"]
    out = []
    for tier, part in spec["jobs"]["tiers"].items():
        share = (1 - served) * part + (served if tier == "premium" else 0)
        own = [job for job in rows if job["tier"] == tier]
        out.append(play(args, folder / f"partition-{tier}", Fleet(spec, args.scale, share), "tiers", own,
                        spec, hours))
    return out


def row(policy, runs, hours):
    tiers, serving, crowded = {}, None, {}
    for summary, run in runs:
        tiers.update(summary["tiers"])
        serving = summary.get("services", serving)
        for r in run["rounds"]:
            if r["time"] <= 3600 * hours:
                waiting, used, usable = crowded.get(r["time"], (0, 0, 0))
                crowded[r["time"]] = (waiting + r["waiting"], used + r["used"], usable + r["usable"])
    jobs = [job for _, run in runs for job in run["jobs"] if "served" not in job]

    def kept(tier):
        t = tiers.get(tier)
        return f"{100 * t['kept'] / t['windows']:.2f} % ({t['worst_fraction']:.2f})" if t else "-"

    def hours_of(tier):
        spent = [job["finish"] - job["arrival"] for job in jobs if job["tier"] == tier]
        return f"{sum(spent) / len(spent) / 3600:.2f}" if spent else "-"
    busy = [(used, usable) for waiting, used, usable in crowded.values() if waiting]
    share = sum(used for used, _ in busy) / max(1, sum(usable for _, usable in busy))
    cells = [policy, kept("premium"), kept("standard"),
             f"{tiers['basic']['mean_fraction']:.2f}" if "basic" in tiers else "-",
             f"{100 * share:.1f} %", sum(job["finish"] <= 3600 * hours for job in jobs),
             " / ".join(hours_of(t) for t in ("premium", "standard", "basic")),
             sum(job["restarts"] + 1 for job in jobs), sum(job["node_losses"] for job in jobs),
             f"{100 * serving['on_time']:.1f} %" if serving else "-",
             f"{sum(1e3 * s['decision_seconds'] for s, _ in runs):.1f} / "
             f"{sum(1e3 * s['decision_seconds_p99'] for s, _ in runs):.1f}"]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=10)
    parser.add_argument("--hours", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="regional,partitions,tiers,priority")
    parser.add_argument("--keep", type=pathlib.Path, help="a new folder for all files")
    parser.add_argument("--ductile", default=str(ROOT / "build/release/bin/ductile"))
    args = parser.parse_args()
    spec = tomllib.loads((ROOT / "bench/fleet/ten_regions.toml").read_text())
    hours = args.hours or spec["hours"]
    fleet = Fleet(spec, args.scale)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or pathlib.Path(scratch) / "fleet"
        write_applications(folder / "applications", list(fleet.types), spec["jobs"]["demands"])
        jobs = [jobs_of(spec, fleet, hours, random.Random(args.seed), peak) for peak in (False, True)]
        print(f"Seed {args.seed}: {fleet.devices} devices, {len(jobs[0])} jobs in {hours} hours\n")
        print("| policy | Premium windows met (worst) | Standard windows met (worst) | Basic, of demand | "
              "used while work waits | done | JCT h, P / S / B | starts and moves | "
              "node losses that hit a job | requests on time | decision ms, mean / p99 |\n"
              "| --- |" + " --- |" * 10, flush=True)
        for policy in args.policy.split(","):
            runs = plays(args, folder, fleet, policy, jobs[policy not in SIZING], spec, hours)
            print(row(policy, runs, hours), flush=True)


if __name__ == "__main__":
    main()
