"""Python jobs by the command line: whatever happens to their processes, the same bits."""

import json
import os
import random
import signal
import subprocess
import unittest
import unittest.mock

import support
from support import Case, children, kill, last_step, lines, wait, workers_of


class Digest(Case):
    def test_is_the_same_for_all_workers_and_data_processes(self):
        cells = [(1, 0, "blobs.py:Job"), (2, 1, "blobs.py:Job"), (3, 4, "blobs.py:Job")]  # and of a loop: see there
        if os.environ.get("DUCTILE_ALL_SIZES"):
            cells = [(workers, processes, job) for workers in (1, 2, 3, 4) for processes in (0, 1, 4)
                     for job in ("blobs.py:Job", "loop.py")]
        results = [self.quiet(w, args=("--processes", p), job=job)[1] for w, p, job in cells]
        self.assertEqual({r["digest"] for r in results}, {results[0]["digest"]}, results)
        self.assertEqual({r["weights_digest"] for r in results}, {results[0]["weights_digest"]})
        other = self.train("other", sets=("seed=4", "train.max_steps=10"))
        self.assertNotEqual(other["digest"], self.quiet(sets=("train.max_steps=10",))[1]["digest"])

    def test_survives_the_death_of_workers_and_data_processes(self):
        _, quiet = self.quiet(args=("--processes", 1))
        process = self.start("killed", 3, args=("--processes", 2, "--slow", 0.02))
        draw = random.Random(1)
        for step, which in ((5, 0), (10, 2), (20, 1), (25, 2)):  # a worker, a keeper, data processes
            self.wait_for_step("killed", step)
            workers = workers_of(self.out("killed"))
            keepers = [k for w in workers for k in children(w)]
            data = [d for k in keepers for d in children(k)]
            kill(draw.choice([workers, keepers, data][which] or workers))
        result = self.finished(process, "killed")
        self.assertEqual(result["digest"], quiet["digest"])

    def test_is_that_of_an_undisturbed_run_after_a_resume(self):
        _, quiet = self.quiet(args=("--processes", 1))
        process = self.start("stopped", 2, args=("--slow", 0.02))
        self.wait_for_step("stopped", 10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        done = subprocess.run([support.DUCTILE, "train", "--resume", self.out("stopped"), "--workers", "1", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["result"]["digest"], quiet["digest"])

    def test_does_not_depend_on_which_process_draws_the_data(self):
        """At the import, in __init__, and by random_split() in train_data() and test_data()."""
        drawn = ("--fault", "drawn")
        _, quiet = self.quiet(args=drawn)
        with unittest.mock.patch.dict(os.environ, DUCTILE_ZYGOTE="off"):
            self.assertEqual(self.train("started", 3, args=drawn)["digest"], quiet["digest"])
        process = self.start("stopped", 2, args=(*drawn, "--slow", 0.02))
        self.wait_for_step("stopped", 10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        done = subprocess.run([support.DUCTILE, "train", "--resume", self.out("stopped"), "--workers", "1", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["result"]["digest"], quiet["digest"])

    def test_leaves_no_process_behind(self):
        process = self.start("run", 2, args=("--processes", 2, "--slow", 0.02))
        self.wait_for_step("run", 5)
        workers = workers_of(self.out("run"))
        keepers = [k for w in workers for k in children(w)]
        data = [d for k in keepers for d in children(k)]
        self.assertEqual((len(workers), len(keepers), len(data)), (2, 2, 4))
        self.finished(process, "run")
        wait(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers + keepers + data), "their end")


class Loop(Case):
    def test_has_the_bits_of_the_class(self):
        _, by_class = self.quiet(args=("--processes", 1))
        self.assertEqual(self.quiet(job="loop.py")[1]["digest"], by_class["digest"])

    def test_runs_a_step_again_that_was_given_up(self):
        _, quiet = self.quiet(job="loop.py")
        process = self.start("killed", 2, job="loop.py", args=("--slow", 0.02))
        for step in (5, 15):
            self.wait_for_step("killed", step)
            kill(workers_of(self.out("killed"))[0])
        self.assertEqual(self.finished(process, "killed")["digest"], quiet["digest"])

    def test_starts_a_run_by_itself(self):
        env = dict(os.environ, PYTHONPATH=os.path.join(support.BUILD, "python"), DUCTILE_RUNS=self.out("runs"),
                   DUCTILE_TRAIN__MAX_STEPS="5")
        done = subprocess.run([support.PYTHON, os.path.join(support.HERE, "loop.py"), "--processes", "1"], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(last_step(self.out("runs/latest")), 5)

    def test_tells_how_its_body_failed(self):
        text = self.refused("--out", self.out("a"), job="loop.py", args=("--fault", "body"), code=3)
        self.assertIn('raise KeyError("the body fails")', text)
        text = self.refused("--out", self.out("b"), job="loop.py", args=("--fault", "break"), code=3)
        self.assertIn("the loop was left before the job was done", text)
        text = self.refused("--out", self.out("c"), job="loop.py", args=("--processes", "two"), code=2)
        self.assertIn("loop.py: error: argument --processes: invalid int value: 'two'", text)


class Figures(Case):
    def test_are_those_of_the_job(self):
        run, result = self.quiet(args=("--processes", 1))
        self.assertGreater(result["best"]["accuracy"], 0.15)
        self.assertIn("margin", result["final"]["metrics"])
        metrics = lines(run, "metrics.jsonl")
        trained = [m for m in metrics if "train/loss" in m]
        self.assertTrue(all({"train/accuracy", "train/margin"} <= m.keys() for m in trained), trained)
        self.assertTrue(any({"eval/accuracy", "eval/margin"} <= m.keys() for m in metrics))
        self.assertFalse([k for m in metrics for k in m if "ratio/" in k or "of/" in k])

    def test_are_those_of_a_loop_written_out(self):
        """Plain PyTorch with the job's own classes: each rank by itself, the mean of the gradients."""
        run, _ = self.quiet(args=("--processes", 1))
        code = "import twin; twin.main()"
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(support.BUILD, "python"), support.HERE]))
        done = subprocess.run([support.PYTHON, "-c", code, run], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(float(done.stdout), 2e-5)


class Start(Case):
    def test_from_python_gives_the_same_run(self):
        env = dict(os.environ, PYTHONPATH=os.path.join(support.BUILD, "python"), OUT=self.out("run"))
        done = subprocess.run([support.PYTHON, os.path.join(support.HERE, "blobs.py")], env=env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, by_command = self.quiet(sets=("train.max_steps=10",))
        self.assertEqual(done.stdout.split()[0], by_command["digest"])

    def test_from_python_that_is_interrupted_has_saved(self):
        env = dict(os.environ, PYTHONPATH=os.path.join(support.BUILD, "python"), OUT=self.out("run"))
        process = subprocess.Popen([support.PYTHON, os.path.join(support.HERE, "blobs.py"), "--slow", "0.1"], env=env,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, process)
        self.wait_for_step("run", 5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, -signal.SIGINT, err)
        self.assertIn(f"KeyboardInterrupt: saved; go on with `ductile train --resume {self.out('run')}`", err)
        saved = [line["step"] for line in lines(self.out("run"), "events.jsonl") if line.get("kind") == "checkpoint"]
        self.assertGreaterEqual(max(saved, default=0), 5)
        done = subprocess.run([support.DUCTILE, "train", "--resume", self.out("run"), "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        _, by_command = self.quiet(sets=("train.max_steps=10",))
        self.assertEqual(json.loads(done.stdout)["result"]["digest"], by_command["digest"])

    def test_gives_a_model_that_can_be_loaded(self):
        run, result = self.quiet(args=("--processes", 1))
        code = ("import sys, ductile, torch\n"
                "model = ductile.load(sys.argv[1])\n"
                "from blobs import Blobs, Net\n"
                "assert type(model).__name__ == 'Net' and not model.training\n"
                "test = Blobs(100, False)\n"
                "x, y = zip(*[test[i] for i in range(100)])\n"
                "hits = (model(torch.stack(x)).argmax(1) == torch.tensor(y)).float().mean()\n"
                "print(float(hits), int(model.bn.num_batches_tracked))")
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.join(support.BUILD, "python"), support.HERE]))
        done = subprocess.run([support.PYTHON, "-c", code, run], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        hits, batches = done.stdout.split()
        self.assertAlmostEqual(float(hits), result["final"]["accuracy"], places=5)
        self.assertEqual(int(batches), 40)


    def test_gives_a_model_with_lazy_parameters(self):
        run, _ = self.quiet(args=("--fault", "tied,lazy"))
        code = ("import sys, ductile, torch\n"
                "from ductile import _core\n"
                "model = ductile.load(sys.argv[1])\n"
                "weights = _core.tensors(sys.argv[1] + '/model.safetensors')\n"
                "x = torch.randn(5, 432)\n"
                "got = model(x)\n"
                "x = torch.tanh(torch.tanh(x @ weights['first.weight'].T) @ weights['first.weight'].T)\n"
                "assert torch.allclose(got, x @ weights['last.weight'].T + weights['last.bias'], atol=1e-5)")
        env = dict(os.environ, PYTHONPATH=os.path.join(support.BUILD, "python"))
        done = subprocess.run([support.PYTHON, "-c", code, run], env=env, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_gives_the_model_of_a_loop_of_ones_own(self):
        """In the process that asks for it, which goes on: a notebook, say."""
        run, _ = self.quiet(job="loop.py")
        code = ("import sys, ductile\n"
                "argv = sys.argv\n"
                "model = ductile.load(sys.argv[1])\n"
                "assert type(model).__name__ == 'Net' and not model.training and sys.argv is argv\n"
                "print(int(model.bn.num_batches_tracked))\n"
                "try:\n"
                "    ductile.job(model=type(model), train=[0], test=[0])\n"
                "except ductile.Error as error:\n"
                "    print(error)")
        env = dict(os.environ, PYTHONPATH=os.path.join(support.BUILD, "python"))
        kernel = self.out("kernel.py")  # whose text is not the program that calls: sys.argv[0] of a notebook
        with open(kernel, "w"):
            pass
        code = f"import sys; sys.argv[0] = {kernel!r}\n" + code
        done = subprocess.run([support.PYTHON, "-c", code, run], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        batches, refusal = done.stdout.splitlines()
        self.assertEqual(int(batches), 40)
        self.assertIn("ductile.job() is called in no script", refusal)


class Submitted(Case):
    def test_to_a_service_gives_the_same_bits(self):
        _, by_command = self.quiet(sets=("train.max_steps=10",))
        folder = self.out("service")
        service = subprocess.Popen([support.DUCTILE, "up", "--devices", "2", "--no-page", "--folder", folder],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, service)
        at = ["--folder", folder]

        def asked(*words):
            return subprocess.run([support.DUCTILE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, timeout=120)

        wait(lambda: asked("jobs", *at).returncode == 0, "a service")
        done = asked("submit", os.path.join(support.HERE, "blobs.py:Job"), *at, "--set", f"python.interpreter={support.PYTHON}",
                     "--set", "train.max_steps=10", "--name", "blobs", "--", "--processes", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        wait(lambda: '"phase": "finished"' in asked("why", "1", *at, "--json").stdout, "the end of the job: " +
             asked("why", "1", *at).stdout)
        run = os.path.join(folder, "runs", "1-blobs")
        ends = [line for line in lines(run, "events.jsonl") if line.get("kind") == "end"]
        self.assertEqual(ends[-1]["digest"], by_command["digest"])
        service.send_signal(signal.SIGINT)
        service.communicate(timeout=120)


class State(Case):
    def same_with_kills(self, fault):
        _, quiet = self.quiet(args=("--fault", fault))
        process = self.start("killed", 2, args=("--fault", fault, "--slow", 0.02))
        self.wait_for_step("killed", 10)
        kill(workers_of(self.out("killed"))[0])
        self.assertEqual(self.finished(process, "killed")["digest"], quiet["digest"])

    def test_keeps_registered_state_an_assigned_buffer_and_places_of_streams(self):
        self.same_with_kills("reassigned,state,stream")

    def test_counts_tied_weights_once_and_settles_lazy_modules(self):
        self.same_with_kills("tied,lazy")


class Refusals(Case):
    def test_name_what_cannot_be_imported(self):
        self.assertIn("nowhere.py: there is no such file", self.refused(job="nowhere.py:Job", code=2))

    def test_name_a_python_without_torch(self):
        fake = self.out("python")
        with open(fake, "w") as file:  # isolated and without site-packages: it finds no torch
            file.write(f'#!/bin/sh\nexec {support.PYTHON} -S "$@"\n')
        os.chmod(fake, 0o755)
        text = self.refused("--set", f"python.interpreter={fake}", code=2)
        self.assertIn("cannot import torch", text)
        self.assertIn("python.interpreter=", text)
        self.assertIn("is not a program", self.refused("--set", "python.interpreter=/nowhere", code=4))

    def test_name_a_python_that_has_gone_and_how_the_run_goes_on(self):
        python, run = self.out("python"), self.out("run")
        os.symlink(support.PYTHON, python)
        done = self.train("run", sets=(f"python.interpreter={python}",))
        os.remove(python)
        resume = [support.DUCTILE, "train", "--resume", run, "--json"]
        refused = subprocess.run(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn(f"{python}: not there", refused.stderr)
        self.assertIn("in the run's job.toml, as interpreter of [python]", refused.stderr)
        self.assertNotIn("--set", refused.stderr)
        job = os.path.join(run, "job.toml")
        with open(job) as file:
            text = file.read()
        self.assertIn(f'interpreter = "{python}"', text)
        with open(job, "w") as file:
            file.write(text.replace(f'interpreter = "{python}"', f'interpreter = "{support.PYTHON}"'))
        resumed = subprocess.run(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(resumed.returncode, 0, resumed.stderr)
        self.assertEqual(json.loads(resumed.stdout)["result"]["digest"], done["digest"])

    def test_name_options_that_say_nothing(self):
        self.assertIn("train.precision", self.refused("--set", "train.precision=bf16", code=2))
        self.assertIn("train.virtual_ranks", self.refused("--set", "train.virtal_ranks=2", code=2))

    def test_show_the_traceback_of_the_program(self):
        text = self.refused("--out", self.out("loss"), args=("--fault", "loss"), code=3)
        self.assertIn("loss() of step 0, virtual rank 0", text)
        self.assertIn('return {}["a key that is not there"]', text)
        self.assertIn("KeyError", text)
        self.assertNotIn("_task.py", text)
        text = self.refused("--out", self.out("sample"), code=3, args=("--fault", "sample", "--processes", 2))
        self.assertIn("train_data(), sample 17:", text)
        self.assertIn('raise ValueError("sample 17 is torn")', text)

    def test_name_memory_that_is_gone(self):
        """What Python does not look at, C++ does."""
        self.assertIn("state/mean was Float [3] when the model was made, and is Float [3] now in 0 bytes of memory",
                      self.refused("--out", self.out("run"), args=("--fault", "emptied"), code=3))

    def test_do_not_go_on_with_another_program(self):
        script = self.out("train.py")
        with open(os.path.join(support.HERE, "blobs.py")) as file:
            text = file.read()
        with open(script, "w") as file:
            file.write(text)
        process = subprocess.Popen(self.command("--out", self.out("run"), job=script + ":Job", args=("--slow", 0.02)),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, process)
        self.wait_for_step("run", 10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        with open(script, "w") as file:
            file.write(text.replace("Dropout(0.1)", "Dropout(0.2)"))
        resume = [support.DUCTILE, "train", "--resume", self.out("run")]
        done = subprocess.run(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("its files are not those that the run began with", done.stderr)
        with open(script, "w") as file:
            file.write(text)
        self.assertEqual(subprocess.run(resume, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300).returncode, 0)

    def test_a_run_whose_model_is_pythons_answers_no_questions(self):
        run, _ = self.quiet(sets=("train.max_steps=10",))
        done = subprocess.run([support.DUCTILE, "eval", run], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)
        self.assertEqual(done.returncode, 2)
        self.assertIn("ductile.load(", done.stderr)


if __name__ == "__main__":
    unittest.main()
