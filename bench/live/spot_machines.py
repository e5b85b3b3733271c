"""Emulated machines of a spot market, and what all markets on them have: jobs, their steps, their checkpoints."""
import concurrent.futures
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "bench" / "service")]
sys.dont_write_bytecode = True
import asking  # noqa: E402
import emulated  # noqa: E402

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


def at_once(call, items):
    with concurrent.futures.ThreadPoolExecutor(max(1, len(items))) as pool:
        list(pool.map(call, items))


class Machines:
    """Machine k is host k + 1."""

    def __init__(self, count, folder):
        self.hosts, self.locks, self.held = emulated.Hosts(count + 1), folder, {}
        self.spaces = [os.stat(f"/proc/{name}/ns/net").st_ino for name in self.hosts.names]

    def launcher(self):
        """The lock is the launcher command's own, not that of what it starts."""
        return f"flock --shared --close {self.locks}/{{host}} {emulated.LAUNCHER}"

    def processes(self, machines):
        """All on these machines, of one look at this computer's processes."""
        spaces = {self.spaces[machine + 1] for machine in machines}
        for entry in os.listdir("/proc"):
            try:
                if (entry.isdigit() and entry not in self.hosts.names
                        and os.stat(f"/proc/{entry}/ns/net").st_ino in spaces):
                    yield int(entry), pathlib.Path("/proc", entry, "cmdline").read_bytes()
            except OSError:  # gone
                continue

    def signal(self, machines, number, part=b""):
        for pid, words in self.processes(machines):
            if part in words:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass

    def notice(self, machines):
        self.signal(machines, signal.SIGTERM, b"host-agent")

    def go(self, machines):
        """All at once."""
        at_once(lambda machine: self.hosts.cut(machine + 1), machines)
        self.signal(machines, signal.SIGKILL)
        left = {machine: open(self.locks / self.hosts.names[machine + 1], "w") for machine in machines}
        while left:  # a launcher command may just have begun another agent
            for machine, lock in list(left.items()):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.held[machine] = left.pop(machine)
                except BlockingIOError:
                    pass
            if left:
                self.signal(left, signal.SIGKILL)
                time.sleep(0.01)
        self.signal(machines, signal.SIGKILL)

    def come(self, machines):
        at_once(lambda machine: self.hosts.restore(machine + 1), machines)
        for machine in machines:
            self.held.pop(machine).close()

    def end(self):
        self.signal(range(-1, len(self.spaces) - 1), signal.SIGKILL)  # also launcher commands that wait at home
        for lock in self.held.values():
            lock.close()
        self.hosts.end()


class Market:
    """Machines that come and go as in the trace, and jobs on them. Whose jobs these are says the class that is made."""

    def __init__(self, args, machines, step, every, notice, there):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-spot-"))
        self.log = open(self.folder / "log", "w")
        (self.folder / "locks").mkdir()
        self.ductile, self.runs = str(args.build / "bin" / "ductile"), []
        self.environment, self.job = dict(os.environ, OMP_WAIT_POLICY="PASSIVE"), JOB.format(every=every)
        if args.worker == "torch":
            self.job = REAL.format(library=args.build / "bench" / "libpaced_model.so") + self.job
            self.environment["PACE_MS"] = str(1000 * step * machines / BATCH)
        else:
            worker = args.build / "src" / "ductile" / "server" / "ductile_test_worker"
            self.environment |= {"DUCTILE_WORKER": str(worker), "DUCTILE_TEST_STEP_MS": "0",
                                 "DUCTILE_TEST_BEAT_MS": "200", "DUCTILE_TEST_WORK_MS": str(1000 * step * machines),
                                 "DUCTILE_TEST_START_MS": str(1000 * args.start)}
        self.machines = Machines(machines, self.folder / "locks")
        try:
            self.machines.go(range(there, machines))
            self.begin(args, machines, notice, there)
        except BaseException:
            self.end()
            raise

    def status(self, run):
        done = subprocess.run([self.ductile, "status", str(run), "--json"], capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def steps(self, run):
        """Committed, as the job's controller says; where it has none now, as its last checkpoint says."""
        if not (run / "events.jsonl").exists():
            return 0
        status = self.status(run)
        return status["step"] if status and "step" in status else self.saved(run)

    @staticmethod
    def saved(run):
        """The step of the newest checkpoint, of the run's events."""
        last = 0
        for line in (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else []:
            event = json.loads(line)
            if event.get("event") == "checkpoint" and event["text"].startswith("of step "):
                last = int(event["text"].split()[2])
        return last

    def end(self):
        self.machines.end()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
