"""A captured module trained in C++: in one process, by stages, and by a plan of its own graph, with the same bits."""

import copy
import importlib.util
import json
import os
import struct
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


class Wide(Dropping):  # of several blocks of weights
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(6 * 16, 300), nn.Linear(300, 300), nn.Linear(300, 10))


class Two(nn.Module):  # of two inputs, one of them read by a recurrent layer
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.rows, self.gru = nn.Embedding(20, 6), nn.GRU(6, 8, batch_first=True)
        self.fc, self.drop, self.head = nn.Linear(5, 8), nn.Dropout(0.2), nn.Linear(8, 4)

    def forward(self, x, indices):
        states, _ = self.gru(self.rows(indices))
        return self.head(self.drop(torch.relu(self.fc(x) + states[:, -1])))

    def example(self, samples):
        return torch.rand(samples, 5), torch.randint(20, (samples, 3))
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
        """The weights of a run, and what its last evaluation came to."""
        options = ["model.name=custom", "model.library=net.pt", "data.train_limit=96", "data.test_limit=40", "train.batch_size=32",
                   "train.epochs=2", "optimizer.lr=0.05", *sets]
        text = self.run_ductile("-q", "train", "--json", "--out", out, *words, *(word for key in options for word in ("--set", key)))
        result = json.loads(text)["result"]
        with open(self.out(f"{out}/model.safetensors"), "rb") as file:
            data = file.read()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        header.pop("__metadata__")
        return header, data[end:], result["final"]["loss"], result["final"]["accuracy"]

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

    def test_a_profile_of_the_file_counts_the_bytes_of_the_same_operators(self):
        self.capture("Net")
        self.run_ductile("-q", "profile", "-o", "counted.json", "--shares", "8,32", "--rounds", 1, "--set", "model.name=custom", "--set",
                         "model.library=net.pt", "--set", "train.batch_size=32", "--set", "data.train_limit=96", "--set", "data.test_limit=40")
        graphs = []
        for name in ("graph.json", "counted.json"):
            with open(self.out(name)) as file:
                graphs.append(json.load(file))
        names = [[op["name"] for op in graph["ops"]] for graph in graphs]
        self.assertEqual(names[1], [*names[0], "loss"])
        self.assertTrue(graphs[1]["counted"])
        self.assertEqual((graphs[1]["state_factor"], graphs[1]["optimizer_factor"]), (4, 1))
        self.write("plan.json", self.run_ductile("plan", "counted.json", "--devices", "machine.toml", "--batch", 32, "--micro-batch", 8,
                                                 "--runnable", "--replicas", 1, "--json"))
        one = self.trained("one", "train.method=pipelined", "train.pipelined.micro_batches=4")
        self.assertEqual(self.trained("counted", words=("--plan", "plan.json")), one)

    def test_two_inputs_and_a_recurrent_layer_have_the_same_bits_by_stages(self):
        self.capture("Two")
        data = ("data.format=synthetic", 'data.synthetic.inputs=["vector:5", "indices:3:20"]', "data.synthetic.samples=96",
                "data.synthetic.test_samples=40", "data.synthetic.classes=4")
        pipelined = (*data, "train.method=pipelined", "train.pipelined.micro_batches=4")
        one = self.trained("one", *pipelined)
        self.assertEqual(self.trained("two", *pipelined, "train.virtual_ranks=2", words=("--workers", 2)), one)
        self.assertIn("gru.weight_hh_l0", one[0])
        moved = self.trained("short", *pipelined, "train.max_steps=1")[1]
        self.assertNotEqual(moved, one[1])
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=net.pt", code=2)
        self.assertIn("was given 2 tensors when it was captured", text)

    def test_workers_that_keep_the_weights_of_their_stages_evaluate_the_whole(self):
        self.capture("Wide")
        some = ("train.method=pipelined", "train.pipelined.micro_batches=4", "data.test_limit=45")  # 32, and 13 that are not in the file
        one = self.trained("one", *some)
        self.assertEqual(self.trained("three", *some, "train.virtual_ranks=3", "train.shard_optimizer=true", "train.shard_copies=1",
                                      words=("--workers", 3)), one)

    def idx(self, images, labels):
        """Files of the format idx, of training and held-out samples alike."""
        os.mkdir(self.out("data"))
        for split in ("train", "t10k"):
            for name, values in (("images-idx3", images), ("labels-idx1", labels)):
                with open(self.out(f"data/{split}-{name}-ubyte"), "wb") as file:
                    file.write(struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape) + values.numpy().tobytes())

    def test_one_step_is_that_of_python(self):
        self.capture("Net")
        generator = torch.Generator().manual_seed(5)
        images = torch.randint(0, 256, (32, SIDE, SIDE), generator=generator).to(torch.uint8)
        labels = (torch.arange(32) % 10).to(torch.uint8)
        self.idx(images, labels)
        header, data, *_ = self.trained("step", "data.format=idx", "data.path=data", "augment.normalize=false", "train.max_steps=1",
                                        "optimizer.momentum=0", "optimizer.weight_decay=0", "schedule.name=constant")
        spec = importlib.util.spec_from_file_location("net", self.out("net.py"))
        net = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(net)
        module = net.Net()
        before = copy.deepcopy(module.state_dict())
        nn.functional.cross_entropy(module(images.unsqueeze(1) / 255), labels.long()).backward()
        torch.optim.SGD(module.parameters(), 0.05).step()
        for key, value in module.state_dict().items():
            if value.is_floating_point():
                begin, end = header[key]["data_offsets"]
                trained = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32).view_as(value)
                moved, error = (value - before[key]).norm(), (trained - value).norm()
                self.assertLess(error, 1e-3 * moved + 1e-6, key)

    def test_what_cannot_be_trained_is_refused_by_name(self):
        self.capture("Net")
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=net.pt", "--set", "train.batch_size=32",
                                "--set", "train.virtual_ranks=2", "--set", "data.train_limit=64", "--set", "data.test_limit=8", code=2)
        self.assertIn("was captured for 8, 32 samples at once", text)
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=net.pt", "--set",
                                "train.precision=bf16", code=2)
        self.assertIn('train.precision = "bf16"', text)

    def test_a_model_is_measured_and_planned_for_the_samples_that_it_was_captured_for(self):
        self.capture("Net")
        options = [word for key in ("model.name=custom", "model.library=net.pt", "data.train_limit=96", "data.test_limit=40",
                                    "train.batch_size=32", "train.epochs=1", "optimizer.lr=0.05") for word in ("--set", key)]
        self.run_ductile("-q", "train", "--out", "own", "--devices", "machine.toml", "--replicas", 1, *options)
        with open(self.out("own/job.toml")) as file:
            self.assertRegex(file.read(), "micro_batches = [14]\n")
        self.run_ductile("-q", "profile", "-o", "own.json", *options)
        with open(self.out("own.json")) as file:
            self.assertNotIn("captured", json.load(file))
        self.write("other.json", self.run_ductile("plan", "graph.json", "--devices", "machine.toml", "--batch", 32, "--micro-batch", 4,
                                                  "--runnable", "--replicas", 1, "--json"))
        text = self.run_ductile("-q", "train", "--out", "other", "--plan", "other.json", *options, code=2)
        self.assertIn("4 samples at once", text)
        self.assertIn("was captured for 8, 32", text)
        self.assertFalse(os.path.exists(self.out("other")))

    def not_loaded(self, words, code=2):
        text = self.run_ductile("-q", "train", "--set", "model.name=custom", "--set", "model.library=no.pt", code=code)
        self.assertRegex(text, 'model.library = "[^"]*no.pt"')
        self.assertIn(words, text)

    def test_a_file_of_another_kind_is_told(self):
        no_model = "nor a model that ductile capture --model wrote"
        self.write("no.pt", "PK\3\4 and no archive")
        self.not_loaded(no_model)
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), self.out("no.pt"))
        self.not_loaded(no_model + " (it holds no ductile.json)")
        os.unlink(self.out("no.pt"))
        os.mkfifo(self.out("no.pt"))
        self.not_loaded("no such file", code=4)

    def test_a_damaged_file_is_told(self):
        self.capture("Net")

        def changed(change, words):
            extra = {"ductile.json": ""}
            loaded = torch.jit.load(self.out("net.pt"), _extra_files=extra)
            described = json.loads(extra["ductile.json"])
            change(described, loaded)
            torch.jit.save(loaded, self.out("no.pt"), _extra_files={"ductile.json": json.dumps(described)})
            with self.subTest(words):
                self.not_loaded(words)

        def op(change):
            return lambda described, loaded: change(described["ops"][1])

        changed(op(lambda op: op.update(methods=[])), ": no method")
        changed(op(lambda op: op["methods"][0]["shapes"].pop()), ": 0 shapes of 1 inputs")
        changed(op(lambda op: op["methods"].append(op["methods"][0])), ": two methods for the same shapes")
        changed(op(lambda op: op["methods"][0].update(name="another")), "another")
        changed(op(lambda op: op.update(inputs=[[-1, 2147483647]])), "inputs is 2147483647, it must be from 0 to 0")
        changed(op(lambda op: op.update(inputs=[[5000, 0]])), "which is not there")
        changed(op(lambda op: op.update(inputs=[3])), "inputs must be pairs of numbers")
        changed(op(lambda op: op.update(parameters=[-1])), "parameters is -1")
        changed(op(lambda op: op.pop("kind")), "kind is missing")
        changed(lambda described, loaded: described.update(version=2), "version is 2")
        changed(lambda described, loaded: setattr(loaded, "parameter0", loaded.parameter0.double()), "parameter0 is no dense float32 tensor")

    def refused(self, forward, words, example=None, parts=None, **how):
        module = type("Made", (nn.Module,), {"forward": forward})()
        module.fc = nn.Linear(6, 6)
        for name, part in (parts or {}).items():
            setattr(module, name, part)
        with self.assertRaises(ductile.Error) as caught:
            ductile.capture(module, example or (lambda n: torch.randn(n, 6)), times=False, batch=6, model=self.out("made.pt"), **how)
        self.assertIn(words, str(caught.exception))
        self.assertEqual(sorted(os.listdir(self.folder)), ["machine.toml", "net.py"])

    def test_what_no_file_can_hold_is_refused_by_name(self):
        def without_gradient(self, x):
            with torch.no_grad():
                return self.fc(x)

        def by_the_number(self, x):
            mean = self.fc(x).mean(0, keepdim=True)
            return x + self.one(mean) + self.other(mean) / x.shape[0]

        self.refused(without_gradient, "runs under no_grad or autocast")
        self.refused(lambda self, x: (self.fc(x), x + 1), "forward() returns no tensor")
        kept = nn.Linear(6, 6)
        self.refused(lambda self, x: self.part(x) @ self.copies[0], "reads a weight otherwise than as an attribute",
                     parts={"part": kept, "copies": (kept.weight,)})
        part = {"part": type("Part", (nn.Module,), {"forward": without_gradient})()}
        part["part"].fc = nn.Linear(6, 6)
        self.refused(lambda self, x: self.fc(x) + self.part(x), "gives other gradients", parts=part, leaf="Part")
        part = {"part": nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6, momentum=None))}
        self.refused(lambda self, x: self.part(x), "part.1 is a BatchNorm1d with momentum=None", parts=part, leaf="part")
        twice = {"one": nn.Linear(6, 6), "other": nn.Linear(6, 6)}
        self.refused(by_the_number, "depends on the number of samples, and no shape", parts=twice)
        self.refused(lambda self, x: self.fc(x) * float("nan"), "gives NaN in evaluation mode")
        self.refused(lambda self, x: self.fc(x) + torch.rand(x.shape[0], 1), "something else with other random numbers in evaluation mode")


if __name__ == "__main__":
    unittest.main()
