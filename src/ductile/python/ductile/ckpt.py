"""Checkpoints and weights of runs as arrays of numpy, without torch: what `ductile ckpt` shows, and more.

    import ductile
    ductile.ckpt.list("runs/latest")                    # newest first
    last = ductile.ckpt.open("runs/latest")
    last.step, last.digest()
    last["model/conv1.weight"].shape                    # an array
    ductile.ckpt.weights("runs/latest/model.safetensors")

A run is its directory, or the folder of checkpoints in it. Arrays are copies in this machine's memory, which anything that
takes DLPack reads without another one (`torch.from_dlpack(array)`). numpy has no bf16: such tensors become float32, which
has their values exactly.
"""

import builtins
import collections.abc
import os

from ductile import _arrays
from ductile._errors import Error
from ductile._native import base, parsed, path_of

__all__ = ["Checkpoint", "diff", "list", "open", "save_weights", "verify", "weights"]

_DIGEST = "ductile.digest"  # of a run's model.safetensors, in its metadata
_OUTSIDE = ("job", "cost")  # of a state, which the digest leaves out


class Checkpoint(collections.abc.Mapping):
    """One checkpoint: a mapping from the names of its tensors to arrays, each of which is read, and compared with its
    digest, when it is asked for. It stays readable as long as the run keeps it.

    step      the step after which it was written
    refused   newer checkpoints that are damaged, and why
    state     what it holds besides tensors: counters, the job, evaluations (a dictionary)
    infos     of each tensor its name, dtype, shape and bytes, in the order of the checkpoint

    Names are model/PARAMETER, optimizer/STATE/PARAMETER, average/PARAMETER, extra/PART/ARRAY."""

    def __init__(self, run, step=None):
        """As open() does."""
        self._checkpoint = base.Checkpoint(path_of(run), step)
        self.step = self._checkpoint.step
        self.refused = self._checkpoint.refused
        self.state = parsed(self._checkpoint.state())
        self.infos = parsed(self._checkpoint.tensors())
        self._by_name = {info["name"]: info for info in self.infos}

    def __getitem__(self, name):
        return _arrays.read(self._checkpoint, self._by_name[name])

    def __iter__(self):
        return iter(self._by_name)

    def __len__(self):
        return len(self._by_name)

    def tensors(self, prefix=""):
        """A dictionary of the arrays whose names begin with `prefix`: "model/" for the weights."""
        return {name: self[name] for name in self if name.startswith(prefix)}

    def digest(self):
        """The hash of the whole state, 32 hexadecimal digits: two runs have the same one if they have the same state to
        the bit. It reads all of the checkpoint."""
        return self._checkpoint.digest()

    def __repr__(self):
        return f"<ductile checkpoint of step {self.step}, {len(self)} tensors>"


def open(run, step=None):
    """The checkpoint of that step; None: the newest one that is whole.

    Raises AbsenceError if there is none, DamageError, which names the file, if none is whole (or that of the step is
    not), and TryAgainError if it cannot be read now."""
    return Checkpoint(run, step)


def list(run):
    """The checkpoints of a run, newest first: dictionaries with `step`, `bytes`, `tensors`, `chunks`, and `error` if the
    manifest is damaged. Chunks are not read."""
    return parsed(base.list_checkpoints(path_of(run)))


def verify(run):
    """Reads everything and changes nothing; returns a dictionary: `ok`, `good` (steps), `refused` ("step-...: why"),
    `chunks`, `bytes`, `unused_chunks`. Ctrl-C ends it."""
    return parsed(base.verify_checkpoints(path_of(run)))


def diff(first, second):
    """What differs between two checkpoints, each a Checkpoint or a run (its newest one).

    Returns a dictionary: `same` (to the bit), `tensors`, a list with name and `change` of each that differs, and `state`,
    the names of the values that do. A change is "only in first", "only in second", "type or shape", or "values"; then
    `elements` says how many there are, `different` how many differ in their bits, and `largest` the largest difference
    of two values (None if one of them is no number)."""
    one, other = (c if isinstance(c, Checkpoint) else open(c) for c in (first, second))
    changes = []
    for name in [*one, *(name for name in other if name not in one)]:
        change = _change(one, other, name)
        if change is not None:
            changes.append({"name": name, **change})
    state = [key for key in sorted({*one.state, *other.state} - {*_OUTSIDE})
             if key not in one.state or key not in other.state or one.state[key] != other.state[key]]
    if one.step != other.step:
        state.insert(0, "step")
    return {"same": not changes and not state, "tensors": changes, "state": state}


def _change(one, other, name):
    import numpy

    if name not in other:
        return {"change": "only in first"}
    if name not in one:
        return {"change": "only in second"}
    here, there = one._by_name[name], other._by_name[name]
    if here["dtype"] != there["dtype"] or here["shape"] != there["shape"]:
        return {"change": "type or shape"}
    bits = [_arrays.read_bytes(c._checkpoint, c._by_name[name]) for c in (one, other)]
    if numpy.array_equal(*bits):
        return None
    elements = int(numpy.prod(here["shape"], dtype="i8"))
    rows = [values.reshape(elements, -1) for values in bits]
    a, b = (c[name].astype("f8") for c in (one, other))
    largest = float(numpy.max(numpy.abs(a - b)))
    return {"change": "values", "elements": elements, "different": int((rows[0] != rows[1]).any(axis=1).sum()),
            "largest": largest if numpy.isfinite(largest) else None}


def weights(file):
    """The arrays of a safetensors file by name; `file` may be a run, whose model.safetensors it is then. Weights that
    Ductile wrote are compared with their digest.

    Raises AbsenceError, DamageError for a file that is no safetensors file or was altered, RefusalError for an element
    type that Ductile does not have."""
    file = path_of(file)
    if os.path.isdir(file):
        file = os.path.join(file, "model.safetensors")
    found = base.Weights(file)
    written = found.metadata.get(_DIGEST)
    if written is not None and written != found.digest():
        raise Error("data_loss", f"{file}: the weights are not those that were written (their digest is {found.digest()}, "
                    f"and it was {written})")
    return {info["name"]: _arrays.read(found, info) for info in parsed(found.tensors())}


def save_weights(file, tensors, metadata=None):
    """Writes a safetensors file: after a crash the old file or the new one is there.

    tensors    arrays by name, of numpy or of anything with __dlpack__ or __array__
    metadata   texts by name

    Raises RefusalError for a value that is no array of numbers, TryAgainError if the file cannot be written."""
    rows = []
    for name, value in tensors.items():
        array = _arrays.array_of(value, name)
        rows.append((name, _arrays.name_of(array, name), builtins.list(array.shape), array))
    base.write_weights(path_of(file), rows, dict(metadata or {}))
