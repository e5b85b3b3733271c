"""The update rule of a job's optimizer(): one of torch.optim, and a schedule of its learning rate."""

import copy
import json
import numbers

import torch

from ductile import _core
from ductile._errors import Error, of_user
from ductile._job import Job
from ductile._seeds import seed_all
from ductile._state import is_in


def has_rule(job):
    """Whether the class, or the program of a loop of its own, says how weights are updated."""
    return getattr(job.optimizer, "__func__", job.optimizer) is not Job.optimizer


class Rule:
    """An optimiser and, perhaps, a scheduler, which steps after it. Their state is a text and tensors by name, whose
    memory is the worker's once it has been moved there: what is in one is in the other."""

    def __init__(self, job, model, seed, name):
        self.name, self.seed = name, seed
        with of_user("invalid_argument", f"{name}, optimizer()"):
            made = job.optimizer(model)
        made = made if isinstance(made, tuple) else (made,)
        if not 1 <= len(made) <= 2 or not isinstance(made[0], torch.optim.Optimizer):
            raise self._wrong("gives " + ", ".join(type(one).__name__ for one in made) + "; a torch.optim.Optimizer is needed, or "
                              "that and a scheduler of its learning rate")
        if isinstance(made[0], torch.optim.LBFGS):
            raise self._wrong("gives LBFGS, which asks for the loss several times in a step; choose an optimiser whose step() "
                              "needs no closure")
        if len(made) == 2 and (isinstance(made[1], torch.optim.lr_scheduler.ReduceLROnPlateau) or
                               not all(hasattr(made[1], word) for word in ("step", "state_dict", "load_state_dict"))):
            raise self._wrong(f"gives the scheduler {type(made[1]).__name__}; it has to step without a figure, once after each "
                              "update, and to have state_dict() and load_state_dict()")
        self.parts = dict(zip(("optimizer", "scheduler"), made))
        self.parameters = dict(model.named_parameters())
        names = {id(p): n for n, p in self.parameters.items()}
        listed = [p for group in made[0].param_groups for p in group["params"]]
        if not all(id(p) in names for p in listed):
            raise self._wrong("has a parameter that is none of model()'s; they are those of its argument")
        self._listed = [names[id(p)] for p in listed]  # as state_dict() numbers them
        self._places = {}  # of the tensors that lie in the worker's memory
        text, found = self._walked()
        self._first = text, {path: tensor.detach().clone() for path, _, _, tensor in found}

    def _wrong(self, text):
        return Error("invalid_argument", f"{self.name}: optimizer() {text}")

    def lr(self):
        return float(self.parts["optimizer"].param_groups[0].get("lr", 0.0))

    def step(self, gradients, updates):
        for parameter, gradient in zip(self.parameters.values(), gradients):
            parameter.grad = gradient if parameter.requires_grad else None
        seed_all(_core.mix(self.seed, updates))
        try:
            with of_user("conflict", f"{self.name}, the optimiser in update {updates}"):
                for part in self.parts.values():
                    part.step()
        finally:
            for parameter in self.parameters.values():
                parameter.grad = None

    # ---- The state.

    def kept(self):
        """(text, None), or (text, {name: bytes}) if there are other tensors than before, or they lie elsewhere."""
        text, found = self._walked()
        same = len(found) == len(self._places) and all(
            path in self._places and is_in(tensor, self._places[path]) for path, _, _, tensor in found)
        if same:
            return text, None
        self._found = found
        return text, {path: tensor.numel() * tensor.element_size() for path, _, _, tensor in found}

    def move(self, memory):
        """The tensors that kept() has named go into this memory."""
        values = [tensor.detach().clone() for _, _, _, tensor in self._found]  # they may lie in each other's places
        self._places = {}
        for (path, _, _, tensor), value in zip(self._found, values):
            place = self._places[path] = _shaped(memory[path], value)
            tensor.data = place.copy_(value)

    def take(self, text, memory):
        """Goes on from this state, in this memory."""
        places = {}
        for part, state in json.loads(text).items():
            with of_user("conflict", f"{self.name}, load_state_dict() of the {part}"):
                like = self.parts[part].state_dict()
                self.parts[part].load_state_dict(self._read(state, like, memory, places))
        self._places = places
        for path, container, key, tensor in self._walked()[1]:
            place = places[path]
            if tensor.dtype == place.dtype:
                tensor.data = place  # load_state_dict() has made a copy
            else:
                container[key] = place

    def begin(self):
        text, tensors = self._first
        self.take(text, {path: _bytes(tensor) for path, tensor in tensors.items()})
        self._places = {}

    def _walked(self):
        """The state as JSON, and (path, container, key, tensor) of what it has of tensors."""
        found = []
        out = {part: self._written(held.state_dict(), part, None, None, found) for part, held in self.parts.items()}
        seen = {}
        for path, _, _, tensor in found:
            if tensor.numel() and seen.setdefault(tensor.data_ptr(), path) != path:
                raise Error("conflict", f"{self.name}: {seen[tensor.data_ptr()]} and {path} of the optimiser's state are the same "
                            "memory; a state that is saved has each tensor once")
        return json.dumps(out), found

    def _written(self, value, path, container, key, found):
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout != torch.strided:
                raise Error("conflict", f"{self.name}: {path} of the optimiser's state is {value.layout} on {value.device}; "
                            "dense tensors on the cpu can be saved")
            found.append((path, container, key, value))
            return {"tensor": path, "type": str(value.dtype).split(".")[1], "shape": list(value.shape)}
        if isinstance(value, dict):
            return {"dict": [[k if isinstance(k, str) else int(k),
                              self._written(v, self._below(path, k), value, k, found)] for k, v in value.items()]}
        if isinstance(value, (list, tuple)):
            return {"tuple" if isinstance(value, tuple) else "list":
                    [self._written(v, f"{path}/{i}", value, i, found) for i, v in enumerate(value)]}
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return {"number": float(value).hex()}
        if callable(value):
            return {"code": True}  # as the program has it
        raise Error("conflict", f"{self.name}: {path} of the optimiser's state is {type(value).__name__}; tensors, numbers, "
                    "texts, lists and dictionaries can be saved")

    def _below(self, path, key):
        if path == "optimizer/state":
            return f"{path}/{self._listed[key]}" if isinstance(key, int) and key < len(self._listed) else f"{path}/{key}"
        return f"{path}/{key}"

    def _read(self, written, like, memory, places):
        """What _written() has written; `like` is what the rule has there now."""
        if not isinstance(written, dict):
            return written
        (kind, value), *_ = written.items()
        if kind == "tensor":
            place = places[value] = _shaped(memory[value], torch.empty(
                written["shape"], dtype=getattr(torch, written["type"])))
            return place
        if kind == "number":
            return float.fromhex(value)
        if kind == "code":
            return like
        if kind == "dict":
            there = like if isinstance(like, dict) else {}
            out = copy.copy(there)  # a Counter stays one
            out.clear()
            for k, v in value:
                out[k] = self._read(v, there.get(k), memory, places)
            return out
        there = like if isinstance(like, (list, tuple)) else ()
        items = [self._read(v, there[i] if i < len(there) else None, memory, places) for i, v in enumerate(value)]
        return tuple(items) if kind == "tuple" else items


def _shaped(memory, like):
    """A tensor like this one, in memory of the worker."""
    size = like.numel() * like.element_size()
    return memory.view(torch.uint8)[:size].view(like.dtype).reshape(like.shape)


def _bytes(tensor):
    """A copy in memory of its own, as the worker has it."""
    size = tensor.numel() * tensor.element_size()
    out = torch.zeros(-(-size // 4))
    out.view(torch.uint8)[:size] = tensor.contiguous().reshape(-1).view(torch.uint8)
    return out
