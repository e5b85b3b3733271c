#!/usr/bin/env python3
"""Tests of bench/algorithms/sweep.py. Usage: sweep_test.py BUILD [-v] (the last class trains)"""
import dataclasses
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import experiment  # noqa: E402
import page  # noqa: E402
import results  # noqa: E402
import scoring  # noqa: E402
import sweep  # noqa: E402
import text  # noqa: E402
import trials  # noqa: E402

BUILD = pathlib.Path("build/release")

WORKLOAD = """
title = "Digits, mlp"
metric = "accuracy"
epochs = 8
samples = 1280
targets = [1.0, 1.5, 3.0]
[job]
"data.format" = "digits"
"data.train_limit" = 1280
"data.test_limit" = 200
"model.name" = "mlp"
"model.hidden" = [32]
"train.batch_size" = 32
"train.eval_every_epochs" = 0.5
"checkpoint.every_steps" = 20
"""
SUBMISSION = """
title = "SGD <&>"
baseline = true
[job]
"optimizer.name" = "sgd"
"schedule.warmup_epochs" = "25% of epochs"
[point]
"optimizer.lr" = 0.05
[space."optimizer.lr"]
low = 0.01
high = 0.1
scale = "log"
[space."optimizer.momentum"]
choices = [0.0, 0.9]
"""
UNTUNED = """
title = "Adam"
budget = 0.5
[job]
"optimizer.name" = "adam"
[point]
"optimizer.lr" = 0.002
"""


def make_files(folder):
    for kind, files in (("workloads", {"digits": WORKLOAD}), ("submissions", {"sgd": SUBMISSION, "adam": UNTUNED})):
        (folder / kind).mkdir(parents=True)
        for name, content in files.items():
            (folder / kind / f"{name}.toml").write_text(content)
    return folder


class Folder(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        make_files(self.folder / "files")
        self.workload = experiment.read_workload("digits", self.folder / "files" / "workloads")
        self.sgd, self.adam = (experiment.read_submission(n, self.folder / "files" / "submissions")
                               for n in ("sgd", "adam"))

    def result(self, trial, *points, status="done"):
        curve = [{"step": i + 1, "epoch": i + 1, "cpu": cpu, "accuracy": a, "loss": 0}
                 for i, (cpu, a) in enumerate(points)]
        return {"workload": trial.workload.name, "submission": trial.submission.name, "stage": trial.stage,
                "number": trial.number, "seed": trial.seed, "settings": dict(trial.settings), "status": status,
                "host": {}, "curve": curve, "core_seconds": 1.0}


class Profiles(unittest.TestCase):
    """Three problems, by hand: a needs 10, 20 and never, b needs 20, 10 and 30, c only 70 for the first."""

    def setUp(self):
        self.ratios = scoring.ratios({"a": [10, 20, math.inf], "b": [20, 10, 30], "c": [70, math.inf, math.inf]})

    def test_ratios_are_to_the_best_of_each_problem(self):
        self.assertEqual(self.ratios, {"a": [1, 2, math.inf], "b": [2, 1, 1], "c": [7, math.inf, math.inf]})

    def test_the_profile_is_the_share_of_problems(self):
        self.assertEqual(scoring.profile(self.ratios["a"]), [(1.0, 1 / 3), (2, 2 / 3)])
        self.assertEqual(scoring.profile(self.ratios["b"]), [(1.0, 2 / 3), (2, 1.0)])
        self.assertEqual(scoring.profile(self.ratios["c"]), [(1.0, 0.0)])

    def test_the_score_is_the_mean_of_the_profile_up_to_four(self):
        self.assertAlmostEqual(scoring.score(self.ratios["a"]), (1 / 3 * 1 + 2 / 3 * 2) / 3)
        self.assertAlmostEqual(scoring.score(self.ratios["b"]), (2 / 3 * 1 + 1 * 2) / 3)
        self.assertEqual(scoring.score(self.ratios["c"]), 0)

    def test_a_ratio_of_exactly_four_counts_and_adds_nothing(self):
        self.assertEqual(scoring.profile([4.0]), [(1.0, 0.0), (4.0, 1.0)])
        self.assertEqual(scoring.score([4.0]), 0)

    def test_the_score_equals_a_sum_over_a_fine_grid(self):
        values = [1, 1.3, 2.2, 3.9, 6, math.inf, 1]
        grid = [1 + 3 * (i + 0.5) / 60000 for i in range(60000)]
        slow = sum(sum(v <= tau for v in values) / len(values) for tau in grid) / len(grid)
        self.assertAlmostEqual(scoring.score(values), slow, places=4)

    def test_what_nobody_reaches_counts_against_all(self):
        never = scoring.ratios({"a": [1.0, math.inf], "b": [2.0, math.inf]})
        self.assertEqual(never, {"a": [1, math.inf], "b": [2, math.inf]})
        self.assertEqual(scoring.score(never["a"]), 0.5)


class Times(Folder):
    def test_a_target_is_reached_at_the_first_evaluation_that_does(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        r = self.result(t, (1.0, 0.5), (2.0, 0.8), (3.0, 0.7), (4.0, 0.9))
        self.assertEqual(scoring.time_to(self.workload, r, 0.2), 2.0)
        self.assertEqual(scoring.time_to(self.workload, r, 0.2, "step"), 2)
        self.assertEqual(scoring.time_to(self.workload, r, 0.05), math.inf)

    def test_the_median_of_three_seeds_is_never_where_two_fail(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        good, bad = self.result(t, (2.0, 0.9)), self.result(t, (2.0, 0.1))
        self.assertEqual(scoring.median_time(self.workload, [good, good, bad], 0.2), 2.0)
        self.assertEqual(scoring.median_time(self.workload, [good, bad, bad], 0.2), math.inf)

    def test_the_baseline_is_the_best_median_and_divergence_counts(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        lucky = [self.result(t, (1, a)) for a in (0.99, 0.5, 0.5)]
        steady = [self.result(t, (1, a)) for a in (0.8, 0.8, 0.7)]
        self.assertAlmostEqual(scoring.baseline_error(self.workload, [lucky, steady]), 0.2)
        lost = [self.result(t, (1, 0.99), status="diverged")] * 3
        self.assertAlmostEqual(scoring.baseline_error(self.workload, [lost, steady]), 0.2)


class Curves(unittest.TestCase):
    """The clock counts training: by hand, one CPU second per second but where it is said."""

    @staticmethod
    def samples(*rows):
        return [{"launch": launch, "time": t, "cpu": cpu} for launch, t, cpu in rows]

    @staticmethod
    def evaluation(time, step, duration):
        return {"kind": "evaluation", "time": time, "step": step, "epoch": step / 10, "duration": duration,
                "accuracy": 0.5, "loss": 1.0}

    def test_start_and_evaluations_do_not_count(self):
        events = [{"kind": "start", "time": 103}, self.evaluation(110, 10, 2), self.evaluation(115, 20, 1)]
        curve = results.curve_of(events, self.samples((100, 100, 0), (100, 120, 20)))
        self.assertEqual([(c["step"], c["cpu"]) for c in curve], [(10, 5.0), (20, 9.0)])

    def test_cpu_time_and_not_wall_time(self):
        events = [{"kind": "start", "time": 100}, self.evaluation(120, 10, 10)]
        curve = results.curve_of(events, self.samples((100, 100, 0), (100, 110, 4), (100, 120, 9)))
        self.assertEqual(curve[0]["cpu"], 4.0)

    def test_work_after_the_checkpoint_that_is_done_again_counts_once(self):
        events = [{"kind": "start", "time": 100}, self.evaluation(105, 10, 0),
                  {"kind": "checkpoint", "time": 107, "write_seconds": 1, "step": 12},
                  self.evaluation(109, 20, 0), self.evaluation(110, 30, 0),
                  {"kind": "resume", "time": 203, "step": 12},
                  self.evaluation(207, 20, 0), self.evaluation(209, 30, 0)]
        curve = results.curve_of(events, self.samples((100, 100, 0), (100, 111, 11), (200, 200, 0), (200, 210, 10)))
        self.assertEqual([(c["step"], c["cpu"]) for c in curve], [(10, 5.0), (20, 10.0), (30, 12.0)])

    def test_what_a_launch_spends_before_its_first_sample_is_its_own(self):
        events = [{"kind": "start", "time": 100}, self.evaluation(110, 10, 0),
                  {"kind": "checkpoint", "time": 110, "step": 10}, {"kind": "resume", "time": 203, "step": 10},
                  self.evaluation(213, 20, 0)]
        curve = results.curve_of(events, self.samples((100, 100, 0), (100, 110, 10), (200, 208, 8), (200, 213, 13)))
        self.assertEqual([(c["step"], c["cpu"]) for c in curve], [(10, 10.0), (20, 20.0)])

    def test_behind_its_last_sample_a_launch_goes_on_at_the_pace_of_its_last_second(self):
        clock = results.Clock(self.samples((100, 100, 0), (100, 108, 0), (100, 109.5, 2), (100, 110, 3), (200, 200, 0),
                                           (200, 210, 5)))
        self.assertEqual([clock.at(t) for t in (99, 104, 109.5, 112, 200, 205, 220)], [0, 0, 2, 6, 0, 2.5, 10])

    def test_what_is_done_between_the_kill_of_a_sweep_and_the_saved_state_counts(self):
        events = [{"kind": "start", "time": 100}, self.evaluation(105, 10, 0),
                  {"kind": "checkpoint", "time": 108, "write_seconds": 1, "step": 14},
                  {"kind": "resume", "time": 203, "step": 14}, self.evaluation(209, 20, 0)]
        curve = results.curve_of(events, self.samples((100, 100, 0), (100, 105.5, 5.5), (200, 200, 0), (200, 210, 10)))
        self.assertEqual([(c["step"], c["cpu"]) for c in curve], [(10, 5.0), (20, 13.0)])

    def test_losses_that_are_not_finite_are_worse_than_all(self):
        event = dict(self.evaluation(110, 10, 0), loss="NaN")
        curve = results.curve_of([{"kind": "start", "time": 100}, event], self.samples((100, 100, 0)))
        self.assertEqual(curve[0]["loss"], math.inf)

    def test_torn_lines_and_those_of_a_replaced_writer_are_left_out(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "events.jsonl"
            path.write_text('{"kind":"start","generation":1}\n{"kind":"x","generation":2}\n'
                            '{"kind":"late","generation":1}\n{"kind":"to\n{"kind":"end"}\n{"kind":"torn"')
            self.assertEqual([e["kind"] for e in results.lines_of(path)], ["start", "x", "end"])


class Files(Folder):
    def test_a_result_is_read_as_it_was_written(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        path = self.folder / "a" / "r.json"
        written = self.result(t, (1.0, 0.5))
        results.write_result(path, written)
        self.assertEqual(results.read_result(path, t), (written, ""))
        self.assertEqual([p.name for p in path.parent.iterdir()], ["r.json"])

    def test_half_of_a_result_is_none_wherever_it_ends(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        path = self.folder / "r.json"
        results.write_result(path, self.result(t, (1.0, 0.5)))
        whole = path.read_bytes()
        for size in range(len(whole) - 2):  # the last byte is a line end
            path.write_bytes(whole[:size])
            found, why = results.read_result(path, t)
            self.assertIsNone(found)
            self.assertIn("r.json", why)

    def test_an_altered_figure_is_no_result(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        path = self.folder / "r.json"
        results.write_result(path, self.result(t, (1.0, 0.5)))
        path.write_text(path.read_text().replace("0.5", "0.6"))
        self.assertIn("hash", results.read_result(path, t)[1])

    def test_other_kinds_of_damage_are_no_result(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        path = self.folder / "r.json"
        for content in (b"", b"\xff\xfe", b"[]", b"3", b'{"sha256": "x"}', b'{"result": {}}', b"null"):
            path.write_bytes(content)
            found, why = results.read_result(path, t)
            self.assertIsNone(found)
            self.assertTrue(why)

    def test_no_file_is_no_damage(self):
        t = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        self.assertEqual(results.read_result(self.folder / "none.json", t), (None, ""))


class Trials(Folder):
    def test_points_spread_over_the_space_and_are_the_same_each_time(self):
        points = [experiment.draw(self.sgd.space, n) for n in range(1, 9)]
        self.assertEqual(points, [experiment.draw(self.sgd.space, n) for n in range(1, 9)])
        eighths = {int(8 * math.log(p["optimizer.lr"] / 0.01) / math.log(10)) for p in points}
        self.assertEqual(len(eighths), 8, "one in each eighth, on the logarithmic scale")
        self.assertEqual({p["optimizer.momentum"] for p in points}, {0.0, 0.9})

    def test_the_first_five_points_lie_one_in_each_fifth_of_each_range(self):
        space = {key: {"low": 0.0, "high": 1.0, "scale": "linear"} for key in ("a", "b", "c")}
        points = [experiment.draw(space, n) for n in range(1, 6)]
        for key in space:
            self.assertEqual({int(5 * p[key]) for p in points}, set(range(5)))

    def test_the_points_of_earlier_results_can_be_drawn(self):
        old = experiment.read_submission("sgd", self.folder / "files" / "submissions", 20)
        rates = [dict(t.settings)["optimizer.lr"] for t in experiment.tuning_trials(self.workload, [old], 2)]
        self.assertEqual(rates, [0.02545, 0.01431])

    def test_seeds_change_nothing_but_the_seed(self):
        one, two = (dict(experiment.trial(self.workload, self.sgd, "fixed", 0, s).settings) for s in (11, 12))
        self.assertEqual({k for k in one if one[k] != two[k]}, {"seed"})

    def test_shares_of_the_epochs_become_epochs(self):
        settings = dict(experiment.trial(self.workload, self.sgd, "fixed", 0, 11).settings)
        self.assertEqual(settings["schedule.warmup_epochs"], 2.0)
        self.assertNotIn("train.max_steps", settings)

    def test_a_smaller_budget_ends_the_run_earlier(self):
        settings = dict(experiment.trial(self.workload, self.adam, "fixed", 0, 11).settings)
        self.assertEqual(settings["train.max_steps"], 160)

    def test_other_settings_are_another_trial(self):
        here = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        file = self.folder / "files" / "submissions" / "sgd.toml"
        file.write_text(SUBMISSION.replace("0.05", "0.06"))
        there = experiment.trial(self.workload, experiment.read_submission("sgd", file.parent), "fixed", 0, 11)
        self.assertNotEqual(here.name, there.name)

    def test_what_is_scored_has_the_best_point_and_no_seed_of_the_tuning(self):
        tuning = experiment.tuning_trials(self.workload, [self.sgd, self.adam], 3)
        self.assertEqual([(t.submission.name, t.number, t.seed) for t in tuning],
                         [("sgd", n, experiment.TUNING_SEED) for n in (1, 2, 3)])
        accuracies = {1: 0.7, 2: 0.9, 3: 0.8}
        known = {t.name: self.result(t, (1, 0.99), (2, accuracies[t.number])) for t in tuning}
        tuned = experiment.tuned_trials(self.workload, [self.sgd, self.adam], 2, 3, lambda t: known.get(t.name))
        self.assertEqual([(t.submission.name, t.number, t.seed) for t in tuned], [("sgd", 2, 11), ("sgd", 2, 12)])

    def test_what_has_nothing_to_tune_is_run_in_the_tuned_ruleset_too(self):
        args = sweep.flags().parse_args(
            ["run", str(self.folder), "--files", str(self.folder / "files"), "--workloads", "digits",
             "--submissions", "sgd,adam", "--rulesets", "tuned", "--seeds", "2", "--trials", "1"])
        stages = list(sweep.Sweep(args).stages(self.workload))
        self.assertEqual([[(t.submission.name, t.number) for t in s] for s in stages[:2]],
                         [[("adam", 0), ("adam", 0)], [("sgd", 1)]])

    def test_a_stopped_trial_of_another_build_begins_anew(self):
        trial = experiment.trial(self.workload, self.sgd, "fixed", 0, 11)
        place = trials.Place(self.folder / "runs", self.folder, self.folder, "new", 1)
        run = place.runs / trial.name
        run.mkdir(parents=True)
        (run / "clock.jsonl").write_text('{"launch": 1, "time": 2, "cpu": 3, "program": "new"}\n')
        self.assertFalse(trials.Running(trial, place).is_of_another_build())
        (run / "clock.jsonl").write_text('{"launch": 1, "time": 2, "cpu": 3, "program": "old"}\n')
        self.assertTrue(trials.Running(trial, place).is_of_another_build())

    def test_a_trial_that_diverged_is_never_the_best(self):
        t = experiment.tuning_trials(self.workload, [self.sgd], 2)
        lost = self.result(t[0], (1, 0.99), status="diverged")
        self.assertEqual(experiment.best_number(self.workload, [lost, self.result(t[1], (1, 0.2))]), 2)

    def test_nothing_is_scored_before_all_points_were_tried(self):
        tuning = experiment.tuning_trials(self.workload, [self.sgd], 2)
        known = {tuning[0].name: self.result(tuning[0], (1, 0.5))}
        self.assertEqual(experiment.tuned_trials(self.workload, [self.sgd], 2, 2, lambda t: known.get(t.name)), [])

    def test_faults_of_a_file_name_file_and_key(self):
        folder = self.folder / "files" / "submissions"
        for old, new, told in (("baseline", "base_line", "base_line"), ('"log"', '"cubic"', "cubic"),
                               ("low = 0.01\n", "", "needs low"), ("[job]", "[jobs]", "job is missing"),
                               ("title", "= title", "sgd.toml")):
            (folder / "sgd.toml").write_text(SUBMISSION.replace(old, new, 1))
            with self.assertRaisesRegex(experiment.Wrong, told):
                experiment.read_submission("sgd", folder)
        with self.assertRaisesRegex(experiment.Wrong, "no such file; submissions there are: adam, sgd"):
            experiment.read_submission("sdg", folder)

    def test_the_files_of_the_benchmark_make_jobs(self):
        workloads = [p.stem for p in sorted((HERE / "workloads").glob("*.toml"))]
        submissions = [p.stem for p in sorted((HERE / "submissions").glob("*.toml"))]
        self.assertGreater(len(workloads) * len(submissions), 20)
        for w in map(experiment.read_workload, workloads):
            for s in map(experiment.read_submission, submissions):
                for t in (experiment.trial(w, s, "fixed", 0, 11), experiment.trial(w, s, "tuning", 1, 1)):
                    if s.name != submissions[0] and w.name != workloads[0]:
                        continue  # each file once
                    words = [x for k, v in t.settings
                             for x in ("--set", f"{k}={str(v).lower() if isinstance(v, bool) else v}")]
                    told = subprocess.run([BUILD / "bin" / "ductile", "config", *words], check=False,
                                          capture_output=True, text=True)
                    self.assertEqual(told.returncode, 0, f"{t.name}: {told.stderr}")


class Pages(Folder):
    def write(self, found):
        class Args:
            output, title, note, at_once = self.folder / "page", "Title", "A busy machine.", 2
            workloads, submissions, rulesets, seeds, trials, draw_seed = "digits", "sgd,adam", ["fixed"], 9, 5, 20
        page.write(Args, [self.workload], [self.sgd, self.adam], found)
        return (self.folder / "page.md").read_text()

    def test_the_page_has_targets_scores_and_whole_pictures(self):
        found = [self.result(t, (1, 0.5), (2, 0.9)) for t in experiment.fixed_trials(self.workload, [self.sgd], 3)]
        found += [self.result(t, (1, 0.7), (4, 0.95)) for t in experiment.fixed_trials(self.workload, [self.adam], 3)]
        told = self.write(found)
        self.assertTrue(told.startswith("# Title\n"))
        self.assertIn("`bench/algorithms/sweep.py run OUT --data DATA --workloads digits --submissions sgd,adam ", told)
        self.assertIn("\n\nA busy machine.\n\n", told)
        self.assertIn("| sgd | 3 | 90.00 % (90.00 % to 90.00 %) | 2.0 | 1.0 | 3: 2.0 s, 2 | 3: 2.0 s, 2 | 3: 2.0 s, 2 |",
                      told)
        # Of the targets 90, 85 and 70 % sgd is first at two, adam at one, each with half the other's time.
        self.assertIn("| adam | 0.667 | 0.667 | 1.000 | 0.778 |", told)
        self.assertIn("| sgd | 1.000 | 1.000 | 0.667 | 0.889 |", told)
        import xml.etree.ElementTree as tree
        pictures = sorted(self.folder.glob("page_*.svg"))
        self.assertEqual(len(pictures), 2)
        for picture in pictures:
            tree.parse(picture)
        kept = json.loads((self.folder / "page.json").read_text())["results"]
        self.assertEqual(kept[0]["settings"]["optimizer.lr"], 0.05)

    def fixed(self, number, **told):
        trials = experiment.fixed_trials(self.workload, [self.sgd], number)
        return [{**self.result(t, (1, 0.5), (2, 0.9)), **told} for t in trials]

    def test_machine_build_and_load_are_those_of_the_results(self):
        host = {"cpu": "A", "cores": 2, "torch": "1.13"}
        told = self.write(self.fixed(3, hosts=[host], programs=["abc"], at_once=[1]))
        self.assertIn("\n\nA, 2 cores, torch 1.13. Build of Ductile, by its hash: `abc`. One compute thread per trial, at "
                      "most 1 trial at a time. Seeds 11 to 13 ", told)
        self.assertIn("--rulesets fixed --seeds 3 --at-once 1`", told)
        kept = json.loads((self.folder / "page.json").read_text())
        self.assertEqual((kept["hosts"], [r["hosts"] for r in kept["results"]]), ([host], [[0]] * 3))

    def test_several_machines_and_builds_are_told(self):
        a, b = ({"cpu": name, "cores": 2, "torch": "1.13"} for name in "AB")
        found = self.fixed(1, hosts=[a], programs=["abc"], at_once=[1])
        found += self.fixed(3, hosts=[a, b], programs=["abc", "def"], at_once=[2])[1:]
        found += self.fixed(4, host=b)[3:]  # as they were until November 2026
        told = self.write(found)
        self.assertIn("Several machines, so seconds of different results do not compare: A, 2 cores, torch 1.13 (1 result), "
                      "A, 2 cores, torch 1.13, then B, 2 cores, torch 1.13 (2 results), B, 2 cores, torch 1.13 (1 result). "
                      "Several builds of Ductile, by their hashes: `abc` (1 result)", told)
        self.assertIn("not recorded (1 result). One compute thread per trial, at most 1 or 2 trials", told)
        kept = json.loads((self.folder / "page.json").read_text())
        self.assertEqual([r["hosts"] for r in kept["results"]], [[0], [0, 1], [0, 1], [1]])

    def test_the_settings_of_a_tuned_point_name_what_is_not_tuned(self):
        found = [self.result(experiment.trial(self.workload, self.sgd, "tuned", 2, seed), (1, 0.5)) for seed in (11, 12)]
        told = self.write(found)
        self.assertIn("| digits | sgd | point 2 | `optimizer.lr = ", told)
        self.assertIn("`schedule.warmup_epochs = 2.0` |", told)
        self.assertIn("--rulesets tuned --seeds 2 --trials 5 --draw-seed 20`", told)

    def test_before_a_seed_is_scored_the_page_has_no_seeds(self):
        found = [self.result(t, (1, 0.5)) for t in experiment.tuning_trials(self.workload, [self.sgd], 2)]
        self.assertNotIn("Seeds", self.write(found))

    def test_submissions_with_other_seeds_have_a_command_of_their_own(self):
        found = self.fixed(3) + [self.result(t, (1, 0.7)) for t in
                                 experiment.fixed_trials(self.workload, [self.adam], 2)]
        told = self.write(found)
        self.assertIn("--submissions sgd --rulesets fixed --seeds 3` and `bench/algorithms/sweep.py run ", told)
        self.assertIn("--submissions adam --rulesets fixed --seeds 2`\n", told)
        self.assertIn(" Seeds 11 to 13 (`sgd`) and 11 to 12 (`adam`) change initial weights", told)

    def test_a_baseline_without_results_is_not_named_as_one(self):
        baselines = [self.sgd, dataclasses.replace(self.adam, baseline=True)]
        told = page.workload_part(self.workload, baselines, self.fixed(2), {})
        self.assertIn("the best median of `sgd` (fixed) is 90.00 %", told[2])

    def test_a_ruleset_without_results_has_no_table(self):
        found = [self.result(experiment.trial(self.workload, self.sgd, "tuned", 1, seed), (1, 0.5), (2, 0.9))
                 for seed in (11, 12)]
        told = self.write(found)
        self.assertIn("### Tuned", told)
        self.assertNotIn("### No tuning", told)

    def test_runs_that_diverged_do_not_stop_the_page(self):
        found = [self.result(t, (1, 0.5), (2, 0.9)) for t in experiment.fixed_trials(self.workload, [self.sgd], 2)]
        found += [self.result(t, status="diverged") for t in experiment.fixed_trials(self.workload, [self.adam], 2)]
        self.assertIn("| adam | 2 |", self.write(found))


class Texts(unittest.TestCase):
    def test_texts_are_apart_and_each_is_there_once(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for i in range(40):
                (root / f"p{i}").mkdir()
                (root / f"p{i}" / "README").write_text(f"text {i % 30} " * 300)
            (root / "p1" / "NEWS").write_bytes(b"\xff" * 5000)
            found = text.texts(root / "none", root)
            self.assertEqual(len(found), 30)
            text.write(root / "t.bin", found[:2])
            raw = (root / "t.bin").read_bytes()
            self.assertEqual(bytes(raw[::2]), b"\0".join(found[:2]))
            self.assertEqual(set(raw[1::2]), {0})


class Sweeps(Folder):
    """The real programs."""

    def command(self, out, *more):
        return [sys.executable, str(HERE / "sweep.py"), "run", str(out), "--data", str(self.folder), "--files",
                str(self.folder / "files"), "--workloads", "digits", "--submissions", "sgd,adam", "--seeds", "2",
                "--trials", "2", "--build", str(BUILD), *more]

    def sweep(self, out, *more):
        return subprocess.run(self.command(out, *more), check=False, capture_output=True, text=True)

    def digests(self, out):
        return {str(p.relative_to(out)): json.loads(p.read_text())["result"]["digest"]
                for p in sorted((out / "results").rglob("*.json"))}

    def kill_in_the_middle(self, out):
        """-9, once the first trial has evaluated something and is not over."""
        process = subprocess.Popen(self.command(out, "--at-once", "1"), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        while process.poll() is None:
            for events in (out / "runs").rglob("events.jsonl"):
                kinds = [e["kind"] for e in results.lines_of(events)]
                if "evaluation" in kinds and "end" not in kinds:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return events.parent
        self.fail("the sweep was over before it could be killed")

    def test_a_sweep_that_is_killed_goes_on_where_it_was(self):
        whole = self.folder / "whole"
        done = self.sweep(whole)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.digests(whole)), 2 + 2 + 2 + 2)  # two fixed, two points, one of them tuned
        killed = self.folder / "killed"
        run = self.kill_in_the_middle(killed)
        again = self.sweep(killed)
        self.assertEqual(again.returncode, 0, again.stderr)
        events = [e["kind"] for e in results.lines_of(run / "events.jsonl")]
        self.assertEqual(events.count("start"), 1)
        self.assertGreaterEqual(events.count("resume"), 1)
        self.assertEqual(self.digests(killed), self.digests(whole))
        # Each evaluation once, and the clock goes on.
        for file in (killed / "results").rglob("*.json"):
            curve = json.loads(file.read_text())["result"]["curve"]
            steps = [c["step"] for c in curve]
            self.assertEqual(steps, sorted(set(steps)))
            self.assertEqual([c["cpu"] for c in curve], sorted(c["cpu"] for c in curve))
        # Nothing is left to do: no run directory changes.
        before = {p: p.stat().st_mtime_ns for p in (killed / "runs").rglob("*")}
        third = self.sweep(killed)
        self.assertEqual((third.returncode, third.stdout), (0, ""))
        self.assertEqual(before, {p: p.stat().st_mtime_ns for p in (killed / "runs").rglob("*")})

    def test_a_damaged_result_is_said_and_made_again(self):
        out = self.folder / "out"
        self.assertEqual(self.sweep(out, "--submissions", "adam", "--rulesets", "fixed").returncode, 0)
        file = sorted((out / "results").rglob("*.json"))[0]
        right = file.read_text()
        file.write_text(right[:len(right) // 2])
        run = out / "runs" / file.relative_to(out / "results").with_suffix("")
        events = (run / "events.jsonl").read_bytes()
        again = self.sweep(out, "--submissions", "adam", "--rulesets", "fixed")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn(f"{file}: no whole result", again.stderr)
        self.assertEqual(file.read_text(), right)
        self.assertEqual((run / "events.jsonl").read_bytes(), events, "its run directory still knows it")

    def test_results_of_another_build_are_told_and_kept(self):
        out = self.folder / "out"
        words = ("--submissions", "adam", "--rulesets", "fixed", "--seeds", "1", "--at-once", "3")
        self.assertEqual(self.sweep(out, *words).returncode, 0)
        file = next((out / "results").rglob("*.json"))
        result = json.loads(file.read_text())["result"]
        self.assertEqual((result["programs"], result["at_once"]), ([trials.hash_of(BUILD)], [3]))
        self.assertEqual(len(result["hosts"]), 1)
        self.assertEqual(self.sweep(out, *words).stderr, "")
        results.write_result(file, {**result, "programs": ["another"]})
        kept = file.read_text()
        again = self.sweep(out, *words)
        self.assertEqual((again.returncode, again.stdout, file.read_text()), (0, "", kept))
        self.assertIn("results of another build", again.stderr)
        self.assertIn(f"1, such as {file}", again.stderr)

    def test_a_run_that_diverges_is_a_result_and_one_that_fails_is_none(self):
        folder = self.folder / "files" / "submissions"
        (folder / "adam.toml").write_text(UNTUNED.replace("adam\"", "sgd\"").replace("0.002", "1e6"))
        done = self.sweep(self.folder / "out", "--submissions", "adam", "--rulesets", "fixed", "--seeds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("diverged", done.stdout)
        (folder / "adam.toml").write_text(UNTUNED.replace("adam\"", "adma\""))
        done = self.sweep(self.folder / "out", "--submissions", "adam", "--rulesets", "fixed", "--seeds", "1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("adma", done.stderr)

    def test_what_cannot_be_run_is_said_before_anything_is(self):
        for words, told in ((("--rulesets", "fixd"), '"fixd" is neither fixed nor tuned'), (("--seeds", "0"), "--seeds: 0"),
                            (("--trials", "-1"), "--trials: -1"), (("--at-once", "0"), "--at-once: 0"),
                            (("--build", "nowhere"), "nowhere/bin/ductile: no such program")):
            done = self.sweep(self.folder / "out", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(told, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.assertFalse((self.folder / "out").exists())

    def test_two_sweeps_do_not_share_a_folder(self):
        import fcntl
        out = self.folder / "out"
        out.mkdir()
        with open(out / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.sweep(out)
        self.assertEqual(done.returncode, 2)
        self.assertIn("another sweep works there", done.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    unittest.main()
