#!/usr/bin/env python3
"""The fleet of bench/scheduler/scenarios/fleet.toml: what `ductile sim` needs for it, and its table.

    bench/scheduler/fleet.py [--share S] [--hours H] [--seeds 1,2] [--policies p,q] [-o FILE]
        [--ductile PROGRAM]
    bench/scheduler/fleet.py --make FOLDER [--share S] [--hours H] [--seeds N]

The first form runs the policies and prints a table for each seed. The second one writes
cluster.toml, faults.toml, workload.csv and applications/ for the first seed, and prints the command
that runs them. With a share of 1 the fleet has 100,000 accelerators; with one below 0.1 no pool has
room for what a service needs. Figures are in virtual time and do not depend on the machine, except
for the time of decisions.

A job runs by plans (plans.csv) on a quarter, half, once or twice the devices that it asks for, as
fast on every type. Its applications are named after what it asks for, and after its type if it is
bound to one.
"""
import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
PER_NODE = 8
SECONDS = 3600  # a job of work 1 lasts so long on the devices that it asks for


def node_counts(fleet):
    """By type: nodes of a region that stay, and those that are spot nodes."""
    counts = {}
    for name, count in fleet["nodes"].items():
        count = max(1, round(count * fleet["share"]))
        spot = round(count * fleet["spot"])
        counts[name] = (count - spot, spot)
    return counts


def write_cluster(fleet, target):
    """Returns the numbers of the nodes that stay, by region and type."""
    text, numbers, first = [], [], 0
    for region in range(fleet["regions"]):
        numbers.append({})
        for name, (stay, spot) in node_counts(fleet).items():
            for count, is_spot in ((stay, False), (spot, True)):
                if count == 0:
                    continue
                text.append(f'[[nodes]]\ntype = "{name}"\ncount = {count}\ndevices = {PER_NODE}\n'
                            f'region = "region-{region}"\n' + "spot = true\n" * is_spot)
                if not is_spot:
                    numbers[-1][name] = list(range(first, first + count))
                first += count
    target.write_text("\n".join(text))
    return numbers


def write_faults(fleet, numbers, target):
    faults, plan = fleet["faults"], fleet["maintenance"]
    counts = node_counts(fleet)
    spot = fleet["regions"] * sum(s for _, s in counts.values())
    nodes = fleet["regions"] * sum(a + s for a, s in counts.values())
    text = [f'lost_work_seconds = {faults["lost_work_seconds"]}\nuntil = {fleet["hours"] * 3600}\n',
            f'[[fault]]\nkind = "node_loss"\nevery = {faults["node_mtbf_hours"] * 3600 / nodes}\n'
            f'for = {faults["repair_hours"] * 3600}\n']
    if spot > 0:
        text.append(f'[[fault]]\nkind = "reclaim"\nevery = {faults["reclaim_hours"] * 3600 / spot}\n'
                    f'for = {faults["away_hours"] * 3600}\nnotice = {faults["notice_seconds"]}\n')
    for turn in range(1, int(fleet["hours"] / plan["every_hours"]) + 1):
        there = numbers[turn % fleet["regions"]]
        chosen = [n for name, (stay, is_spot) in counts.items()
                  for n in there[name][:int((stay + is_spot) * plan["share"])]]
        if chosen:
            text.append(f'[[fault]]\nkind = "maintenance"\nat = {turn * plan["every_hours"] * 3600}\n'
                        f'for = {plan["hours"] * 3600}\nnotice = {plan["notice_seconds"]}\n'
                        f'nodes = {chosen}\n')
    target.write_text("\n".join(text))


def write_applications(fleet, target):
    """Jobs by their demand, on every type and on each alone; services, as fast on every type."""
    types = list(fleet["nodes"])
    jobs = fleet["jobs"]
    progress = f"progress,iteration,grad_sqr,grad_var\n{SECONDS},{SECONDS},1,1\n"
    for demand in jobs["demands"]:
        for bound in [None, *types]:
            folder = target / (f"job-{demand}" + (f"-{bound}" if bound else ""))
            folder.mkdir(parents=True)
            (folder / "validation-1.csv").write_text(progress)
            rows = ["plan,type,devices,batch,seconds"]
            for name in [bound] if bound else types:
                for part in (0.25, 0.5, 1, 2):
                    seconds = 1 / part if part <= 1 else part ** -jobs["scaling"]
                    rows.append(f"data,{name},{int(demand * part)},1,{seconds}")
            (folder / "plans.csv").write_text("\n".join(rows) + "\n")
    folder = target / "service"
    folder.mkdir()
    (folder / "validation-1.csv").write_text(progress)
    pipeline = ["type,stages,micro_batches"]  # of one stage: what only it has is a row a type
    for name in types:
        (folder / f"placements-{name}.csv").write_text(
            "placement,local_bsz,step_time,sync_time\n1,1,1,0\n")
        (folder / f"scalability-{name}.csv").write_text(
            "num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,1,1,1,0\n")
        pipeline.append(f"{name},1,1")
    (folder / "pipeline.csv").write_text("\n".join(pipeline) + "\n")


def services(fleet, draw, devices):
    """One row each; the load of a day in hours."""
    s = fleet["services"]
    each = s["replicas"] * s["replica_devices"]
    mean = 0.95 * s["replicas"] * s["replica_rate"]
    for i in range(int(devices * s["share"] / each)):
        region = i % fleet["regions"]
        load = ";".join(
            f"{3600 * h}:"
            f"{mean * (1 + s['swing'] * math.sin(2 * math.pi * (h / 24 + region / fleet['regions']))):.1f}"
            for h in range(25))
        floor = max(1, int(s["replicas"] * (1 - s["swing"]))) * s["replica_devices"]
        yield (f"service-{i},0,service,{floor},rigid,premium,{draw.randrange(fleet['teams'])},1,"
               f"region-{region},0,{load},{s['replica_rate']},{s['latency']},{s['replica_devices']},"
               f"{fleet['hours'] * 3600}")


def write_workload(fleet, seed, target):
    draw = random.Random(seed)
    jobs = fleet["jobs"]
    counts = node_counts(fleet)
    devices = PER_NODE * fleet["regions"] * sum(a + s for a, s in counts.values())
    rows = ["name,time,application,num_replicas,scaling,tier,team,work,region,movable,load,"
            "replica_rate,latency,replica_devices,seconds", *services(fleet, draw, devices)]
    mean_demand = (sum(d * w for d, w in zip(jobs["demands"], jobs["demand_weights"]))
                   / sum(jobs["demand_weights"]))
    each_second = (devices * (1 - fleet["services"]["share"]) * jobs["load"]
                   / (mean_demand * jobs["mean_hours"] * 3600))
    types = list(counts)
    now, number = draw.expovariate(each_second), 0
    while now < fleet["hours"] * 3600:
        demand = draw.choices(jobs["demands"], jobs["demand_weights"])[0]
        tier = draw.choices(["premium", "standard", "basic"], jobs["tiers"])[0]
        name = f"job-{demand}"
        if draw.random() < jobs["typed"]:
            name += "-" + draw.choices(types, [sum(counts[t]) for t in types])[0]
        hours = jobs["mean_hours"] * math.exp(draw.gauss(-jobs["sigma"] ** 2 / 2, jobs["sigma"]))
        rows.append(f"j{number},{int(now)},{name},{demand},strong,{tier},"
                    f"{draw.randrange(fleet['teams'])},{hours:.6f},"
                    f"region-{draw.randrange(fleet['regions'])},1,,,,,")
        number += 1
        now += draw.expovariate(each_second)
    target.write_text("\n".join(rows) + "\n")
    return devices, number


def make(fleet, seed, folder):
    """All files of a seed; returns the numbers of devices and jobs."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = write_cluster(fleet, folder / "cluster.toml")
    write_faults(fleet, numbers, folder / "faults.toml")
    write_applications(fleet, folder / "applications")
    return write_workload(fleet, seed, folder / "workload.csv")


def command(program, scenario, folder, seed, policy):
    return [program, "sim", "-q", str(folder / "workload.csv"), "--applications",
            str(folder / "applications"), "--cluster", str(folder / "cluster.toml"), "--scenario",
            str(folder / "faults.toml"), "--policy", policy, "--seed", str(seed), "--json",
            *scenario["arguments"]]


def row_of(policy, run):
    tiers = run["tiers"]

    def kept(tier):
        t = tiers.get(tier)
        return f"{100 * t['kept'] / t['windows']:.2f} % (worst {t['worst_fraction']:.2f})" if t else "-"
    hours = " / ".join(f"{tiers[t]['mean_jct'] / 3600:.2f}" if t in tiers else "-"
                       for t in ("premium", "standard", "basic"))
    services_ = run.get("services", {"on_time": 1, "worst_hour_on_time": 1})
    return [policy, kept("premium"), kept("standard"),
            f"{tiers['basic']['mean_fraction']:.2f}" if "basic" in tiers else "-",
            f"{100 * run['busy']:.1f} %", f"{run['jobs'] - run.get('unfinished', 0)}", hours,
            f"{run['starts']:.0f}", f"{run['hits']:.0f} / {run.get('redone_hours', 0):.0f}",
            f"{100 * services_['on_time']:.1f} % ({100 * services_['worst_hour_on_time']:.0f} %)",
            f"{1e3 * run['decision_seconds']:.0f} / {1e3 * run['decision_seconds_p99']:.0f}"]


HEAD = ["policy", "Premium windows kept", "Standard windows kept", "Basic, of demand",
        "held while work waits", "jobs finished", "JCT h, P / S / B", "starts and moves",
        "nodes lost by jobs / device hours done again", "requests on time (worst hour)",
        "decision ms, mean / p99"]


def table(scenario, program, seeds, policies):
    """Lines of one table for each seed."""
    text = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            devices, jobs = make(scenario["fleet"], seed, folder)
            text += [f"Seed {seed}: {devices} devices, {jobs} jobs in {scenario['fleet']['hours']} hours",
                     "", "| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
            for policy in policies:
                done = subprocess.run(command(program, scenario, folder, seed, policy),
                                      capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    print(f"{policy}: {done.stderr.strip()}", file=sys.stderr)
                    text.append(f"| {policy} |" + " - |" * (len(HEAD) - 1))
                    continue
                text.append("| " + " | ".join(row_of(policy, json.loads(done.stdout)["policies"][0]))
                            + " |")
                print(f"fleet: {policy}, seed {seed}", file=sys.stderr, flush=True)
        text.append("")
    return text


def read_scenario():
    return tomllib.loads((HERE / "scenarios" / "fleet.toml").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, help="of the nodes, jobs and services")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--seeds", help="separated by commas")
    parser.add_argument("--policies", help="separated by commas")
    parser.add_argument("--make", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--ductile", default=str(HERE.parents[1] / "build/release/bin/ductile"))
    args = parser.parse_args()
    scenario = read_scenario()
    for key in ("share", "hours"):
        if getattr(args, key) is not None:
            scenario["fleet"][key] = getattr(args, key)
    seeds = [int(s) for s in args.seeds.split(",")] if args.seeds else scenario["seeds"]
    policies = args.policies.split(",") if args.policies else scenario["policies"]
    if args.make:
        make(scenario["fleet"], seeds[0], args.make)
        print(" ".join(command(args.ductile, scenario, args.make, seeds[0], ",".join(policies))))
        return
    text = "\n".join(table(scenario, args.ductile, seeds, policies))
    if args.output:
        args.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
