"""`ductile tune` of Python jobs: trials of Ductile's rules, and refusals where the rule is the job's own."""

import json
import os
import subprocess
import unittest

import support
from support import Case


class Tune(Case):
    def tune(self, job, *words, space=None, code=0):
        if space is not None:
            with open(self.out("space.toml"), "w") as file:
                file.write(space)
            words = ("--space", self.out("space.toml"), *words)
        done = subprocess.run([support.DUCTILE, "-q", "tune", os.path.join(support.HERE, job), "--json", "--out",
                               self.out("tuned"), "--set", f"python.interpreter={support.PYTHON}", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def test_finds_options_of_one_of_our_rules(self):
        told = self.tune("given.py:Job", "--tune", "at_once=1", "--tune", "policy=full", "--tune", "searcher=grid",
                         "--tune", "budget=4", space="[space.\"optimizer.lr\"]\nchoices = [1e-9, 0.1]\n")
        self.assertEqual(told["status"], "done")
        self.assertEqual(told["trials"], 2)
        self.assertEqual(told["best"]["values"], {"optimizer.lr": 0.1})
        again = subprocess.run([support.DUCTILE, "-q", "train", self.out("tuned/best.toml"), "--json", "--out", self.out("again")],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=support.PATIENCE)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(json.loads(again.stdout)["result"]["digest"], support.lines(told["best"]["run"], "events.jsonl")[-1]["digest"])

    def test_refuses_to_vary_what_the_jobs_own_optimizer_says(self):
        self.assertIn("name other options with --space FILE", self.tune("given.py:Tuned", code=2))
        said = self.tune("given.py:Tuned", space="[space.\"optimizer.lr\"]\nlow = 0.01\nhigh = 1.0\n", code=2)
        self.assertIn("optimizer() of its own", said)
        self.assertFalse(os.path.exists(self.out("tuned")))

    def test_varies_other_options_beside_the_jobs_own_optimizer(self):
        told = self.tune("given.py:Tuned", "--tune", "at_once=1", "--tune", "policy=full", "--tune", "searcher=grid",
                         "--tune", "budget=4", "--tune", "finish=false", space="[space.\"train.batch_size\"]\nchoices = [16, 32]\n")
        self.assertEqual(told["trials"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
