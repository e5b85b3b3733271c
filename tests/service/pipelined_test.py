#!/usr/bin/python3
"""A job by stages in a service: it grows and shrinks by whole pipelines, with the bits of the job alone.

Usage: tests/service/pipelined_test.py BUILD
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from start_test import DUCTILE, Service, digest_of, step_of, until

# Two pipelines of two stages.
JOB = """[data]
format = "digits"
[model]
name = "mlp"
[train]
method = "pipelined"
epochs = 1000000
max_steps = 3000
virtual_ranks = 4
eval_every_epochs = 0
log_every = 10
threads = 1
[train.pipelined]
replicas = 2
"""


def job_of(service, number):
    """What `ductile why` knows of it."""
    known = json.loads(service.do("why", number, "--json"))
    return known[0] if isinstance(known, list) else known


def numbers_held(service, number):
    """Of devices, each that it ever had."""
    events = map(json.loads, service.do("events", number, "--json", "--lines", "1000").splitlines())
    return {sum(event["body"]["nodes"].values()) for event in events if event["kind"] == "allocation"}


class Pipelined(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-pipelined-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def alone(self):
        run = self.folder / "alone"
        subprocess.run([str(DUCTILE), "-q", "train", str(self.folder / "job.toml"), "--out", str(run)], check=True,
                       capture_output=True)
        return digest_of(run)

    def service(self):
        service = Service(self.folder / "service", "up", "--devices", "4", zygote=False)
        self.addCleanup(service.stop)
        (self.folder / "job.toml").write_text(JOB)
        return service

    def test_it_shrinks_and_grows_by_whole_pipelines(self):
        service = self.service()
        number = service.do("submit", str(self.folder / "job.toml"), "--name", "staged", "--min", "4")
        run = self.folder / "service" / "runs" / f"{number}-staged"

        def devices():
            return sum(job_of(service, number)["holdings"].values())

        def steps(more):
            """So many with what it holds."""
            begin = step_of(run)
            until(lambda: step_of(run) >= begin + more, f"steps of {run}")

        until(lambda: devices() == 4, "both pipelines")
        steps(20)
        service.do("resize", number, "--min", "1", "--max", "3")
        until(lambda: devices() == 2, "one pipeline")
        self.assertIn("room for 1 of its 2 pipelines of 2 devices", job_of(service, number)["why"])
        steps(20)
        service.do("resize", number, "--min", "3", "--max", "4")
        until(lambda: devices() == 4, "both pipelines again")
        steps(20)
        self.assertLessEqual(numbers_held(service, number), {2, 4})
        service.do("resize", number, "--min", "1", "--max", "1")
        until(lambda: devices() == 1, "stages that take turns")
        self.assertIn("its stages take turns", job_of(service, number)["why"])
        self.assertEqual(service.finished(run), self.alone())


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
