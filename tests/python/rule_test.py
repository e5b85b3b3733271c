"""A job's own optimiser, taken from one process to another without a worker: it goes on with the same bits, or says at
once, in the first process, why it could not."""

import collections
import unittest

import numpy
import torch

from ductile._errors import Error
from ductile._optimizer import Rule


class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.update(p, group, self.state[p])

    def update(self, p, group, state):
        p.copy_(p - group["lr"] * p.grad)


class Assigned(Plain):
    def update(self, p, group, state):
        p.data = p - group["lr"] * p.grad


class Reshaped(Plain):
    def update(self, p, group, state):
        p.data = p.reshape(-1)


class Various(Plain):
    """What load_state_dict() of torch.optim makes into something else: texts, tuples, numbers of numpy."""

    def update(self, p, group, state):
        turn, count = state.get("turn", "slow"), state.get("count", (torch.zeros((), dtype=torch.int64), [2**40]))
        state["turn"] = "fast" if turn == "slow" else "slow"
        state["count"] = (count[0] + 1, [count[1][0] + 1])
        state["scale"] = state.get("scale", numpy.float32(0.1)) * numpy.float32(1.1)
        state["seen"] = {"yes": torch.tensor([True, False]), 7: None, "most": float("inf")}
        group["late"] = [torch.tensor(3.0) + count[0], numpy.int16(4)]
        p.sub_(p.grad, alpha=float(state["scale"]) * (2 if turn == "fast" else 1) / float(count[0] + 1))


class FirstOnly(Plain):
    """Its state is made in the first step, and known by another name, too."""

    def update(self, p, group, state):
        if not state:
            state["first"] = p.grad.clone()
        p.sub_(p.grad + 0.1 * state["first"], alpha=group["lr"])


class Forgets(FirstOnly):
    def load_state_dict(self, state_dict):
        pass


class Grows(Plain):
    def update(self, p, group, state):
        if len(self.param_groups) == 1:
            self.add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


class Swaps(Plain):
    def update(self, p, group, state):
        if p is group["params"][0]:
            group["params"].reverse()


def keeps(make):
    """A rule that keeps this in its state."""

    class Keeps(Plain):
        def update(self, p, group, state):
            state.update(make(p))
            p.sub_(p.grad, alpha=group["lr"])

    return Keeps


class Here:
    """A process with a model in one array, as a worker has it, and its rule."""

    def __init__(self, make):
        torch.manual_seed(5)
        self.model = torch.nn.Linear(3, 2)
        self.flat = torch.zeros(8)
        with torch.no_grad():
            for p, begin in zip(self.model.parameters(), (0, 6)):
                place = self.flat[begin:begin + p.numel()].view_as(p)
                p.data = place.copy_(p)
        job = type("Job", (), {"optimizer": lambda _, model: make(model)})()
        self.rule, self.memory = Rule(job, self.model, 9, "rules.py:Job"), {}

    def steps(self, first, last):
        for i in range(first, last):
            draw = torch.Generator().manual_seed(i)
            self.rule.step([torch.randn(p.shape, generator=draw) for p in self.model.parameters()], i)
            self.text, moved = self.rule.kept()
            if moved is not None:
                memory = {name: torch.zeros(-(-size // 4)) for name, size in moved.items()}
                self.rule.move(memory)
                self.memory = memory

    def join(self, other):
        with torch.no_grad():
            self.flat.copy_(other.flat)
        self.memory = {name: values.clone() for name, values in other.memory.items()}
        self.text = other.text
        self.rule.take(self.text, self.memory)


class RuleTest(unittest.TestCase):
    def same(self, one, other):
        self.assertEqual(one.flat.tolist(), other.flat.tolist())
        self.assertEqual(one.text, other.text)
        self.assertEqual({name: bytes(values.numpy().tobytes()) for name, values in one.memory.items()},
                         {name: bytes(values.numpy().tobytes()) for name, values in other.memory.items()})

    def refused(self, make, *words):
        with self.assertRaises(Error) as caught:
            Here(make).steps(0, 2)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_a_joiner_has_all_of_the_state(self):
        schedules = torch.optim.lr_scheduler
        for kind in (Plain, Assigned, Various, FirstOnly, torch.optim.Rprop, torch.optim.ASGD):
            with self.subTest(kind.__name__):
                def make(model):
                    rule = kind(model.parameters())
                    return rule, schedules.SequentialLR(rule, [schedules.ConstantLR(rule, 0.1, 3),
                                                               schedules.MultiStepLR(rule, [2, 2, 6])], [4])
                alone, joined = Here(make), Here(make)
                alone.steps(0, 5)
                joined.join(alone)
                for here in (alone, joined):
                    here.steps(5, 12)
                self.same(joined, alone)

    def test_a_parameter_that_is_assigned_anew_counts(self):
        plain, assigned = (Here(lambda model, kind=kind: kind(model.parameters())) for kind in (Plain, Assigned))
        for here in (plain, assigned):
            here.steps(0, 3)
        self.assertEqual(assigned.flat.tolist(), plain.flat.tolist())
        self.assertEqual(assigned.model.weight.data_ptr(), assigned.flat.data_ptr())
        self.refused(lambda model: Reshaped(model.parameters()), "the parameter weight was", "[2, 3]", "is", "[6]")

    def test_what_a_joiner_could_not_have_is_named_at_once(self):
        def rule(make):
            return lambda model: keeps(make)(model.parameters())
        self.refused(rule(lambda p: {"counts": collections.Counter(a=1)}), "weight/counts", "Counter", "plain dictionary")
        self.refused(rule(lambda p: {"pair": collections.namedtuple("Pair", "a b")(1, 2)}), "weight/pair", "Pair")
        self.refused(rule(lambda p: {"by": {(0, 1): 1}}), "weight/by", "(0, 1)")
        self.refused(rule(lambda p: {"by": {0.5: 1}}), "weight/by", "0.5")
        self.refused(rule(lambda p: {"a": {"b": torch.zeros(1)}, "a/b": torch.ones(1)}), "weight/a/b")
        self.refused(rule(lambda p: {"a": {1: torch.zeros(1), "1": torch.ones(1)}}), "weight/a/1")
        self.refused(rule(lambda p: {"last": p.data}), "weight/last", "the parameter weight itself", "clone()")
        once = torch.zeros(3)
        self.refused(rule(lambda p: {"both": once}), "weight/both", "bias/both", "the same memory")
        self.refused(lambda model: Grows(model.parameters()), "groups")
        self.refused(lambda model: Swaps(model.parameters()), "groups")

    def test_a_state_that_is_not_taken_is_named(self):
        alone, joined = (Here(lambda model: Forgets(model.parameters())) for _ in range(2))
        alone.steps(0, 2)
        with self.assertRaises(Error) as caught:
            joined.join(alone)
        self.assertIn("load_state_dict() does not bring back", str(caught.exception))
        self.assertIn("optimizer/state", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
