"""The operators of a captured module as TorchScript, which C++ trains without Python: what `model.library` of a job names.

A file holds a method for each operator and number of samples, since numbers in arguments that grow with the samples are
constants of a trace; one method for the whole module in evaluation mode; the weights; and, as JSON, what belongs together."""

import contextlib
import errno
import json
import os
import warnings

import torch
from torch import nn

from ductile import _subjects
from ductile._calls import Sized
from ductile._errors import Error
from ductile._seeds import seed_all
from ductile._trace import INPUT, Ref, distinct, items, line_of, mapped, tensors

DESCRIPTION = "ductile.json"  # nn/script_model_impl.h reads it
EVALUATE = "evaluate"


def _stores(module):
    """Where a module has its tensors; recurrent layers have their weights a second time, in a list."""
    return [module._parameters, module._buffers, *(value for value in vars(module).values() if isinstance(value, list))]


class _Instead:
    """While it lasts, the module computes with these tensors in place of its parameters and buffers, by first names."""

    def __init__(self, passes, tensors_by_name):
        self.passes, self.given = passes, tensors_by_name
        wanted = {id(passes.held[name]): tensor for name, tensor in tensors_by_name.items()}
        self.places = [(store, key, wanted[id(held)]) for module in passes.root.modules() for store in _stores(module)
                       for key, held in (store.items() if isinstance(store, dict) else enumerate(store)) if id(held) in wanted]

    def __enter__(self):
        self.before = [store[key] for store, key, _ in self.places], dict(self.passes.held)
        for store, key, tensor in self.places:
            store[key] = tensor
        self.passes.held.update(self.given)

    def __exit__(self, kind, error, trace):
        stored, self.passes.held = self.before
        for (store, key, _), tensor in zip(self.places, stored):
            store[key] = tensor


class Cells:
    def __init__(self, subject, passes, kept):
        self.subject, self.passes, self.kept, self.root = subject, passes, kept, passes.root
        self.name = subject.name
        self._check()
        # Counters, which no float holds, stay constants: batch norm counts its batches, and reads the number nowhere.
        self.buffers = [name for name, b in self.root.named_buffers() if b.is_floating_point()]
        self.parameters = list(passes.parameters)

    def _refuse(self, what, remedy):
        raise Error("invalid_argument", f"--model: {self.name}: {what}. {remedy}")

    def _check(self):
        calls = self.passes.calls
        if not isinstance(self.subject, _subjects.OfModule):
            self._refuse("it is a ductile.Job, whose data and loss are Python", "Name the torch.nn.Module: C++ reads the data, and its loss is the "
                         "cross-entropy of what forward() returns")
        if not calls.recordings[0].inputs:
            self._refuse("forward() is given no tensor", "A job gives it the samples")
        read = {ref.output for op in self.passes.operators for ref in op.inputs if ref.node == INPUT}
        for number in range(len(calls.recordings[0].inputs)):
            if number not in read:
                self._refuse(f"no operator reads tensor {number} of those that forward() is given", "Leave it out")
        if not isinstance(calls.recordings[0].output, torch.Tensor) or not isinstance(calls.results[0], Ref):
            self._refuse("forward() returns no tensor", "Let it return the logits, [samples, classes] or [samples, tokens, vocabulary]")
        for name, tensor in [*self.root.named_parameters(), *self.root.named_buffers()]:
            if tensor.dtype != torch.float32 and (tensor.is_floating_point() or isinstance(tensor, nn.Parameter)):
                self._refuse(f"{name} is {str(tensor.dtype).removeprefix('torch.')}", "Weights and statistics are float32")
        self._check_counters()
        for op in self.passes.operators:
            for index in op.nodes:
                node = calls.nodes[index]
                if not node.grad or node.autocast is not None:
                    self._refuse(f"{line_of(node.where)} runs under no_grad or autocast", "Write detach() for no_grad, and cast with to()")

    def _check_counters(self):
        """A job keeps no whole numbers, and a trace has those that were there when it was made."""
        known = set()
        for path, module in self.root.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                if module.momentum is None:
                    self._refuse(f"{path or 'the module'} is a {type(module).__name__} with momentum=None, whose statistics are means over "
                                 "all batches so far; their number is not in the file", "Give it a momentum")
                known.add(id(module.num_batches_tracked))
        for node in self.passes.calls.nodes:
            for name in node.writes:
                held = self.passes.held[name]
                if not held.is_floating_point() and id(held) not in known:
                    self._refuse(f"{line_of(node.where)} changes {name}, which is {str(held.dtype).removeprefix('torch.')}", "Statistics "
                                 "are float32")

    # ---- What is traced.

    def _held(self, op):
        return [*op.parameters, *(name for name in op.buffers if name in self.buffers)]

    def _cell(self, op, samples):
        names, passes = self._held(op), self.passes

        def run(*args):
            self.root.train()
            env = dict(zip(op.inputs, args))
            with _Instead(passes, dict(zip(names, args[len(op.inputs):]))):
                for index in op.nodes:
                    passes._call(index, None, env, {}, samples, None, index in op.copies)
            return tuple(env[ref] for ref in op.outputs)

        return run

    def _whole(self, samples, training):
        args, kwargs = self.subject._arguments(samples)
        given = [id(tensor) for tensor in distinct(tensors([args, kwargs]))]
        names = [*self.parameters, *self.buffers]

        def run(*inputs_and_held):
            inputs = dict(zip(given, inputs_and_held))

            def instead(leaf):
                return inputs.get(id(leaf), leaf)

            self.root.train(training)
            with _Instead(self.passes, dict(zip(names, inputs_and_held[len(given):]))):
                return self.root(*mapped(instead, args), **mapped(instead, kwargs))

        return run

    def _values(self, names):
        return tuple(self.passes.held[name].detach().clone() for name in names)

    # ---- The file.

    def write(self, file, shares):
        """The file is there when it has been compared with the module, and not before."""
        methods, ops = {}, [self._described(op) for op in self.passes.operators]
        self.names = {}  # of methods, by operator and number of samples
        for samples in shares:
            made = {Ref(INPUT, i): tensor for i, tensor in enumerate(self.subject.inputs(samples))}
            for number, (op, described) in enumerate(zip(self.passes.operators, ops)):
                cell, given = self._cell(op, samples), tuple(made[ref].detach() for ref in op.inputs)
                args = given + self._values(self._held(op))
                with torch.no_grad():
                    made.update(zip(op.outputs, cell(*(a.clone() for a in args))))
                name = self._name_of_cell(op, number, samples, described, [list(t.shape) for t in given])
                methods.setdefault(name, (cell, args))
        methods[EVALUATE] = self._whole(shares[-1], False), (*self.subject.inputs(shares[-1]),
                                                                *self._values([*self.parameters, *self.buffers]))
        try:
            self._save(self._traced(methods), os.fspath(file), json.dumps(self._description(ops)), shares)
        finally:
            self.root.train()
            self.kept.restore()

    def _name_of_cell(self, op, number, samples, described, shapes):
        """Of the method for so many samples: that of other samples, if what it is given has the same shapes."""
        same = [method for method in described["methods"] if method["shapes"] == shapes]
        if same and (node := self._sized(op)):
            self._refuse(f"{line_of(node.where)}: a number in an argument depends on the number of samples, and no shape of what the operator "
                         f"{op.name} is given does", "Give --shares one number, or take it from a tensor that has the samples")
        if not same:
            described["methods"].append({"name": f"op{number}_of_{samples}", "samples": samples, "shapes": shapes})
            same = described["methods"][-1:]
        self.names[number, samples] = same[0]["name"]
        return same[0]["name"]

    def _sized(self, op):
        """A call with a number that depends on the number of samples, or None."""
        nodes = (self.passes.calls.nodes[index] for index in op.nodes)
        return next((node for node in nodes if any(isinstance(leaf, Sized) for leaf in items((node.args, node.kwargs)))), None)

    def _save(self, holder, file, description, shares):
        part = f"{file}.part{os.getpid()}"
        try:
            with open(part, "wb") as out:
                try:
                    torch.jit.save(holder, out, _extra_files={DESCRIPTION: description})
                except RuntimeError as error:
                    self._refuse_script(error)
            self._compare(part, shares)
            os.replace(part, file)
        except OSError as error:
            code = "not_found" if error.errno == errno.ENOENT else "unavailable"
            raise Error(code, f"--model: {file} cannot be written: {error.strerror or error}") from None
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _refuse_script(self, error):
        lines = [line for line in str(error).splitlines() if line] or [type(error).__name__]
        if "requires grad as a constant" in lines[0]:
            self._refuse("forward() reads a weight otherwise than as an attribute of its module, such as a copy that was kept in a tuple, a "
                         "dictionary or a function; in the file it would stay as it is now", "Read self.NAME where it is needed")
        self._refuse(f"it is no TorchScript ({lines[0]})", "What C++ is to run consists of functions of torch")

    def _traced(self, methods):
        class Holder(nn.Module):
            pass

        def method(run):
            return lambda self, *args: run(*args)

        for name, (run, _) in methods.items():
            setattr(Holder, name, method(run))
        holder = Holder()
        for i, value in enumerate(self._values(self.parameters)):
            holder.register_buffer(f"parameter{i}", value)
        for i, value in enumerate(self._values(self.buffers)):
            holder.register_buffer(f"buffer{i}", value)
        holder.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that become constants, which the comparison below sees where it matters
            try:
                return torch.jit.trace_module(holder, {name: args for name, (_, args) in methods.items()}, check_trace=False, strict=False)
            except Exception as error:
                self._refuse_script(error)

    def _described(self, op):
        calls = self.passes.calls
        refs = {ref: [i, k] for i, other in enumerate(self.passes.operators) for k, ref in enumerate(other.outputs)}
        return {"name": op.name, "kind": op.kind, "outputs": len(op.outputs),
                "inputs": [[-1, ref.output] if ref.node == INPUT else refs[ref] for ref in op.inputs],
                "parameters": [self.parameters.index(name) for name in op.parameters],
                "buffers": [self.buffers.index(name) for name in op.buffers if name in self.buffers],
                "random": any(calls.nodes[index].random for index in op.nodes), "methods": []}

    def _description(self, ops):
        norms = {id(p) for module in self.root.modules() if "Norm" in type(module).__name__ for p in module.parameters(recurse=False)}
        result = self.passes.calls.results[0]
        place = next([i, op.outputs.index(result)] for i, op in enumerate(self.passes.operators) if result in op.outputs)
        held = self.passes.parameters
        return {"format": "ductile.model", "version": 1, "name": self.name, "ops": ops, "result": place,
                "inputs": len(self.passes.calls.recordings[0].inputs),
                "parameters": [{"name": name, "frozen": not held[name].requires_grad, "norm": id(held[name]) in norms} for name in self.parameters],
                "buffers": list(self.buffers)}

    # ---- The check.

    def _compare(self, file, shares):
        """What was written gives the module's bits, for other samples than those that were traced, too."""
        loaded = torch.jit.load(file)
        with torch.jit.optimized_execution(False):
            held = self._values([*self.parameters, *self.buffers])
            for samples in sorted({1, shares[0], shares[-1]}):
                inputs = self._other(samples)
                with torch.no_grad():
                    if not torch.equal(getattr(loaded, EVALUATE)(*inputs, *held), self._evaluated(samples, inputs)):
                        self._differs(f"in evaluation mode, of {samples} samples")
            for samples in shares:
                self._compare_operators(loaded, samples)

    def _evaluated(self, samples, inputs):
        """What the module gives in evaluation mode; refused where that compares with nothing."""
        whole = self._whole(samples, False)
        result = whole(*inputs)
        if result.isnan().any():
            self._refuse(f"forward() gives NaN in evaluation mode, of {samples} samples of the example", "Look at its weights and at the example")
        seed_all(samples + 1)
        if not torch.equal(result, whole(*inputs)):
            self._refuse(f"forward() gives something else with other random numbers in evaluation mode, of {samples} samples", "Let it draw "
                         "some where self.training is true alone")
        return result

    def _compare_operators(self, loaded, samples):
        inputs = self._other(samples)
        made, differentiable = {Ref(INPUT, i): tensor for i, tensor in enumerate(inputs)}, set()
        for number, op in enumerate(self.passes.operators):
            given = [(made[ref], ref in differentiable) for ref in op.inputs]
            ours = _Pass(self, op, getattr(loaded, self.names[number, samples]), given, samples)
            theirs = _Pass(self, op, self._cell(op, samples), given, samples)
            what = ours.difference(theirs)
            if what == "gradients":
                self._refuse(f"what is written gives other gradients than the module of {samples} samples, in the operator {op.name}",
                             "TorchScript knows no no_grad: write detach(), or do without --leaf")
            if what:
                self._differs(f"of {samples} samples ({what} of the operator {op.name})")
            made.update(zip(op.outputs, ours.outputs))
            differentiable.update(ref for ref, wanting in zip(op.outputs, ours.differentiable) if wanting)
        if not any(self.passes.calls.nodes[index].random for op in self.passes.operators for index in op.nodes):
            with torch.no_grad():
                if not torch.equal(made[self.passes.calls.results[0]], self._whole(samples, True)(*inputs)):
                    self._differs(f"of {samples} samples")
        self.kept.restore()

    def _other(self, samples):
        seed_all(samples)
        return [tensor.roll(1, 0).flip(-1).contiguous() for tensor in self.subject.inputs(samples)]

    def _differs(self, what):
        self._refuse(f"what is written gives other values than the module {what}", "Python computes something of it from values, or from the "
                     "number of samples, which TorchScript keeps as it was")


class _Pass:
    """What an operator makes by `run`, forward and back: a trace knows nothing of no_grad in a module that is one operator."""

    def __init__(self, cells, op, run, given, samples):
        names = cells._held(op)
        inputs, held = [_copy(tensor) for tensor, _ in given], cells._values(names)
        weights = cells.passes.parameters
        targets = [tensor for tensor, (_, wanting) in zip(inputs, given) if wanting]
        targets += [tensor for name, tensor in zip(names, held) if name in weights and weights[name].requires_grad]
        for tensor in targets:
            tensor.requires_grad_(True)
        seed_all(samples)
        with torch.enable_grad():
            made = run(*inputs, *held)
        self.differentiable = [out.requires_grad for out in made]
        ends = [out for out in made if out.requires_grad]
        seed_all(samples)
        seeds = [torch.randn_like(out) for out in ends]
        self.gradients = torch.autograd.grad(ends, targets, seeds, allow_unused=True) if ends and targets else ()
        self.outputs = [out.detach() for out in made]
        self.statistics = [tensor for name, tensor in zip(names, held) if name not in weights]

    def difference(self, other):
        """Of what kind it is, or None. Gradients of several uses may add up in another order."""
        for what in ("outputs", "statistics"):
            if not all(map(torch.equal, getattr(self, what), getattr(other, what))):
                return what
        scale = max((float(g.abs().max()) for g in other.gradients if g is not None and g.numel()), default=0.0)
        if self.differentiable != other.differentiable or not all(_near(a, b, scale) for a, b in zip(self.gradients, other.gradients)):
            return "gradients"
        return None


def _copy(tensor):
    """It lies in memory as the tensor does, since kernels choose by that."""
    copied = tensor.detach().clone()
    return copied if copied.stride() == tensor.stride() else tensor.detach()


def _near(a, b, scale):
    if a is None or b is None:
        return a is b
    return torch.allclose(a, b, rtol=1e-3, atol=1e-5 * scale, equal_nan=True)
