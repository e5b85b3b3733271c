"""Captured modules: their operators, what these cost, the bits, and what cannot be captured."""

import copy
import inspect
import json
import os
import random
import signal
import subprocess
import unittest

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import captured
import ductile
import support
from captured import Contrast, Gated, Images, Language, Noisy, Residual, Skips, Towers, Twice

FAST = {"times": False, "batch": 6}


def by_name(graph):
    return {op["name"]: op for op in graph["ops"]}


def edges(graph):
    return {(e["from"], e["to"]) for e in graph["edges"]}


def before(graph, name):
    """The operators that one depends on."""
    found, wanted = set(), [name]
    while wanted:
        at = wanted.pop()
        for a, b in edges(graph):
            if b == at and a not in found:
                found.add(a)
                wanted.append(a)
    return found


class Case(unittest.TestCase):
    def refused(self, module, *words, code="invalid_argument", example=None, **how):
        with self.assertRaises(ductile.Error) as caught:
            ductile.capture(module, (lambda n: torch.randn(n, 6)) if example is None else example, **{**FAST, **how})
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(caught.exception.code, code)

    def made(self, forward, **parts):
        """A module of this forward(self, x)."""
        kind = type("Made", (nn.Module,), {"forward": forward})
        module = kind()
        for name, part in parts.items():
            if isinstance(part, (nn.Module, nn.Parameter)):
                setattr(module, name, part)
            else:
                module.register_buffer(name, part)
        return module

    def line(self, function, mark):
        """FILE:LINE of the line with a mark in it."""
        lines, first = inspect.getsourcelines(function)
        at = next(i for i, text in enumerate(lines) if mark in text)
        return f"{inspect.getsourcefile(function)}:{first + at}"


class Operators(Case):
    def test_have_the_names_of_modules_and_take_glue_along(self):
        graph = ductile.capture(Residual(), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]],
                         ["stem", "blocks.0.conv1", "blocks.0.bn1", "blocks.0.conv2", "blocks.0.bn2", "blocks.1.conv1", "blocks.1.bn1",
                          "blocks.1.conv2", "blocks.1.bn2", "blocks.1.down.0", "blocks.1.down.1", "blocks.1.add", "fc"])
        self.assertIn(("stem", "blocks.0.bn2"), edges(graph))  # the residual sum joined the end of its branch
        self.assertEqual({a for a, b in edges(graph) if b == "blocks.1.add"}, {"blocks.1.bn2", "blocks.1.down.1"})
        self.assertNotIn("blocks.1.conv1", before(graph, "blocks.1.down.1"))
        self.assertEqual(sum(op["parameter_bytes"] for op in graph["ops"]), sum(4 * p.numel() for p in Residual().parameters()))
        self.assertEqual(by_name(graph)["stem"]["output_bytes"], 4 * 8 * 12 * 12)
        self.assertEqual(by_name(graph)["stem"]["shape"], [8, 12, 12])
        self.assertEqual(by_name(graph)["stem"]["kind"], "conv2d")
        self.assertTrue(any("blocks.0.bn1" in note and "micro-batches" in note for note in graph.notes), graph.notes)

    def test_of_skips_are_read_where_they_are_joined(self):
        graph = ductile.capture(Skips(), **FAST)
        self.assertEqual({op["name"] for op in graph["ops"]},
                         {"down1", "down2", "middle", "interpolate", "up2", "interpolate#2", "up1"})
        self.assertEqual({a for a, b in edges(graph) if b == "interpolate"}, {"middle", "down2"})
        small = next(e for e in graph["edges"] if (e["from"], e["to"]) == ("middle", "interpolate"))
        self.assertEqual(small["bytes"], 4 * 8 * 4 * 4)  # the small tensor is sent

    def test_of_two_towers_stay_beside_each_other(self):
        graph = ductile.capture(Towers(), **FAST)
        self.assertFalse({n for n in before(graph, "user.2") if n.startswith("item")})
        self.assertFalse({n for n in before(graph, "item.2") if n.startswith("user")})
        self.assertEqual({a for a, b in edges(graph) if b == "mul"}, {"user.2", "item.2"})
        self.assertTrue(any("no operator reads when" in note for note in graph.notes), graph.notes)
        self.assertEqual(by_name(graph)["users"]["kind"], "embedding")
        report = ductile.plan.plan(graph, devices=4, batch=64)
        self.assertTrue(report["feasible"])
        self.assertEqual(sorted(op for s in report["plan"]["stages"] for op in s["ops"]), sorted(by_name(graph)))

    def test_that_share_a_weight_are_one_class(self):
        graph = ductile.capture(Language(), **FAST)
        ops = by_name(graph)
        self.assertGreaterEqual(ops["token"]["tied"], 0)
        self.assertEqual(ops["token"]["tied"], ops["head"]["tied"])
        self.assertEqual([n for n, op in ops.items() if "tied" in op], ["token", "head"])
        self.assertFalse(before(graph, "place"))
        self.assertIn("layers.0.attention.qkv", ops)
        self.assertFalse([n for n in ops if "triu" in n or "ones" in n or "arange" in n])  # made by whoever reads them

        graph = ductile.capture(Twice(), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["shared", "shared#2", "out"])
        self.assertEqual([op.get("tied") for op in graph["ops"]], [0, 0, None])

    def test_of_functions_are_named_by_their_weights(self):
        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(6))
                self.inner = nn.Module()
                self.inner.weight = nn.Parameter(torch.randn(4, 6))

            def forward(self, x):
                return F.linear(x * self.scale.exp(), self.inner.weight).relu()

        graph = ductile.capture(Own(), lambda n: torch.randn(n, 6), **FAST)
        self.assertEqual([(op["name"], op["kind"], op["parameter_bytes"]) for op in graph["ops"]],
                         [("scale", "mul", 24), ("inner", "linear", 96)])

    def test_can_be_kept_whole(self):
        for leaf in ("blocks.1", "Block"):
            names = {op["name"] for op in ductile.capture(Residual(), leaf=[leaf], **FAST)["ops"]}
            self.assertIn("blocks.1", names)
            self.assertFalse({n for n in names if n.startswith("blocks.1.")})
        self.refused(Residual(), "--leaf blok", "did you mean blocks", leaf=["blok"])

    def test_grow_with_the_samples_as_the_module_does(self):
        graph = ductile.capture(Contrast(), shares=[1, 2, 6], **FAST)
        self.assertEqual({op["name"] for op in graph["ops"]}, {"a", "b", "matmul"})

    def test_of_torchs_own_transformer_are_those_of_its_layers(self):
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        graph = ductile.capture(nn.TransformerEncoder(layer, 2), lambda n: torch.randn(n, 5, 16), **FAST)
        self.assertIn("layers.1.self_attn", by_name(graph))
        self.assertIn("layers.1.linear2", by_name(graph))

    def test_of_a_job_end_with_its_loss(self):
        graph = ductile.capture(Images(), times=False, shares=[4, 8])
        self.assertEqual(graph["ops"][-1]["name"], "loss")
        self.assertIn(("fc", "loss"), edges(graph))
        self.assertEqual(by_name(graph)["loss"]["parameter_bytes"], 0)
        self.assertTrue(any("loss() uses fc.weight by itself" in note for note in graph.notes), graph.notes)
        self.assertEqual(graph.samples, 8)


class Costs(Case):
    def test_in_bytes_are_those_that_autograd_saves(self):
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        ops = by_name(ductile.capture(net, lambda n: torch.randn(n, 8), **FAST))
        self.assertEqual(ops["0"]["activation_bytes"], 4 * 16 + 4 * 8)  # the ReLU's result, once, and the model's input
        self.assertEqual(ops["2"]["activation_bytes"], 0)               # its input is the result of "0"
        self.assertEqual(ops["0"]["workspace_bytes"], {"fixed": 4 * 8 * 16, "per_sample": 4 * 16})

    def test_of_one_sample_are_left_out_where_it_is_too_few(self):
        class Squeezed(Images):
            def loss(self, model, batch):
                return F.cross_entropy(model(batch[0]).squeeze(), batch[1])

        graph = ductile.capture(Squeezed(), times=False, shares=[1, 2, 4])
        self.assertTrue(any("1 sample at once cannot be measured" in note for note in graph.notes), graph.notes)

    def test_without_times_follow_from_operations(self):
        net = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 64))
        ops = by_name(ductile.capture(net, lambda n: torch.randn(n, 256), times=False, batch=1024, shares=[512, 1024]))
        for name, flops in (("0", 2 * 256 * 1024), ("1", 2 * 1024 * 64)):
            for phase in ("forward", "backward_weight"):
                cost = ops[name][phase]
                seconds = cost["fixed"] + 1024 * cost["per_sample"] if isinstance(cost, dict) else 1024 * cost
                self.assertGreater(seconds, 0.9 * flops * 1024 / 14e12)
                self.assertLess(seconds, 3 * flops * 1024 / 14e12 + 1e-4)
        self.assertEqual(ops["0"]["backward_input"], 0)  # nobody wants the gradient of the samples
        self.assertGreater(ops["1"]["backward_input"]["per_sample"], 0)

    def test_in_seconds_are_measured(self):
        graph = ductile.capture(Images(), shares=[2, 8], rounds=2)
        for op in graph["ops"]:
            for phase in ("forward", "backward_input", "backward_weight"):
                cost = op[phase]
                for part in cost.values() if isinstance(cost, dict) else [cost]:
                    self.assertTrue(0 <= part < 60, op)
        self.assertEqual(ductile.plan.graph(graph)["ops"][0]["name"], "stem")

    def test_of_a_convolution_are_those_of_its_sums(self):
        from ductile import _measure

        conv, work, counted = nn.Conv2d(8, 16, 3, groups=2), _measure.Work(), []
        x = torch.randn(4, 8, 10, 10, requires_grad=True)
        kept, _measure.operations = _measure.operations, lambda *call: counted.append((call[0], kept(*call))) or 0
        try:
            with work:
                conv(x).sum().backward()
        finally:
            _measure.operations = kept
        flops = dict(counted)
        self.assertEqual(flops["convolution"], 2 * 4 * 16 * 8 * 8 * 4 * 9)
        self.assertEqual(flops["convolution_backward"], 2 * flops["convolution"])


class Bits(Case):
    def test_are_the_modules_own(self):
        for module in (Residual(), Skips(), Towers(), Noisy(), Twice(), Contrast(), Language(1)):
            graph = ductile.capture(module, **FAST)
            self.assertFalse([note for note in graph.notes if "to rounding" in note], type(module).__name__)

    def test_where_parts_have_no_gradient(self):
        def forward(self, x):
            with torch.no_grad():
                scale = self.a(x).abs().mean(0)
            return self.b(x) / scale + self.c(x).detach()

        module = self.made(forward, a=nn.Linear(6, 6), b=nn.Linear(6, 6), c=nn.Linear(6, 6))
        module.b.weight.requires_grad_(False)
        ops = by_name(ductile.capture(module, lambda n: torch.randn(n, 6), **FAST))
        self.assertEqual([ops[name]["backward_weight"] == 0 for name in "abc"], [True, False, True])

    def test_are_equal_to_rounding_where_an_order_is_left_open(self):
        def forward(self, x):
            x = self.a(x)
            y = self.b(x) + self.c(x) + self.d(x)
            return y + torch.tanh(x)  # whose gradient is the first that autograd adds, and here the last

        module = self.made(forward, **{name: nn.Linear(48, 48) for name in "abcd"})
        graph = ductile.capture(module, lambda n: torch.randn(n, 48), times=False, batch=24)
        self.assertTrue(any("to rounding" in note and "read one tensor" in note for note in graph.notes), graph.notes)

    def test_of_outputs_gradients_and_buffers_are_compared(self):
        from ductile import _passes

        kept = _passes.Passes._add
        _passes.Passes._add = lambda self, names, found: None
        try:
            self.refused(Twice(), "the gradient of", "has other bits", code="conflict")
        finally:
            _passes.Passes._add = kept
        kept = _passes.Passes._called
        _passes.Passes._called = staticmethod(lambda *call: kept(*call) * (1 + 2.0**-20))
        try:
            self.refused(Twice(), "the output (of operator out)", "has other bits", code="conflict")
        finally:
            _passes.Passes._called = staticmethod(kept)
        own = torch.Generator().manual_seed(3)
        self.refused(self.made(lambda self, x: self.fc(x + torch.rand(x.shape, generator=own)), fc=nn.Linear(6, 2)),
                     "a second call", "--no-check", code="conflict")
        ductile.capture(self.made(lambda self, x: self.fc(x + torch.rand(x.shape, generator=own)), fc=nn.Linear(6, 2)),
                        lambda n: torch.randn(n, 6), check=False, **FAST)

    def test_of_what_a_module_keeps_between_calls_differ(self):
        def keeps(self, x):
            if getattr(self, "seen", x[:0]).shape != x.shape:
                self.seen = torch.zeros_like(x)
            self.seen += x.detach()
            return self.fc(x + self.seen)

        self.refused(self.made(keeps, fc=nn.Linear(6, 2)), "a second call", code="conflict")

    def test_of_results_that_no_operator_makes(self):
        module = self.made(lambda self, x, i: {"x": x, "all": [self.fc(x), self.fc.weight], "e": self.e(i), "one": torch.ones(2)},
                           fc=nn.Linear(6, 3), e=nn.Embedding(9, 3, sparse=True))
        graph = ductile.capture(module, lambda n: (torch.randn(n, 6), torch.randint(9, (n,))), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["fc", "e"])

    def test_of_a_weight_with_many_readers(self):
        module = self.made(lambda self, x: sum(self.fc(x * k) for k in (1.0, 2.0, 3.0, 4.0, 5.0)), fc=nn.Linear(6, 6))
        graph = ductile.capture(module, lambda n: torch.randn(n, 6), **FAST)
        self.assertEqual(len([op for op in graph["ops"] if op["name"].startswith("fc")]), 5)

    def test_of_the_module_stay_as_they_are(self):
        module = Noisy().eval()
        module.a.train()
        state = copy.deepcopy(module.state_dict())
        modes = [m.training for m in module.modules()]
        generators = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tobytes()
        ductile.capture(module, **FAST)
        self.assertEqual(modes, [m.training for m in module.modules()])
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(state.values(), module.state_dict().values())))
        self.assertTrue(torch.equal(generators[0], torch.get_rng_state()))
        self.assertEqual(generators[1:], (random.getstate(), numpy.random.get_state()[1].tobytes()))
        self.assertFalse(any(p.grad is not None for p in module.parameters()))
        self.assertEqual(nn.Module.__call__.__name__, "_call_impl")

    def test_through_changes_in_place_that_others_do_not_see(self):
        def forward(self, x):
            x = self.a(x)
            x.mul_(2)[:, 1].add_(1)
            x[:, 0] = 0.5
            y = self.b(x)
            y += x
            return y.relu_()

        module = self.made(forward, a=nn.Linear(6, 6), b=nn.Linear(6, 6))
        graph = ductile.capture(module, lambda n: torch.randn(n, 6), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["a", "b"])

        def on_input(self, x):
            x.mul_(2)
            return self.a(x) + self.b(x)

        ductile.capture(self.made(on_input, a=nn.Linear(6, 6), b=nn.Linear(6, 6)), lambda n: torch.randn(n, 6), **FAST)

    def test_of_an_operator_that_changes_what_another_has_read(self):
        def forward(self, x):
            y = self.a(x)
            z = y + self.bias
            y.add_(1)  # the sum may not have been made by then, on another device
            return self.c(y) + z

        module = self.made(forward, a=nn.Linear(6, 6), bias=nn.Parameter(torch.randn(6)), c=nn.Linear(6, 6))
        graph = ductile.capture(module, lambda n: torch.randn(n, 6), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["a", "bias", "c", "add"])


class Refusals(Case):
    def test_name_the_line_and_the_module_that_could_stay_whole(self):
        self.refused(Gated(), self.line(captured.Gate.forward, "refused: the line"), "`if x.sum() > 0:", "depends on the values",
                     "--leaf gate")
        graph = ductile.capture(Gated(), leaf=["gate"], **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["first", "gate", "last"])

    def test_of_what_a_graph_cannot_hold(self):
        fc = nn.Linear(6, 6)

        def reads(self, x):
            return self.fc(x * x.max().item())  # here

        def counts(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return self.fc(x * self.calls)  # here

        def samples(self, x):
            if len(x) == 3:
                x = x + 1  # here
            return self.fc(x)

        def loops(self, x):
            return torch.stack([self.fc(row) for row in x])  # here

        def chosen(self, x):
            return self.fc(x[x[:, 0] > 0])  # here

        def through_numpy(self, x):
            return self.fc(torch.from_numpy(x.detach().numpy() * 2))  # here

        def draws(self, x):
            return self.fc(x) if random.random() < 0.5 else self.fc(x) * 2

        def shared(self, x):
            y = self.fc(x)
            part = y[:, :3]
            z = self.other(y.detach())
            part.add_(z[:, :3])  # here
            return self.fc(y)

        for forward, word in ((reads, "plain numbers"), (counts, "no constant"), (samples, "another way"), (loops, "another way"),
                              (chosen, "depends on values"), (through_numpy, "plain numbers"),
                              (shared, "changed in place")):
            with self.subTest(forward.__name__):
                self.refused(self.made(forward, fc=fc, other=nn.Linear(6, 6)), self.line(forward, "# here"), word, "leaf")
        self.refused(self.made(draws, fc=fc), "Python's random", "leaf")

    def test_of_what_escapes_the_recording(self):
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x * 2

            @staticmethod
            def backward(context, gradient):
                return gradient * 2

        loose = nn.Linear(6, 6)
        self.refused(self.made(lambda self, x: self.fc(Double.apply(self.fc(x))), fc=nn.Linear(6, 6)), "autograd.Function")
        self.refused(self.made(lambda self, x: F.linear(x, loose.weight), fc=nn.Linear(6, 6)), "registered in no module")

        def assigns(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return self.fc(x - self.mean)

        module = self.made(assigns, fc=nn.Linear(6, 6), mean=torch.zeros(6))
        self.refused(module, "mean", "assigned anew", "copy_")
        self.assertFalse(module.mean.any())
        outer = nn.Sequential(nn.Linear(6, 6), module)
        self.refused(outer, "1.mean", "--leaf 1")
        names = [op["name"] for op in ductile.capture(outer, lambda n: torch.randn(n, 6), leaf=["1"], **FAST)["ops"]]
        self.assertEqual(names, ["0", "1"])

    def test_no_operator_has_a_space_in_its_name(self):
        module = nn.Sequential()
        for name in ("a b", "a_b", "c\nd"):
            module.add_module(name, nn.Linear(6, 6))
        graph = ductile.capture(module, lambda n: torch.randn(n, 6), **FAST)
        self.assertEqual([op["name"] for op in graph["ops"]], ["a_b", "a_b#2", "c_d"])

    def test_of_jobs_whose_loss_hides_the_model(self):
        class Parts(Images):
            def loss(self, model, batch):
                return model.fc(model.stem(batch[0]).mean((2, 3)).repeat(1, 2)).sum()

        class Never(Images):
            def loss(self, model, batch):
                return batch[0].sum()

        class Again(Images):
            def loss(self, model, batch):
                return (model(batch[0]) + model(batch[0])).sum()

        for job, word in ((Parts(), "by itself"), (Never(), "never calls"), (Again(), "a second time")):
            with self.assertRaises(ductile.Error) as caught:
                ductile.capture(job, times=False)
            self.assertIn(word, str(caught.exception))

    def test_of_examples_that_say_too_little(self):
        self.refused(nn.Linear(6, 2), "at least 2", example=torch.randn(1, 6), batch=None)
        self.refused(nn.Linear(6, 2), "batch = 6", "3 samples", example=torch.randn(3, 6))
        for batch in (2, 3, 5, 16):  # where it may happen to be the number that is asked for
            self.refused(nn.Linear(6, 2), "It has to hold as many samples as it is asked for", "[3, 6]",
                         example=lambda n: torch.randn(3, 6), batch=batch, shares=[2])
        self.refused(nn.Linear(6, 2), "as many samples as it is asked for", example=lambda n: torch.randn(min(n, 3), 6), batch=8, shares=[2])
        data = torch.randn(16, 6)
        self.refused(nn.Linear(6, 2), "[2, 6] for 2 samples, [3, 6] for 3 samples, [5, 6] for 5 samples",
                     "[16, 6] for 32 samples. It has to hold as many samples as it is asked for", "--batch",
                     example=lambda n: data[:n], batch=32, shares=[8, 32])
        self.refused(nn.Bilinear(6, 6, 2), "[16, 6] for 32 samples", example=lambda n: (torch.randn(n, 6), data[:n]), batch=32, shares=[32])
        self.refused(nn.Linear(6, 2), "[2, 6] for 2 samples, [4, 6] for 3 samples", example=lambda n: torch.randn((n + 1) // 2 * 2, 6))
        with self.assertRaises(ductile.Error):
            ductile.capture(nn.Linear(6, 2))
        with self.assertRaises(ductile.Error):
            ductile.capture(3)
        self.assertEqual(ductile.capture(nn.Linear(6, 2), torch.randn(4, 6), times=False).samples, 4)

    def test_not_of_examples_that_grow_by_other_shares(self):
        rows = ductile.capture(nn.Linear(6, 2), lambda n: torch.randn(4 * n, 6), **FAST)
        self.assertEqual(rows["ops"][0]["output_bytes"], 4 * 2 * 4)
        bags = nn.EmbeddingBag(20, 6, mode="sum", include_last_offset=True)
        graph = ductile.capture(bags, lambda n: (torch.randint(20, (3 * n,)), 3 * torch.arange(n + 1)), **FAST)
        self.assertEqual(graph["ops"][0]["output_bytes"], 6 * 4)


def catches_interrupts(pid):
    """Whether a process is a Python that has come to its work."""
    with open(f"/proc/{pid}/status") as file:
        caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGINT - 1) & 1) and "python" in os.readlink(f"/proc/{pid}/exe")


class Command(support.Case):
    def run_capture(self, *words, code=0):
        done = subprocess.run([support.DUCTILE, "capture", *words, "--set", f"python.interpreter={support.PYTHON}"], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def word(self, name):
        return f"{os.path.join(support.HERE, 'captured.py')}:{name}"

    def test_writes_what_plan_reads(self):
        done = self.run_capture(self.word("Images"), "-o", "graph.json", "--shares", "4,8", "--rounds", "1")
        self.assertIn("Times and bytes held are for 8 samples", done.stdout)
        self.assertIn("micro-batches", done.stderr)
        planned = subprocess.run([support.DUCTILE, "plan", "graph.json", "--devices", "2", "--batch", "32", "--json"], cwd=self.folder,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(planned.returncode, 0, planned.stderr)
        with open(self.out("graph.json")) as file:
            graph = json.load(file)
        self.assertEqual(graph["name"], "captured.py:Images")
        self.assertEqual(graph["ops"][-1]["name"], "loss")
        self.assertEqual(json.loads(planned.stdout)["feasible"], True)

    def test_names_what_it_cannot_capture(self):
        done = self.run_capture(self.word("Gated"), "--no-times", code=2)
        self.assertIn("if x.sum() > 0:", done.stderr)
        self.assertIn("--leaf gate", done.stderr)
        self.assertIn('"first"', self.run_capture(self.word("Gated"), "--no-times", "--leaf", "gate", "--batch", "4").stdout)
        self.assertIn("did you mean Gated", self.run_capture(self.word("Gatd"), code=2).stderr)
        self.assertIn("--input", self.run_capture(self.word("Gate"), code=2).stderr)
        self.assertIn("--input x", self.run_capture(self.word("Gate"), "--input", "x", code=2).stderr)
        self.assertIn("there is no folder none", self.run_capture(self.word("Gated"), "-o", "none/graph.json", code=4).stderr)
        self.assertIn("ductile profile", self.run_capture("job.toml", code=2).stderr)
        self.assertIn("train.epochs", self.run_capture(self.word("Gated"), "--set", "train.epochs=3", code=2).stderr)

    def test_ends_when_it_is_interrupted(self):
        process = subprocess.Popen([support.DUCTILE, "capture", self.word("Images"), "-o", "graph.json", "--rounds", "10000", "--set",
                                    f"python.interpreter={support.PYTHON}"], cwd=self.folder, stderr=subprocess.PIPE, text=True,
                                   preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        self.addCleanup(support.end, process)
        support.wait(lambda: any(catches_interrupts(pid) for pid in support.children(process.pid)), "the worker")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=120), 130)
        self.assertFalse(os.path.exists(self.out("graph.json")))

    def test_takes_a_module_of_a_library(self):
        done = self.run_capture("torch.nn:Identity", "--input", "3", "--no-times", code=2)
        self.assertIn("no operators", done.stderr)


try:
    import torchvision
except ImportError:
    torchvision = None


@unittest.skipIf(torchvision is None, "torchvision is not installed (python3-torchvision)")
class Torchvision(Case):
    def test_models_are_captured_to_the_bit(self):
        for name, least in (("resnet18", 40), ("densenet121", 200), ("mobilenet_v3_small", 80), ("squeezenet1_1", 26),
                            ("googlenet", 100), ("shufflenet_v2_x0_5", 80), ("vit_b_32", 60), ("swin_t", 60)):
            with self.subTest(name):
                torch.manual_seed(1)
                make = getattr(torchvision.models, name)
                module = make(init_weights=False) if name == "googlenet" else make()
                size = 224 if name in ("vit_b_32", "swin_t") else 64
                graph = ductile.capture(module, lambda n: torch.randn(n, 3, size, size), batch=3, shares=[2, 3], times=False)
                self.assertGreaterEqual(len(graph["ops"]), least)
                self.assertEqual(sum(op["parameter_bytes"] for op in graph["ops"]), sum(4 * p.numel() for p in module.parameters()))
                ductile.plan.graph(graph)

    def test_of_detection_the_line_is_named(self):
        module = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None)
        with self.assertRaises(ductile.Error) as caught:
            ductile.capture(module.eval(), lambda n: ([torch.rand(3, 64, 64) for _ in range(n)],
                                                      [{"boxes": torch.tensor([[1.0, 2.0, 30.0, 40.0]]), "labels": torch.tensor([1])}
                                                       for _ in range(n)]), **FAST)
        self.assertIn("torchvision", str(caught.exception))
        self.assertIn(".py:", str(caught.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
