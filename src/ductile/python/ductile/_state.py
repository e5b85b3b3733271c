"""State that a job keeps outside of its model: registered, so that it goes where the weights go."""

import pickle

import torch

from ductile._errors import Error

_LENGTH = 8  # bytes before what was pickled
_GRAIN = 4096


class State:
    """Tensors, which are changed in place, and objects, which are pickled into tensors: dictionaries, lists,
    and what has state_dict() and load_state_dict()."""

    def __init__(self, registered, name):
        self.tensors = []  # (name, tensor) of all of it
        self._objects = []  # (name, object, tensor)
        if not isinstance(registered, dict):
            raise Error("invalid_argument", f"{name}: state is {type(registered).__name__}; a dictionary of names and what "
                        "they stand for is needed")
        for key, value in registered.items():
            if isinstance(value, torch.Tensor):
                if value.device.type != "cpu" or not value.is_contiguous():
                    raise Error("invalid_argument", f"{name}: state \"{key}\" has to be a contiguous tensor on the cpu")
                self.tensors.append((key, value.detach()))
                continue
            if not isinstance(value, (dict, list)) and not hasattr(value, "load_state_dict"):
                raise Error("invalid_argument", f"{name}: state \"{key}\" is {type(value).__name__}, which cannot be set; "
                            "give a tensor, a dictionary, a list, or an object with state_dict() and load_state_dict()")
            size = _LENGTH + len(pickle.dumps(_taken(value), 5))
            place = torch.zeros(-(-2 * size // _GRAIN) * _GRAIN, dtype=torch.uint8)
            self._objects.append((f"{name}: state \"{key}\"", value, place))
            self.tensors.append((key, place))
        self.save()

    def save(self):
        """Into the tensors, from the objects."""
        for name, value, place in self._objects:
            written = pickle.dumps(_taken(value), 5)
            if _LENGTH + len(written) > place.numel():
                raise Error("conflict", f"{name} has grown to {len(written)} bytes, and its place has "
                            f"{place.numel() - _LENGTH}, twice what it had at first; make it as large as it will be")
            whole = len(written).to_bytes(_LENGTH, "little") + written
            place[:len(whole)] = torch.frombuffer(bytearray(whole), dtype=torch.uint8)
            place[len(whole):] = 0

    def restore(self):
        """Into the objects, from the tensors."""
        for _, value, place in self._objects:
            whole = place.numpy().tobytes()
            size = int.from_bytes(whole[:_LENGTH], "little")
            saved = pickle.loads(whole[_LENGTH:_LENGTH + size])
            if isinstance(value, dict):
                value.clear()
                value.update(saved)
            elif isinstance(value, list):
                value[:] = saved
            else:
                value.load_state_dict(saved)


def is_in(tensor, place):
    """Whether a tensor is still the whole of its place, which is memory that the worker reads and writes: it may have
    been resized, turned, or given other data."""
    return (tensor.data_ptr() == place.data_ptr() and tensor.shape == place.shape and tensor.dtype == place.dtype and
            tensor.is_contiguous())


def put_back(tensor, place, now, what, keep):
    """Makes a tensor the whole of its place again, with the values (`keep`) of what the job now has for it."""
    if keep:
        if not isinstance(now, torch.Tensor) or now.shape != place.shape or now.dtype != place.dtype:
            has = f"{now.dtype} {list(now.shape)}" if isinstance(now, torch.Tensor) else \
                "nothing" if now is None else type(now).__name__
            raise Error("conflict", f"{what} was {place.dtype} {list(place.shape)} and is {has} after loss(); it keeps its "
                        "shape and type, so make it as large as it will be")
        with torch.no_grad():
            place.copy_(now.detach().clone())  # a part of the same memory, perhaps
    tensor.data = place


def _taken(value):
    return value if isinstance(value, (dict, list)) else value.state_dict()
