"""Arrays of numpy for the element types of Ductile's files, and what has another library's array as one."""

import sys

try:
    import numpy
except ImportError as error:
    raise ImportError(f"{sys.executable} cannot import numpy ({error}), in whose arrays ductile.ckpt and ductile.data give what they "
                      "read; install it there, or use a Python that has it") from None

from ductile._errors import Error

_OF_NAME = {"u8": "u1", "i8": "i1", "i16": "<i2", "u16": "<u2", "i32": "<i4", "u32": "<u4", "i64": "<i8", "f16": "<f2",
            "f32": "<f4", "f64": "<f8"}
_NAMES = {numpy.dtype(kind): name for name, kind in _OF_NAME.items()}
_NAMES[numpy.dtype(bool)] = "u8"


def read(source, info):
    """The tensor of `source` that `info` describes, and which numpy may not have: bf16 becomes float32, which has the
    same values."""
    if info["dtype"] == "bf16":
        halves = numpy.empty(info["shape"], "<u2")
        source.read(info["name"], halves)
        return (halves.astype("<u4") << 16).view("<f4")
    out = numpy.empty(info["shape"], _OF_NAME[info["dtype"]])
    source.read(info["name"], out)
    return out


def read_bytes(source, info):
    out = numpy.empty(info["bytes"], "u1")
    source.read(info["name"], out)
    return out


def array_of(value, name):
    """Anything with a buffer, __array__ or __dlpack__ (a tensor of torch or jax on this machine's memory) as a
    contiguous array."""
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, numpy.ndarray):
            value = numpy.from_dlpack(value)
        return numpy.ascontiguousarray(value).reshape(numpy.shape(value))
    except Exception as error:
        raise Error("invalid_argument", f"{name}: {type(value).__name__} is no array of numbers in this machine's memory: "
                    f"{error}") from None


def name_of(array, name):
    try:
        return _NAMES[array.dtype]
    except KeyError:
        raise Error("invalid_argument", f"{name}: {array.dtype} is not among the element types of files: "
                    f"{', '.join(_OF_NAME)}") from None
