#!/usr/bin/python3
"""Workers of a service, which are forked: the bits of those that are started, and nobody is lost, doubled or left.

Usage: tests/service/start_test.py BUILD
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
DUCTILE, WORKER = BUILD / "bin" / "ductile", BUILD / "bin" / "ductile-worker"
PATIENCE = 120
JOB = """[data]
format = "digits"
[model]
name = "mlp"
[train]
epochs = 1000000
max_steps = 4000
virtual_ranks = 2
eval_every_epochs = 0
log_every = 10
threads = 1
"""


def until(condition, what, patience=PATIENCE):
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {patience} s: {what}")
        time.sleep(0.01)


def lines(file):
    try:
        return [json.loads(line) for line in file.read_text().splitlines()]
    except (OSError, ValueError):  # a line that is just written
        return []


def step_of(run):
    return max((line.get("step", 0) for line in lines(run / "metrics.jsonl")), default=0)


def digest_of(run):
    return [line["digest"] for line in lines(run / "events.jsonl") if line.get("kind") == "end"][-1]


def title(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return [""]


def state(pid):
    """Its letter and its parent; a process that has gone has none."""
    try:
        words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[1])
    except OSError:
        return "", 0


def processes():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def workers_of(run):
    return [pid for pid in processes() if str(run) in title(pid) and "--worker" in title(pid)]


def zygotes_of(parent):
    return [pid for pid in processes() if state(pid)[1] == parent and title(pid) == ["ductile zygote"]]


def place_of_torch(pid):
    """Where a process has libtorch: each process that was not forked has it elsewhere."""
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "libtorch_cpu" in line:
            return line.split("-")[0]
    return ""


class Service:
    def __init__(self, folder, *words, zygote=True, worker=WORKER):
        self.folder = folder
        self.words = [str(DUCTILE), *(words or ("up", "--devices", "2")), "--folder", str(folder), "--no-page"]
        self.environment = dict(os.environ, DUCTILE_ZYGOTE="on" if zygote else "off", DUCTILE_WORKER=str(worker))
        self.log = open(folder.parent / "log", "a")
        (folder.parent / "job.toml").write_text(JOB)
        folder.mkdir(exist_ok=True)
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, stdout=self.log, stderr=self.log, env=self.environment)
        until(lambda: self.ask("jobs").returncode == 0, f"a service; see {self.log.name}")

    def ask(self, *words):
        return subprocess.run([str(DUCTILE), "-q", *words, "--folder", str(self.folder)], capture_output=True, text=True)

    def do(self, *words):
        done = self.ask(*words)
        if done.returncode:
            raise AssertionError(f"ductile {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def submit(self, name="one"):
        number = self.do("submit", str(self.folder.parent / "job.toml"), "--name", name, "--max", "1")
        return self.folder / "runs" / f"{number}-{name}"

    def worker_at_work(self, run, *others):
        """Its job is long enough for what a test does to it; one that was not says so."""

        def found():
            if any(line.get("kind") == "end" for line in lines(run / "events.jsonl")):
                raise AssertionError(f"{run} ended too early: its job has too few steps for this machine")
            return step_of(run) >= 20 and [w for w in workers_of(run) if w not in others]

        worker, = until(found, f"a worker of {run}")
        return worker

    def finished(self, run):
        until(lambda: any(line.get("kind") == "end" for line in lines(run / "events.jsonl")), f"the end of {run}")
        until(lambda: not workers_of(run), f"the end of the workers of {run}")
        return digest_of(run)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)
        self.log.close()


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The bits of the job alone."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-alone-"))
        (folder / "job.toml").write_text(JOB)
        subprocess.run([str(DUCTILE), "-q", "train", str(folder / "job.toml"), "--out", str(folder / "run")], check=True,
                       capture_output=True)
        cls.alone = digest_of(folder / "run")
        shutil.rmtree(folder)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-start-"))
        self.zygotes = []
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(self.nothing_is_left)

    def nothing_is_left(self):
        left = [pid for pid in processes() if any(str(self.folder) in word for word in title(pid))]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [])
        until(lambda: all(state(pid)[0] in ("", "Z") for pid in self.zygotes), f"the end of {self.zygotes}")

    def service(self, *words, **how):
        service = Service(self.folder / "service", *words, **how)
        self.addCleanup(service.stop)
        return service

    def zygote(self, parent):
        found = until(lambda: zygotes_of(parent), "a zygote")[0]
        self.zygotes.append(found)
        return found

    def is_forked(self, worker, zygote):
        return place_of_torch(worker) == place_of_torch(zygote)

    def test_a_forked_worker_computes_the_bits_of_one_that_is_started(self):
        service = self.service()
        zygote, run = self.zygote(service.process.pid), service.submit()
        worker = service.worker_at_work(run)
        self.assertTrue(self.is_forked(worker, zygote))
        self.assertEqual((state(worker)[1], os.getpgid(worker)), (service.process.pid, worker))
        self.assertEqual(service.finished(run), self.alone)
        service.stop()
        self.assertEqual(state(zygote)[0], "")

    def test_the_speed_of_a_job_of_seconds_is_known(self):
        """It is over before its service decides again."""
        service = self.service()
        service.finished(service.submit("short"))
        until(lambda: service.ask("jobs", "--phase", "finished", "--json").stdout.find("short") >= 0, "the end of the job")
        told = [json.loads(line) for line in service.do("events", "short", "--json").splitlines()]
        speeds = [e["body"]["samples_per_second"] for e in told if e["kind"] == "speed"]
        self.assertTrue(speeds, told)
        self.assertGreater(min(speeds), 0)

    def test_without_a_zygote_workers_are_started(self):
        service = self.service(zygote=False)
        run = service.submit()
        service.worker_at_work(run)
        self.assertEqual(zygotes_of(service.process.pid), [])
        self.assertEqual(service.finished(run), self.alone)

    def test_a_worker_that_is_killed_is_told_of_and_replaced(self):
        service = self.service()
        zygote, run = self.zygote(service.process.pid), service.submit()
        worker = service.worker_at_work(run)
        os.kill(worker, signal.SIGKILL)
        other = service.worker_at_work(run, worker)
        self.assertTrue(self.is_forked(other, zygote))
        self.assertEqual(service.finished(run), self.alone)
        self.assertIn("was killed by SIGKILL", (run / "events.jsonl").read_text())

    def test_a_zygote_that_is_killed_is_replaced(self):
        service = self.service()
        zygote = self.zygote(service.process.pid)
        first = service.submit("first")
        self.assertTrue(self.is_forked(service.worker_at_work(first), zygote))
        os.kill(zygote, signal.SIGKILL)
        second = service.submit("second")
        self.assertEqual(service.finished(second), self.alone)
        other = self.zygote(service.process.pid)
        self.assertNotEqual(other, zygote)
        third = service.submit("third")
        self.assertTrue(self.is_forked(service.worker_at_work(third), other))

    def test_a_zygote_that_is_stopped_is_passed_by_and_killed(self):
        service = self.service()
        zygote = self.zygote(service.process.pid)
        os.kill(zygote, signal.SIGSTOP)
        run = service.submit()
        service.worker_at_work(run)
        self.assertEqual(state(zygote)[0], "")
        self.assertEqual(service.finished(run), self.alone)

    def test_a_program_that_is_replaced_is_the_one_that_is_run(self):
        (self.folder / "bin").mkdir()
        program = self.folder / "bin" / "ductile-worker"
        shutil.copy(WORKER, program)
        service = self.service(worker=program)
        zygote = self.zygote(service.process.pid)
        shutil.copy(WORKER, self.folder / "bin" / "newer")
        os.rename(self.folder / "bin" / "newer", program)
        run = service.submit()
        worker = service.worker_at_work(run)
        self.assertEqual(os.readlink(f"/proc/{worker}/exe"), str(program))  # of the other it ends in "(deleted)"
        self.assertEqual(state(zygote)[0], "")
        self.assertEqual(service.finished(run), self.alone)

    def test_a_service_that_is_killed_leaves_its_workers_alone(self):
        service = self.service()
        zygote, run = self.zygote(service.process.pid), service.submit()
        worker = service.worker_at_work(run)
        os.kill(zygote, signal.SIGSTOP)
        service.process.kill()
        service.process.wait()
        until(lambda: state(zygote)[0] in ("", "Z"), "the end of a zygote that is stopped")
        self.assertNotIn(state(worker)[0], ("", "Z"))
        service.start()
        self.assertEqual(service.finished(run), self.alone)
        self.assertNotIn("lost", [line.get("event") for line in lines(run / "events.jsonl")])

    def test_the_agents_of_nodes_fork_workers_also_of_a_job_that_moves(self):
        (self.folder / "cluster.toml").write_text(
            '[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = ["one", "two"]\naddresses = ["127.0.0.1", "127.0.0.1"]\n')
        service = self.service("server", str(self.folder / "cluster.toml"), "--launcher", "env NODE={host}", "--listen",
                               "127.0.0.1")
        agents = [pid for pid in processes() if state(pid)[1] == service.process.pid and "host-agent" in title(pid)]
        for agent in agents:
            self.zygote(agent)
        run = service.submit()
        first = service.worker_at_work(run)
        agent = state(first)[1]
        self.assertIn(agent, agents)
        self.assertTrue(self.is_forked(first, self.zygote(agent)))
        busy, = [n["node"] for n in json.loads(service.do("nodes", "--json")) if n["free"] < n["devices"]]
        service.do("drain", busy)
        second = service.worker_at_work(run, first)
        self.assertNotEqual(state(second)[1], agent)
        self.assertTrue(self.is_forked(second, self.zygote(state(second)[1])))
        zygote = self.zygote(agent)
        os.kill(agent, signal.SIGKILL)
        until(lambda: state(zygote)[0] in ("", "Z"), "the end of an agent's zygote")
        self.assertEqual(service.finished(run), self.alone)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
