#!/usr/bin/env python3
"""Tests of bench/algorithms/record.py. Usage: record_test.py BUILD [-v] (the last class trains, on both sides)"""
import contextlib
import io
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import record  # noqa: E402

BUILD = pathlib.Path("build/release")
EXAMPLES = HERE.parent.parent / "examples"


def result(seed, *curve, core=100.0):
    return record.Result(seed, curve, core)


class Side:
    def __init__(self, title):
        self.title = title

    def command(self):
        return f"train by {self.title}"


class Page(unittest.TestCase):
    def setUp(self):
        self.sides = [Side("Ductile"), Side("PyTorch")]
        self.found = {"Ductile": [result(1, (60, 0.9), (100, 0.93)), result(2, (120, 0.91)), result(3, (110, 0.92))],
                      "PyTorch": [result(1, (150, 0.93), core=300), result(2, (300, 0.92), core=310)]}

    def page(self):
        return record.markdown("cifar10", 0.92, self.sides, self.found, "A processor.")

    def row(self, begin, number=0):
        rows = [line for line in self.page().splitlines() if line.startswith(f"| {begin} |")]
        return [cell.strip() for cell in rows[number].strip("|").split("|")]

    def test_a_side_has_its_mean_median_and_spread(self):
        self.assertEqual(self.row("Ductile"), ["Ductile", "3", "92.00 %", "92.00 % (91.00 % to 93.00 %)", "2 of 3",
                                               "105.0 (100.0 to 110.0)", "110.0 (100.0 to 120.0)", "100.0 (100.0 to 100.0)"])
        self.assertEqual(self.row("PyTorch")[4:], ["2 of 2", "225.0 (150.0 to 300.0)", "225.0 (150.0 to 300.0)",
                                                   "305.0 (300.0 to 310.0)"])

    def test_every_run_has_a_row_and_one_that_misses_the_target_has_no_time_to_it(self):
        self.assertEqual(self.row("Ductile", 1), ["Ductile", "1", "93.00 %", "100.0", "100.0", "100.0"])
        self.assertEqual(self.row("Ductile", 2), ["Ductile", "2", "91.00 %", "-", "120.0", "100.0"])

    def test_the_sides_are_compared_by_the_seeds_that_both_have(self):
        self.assertIn("of the same seed: 2.00 (1.50 to 2.50).", self.page())
        self.found["PyTorch"] = []
        self.assertNotIn("of the same seed", self.page())
        self.assertNotIn("| PyTorch |", self.page())

    def test_the_target_is_reached_at_the_first_evaluation_that_does(self):
        curve = ((10, 0.5), (20, 0.8), (30, 0.7), (40, 0.9))
        self.assertEqual(result(1, *curve).seconds_to(0.8), 20)
        self.assertIsNone(result(1, *curve).seconds_to(0.95))
        self.assertEqual(result(1, *curve).accuracy, 0.9)

    def test_commands_and_processor_are_on_the_page(self):
        for text in ("A processor.", "- Ductile: `train by Ductile`", "- PyTorch: `train by PyTorch`"):
            self.assertIn(text, self.page())

    def test_every_row_has_the_columns_of_its_head(self):
        for block in self.page().split("\n\n"):
            lines = [line for line in block.splitlines() if line.startswith("|")]
            self.assertEqual(len({line.count("|") for line in lines}), 1 if lines else 0, block)


class Recipes(unittest.TestCase):
    def job(self, example, *assignments):
        return record.job_of(EXAMPLES / example, assignments, BUILD)

    def options(self, *job):
        words = record.rival_arguments(self.job(*job), 2, record.defaults_of(BUILD))
        return {w: v for w, v in zip(words, words[1:] + [""]) if w.startswith("--")}

    def test_the_published_recipe_is_what_the_rival_has_by_default(self):
        """cifar10_torch.py without options; it says the rates of losses that are summed."""
        source = (HERE / "cifar10_torch.py").read_text()
        for word, value in self.options("cifar10_airbench.toml").items():
            if word in ("--threads", "--precision"):
                continue
            line = next(line for line in source.splitlines() if f'"{word}"' in line)
            default = line.split("default=")[1].split(",")[0].strip(')"')
            same = value == default if word == "--activation" else abs(float(value) - float(default)) <= 2e-6 * float(default)
            self.assertTrue(same, f"{word} {value}, {default}")

    def test_an_example_differs_as_its_file_does(self):
        o = self.options("cifar10_92.toml")
        self.assertEqual((o["--width"], o["--later-width"], o["--epochs"], o["--precision"], o["--head-lr"]),
                         ("64", "384", "16", "bf16", "0.67"))
        self.assertIn("--deep", o)
        o = self.options("cifar10_airbench.toml", "model.convolutions=3", "augment.cutout=4", "optimizer.freeze=[]",
                         "eval.views=one")
        self.assertIn("--deep", o)
        self.assertNotIn("--deep", self.options("cifar10_airbench.toml"))
        self.assertEqual((o["--cutout"], o["--whiten-bias-epochs"], o["--views-share"]), ("4", "8", "0"))

    def test_what_the_rival_cannot_say_is_refused_by_name(self):
        for example, assignment, name in (
                ("cifar10_resnet20_muon.toml", "seed=1", "model.name"),
                ("cifar10_airbench.toml", "schedule.name=cosine", "schedule.name"),
                ("cifar10_airbench.toml", "optimizer.freeze=[\"norm:2\"]", "optimizer.freeze"),
                ("cifar10_airbench.toml", "eval.views=flip", "eval.views"),
                ("cifar10_airbench.toml", "train.ema_decay=0.9", "train.ema_decay"),
                ("cifar10_airbench.toml", "train.precision=fp16", "train.precision"),
                ("cifar10_airbench.toml", "model.activation=relu", "model.activation"),
                ("cifar10_airbench.toml", "train.eval_every_epochs=1", "train.eval_every_epochs"),
                ("cifar10_airbench.toml", "optimizer.muon.coefficients=[1.5, -0.5, 0]", "optimizer.muon.coefficients"),
                ("cifar10_airbench.toml", "data.train_limit=2000", "data.train_limit"),
                ("cifar10_airbench.toml", "data.test_limit=2000", "data.test_limit"),
                ("cifar10_airbench.toml", "target.value=0.5", "target.value"),
                ("cifar10_airbench.toml", "loader.shuffle=false", "loader.shuffle"),
                ("cifar10_airbench.toml", "augment.normalize=false", "augment.normalize"),
                ("cifar10_airbench.toml", "augment.resize=16", "augment.resize")):
            with self.assertRaises(record.Wrong) as raised:
                record.rival_arguments(self.job(example, assignment), 2, record.defaults_of(BUILD))
            self.assertIn(name, str(raised.exception))
            self.assertIn("--ours-only", str(raised.exception))

    def test_what_changes_no_result_is_not_refused(self):
        plain = self.options("cifar10_airbench.toml")
        for assignment in ("name=other", "seed=3", "loader.threads=1", "checkpoint.every_steps=5", "train.log_every=1",
                           "elastic.peer_deadline=60", "augment.resize=0"):
            self.assertEqual(self.options("cifar10_airbench.toml", assignment), plain, assignment)

    def test_every_option_that_is_named_is_one_of_a_job(self):
        named = {*record.OF_THE_RIVAL, *record.SAID, *record.CHOICES, *record.PLACES}
        self.assertEqual(named - set(self.job("cifar10_airbench.toml")), set())

    def test_what_is_set_for_every_job_is_refused_too(self):
        defaults = {k: v for k, v in record.defaults_of(BUILD).items() if k != "augment.resize"}
        with self.assertRaisesRegex(record.Wrong, "augment.resize = its default alone"):
            record.rival_arguments(self.job("cifar10_airbench.toml"), 2, defaults)

    def test_the_rival_may_have_a_precision_of_its_own_and_the_page_names_both(self):
        with tempfile.TemporaryDirectory() as out:
            words = [out, "--build", str(BUILD), "--rival-precision", "bf16", "--rival-only", "--table-only", "--seeds", "1",
                     "--set", "train.precision=fp16"]
            args = record.parse(words)
            job = {**self.job("cifar10_airbench.toml"), "train.precision": "bf16"}
            line = {"seconds": 3.0, "accuracy": 0.9, "cpu_seconds": 6.0}
            record.Rival(args, job).file(1).write_text(json.dumps(line))
            page = io.StringIO()
            with contextlib.redirect_stdout(page):
                self.assertEqual(record.main(words), 0)
        self.assertIn("Ductile trains in fp16, PyTorch in bf16.", page.getvalue())
        self.assertIn("--precision bf16", page.getvalue())

    def test_the_folder_of_a_result_is_the_same_for_later_versions(self):
        self.assertEqual(record.digest_of(["text", ["train.epochs=2", "train.threads=2"]]), "52e69e96")

    def test_an_option_that_there_is_not_is_answered_by_ductile(self):
        with self.assertRaises(record.Wrong) as raised:
            self.job("cifar10_airbench.toml", "train.epocs=3")
        self.assertIn("train.epochs", str(raised.exception))


class Training(unittest.TestCase):
    """Twenty images of ten colours, as CIFAR-10's files."""

    SETTINGS = ("model.width=8", "train.epochs=2", "train.batch_size=50", "train.eval_batch_size=50")

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        drawn = random.Random(1)
        names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
        for name in names:
            with open(self.folder / name, "wb") as file:
                for i in range(20):
                    pixels = bytes(min(255, 20 * (i % 10) + drawn.randrange(30)) for _ in range(3072))
                    file.write(bytes([i % 10]) + pixels)

    def record(self, *words):
        settings = [word for s in self.SETTINGS for word in ("--set", s)]
        return subprocess.run([sys.executable, str(HERE / "record.py"), str(self.folder / "out"), "--data", str(self.folder),
                               "--build", str(BUILD), "--seeds", "2", "--target", "0.01", *settings, *words],
                              capture_output=True, text=True)

    def test_both_sides_are_trained_once_and_printed(self):
        sides = () if self.has_torch() else ("--ours-only",)
        done = self.record(*sides)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("Ductile, seed"), 2)
        self.assertIn("| Ductile | 2 |", done.stdout)
        if not sides:
            self.assertLess(done.stderr.index("PyTorch, seed 1"), done.stderr.index("Ductile, seed 2"), "in turns")
            self.assertIn("of the same seed", done.stdout)
        again = self.record(*sides)
        self.assertEqual(again.stderr, "", "all of it is there")
        self.assertEqual(again.stdout, done.stdout)
        more = self.record("--ours-only", "--seeds", "3")
        self.assertEqual(more.stderr.count("seed"), 1, more.stderr)
        other = self.record("--ours-only", "--set", "train.label_smoothing=0.1", "--seeds", "1")
        self.assertEqual(other.stderr, "Ductile, seed 1\n", "another job has other results")

    def test_a_run_that_was_stopped_goes_on(self):
        settings = (*self.SETTINGS, "train.epochs=60", "checkpoint.every_steps=1")
        ours = record.Ours(record.parse([str(self.folder / "out"), "--data", str(self.folder), "--build", str(BUILD),
                                         *(word for s in settings for word in ("--set", s))]))
        ours.out.mkdir()
        self.assertIsNone(ours.result(1))
        events = ours.folder(1) / "events.jsonl"
        with subprocess.Popen(ours.words_of(1), stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not (events.exists() and '"kind":"checkpoint"' in events.read_text()):
                time.sleep(0.002)
            process.kill()
        self.assertIsNone(ours.result(1), "its controller was killed before its end")
        began = events.read_text().splitlines()[0]
        self.assertIn("--resume", ours.words_of(1))
        ours.run(1)
        self.assertEqual(len(ours.result(1).curve), 1)
        self.assertEqual(events.read_text().splitlines()[0], began, "it is the same run")

    def test_the_other_examples_train(self):
        for example, settings in (("cifar10_92.toml", ("--set", "model.later_width=32")),
                                  ("cifar10_resnet20_muon.toml", ())):
            done = self.record("--ours-only", "--seeds", "1", "--example", str(EXAMPLES / example), *settings)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| Ductile | 1 |", done.stdout)

    def test_what_is_wrong_is_said_in_a_line(self):
        none = self.record("--table-only")
        self.assertEqual(none.returncode, 2)
        self.assertIn("no result", none.stderr)
        refused = self.record("--set", "schedule.name=cosine")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("schedule.name", refused.stderr)

    @staticmethod
    def has_torch():
        return subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True).returncode == 0


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    unittest.main()
