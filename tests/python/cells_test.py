"""A captured module trained in C++: in one process, by stages, and by a plan of its own graph, with the same bits."""

import json
import os
import subprocess
import unittest

import torch
from torch import nn

import ductile
import support

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = torch.relu_(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(3)
        self.stem = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(6), Block(6))
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(6 * 16, 10)

    def forward(self, x):
        x = self.blocks(torch.relu(self.stem(x)))
        x = nn.functional.adaptive_avg_pool2d(x, 4)
        return self.fc(self.drop(x.view(x.size(0), -1)))

    def example(self, samples):
        return torch.rand(samples, 1, SIDE, SIDE)


class Dropping(Net):
    def __init__(self):
        super().__init__(0.3)
"""

MACHINE = '[[nodes]]\ntype = "cpu"\ndevices = 2\nmemory = "4 GB"\n'
SIDE = 28


class Cells(support.Case):
    def setUp(self):
        super().setUp()
        self.write("net.py", NET.replace("SIDE", str(SIDE)))
        self.write("machine.toml", MACHINE)

    def write(self, name, text):
        with open(self.out(name), "w") as file:
            file.write(text)

    def run_ductile(self, *words, code=0):
        done = subprocess.run([support.DUCTILE, *map(str, words)], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=support.PATIENCE, env={**os.environ, "DUCTILE_PYTHON__INTERPRETER": support.PYTHON})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout if code == 0 else done.stderr

    def capture(self, name):
        self.run_ductile("capture", f"net.py:{name}", "-o", "graph.json", "--model", "net.pt", "--batch", 32, "--shares", "8,32",
                         "--rounds", 1)

    def trained(self, out, *sets, words=()):
        """The weights of a run."""
        options = ["model.name=custom", "model.library=net.pt", "data.train_limit=96", "data.test_limit=40", "train.batch_size=32",
                   "train.epochs=2", "optimizer.lr=0.05", *sets]
        self.run_ductile("-q", "train", "--out", out, *words, *(word for key in options for word in ("--set", key)))
        with open(self.out(f"{out}/model.safetensors"), "rb") as file:
            data = file.read()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header.pop("__metadata__")
        return header, data[end:]

    def test_three_commands_and_one_process_come_to_the_same_bits(self):
        for name in ("Net", "Dropping"):
            with self.subTest(name):
                self.capture(name)
                self.write("plan.json", self.run_ductile("plan", "graph.json", "--devices", "machine.toml", "--batch", 32, "--micro-batch", 8,
                                                         "--runnable", "--replicas", 1, "--json"))
                pipelined = ("train.method=pipelined", "train.pipelined.micro_batches=4")
                one = self.trained(f"{name}-one", *pipelined)
                self.assertEqual(self.trained(f"{name}-plan", words=("--plan", "plan.json")), one)
                self.assertEqual(self.trained(f"{name}-three", *pipelined, "train.virtual_ranks=3", words=("--workers", 3)), one)
                plain = self.trained(f"{name}-plain", "train.virtual_ranks=4")
                exact = self.trained(f"{name}-exact", "train.pipeline_exact=true", words=("--plan", "plan.json"))
                self.assertEqual(exact, plain)
                self.assertNotEqual(one, plain)  # batch norm's running statistics
                self.assertIn("blocks.0.bn1.running_mean", plain[0])

    def test_one_step_is_that_of_python(self):
        import importlib.util

        self.capture("Net")
        spec = importlib.util.spec_from_file_location("net", self.out("net.py"))
        net = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(net)
        module = net.Net()
        header, data = self.trained("still", "train.max_steps=1", "optimizer.lr=0", "train.virtual_ranks=1", "optimizer.weight_decay=0")
        for key, value in module.state_dict().items():
            if value.is_floating_point() and "running" not in key:
                begin, end = header[key]["data_offsets"]
                self.assertEqual(data[begin:end], value.numpy().tobytes(), key)

    def test_what_cannot_be_trained_is_refused_by_name(self):
        self.capture("Net")
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=net.pt", "--set", "train.batch_size=32",
                                "--set", "train.virtual_ranks=2", "--set", "data.train_limit=64", "--set", "data.test_limit=8", code=2)
        self.assertIn("was captured for 8, 32 samples at once", text)
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=net.pt", "--set",
                                "train.precision=bf16", code=2)
        self.assertIn('train.precision = "bf16"', text)
        self.write("no.pt", "PK\3\4 and no archive")
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=no.pt", code=2)
        self.assertIn("nor a model that ductile capture --model wrote", text)

    def refused(self, forward, words, example=None):
        module = type("Made", (nn.Module,), {"forward": forward})()
        module.fc = nn.Linear(6, 6)
        with self.assertRaises(ductile.Error) as caught:
            ductile.capture(module, example or (lambda n: torch.randn(n, 6)), times=False, batch=6, model=self.out("made.pt"))
        self.assertIn(words, str(caught.exception))

    def test_what_no_file_can_hold_is_refused_by_name(self):
        def without_gradient(self, x):
            with torch.no_grad():
                return self.fc(x)

        self.refused(without_gradient, "runs under no_grad or autocast")
        self.refused(lambda self, x: (self.fc(x), x + 1), "forward() returns no tensor")
        self.refused(lambda self, x, y: self.fc(x) + y, "is given 2 tensors", lambda n: (torch.randn(n, 6), torch.randn(n, 6)))


if __name__ == "__main__":
    unittest.main()
