"""A module's operators run one by one, forward and back, as the stages of a pipeline run them."""

import torch

from ductile import _trace
from ductile._errors import told
from ductile._seeds import seed_all
from ductile._trace import INPUT, Constant, Held, Ref, Untraceable, mapped, tensors


LAST = 1 << 60  # the loss reads after all calls


class Run:
    """Of one operator on one micro-batch. `leaves`: what it reads, detached, by (tensor, call that reads it)."""

    def __init__(self):
        self.leaves, self.outputs = {}, []
        self.pairs, self.later = [], []  # outputs with their gradients; weights that the backward pass leaves


class Nothing:
    """A meter that measures nothing."""

    def begin(self, op):
        pass

    def end(self, op, phase):
        pass


class Passes:
    """`operators` in order. Weights that are cheap to sum (norms, biases) belong to the backward pass, and all weights of an operator
    whose inputs want no gradient to that of the weights, as in parallel/stage_executor.h."""

    def __init__(self, subject, calls, operators):
        self.subject, self.root, self.calls, self.operators = subject, subject.root, calls, operators
        self.parameters = dict(self.root.named_parameters())
        self.modules = dict(self.root.named_modules())
        self.held = {**self.parameters, **dict(self.root.named_buffers())}
        self.made, self.runs, self.weight_gradients = {}, {}, {}

    # ---- Forward.

    def forward(self, op, inputs, samples, generators=None):
        """Runs an operator on `inputs` by Ref. `generators`: states of torch's generator by the calls that draw."""
        if op.is_loss:
            return self._loss(op, inputs, samples, generators)
        run, env = Run(), {}
        for index in op.nodes:
            self._call(index, run, env, inputs, samples, generators, index in op.copies)
        run.outputs = [env[ref] for ref in op.outputs]
        return run

    def _call(self, index, run, env, inputs, samples, generators, copy):
        node, copies = self.calls.nodes[index], {}

        def tensor_of(value):
            if value in copies:
                return copies[value]
            if isinstance(value, Held):
                return self.held[value.name]
            if isinstance(value, Constant):
                return self.calls.constants[value.index]
            return env[value] if value in env else self._leaf(run, value, index, inputs)

        if copy:
            copies.update({value: tensor_of(value).clone() for value in node.mutates})
        args, kwargs = self.calls.arguments(node, samples, tensor_of)
        if generators and index in generators:
            torch.set_rng_state(generators[index])
        try:
            result = self._called(node, self.modules[node.target] if node.is_module else node.target, args, kwargs)
        except Exception as error:
            raise Untraceable(node.where, f"with {samples} sample{'s' * (samples > 1)} it fails ({told(error)[1].splitlines()[-1]}), and with "
                              f"{self.calls.samples[0]} it does not", _trace.remedy(node.scope)) from None
        made = tensors(result)
        if len(made) != node.returned:
            raise Untraceable(node.where, f"it makes {len(made)} tensors of {samples} samples, and {node.returned} of "
                              f"{self.calls.samples[0]}", _trace.remedy(node.scope))
        for i, tensor in enumerate(made):
            env[Ref(index, i)] = tensor
        for i, value in enumerate(node.changed):
            env[Ref(index, node.returned + i)] = tensor_of(value)

    @staticmethod
    def _called(node, target, args, kwargs):
        if node.grad and node.autocast is None:
            return target(*args, **kwargs)
        with torch.set_grad_enabled(torch.is_grad_enabled() and node.grad):
            if node.autocast is None:
                return target(*args, **kwargs)
            with torch.autocast("cpu", dtype=node.autocast):
                return target(*args, **kwargs)

    @staticmethod
    def _leaf(run, ref, reader, inputs):
        if (ref, reader) not in run.leaves:
            given = inputs[ref]
            leaf = given.detach()
            if given.requires_grad:
                leaf.requires_grad_(True)
            run.leaves[ref, reader] = leaf
        return run.leaves[ref, reader]

    def _loss(self, op, inputs, samples, generators):
        if generators:
            seed_all(self.subject.seed)  # it draws before it calls the model
        run = Run()
        refs = iter(self.calls.results)

        def tensor_of(leaf):
            if not isinstance(leaf, torch.Tensor):
                return leaf
            value = next(refs)
            if isinstance(value, Held):
                return self.held[value.name]
            if isinstance(value, Constant):
                return self.calls.constants[value.index]
            return self._leaf(run, value, LAST, inputs)

        output = mapped(tensor_of, self.calls.recordings[0].output)
        try:
            run.outputs = [self.subject.loss(samples, output, generators.get(LAST) if generators else None)]
        except Exception as error:
            raise Untraceable(None, f"loss() fails with {samples} sample{'s' * (samples > 1)} ({told(error)[1].splitlines()[-1]}), and with "
                              f"{self.calls.samples[0]} it does not", "Name other numbers with --shares") from None
        return run

    # ---- Backward.

    def _targets(self, op, run):
        """(keys of leaves, names of weights for the backward pass, names for that of the weights)."""
        keys = [key for key, leaf in run.leaves.items() if leaf.requires_grad]
        names = [name for name in op.parameters if self.parameters[name].requires_grad]
        now = [name for name in names if keys and self.parameters[name].dim() <= 1]
        return keys, now, [name for name in names if name not in now]

    def backward(self, op, run, gradients):
        """`gradients` of the outputs, by Ref -> [(input, call that reads it, gradient)]. What is left for the weights stays in `run`."""
        run.pairs = [(out, gradients[ref]) for ref, out in zip(op.outputs, run.outputs) if out.requires_grad and ref in gradients]
        keys, now, run.later = self._targets(op, run)
        if not run.pairs or not keys + now:
            return []
        found = self._differentiate(run, [run.leaves[key] for key in keys] + [self.parameters[name] for name in now], bool(run.later))
        self._add(now, found[len(keys):])
        return [(*key, gradient) for key, gradient in zip(keys, found) if gradient is not None]

    def backward_weights(self, op, run):
        if run.pairs and run.later:
            self._add(run.later, self._differentiate(run, [self.parameters[name] for name in run.later], False))
        run.leaves, run.outputs, run.pairs = {}, [], []

    @staticmethod
    def _differentiate(run, targets, again):
        outputs, gradients = zip(*run.pairs)
        return torch.autograd.grad(outputs, targets, gradients, retain_graph=again, allow_unused=True)

    def _add(self, names, found):
        for name, gradient in zip(names, found):
            if gradient is not None:
                self.weight_gradients.setdefault(name, []).append(gradient)

    # ---- The whole.

    def run(self, inputs, samples, seeds, meter=None, generators=None):
        """One micro-batch through all operators and back; `seeds` makes the gradients of the results of their tensors (by Ref). The
        results stay in `made`, detached; the weights' gradients in `weight_gradients`, in falling order of operators."""
        meter = meter or Nothing()
        self.made = {Ref(INPUT, i): tensor for i, tensor in enumerate(inputs)}
        self.runs, self.weight_gradients = {}, {}
        for op in self.operators:
            given = {ref: self.made[ref] for ref in op.inputs}
            if op.is_loss:
                self.subject.prepare(samples)
            meter.begin(op)
            run = self.runs[op.name] = self.forward(op, given, samples, generators)
            meter.end(op, "forward")
            self.made.update(zip(op.outputs, run.outputs))
        waiting = {ref: [(float("inf"), gradient)] for ref, gradient in seeds(self.made).items()}
        for op in reversed(self.operators):
            gradients = {ref: _sum(waiting.pop(ref)) for ref in op.outputs if ref in waiting}
            run = self.runs[op.name]
            meter.begin(op)
            found = self.backward(op, run, gradients)
            meter.end(op, "backward_input")
            meter.begin(op)
            self.backward_weights(op, run)
            meter.end(op, "backward_weight")
            for ref, reader, gradient in found:
                if ref.node != INPUT:
                    waiting.setdefault(ref, []).append((reader, gradient))
        self.made = {ref: tensor.detach() for ref, tensor in self.made.items()}


def _sum(contributions):
    """Gradients of several readers add up in falling order of these, as autograd does it."""
    total = None
    for _, gradient in sorted(contributions, key=lambda c: -c[0]):
        total = gradient if total is None else total + gradient
    return total


def loss_parameters(passes, op, samples, inputs):
    """The model's weights that a job's loss uses by itself (a penalty on them); `inputs` are detached."""
    run = passes.forward(op, inputs, samples)
    if not run.outputs[0].requires_grad:
        return []
    names = [name for name, p in passes.parameters.items() if p.requires_grad]
    found = torch.autograd.grad(run.outputs, [passes.parameters[name] for name in names], allow_unused=True)
    return [name for name, gradient in zip(names, found) if gradient is not None]
