"""Data sets that can only be read from their beginning: a stream of its own for each virtual rank."""

import contextlib
import copy
import gc
import sys
import types

import numpy
import torch
from torch.utils.data import _utils

from ductile import _core
from ductile._errors import Error
from ductile._processes import taken_apart
from ductile._seeds import seed_all


class _Info(_utils.worker.WorkerInfo):
    """As a DataLoader's worker has it; it notes whether somebody asks which stream is read."""

    asked = False

    def __getattribute__(self, name):
        if name in ("id", "num_workers", "seed"):
            _Info.asked = True
        return super().__getattribute__(name)


# What has so many bytes, or entries, is the data of a data set; what is smaller may be its state. Tables are always data.
_LARGE_BYTES, _LARGE = 1 << 20, 1 << 14
_TABLES = ("pandas", "polars", "pyarrow")


def _copied(dataset):
    """A data set of its own, which has what is large in common with the other one."""
    known, seen, waiting = {}, set(), [dataset]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            continue  # copy.deepcopy() leaves these alone
        seen.add(id(value))
        if isinstance(value, torch.Generator):  # which torch does not copy
            known[id(value)] = torch.Generator(value.device)
            known[id(value)].set_state(value.get_state())
        elif _is_data(value):
            known[id(value)] = value
        else:
            waiting += gc.get_referents(value)
    return copy.deepcopy(dataset, known)


def _is_data(value):
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() >= _LARGE_BYTES
    if isinstance(value, numpy.ndarray):
        return value.nbytes >= _LARGE_BYTES
    if isinstance(value, (list, tuple, dict, set, frozenset)):
        return len(value) >= _LARGE
    return isinstance(value, types.ModuleType) or type(value).__module__.partition(".")[0] in _TABLES


class Streams:
    """One stream for each of `count` virtual ranks. The data set is told which one it is read for as it
    would be in a DataLoader's worker: torch.utils.data.get_worker_info() gives the rank as `id` and `count`
    as `num_workers`. A stream that ends within an epoch begins again.

    What comes at a place of a stream depends on the job's seed, the epoch, the rank and the place, as long
    as the data set gives the same samples each time it is read; so a stream may be read again, from its
    beginning, in another process. The data set itself is never read: each stream begins with a copy of it, so what
    one has counted or drawn changes no other one."""

    def __init__(self, dataset, what, seed, count):
        self.dataset, self.what, self.seed, self.count = dataset, what, seed, count
        self._open = {}  # rank -> [epoch, place, iterator, the data set that it reads]
        self._shared = False

    def check(self):
        """Refuses a data set that gives two ranks the same samples because it does not ask which of them it is read for:
        one that goes by the process (RANK, a process number) has one answer for all streams of a process."""
        if self.count < 2:
            return
        _Info.asked, begins = False, []
        with contextlib.suppress(Exception):  # what fails is told where it is needed
            for rank in range(2):
                begins.append([self._bytes(self.read(0, place, 1, rank)) for place in range(2)])
        self._open.clear()
        if _Info.asked or len(begins) < 2:
            return
        if begins[0] != begins[1]:
            self._warn()
        if begins[0] != begins[1] or len(set(begins[0])) == 1:
            return
        raise Error("invalid_argument", f"{self.what}(): the streams of virtual ranks 0 and 1 begin with the same samples, since "
                    f"{type(self.dataset).__name__} does not ask which one is read: let its __iter__ take the part that "
                    "torch.utils.data.get_worker_info() names (`id` of `num_workers`), and not one by the process")

    def _warn(self):
        """Random samples, which need no part of anything, look like stored ones that are shuffled or augmented."""
        print(f"ductile: {self.what}(): {type(self.dataset).__name__} does not ask torch.utils.data.get_worker_info() which virtual "
              f"rank it is read for. If it makes its samples at random, all is well. If it reads stored ones, each of the {self.count} "
              "virtual ranks begins with the first of all of them, and the job may never see the last: let its __iter__ take the part "
              "that get_worker_info() names (`id` of `num_workers`)", file=sys.stderr, flush=True)

    @staticmethod
    def _bytes(samples):
        body, buffers = taken_apart(samples)
        return b"".join([body, *buffers])

    def read(self, epoch, first, count, rank):
        """The samples [first, first + count) of the rank's stream in an epoch."""
        stream = self._open.get(rank)
        if stream is None or stream[0] != epoch or stream[1] > first:
            stream = self._open[rank] = [epoch, 0, None, self.dataset]
        while stream[1] < first:
            self._next(stream, rank)
        return [self._next(stream, rank) for _ in range(count)]

    def _next(self, stream, rank):
        epoch, place, iterator, dataset = stream
        of_stream = _core.mix(_core.mix(self.seed, epoch), rank)
        before = _utils.worker._worker_info
        try:
            for _ in range(2):  # it may have ended exactly here
                if iterator is None:
                    dataset = self._copy()
                _utils.worker._worker_info = _Info(id=rank, num_workers=self.count, seed=of_stream, dataset=dataset)
                if iterator is None:
                    seed_all(of_stream)
                    if hasattr(dataset, "set_epoch"):
                        dataset.set_epoch(epoch)
                    iterator = iter(dataset)
                seed_all(_core.mix(of_stream, place))
                try:
                    sample = next(iterator)
                except StopIteration:
                    iterator = None
                    continue
                stream[1:] = place + 1, iterator, dataset
                return sample
        except Exception as error:
            error.ductile_sample = f"{place} of the stream of virtual rank {rank}"
            raise
        finally:
            _utils.worker._worker_info = before
        raise Error("invalid_argument", f"{self.what}(): the stream of virtual rank {rank} has no samples; each of "
                    f"{self.count} ranks needs some (torch.utils.data.get_worker_info() says which one is read for)")

    def _copy(self):
        try:
            return _copied(self.dataset)
        except Exception as error:
            if hasattr(self.dataset, "__next__"):  # it is its own iterator, which can be at one place only
                raise
            if not self._shared:
                print(f"ductile: {self.what}(): {type(self.dataset).__name__} cannot be copied ({error}), so the streams of a process "
                      "share it: what it keeps in itself depends on the workers. Let its __iter__ open what it reads",
                      file=sys.stderr, flush=True)
            self._shared = True
            return self.dataset
