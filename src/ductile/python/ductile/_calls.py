"""What a module's forward() calls for any number of samples: recordings of several numbers, laid side by side."""

import dataclasses
import fractions
import math

import torch

from ductile._trace import Constant, Held, Ref, Untraceable, items, line_of, mapped, name_of, remedy


@dataclasses.dataclass(frozen=True)
class Sized:
    """A number in an argument that grows with the samples: fixed + per_sample n."""

    fixed: fractions.Fraction
    per_sample: fractions.Fraction
    kind: type

    def at(self, samples):
        return self.kind(self.fixed + self.per_sample * samples)


class Different(Exception):
    """Two recordings cannot be one; says why."""


class Calls:
    """The nodes of the first of `recordings`, with arguments for any number of samples. `samples` has their numbers."""

    def __init__(self, recordings, samples):
        self.recordings, self.samples = recordings, samples
        first = recordings[0]
        self.nodes, self.results, self.inputs = first.nodes, first.results, first.inputs
        self._check_same_way()
        self._check_constants()
        self.constants = [tensor for tensor, _ in first.constants]
        for node, *others in zip(*(r.nodes for r in recordings)):
            try:
                node.args, node.kwargs = (self._merged([getattr(n, what) for n in (node, *others)]) for what in ("args", "kwargs"))
                self._check_shapes(node, others)
            except Different as why:
                raise Untraceable(node.where, str(why), remedy(node.scope)) from None
        for other in recordings[1:]:
            if other.results != self.results:
                raise Untraceable(None, f"forward() returns other tensors for {samples[1]} samples than for {samples[0]}",
                                  "Let it return the same ones each time")

        for recording in recordings:
            recording.forget()

    def facts(self, ref):
        """Of a node's output, in each recording."""
        return [r.nodes[ref.node].outputs[ref.output] for r in self.recordings]

    def per_sample(self, ref):
        """Whether the first dimension of a node's output is that of the samples, or a multiple of their number."""
        facts = self.facts(ref)
        return bool(facts[0].shape) and len(facts) > 1 and facts[0].shape[0] != facts[1].shape[0]

    def bytes(self, ref):
        """Of a tensor, where there are so many samples as in the last recording."""
        if ref.node < 0:
            tensor = self.recordings[-1].inputs[ref.output]
            return tensor.numel() * tensor.element_size()
        return self.facts(ref)[-1].bytes

    def _check_same_way(self):
        a = self.recordings[0]
        for b, samples in zip(self.recordings[1:], self.samples[1:]):
            for one, other in zip(a.nodes, b.nodes):
                if any(getattr(one, what) != getattr(other, what) for what in ("target", "scope", "returned", "changed", "mutates", "writes")):
                    raise Untraceable(one.where, f"forward() goes another way for {samples} samples than for {self.samples[0]}: there it "
                                      f"comes to {line_of(other.where)}", remedy(one.scope))
            if len(a.nodes) != len(b.nodes):
                longer = max(a.nodes, b.nodes, key=len)[min(len(a.nodes), len(b.nodes))]
                raise Untraceable(longer.where, f"forward() makes {len(a.nodes)} calls for {self.samples[0]} samples and {len(b.nodes)} for "
                                  f"{samples}", remedy(longer.scope))

    def _check_constants(self):
        """What is the same object each time is `lasting`, by its number; else it has to have the same values."""
        self.lasting = {i for i, (one, _) in enumerate(self.recordings[0].constants)
                        if all(i < len(r.constants) and r.constants[i][0] is one for r in self.recordings[1:])}
        for other in self.recordings[1:]:
            for (one, where), (two, _) in zip(self.recordings[0].constants, other.constants):
                if one is two:
                    continue
                same = one.shape == two.shape and one.dtype == two.dtype and torch.equal(one, two)
                if not same and not (one.is_floating_point() and one.shape == two.shape and one.isnan().any()):
                    raise Untraceable(where, f"a tensor {list(one.shape)} comes from where the recording does not see, and is another one for "
                                      "other samples (an object that forward() is given, a scripted function)", "Make it by functions "
                                      "of torch in forward(), or hand it over as a tensor, or in a tuple, list or dictionary")

    def _merged(self, trees):
        if any(_form(tree) != _form(trees[0]) for tree in trees):
            raise Different("the arguments have another form for another number of samples")
        merged = iter([self._one(values) for values in zip(*map(items, trees))])
        return mapped(lambda leaf: next(merged), trees[0])

    def _one(self, values):
        first = values[0]
        if all(value is first or _equal(value, first) for value in values):
            return first
        if type(first) not in (int, float):
            raise Different(f"an argument ({type(first).__name__}) differs with the number of samples")
        if not all(map(math.isfinite, values)):
            raise Different("a number in an argument is infinite for some numbers of samples")
        n0, n1 = self.samples[:2]
        slope = (fractions.Fraction(values[1]) - fractions.Fraction(first)) / (n1 - n0)
        sized = Sized(fractions.Fraction(first) - slope * n0, slope, type(first))
        for samples, value in zip(self.samples, values):
            at = sized.fixed + slope * samples
            if (at != value) if type(first) is int else not math.isclose(at, value, rel_tol=1e-12):
                raise Different(f"a number in an argument is {', '.join(map(str, values))} for {', '.join(map(str, self.samples))} "
                                "samples, which is no constant and a share of each")
        return sized

    def _check_shapes(self, node, others):
        for i, fact in enumerate(node.outputs):
            shapes = [n.outputs[i].shape for n in (node, *others)]
            if any(len(shape) != len(fact.shape) for shape in shapes):
                raise Different(f"{name_of(node.target) if not node.is_module else node.target} gives a tensor of other dimensions for "
                                "another number of samples")
            for sizes in zip(*shapes):
                if len(set(sizes)) > 1 and any(size * self.samples[0] != sizes[0] * n for size, n in zip(sizes, self.samples)):
                    raise Different(f"a dimension is {', '.join(map(str, sizes))} for {', '.join(map(str, self.samples))} samples: it "
                                    "depends on values, or not in proportion on their number")

    def arguments(self, node, samples, tensor_of):
        """(args, kwargs) of a call; `tensor_of` gives the tensors of a Ref, Held or Constant."""
        def leaf(value):
            if isinstance(value, Sized):
                return value.at(samples)
            return tensor_of(value) if isinstance(value, (Ref, Held, Constant)) else value
        return mapped(leaf, node.args), mapped(leaf, node.kwargs)


def _form(tree):
    """A tree without its leaves."""
    if isinstance(tree, (tuple, list)):
        return ["list" if isinstance(tree, list) else "tuple", *map(_form, tree)]
    if isinstance(tree, dict):
        return [(key, _form(part)) for key, part in tree.items()]
    return "slice" if isinstance(tree, slice) else None


def _equal(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    try:
        return bool(a == b)
    except Exception:  # of a class of the user's own
        return False
