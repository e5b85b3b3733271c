"""State that a job keeps outside of its model: registered, so that it goes where the weights go."""

import gc
import io
import pickle
import types

import torch

from ductile._errors import Error, of_user

_LENGTH = 8  # bytes before what was pickled
_GRAIN = 4096


class _Held:
    """One thing that is registered: the object, the tensor that is carried for it, and where the program has it."""

    def __init__(self, what, value, place, holders):
        self.what, self.value, self.place = what, value, place
        self.holders = [(holder, key) for holder in holders for key, held in holder.items() if held is value]

    def now(self):
        """What the job has in its place: `self.mean = ...` in loss() puts another object there."""
        for holder, key in self.holders:
            if holder.get(key) is not self.value:
                return holder.get(key)
        return self.value

    def put_back(self):
        for holder, key in self.holders:
            if holder.get(key) is not self.value:
                holder[key] = self.value


class _Cell:
    """A variable of a function around a function, as a dictionary with one key."""

    def __init__(self, cell):
        self.cell = cell

    def items(self):
        try:
            return [("", self.cell.cell_contents)]
        except ValueError:  # nothing has been assigned yet
            return []

    def get(self, key):
        return dict(self.items()).get(key)

    def __setitem__(self, key, value):
        self.cell.cell_contents = value


class _Slots:
    """The attributes of an object that has no dictionary of them."""

    def __init__(self, of):
        self.of = of
        self.names = [name for kind in type(of).__mro__ for name in _listed(vars(kind).get("__slots__", ()))]

    def items(self):
        return [(name, getattr(self.of, name)) for name in self.names if hasattr(self.of, name)]

    def get(self, key):
        return getattr(self.of, key, None)

    def __setitem__(self, key, value):
        setattr(self.of, key, value)


def _listed(names):
    return [names] if isinstance(names, str) else list(names)


def _elsewhere(values, known):
    """Where the program has these objects besides the dictionaries `known`: attributes of other objects, variables of
    modules and of functions around functions."""
    seen = {id(holder) for holder in known} | {id(values)}
    found = []
    for holder in gc.get_referrers(*values) if values else ():
        if isinstance(holder, types.CellType):
            found.append(_Cell(holder))
            continue
        if isinstance(holder, (list, tuple, set, frozenset, types.FrameType, types.FunctionType, types.MethodType, _Held)):
            continue  # a place there has no name
        if not isinstance(holder, dict):
            holder = getattr(holder, "__dict__", None) or _Slots(holder)
        if id(holder) not in seen and (not isinstance(holder, _Slots) or holder.names):
            seen.add(id(holder))
            found.append(holder)
    return found


class State:
    """Tensors, which are changed in place, and objects, which are pickled into tensors: dictionaries, lists,
    and what has state_dict() and load_state_dict(). If another one is assigned, in the dictionary that registers
    them or in `holders` (dictionaries, too: the attributes of the job) or anywhere else in the program, its value
    counts, in the registered one."""

    def __init__(self, registered, name, holders=()):
        self.tensors = []  # (name, tensor) of all of it
        self._plain, self._objects = [], []
        if not isinstance(registered, dict):
            raise Error("invalid_argument", f"{name}: state is {type(registered).__name__}; a dictionary of names and what "
                        "they stand for is needed")
        places = (registered, *holders)
        places += tuple(_elsewhere(list(registered.values()), places))
        for key, value in registered.items():
            what = f"{name}: state \"{key}\""
            if isinstance(value, torch.Tensor):
                if value.device.type != "cpu" or not value.is_contiguous():
                    raise Error("invalid_argument", f"{what} has to be a contiguous tensor on the cpu")
                place = value.detach()
                self._plain.append(_Held(what, value, place, places))
            else:
                if not isinstance(value, (dict, list)) and not hasattr(value, "load_state_dict"):
                    raise Error("invalid_argument", f"{what} is {type(value).__name__}, which cannot be set; give a tensor, a "
                                "dictionary, a list, or an object with state_dict() and load_state_dict()")
                size = _LENGTH + len(_written(what, value, "invalid_argument"))
                place = torch.zeros(-(-2 * size // _GRAIN) * _GRAIN, dtype=torch.uint8)
                self._objects.append(_Held(what, value, place, places))
            self.tensors.append((key, place))
        self.save()

    def save(self):
        """Into the tensors, from what the job has."""
        for held in self._plain:
            now = held.now()
            if now is not held.value or not is_in(held.value, held.place):
                put_back(held.value, held.place, now, held.what, keep=True)
                held.put_back()
        for held in self._objects:
            now, place = held.now(), held.place
            if type(now) is not type(held.value):
                raise Error("conflict", f"{held.what} was {type(held.value).__name__} and is {type(now).__name__} after loss()")
            written = _written(held.what, now, "conflict")
            if _LENGTH + len(written) > place.numel():
                raise Error("conflict", f"{held.what} has grown to {len(written)} bytes, and its place has "
                            f"{place.numel() - _LENGTH}, twice what it had at first; make it as large as it will be")
            whole = len(written).to_bytes(_LENGTH, "little") + written
            place[:len(whole)] = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
            place[len(whole):] = 0
            held.put_back()

    def restore(self):
        """Into what the job has, from the tensors."""
        for held in self._plain:
            held.put_back()
            if not is_in(held.value, held.place):
                put_back(held.value, held.place, None, held.what, keep=False)
        for held in self._objects:
            held.put_back()
            value, whole = held.value, held.place.numpy().tobytes()
            size = int.from_bytes(whole[:_LENGTH], "little")
            saved = pickle.loads(whole[_LENGTH:_LENGTH + size])
            if isinstance(value, dict):
                value.clear()
                value.update(saved)
            elif isinstance(value, list):
                value[:] = saved
            else:
                with of_user("conflict", f"{held.what}, load_state_dict()"):
                    value.load_state_dict(saved)


def is_in(tensor, place):
    """Whether a tensor is still the whole of its place, which is memory that the worker reads and writes: it may have
    been resized, turned, or given other data."""
    return (tensor.data_ptr() == place.data_ptr() and tensor.shape == place.shape and tensor.dtype == place.dtype and
            tensor.is_contiguous())


def put_back(tensor, place, now, what, keep, after="loss()"):
    """Makes a tensor the whole of its place again, with the values (`keep`) of what the job now has for it."""
    if keep:
        if not isinstance(now, torch.Tensor) or now.shape != place.shape or now.dtype != place.dtype:
            has = f"{now.dtype} {list(now.shape)}" if isinstance(now, torch.Tensor) else \
                "nothing" if now is None else type(now).__name__
            raise Error("conflict", f"{what} was {place.dtype} {list(place.shape)} and is {has} after {after}; it keeps its "
                        "shape and type, so make it as large as it will be")
        with torch.no_grad():
            place.copy_(now.detach().clone())  # a part of the same memory, perhaps
    tensor.data = place


def _written(what, value, code):
    out = io.BytesIO()
    with of_user(code, f"{what} cannot be saved"):
        _Pickler(out, 5).dump(value if isinstance(value, (dict, list)) else value.state_dict())
    return out.getvalue()


class _Pickler(pickle.Pickler):
    """Equal tensors have equal bytes; torch itself would write where in memory they lie."""

    def reducer_override(self, value):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu" or \
                value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        values = value.detach().resolve_conj().resolve_neg()
        stride = torch.empty_like(values).stride()  # a part of a larger tensor comes back by itself
        flat = values.contiguous().reshape(-1)
        parts = (type(value) is torch.nn.Parameter, str(value.dtype).removeprefix("torch."), tuple(value.shape), stride,
                 flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"", value.requires_grad)
        return _tensor, parts


def _tensor(is_parameter, dtype, shape, stride, data, requires_grad):
    dtype = getattr(torch, dtype)
    out = torch.empty_strided(shape, stride, dtype=dtype)
    if data:
        out.copy_(torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape))
    return torch.nn.Parameter(out, requires_grad) if is_parameter else out.requires_grad_(requires_grad)
