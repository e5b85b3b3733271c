"""Weights from elsewhere: files of torch.save(), read for the command line, and how a model takes tensors by name."""

import collections
import difflib
import errno
import pickle
import types
import zipfile
from collections.abc import Mapping

import torch
from torch import serialization
from torch.nn.parameter import is_lazy

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


def _damaged(file, error):
    return Error("data_loss", f"{file}: is no whole file of torch.save() ({(str(error) or repr(error)).splitlines()[0]})")


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
    except MemoryError:
        raise Error("unavailable", f"{file}: there is not enough memory to read it") from None
    except PermissionError as error:
        raise Error("unavailable", f"{file}: {error.strerror}") from None
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise _damaged(file, error) from None
        raise Error("unavailable", f"{file}: {error.strerror}; it cannot be read now") from None
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError,
            zipfile.BadZipFile) as error:
        raise _damaged(file, error) from None
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


def _shown(tensor):
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)}"  # float32 [3, 4]


def _same(a, b):
    """To the bit: what is no number equals itself."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        *(t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def _places(model):
    """(name, tensor, whether state_dict() has it) of the parameters and buffers; a tied one under each of its names."""
    for at, module in model.named_modules(remove_duplicate=False):
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{at}.{key}" if at else key, tensor, key not in module._non_persistent_buffers_set


def _check_fits(name, value, place, file, verdict):
    number = value.dtype == torch.float32 and place.is_floating_point()  # what `ductile ckpt import` makes of others
    if value.shape == place.shape and (value.dtype == place.dtype or
                                       place.dtype == torch.bool and value.dtype == torch.uint8 or
                                       number and not isinstance(place, torch.nn.Parameter)):
        return
    if value.shape == place.shape and value.is_floating_point() and place.is_floating_point():
        verdict = "`ductile ckpt import` makes other types float32"
    raise Error("invalid_argument", f"{file}: tensor {name} is {_shown(value)}, and in the model it is {_shown(place)}; {verdict}")


def put(model, given, file, verdict, constant=()):
    """A model takes tensors by name, each under one of the names that state_dict() has for it. Returns

    missing  (name, tensor, whether state_dict() has it) of each parameter and buffer that was not given
    others   the names of what was given and is not in the model; state/... belongs to a job, outside of its model

    Raises Error, which ends with `verdict`, where types or shapes differ, where the names of a tied tensor have several
    values, and where one of the tensors in `constant` would have to change."""
    places = list(_places(model))
    read, fixed = {}, {id(tensor) for tensor in constant}
    for name, place, _ in places:
        value = given.get(name)
        if value is None:
            continue
        first = read.setdefault(id(place), name)
        if first != name:
            if not _same(value, given[first]):
                raise Error("invalid_argument", f"{file}: tensors {first} and {name} differ, and in the model they are one "
                            f"({_shown(place)}); {verdict}")
            continue
        if is_lazy(place):
            place.materialize(value.shape)
        _check_fits(name, value, place, file, verdict)
        if _same(place.detach().to(value.dtype), value):
            continue
        if id(place) in fixed:
            raise Error("invalid_argument", f"{file}: buffer {name} has other values than model() gives it, and is too large to "
                        "be a part of the job's state; make it a parameter with requires_grad=False, or leave it out of the file")
        with torch.no_grad():
            place.copy_(value)
    missing = {}
    for place in places:
        if id(place[1]) not in read:
            missing.setdefault(id(place[1]), place)
    known = {name for name, _, _ in places}
    return list(missing.values()), [name for name in given if name not in known and not name.startswith("state/")]


def begin(model, given, file, constant):
    """A run begins with these weights: all that the model has and can be given, and no other. A file may lack whole numbers
    (counters) that the model has, and hold some that it does not have."""
    verdict = "they are weights of another model"
    missing, others = put(model, given, file, verdict, constant)
    fixed = {id(tensor) for tensor in constant}
    for name, place, lasting in missing:
        if lasting and place.is_floating_point() and id(place) not in fixed:
            near = difflib.get_close_matches(name, others, 1)
            raise Error("invalid_argument", f"{file}: holds no tensor {name}, which the model has"
                        f"{f'; it holds {near[0]}' if near else ''}. A file has to hold all of the model: where it has a part alone "
                        "(a backbone below a new head), let model() load that part with load_state_dict(), and leave out --weights")
    for name in others:
        if given[name].is_floating_point():
            raise Error("invalid_argument", f"{file}: holds tensor {name}, which the model does not have; {verdict}")


def convert(file, out, key=""):
    """Writes the state_dict in `file` as safetensors; fp16 and bf16 become fp32."""
    from ductile import ckpt

    ckpt.save_weights(out, {name: value.contiguous().numpy() for name, value in read(file, key).items()})
