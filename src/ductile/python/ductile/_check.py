"""Whether the operators of a module, run one by one, give what the module gives: outputs, gradients, buffers, to the bit."""

import torch

from ductile._errors import Error
from ductile._passes import LAST
from ductile._seeds import seed_all
from ductile._trace import Recorder, Ref, Untraceable, items, tensors

# Sums of gradients that are made in another order may differ by this share of the largest value, or by so many times what a change
# of the weights in their last bits makes of the gradient.
_CLOSE, _TIMES, _LAST_BITS = 1e-5, 8, 2.0**-21


class Kept:
    """The buffers and modes of a module, as they were: after `with`, and whenever restore() is called."""

    def __init__(self, root):
        self.root = root
        self.buffers = [(m, key, b, b.detach().clone()) for m in root.modules() for key, b in m._buffers.items() if b is not None]
        self.modes = [(m, m.training) for m in root.modules()]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.restore()
        for module, mode in self.modes:
            module.training = mode

    def restore(self):
        """The buffers alone."""
        with torch.no_grad():
            for module, key, buffer, value in self.buffers:
                module._buffers[key] = buffer
                buffer.copy_(value)

    def assigned(self, whole):
        """(module, key) of a buffer that is another tensor now, or None. Modules of `whole` may do so."""
        return next(((m, key) for m, key, buffer, _ in self.buffers if m not in whole and m._buffers.get(key) is not buffer), None)


def _dense(gradient):
    """An embedding's may be sparse."""
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def same_bits(a, b):
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    return torch.equal(*(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _apart(a, b):
    """The largest difference, as a share of the largest value."""
    scale = a.abs().max().item()
    return (a - b).abs().max().item() / scale if scale else float("inf")


class Check:
    def __init__(self, subject, passes, kept, leaf):
        self.subject, self.passes, self.kept, self.leaf = subject, passes, kept, leaf
        self.root = subject.root

    def run(self, samples):
        """A note where gradients are equal to rounding alone; raises Error where something differs."""
        where = f"{self.subject.name}, checked with {samples} samples"
        outputs, gradients, buffers, given = self._plain(samples)
        self._again(where, samples, outputs)
        made, found, moved = self._by_operators(samples, given)
        refs = self._results()
        for i, ref in enumerate(refs):
            if ref is not None and not same_bits(outputs[i], made[ref]):
                raise self._differs(where, f"output {i}" if len(refs) > 1 else "the output", ref)
        for name, value in moved.items():
            if not same_bits(value, buffers[name]):
                raise self._differs(where, f"the buffer {name}", None)
        return self._gradients(where, samples, gradients, found)

    def _results(self):
        """Of each tensor that the module gives, which one it is; None for what no operator makes."""
        loss = self.passes.operators[-1]
        if loss.is_loss:
            return loss.outputs
        made = {ref for op in self.passes.operators for ref in op.outputs}
        return [ref if isinstance(ref, Ref) and ref in made else None for ref in self.passes.calls.results]

    def _plain(self, samples):
        seed_all(self.subject.seed)
        outputs = tensors(self.subject.call(samples))
        generator = torch.Generator().manual_seed(samples)
        given = [torch.randn(t.shape, generator=generator).to(t.dtype) if t.requires_grad and t.dim() else torch.ones_like(t)
                 for t in outputs]
        names = [name for name, p in self.passes.parameters.items() if p.requires_grad]
        pairs = [(t, g) for t, g, ref in zip(outputs, given, self._results()) if t.requires_grad and ref is not None]
        found = torch.autograd.grad([t for t, _ in pairs], [self.passes.parameters[n] for n in names], [g for _, g in pairs],
                                    allow_unused=True) if pairs and names else [None] * len(names)
        buffers = {name: b.detach().clone() for name, b in self.root.named_buffers()}
        self.kept.restore()
        return [t.detach() for t in outputs], dict(zip(names, map(_dense, found))), buffers, given

    def _again(self, where, samples, outputs):
        """A second call of the module, which may have kept something of the first."""
        seed_all(self.subject.seed)
        again = tensors(self.subject.call(samples))
        self.kept.restore()
        if len(again) != len(outputs) or not all(map(same_bits, outputs, again)):
            raise Error("conflict", f"{where}: a second call with the same samples, seeds and buffers gives something else. The module keeps "
                        "a value in Python between calls, or draws from a generator of its own: make what it keeps a buffer, and draw "
                        "from torch's generator; or keep that part whole with --leaf, and leave the check out with --no-check")

    def _by_operators(self, samples, given):
        generators = self._generators(samples)
        seed_all(self.subject.seed)
        inputs = self.subject.inputs(samples)
        refs = self._results()
        seed_all(self.subject.seed)
        self.passes.run(inputs, samples, lambda made: self._seeds(refs, given, made), generators=generators)
        found = {}
        for name, parts in self.passes.weight_gradients.items():
            total = parts[0]
            for part in parts[1:]:
                total = total + part
            found[name] = _dense(total)
        buffers = {name: b.detach().clone() for name, b in self.root.named_buffers()}
        self.kept.restore()
        return self.passes.made, found, buffers

    @staticmethod
    def _seeds(refs, given, made):
        """A tensor that the module gives twice has two gradients."""
        seeds = {}
        for ref, gradient in zip(refs, given):
            if ref is not None and made[ref].requires_grad:
                seeds[ref] = seeds[ref] + gradient if ref in seeds else gradient
        return seeds

    def _generators(self, samples):
        """What torch's generator was before each call that draws."""
        if not any(node.random for node in self.passes.calls.nodes):
            return None
        recorder = Recorder(self.root, self.leaf)
        seed_all(self.subject.seed)
        with recorder.watching():
            self.subject.call(samples)
        self.kept.restore()
        return {LAST: recorder.after, **{node.index: node.generator for node in recorder.nodes if node.random}}

    def _differs(self, where, what, ref):
        op = next((o.name for o in self.passes.operators if ref in o.outputs), None) if ref else None
        return Error("conflict", f"{where}: {what}{f' (of operator {op})' if op else ''} has other bits than the module's own. Something "
                     "that shapes it is seen by no operator: a hook, a value kept in Python between calls, a generator that is seeded "
                     "by the clock; the module itself may give another result each time. Keep that part whole with --leaf; "
                     "--no-check leaves the check out")

    def _gradients(self, where, samples, plain, found):
        differing = {}
        for name, value in plain.items():
            own = found.get(name)
            if value is None or own is None:
                given = value if own is None else own
                if given is not None and bool(given.any()):
                    raise self._differs(where, f"the gradient of {name}", None)
            elif not same_bits(value, own):
                differing[name] = _apart(value, own)
        if not differing:
            return None
        reason = self._other_order()
        far = {name for name, apart in differing.items() if not apart <= _CLOSE}
        if reason is not None and far:
            nudged = self._nudged(samples)
            far = {name for name in far if not differing[name] <= _TIMES * _apart(plain[name], nudged[name])}
        if reason is None or far:
            worst = max(far or differing, key=lambda name: differing[name])
            raise self._differs(where, f"the gradient of {worst}", None)
        largest = max(value.abs().max().item() for value in plain.values() if value is not None and value.numel())
        most = max((plain[name] - found[name]).abs().max().item() for name in differing)
        return f"gradients equal the module's to rounding, not to the bit (they differ by at most {most / largest:.1g} of the largest): " \
               f"{reason}, so they add up in another order"

    def _nudged(self, samples):
        """The module's gradients where its weights differ in their last bits: how much rounding alone may change them."""
        generator, values = torch.Generator().manual_seed(samples), {}
        try:
            with torch.no_grad():
                for name, p in self.passes.parameters.items():
                    values[name] = p.detach().clone()
                    p.mul_((1 + _LAST_BITS * (2 * torch.rand(p.shape, generator=generator) - 1)).to(p.dtype))
            return self._plain(samples)[1]
        finally:
            with torch.no_grad():
                for name, value in values.items():
                    self.passes.parameters[name].copy_(value)

    def _other_order(self):
        """Why gradients may add up in another order than in autograd over the whole module; None if they may not."""
        reads, weights = {}, {}
        for op in self.passes.operators:
            for index in op.nodes:
                node = self.passes.calls.nodes[index]
                for leaf in [*items(node.args), *items(node.kwargs)]:
                    if isinstance(leaf, Ref) and leaf in op.inputs:
                        reads.setdefault(leaf, []).append(op.name)
            for name in op.parameters:
                weights.setdefault(name, []).append(op.name)
        for ref, readers in reads.items():
            modules = sum(self.passes.calls.nodes[i].is_module for op in self.passes.operators for i in op.nodes
                          if ref in self.passes.calls.nodes[i].reads())
            if ref.node >= 0 and len(readers) + modules >= 3:  # a module may read what it is given several times
                return f"{', '.join(dict.fromkeys(readers))} read one tensor"
        for name, users in weights.items():
            if len(users) > 1:
                return f"{', '.join(users)} hold {name}"
        return None


def coupled(passes, inputs, samples, kept):
    """Names of operators whose result for a sample depends on the others that are there (batch norm), so micro-batches change it."""
    found, half = [], samples // 2
    with torch.no_grad():
        passes.run(inputs, samples, lambda made: {})
        whole = dict(passes.made)
        kept.restore()
        for op in passes.operators:
            if op.is_loss or any(passes.calls.nodes[i].random for i in op.nodes):
                continue
            given = {ref: _first(passes, ref, whole[ref], half, samples) for ref in op.inputs}
            try:
                outputs = passes.forward(op, given, half).outputs
            except (Exception, Untraceable):  # half as many samples may be too few for it
                continue
            pairs = [(out, _first(passes, ref, whole[ref], half, samples)) for ref, out in zip(op.outputs, outputs)]
            if any(a.is_floating_point() and a.shape == b.shape and not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True) for a, b in pairs):
                found.append(op.name)
    kept.restore()
    return found


def _first(passes, ref, tensor, half, samples):
    """What a tensor of all samples has of the first ones."""
    grows = ref.node < 0 or passes.calls.per_sample(ref)
    if not grows or tensor.dim() == 0 or tensor.shape[0] % samples:
        return tensor
    return tensor[:tensor.shape[0] // samples * half]
