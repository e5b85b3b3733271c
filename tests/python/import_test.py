"""Weights from elsewhere: files of torch.save() and safetensors become the beginning of a run, and of a module."""

import json
import os
import pickle
import subprocess
import unittest

import torch

import ductile
import support
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
        for words, code, text in (((evil,), 2, "plain containers"), ((self.out("pickle.pt"),), 2, "plain containers"),
                                  ((self.out("torn.pt"),), 1, "torn.pt"), ((self.out("noise.safetensors"),), 1, "noise"),
                                  ((self.out("none.pt"),), 4, "none.pt"),
                                  ((self.save("numbers.pt", {"lr": 0.1}),), 2, "--key"),
                                  ((self.save("list.pt", [1, 2]),), 2, "list"),
                                  ((self.save("plain.pt", self.state), "--prefix", "model."), 2, "model."),
                                  ((self.out("plain.pt"), "--key", "ema"), 2, "ema"),
                                  ((self.save("sparse.pt", {"w": torch.eye(2).to_sparse()}),), 2, "plain containers"),
                                  ((self.save("wide.pt", {"w": torch.ones(1).expand(10**9)}),), 2, "stored")):
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
        self.assertIn("fc.bias is f32 [3]", said)
        self.ductile("train", "--resume", self.out("a"), "--weights", self.out("less.pt"), code=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
