"""Python jobs whose samples are chosen by their losses (train.method), or drawn by probes of the loss."""

import json
import os
import signal
import subprocess
import unittest

import support
from support import Case, kill, lines, workers_of

METHODS = ("infobatch", "graded", "selective", "stale_selective")
JOB = "chosen.py:Job"


def method(name, *more):
    return (f"train.method={name}", *more)


class Chosen(Case):
    def recorded(self, name, **how):
        """(run directory, result, what a run of one worker has run)."""
        record = self.out(name + ".record")
        os.environ["DUCTILE_TEST_RECORD"] = record
        try:
            result = self.train(name, job=JOB, **how)
        finally:
            del os.environ["DUCTILE_TEST_RECORD"]
        with open(record) as file:
            return self.out(name), result, [json.loads(line) for line in file]

    def test_has_the_same_bits_for_all_workers_data_processes_and_loops(self):
        for name in METHODS if os.environ.get("DUCTILE_ALL_SIZES") else ("infobatch", "selective"):
            with self.subTest(method=name):
                one = self.quiet(1, job=JOB, sets=method(name))[1]
                three = self.quiet(3, job=JOB, sets=method(name), args=("--processes", 2))[1]
                self.assertEqual(one["digest"], three["digest"])
        loop = self.quiet(2, job="chosen_loop.py", sets=method("infobatch"), args=("--processes", 1))[1]
        self.assertEqual(loop["digest"], self.quiet(1, job=JOB, sets=method("infobatch"))[1]["digest"])
        looks = self.quiet(1, job="chosen_loop.py", sets=method("selective"))[1]
        self.assertEqual(looks["digest"], self.quiet(1, job=JOB, sets=method("selective"))[1]["digest"])

    def test_survives_kills(self):
        for name in ("infobatch", "selective") if os.environ.get("DUCTILE_ALL_SIZES") else ("selective",):
            with self.subTest(method=name):
                how = {"job": JOB, "sets": method(name)}
                process = self.start(name, 2, args=("--processes", 1, "--slow", 0.01), **how)
                for step in (5, 15):
                    self.wait_for_step(name, step)
                    if workers := workers_of(self.out(name)):
                        kill(workers[0])
                self.assertEqual(self.finished(process, name)["digest"], self.quiet(1, **how)[1]["digest"])

    def test_is_resumed(self):
        """Scores, queues and losses of earlier epochs come out of the checkpoint."""
        for name in ("graded", "stale_selective"):
            with self.subTest(method=name):
                how = {"job": JOB, "sets": method(name)}
                process = self.start(name, 2, args=("--slow", 0.02), **how)
                self.wait_for_step(name, 20)
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=120)
                self.assertEqual(process.returncode, 130)
                done = subprocess.run([support.DUCTILE, "train", "--resume", self.out(name), "--json"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["result"]["digest"], self.quiet(1, **how)[1]["digest"])

    def test_leaves_state_and_buffers_of_looks_out(self):
        """What the loss keeps, or assigns anew, is that of training alone, on every worker; an optimiser of one's own, too."""
        for job in ("chosen.py:Job", "chosen.py:Tuned") if os.environ.get("DUCTILE_ALL_SIZES") else ("chosen.py:Tuned",):
            args = ("--fault", "reassigned,state")
            one = self.quiet(1, job=job, sets=method("selective"), args=args)[1]
            three = self.quiet(3, job=job, sets=method("selective"), args=args)[1]
            self.assertEqual(one["digest"], three["digest"])

    def test_orders_samples_as_the_loader_does(self):
        how = {"job": JOB, "sets": method("graded", "data.train_limit=500"), "args": ("--fault", "ordered")}
        self.assertEqual(self.quiet(1, **how)[1]["digest"], self.quiet(2, **how)[1]["digest"])
        run, _, rows = self.recorded("ordered", sets=how["sets"], args=how["args"])
        first = [n for row in rows[:12] for n in row["numbers"]]
        self.assertEqual(first, list(range(96)))
        self.assertLess(max(n for row in rows for n in row["numbers"]), 500)

    def test_is_infobatch_written_out(self):
        run, _, _ = self.recorded("run", sets=method("infobatch", "train.infobatch.ratio=0.4"))
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(support.BUILD, "python"), support.HERE]))
        done = subprocess.run([support.PYTHON, os.path.join(support.HERE, "chosen_twin.py"), run, self.out("run.record"),
                               "0.4"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 2e-5)

    def test_that_skips_nothing_is_plain(self):
        plain = self.quiet(1, job=JOB)[1]
        nothing = self.quiet(1, job=JOB, sets=method("infobatch", "train.infobatch.ratio=0"))[1]
        self.assertEqual(plain["weights_digest"], nothing["weights_digest"])

    def test_trains_what_was_looked_at(self):
        for name, ages in (("selective", 1), ("stale_selective", 3)):
            with self.subTest(method=name):
                run, _, rows = self.recorded(name, sets=method(name, "train.selective.first_epochs=0", "train.epochs=6",
                                                               "train.selective.history=48"))
                looks = [n for row in rows if not row["graded"] for n in row["numbers"]]
                trained = [n for row in rows if row["graded"] for n in row["numbers"]]
                self.assertTrue(all(row["training"] == row["graded"] for row in rows))
                if ages == 1:
                    self.assertEqual(len(looks), 6 * 576)
                self.assertGreater(len(looks), 0.9 * 6 / ages * 576)
                self.assertLess(len(looks), 6 * 577 / ages + 576)
                self.assertLess(0.2 * 6 * 576, len(trained))  # half is expected
                self.assertLess(len(trained), 0.8 * 6 * 576)
                seen = set()
                for row in rows:
                    if not row["graded"]:
                        seen |= set(row["numbers"])
                    else:
                        self.assertLessEqual(set(row["numbers"]), seen)
                told = [m for m in lines(run, "metrics.jsonl") if "train/examined" in m]
                self.assertTrue(told and all(m["train/selected"] < m["train/examined"] for m in told), told)

    def test_is_refused_for_samples_without_numbers(self):
        for fault in ("stream", "sampler"):
            text = self.refused("--out", self.out(fault), job=JOB, sets=method("infobatch"), args=("--fault", fault), code=2)
            self.assertIn('train.method = "infobatch" chooses samples by their numbers', text)
        text = self.refused("--out", self.out("probes"), job=JOB, sets=("train.rate_control=lrtuner",),
                            args=("--fault", "stream"), code=2)
        self.assertIn('train.rate_control = "lrtuner" chooses samples by their numbers', text)
        text = self.refused("--out", self.out("half"), job=JOB, code=2,
                            sets=method("selective", "train.selective.half_resolution=true"))
        self.assertIn("Ductile does not see its images", text)

    def test_is_refused_without_a_loss_for_each_sample(self):
        text = self.refused("--out", self.out("mean"), job=JOB, sets=method("graded"), args=("--fault", "mean"), code=3)
        self.assertIn('F.cross_entropy(z, y, reduction="none")', text)

    def test_is_verified(self):
        how = {"job": JOB, "sets": method("selective")}
        checked = self.train("checked", 2, job=JOB, sets=method("selective", "python.verify_every=1"))
        self.assertEqual(checked["weights_digest"], self.quiet(1, **how)[1]["weights_digest"])
        text = self.refused("--out", self.out("clock"), "--workers", "2", job=JOB, args=("--fault", "clock"), code=3,
                            sets=method("infobatch", "python.verify_every=2"))
        self.assertIn("computed twice", text)
        text = self.refused("--out", self.out("looks"), "--workers", "2", job=JOB, args=("--fault", "looks"), code=3,
                            sets=method("selective", "python.verify_every=1"))
        self.assertIn("the loss of a sample is not the same", text)


class Probes(Case):
    def test_have_the_same_bits_for_all_workers_and_data_processes(self):
        how = {"job": JOB, "sets": ("train.rate_control=lrtuner", "train.lrtuner.every_epochs=0.5")}
        one, two = self.quiet(1, **how), self.quiet(2, args=("--processes", 1), **how)
        self.assertEqual(one[1]["digest"], two[1]["digest"])
        run, _, rows = Chosen.recorded(self, "probed", sets=how["sets"])
        probes = {}
        for row in rows:
            if row["training"] and not row["graded"]:
                probes.setdefault(tuple(row["numbers"]), set()).add(row["draw"])
        self.assertGreater(len(probes), 50)
        self.assertEqual({len(draws) for draws in probes.values()}, {1})  # all probes of a round have the same dropout
        rounds = [e for e in lines(one[0], "events.jsonl") if e.get("what") == "probe_round"]
        self.assertGreater(len(rounds), 3)
        rates = {e["lr"] for e in rounds}
        self.assertGreater(len(rates), 1, rounds)


if __name__ == "__main__":
    unittest.main()
