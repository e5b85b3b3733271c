"""Weights from elsewhere: files of torch.save() and safetensors become the beginning of a run, and of a module."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import unittest

import torch

import ductile
import support
from ductile import _weights
from support import Case


class Evil:
    def __reduce__(self):
        return os.system, (f"touch {os.environ['DUCTILE_TEST_MARK']}",)


class Import(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(31)
        self.net = torch.nn.ModuleDict({"conv": torch.nn.Conv2d(3, 8, 3, padding=1), "bn": torch.nn.BatchNorm2d(8),
                                        "fc": torch.nn.Linear(8 * 36, 10)})  # of blobs.py
        with torch.no_grad():
            self.net["bn"].running_mean.normal_()
        self.state = self.net.state_dict()

    def save(self, name, value):
        torch.save(value, self.out(name))
        return self.out(name)

    def ductile(self, *words, code=0):
        done = subprocess.run([support.DUCTILE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=support.PATIENCE,
                              env={**os.environ, "DUCTILE_PYTHON__INTERPRETER": support.PYTHON})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def imported(self, *words):
        self.ductile("ckpt", "import", *words, "--output", self.out("w.safetensors"))
        return ductile.ckpt.weights(self.out("w.safetensors"))

    def check(self, weights):
        for name, value in self.state.items():
            self.assertTrue(torch.equal(torch.from_numpy(weights[name]), value), name)

    def test_reads_state_dicts_and_checkpoints_of_torch(self):
        self.check(self.imported(self.save("plain.pt", self.state)))
        self.check(self.imported(self.save("whole.pt", {"epoch": 3, "state_dict": self.state, "lr": 0.1})))
        self.check(self.imported(self.save("keyed.pt", {"ema": {"weights": self.state}, "model": {"x": torch.ones(1)}}),
                                 "--key", "ema.weights"))
        wrapped = {"module." + name: value for name, value in self.state.items()}
        self.check(self.imported(self.save("wrapped.pt", wrapped), "--prefix", "module."))
        torch.save(self.state, self.out("old.pt"), _use_new_zipfile_serialization=False)
        self.check(self.imported(self.out("old.pt")))

    def test_reads_shards_of_safetensors_and_other_types(self):
        names = list(self.state)
        for number, part in enumerate((names[:4], names[4:])):
            ductile.ckpt.save_weights(self.out(f"{number}.safetensors"), {name: self.state[name].numpy() for name in part})
        self.check(self.imported(self.out("0.safetensors"), self.out("1.safetensors")))
        half = self.imported(self.save("half.pt", {name: value.bfloat16() if value.is_floating_point() else value
                                                   for name, value in self.state.items()}))
        self.assertTrue(torch.equal(torch.from_numpy(half["fc.weight"]), self.state["fc.weight"].bfloat16().float()))

    def test_a_header_whose_length_begins_like_a_pickle_is_read(self):
        file, read = self.out("named.safetensors"), 0
        for n in range(1, 100):
            ductile.ckpt.save_weights(file, {"w" * n: torch.ones(2).numpy()})
            with open(file, "rb") as opened:
                if opened.read(1) != b"\x80" or read == 2:
                    continue
            self.assertEqual(list(self.imported(file)), ["w" * n])
            read += 1
        self.assertEqual(read, 2)

    def test_refuses_what_is_no_file_of_weights(self):
        os.environ["DUCTILE_TEST_MARK"] = mark = self.out("mark")
        self.addCleanup(os.environ.pop, "DUCTILE_TEST_MARK")
        evil = self.save("evil.pt", {"w": Evil()})
        with open(self.out("pickle.pt"), "wb") as file:
            pickle.dump({"w": Evil()}, file)
        with open(self.save("torn.pt", self.state), "r+b") as file:
            file.truncate(os.path.getsize(file.name) // 2)
        with open(self.out("noise.safetensors"), "wb") as file:
            file.write(b"\xff" * 100)
        plain = self.save("plain.pt", self.state)
        # What its own Python refuses reaches the command in one way; that takes an import of torch each time.
        for file, key, text in ((evil, "", "plain containers"), (self.out("pickle.pt"), "", "plain containers"),
                                (self.save("numbers.pt", {"lr": 0.1}), "", "--key"), (self.save("list.pt", [1, 2]), "", "list"),
                                (plain, "ema", "ema"),
                                (self.save("sparse.pt", {"w": torch.eye(2).to_sparse()}), "", "plain containers"),
                                (self.save("wide.pt", {"w": torch.ones(1).expand(10**9)}), "", "stored")):
            with self.assertRaises(ductile.RefusalError) as refused:
                _weights.convert(file, self.out("w.safetensors"), key)
            self.assertIn(text, str(refused.exception))
            self.assertFalse(os.path.exists(self.out("w.safetensors")), file)
        for words, code, text in (((evil,), 2, "plain containers"), ((self.out("torn.pt"),), 1, "torn.pt"),
                                  ((self.out("noise.safetensors"),), 1, "noise"), ((self.out("none.pt"),), 4, "none.pt"),
                                  ((plain, "--prefix", "model."), 2, "model."), ((plain, "--key", "ema"), 2, "ema")):
            said = self.ductile("ckpt", "import", *words, "--output", self.out("w.safetensors"), code=code)
            self.assertIn(text, said)
            self.assertFalse(os.path.exists(self.out("w.safetensors")), words)
        self.assertFalse(os.path.exists(mark))

    def test_is_what_a_run_begins_with(self):
        file = self.save("net.pt", self.state)
        self.ductile("ckpt", "import", file, "--output", self.out("net.safetensors"))
        still = ("optimizer.lr=0", "train.max_steps=2")
        results = []
        for name, weights, workers in (("one", file, 1), ("two", self.out("net.safetensors"), 2)):
            done = subprocess.run([*self.command("--out", self.out(name), "--workers", str(workers), "--weights", weights,
                                                 sets=still)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=support.PATIENCE)
            self.assertEqual(done.returncode, 0, done.stderr + support.log_of(self.out(name)))
            results.append(json.loads(done.stdout)["result"]["digest"])
        self.assertEqual(results[0], results[1])
        drawn = self.train("drawn", sets=still)
        self.assertNotEqual(drawn["digest"], results[0])
        trained = ductile.ckpt.weights(self.out("one"))
        for name, value in self.net.named_parameters():
            self.assertTrue(torch.equal(torch.from_numpy(trained[name]), value), name)
        again = self.ductile("train", "--replay", self.out("one"), "--out", self.out("again"))
        self.assertIn("the same bits", again)

    def test_is_what_load_puts_into_a_module(self):
        self.train("run", sets=("train.max_steps=2",))
        self.imported(self.save("net.pt", self.state))
        net = ductile.load(self.out("run"), weights=self.out("w.safetensors"))
        for name, value in net.named_parameters():
            self.assertTrue(torch.equal(value, dict(self.net.named_parameters())[name]), name)

    def test_of_another_model_is_refused_by_name(self):
        other = {name: value for name, value in self.state.items() if name != "fc.bias"}
        said = self.refused("--out", self.out("a"), "--weights", self.save("less.pt", other), code=2)
        self.assertIn("fc.bias", said)
        said = self.refused("--out", self.out("b"), "--weights", self.save("more.pt", {**self.state, "head": torch.ones(1)}), code=2)
        self.assertIn("head", said)
        said = self.refused("--out", self.out("c"), "--weights",
                            self.save("shape.pt", {**self.state, "fc.bias": torch.ones(3)}), code=2)
        self.assertIn("fc.bias is float32 [3]", said)
        self.ductile("train", "--resume", self.out("a"), "--weights", self.out("less.pt"), code=2)

    def test_is_in_a_run_from_its_beginning(self):
        """The command is killed as soon as there is a run. Weights of this size take some time to be written."""
        ductile.ckpt.save_weights(self.out("large.safetensors"), {"w": torch.zeros(1 << 25)})
        for name in ("a", "b"):
            run = self.out(name)
            process = subprocess.Popen(self.command("--out", run, "--weights", self.out("large.safetensors")),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(support.end, process)
            until = time.monotonic() + support.PATIENCE
            while not os.path.exists(os.path.join(run, "job.toml")):
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), until)
            process.send_signal(signal.SIGKILL)
            process.wait()
            kept = ductile.ckpt.weights(os.path.join(run, "initial.safetensors"))  # compared with their digest
            self.assertEqual(kept["w"].shape, (1 << 25,))


class Kinds(Case):
    """Buffers of all kinds and a tied weight, of given.py."""

    def setUp(self):
        super().setUp()
        g = torch.Generator().manual_seed(7)
        strange = torch.tensor([0x7f812345, 1], dtype=torch.int32)  # no number, and a very small one
        tied = torch.randn(8, 8, generator=g)
        self.state = {"first.weight": tied, "second.weight": tied, "norm.weight": torch.ones(8), "norm.bias": torch.zeros(8),
                      "norm.running_mean": torch.randn(8, generator=g), "norm.running_var": torch.ones(8),
                      "norm.num_batches_tracked": torch.tensor(40), "last.weight": torch.randn(2, 8, generator=g),
                      "last.bias": torch.zeros(2), "mean": torch.randn(8, generator=g),
                      "unused": strange.view(torch.float32),
                      "exact": torch.tensor([1 / 3], dtype=torch.float64), "mask": torch.tensor([False, True]),
                      "seen": torch.tensor(100), "large": torch.linspace(0, 1, 70_000)}

    def save(self, name, **changes):
        state = {**self.state, **changes}
        torch.save({key: value for key, value in state.items() if value is not None}, self.out(name))
        return self.out(name)

    def result(self, name, weights, workers=1, **how):
        done = subprocess.run(self.command("--out", self.out(name), "--workers", str(workers), "--weights", weights,
                                           job="given.py:Job", **how),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=support.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + support.log_of(self.out(name)))
        return json.loads(done.stdout)["result"]["digest"]

    def saved(self, name):
        return {key: torch.from_numpy(value) for key, value in ductile.ckpt.weights(self.out(name)).items()}

    def test_are_what_a_run_begins_with(self):
        still = ("optimizer.lr=0", "train.max_steps=3")
        digest = self.result("one", self.save("net.pt"), sets=still)
        self.assertEqual(self.result("two", self.out("net.pt"), workers=2, sets=still), digest)
        found = self.saved("one")
        for name in ("first.weight", "last.weight", "mean", "unused", "exact", "mask"):
            self.assertEqual(found[name].numpy().tobytes(), self.state[name].numpy().tobytes(), name)
        self.assertEqual(int(found["seen"]), 103)
        self.assertEqual(int(found["norm.num_batches_tracked"]), 43)
        drawn = self.train("drawn", job="given.py:Job", sets=still)
        self.assertNotEqual(drawn["digest"], digest)
        done = subprocess.run([support.DUCTILE, "train", "--replay", self.out("one"), "--out", self.out("again")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=support.PATIENCE)
        self.assertIn("the same bits", done.stdout + done.stderr)

    def test_of_a_run_are_what_another_begins_with(self):
        self.result("one", self.save("net.pt"), sets=("train.max_steps=3",))
        before = self.saved("one")
        self.assertIn("state/steps", before)
        self.result("two", os.path.join(self.out("one"), "model.safetensors"), sets=("optimizer.lr=0", "train.max_steps=1"))
        after = self.saved("two")
        for name in ("first.weight", "last.weight", "mean", "unused", "exact", "mask", "table"):
            self.assertEqual(after[name].numpy().tobytes(), before[name].numpy().tobytes(), name)
        self.assertEqual(int(after["seen"]), 104)
        self.assertNotEqual(after["state/steps"].tolist(), before["state/steps"].tolist())  # which begins anew

    def test_reach_a_worker_that_joins_at_once(self):
        sets, args = ("train.max_steps=6",), ("--slow", 0.1)
        digest = self.result("quiet", self.save("net.pt"), workers=2, sets=sets)
        process = subprocess.Popen(self.command("--out", self.out("killed"), "--workers", "2", "--weights", self.out("net.pt"),
                                                job="given.py:Job", sets=sets, args=args),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, process)
        self.wait_for_step("killed", 1)
        support.kill(support.workers_of(self.out("killed"))[0])
        self.assertEqual(self.finished(process, "killed")["digest"], digest)

    def test_are_what_load_puts_into_a_module(self):
        self.result("run", self.save("net.pt"), sets=("train.max_steps=1",))
        self.assertEqual(int(ductile.load(self.out("run")).seen), 101)
        for name, changes in (("both.pt", {}), ("first.pt", {"second.weight": None}), ("second.pt", {"first.weight": None})):
            self.imported(self.save(name, **changes))
            net = ductile.load(self.out("run"), weights=self.out("w.safetensors"))
            self.assertIs(net.first.weight, net.second.weight)
            self.assertTrue(torch.equal(net.first.weight, self.state["first.weight"]), name)
            self.assertEqual(net.mask.tolist(), [False, True])
        self.imported(self.save("differs.pt", **{"second.weight": torch.ones(8, 8)}))
        with self.assertRaisesRegex(ductile.Error, "first.weight and second.weight differ"):
            ductile.load(self.out("run"), weights=self.out("w.safetensors"))

    def imported(self, file):
        done = subprocess.run([support.DUCTILE, "ckpt", "import", file, "--output", self.out("w.safetensors")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=support.PATIENCE,
                              env={**os.environ, "DUCTILE_PYTHON__INTERPRETER": support.PYTHON})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_that_do_not_fit_are_refused_by_name(self):
        for name, changes, text in (("tied.pt", {"second.weight": torch.ones(8, 8)}, "first.weight and second.weight differ"),
                                    ("large.pt", {"large": torch.zeros(70_000)}, "buffer large has other values")):
            said = self.refused("--out", self.out(name + "-run"), "--weights", self.save(name, **changes), job="given.py:Job", code=2)
            self.assertIn(text, said)

    def test_fit_a_model_or_are_refused_without_a_worker(self):
        make = _net()
        for changes in ({"second.weight": None}, {"first.weight": None}, {"large": None}, {"seen": None, "mask": None},
                        {"norm.num_batches_tracked": None}, {"ids": torch.arange(3)}, {"state/x": torch.ones(2)},
                        {"table": torch.zeros(3)}, {"mask": torch.tensor([2, 0], dtype=torch.uint8)}):
            self.begin(make(), **changes)
        for changes, text in (({"mean": torch.zeros(9)}, "mean is float32 \\[9\\], and in the model it is float32 \\[8\\]"),
                              ({"mean": torch.zeros(8, dtype=torch.int64)}, "mean is int64"),
                              ({"mean": torch.zeros(0, 1 << 40)}, "mean is float32 \\[0"),
                              ({"seen": torch.tensor(1.0)}, "seen is float32"),
                              ({"seen": torch.tensor(1, dtype=torch.int32)}, "seen is int32"),
                              ({"mask": torch.tensor([1, 0])}, "mask is int64"),
                              ({"last.bias": torch.zeros(2).half()}, "last.bias is float16.*ckpt import"),
                              ({"last.bias": None}, "holds no tensor last.bias.*let model\\(\\) load that part"), ({"mean": None}, "holds no tensor mean"),
                              ({"first.weight": None, "second.weight": None, "frist.weight": torch.ones(8, 8)},
                               "no tensor first.weight, which the model has; it holds frist.weight"),
                              ({"first.weight": torch.zeros(8, 8), "second.weight": -torch.zeros(8, 8)}, "differ"),
                              ({"head": torch.ones(1)}, "holds tensor head"),
                              ({"large": torch.full((70_000,), float("nan"))}, "buffer large")):
            with self.assertRaisesRegex(ductile.Error, text):
                self.begin(make(), **changes)

    def begin(self, net, **changes):
        given = {**self.state, "exact": self.state["exact"].float(), **changes}  # as `ductile ckpt import` gives them
        _weights.begin(net, {name: value for name, value in given.items() if value is not None}, "w.safetensors", [net.large])
        self.assertEqual(float(net.exact), 1 / 3)
        return net


def _net():
    argv, sys.argv = sys.argv, ["given.py"]
    try:
        import given
    finally:
        sys.argv = argv
    return given.Net


if __name__ == "__main__":
    unittest.main(verbosity=2)
