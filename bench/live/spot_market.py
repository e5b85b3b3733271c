#!/usr/bin/python3
"""A spot market: how much of the machine time that there was became committed steps.

Usage: bench/live/spot_market.py sim TRACE... [--build build/release] [--out FILE]
       bench/live/spot_market.py live TRACE... [--minutes 5] [--windows busiest,1] [--rounds 1] [--every 20,100,400]
                                 [--settle 1] [--worker torch] [--build build/release] [--out FILE]

A TRACE says how many machines there are at each tick (JSON: metadata.gap_seconds, data); machine k is
there while there are more than k. Goodput: the machine seconds that the committed steps take on
devices that do nothing else, over the machine seconds that there were.

sim plays whole traces in `ductile sim`, in virtual time: the result is exact, on any machine. Two
minutes before a machine goes, everybody is told. Ours: policy `ductile`, a change costs a job --pause
seconds, and no step is lost. Its rival restarts from its last checkpoint at each
change, which costs --restart seconds and what was done since; it has the same policy, or, as a gang, a
fixed number of machines. The checkpoints themselves cost the rival nothing.

live plays parts of traces with a real `ductile server` and real jobs on emulated machines, a minute of the trace in
a second (spot_live.py says what is emulated, and what the rival is): the busiest part, or one at random by a number.
Goodput is counted from the jobs' committed steps as the service tells them; what a step takes is measured before, on
machines that stay. It needs root, and a quiet computer; takes
--minutes and some seconds for each part, and once more for each of --every with each of --settle; with --out it goes on where it stopped; and
removes all that it made.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import spot_live  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTICE = 120  # seconds


class Trace:
    def __init__(self, file):
        tree = json.loads(pathlib.Path(file).read_text())
        self.name = f"{pathlib.Path(file).parent.name}/{pathlib.Path(file).stem}"
        self.gap, self.data = tree["metadata"]["gap_seconds"], tree["data"]

    def machine_seconds(self, end):
        """Until then; after the trace there are as many as at its end."""
        total = 0
        for i, machines in enumerate(self.data):
            total += machines * max(0, min(self.gap, end - i * self.gap))
        return total + self.data[-1] * max(0, end - len(self.data) * self.gap)


BATCH = 5040  # whole shares on nearly every number of machines
STEP = 60     # seconds of a step on one machine


def write_application(folder, machines, steps):
    """Jobs whose speed is the number of their machines."""
    folder.mkdir(parents=True)
    epochs = 200
    rows = ["progress,iteration,metric,grad_sqr,grad_var"]
    rows += [f"{steps * e / epochs},{steps * e / epochs},0,1,1" for e in range(1, epochs + 1)]
    (folder / f"validation-{BATCH}.csv").write_text("\n".join(rows) + "\n")
    placements, scaling = ["placement,local_bsz,step_time,sync_time"], ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for n in range(1, machines + 1):
        share = -(-BATCH // n)
        row = f"{share},{STEP * share / BATCH},0"
        placements.append(f"{'1' * n},{row}")
        scaling.append(f"{n},{n},{row}")
    (folder / "placements-v100.csv").write_text("\n".join(placements) + "\n")
    (folder / "scalability-v100.csv").write_text("\n".join(scaling) + "\n")


def simulate(args, trace, policy, restart, checkpoint=0, asked=None):
    """The goodput of jobs that need a part of the machine time of the trace, until they are done."""
    part = args.part
    while True:  # whoever cannot do so much before the last machine goes does less
        result = simulate_part(args, trace, part, policy, restart, checkpoint, asked)
        if result:
            return {"part": part, **result}
        part *= 0.8
        if part < 0.01:
            return {"part": 0, "goodput": 0, "changes": 0, "lost_hours": 0, "end": 0}


def simulate_part(args, trace, part, policy, restart, checkpoint, asked):
    machines = max(trace.data)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        whole = part * sum(trace.data) * trace.gap
        jobs = 1 if asked else args.jobs
        if asked:  # a gang of n gets at most what whole gangs get
            whole *= min(1, sum(m // asked * asked for m in trace.data) / sum(trace.data))
            jobs = max(1, machines // asked)
        write_application(folder / "traces" / "even", machines, whole / jobs / STEP)
        scaling = "rigid" if asked else "strong"
        rows = ["name,time,application,num_replicas,batch_size,scaling,checkpoint"]
        rows += [f"job-{j},0,even,{asked or 1},{BATCH},{scaling},{checkpoint}" for j in range(jobs)]
        (folder / "jobs.csv").write_text("\n".join(rows) + "\n")
        (folder / "cluster.toml").write_text(f'[[nodes]]\ntype = "v100"\ncount = {machines}\ndevices = 1\nspot = true\n')
        (folder / "trace.json").write_text(json.dumps({"metadata": {"gap_seconds": trace.gap}, "data": trace.data}))
        (folder / "market.toml").write_text('[[fault]]\nkind = "reclaim"\ntrace = "trace.json"\n'
                                            f"notice = {NOTICE}\nnodes = {list(range(machines))}\n")
        words = [args.build / "bin" / "ductile", "sim", folder / "jobs.csv", "--applications", folder / "traces",
                 "--cluster", folder / "cluster.toml", "--scenario", folder / "market.toml", "--policy", policy,
                 "--restart", str(restart), "--json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if "gone for good" in done.stderr:
            return None
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        run = json.loads(done.stdout)["runs"][0]
        return {"goodput": whole / trace.machine_seconds(run["makespan"]), "changes": run["restarts"] * jobs,
                "lost_hours": run.get("lost_hours", 0), "end": run["makespan"]}


def in_sim(args):
    rows = []
    for file in args.traces:
        trace = Trace(file)
        machines = max(trace.data)

        def row(who, **how):
            result = simulate(args, trace, **how)
            rows.append({"trace": trace.name, "who": who, **how, **result})
            print(f"{trace.name}  {who:44} {result['goodput']:.4f}  {result['changes']:.0f} changes", flush=True)

        row("ours", policy="ductile", restart=args.pause)
        for restart in args.restart:
            row(f"restarts in {restart} s, saves when told", policy="ductile", restart=restart)
            for every in args.every:
                row(f"restarts in {restart} s, checkpoint every {every} s", policy="ductile", restart=restart,
                    checkpoint=every)
            for gang in sorted({g for g in (4, 8, 16) if g <= machines}):
                row(f"gangs of {gang}, restart in {restart} s, every {args.every[0]} s", policy="fifo",
                    restart=restart, checkpoint=args.every[0], asked=gang)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    sim = commands.add_parser("sim")
    sim.add_argument("traces", nargs="+", type=pathlib.Path)
    sim.add_argument("--pause", type=float, default=2)
    sim.add_argument("--restart", type=lambda t: [float(w) for w in t.split(",")], default=[30.0, 120.0, 250.0])
    sim.add_argument("--every", type=lambda t: [float(w) for w in t.split(",")], default=[60.0, 300.0, 1800.0])
    sim.add_argument("--jobs", type=int, default=4)
    sim.add_argument("--part", type=float, default=0.8)
    sim.add_argument("--out", type=pathlib.Path)
    sim.set_defaults(run=in_sim)
    live = commands.add_parser("live")
    live.add_argument("traces", nargs="+", type=pathlib.Path)
    live.add_argument("--minutes", type=float, default=5, help="of real time for each part")
    live.add_argument("--speed", type=float, default=60, help="seconds of the trace in one of ours")
    live.add_argument("--windows", default="busiest,1", help="parts: busiest, or numbers for ones at random")
    live.add_argument("--rounds", type=int, default=1)
    live.add_argument("--every", type=lambda t: [int(w) for w in t.split(",")], default=[20, 100, 400],
                      help="steps between the rival's checkpoints; ours has the first number")
    live.add_argument("--settle", type=lambda t: [float(w) for w in t.split(",")], default=[1.0],
                      help="seconds that rivals wait whether more changes; each is a rival of its own")
    live.add_argument("--jobs", type=int, default=2)
    live.add_argument("--step", type=float, default=0.3, help="seconds on all machines together")
    live.add_argument("--worker", choices=["torch", "plain"], default="plain")
    live.add_argument("--start", type=float, default=2, help="with --worker plain: seconds until a worker is ready")
    live.add_argument("--notice", type=float, default=NOTICE, help="seconds of the trace")
    live.add_argument("--leave", type=float, default=0,
                      help="real seconds before a machine goes in which our jobs give it up; 0: as the service finds")
    live.add_argument("--policy", default="ductile")
    live.add_argument("--out", type=pathlib.Path)
    live.set_defaults(run=lambda args: spot_live.in_live(args, [Trace(file) for file in args.traces]))
    for command in (sim, live):
        command.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    args.build = args.build.resolve()
    args.run(args)


if __name__ == "__main__":
    main()
