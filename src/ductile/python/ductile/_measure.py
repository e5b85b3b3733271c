"""What the operators of a captured module cost: seconds, or operations in their place, and bytes."""

import math
import statistics
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ductile import _core
from ductile._passes import Nothing
from ductile._trace import Untraceable, place, tensors

PHASES = ("forward", "backward_input", "backward_weight")

# An NVIDIA V100 in fp32, by which `ductile plan` prices built-in graphs (graph/cost_model.h).
_FLOPS, _BANDWIDTH, _OVERHEAD = 14e12, 800e9, 10e-6


def fitted(samples, values):
    """(fixed, per sample) of the line through what was measured at these numbers of samples."""
    return _core.fit_affine([float(n) for n in samples], [float(v) for v in values])


def _whole(number):
    """Rounded up, but for what the fit has added."""
    return math.ceil(round(number, 3))


class Clock(Nothing):
    """Seconds of wall time by operator and phase."""

    def __init__(self):
        self.seconds = {}

    def begin(self, op):
        self.began = time.perf_counter()

    def end(self, op, phase):
        self.seconds.setdefault((op.name, phase), []).append(time.perf_counter() - self.began)


class Memory(Nothing):
    """Bytes that wait for the backward pass, by the operator that made them: the memory of tensors that autograd saves, each once,
    without weights, buffers and the model's inputs."""

    def __init__(self, passes, inputs):
        self.passes, self.held = passes, {op.name: {} for op in passes.operators}
        self.owner, self.op = {}, None
        self.apart = {place(t) for t in [*passes.held.values(), *passes.calls.constants, *inputs]}

    def begin(self, op):
        self.op = op

    def end(self, op, phase):
        if phase == "forward":
            for tensor in self.passes.runs[op.name].outputs:
                self.owner.setdefault(place(tensor), op.name)

    def counting(self):
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor):
        at = place(tensor)
        if at and at not in self.apart:
            self.held[self.owner.get(at, self.op.name)][at] = tensor.storage().nbytes()
        return tensor


class Work(TorchDispatchMode):
    """Seconds of a device, from the operations and bytes of each call of libtorch: the slower of arithmetic and memory traffic."""

    def __init__(self):
        super().__init__()
        self.seconds, self.now = {}, 0.0

    def begin(self, op):
        self.now = 0.0

    def end(self, op, phase):
        self.seconds[op.name, phase] = [self.now + _OVERHEAD if self.now else 0.0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given, made = tensors([args, kwargs or {}]), tensors(out if isinstance(out, (tuple, list)) else [out])
        name = func._schema.name.rpartition("::")[2]
        is_view = not name.endswith("_") and bool(made) and {place(t) for t in made} <= {place(t) for t in given}
        if not is_view:
            moved = sum(t.numel() * t.element_size() for t in [*given, *made])
            self.now += max(operations(name, args, made) / _FLOPS, moved / _BANDWIDTH)
        return out


def operations(name, args, made):
    """Floating-point operations of one call of libtorch: products and convolutions by their sizes, others one for each value made."""
    if name in ("mm", "bmm"):
        return 2 * made[0].numel() * args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return 2 * made[0].numel() * args[1].shape[-1]
    if name == "convolution":
        return _convolution(args[0], args[1], made[0], args[6])
    if name == "convolution_backward":
        return _convolution(args[1], args[2], args[0], args[7]) * sum(args[10][:2])
    return sum(t.numel() for t in made)


def _convolution(x, weight, out, transposed):
    return 2 * (x if transposed else out).numel() * weight.numel() // weight.shape[0]


class Measured:
    """Of one number of samples: the bytes of tensors between operators and of what is held, and all seconds."""

    def __init__(self, samples):
        self.samples, self.seconds = samples, {}
        self.bytes, self.shapes, self.held = {}, {}, {}


class Measurement:
    def __init__(self, subject, passes, seeds, shares, rounds, times, progress, restore):
        self.subject, self.passes, self.seeds, self.restore = subject, passes, seeds, restore
        self.notes, self.measured = [], []
        inputs = {}
        for n in shares:
            try:
                inputs[n] = subject.inputs(n)
                self.measured.append(self._first(n, inputs[n], times))
            except Untraceable as why:  # one sample is too few for batch norm
                if n >= passes.calls.samples[0]:
                    raise
                self.notes.append(f"{n} sample{'s' * (n > 1)} at once cannot be measured: {why.what}")
        if not self.measured:
            raise Untraceable(None, f"none of --shares {', '.join(map(str, shares))} can be run", "Name larger ones")
        for done in range(rounds if times else 0):
            for m in self.measured:
                clock = Clock()
                passes.run(inputs[m.samples], m.samples, seeds, clock)
                for key, seconds in clock.seconds.items():
                    m.seconds.setdefault(key, []).extend(seconds)
            progress((done + 1) / rounds)
        restore()

    def _first(self, n, inputs, times):
        """Bytes, and operations where there are no times; it warms up, too."""
        m, memory = Measured(n), Memory(self.passes, inputs)
        with memory.counting():
            self.passes.run(inputs, n, self.seeds, memory)
        m.held = {name: sum(blocks.values()) for name, blocks in memory.held.items()}
        for ref, tensor in self.passes.made.items():
            m.bytes[ref], m.shapes[ref] = tensor.numel() * tensor.element_size(), list(tensor.shape)
        if not times:
            work = Work()
            with work:
                self.passes.run(inputs, n, self.seeds, work)
            m.seconds = work.seconds
        return m

    def line(self, value):
        return fitted([m.samples for m in self.measured], [value(m) for m in self.measured])

    def seconds(self, op, phase):
        fixed, per_sample = self.line(lambda m: statistics.median(m.seconds[op.name, phase]))
        return {"fixed": fixed, "per_sample": per_sample} if fixed else per_sample

    def bytes_of(self, ref):
        """Per sample; of a tensor that does not grow with them, its share at the largest number."""
        slope = self.line(lambda m: m.bytes[ref])[1]
        last = self.measured[-1]
        return _whole(slope if slope else last.bytes[ref] / last.samples)

    def held(self, op):
        """(always, per sample)"""
        fixed, per_sample = self.line(lambda m: m.held[op.name])
        return round(fixed), _whole(per_sample)

    def shape(self, ref):
        """Of one sample."""
        last, first = self.measured[-1], self.measured[0]
        shape = last.shapes[ref]
        varies = last is first or shape[:1] != first.shapes[ref][:1]
        return shape[1:] if varies and shape[:1] == [last.samples] else []
