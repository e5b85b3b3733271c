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

A machine is there when the trace says so. Before it goes its agent gets SIGTERM, as much earlier as the notice in
`sim`, scaled; then its network is cut and everything on it is killed. When it comes back its agent can be called
again: the launcher command waits for the machine's lock, which this program holds while the machine is away.

The rival is the same service on the same machines without the notice; each change of a job's machines kills all of
its workers, which start again from the last checkpoint. It has the same checkpoints and the same starts.
"""
import fcntl
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "bench" / "service")]
sys.dont_write_bytecode = True
import emulated  # noqa: E402
import asking  # noqa: E402
from asking import UnixConnection, ask  # noqa: E402

PATIENCE = 120
RANKS = 240  # whole shares, or nearly, on every number of machines
BATCH = 2 * RANKS
JOB = f"""[train]
max_steps = 100000000
epochs = 100000
virtual_ranks = {RANKS}
batch_size = {BATCH}
eval_every_epochs = 0
[optimizer]
lr = 0.01
[checkpoint]
every_steps = {{every}}
every_seconds = 0
"""
REAL = """[data]
format = "digits"
[model]
name = "custom"
library = "{library}"
"""


def wait(condition, what):
    return asking.wait(condition, what, PATIENCE, 0.02)


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


def schedule(machines, tick, notice):
    """[(time, what, machine)] of all comings, notices and goings; `machines`: how many there are at each tick."""
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
    order = {"go": 0, "come": 1, "notice": 2}
    return sorted(events, key=lambda e: (e[0], order[e[1]], -e[2]))


class Machines:
    """Machine k is host k + 1."""

    def __init__(self, count, folder):
        self.hosts, self.locks, self.held = emulated.Hosts(count + 1), folder, {}
        self.spaces = [os.stat(f"/proc/{name}/ns/net").st_ino for name in self.hosts.names]

    def launcher(self):
        """The lock is the launcher command's own, not that of what it starts."""
        return f"flock --shared --close {self.locks}/{{host}} {emulated.LAUNCHER}"

    def processes(self, machine):
        for entry in os.listdir("/proc"):
            try:
                if (entry.isdigit() and entry not in self.hosts.names
                        and os.stat(f"/proc/{entry}/ns/net").st_ino == self.spaces[machine + 1]):
                    yield int(entry), pathlib.Path("/proc", entry, "cmdline").read_bytes()
            except OSError:  # gone
                continue

    def signal(self, machine, number, part=b""):
        for pid, words in self.processes(machine):
            if part in words:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass

    def notice(self, machine):
        self.signal(machine, signal.SIGTERM, b"host-agent")

    def go(self, machine):
        self.hosts.cut(machine + 1)
        lock = open(self.locks / self.hosts.names[machine + 1], "w")
        while True:  # a launcher command may just have begun another agent
            self.signal(machine, signal.SIGKILL)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
        self.signal(machine, signal.SIGKILL)
        self.held[machine] = lock

    def come(self, machine):
        self.hosts.restore(machine + 1)
        self.held.pop(machine).close()

    def end(self):
        for machine in range(-1, len(self.spaces) - 1):  # also launcher commands that wait at home
            self.signal(machine, signal.SIGKILL)
        for lock in self.held.values():
            lock.close()
        self.hosts.end()


class Market:
    """A service whose machines are those of the trace, with its jobs."""

    def __init__(self, args, machines, step, every, notice, there):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-spot-"))
        self.log = open(self.folder / "log", "w")
        (self.folder / "locks").mkdir()
        self.ductile, self.service, self.jobs = str(args.build / "bin" / "ductile"), None, {}
        self.machines = Machines(machines, self.folder / "locks")
        try:
            self.begin(args, machines, step, every, notice, there)
        except BaseException:
            self.end()
            raise

    def begin(self, args, machines, step, every, notice, there):
        for machine in range(there, machines):
            self.machines.go(machine)
        names = self.machines.hosts.names[1:]
        (self.folder / "cluster.toml").write_text(
            f'[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = {json.dumps(names)}\nnotice = "{notice:g} s"\n'
            f"addresses = {json.dumps([emulated.address(h + 1) for h in range(machines)])}\n")
        job, environment = JOB.format(every=every), dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
        if args.worker == "torch":
            job = REAL.format(library=args.build / "bench" / "libpaced_model.so") + job
            environment["PACE_MS"] = str(1000 * step * machines / BATCH)
        else:
            worker = args.build / "src" / "ductile" / "server" / "ductile_test_worker"
            environment |= {"DUCTILE_WORKER": str(worker), "DUCTILE_TEST_STEP_MS": "0", "DUCTILE_TEST_BEAT_MS": "200",
                            "DUCTILE_TEST_WORK_MS": str(1000 * step * machines),
                            "DUCTILE_TEST_START_MS": str(1000 * args.start)}
        (self.folder / "service").mkdir()
        words = [self.ductile, "server", str(self.folder / "cluster.toml"), "--launcher", self.machines.launcher(),
                 "--listen", emulated.address(0), "--policy", args.policy, "--grace", "1", "--no-page", "--folder",
                 str(self.folder / "service")]
        self.service = subprocess.Popen(self.machines.hosts.at_home(words), stdout=self.log, stderr=self.log,
                                        env=environment)
        wait(lambda: self.up() >= there, f"{there} machines; see {self.log.name}")
        for i in range(args.jobs):
            body = {"name": f"job-{i}", "min_devices": 1, "max_devices": machines, "spec": {"job": job}}
            number = json.loads(self.ask("POST", "/v1/jobs", body))["id"]
            self.jobs[number] = self.folder / "service" / "runs" / f"{number}-job-{i}"

    def ask(self, *words):
        status, text = ask(UnixConnection(self.folder / "service" / "api.sock"), *words)
        assert status in (200, 201), text
        return text

    def nodes(self):
        return json.loads(self.ask("GET", "/v1/nodes"))["nodes"]

    def up(self):
        try:
            return sum(node["state"] == "up" for node in self.nodes())
        except OSError:
            return 0

    def holdings(self):
        """{job: its machines}."""
        held = {}
        for machine, node in enumerate(self.nodes()):
            for job in node["jobs"]:
                held.setdefault(job["job"], set()).add(machine)
        return held

    def status(self, run):
        done = subprocess.run([self.ductile, "status", str(run), "--json"], capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def steps(self, run):
        """Committed, as the job's controller says; where it has none now, as its last checkpoint says."""
        status = self.status(run)
        if status and "step" in status:
            return status["step"]
        return self.saved(run)

    @staticmethod
    def saved(run):
        """The step of the newest checkpoint, of the run's events."""
        last = 0
        for line in (run / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event.get("event") == "checkpoint" and event["text"].startswith("of step "):
                last = int(event["text"].split()[2])
        return last

    def kill_workers(self, job):
        name = os.fsencode(str(self.jobs[job]))
        for machine in range(len(self.machines.spaces) - 1):
            self.machines.signal(machine, signal.SIGKILL, b"--run\0" + name + b"\0")

    def end(self):
        if self.service:
            self.service.kill()
            self.service.wait()
        self.machines.end()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Restarts:
    """The rival: each change of a job's machines kills all of its workers."""

    def __init__(self, market):
        self.market, self.gone, self.known, self.count = market, set(), market.holdings(), 0
        self.lock, self.over = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def go(self, machine):
        """The workers of its jobs die first, and the service learns of each: so it need not wait until those on a
        machine that is gone have certainly given up."""
        with self.lock:
            self.gone.add(machine)
            for job, machines in self.known.items():
                if machine in machines:
                    machines.discard(machine)
                    self.restart(job)
        time.sleep(0.05)  # less than a worker's place stays empty

    def come(self, machine):
        with self.lock:
            self.gone.discard(machine)

    def restart(self, job):
        self.count += 1
        self.market.kill_workers(job)

    def follow(self):
        while not self.over.wait(0.1):
            try:
                now = self.market.holdings()
            except OSError:
                continue
            with self.lock:
                for job in self.market.jobs:
                    machines = now.get(job, set()) - self.gone
                    before = self.known.get(job, set())
                    self.known[job] = machines
                    if before and machines and machines != before:
                        self.restart(job)

    def end(self):
        self.over.set()
        self.thread.join()


def play(args, trace, which, every, rival):
    """Goodput of a part of the trace, and what led to it."""
    tick = trace.gap / args.speed
    ticks = max(2, round(60 * args.minutes / tick))
    first = window(trace, ticks, which)
    machines = trace.data[first:first + ticks]
    notice = args.notice / args.speed
    market = Market(args, max(machines), args.step, every, notice, machines[0])
    restarts = None
    try:
        begun = min(args.jobs, machines[0])
        wait(lambda: sum((market.status(run) or {}).get("step", 0) >= 2 for run in market.jobs.values()) >= begun,
             "first steps")
        restarts = Restarts(market) if rival else None
        begin, late = time.monotonic(), 0.0
        before = sum(market.steps(run) if (run / "events.jsonl").exists() else 0 for run in market.jobs.values())
        for when, what, machine in schedule(machines, tick, notice):
            time.sleep(max(0.0, begin + when - time.monotonic()))
            late = max(late, time.monotonic() - begin - when)
            if what == "notice":
                if not rival:
                    market.machines.notice(machine)
                continue
            if restarts:
                getattr(restarts, what)(machine)
            getattr(market.machines, what)(machine)
        time.sleep(max(0.0, begin + tick * len(machines) - time.monotonic()))
        runs = [run for run in market.jobs.values() if (run / "events.jsonl").exists()]
        told = [market.steps(run) for run in runs]
        if restarts:
            restarts.end()
        for job in market.jobs:  # what they have is saved; what was lost again does not count
            market.ask("POST", f"/v1/jobs/{job}/pause", {})
        wait(lambda: all(json.loads(market.ask("GET", f"/v1/jobs/{job}"))["phase"] == "paused" for job in market.jobs),
             "the end of the jobs")
        done = sum(min(t, market.saved(run)) for t, run in zip(told, runs)) - before
        seconds = sum(machines) * tick
        return {"goodput": done * args.step * max(machines) / seconds, "steps": done, "machine_seconds": seconds,
                "changes": sum(abs(b - a) for a, b in zip(machines, machines[1:])), "first_tick": first,
                "ticks": ticks, "most": max(machines), "restarts": restarts.count if restarts else 0, "late": late}
    finally:
        if restarts:
            restarts.end()
        market.end()


def in_live(args, traces):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    try:
        emulated.Hosts(1).end()
    except unittest.SkipTest as error:
        sys.exit(f"live: {error}")
    args.build = args.build.resolve()
    done = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    rows = []
    for trace in traces:
        for which in args.windows.split(","):
            found = {}
            for n in range(args.rounds):
                for who, every, rival in [("ours", args.every[0], False), *((f"rival, every {e} steps", e, True)
                                                                            for e in args.every)]:
                    key = " ".join(str(w) for w in (trace.name, which, who, n, args.minutes, args.speed, args.step,
                                                    args.start, args.jobs, args.policy, args.worker))
                    if key not in done:
                        done[key] = play(args, trace, which, every, rival)
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
    rivals = [f"rival, every {e} steps" for e in args.every]
    print(f"\nload average {os.getloadavg()[0]:.1f}; command: {' '.join(sys.argv)}\n")
    print("| trace | part | machines, changes | ours | " + " | ".join(f"{r} (restarts)" for r in rivals) +
          " | ours / best rival |\n" + "|---" * (5 + len(rivals)) + "|")
    for trace, which, found in rows:
        of = found["ours"][0]
        best = max(sorted(r["goodput"] for r in found[rival])[len(found[rival]) // 2] for rival in rivals)
        middle = sorted(r["goodput"] for r in found["ours"])[len(found["ours"]) // 2]
        print(f"| {trace.name} | {which}: from tick {of['first_tick']}, {of['ticks']} ticks | up to {of['most']}, "
              f"{of['changes']} | {spread(found['ours'])} | " +
              " | ".join(f"{spread(found[r])} ({found[r][0]['restarts']})" for r in rivals) +
              f" | {middle / best if best else float('inf'):.2f} |")
