"""Trials as processes: a run directory each, resumed where it is there, and the CPU time that it takes."""
import ctypes
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import results

SAMPLE_EVERY = 0.25  # seconds between two looks at the clock of a worker
LOCK_WAIT = 150     # a run whose sweep was killed saves its state; a worker may wait two minutes
# What depends on the machine and not on the algorithm. A busy machine may stop a worker for a while.
PLACE = {"train.threads": 1, "loader.threads": 1, "checkpoint.at_end": False, "train.log_every": 1000000,
         "elastic.peer_deadline": 600}
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)
TICKS = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Place:
    runs: pathlib.Path
    data: pathlib.Path
    build: pathlib.Path
    program: str  # hash_of(build)
    at_once: int  # trials, at most


def programs_of(build):
    """Those that train."""
    return [build / "bin" / name for name in ("ductile", "ductile-worker")]


def hash_of(build):
    """The same for the same programs."""
    digest = hashlib.sha256()
    for program in programs_of(build):
        digest.update(program.read_bytes())
    return digest.hexdigest()[:12]


def as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def words_of(trial, place, run):
    """The command that begins or resumes a trial."""
    words = [str(programs_of(place.build)[0]), "-q", "train"]
    if (run / "job.toml").exists():
        return words + ["--resume", str(run)]
    words += ["--out", str(run)]
    for key, value in {**PLACE, **dict(trial.settings)}.items():
        if key in ("data.path", "data.test_path") and value:
            value = place.data / value
        words += ["--set", f"{key}={as_text(value)}"]
    return words


def children_of(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_of(pid):
    """User and system seconds of a process; None: it is gone."""
    try:
        after_name = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def is_free(lock):
    """Whether nobody controls the run any more."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False


def end_with_parent():
    """A sweep that is killed takes its trials with it; they save their states first."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Running:
    """A trial under way. A run directory that is whole already is not run again."""

    def __init__(self, trial, place):
        self.trial = trial
        self.place = place
        self.run = place.runs / trial.name
        self.process = None
        self.seen = {}  # CPU seconds by process
        self.whole = results.ended(self.run)[0] in ("done", "diverged")
        self.give_up_at = time.monotonic() + LOCK_WAIT
        self.errors = pathlib.Path(f"{self.run}.err")

    def start(self):
        # Killed before the job was in it, or stopped, and the rest would be another build's.
        if self.run.exists() and (not (self.run / "job.toml").exists() or self.is_of_another_build()):
            shutil.rmtree(self.run)
        self.run.parent.mkdir(parents=True, exist_ok=True)
        self.launch = time.time()
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                words_of(self.trial, self.place, self.run), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"), start_new_session=True,
                preexec_fn=end_with_parent)

    def is_of_another_build(self):
        return any(line.get("program") != self.place.program for line in results.lines_of(self.run / "clock.jsonl"))

    def over(self):
        if self.whole:
            return True
        if self.process is None:  # whoever controlled the run may still save its state
            if is_free(self.run / "run.lock") or time.monotonic() > self.give_up_at:
                self.start()
            return False
        self.sample()
        return self.process.poll() is not None

    def sample(self):
        for pid in children_of(self.process.pid):
            cpu = cpu_of(pid)
            if cpu is not None:
                self.seen[pid] = max(self.seen.get(pid, 0.0), cpu)
        if not self.run.is_dir():
            return
        line = {"launch": self.launch, "time": time.time(), "cpu": round(sum(self.seen.values()), 2),
                "program": self.place.program, "at_once": self.place.at_once}
        with open(self.run / "clock.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")

    def result(self):
        """(result, "") or (None, why there is none)."""
        status, _ = results.ended(self.run)
        if status in ("done", "diverged"):
            return results.result_of_run(self.trial, self.run), ""
        told = self.errors.read_text(errors="replace").strip()
        return None, f"{status}; {told or 'no message'} ({self.run})"

    def ask_to_stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self):
        if self.process:
            self.process.wait()
