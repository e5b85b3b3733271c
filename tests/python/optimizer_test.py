"""A job's own optimiser and scheduler, of torch.optim: whatever happens to its workers, the same bits."""

import json
import os
import signal
import subprocess
import unittest

import support
from support import Case, kill, lines, workers_of


class Optimizer(Case):
    """Of the job's own, with a scheduler: tests/python/blobs.py."""

    def test_gives_the_weights_of_a_loop_written_out(self):
        run, _ = self.quiet(1, job="blobs.py:Tuned")
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(support.BUILD, "python"), support.HERE]))
        done = subprocess.run([support.PYTHON, "-c", "import twin; twin.main(True)", run], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 2e-4)  # after 40 steps of up to 0.02
        rates = [m["lr"] for m in lines(run, "metrics.jsonl") if "lr" in m]
        self.assertEqual(len(set(rates)), len(rates), rates)  # the scheduler's

    def test_is_the_same_on_all_workers_and_in_a_loop(self):
        _, alone = self.quiet(1, job="blobs.py:Tuned")
        result = self.quiet(2, job="loop.py", args=("--fault", "tuned"))[1]
        self.assertEqual(result["digest"], alone["digest"])
        self.assertEqual(result["weights_digest"], alone["weights_digest"])

    def test_survives_kills_and_a_resume(self):
        """With a rule whose state is of many kinds: a joiner and a resumed run have all of it."""
        how = {"job": "blobs.py:Tuned"}
        _, quiet = self.quiet(1, args=("--fault", "nudged"), **how)
        process = self.start("killed", 2, args=("--fault", "nudged", "--slow", 0.03), **how)
        for step in (5, 15):
            self.wait_for_step("killed", step)
            kill(workers_of(self.out("killed"))[0])
        self.wait_for_step("killed", 25)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        done = subprocess.run([support.DUCTILE, "train", "--resume", self.out("killed"), "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["result"]["digest"], quiet["digest"])

    def test_refuses_options_that_contradict_it(self):
        self.assertIn("optimizer.lr (--set) says nothing", self.refused("--set", "optimizer.lr=0.1", job="blobs.py:Tuned", code=2))
        self.assertIn("this job's class has no optimizer()", self.refused("--set", "optimizer.name=python", code=2))


if __name__ == "__main__":
    unittest.main()
