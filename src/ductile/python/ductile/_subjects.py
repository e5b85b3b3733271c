"""What is captured: a job with its loss, or a module with an example of its inputs."""

import contextlib
import inspect
import os

import torch

from ductile import _program
from ductile._errors import Error, of_user
from ductile._job import Job
from ductile._seeds import kept, seed_all
from ductile._trace import distinct, mapped, tensors

_BATCH = 32  # samples, where nothing says how many


class _Reached(BaseException):
    """Ends a loss where the model is called."""


def _copied(tree):
    made = {}  # a tensor that is there twice stays one

    def copy(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = leaf.clone()
        return made[id(leaf)]

    return mapped(copy, tree)


def _grows(samples, sizes):
    """Whether the sizes of a dimension are the same for these numbers of samples, or a share of each and a fixed part."""
    if len(set(sizes)) == 1:
        return True
    n0, n1, s0, s1 = *samples[:2], *sizes[:2]
    share, fixed = s1 - s0, s0 * (n1 - n0) - n0 * (s1 - s0)  # both times n1 - n0
    return share > 0 and fixed >= 0 and all(size * (n1 - n0) == share * n + fixed for n, size in zip(samples, sizes))


class OfModule:
    """`example(n)` gives the inputs of n samples; `most` is the largest number of samples that is asked for."""

    loss_name = None

    def __init__(self, root, name, example, most):
        self.root, self.name, self.example, self.most, self.seed = root, name, example, most, 0
        self._examples = {}

    def _arguments(self, samples):
        if samples not in self._examples:
            with kept(), of_user("invalid_argument", f"{self.name}: the example of {samples} samples"):
                seed_all(samples)
                given = self._split(self.example(samples))
            self._check_sizes(samples, given)
            self._examples[samples] = given
        return _copied(self._examples[samples])

    def _check_sizes(self, samples, given):
        """Of an example that is the same for every number, or holds fewer samples than it is asked for, nobody would know what a sample
        costs. A size that varies has to grow in proportion; what is there besides, as the last of n + 1 offsets, stays."""
        sizes = [list(tensor.shape) for tensor in tensors(list(given))]
        before = {n: [list(tensor.shape) for tensor in tensors(list(one))] for n, one in self._examples.items()}
        wanted = ("It has to hold as many samples as it is asked for, in the first dimension of its tensors; where it has only some, name "
                  "no larger --batch")
        for other, theirs in before.items():
            if sizes and sizes == theirs:
                raise Error("invalid_argument", f"{self.name}: the example of {samples} samples has the sizes of that of {other} "
                            f"({', '.join(map(str, sizes[:3]))}). {wanted}")
        if any(list(map(len, theirs)) != list(map(len, sizes)) for theirs in before.values()):
            return  # another way for another number, which is refused where forward() takes it
        for i, shape in enumerate(sizes):
            shapes = {**{n: theirs[i] for n, theirs in before.items()}, samples: shape}
            if not all(_grows(list(shapes), dimension) for dimension in zip(*shapes.values())):
                raise Error("invalid_argument", f"{self.name}: a tensor of the example has the sizes "
                            f"{', '.join(f'{size} for {n} sample' + 's' * (n > 1) for n, size in shapes.items())}. {wanted}")

    def _split(self, given):
        """A tuple holds arguments; so does a dictionary, if its keys are all names of them."""
        if isinstance(given, tuple):
            return given, {}
        if isinstance(given, dict) and given:
            names = inspect.signature(self.root.forward).parameters
            if all(key in names for key in given):
                return (), given
        return (given,), {}

    def inputs(self, samples):
        """The distinct tensors that forward() is given, in order."""
        return distinct(tensors(list(self._arguments(samples))))

    def call(self, samples):
        args, kwargs = self._arguments(samples)
        return self.root(*args, **kwargs)


class OfJob:
    def __init__(self, job, name, batch, options):
        from ductile._sources import Source

        self.job, self.name = job, name
        self.seed = options.get("seed", 0)
        train = options.get("train", {})
        with of_user("invalid_argument", f"{name}, train_data()"):
            data = job.train_data()
        self.source = Source(data, f"{name}, train_data", self.seed, options.get("loader", {}).get("shuffle", True), 1,
                             options.get("data", {}).get("train_limit", 0))
        self.most = min(batch or train.get("batch_size") or self.source.batch_size or _BATCH, self.source.size)
        self._batches, self._ready = {}, {}
        self.root = self._model()

    def _model(self):
        from ductile._optimizer import has_rule

        seed_all(self.seed)
        with of_user("invalid_argument", f"{self.name}, model()"):
            model = self.job.model()
        if not isinstance(model, torch.nn.Module):
            raise Error("invalid_argument", f"{self.name}, model() gives {type(model).__name__}; a torch.nn.Module is needed")
        self.root = model
        if any(torch.nn.parameter.is_lazy(t) for t in [*model.parameters(), *model.buffers()]):
            model.eval()
            with contextlib.suppress(Exception):
                self.job.state(model)  # which may itself have to know the sizes
            with of_user("invalid_argument", f"{self.name}: the first batch, which gives lazy parameters their sizes"), torch.no_grad():
                self.job.loss(model, self._batch(1))
            model.train()
        with of_user("invalid_argument", f"{self.name}, state()"):
            self.job.state(model)
        if has_rule(self.job):
            with of_user("invalid_argument", f"{self.name}, optimizer()"):
                self.job.optimizer(model)  # which may freeze parameters
        return model

    def _batch(self, samples):
        if samples not in self._batches:
            with kept(), of_user("invalid_argument", f"{self.name}, train_data(): a batch of {samples} samples"):
                self._batches[samples] = self.source.fetch(0, 0, samples)
        return self._ready.pop(samples) if samples in self._ready else _copied(self._batches[samples])

    def prepare(self, samples):
        """Copies the batch that the next loss is of, so that its time is not the loss's."""
        self._ready = {samples: self._batch(samples)}

    def call(self, samples):
        out = self.job.loss(self.root, self._batch(samples))
        loss = out[0] if isinstance(out, tuple) else out
        if not isinstance(loss, torch.Tensor):
            raise Error("invalid_argument", f"{self.name}: loss() gives {type(loss).__name__}; a tensor is needed")
        return loss.float().mean() if loss.dim() else loss

    def inputs(self, samples):
        """The distinct tensors that the model is called with, in order."""
        found = []

        def stop(*args, **kwargs):
            found.extend(distinct(tensors([args, kwargs])))
            raise _Reached

        try:
            self._with_forward(stop, samples)
        except _Reached:
            pass
        return [tensor.detach() for tensor in found]

    def loss(self, samples, output, generator):
        """The loss of what the model gave; torch's generator is then as the model has left it."""
        def give(*args, **kwargs):
            if generator is not None:
                torch.set_rng_state(generator)
            return output

        return self._with_forward(give, samples)

    def _with_forward(self, forward, samples):
        before = self.root.__dict__.get("forward")
        self.root.__dict__["forward"] = forward
        try:
            return self.call(samples)
        finally:
            del self.root.__dict__["forward"]
            if before is not None:
                self.root.__dict__["forward"] = before


def of(thing, example=None, batch=None, name=None):
    """The subject that a job, a module, or an example with it, is."""
    if isinstance(thing, Job):
        if example is not None:
            raise Error("invalid_argument", "capture(): a job has its own samples, so it takes no example")
        options = thing.options if isinstance(thing.options, dict) else {}
        return OfJob(thing, name or type(thing).__name__, batch, options)
    if not isinstance(thing, torch.nn.Module):
        raise Error("invalid_argument", f"capture() takes a ductile.Job or a torch.nn.Module, and got {type(thing).__name__}")
    name = name or type(thing).__name__
    if example is None:
        example = getattr(thing, "example", None)
        if not callable(example):
            raise Error("invalid_argument", f"{name}: there is no example of its inputs. Give it a method example(self, samples) that "
                        "returns them, name their shapes with --input, or hand one to capture()")
    if callable(example) and not isinstance(example, torch.Tensor):
        return OfModule(thing, name, example, batch or _BATCH)
    return OfModule(thing, name, *_cut_from(example, name, batch))


def _cut_from(batch, name, most):
    """(a function that gives the first samples of a batch, its number of samples)."""
    sizes = [t.shape[0] for t in tensors(batch) if t.dim() > 0]
    if not sizes:
        raise Error("invalid_argument", f"{name}: the example has no tensor with samples in its first dimension")
    samples = sizes[0]
    if most and most > samples:
        raise Error("invalid_argument", f"{name}: batch = {most}, and the example has {samples} samples")

    def first(n):
        return mapped(lambda t: t[:n] if isinstance(t, torch.Tensor) and t.dim() > 0 and t.shape[0] == samples else t, batch)

    return first, most or samples


def _input(text):
    """A function that makes random inputs of n samples: "3,224,224" numbers, or "1000:16" whole ones below 1000."""
    below, colon, shape = text.rpartition(":")
    try:
        sizes = [int(word) for word in shape.split(",") if word.strip()]
        limit = int(below) if colon else None
        if any(size < 1 for size in sizes) or (limit is not None and limit < 1):
            raise ValueError
    except ValueError:
        raise Error("invalid_argument", f"--input {text}: give the shape of one sample, such as 3,224,224, or for whole numbers below "
                    "1000 1000:16") from None
    if limit is None:
        return lambda samples: torch.randn(samples, *sizes)
    return lambda samples: torch.randint(limit, (samples, *sizes))


def named(text, args, inputs=(), batch=None):
    """The subject that FILE.py:CLASS names: a job, a module with example(), or a function that makes either."""
    where, name = _program.split(text)
    if name is None:
        raise Error("invalid_argument", f"{text}: a program with a loop of its own has no loss() that could be captured; name a class of "
                    f"it: {where}:CLASS")
    found = _program.named(text, args)
    if not callable(found):
        raise Error("invalid_argument", f"{where} has something else than a class under the name {name}; a class of ductile.Job or "
                    "torch.nn.Module is needed, or a function that makes one")
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        raise Error("invalid_argument", f"{text} is a {type(found).__name__}; name the class, or a function that makes it")
    with of_user("invalid_argument", f"{text} cannot be made"):
        seed_all(0)
        made = found()
    if not isinstance(made, (Job, torch.nn.Module)):
        raise Error("invalid_argument", f"{text} is neither a ductile.Job nor a torch.nn.Module, and makes none: it is of "
                    f"{type(made).__name__}")
    makers = [_input(word) for word in inputs]
    example = (lambda samples: tuple(make(samples) for make in makers)) if makers else None
    return of(made, example, batch, f"{os.path.basename(where)}:{name}")
