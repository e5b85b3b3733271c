"""A part of a spot market's trace, played with real jobs on machines that come and go.

Emulated: a machine is a network namespace with an address of its own and one device, and all of them share this
computer's cores. A step takes `step` seconds on all machines of the part together, and on fewer as much longer, since
the workers sleep in place of what a device would compute. All else of a job is real: processes, connections,
heartbeats, generations, checkpoints, bits of the result. With --worker torch so are data, model and gradients, and the
model sleeps for each sample (paced_model.cc). Such a worker takes a second of a core to begin, which is fair for four
machines on two cores and not for sixteen: a restart of all would take the rival half a minute of waiting for
processors. So by default the workers are those of the tests (ductile_test_worker), without torch: they compute one
number, and need `start` seconds before they are ready, whatever their number. Time runs `speed` times as fast as in
the trace; what the service, the network and the disk take does not, so each pause weighs that much more.

The state of such a worker is one number, and it has no option for a larger one: a save and the hand-over of the state
cost next to nothing, which is kind to whoever saves most often (the rivals with small --every, and all at a notice). With
--worker torch they cost what a small model's cost.

A machine is there when the trace says so. "At most" is the goodput of a market that loses nothing but the seconds in
which a worker starts on a machine that came. Before it goes its agent gets SIGTERM, as much earlier as the notice in
`sim`, scaled; then its network is cut and everything on it is killed. When it comes back its agent can be called
again: the launcher command waits for the machine's lock, which this program holds while the machine is away. All that
happens in one instant is done, and said, at once.

The rivals restart from checkpoints (spot_rival.py).
"""
import json
import os
import random
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
from spot_machines import Market, wait  # noqa: E402  (first: it knows where the others are)
import emulated  # noqa: E402
import spot_rival  # noqa: E402
from asking import UnixConnection, ask  # noqa: E402


def window(trace, ticks, which):
    """The busiest part of so many ticks, or one at random by the number: its first tick."""
    last = len(trace.data) - ticks
    if last < 1:
        sys.exit(f"{trace.name} has {len(trace.data)} ticks, fewer than {ticks + 1}: take fewer --minutes")
    able = [i for i in range(last) if trace.data[i] > 0]  # jobs can begin
    if which != "busiest":
        return random.Random(f"{trace.name} {which}").choice(able)
    changes = [abs(b - a) for a, b in zip(trace.data, trace.data[1:])]
    return max(able, key=lambda i: sum(changes[i:i + ticks - 1]))


def part(args, trace, which):
    """Seconds of a tick, the first tick, the number of machines in each."""
    tick = trace.gap / args.speed
    ticks = max(2, round(60 * args.minutes / tick))
    first = window(trace, ticks, which)
    return tick, first, trace.data[first:first + ticks]


def most_of(args, trace, which):
    return max(part(args, trace, which)[2])


def schedule(machines, tick, notice):
    """[(time, what, machines)] of all comings, notices and goings; `machines`: how many there are at each tick."""
    events = []
    for machine in range(max(machines)):
        there = [n > machine for n in machines]
        came = 0.0
        for i in range(1, len(there)):
            if there[i] and not there[i - 1]:
                came = i * tick
                events.append((came, "come", machine))
            if there[i - 1] and not there[i]:
                events.append((max(came, i * tick - notice), "notice", machine))
                events.append((i * tick, "go", machine))
    order = ["go", "come", "notice"]
    together = {}
    for when, what, machine in events:
        together.setdefault((round(when, 6), order.index(what)), []).append(machine)
    return [(when, order[what], sorted(of, reverse=True)) for (when, what), of in sorted(together.items())]


def at_most(machines, tick, start):
    """The share of the machine time that is left where a machine that comes is of use after `start` seconds alone."""
    lost = 0.0
    for machine in range(max(machines)):
        there = [n > machine for n in machines]
        for i in range(1, len(there)):
            if there[i] and not there[i - 1]:
                stays = next((k for k in range(i, len(there)) if not there[k]), len(there)) - i
                lost += min(start, stays * tick)
    return 1 - lost / (sum(machines) * tick)


class Ours(Market):
    """A service whose machines are those of the trace."""

    service, starts = None, 0

    def begin(self, args, machines, notice, there):
        names = self.machines.hosts.names[1:]
        (self.folder / "cluster.toml").write_text(
            f'[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = {json.dumps(names)}\nnotice = "{notice:g} s"\n'
            f'leave = "{args.leave:g} s"\n'
            f"addresses = {json.dumps([emulated.address(h + 1) for h in range(machines)])}\n")
        (self.folder / "service").mkdir()
        words = [self.ductile, "server", str(self.folder / "cluster.toml"), "--launcher", self.machines.launcher(),
                 "--listen", emulated.address(0), "--policy", args.policy, "--grace", "1", "--no-page", "--folder",
                 str(self.folder / "service")]
        self.service = subprocess.Popen(self.machines.hosts.at_home(words), stdout=self.log, stderr=self.log,
                                        env=self.environment)
        wait(lambda: self.up() >= there, f"{there} machines; see {self.log.name}")
        self.numbers = []
        for i in range(args.jobs):
            body = {"name": f"job-{i}", "min_devices": 1, "max_devices": machines, "spec": {"job": self.job}}
            self.numbers.append(json.loads(self.ask("POST", "/v1/jobs", body))["id"])
            self.runs.append(self.folder / "service" / "runs" / f"{self.numbers[-1]}-job-{i}")

    def ask(self, *words):
        status, text = ask(UnixConnection(self.folder / "service" / "api.sock"), *words)
        assert status in (200, 201), text
        return text

    def used(self):
        return sum(bool(node["jobs"]) for node in json.loads(self.ask("GET", "/v1/nodes"))["nodes"])

    def up(self):
        try:
            return sum(node["state"] == "up" for node in json.loads(self.ask("GET", "/v1/nodes"))["nodes"])
        except OSError:
            return 0

    def notice(self, machines):
        self.machines.notice(machines)

    def go(self, machines):
        self.machines.go(machines)

    def come(self, machines):
        # Others of the same names, which the notices of those before do not concern.
        leaving = self.folder / "service" / "server" / "leaving"
        for machine in machines:
            (leaving / self.machines.hosts.names[machine + 1]).unlink(missing_ok=True)
        self.machines.come(machines)

    def save(self):
        """All jobs, which go on no longer."""
        for job in self.numbers:
            self.ask("POST", f"/v1/jobs/{job}/pause", {})
        wait(lambda: all(json.loads(self.ask("GET", f"/v1/jobs/{job}"))["phase"] == "paused" for job in self.numbers),
             "the end of the jobs")

    def end(self):
        if self.service:
            self.service.kill()
            self.service.wait()
        super().end()


def settle(args, market, there):
    """Jobs have begun, and workers on all machines had time to start."""
    wait(lambda: sum(market.steps(run) >= 2 for run in market.runs) >= min(args.jobs, there), "first steps")
    wait(lambda: market.used() >= there, "jobs on all machines")
    time.sleep(args.start + 2)


def undisturbed(args, most):
    """The machine seconds of a step on so many machines that stay: of the step itself and of its exchange."""
    seconds, market = 20, Ours(args, most, args.step, args.every[0], 1, most)
    try:
        settle(args, market, most)
        before = sum(market.steps(run) for run in market.runs)
        begin = time.monotonic()
        time.sleep(seconds)
        steps = sum(market.steps(run) for run in market.runs) - before
        return most * (time.monotonic() - begin) / steps
    finally:
        market.end()


def play(args, trace, which, every, of, step):
    """Goodput of a part of the trace, and what led to it. `of`: Ours, or one of rivals(); `step`: machine
    seconds of an undisturbed one."""
    tick, first, machines = part(args, trace, which)
    ticks = len(machines)
    notice = args.notice / args.speed
    market = of(args, max(machines), args.step, every, notice, machines[0])
    try:
        settle(args, market, machines[0])
        begin, late = time.monotonic(), 0.0
        before = sum(market.steps(run) for run in market.runs)
        for when, what, of_them in schedule(machines, tick, notice):
            time.sleep(max(0.0, begin + when - time.monotonic()))
            getattr(market, what)(of_them)
            late = max(late, time.monotonic() - begin - when)  # when it was done
        time.sleep(max(0.0, begin + tick * len(machines) - time.monotonic()))
        told = [market.steps(run) for run in market.runs]
        starts = market.starts
        market.save()  # what was lost again does not count
        done = sum(min(t, market.saved(run)) for t, run in zip(told, market.runs)) - before
        seconds = sum(machines) * tick
        return {"goodput": done * step / seconds, "steps": done, "machine_seconds": seconds,
                "changes": sum(abs(b - a) for a, b in zip(machines, machines[1:])), "first_tick": first,
                "ticks": ticks, "most": max(machines), "restarts": starts, "late": late,
                "at_most": at_most(machines, tick, args.start)}
    finally:
        market.end()


def rivals(args):
    """[(name, steps between checkpoints, class)]"""
    found = []
    for seconds in args.settle:
        more = f", settles {seconds:g} s"
        told, killed = (type(base.__name__, (base,), {"settle": seconds}) for base in (spot_rival.Told, spot_rival.Killed))
        found += [("rival, told" + more, args.every[-1], told),
                  *((f"rival, every {e} steps" + more, e, killed) for e in args.every)]
    return found


def in_live(args, traces):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    # A shell script has it ignored by what it starts behind an `&`, and rivals are ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        emulated.Hosts(1).end()
    except unittest.SkipTest as error:
        sys.exit(f"live: {error}")
    args.build = args.build.resolve()
    done = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    rows = []
    for trace in traces:
        for which in args.windows.split(","):
            found, most = {}, most_of(args, trace, which)
            key = f"undisturbed {most} {args.step} {args.jobs} {args.worker}"
            if key not in done:
                done[key] = undisturbed(args, most)
                print(f"{key}: {done[key]:.2f} machine seconds for a step", flush=True)
            step = done[key]
            for n in range(args.rounds):
                for who, every, of in [("ours", args.every[0], Ours), *rivals(args)]:
                    key = " ".join(str(w) for w in (trace.name, which, who, n, args.minutes, args.speed, args.step,
                                                    args.start, args.jobs, args.policy, args.worker, args.leave))
                    if key not in done:
                        done[key] = play(args, trace, which, every, of, step)
                        print(f"{key}: {json.dumps(done[key])}", flush=True)
                        if args.out:
                            args.out.write_text(json.dumps(done, indent=1))
                    found.setdefault(who, []).append(done[key])
            rows.append((trace, which, found))
    print_table(args, rows)


def spread(results):
    values = sorted(r["goodput"] for r in results)
    middle = values[len(values) // 2]
    return f"{middle:.3f}" + (f" ({values[0]:.3f} to {values[-1]:.3f})" if len(values) > 1 else "")


def print_table(args, rows):
    names = [name for name, *_ in rivals(args)]
    print(f"\nload average {os.getloadavg()[0]:.1f}; command: {' '.join(sys.argv)}\n")
    print("| trace | part | machines, changes | at most | ours | " + " | ".join(f"{r} (starts)" for r in names) +
          " | ours / best rival |\n" + "|---" * (6 + len(names)) + "|")
    for trace, which, found in rows:
        of = found["ours"][0]
        best = max(sorted(r["goodput"] for r in found[rival])[len(found[rival]) // 2] for rival in names)
        middle = sorted(r["goodput"] for r in found["ours"])[len(found["ours"]) // 2]
        print(f"| {trace.name} | {which}: from tick {of['first_tick']}, {of['ticks']} ticks | up to {of['most']}, "
              f"{of['changes']} | {of['at_most']:.3f} | {spread(found['ours'])} | " +
              " | ".join(f"{spread(found[r])} ({found[r][0]['restarts']})" for r in names) +
              f" | {middle / best if best else float('inf'):.2f} |")
