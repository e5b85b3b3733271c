"""The update rule of a job's optimizer(): one of torch.optim, and a schedule of its learning rate."""

import copy
import json
import numbers

import numpy
import torch

from ductile import _core
from ductile._errors import Error, of_user
from ductile._job import Job
from ductile._seeds import seed_all
from ductile._state import is_in, put_back


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
        self._groups = self._grouped()
        listed = [p for group in made[0].param_groups for p in group["params"]]
        if not all(id(p) in names for p in listed):
            raise self._wrong("has a parameter that is none of model()'s; they are those of its argument")
        self._listed = [names[id(p)] for p in listed]  # as state_dict() numbers them
        self._places = {}  # of the tensors that lie in the worker's memory
        self._kinds = {}  # of the dictionaries that are more than that: a rule that was made anew has the same
        text, found = self._walked(first=True)
        self._first = text, {path: tensor.detach().clone() for path, _, _, tensor in found}

    def _wrong(self, text):
        return Error("invalid_argument", f"{self.name}: optimizer() {text}")

    def lr(self):
        return float(self.parts["optimizer"].param_groups[0].get("lr", 0.0))

    def step(self, gradients, updates):
        places = [parameter.data for parameter in self.parameters.values()]
        for parameter, gradient in zip(self.parameters.values(), gradients):
            parameter.grad = gradient if parameter.requires_grad else None
        seed_all(_core.mix(self.seed, updates))
        try:
            with of_user("conflict", f"{self.name}, the optimiser in update {updates}"):
                for part in self.parts.values():
                    part.step()
            for (name, parameter), place in zip(self.parameters.items(), places):
                if not is_in(parameter, place):  # p.data = ...; the worker reads the place
                    put_back(parameter, place, parameter.data, f"{self.name}: the parameter {name}", keep=True,
                             after="the optimiser's step()")
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
        saved = json.loads(text)
        for part, state in saved.items():
            with of_user("conflict", f"{self.name}, load_state_dict() of the {part}"):
                wanted = self._read(state, self.parts[part].state_dict(), memory, places)
                self.parts[part].load_state_dict(wanted)
                if part == "optimizer":  # load_state_dict() of torch.optim has made other types of some
                    now = self.parts[part].state_dict().get("state", {})
                    for key, value in wanted.get("state", {}).items():
                        _put(now.get(key), value)
        self._places = places
        for path, container, key, tensor in self._walked()[1]:
            place = places.get(path)
            if place is None:
                continue
            if tensor.dtype == place.dtype:
                tensor.data = place  # load_state_dict() has made a copy
            elif not isinstance(container, tuple):
                container[key] = place
        now = self._walked()[0]
        if now != text:
            raise Error("conflict", f"{self.name}: load_state_dict() does not bring back what state_dict() gave: "
                        f"{_difference(saved, json.loads(now))}")

    def begin(self):
        text, tensors = self._first
        self.take(text, {path: _bytes(tensor) for path, tensor in tensors.items()})
        self._places = {}

    def _grouped(self):
        return [[id(p) for p in group["params"]] for group in self.parts["optimizer"].param_groups]

    def _walked(self, first=False):
        """The state as JSON, and (path, container, key, tensor) of what it has of tensors."""
        if self._grouped() != self._groups:
            raise Error("conflict", f"{self.name}: the optimiser has other groups of parameters than at first, and a worker that "
                        "joins could not have them; make all groups in optimizer(), with a rate of 0 for those that come later")
        self._walking_first = first
        found = []
        out = {part: self._written(held.state_dict(), part, None, None, found) for part, held in self.parts.items()}
        parameters = {p.data_ptr(): name for name, p in self.parameters.items()}
        seen, paths = {}, set()
        for path, _, _, tensor in found:
            if path in paths:
                raise Error("conflict", f"{self.name}: two tensors of the optimiser's state have the name {path}; give their "
                            "keys names that differ, without \"/\"")
            paths.add(path)
            if not tensor.numel():
                continue
            if tensor.data_ptr() in parameters:
                raise Error("conflict", f"{self.name}: {path} of the optimiser's state is the memory of the parameter "
                            f"{parameters[tensor.data_ptr()]} itself; keep a copy (clone())")
            if seen.setdefault(tensor.data_ptr(), path) != path:
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
            self._check_kind(value, path)
            return {"dict": [[k, self._written(v, self._below(path, k), value, k, found)] for k, v in value.items()]}
        if type(value) in (list, tuple, torch.Size):
            return {"list" if isinstance(value, list) else "tuple":
                    [self._written(v, f"{path}/{i}", value, i, found) for i, v in enumerate(value)]}
        if isinstance(value, numpy.generic) and not isinstance(value, float):
            return {"numpy": [value.dtype.str, value.tobytes().hex()]}
        if isinstance(value, numbers.Integral):
            return int(value)
        if isinstance(value, numbers.Real):
            return {"number": float(value).hex()}
        if callable(value):
            return {"code": True}  # as the program has it
        raise Error("conflict", f"{self.name}: {path} of the optimiser's state is {type(value).__name__}; tensors, numbers, "
                    "texts, lists and dictionaries can be saved")

    def _check_kind(self, value, path):
        """A dictionary of another class can be filled, and not made; and a key has to be the same when it is read."""
        kind = type(value)
        if kind is not dict:
            if self._walking_first:
                self._kinds[path] = kind
            if self._kinds.get(path) is not kind:
                raise Error("conflict", f"{self.name}: {path} of the optimiser's state is {kind.__name__}, which a worker that "
                            "joins could not make; keep a plain dictionary, or make it in optimizer()")
        for key in value:
            if type(key) not in (str, int):
                raise Error("conflict", f"{self.name}: {path} of the optimiser's state has the key {key!r}; texts and whole "
                            "numbers can be saved")

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
        if kind == "numpy":
            return numpy.frombuffer(bytes.fromhex(value[1]), value[0])[0]
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


def _put(now, wanted):
    """What stands where `now` stood: `now` itself with these contents where it can have them, since the rule may know it."""
    if isinstance(now, torch.Tensor) and isinstance(wanted, torch.Tensor) and now.dtype == wanted.dtype:
        now.data = wanted
        return now
    if isinstance(now, dict) and type(now) is type(wanted):
        items = {key: _put(now.get(key), value) for key, value in wanted.items()}
        now.clear()
        now.update(items)
        return now
    if isinstance(now, list) and isinstance(wanted, list):
        now[:] = [_put(now[i] if i < len(now) else None, value) for i, value in enumerate(wanted)]
        return now
    return wanted


def _difference(saved, now, path=""):
    """Where two states, as _written() has them, differ first; for people."""
    if isinstance(saved, dict) and isinstance(now, dict) and saved.keys() == now.keys():
        for key in saved:
            if saved[key] != now[key]:
                return _difference(saved[key], now[key], path if key in ("dict", "list", "tuple") else f"{path}/{key}")
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        for i, (was, has) in enumerate(zip(saved, now)):
            if was != has:
                pair = all(isinstance(one, list) and len(one) == 2 for one in (was, has)) and was[0] == has[0]
                return _difference(was[1], has[1], f"{path}/{was[0]}") if pair else _difference(was, has, f"{path}/{i}")
    return f"{path.lstrip('/')} was {json.dumps(saved)[:100]} and is {json.dumps(now)[:100]}"


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
