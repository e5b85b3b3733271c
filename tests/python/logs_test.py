"""What programs log by themselves: calls of wandb, in a job and without one, and Lightning's logger."""

import argparse
import contextlib
import importlib
import io
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import types
import unittest

import numpy
import torch

import ductile.wandb as wandb
import support
from ductile import Error, _logs
from support import Case, kill, lines, workers_of


def counting(run):
    """The lines of metrics.jsonl that count, by the rules of docs/reference/run-folder.md, the slow way."""
    found = []
    newest = 0
    for line in lines(run, "metrics.jsonl"):
        generation = line.get("generation", newest)
        if generation < newest:
            continue
        newest = generation
        if "begins" in line:
            found = [other for other in found if other["step"] <= line["step"]]
        else:
            found.append(line)
    return found


def rows(run, kind):
    out = []
    for line in counting(run):
        if line.get("logged") == kind:
            out.append({key: value for key, value in line.items() if key not in ("time", "seconds", "generation")})
    return out


class InAJob(Case):
    def test_each_step_is_logged_once_whoever_is_killed(self):
        quiet, result = self.quiet(1, job="logged.py:Job")
        trained = rows(quiet, "train")
        self.assertEqual([row["step"] for row in trained], list(range(1, 41)))
        self.assertTrue(all({"spread", "wandb/lr", "of.first", "epoch"} <= row.keys() for row in trained), trained[0])
        self.assertNotIn("picture", trained[0])
        self.assertIn("picture is Tensor, which a run directory does not hold", support.log_of(quiet))
        self.assertAlmostEqual(trained[11]["epoch"], 1.0)
        process = self.start("killed", 3, job="logged.py:Job", args=("--slow", 0.1))
        draw = random.Random(2)
        for step in (5, 12, 22):
            self.wait_for_step("killed", step)
            workers = sorted(workers_of(self.out("killed")))
            if workers:  # a busy machine may look when the job is over
                kill(workers[0] if step == 12 else draw.choice(workers))  # the first one is often the leader
        self.assertEqual(self.finished(process, "killed")["digest"], result["digest"])
        self.assertEqual(rows(self.out("killed"), "train"), trained)
        tested = rows(self.out("killed"), "eval")
        self.assertEqual(len({row["step"] for row in tested}), len(tested), tested)
        for row in tested:
            self.assertIn(row, rows(quiet, "eval"))

    def test_config_and_last_values_are_kept(self):
        quiet, _ = self.quiet(1, job="logged.py:Job")
        with open(os.path.join(quiet, "wandb.json")) as file:
            kept = json.load(file)
        self.assertEqual((kept["project"], kept["config"]), ("blobs", {"lr": 0.05, "width": 8}))
        self.assertEqual(kept["summary"]["test_spread"], rows(quiet, "eval")[-1]["test_spread"])

    def test_last_values_are_kept_of_a_job_that_logs_in_training_alone(self):
        run, _ = self.quiet(1, job="logged.py:Job", args=("--fault", "training"), sets=("train.eval_every_epochs=0",))
        trained = rows(run, "train")
        self.assertEqual((trained[-1]["step"], rows(run, "eval")), (40, []))
        with open(os.path.join(run, "wandb.json")) as file:
            self.assertEqual(json.load(file)["summary"]["spread"], trained[-1]["spread"])

    def test_the_report_draws_it(self):
        quiet, _ = self.quiet(1, job="logged.py:Job")
        done = subprocess.run([support.DUCTILE, "report", quiet, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["metrics"]["spread"]["count"], 40)


class InOneProcess(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ductile-python-")
        self.addCleanup(support.shutil.rmtree, self.folder, ignore_errors=True)
        self.addCleanup(setattr, _logs, "job", _logs.job)
        self.said = io.StringIO()
        quiet = contextlib.redirect_stderr(self.said)
        quiet.__enter__()
        self.addCleanup(quiet.__exit__, None, None, None)


class OfAWorker(InOneProcess):
    """What a worker calls around losses and evaluations, by itself."""

    def setUp(self):
        super().setUp()
        _logs.job = self.worker()
        wandb.init(config={"lr": 0.1})

    def worker(self):
        return _logs.InJob(self.folder)

    def logs(self, kind, step=None, **values):
        with _logs.rows(kind, step):
            wandb.log(values)

    def kept(self):
        with open(os.path.join(self.folder, "wandb.json")) as file:
            return json.load(file)

    def test_a_summary_is_kept_at_once_also_of_a_step_that_logs_nothing(self):
        self.logs("train", 1, a=1)
        with _logs.rows("train", 2):
            wandb.summary["best"] = 0.5
        self.assertEqual(self.kept()["summary"], {"a": 1, "best": 0.5})

    def test_an_evaluation_that_logs_nothing_keeps_what_was_trained(self):
        for step in (1, 2, 3):
            self.logs("train", step, a=step)
        with _logs.rows("eval"):
            pass
        self.assertEqual(self.kept()["summary"], {"a": 3})

    def test_the_end_keeps_the_last_values_of_the_worker_that_trained_last(self):
        self.logs("train", 1, a=1)
        self.logs("train", 2, a=2)  # too soon after the first to be kept
        early, _logs.job = _logs.job, self.worker()
        wandb.init(config={"lr": 0.1})
        self.logs("train", 3, a=3)
        self.logs("train", 4, a=4)
        wandb.summary["best"] = 0.5
        late = _logs.job
        late.finish()
        self.assertEqual(self.kept()["summary"], {"a": 4, "best": 0.5})
        early.finish()
        self.assertEqual(self.kept()["summary"], {"a": 4, "best": 0.5})


    def test_a_configuration_of_anything_ends_nothing(self):
        loop = []
        loop.append(loop)
        wandb.init(config={numpy.int64(3): 1, (1, 2): "pair", "nan": float("nan"), "many": numpy.arange(2),
                           "one": torch.tensor(2.5), "deep": {None: [numpy.float32(0.5), float("-inf")]}, "program": wandb})
        self.logs("train", 1, a=float("inf"), b=10**400)
        with open(os.path.join(self.folder, "wandb.json")) as file:
            kept = json.load(file, parse_constant=int)  # as a reader that knows JSON alone: int("NaN") is an error
        self.assertEqual(kept["config"], {"3": 1, "(1, 2)": "pair", "nan": "NaN", "many": "[0 1]", "one": 2.5,
                                          "deep": {"None": [0.5, "-Infinity"]}, "program": str(wandb)})
        self.assertEqual(kept["summary"]["a"], "Infinity")
        self.assertEqual([(row["a"], row["b"]) for row in rows(self.folder, "train")], [("Infinity", "Infinity")])
        wandb.init(config={"loop": loop})
        self.logs("train", 2, a=1)
        self.assertIn("wandb.json: ", self.said.getvalue())
        self.assertEqual(len(rows(self.folder, "train")), 2)
        self.assertEqual(sorted(os.listdir(self.folder)), ["metrics.jsonl", "wandb.json"])

    def test_kept_files_of_other_shapes_end_nothing(self):
        for text in ("5", "[]", '{"config": 5, "summary": [1]}', "[" * 100000, "\xff"):
            with open(os.path.join(self.folder, "wandb.json"), "w", encoding="latin-1") as file:
                file.write(text)
            wandb.summary["best"] = 0.5
            self.logs("train", 1)
            kept = self.kept()
            self.assertEqual((kept["config"], kept["summary"]), ({"lr": 0.1}, {"best": 0.5}), text[:40])

    def test_lines_that_are_none_of_a_run_are_passed_over(self):
        odd = ['{"logged": [], "step": 1}', '{"logged": {}, "step": 1}', '{"step": Infinity}',
               '{"step": 1, "generation": 1e999}', '{"step": NaN}', "[" * 100000, '{"a":' * 100000, "5", "null", '"text"', "",
               "\xff", '{"step": [1]}', "1" * 10000]
        with open(os.path.join(self.folder, "metrics.jsonl"), "w", encoding="latin-1") as file:
            for i, text in enumerate(odd, 1):
                file.write(text + "\n" + json.dumps({"step": i, "seconds": "Infinity"}) + "\n")
        with _logs.rows("eval"):
            wandb.log({"a": 1})
        self.logs("train", 2, a=1)
        with open(os.path.join(self.folder, "metrics.jsonl"), encoding="latin-1") as file:
            found = [json.loads(line, parse_constant=int) for line in file.read().splitlines()[-2:]]
        self.assertEqual([(line["step"], line["logged"], line["seconds"]) for line in found],
                         [(len(odd), "eval", 0), (2, "train", 0)])

    def test_a_metrics_file_that_cannot_be_read_ends_nothing(self):
        os.mkdir(os.path.join(self.folder, "metrics.jsonl"))
        with _logs.rows("eval"):
            wandb.log({"a": 1})
        self.assertIn("what the program logs is not written", self.said.getvalue())

    def test_a_line_that_the_disk_cut_off_takes_no_other_along(self):
        self.logs("train", 1, a=1)
        path = os.path.join(self.folder, "metrics.jsonl")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 10, before[1]))  # files end there
        self.logs("train", 2, a=2)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertIn("No space left", self.said.getvalue())
        self.logs("train", 3, a=3)
        with open(path) as file:
            found = file.read().split("\n")
        self.assertEqual(len(found[1]), 10)
        self.assertEqual([json.loads(found[i])["a"] for i in (0, 2)], [1, 3])
        self.assertEqual(found[3:], [""])


class WithoutAJob(InOneProcess):
    def setUp(self):
        super().setUp()
        _logs.job = None


class Alone(WithoutAJob):
    def begin(self, **more):
        return wandb.init(project="digits", name="a b", dir=self.folder, config=argparse.Namespace(width=64), **more)

    def test_a_program_writes_a_run_of_its_own(self):
        with self.begin() as run:
            for step in range(3):
                wandb.log({"loss": torch.tensor(1.0 / (step + 1)), "nan": float("nan")})
            wandb.log({"a": 1}, step=7)
            wandb.log({"b": 2}, step=7)
            wandb.log({"c": 3}, step=5)  # steps do not go back
            wandb.summary["best"] = 0.5
        self.assertTrue(os.path.basename(run.dir).startswith("a-b-"), run.dir)
        found = [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in lines(run.dir, "metrics.jsonl")]
        self.assertEqual(found, [{"step": 0, "loss": 1.0, "nan": "NaN"}, {"step": 1, "loss": 0.5, "nan": "NaN"},
                                 {"step": 2, "loss": 1.0 / 3, "nan": "NaN"} | {"loss": found[2]["loss"]},
                                 {"step": 7, "a": 1.0, "b": 2.0}])
        self.assertIn("steps do not go back", self.said.getvalue())
        with open(os.path.join(run.dir, "wandb.json")) as file:
            kept = json.load(file)
        self.assertEqual(kept["config"], {"width": 64})
        self.assertEqual((kept["summary"]["best"], kept["summary"]["b"]), (0.5, 2))
        self.assertEqual([event["kind"] for event in lines(run.dir, "events.jsonl")], ["start", "end"])
        done = subprocess.run([support.DUCTILE, "report", run.dir, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["status"], told["metrics"]["loss"]["count"]), ("done", 3))

    def test_a_run_that_logs_nothing_leaves_nothing(self):
        """`python train.py` runs the script as far as ductile.job(), where it becomes another program."""
        self.begin()
        self.begin(mode="disabled").log({"a": 1})
        self.assertEqual(os.listdir(self.folder), [])
        wandb.finish()

    def test_what_is_wrong_is_named(self):
        run = self.begin()
        for call, words in ((lambda: run.log(5), "takes a dictionary"), (lambda: wandb.init(config=5), "config is int"),
                            (lambda: (run.finish(), run.log({})), "after wandb.finish()")):
            with self.assertRaises(Error) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        with self.assertRaises(AttributeError) as caught:
            wandb.Image
        self.assertIn("ductile.wandb has no Image: it has init, log", str(caught.exception))

    def test_a_disk_that_refuses_ends_nothing(self):
        run = self.begin()
        wandb.log({"a": 1})
        os.remove(os.path.join(run.dir, "metrics.jsonl"))
        os.mkdir(os.path.join(run.dir, "metrics.jsonl"))
        wandb.log({"a": 2})
        self.assertIn("what the program logs is not written", self.said.getvalue())


class Lightning(WithoutAJob):
    """By the interface that Lightning's documents describe; Lightning itself is not here."""

    def logger(self, **how):
        from ductile.lightning import DuctileLogger

        return DuctileLogger(save_dir=self.folder, **how)

    def test_writes_what_a_trainer_tells(self):
        logger = self.logger(name="digits")
        self.assertEqual(os.listdir(self.folder), [])
        logger.log_hyperparams({"lr": 0.1})
        logger.log_metrics({"train_loss": 0.5, "epoch": 0}, step=10)
        logger.log_metrics({"val_acc": torch.tensor(0.9), "lr": 0.1}, step=20)
        logger.save()
        logger.after_save_checkpoint(None)
        logger.finalize("success")
        logger.finalize("success")
        self.assertEqual((logger.name, logger.save_dir), ("digits", self.folder))
        self.assertEqual(logger.log_dir, os.path.join(self.folder, logger.version))
        found = [{k: v for k, v in line.items() if k not in ("time", "seconds")} for line in lines(logger.log_dir, "metrics.jsonl")]
        self.assertEqual(found[0], {"step": 10, "epoch": 0, "train_loss": 0.5})
        self.assertEqual((found[1]["step"], found[1]["lightning/lr"]), (20, 0.1))
        self.assertEqual([event["kind"] for event in lines(logger.log_dir, "events.jsonl")], ["start", "end"])
        with open(os.path.join(logger.log_dir, "events.jsonl"), "a") as file:
            file.write('{"kind":')  # of a process that was killed
        again = self.logger(version=logger.version)
        again.log_metrics({"train_loss": 0.4}, step=30)
        with open(os.path.join(logger.log_dir, "events.jsonl")) as file:
            self.assertEqual(json.loads(file.read().split("\n")[3])["kind"], "resume")
        self.assertEqual(len(lines(logger.log_dir, "metrics.jsonl")), 3)

    def test_steps_that_are_done_again_count_once(self):
        logger = self.logger()
        for step in range(100, 1600, 100):
            logger.log_metrics({"loss": step / 1000}, step=step)
        logger.log_metrics({"val_loss": 1.0}, step=1050)  # killed here, after its checkpoint of step 1000
        again = self.logger(version=logger.version)
        again.log_metrics({"test_loss": 2.0}, step=0)  # of a test, which takes nothing back
        for step in range(1100, 1800, 100):
            again.log_metrics({"loss": step / 500}, step=step)
            again.log_metrics({"val_loss": 0.5}, step=step)
        found = counting(logger.log_dir)
        self.assertEqual([(line["step"], line["loss"]) for line in found if "loss" in line],
                         [(step, step / 1000) for step in range(100, 1100, 100)]
                         + [(step, step / 500) for step in range(1100, 1800, 100)])
        self.assertEqual([line["step"] for line in found if "val_loss" in line], [1050, *range(1100, 1800, 100)])
        self.assertEqual([line["step"] for line in lines(logger.log_dir, "metrics.jsonl") if "begins" in line], [1099])
        seconds = [line["seconds"] for line in lines(logger.log_dir, "metrics.jsonl")]
        self.assertEqual(seconds, sorted(seconds), "the clock went back")
        done = subprocess.run([support.DUCTILE, "report", logger.log_dir, "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["metrics"]["loss"]["count"], 17)

    def test_of_another_rank_writes_nothing(self):
        self.addCleanup(os.environ.pop, "RANK", None)
        os.environ["RANK"] = "1"
        logger = self.logger()
        logger.log_metrics({"train_loss": 0.5}, step=1)
        logger.log_hyperparams({"lr": 0.1})
        logger.finalize("success")
        self.assertEqual((os.listdir(self.folder), logger.version, logger.log_dir), ([], None, None))

    def test_is_a_logger_of_lightning_where_there_is_one(self):
        """A stand-in for its module: a Trainer takes nothing but subclasses of Logger."""
        names = ("lightning", "lightning.pytorch", "lightning.pytorch.loggers", "lightning.pytorch.loggers.logger")
        for name in names:
            self.addCleanup(sys.modules.pop, name, None)
            sys.modules[name] = types.ModuleType(name)
        logger = sys.modules[names[-1]]
        logger.Logger = type("Logger", (), {})
        import ductile.lightning

        self.addCleanup(importlib.reload, ductile.lightning)
        importlib.reload(ductile.lightning)
        self.assertTrue(issubclass(ductile.lightning.DuctileLogger, logger.Logger))

    def test_is_not_looked_for_before_it_is_asked_for(self):
        done = subprocess.run([sys.executable, "-c", "import sys, ductile, ductile.wandb\n"
                               "sys.exit('torch' in sys.modules or any('lightning' in name for name in sys.modules))"])
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
