"""The modules of `ductile` that need no torch, in a Python that has none: what they return is what the commands print."""

import collections
import copy
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zlib

sys.modules["torch"] = None  # `import torch` raises

import numpy  # noqa: E402

import ductile  # noqa: E402
import support  # noqa: E402
from ductile import _base  # noqa: E402


def printed(*words, code=0):
    """What a command prints with --json."""
    done = subprocess.run([support.DUCTILE, *map(str, words), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=support.PATIENCE)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def without(value, *names):
    """The value without the members that are measured."""
    if isinstance(value, dict):
        return {key: without(item, *names) for key, item in value.items() if key not in names}
    return [without(item, *names) for item in value] if isinstance(value, list) else value


def seconds_of(pid):
    """Processor time that a process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURED = ("decision_seconds", "decision_seconds_p99", "cpu_seconds")


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ductile-base-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def write(self, name, content):
        with open(self.path(name), "wb" if isinstance(content, bytes) else "w") as file:
            file.write(content)
        return self.path(name)

    def refused(self, kind, words, call, *arguments, **options):
        with self.assertRaises(kind) as caught:
            call(*arguments, **options)
        self.assertIn(words, str(caught.exception))
        return caught.exception


class Import(Case):
    def run_without_torch(self, program):
        """In a Python where a program that imports torch fails."""
        self.write("torch.py", "raise RuntimeError('torch was imported')")
        path = os.pathsep.join([self.folder, os.environ["PYTHONPATH"]])
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": path}, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_needs_no_torch_and_no_numpy_until_it_is_used(self):
        self.assertEqual(self.run_without_torch(
            "import sys, ductile; print('numpy' in sys.modules, 'ductile._base' in sys.modules); ductile.sim.run(jobs=2);"
            "ductile.plan.graphs(); print('numpy' in sys.modules); ductile.data.formats(), ductile.ckpt.list;"
            "print(callable(ductile.load))"), ["False", "False", "False", "True"])

    def test_names_numpy_where_it_is_missing(self):
        for module in ("ckpt", "data"):
            said = self.run_without_torch("import sys; sys.modules['numpy'] = None; import ductile\n"
                                          f"try: ductile.{module}\nexcept ImportError as error: print(error)")
            self.assertIn("cannot import numpy", " ".join(said))
            self.assertEqual(said[0], sys.executable)

    def test_of_the_extension_needs_no_library_of_torch(self):
        found = subprocess.run(["ldd", _base.__file__], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertNotIn("torch", found)
        self.assertNotIn("libc10", found)  # c10 alone may stand in an address

    def test_names_what_there_is(self):
        self.assertLessEqual({"ckpt", "data", "plan", "sched", "sim", "Error"}, set(dir(ductile)))
        with self.assertRaises(AttributeError):
            ductile.simulator  # noqa: B018


class Errors(Case):
    def test_are_of_four_kinds(self):
        kinds = {"data_loss": ductile.DamageError, "not_found": ductile.AbsenceError,
                 "invalid_argument": ductile.RefusalError, "conflict": ductile.RefusalError,
                 "unavailable": ductile.TryAgainError, "deadline": ductile.TryAgainError,
                 "peer_lost": ductile.TryAgainError, "internal": ductile.Error}
        for code, kind in kinds.items():
            error = ductile.Error(code, "the text")
            self.assertIs(type(error), kind)
            for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
                self.assertEqual((type(one), one.code, str(one)), (kind, code, "the text"))

    def test_of_the_extension_have_their_kind(self):
        self.refused(ductile.AbsenceError, "nothing.csv", ductile.sim.run, self.path("nothing.csv"))
        self.refused(ductile.RefusalError, "did you mean \"sia\"", ductile.sim.run, policy="siar")
        self.refused(ductile.DamageError, "bad.safetensors", ductile.ckpt.weights,
                     self.write("bad.safetensors", b"\xff" * 64))
        os.mkdir(self.path("a-folder"))
        self.refused(ductile.TryAgainError, "a-folder", ductile.ckpt.save_weights, self.path("a-folder"), {"a": [1.0]})


class Simulator(Case):
    def test_gives_what_the_command_prints(self):
        words = ("sim", "--jobs", 24, "--policy", "ductile,tiresias", "--seeds", 2, "--noise", 0.1, "--tiers")
        given = ductile.sim.compare(jobs=24, policies=("ductile", "tiresias"), seeds=2, noise=0.1, tiers=True)
        shown = printed(*words)
        for key in "conditions", "version", "command":  # of the command, not of what is compared
            self.assertTrue(shown.pop(key), key)
        self.assertEqual(without(given, *MEASURED), without(shown, *MEASURED))

    def test_gives_the_history_of_each_job(self):
        run = ductile.sim.run(jobs=12, policy="fifo", seed=3)
        self.assertEqual(len(run["jobs"]), 12)
        mean = sum(job["finish"] - job["arrival"] for job in run["jobs"]) / 12
        self.assertAlmostEqual(run["summary"]["mean_jct"], mean, delta=1e-6 * mean)
        held = collections.Counter()
        for part in run["timeline"]:
            held[part["job"]] += sum(devices for _, devices in part["nodes"]) * (part["to"] - part["from"])
        for job in run["jobs"]:
            self.assertAlmostEqual(held[job["name"]], job["device_seconds"], delta=1e-6 * job["device_seconds"])
        self.assertEqual(without(run, *MEASURED), without(ductile.sim.run(jobs=12, policy="fifo", seed=3), *MEASURED))

    def test_takes_workloads_as_files_and_as_plain_objects(self):
        jobs = ductile.sim.synthetic(15, seed=2, tiers=True, services=1)
        columns = list(dict.fromkeys(key for job in jobs for key in job))
        text = ",".join(columns) + "\n" + "".join(",".join(str(job.get(c, "")) for c in columns) + "\n" for job in jobs)
        file = self.write("jobs.csv", text)
        self.assertEqual(ductile.sim.read(file), jobs)
        ours, theirs = (ductile.sim.run(workload)["jobs"] for workload in (jobs, file))
        self.assertEqual(ours, theirs)
        self.assertEqual(len(ours), 16)
        self.refused(ductile.RefusalError, "workload:2", ductile.sim.run, [{**jobs[0], "num_replicas": "many"}])
        self.refused(ductile.RefusalError, "a dictionary is needed", ductile.sim.run, ["bert"])

    def test_takes_clusters_and_scenarios_as_files_and_as_plain_objects(self):
        tree = {"nodes": [{"type": "t4", "count": 3, "devices": 4}, {"type": "a100", "count": 1, "devices": 2}]}
        file = self.write("cluster.json", json.dumps(tree))
        toml = self.write("faults.toml", "lost_work_seconds = 60\n[[fault]]\nkind = \"node_loss\"\nat = 1000\nnodes = [0, 1]\n")
        faults = {"lost_work_seconds": 60, "fault": [{"kind": "node_loss", "at": 1000, "nodes": [0, 1]}]}
        runs = [ductile.sim.run(jobs=10, cluster=cluster, scenario=scenario)
                for cluster, scenario in ((file, toml), (tree, faults), (ductile.sched.cluster(tree), faults))]
        self.assertEqual(runs[0]["jobs"], runs[1]["jobs"])
        self.assertEqual(runs[0]["jobs"], runs[2]["jobs"])
        self.assertGreater(sum(job["node_losses"] for job in runs[0]["jobs"]), 0)
        self.refused(ductile.RefusalError, "nodes", ductile.sim.run, cluster={"node": []})
        self.refused(ductile.AbsenceError, "none.toml", ductile.sim.run, scenario=self.path("none.toml"))
        self.refused(ductile.RefusalError, "noise", ductile.sim.run, noise=-1)

    def test_tells_its_progress_and_ends_with_the_error_of_who_is_told(self):
        seen = []
        ductile.sim.run(jobs=40, progress=lambda *now: seen.append(now))
        self.assertTrue(all(policy == "ductile" and 0 <= done <= jobs == 40 for policy, _, done, jobs in seen), seen)
        self.assertTrue(seen)
        with self.assertRaises(ZeroDivisionError):
            ductile.sim.run(jobs=40, progress=lambda *now: 1 / 0)

    def test_runs_beside_other_threads(self):
        ticks, inside, stop = [], [0], threading.Event()

        def count():  # how often it woke up while one and the same call went on
            last, times = None, 0
            while not stop.is_set():
                now = inside[0]
                times = times + 1 if now and now == last else 0
                last = now
                ticks.append(times)
                time.sleep(0.01)

        thread = threading.Thread(target=count)
        thread.start()
        until = time.monotonic() + support.PATIENCE
        call = 0
        while max(ticks, default=0) < 5 and time.monotonic() < until:
            call += 1
            inside[0] = call
            ductile.sim.run(jobs=60 * call)
            inside[0] = 0
        stop.set()
        thread.join()
        self.assertGreaterEqual(max(ticks), 5)


class Interrupts(Case):
    def interrupted(self, call):
        """Ctrl-C while `call`, which takes minutes, is at work."""
        program = f"import ductile\nprint('begun', flush=True)\n{call}\nprint('returned', flush=True)"
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, process)
        self.assertEqual(process.stdout.readline(), "begun\n")
        begun = seconds_of(process.pid)
        support.wait(lambda: seconds_of(process.pid) > begun + 0.5, "the call to be at work")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=support.PATIENCE)
        self.assertNotIn("returned", out)
        self.assertIn("KeyboardInterrupt", err)
        self.assertEqual(process.returncode, -signal.SIGINT)

    def test_end_a_simulation(self):
        self.interrupted("ductile.sim.run(jobs=200_000, policy='pollux')")

    def test_end_the_estimate_of_a_bound(self):
        self.interrupted("ductile.sim.compare(jobs=4000, policies=['fifo'], bound=True, load=0.1)")

    def test_end_the_search_of_a_plan(self):
        self.interrupted("ductile.plan.plan('random:ops=120', devices=64, batch=512, time_limit=900)")


class Scheduling(Case):
    def test_names_the_policies(self):
        found = {policy["name"]: policy["interval"] for policy in ductile.sched.policies()}
        self.assertEqual((found["gavel"], found["ductile"]), (360, 60))

    def test_fits_step_times_and_chooses_batches(self):
        true = {"alpha_c": 0.02, "beta_c": 0.001, "alpha_n": 0.1, "beta_n": 0.01, "alpha_r": 0.05, "beta_r": 0.005, "gamma": 2}
        rows = []
        for nodes, replicas in ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16)):
            for local in (16, 64, 128):
                rows.append((nodes, replicas, local, true["alpha_c"] + true["beta_c"] * local,
                             ductile.sched.step_seconds(true, nodes, replicas, local)))
        found = ductile.sched.fit(rows)
        for nodes, replicas, local, _, seconds in rows:
            here = ductile.sched.step_seconds(found, nodes, replicas, local)
            self.assertLess(abs(here / seconds - 1), 0.05)
        limits = {"init_batch": 128, "max_batch": 4096, "max_local": 256}
        small, large = (ductile.sched.best_batch(true, (1.0, var), 2, 8, **limits) for var in (0.1, 100.0))
        self.assertLess(small["local_batch"], large["local_batch"])
        self.refused(ductile.RefusalError, "no step times", ductile.sched.fit, [])
        self.refused(ductile.RefusalError, "gamma", ductile.sched.step_seconds, {**true, "gamma": 0.5}, 1, 1, 1)
        self.refused(ductile.RefusalError, "node", ductile.sched.step_seconds, true, 2, 1, 1)


class Planner(Case):
    def test_gives_what_the_command_prints(self):
        words = ("plan", "mmt", "--devices", 8, "--batch", 64, "--baseline", "piper", "--optimizer-state", 2)
        given = ductile.plan.plan("mmt", 8, 64, baselines=["piper"], optimizer_state=2)
        self.assertEqual(without(given, *MEASURED), without(printed(*words), *MEASURED))

    def test_takes_graphs_devices_and_plans_as_files_and_as_plain_objects(self):
        cluster = {"nodes": [{"type": "v100", "count": 2, "devices": 2}]}
        graph = ductile.plan.graph("candle:4", cluster)
        file = self.write("graph.json", json.dumps(graph))
        devices = self.write("cluster.json", json.dumps(cluster))
        ours, theirs = ductile.plan.plan(graph, cluster, 32), ductile.plan.plan(file, devices, 32)
        self.assertEqual(without(ours, *MEASURED), without(theirs, *MEASURED))
        again = ductile.plan.evaluate(graph, ours, cluster)
        self.assertEqual(again["evaluation"], ours["evaluation"])
        saved = self.write("plan.json", json.dumps(ours))
        self.assertEqual(ductile.plan.evaluate(file, saved, devices)["evaluation"], ours["evaluation"])
        picture = ductile.plan.draw(graph, ours["plan"], cluster)
        self.assertTrue(picture._repr_svg_().startswith("<svg"))
        self.assertIn("<html", ductile.plan.page(graph, ours, cluster))

    def test_says_what_would_help_where_no_plan_fits(self):
        tiny = {"nodes": [{"type": "tiny", "devices": 2, "memory": 1e6}]}
        report = ductile.plan.plan("gpt:layers=2", tiny, 8)
        self.assertFalse(report["feasible"])
        self.assertIn("memory", report["advice"])

    def test_names_what_is_wrong(self):
        self.refused(ductile.AbsenceError, "did you mean \"candle\"", ductile.plan.plan, "candel")
        self.refused(ductile.RefusalError, "objective", ductile.plan.plan, "mmt", objective="speed")
        self.refused(ductile.RefusalError, "batch", ductile.plan.plan, "mmt", batch=0)
        self.refused(ductile.RefusalError, "micro", ductile.plan.plan, "mmt", micro_batch=0)
        self.refused(ductile.RefusalError, "did you mean \"piper\"", ductile.plan.plan, "mmt", baselines=["pipr"])
        self.refused(ductile.RefusalError, "graph", ductile.plan.plan, {"ops": 3})
        self.refused(ductile.RefusalError, "graph", ductile.plan.plan, {1, 2})


class Trained(Case):
    """A run of a built-in model, which the tests of checkpoints share."""

    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp(prefix="ductile-base-")
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        cls.run_folder = os.path.join(cls.home, "run")
        sets = ("train.batch_size=64", "train.virtual_ranks=4", "data.train_limit=640", "data.test_limit=64",
                "augment.flip=true", "augment.pad=2", "seed=9", "model.name=mlp")
        words = [word for option in sets for word in ("--set", option)]
        earlier = os.path.join(cls.home, "earlier")
        printed("train", "--out", earlier, "--set", "train.max_steps=6", *words)
        cls.result = printed("train", "--out", cls.run_folder, "--set", "train.max_steps=12", *words)
        # A checkpoint after 6 steps and one after 12, whichever a run that fast would have had time to write.
        shutil.copytree(os.path.join(earlier, "checkpoints"), os.path.join(cls.run_folder, "checkpoints"), dirs_exist_ok=True)


class Checkpoints(Trained):
    def test_are_listed_verified_and_shown_as_the_commands_do(self):
        self.assertEqual(ductile.ckpt.list(self.run_folder), printed("ckpt", "list", self.run_folder))
        self.assertEqual(ductile.ckpt.verify(self.run_folder), printed("ckpt", "verify", self.run_folder))
        shown = printed("ckpt", "show", self.run_folder)
        last = ductile.ckpt.open(os.path.join(self.run_folder, "checkpoints"))
        self.assertEqual((last.step, last.digest(), last.state, last.infos),
                         (shown["step"], shown["digest"], shown["state"], shown["tensors"]))
        self.assertEqual(last.digest(), self.result["result"]["digest"])

    def test_hold_the_weights_of_the_run(self):
        last = ductile.ckpt.open(self.run_folder)
        weights = ductile.ckpt.weights(self.run_folder)
        self.assertTrue(weights)
        for name, value in weights.items():
            self.assertTrue(numpy.array_equal(last["model/" + name], value), name)
        self.assertEqual({"model/" + name for name in weights}, set(last.tensors("model/")))
        self.assertTrue(numpy.array_equal(numpy.from_dlpack(next(iter(weights.values()))), next(iter(weights.values()))))
        with self.assertRaises(KeyError):
            last["model/none"]

    def test_differ_by_tensors_and_values(self):
        steps = [found["step"] for found in ductile.ckpt.list(self.run_folder)]
        new, old = (ductile.ckpt.open(self.run_folder, step) for step in steps[:2])
        self.assertEqual(ductile.ckpt.diff(new, self.run_folder), {"same": True, "tensors": [], "state": []})
        found = ductile.ckpt.diff(old, new)
        self.assertFalse(found["same"])
        self.assertIn("step", found["state"])
        for change in found["tensors"]:
            a, b = old[change["name"]], new[change["name"]]
            self.assertEqual((change["change"], change["elements"], change["different"]), ("values", a.size, int((a != b).sum())))
            self.assertAlmostEqual(change["largest"], float(abs(a.astype("f8") - b).max()))
        self.assertTrue(found["tensors"])

    def test_that_are_damaged_are_named_and_skipped(self):
        copied = shutil.copytree(self.run_folder, self.path("run"))
        steps = [found["step"] for found in ductile.ckpt.list(copied)]
        manifest = os.path.join(copied, "checkpoints", "manifests", f"step-{steps[0]:012}.json")
        with open(manifest, "r+b") as file:
            file.seek(40)
            file.write(b"!")
        self.refused(ductile.DamageError, os.path.basename(manifest), ductile.ckpt.open, copied, steps[0])
        before = ductile.ckpt.open(copied)
        self.assertEqual(before.step, steps[1])
        self.assertIn(os.path.basename(manifest), before.refused[0])
        self.assertFalse(ductile.ckpt.verify(copied)["ok"])
        shutil.rmtree(os.path.join(copied, "checkpoints", "chunks"))
        self.refused(ductile.DamageError, "no usable checkpoint", ductile.ckpt.open, copied)
        self.refused(ductile.AbsenceError, "nowhere", ductile.ckpt.open, self.path("nowhere"))
        self.refused(ductile.AbsenceError, "77", ductile.ckpt.open, self.run_folder, 77)

    def test_weights_are_written_and_read_back(self):
        tensors = {"a": numpy.arange(6, dtype="f4").reshape(2, 3), "b": numpy.array([1, -2], "i8"),
                   "c": numpy.array(2.5), "flags": numpy.array([True, False]), "cut": numpy.arange(8.0)[::2]}
        file = self.path("out.safetensors")
        ductile.ckpt.save_weights(file, tensors, {"from": "a test"})
        found = ductile.ckpt.weights(file)
        self.assertEqual(set(found), set(tensors))
        for name, value in tensors.items():
            self.assertTrue(numpy.array_equal(found[name], value), name)
            self.assertEqual(found[name].shape, value.shape)
        self.refused(ductile.RefusalError, "complex128", ductile.ckpt.save_weights, file, {"z": numpy.zeros(2, complex)})
        self.refused(ductile.RefusalError, "words", ductile.ckpt.save_weights, file, {"words": ["x"]})
        self.assertEqual(set(ductile.ckpt.weights(file)), set(tensors))

    def test_bf16_has_its_values_in_float32(self):
        header = json.dumps({"x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
        body = struct.pack("<3H", 0x3F80, 0xC040, 0x7F80)
        file = self.write("half.safetensors", struct.pack("<Q", len(header)) + header + body)
        self.assertEqual(ductile.ckpt.weights(file)["x"].tolist(), [1.0, -3.0, float("inf")])

    def test_weights_that_were_altered_are_refused(self):
        with open(os.path.join(self.run_folder, "model.safetensors"), "rb") as file:
            content = bytearray(file.read())
        content[-3] ^= 1
        self.refused(ductile.DamageError, "digest", ductile.ckpt.weights, self.write("w.safetensors", bytes(content)))


class Data(Trained):
    def test_is_inspected_as_the_command_does(self):
        pixels = numpy.random.default_rng(1).integers(0, 256, (20, 28, 28), "u1")
        os.mkdir(self.path("idx"))
        for split, few in (("train", 20), ("t10k", 5)):
            self.write(f"idx/{split}-images-idx3-ubyte", struct.pack(">4I", 2051, few, 28, 28) + pixels[:few].tobytes())
            labels = bytes(i % 10 for i in range(few))
            self.write(f"idx/{split}-labels-idx1-ubyte", struct.pack(">2I", 2049, few) + labels)
        given = [ductile.data.inspect(self.path("idx"), split=split) for split in ("train", "test")]
        self.assertEqual(given, printed("data", "inspect", self.path("idx")))
        data = ductile.data.open(self.path("idx"))
        self.assertEqual((len(data), data.info["format"]), (20, "idx"))
        for i in (0, 7, -1):
            image, label = data[i]
            self.assertTrue(numpy.array_equal(image[:, :, 0], pixels[i]))
            self.assertEqual(label, i % 20 % 10)
        with self.assertRaises(IndexError):
            data[20]
        self.assertEqual([label for _, label in data], [i % 10 for i in range(20)])
        self.assertIn("train-images", data.where(3))

    def test_comes_in_the_order_of_the_trainer(self):
        loader = ductile.data.of_run(self.run_folder)
        batches = [next(loader) for _ in range(4 * 12)]
        cursor = 0
        for at in range(12):
            epoch, first, cursor = ductile.data.step(cursor, 64, 640)
            wanted = ductile.data.order(9, epoch, 640, first, 64)
            step = batches[4 * at:4 * at + 4]
            self.assertEqual([batch.part for batch in step], [0, 1, 2, 3])
            self.assertTrue(numpy.array_equal(numpy.concatenate([batch.samples for batch in step]), wanted))
            self.assertEqual([(batch.epoch, batch.next_cursor) for batch in step], [(epoch, cursor)] * 4)
        whole = ductile.data.order(9, 1, 640)
        self.assertEqual(sorted(whole), list(range(640)))
        self.assertTrue(numpy.array_equal(loader.indices(1, 3, 5), whole[3:8]))

    def test_comes_in_the_order_that_losses_of_python_jobs_see(self):
        seen = self.path("seen")
        job = os.path.join(support.HERE, "order.py:Job")
        subprocess.run([support.DUCTILE, "train", job, "--out", self.path("run"), "--set",
                        f"python.interpreter={support.PYTHON}"], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       env={**os.environ, "SEEN": seen}, timeout=support.PATIENCE)
        with open(seen) as file:
            given = [[int(word) for word in line.split()] for line in file]
        wanted, cursor = [], 0
        for _ in range(10):
            epoch, first, cursor = ductile.data.step(cursor, 16, 96)
            order = ductile.data.order(21, epoch, 96, first, 16).tolist()
            wanted += [order[:8], order[8:]]
        self.assertEqual(given, wanted)
        self.refused(ductile.RefusalError, "order.py:Job", ductile.data.of_run, self.path("run"))

    def test_is_augmented_by_seed_epoch_and_sample_alone(self):
        options = {"augment": {"flip": True, "pad": 2, "cutout": 4}, "seed": 5}
        digits = ductile.data.open(train_limit=200)
        whole = list(ductile.data.Loader(digits, 40, epochs=2, **options))
        self.assertEqual(len(whole), 10)
        self.assertEqual(whole[0].input.shape, (40, *ductile.data.Loader(digits, 40, **options).sample_shape))
        later = ductile.data.Loader(digits, 40, start=200, parts=2, loader={"threads": 1}, **options)
        for batch in whole[5:]:
            halves = [next(later), next(later)]
            self.assertTrue(numpy.array_equal(numpy.concatenate([half.input for half in halves]), batch.input))
            fetched = later.fetch(batch.samples, epoch=1)
            self.assertTrue(numpy.array_equal(fetched.input, batch.input))
            self.assertEqual([digits.label(int(i)) for i in batch.samples], batch.labels.tolist())
            self.assertEqual(batch.labels.tolist(), fetched.labels.tolist())
        kept = whole[0].input.copy()
        del later
        self.assertTrue(numpy.array_equal(numpy.from_dlpack(whole[0].input), kept))

    def test_of_a_test_set_is_read_once_and_in_order(self):
        batches = list(ductile.data.of_run(self.run_folder, "test"))
        self.assertEqual(numpy.concatenate([batch.samples for batch in batches]).tolist(), list(range(64)))
        self.assertEqual(batches[0].input.dtype, numpy.float32)

    def test_of_images_of_other_sizes_is_evaluated_at_that_of_the_training(self):
        def put(name, side):
            def chunk(kind, data):
                return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            rows = b"".join(b"\0" + bytes((7 * x + 31 * y) % 256 for x in range(3 * side)) for y in range(side))
            os.makedirs(os.path.dirname(self.path("images", name)), exist_ok=True)
            with open(self.path("images", name), "wb") as file:
                file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
                           + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

        def held_out():
            data = ductile.data.open(self.path("images"), "folder", "test")
            return next(ductile.data.Loader(data, 8, train=train, training=False)).input

        for name in ("train/a/0.png", "train/a/10.png", "train/b/0.png", "val/a/0.png", "val/b/0.png"):
            put(name, 8)
        train = ductile.data.open(self.path("images"), "folder")
        before = held_out()
        put("val/b/z.png", 9)
        after = held_out()
        self.assertEqual(after.shape, (3, 3, 8, 8))
        self.assertTrue(numpy.array_equal(after[:2], before))
        # As a run refuses it: only training pads, and images are not made larger unless that is asked for.
        for pad in (0, 1):
            self.refused(ductile.RefusalError, "augment.crop = 10 is larger than the training images, 8 x 8", ductile.data.Loader, train, 3,
                         train=train, training=False, augment={"crop": 10, "pad": pad})
        asked = ductile.data.Loader(train, 3, train=train, training=False, augment={"crop": 10, "resize": 10})
        self.assertEqual(next(asked).input.shape, (3, 3, 10, 10))

    def test_of_tokens_is_numbers(self):
        tokens = numpy.arange(1000, dtype="<u2") % 50
        file = self.write("text.bin", tokens.tobytes())
        data = ductile.data.open(file, tokens={"type": "u16", "sequence_length": 9})
        self.assertEqual(data[1][0].tolist(), [int(t) for t in tokens[len(data[0][0]) - 1:][:10]])
        batch = next(ductile.data.Loader(data, 4, training=False))
        self.assertTrue(numpy.array_equal(batch.input[:, 1:], batch.labels[:, :-1]))

    def test_names_what_is_wrong(self):
        self.refused(ductile.RefusalError, "needs a path", ductile.data.open, format="idx")
        self.refused(ductile.RefusalError, "did you mean train_limit", ductile.data.open, train_limits=3)
        self.refused(ductile.RefusalError, "split", ductile.data.open, split="val")
        self.refused(ductile.AbsenceError, "nowhere", ductile.data.open, self.path("nowhere"))
        self.refused(ductile.RefusalError, "places", ductile.data.order, 1, 0, 10, 5, 6)
        digits = ductile.data.open(train_limit=10)
        self.refused(ductile.RefusalError, "batch", ductile.data.Loader, digits, 11)
        self.refused(ductile.RefusalError, "flop", ductile.data.Loader, digits, 5, augment={"flop": True})


if __name__ == "__main__":
    unittest.main(verbosity=2)
