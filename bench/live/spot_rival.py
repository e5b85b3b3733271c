"""The rivals of a spot market: gangs that restart from checkpoints, as elastic launchers do.

Each job has its own part of the machines (machine k belongs to job k modulo their number) and runs as
`ductile train --hosts` on those of them that are there. A gang is told of all that happens in one instant at once, and
waits for --settle seconds, in which it goes on with what it holds, whether more happens. Then one change ends all of
the job's processes, and new ones start at once, without a pause after failures. Told: the job saves when a machine's
going is announced or one comes, so it loses no step (where --settle is shorter than the notice). Killed: nobody tells
it, so it goes on from its last periodic checkpoint where a machine went; for one that came it saves. What --settle is
best for a rival depends on the trace and on the notice: give several.
"""
import signal
import subprocess
import threading
import time

import emulated
from spot_machines import Market  # noqa: E402

GRACE = 5  # seconds until a gang that was asked to save and end is killed


class Gang(threading.Thread):
    """One job. Its thread starts it on the machines that are wanted, and again whenever these are others."""

    def __init__(self, market, number):
        super().__init__(daemon=True)
        self.market, self.number, self.run_folder = market, number, market.folder / f"job-{number}"
        self.wanted, self.held, self.process, self.over, self.starts = set(), set(), None, False, 0
        self.changed = threading.Condition()

    def want(self, machines, there):
        with self.changed:
            (self.wanted.update if there else self.wanted.difference_update)(machines)
            self.changed.notify()

    def kill(self):
        """All of it, at once."""
        with self.changed:
            if self.process:
                self.process.kill()
            self.market.machines.signal(self.held, signal.SIGKILL)

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.over or self.wanted != self.held or self.ended(), 0.1)
                if not (self.over or self.wanted != self.held or self.ended()):
                    continue
                self.changed.wait_for(lambda: self.over, self.market.settle if self.starts else 0)
                if not (self.over or self.wanted != self.held or self.ended()):
                    continue  # what went came back
            self.save_and_end()
            with self.changed:
                if self.over:
                    return
                self.held = set(self.wanted)
                if self.held:
                    self.start_process()

    def ended(self):
        return self.process is not None and self.process.poll() is not None

    def save_and_end(self):
        if not self.process:
            return
        try:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self.process = None

    def start_process(self):
        market, hosts = self.market, self.market.machines.hosts
        if (self.run_folder / "events.jsonl").exists():
            words = ["--resume", str(self.run_folder)]
        else:
            words = [str(market.folder / "job.toml"), "--out", str(self.run_folder)]
        places = ",".join(f"{hosts.names[m + 1]}={emulated.address(m + 1)}:1" for m in sorted(self.held))
        words += ["--hosts", places, "--launcher", market.machines.launcher(), "--listen", emulated.address(0)]
        self.process = subprocess.Popen(hosts.at_home([market.ductile, "-q", "train", *words]), stdout=market.log,
                                        stderr=market.log, env=market.environment)
        self.starts += 1


class Told(Market):
    """Everybody saves before a machine goes."""

    settle = 1.0  # seconds from the first sign of a change to the change

    def begin(self, args, machines, notice, there):
        (self.folder / "job.toml").write_text(self.job)
        self.gangs = [Gang(self, number) for number in range(args.jobs)]
        self.runs = [gang.run_folder for gang in self.gangs]
        self.want(range(there), True)
        for gang in self.gangs:
            gang.start()

    @property
    def starts(self):
        return sum(gang.starts for gang in self.gangs)

    def used(self):
        return sum(len(gang.held) for gang in self.gangs)

    def shares(self, machines):
        """(gang, those of the machines that are its own), of the gangs that have any."""
        for i, gang in enumerate(self.gangs):
            if own := {machine for machine in machines if machine % len(self.gangs) == i}:
                yield gang, own

    def want(self, machines, there):
        for gang, own in self.shares(machines):
            gang.want(own, there)

    def notice(self, machines):
        self.want(machines, False)

    def go(self, machines):
        self.want(machines, False)
        self.machines.go(machines)

    def come(self, machines):
        self.machines.come(machines)
        self.want(machines, True)

    def save(self):
        for gang in self.gangs:
            with gang.changed:
                gang.over = True
                gang.changed.notify()
        for gang in self.gangs:
            gang.join()

    def end(self):
        for gang in getattr(self, "gangs", []):
            gang.over = True
            gang.kill()
        for gang in getattr(self, "gangs", []):
            if gang.is_alive():
                gang.join()
        super().end()


class Killed(Told):
    """Machines go without a word, and with one all of its job."""

    def notice(self, machines):
        pass

    def go(self, machines):
        for gang, own in self.shares(machines):
            if own & gang.held:
                gang.kill()
        super().go(machines)
