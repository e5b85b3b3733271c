"""What the tests of Python jobs share: runs of `ductile train`, and processes to be killed."""

import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ["DUCTILE_BUILD"]
DUCTILE = os.path.join(BUILD, "bin", "ductile")
HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = os.environ.get("DUCTILE_TEST_PYTHON", "/usr/bin/python3")


PATIENCE = 1800 if os.environ.get("DUCTILE_ALL_SIZES") else 300  # seconds, for a run

_quiet = {}  # runs that tests share


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ductile-python-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def command(self, *words, job="blobs.py:Job", args=(), sets=()):
        out = ["train", os.path.join(HERE, job), "--json", "--set", f"python.interpreter={PYTHON}", *words]
        for option in sets:
            out += ["--set", option]
        return [DUCTILE, *out, "--", *map(str, args)]

    def out(self, name):
        return os.path.join(self.folder, name)

    def train(self, name, workers=1, **how):
        done = subprocess.run(self.command("--out", self.out(name), "--workers", str(workers), **how),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + log_of(self.out(name)))
        return json.loads(done.stdout)["result"]

    def quiet(self, workers=2, **how):
        """(folder, result) of a run that nothing disturbs; it is trained once for all tests."""
        how = {"job": "blobs.py:Job", **how}
        key = json.dumps([workers, how], sort_keys=True)
        if key not in _quiet:
            folder = tempfile.mkdtemp(prefix="ductile-python-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            run = os.path.join(folder, "run")
            _quiet[key] = run, self.train(run, workers, **how)
        return _quiet[key]

    def refused(self, *words, code, **how):
        """The text of the error of a run that does not get through."""
        done = subprocess.run(self.command(*words, **how), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def start(self, name, workers=1, **how):
        process = subprocess.Popen(self.command("--out", self.out(name), "--workers", str(workers), **how),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(end, process)
        return process

    def finished(self, process, name):
        out, err = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 0, out + err + log_of(self.out(name)))
        return json.loads(out)["result"]

    def wait_for_step(self, name, step):
        wait(lambda: last_step(self.out(name)) >= step, f"step {step} of {name}: {log_of(self.out(name))}")


def end(process):
    if process.poll() is None:
        process.kill()
    process.communicate()


def wait(condition, what, seconds=0.4 * PATIENCE):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def log_of(run):
    try:
        with open(os.path.join(run, "worker.log"), errors="replace") as file:
            return file.read()[-4000:]
    except OSError:
        return ""


def lines(run, name):
    try:
        with open(os.path.join(run, name)) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return []


def last_step(run):
    return max((line.get("step", -1) for line in lines(run, "metrics.jsonl")), default=-1)


def processes(*words):
    """The numbers of the processes whose command lines hold all of these."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                command = file.read().decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(entry))
    return found


def workers_of(run):
    return [pid for pid in processes("ductile.worker", "--worker", run) if pid != os.getpid()]


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
