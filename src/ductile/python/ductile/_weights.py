"""Files of torch.save(), read for the command line."""

import collections
import pickle
import types
import zipfile
from collections.abc import Mapping

import torch
from torch import serialization

from ductile._errors import Error

_KEYS = ("state_dict", "model_state_dict", "model", "module", "net")

# What makes tensors and plain containers, and can do nothing else. (torch maps the names of storages before this is asked;
# its own weights_only=True knows no floats in version 1.13.)
_ALLOWED = {("collections", "OrderedDict"): collections.OrderedDict, ("torch", "Size"): torch.Size,
            **{("torch._utils", name): getattr(torch._utils, name)
               for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter")}}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


_restricted = types.SimpleNamespace(Unpickler=_Unpickler, load=lambda file, **how: _Unpickler(file, **how).load(),
                                    UnpicklingError=pickle.UnpicklingError, __name__="ductile._weights")


def _load(file):
    """torch.load(), which in version 1.13 heeds no pickle_module; this process reads one file and ends."""
    kept, serialization.pickle = serialization.pickle, _restricted
    try:
        return torch.load(file, map_location="cpu", pickle_module=_restricted, weights_only=False)
    finally:
        serialization.pickle = kept


def read(file, key=""):
    """The tensors of a state_dict, by name. Of a checkpoint `key` names the entry that is the state_dict; without it, it is
    found. A file with anything but tensors and plain containers is refused before anything of it is run."""
    try:
        if zipfile.is_zipfile(file) and any(name.endswith("constants.pkl") for name in zipfile.ZipFile(file).namelist()):
            raise pickle.UnpicklingError("it is a program of TorchScript")
        found = _load(file)
    except pickle.UnpicklingError as error:
        raise Error("invalid_argument", f"{file}: holds more than tensors and plain containers, or is damaged ({error}), so it is "
                    "not read; save it again with torch.save(model.state_dict(), ...)") from None
    except FileNotFoundError:
        raise Error("not_found", f"{file}: no such file") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError,
            MemoryError, zipfile.BadZipFile) as error:
        raise Error("data_loss", f"{file}: is no whole file of torch.save() "
                    f"({(str(error) or repr(error)).splitlines()[0]})") from None
    return _tensors(file, _state_dict(file, found, key))


def _holds_tensors(found):
    return isinstance(found, Mapping) and any(isinstance(value, torch.Tensor) for value in found.values())


def _inside(found):
    return f"it has {sorted(map(str, found))}" if isinstance(found, Mapping) else f"it is a {type(found).__name__}"


def _state_dict(file, found, key):
    if key:
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise Error("invalid_argument", f"{file}: has no {key}; {_inside(found)}")
            found = found[part]
        return found
    for _ in range(2):
        if _holds_tensors(found):
            return found
        entry = next((name for name in _KEYS if isinstance(found, Mapping) and name in found), None)
        if entry is None:
            break
        found = found[entry]
    raise Error("invalid_argument", f"{file}: no state_dict is found in it ({_inside(found)}); name its entry with --key")


def _tensors(file, state):
    if not _holds_tensors(state):
        raise Error("invalid_argument", f"{file}: the state_dict holds no tensor")
    tensors = {}
    for name, value in state.items():
        if not isinstance(name, str):
            raise Error("invalid_argument", f"{file}: {name!r} is no name of a tensor")
        if not isinstance(value, torch.Tensor):
            continue  # get_extra_state(), and hyperparameters
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise Error("invalid_argument", f"{file}: {name} is {value.layout} of {value.dtype}; only dense tensors of numbers can "
                        "be weights")
        if value.numel() > value.storage().size():
            raise Error("invalid_argument", f"{file}: {name} has {value.numel()} values, of which {value.storage().size()} are "
                        "stored; save a copy of it (tensor.contiguous())")
        half = value.dtype in (torch.bfloat16, torch.float16)  # numpy has no bf16
        tensors[name] = value.detach().to(torch.float32) if half else value.detach()
    return tensors


def convert(file, out, key=""):
    """Writes the state_dict in `file` as safetensors; fp16 and bf16 become fp32."""
    from ductile import ckpt

    ckpt.save_weights(out, {name: value.contiguous().numpy() for name, value in read(file, key).items()})
