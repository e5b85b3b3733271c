"""The rivals of a spot market: gangs that restart from checkpoints, as elastic launchers do.

Each job has its own part of the machines (machine k belongs to job k modulo their number) and runs as
`ductile train --hosts` on those of them that are there. A change ends all of the job's processes, and new ones start
at once, without a pause after failures. Told: the job saves when a machine's going is announced or one comes, so it
loses no step. Killed: nobody tells it, so it goes on from its last periodic checkpoint where a machine went; for one
that came it saves.
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

    def want(self, machine, there):
        with self.changed:
            (self.wanted.add if there else self.wanted.discard)(machine)
            self.changed.notify()

    def kill(self):
        """All of it, at once."""
        with self.changed:
            if self.process:
                self.process.kill()
            for machine in self.held:
                self.market.machines.signal(machine, signal.SIGKILL)

    def run(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.over or self.wanted != self.held or self.ended(), 0.1)
                if not (self.over or self.wanted != self.held or self.ended()):
                    continue
            time.sleep(0.03)  # what happens at the same time is one change
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

    def begin(self, args, machines, notice, there):
        (self.folder / "job.toml").write_text(self.job)
        self.gangs = [Gang(self, number) for number in range(args.jobs)]
        self.runs = [gang.run_folder for gang in self.gangs]
        for machine in range(there):
            self.owner(machine).want(machine, True)
        for gang in self.gangs:
            gang.start()

    @property
    def starts(self):
        return sum(gang.starts for gang in self.gangs)

    def used(self):
        return sum(len(gang.held) for gang in self.gangs)

    def owner(self, machine):
        return self.gangs[machine % len(self.gangs)]

    def notice(self, machine):
        self.owner(machine).want(machine, False)

    def go(self, machine):
        self.owner(machine).want(machine, False)
        self.machines.go(machine)

    def come(self, machine):
        self.machines.come(machine)
        self.owner(machine).want(machine, True)

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

    def notice(self, machine):
        pass

    def go(self, machine):
        gang = self.owner(machine)
        if machine in gang.held:
            gang.kill()
        super().go(machine)
