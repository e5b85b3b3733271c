"""What the C++ worker calls: the model, the loss of a virtual rank, the evaluation."""

import contextlib
import os
import sys

import numpy
import torch
from torch.nn.parameter import is_lazy

from ductile import _core, _logs, _weights
from ductile._errors import Error, of_user, told
from ductile._feeder import Feeder
from ductile._job import Ratio
from ductile._optimizer import Rule, has_rule
from ductile._seeds import seed_all
from ductile._sources import Source
from ductile._state import State, is_in, put_back

# Buffers of at most so many values, together, may change in a step; larger ones have to stay as they are.
_MOST_CARRIED = 1 << 16
# So many losses of a process are looked at for changes of weights that only their values show.
_LOOKS = 2


def _shown(value):
    if isinstance(value, Ratio):
        return f"ductile.ratio({_shown(value.sum)}, {_shown(value.of)})"
    return f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:100]


def _same_bits(a, b):
    return torch.equal(a.detach().view(torch.int32), b.view(torch.int32))


def _is_freed(loss):
    """Whether what a backward pass over it needs is gone: torch refuses to show it then."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_") or name == "saved_tensors":
                try:
                    getattr(node, name)
                except RuntimeError as error:
                    if "second time" in str(error):
                        return True
    return False


class Task:
    """The job as the worker sees it. Methods raise Error, with all that the user has to know."""

    def __init__(self, job, options, name):
        self.job, self.name = job, name
        self.seed = options["seed"]
        self.ranks = options["train"]["virtual_ranks"]
        self.metrics = self._metrics(job.metrics)
        self.train = self._made(job.train_data, "train_data", options["loader"]["shuffle"], self.ranks,
                                options["data"]["train_limit"])
        self.test = self._made(job.test_data, "test_data", False, 1, options["data"]["test_limit"])
        self.train_size, self.test_size = self.train.size, self.test.size
        self.shuffled = self.train.order()
        batch = options["train"]["batch_size"]
        self.test_batch = options["train"]["eval_batch_size"] or self.test.batch_size or batch
        self.feeder = Feeder(self.train, self.test, batch, self.ranks, options["loader"]["prefetch"])
        self.model = None

    def _metrics(self, given):
        if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
            raise Error("invalid_argument", f"{self.name}: metrics is {given!r}; a list or tuple of names is needed: "
                        'metrics = ("accuracy",)')
        return list(given)

    def _made(self, make, what, shuffle, ranks, limit):
        seed_all(self.seed)  # of both alike: a random_split() in each gives the two halves of one
        try:
            return Source(make(), f"{self.name}, {what}", self.seed, shuffle, ranks, limit)
        except Error:
            raise
        except BaseException as error:
            raise Error("invalid_argument", f"{self.name}, {what}():\n{told(error)[1]}") from None

    # ---- The model.

    def make_model(self, seed):
        """(parameters, averaged buffers, carried buffers), each a list of (name, tensor, is_norm)."""
        seed_all(seed)
        with of_user("invalid_argument", f"{self.name}, model()"):
            self.model = self.job.model()
        if not isinstance(self.model, torch.nn.Module):
            raise Error("invalid_argument", f"{self.name}, model() gives {type(self.model).__name__}; a "
                        "torch.nn.Module is needed")
        self._settle_lazy(seed)
        norms = {module for module in self.model.modules() if "Norm" in type(module).__name__}
        owners = [(module, prefix + "." if prefix else "") for prefix, module in self.model.named_modules()]
        in_norms = {at + n for module, at in owners if module in norms for n in module._parameters}
        parameters = [(name, p, name in in_norms) for name, p in self.model.named_parameters()]
        for name, p, _ in parameters:
            self._check(p.dtype == torch.float32, "parameter", name, f"is {p.dtype}; it has to be float32 "
                        "(use torch.autocast in loss() to compute in less)")
            self._check(p.device.type == "cpu", "parameter", name, f"lies on {p.device}; it has to lie on the cpu")
        self._parameters = [(name, p) for name, p, _ in parameters]
        self._modules = list(self.model.modules())
        self._modes = [module.training for module in self._modules]
        self._weights = [p for _, p in self._parameters]
        self._marks = None
        self._looks = _LOOKS
        self.rule = Rule(self.job, self.model, seed, self.name) if has_rule(self.job) else None
        self._trained = [p.requires_grad for p in self._weights]  # optimizer() may freeze some
        averaged, carried = self._sort_buffers(owners, norms)
        self._register(carried)
        return parameters, averaged, carried

    def _check(self, good, kind, name, text):
        if not good:
            raise Error("invalid_argument", f"{self.name}: {kind} {name} {text}")

    def _settle_lazy(self, seed):
        """Lazy modules get their sizes from a batch, the same one on every worker. Its loss has what state() gives, which
        is as it was afterwards; state() may itself have to know the sizes, and then gives nothing for this batch."""
        lazy = [n for n, p in [*self.model.named_parameters(), *self.model.named_buffers()] if is_lazy(p)]
        if not lazy:
            return
        batch = self.train.fetch(0, 0, 1)
        state, before = None, []
        with contextlib.suppress(Exception):
            state = self._stated()
            before = [tensor.clone() for _, tensor in state.tensors]
        seed_all(seed)
        self.model.eval()
        where = f"{self.name}: the first batch, which gives lazy parameters ({lazy[0]}) their sizes"
        with of_user("invalid_argument", where), torch.no_grad():
            self.job.loss(self.model, batch)
        self.model.train()
        if state:
            for (_, tensor), value in zip(state.tensors, before):
                tensor.copy_(value)
            state.restore()

    def _sort_buffers(self, owners, norms):
        """Statistics of norm layers are averaged over the ranks; other small buffers are carried; the
        rest has to stay as it is. Every buffer has to stay the tensor that it is now."""
        averaged, carried, self._kept, self._constant = [], [], [], []
        self._named = [(at, module._buffers, {key for key, buffer in module._buffers.items() if buffer is not None})
                       for module, at in owners]
        self._places = None
        seen, num_carried = set(), 0
        for module, at in owners:
            for key, buffer in module._buffers.items():
                if buffer is None or id(buffer) in seen:
                    continue
                seen.add(id(buffer))
                name = at + key
                self._check(buffer.device.type == "cpu", "buffer", name, f"lies on {buffer.device}; it has to lie on "
                            "the cpu")
                if not buffer.is_contiguous():
                    buffer = module._buffers[key] = buffer.contiguous()
                if module in norms and buffer.dtype == torch.float32:
                    averaged.append((name, buffer, True))
                elif num_carried + buffer.numel() <= _MOST_CARRIED:
                    carried.append((name, buffer, False))
                    num_carried += buffer.numel()
                else:
                    self._constant.append((name, buffer, buffer._version))
                self._kept.append((module._buffers, key, name, buffer))
        return averaged, carried

    def _register(self, carried):
        """What the job keeps outside of its model is carried as buffers are."""
        self.state = self._stated()
        room = _MOST_CARRIED - sum(buffer.numel() for _, buffer, _ in carried)
        for name, tensor in self.state.tensors:
            room -= tensor.numel()
            self._check(room >= 0, "state", name, f"has {tensor.numel()} values; buffers and state of a job may have "
                        f"{_MOST_CARRIED} together (bytes, of what is pickled)")
            carried.append(("state/" + name, tensor, False))

    def _stated(self):
        with of_user("invalid_argument", f"{self.name}, state()"):
            registered = self.job.state(self.model)
        return State(registered, self.name, [vars(self.job), *(vars(module) for module in self.model.modules())])

    def _hold_buffers(self):
        if self._places is None:  # the worker gives averaged buffers theirs after make_model()
            self._places = [buffer.detach() for _, _, _, buffer in self._kept]

    def _before_loss(self):
        """What _check_parameters() compares. Modes that the last loss left are put back, and what is trained: another
        virtual rank, or none, may follow it on this worker."""
        if [module.training for module in self._modules] != self._modes:
            for module, mode in zip(self._modules, self._modes):
                module.training = mode
        marks = _core.marks(self._weights)
        if marks != self._marks:  # others than after the last loss: it, or an update, has changed something
            for (_, p), trained in zip(self._parameters, self._trained):
                p.requires_grad_(trained)
            marks = _core.marks(self._weights)
        values = None
        if self._looks > 0:  # `p.data.clamp_()` leaves no other trace
            self._looks -= 1
            values = [p.detach().clone() for p in self._weights]
        return marks, values

    def _check_parameters(self, before):
        marks, values = before
        self._marks = _core.marks(self._weights)
        if values is None and self._marks == marks:
            return
        self._marks = None
        was, now = (numpy.frombuffer(of, numpy.int64).reshape(-1, 3) for of in (marks, _core.marks(self._weights)))
        for i, (name, p) in enumerate(self._parameters):
            given = now[i][0] != was[i][0]
            if given or now[i][1] != was[i][1] or values is not None and not _same_bits(p, values[i]):
                raise Error("conflict", f"{self.name}: parameter {name} was {'given other data' if given else 'changed'} by loss(). "
                            "That reaches the virtual ranks alone which this worker computes next: weights change after a "
                            "step, by the sum of all ranks. Write a rule of your own into optimizer(), or compute with a "
                            "changed copy (torch.nn.utils.parametrize)")

    def _check_not_differentiated(self, out, where):
        """A loss on which backward() was called already has no graph any more, and torch's own error has a remedy that is
        none. (On something else loss() may call it.)"""
        loss = out[0] if isinstance(out, tuple) and out else out
        if not isinstance(loss, torch.Tensor) or all(p.grad is None for p in self._weights):
            return
        if _is_freed(loss):
            raise Error("conflict", f"{where}: backward() was called on the loss that is returned. Return the loss, and do not call "
                        "backward() on it: Ductile does so, once for each virtual rank, and updates the weights when all of "
                        "them are done (in a loop of your own, call step.backward(loss) alone)")

    def _check_buffers(self, keep):
        """forward() may have put another tensor in the place of a buffer, or made it another one: its values
        count (`keep`), in the tensor and the memory that the worker knows."""
        for (buffers, key, name, buffer), place in zip(self._kept, self._places):
            now = buffers.get(key)
            if now is not buffer or not is_in(buffer, place):
                put_back(buffer, place, now, f"{self.name}: buffer {name}", keep)
                buffers[key] = buffer
        for at, buffers, keys in self._named:
            if len(buffers) > len(keys) and (new := [key for key, buffer in buffers.items() if buffer is not None and key not in keys]):
                raise Error("conflict", f"{self.name}: buffer {at}{new[0]} was nothing when the model was made, and is a tensor after "
                            "loss(). What is not there at first reaches no other worker and no checkpoint: register it with its "
                            "shape and type (torch.zeros(...)), or keep what is made anew each time in a variable")
        for name, buffer, version in self._constant:
            if buffer._version != version:
                raise Error("conflict", f"{self.name}: buffer {name} was changed by loss(). Such a change reaches other "
                            f"workers where a job's buffers together have at most {_MOST_CARRIED} values; make it a "
                            "parameter, or smaller")

    def take_weights(self, given, file):
        """The model that was made last takes tensors of a file, by name."""
        _weights.begin(self.model, given, file, [buffer for _, buffer, _ in self._constant])

    def set_training(self, on):
        self.model.train(on)
        self._modes = [module.training for module in self._modules]

    # ---- The step.

    def host(self, begin, end):
        self.feeder.host(begin, end)

    def loss(self, epoch, first, count, chosen, rank, step, epoch_done, seed, look, each):
        """(loss, [(sum, of) of each metric]); the arguments are those of RankSamples in train/task.h."""
        batch = self._batch(lambda: self.feeder.train_batch(epoch, first, count, rank, chosen), "train_data")
        seed_all(seed)
        self._hold_buffers()
        self.state.restore()
        where = f"{self.name}, loss() of step {step}, virtual rank {rank}{', which has one sample' if count == 1 else ''}"
        if look:
            loss, metrics = self._look(batch, count, where)
            return self._each(loss, count, where) if each else loss, metrics
        before = self._before_loss()
        logged = rank == 0 and torch.is_grad_enabled()  # of a probe of the loss nothing is, or kept
        with of_user("conflict", where), _logs.rows("train", step + 1, epoch_done) if logged else contextlib.nullcontext():
            out = self.job.loss(self.model, batch)
        self._check_parameters(before)
        if before[1] is not None:
            self._check_not_differentiated(out, where)
        self._check_buffers(keep=True)
        if logged:  # what the others have made of it is dropped
            self.state.save()
        loss, metrics = self._sorted(out, count)
        if each:
            loss = self._each(loss, count, where)
        if loss.grad_fn is None and torch.is_grad_enabled():
            raise Error("conflict", f"{self.name}, loss() gives a number that depends on no parameter, so there is "
                        "nothing to differentiate; it was made under torch.no_grad(), or detached. Return the loss as it was "
                        "computed, and do not call backward(): Ductile does")
        return loss, metrics

    def _look(self, batch, count, where):
        """A forward pass in evaluation mode, of which nothing stays but what it gives."""
        self.set_training(False)
        try:
            before = self._before_loss()
            with torch.no_grad(), of_user("conflict", where):
                out = self.job.loss(self.model, batch)
            self._check_parameters(before)
            return self._sorted(out, count)
        finally:
            self._check_buffers(keep=False)
            self.set_training(True)

    def _each(self, loss, count, where):
        """The loss of each sample, which a method that chooses samples goes by."""
        if loss.dim() == 0 and count > 1:
            raise Error("conflict", f"{where}: train.method goes by the loss of each sample, and loss() gives their mean alone; "
                        "let it give a tensor with a loss for each sample, for example F.cross_entropy(z, y, "
                        'reduction="none"), or set train.method = "plain"')
        return loss.reshape(count).float()

    def _batch(self, get, what):
        try:
            return get()
        except Error as error:
            if error.code == "unavailable":  # this worker cannot go on; another one can
                print(f"ductile.worker: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            raise
        except BaseException as error:
            sample = getattr(error, "ductile_sample", None)
            at = "" if sample is None else f", sample {sample}"
            raise Error("conflict", f"{self.name}, {what}(){at}:\n{told(error)[1]}") from None

    def _sorted(self, out, count):
        named = {}
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict):
            out, named = out
        if not isinstance(out, torch.Tensor) or not out.is_floating_point() or out.numel() != 1 and out.shape != (count,):
            what = (f"a tensor {out.dtype} {list(out.shape)}" if isinstance(out, torch.Tensor)
                    else type(out).__name__)
            raise Error("conflict", f"{self.name}, loss() of {count} samples gives {what}; a tensor with one element is needed "
                        f"(the mean over the samples), or one with a loss for each sample ([{count}]), or that and a "
                        "dictionary of metrics")
        if out.numel() == 1 and out.dim() > 0:
            out = out.reshape(())
        elif out.element_size() < 4:  # their mean would be as coarse as they are
            out = out.float()
        if named.keys() != set(self.metrics):
            raise Error("conflict", f"{self.name}, loss() gives the metrics {sorted(named)}, and the class names "
                        f"{sorted(self.metrics)}; write metrics = {tuple(sorted(named))!r} into the class, or "
                        "give those that it names")
        ratios = []
        for name in self.metrics:
            value = named[name]
            try:
                if not isinstance(value, Ratio):
                    value = Ratio(float(value) * count, count)
                ratios.append((float(value.sum), float(value.of)))
            except (TypeError, ValueError, RuntimeError) as error:
                raise Error("conflict", f"{self.name}, loss() gives {_shown(value)} for the metric {name} ({error}); a number "
                            "or a tensor with one element is needed, or ductile.ratio() of two") from None
        return out, ratios

    # ---- The evaluation.

    def evaluate(self, each):
        """(mean loss, samples, [(sum, of)]) over the test samples, in their order."""
        total, sums = 0.0, [[0.0, 0.0] for _ in self.metrics]
        self._hold_buffers()
        self.set_training(False)
        self.state.restore()
        try:
            with torch.no_grad(), _logs.rows("eval"):
                for first in range(0, self.test_size, self.test_batch):
                    count = min(self.test_batch, self.test_size - first)
                    batch = self._batch(lambda: self.feeder.test_batch(first, count, self.test_batch), "test_data")
                    seed_all(_core.mix(self.seed, first))
                    before = self._before_loss()
                    with of_user("conflict", f"{self.name}, loss() of the test samples from {first} on"):
                        out = self.job.loss(self.model, batch)
                    self._check_parameters(before)
                    loss, ratios = self._sorted(out, count)
                    total += loss.mean().item() * count
                    for at, (value, of) in zip(sums, ratios):
                        at[0] += value
                        at[1] += of
                    each(first + count)
        finally:
            self._check_buffers(keep=False)  # before the weights are written
            self.set_training(True)
        return total / self.test_size, self.test_size, [tuple(at) for at in sums]
