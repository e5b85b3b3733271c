"""Data processes and the memory through which they hand over batches."""

import ctypes
import io
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import weakref

import torch
from torch.utils.data import _utils

from ductile import _core
from ductile._errors import Error, told

_ALIGNED = 64
_SHORT_LIFE = 1.0  # seconds
_LONGEST = 40000  # characters of an error, of up to four bytes: a message holds some 200 KiB


# ---- Batches as bytes: any object that can be pickled, its tensors and arrays out of band.

class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided \
                and not value.requires_grad and value.numel() > 0:
            order = sorted(range(value.dim()), key=value.stride, reverse=True)  # of the dimensions in memory
            plain = value.permute(order)
            if not plain.is_contiguous():  # parts of it are missing, or there more than once
                order, plain = None, value.contiguous()
            elif order == sorted(order):
                order = None
            as_numpy = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain  # numpy has none
            return _tensor, (pickle.PickleBuffer(as_numpy.numpy()), plain.dtype, plain.shape, order)
        return NotImplemented


def _tensor(buffer, dtype, shape, order):
    tensor = torch.frombuffer(buffer, dtype=dtype).view(shape)
    return tensor if order is None else tensor.permute([order.index(d) for d in range(len(order))])


def taken_apart(batch):
    """(the bytes of the object, its buffers)."""
    buffers, file = [], io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(batch)
    return file.getbuffer(), [b.raw() for b in buffers]


def _laid_out(pieces):
    """((begin, size) of each piece in a memory that holds all of them, its size)."""
    parts, end = [], 0
    for piece in pieces:
        parts.append((end, piece.nbytes))
        end = -(-(end + piece.nbytes) // _ALIGNED) * _ALIGNED
    return parts, end


def _fill(memory, pieces, parts):
    for piece, (begin, size) in zip(pieces, parts):
        memory[begin:begin + size] = piece


def handed_over(batch):
    """A batch of this process as it would come from a data process: strides, alignment and who else holds its memory
    may decide how torch rounds. One that cannot be pickled cannot come from there, and is given as it is."""
    try:
        body, buffers = taken_apart(batch)
    except Exception:
        return batch
    pieces = [body, *buffers]
    parts, end = _laid_out(pieces)
    memory = memoryview(torch.empty(end, dtype=torch.uint8).numpy())
    _fill(memory, pieces, parts)
    return rebuilt(memory, parts)


def rebuilt(memory, parts):
    views = [memory[begin:begin + size] for begin, size in parts]
    return pickle.loads(views[0], buffers=views[1:])


class Regions:
    """The worker's view of the memory of one data process, and of those before it: regions that it
    maps and gives back when nobody looks into them any more. A region is named by the number of the
    process that made it and one of its own."""

    def __init__(self):
        self.process = None  # the present one
        self.mapped = {}  # region -> mmap
        self.in_use = {}  # region -> weak reference to what its batch looks through
        self.spare = []

    def add(self, region, fds):
        self.process = region[0]
        for fd in fds:
            self.mapped[region] = mmap.mmap(fd, 0)
            os.close(fd)

    def has(self, region):
        """Whether it came: the kernel drops what there is no descriptor for."""
        return region in self.mapped

    def batch(self, region, index):
        # What is made of the memory holds this array, and it is gone when all of that is.
        memory = self.mapped[region]
        window = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        self.in_use[region] = weakref.ref(window)
        memory, (begin, size) = memoryview(window), index
        return rebuilt(memory, pickle.loads(memory[begin:begin + size]))

    def unused(self, region):
        if region in self.mapped:
            self.spare.append(region)

    def free(self):
        """The number of the process, and the regions that it may fill again."""
        for region in [r for r, window in self.in_use.items() if window() is None]:
            del self.in_use[region]
            self.spare.append(region)
        spare, self.spare = self.spare, []
        for region in spare:
            if region[0] != self.process:
                del self.mapped[region]
        return self.process, [number for process, number in spare if process == self.process]


# ---- The data process.

class _Memory:
    """The regions that a data process has made."""

    def __init__(self):
        self.maps, self.free, self.count = {}, set(), 0

    def store(self, pieces):
        """(region, where in it the places of the pieces are, file descriptor of a region that is new). The places
        may be too many for a message."""
        parts, end = _laid_out(pieces)
        places = pickle.dumps(parts)
        index, end = (end, len(places)), end + len(places)
        fitting = [r for r in self.free if len(self.maps[r]) >= end]
        fd = None
        if fitting:
            region = min(fitting, key=lambda r: len(self.maps[r]))
            self.free.discard(region)
        else:
            region, self.count = self.count, self.count + 1
            fd = os.memfd_create("ductile-batch", os.MFD_CLOEXEC)
            os.ftruncate(fd, max(end + end // 8, mmap.PAGESIZE))
            self.maps[region] = mmap.mmap(fd, 0)
        _fill(memoryview(self.maps[region]), [*pieces, memoryview(places)], [*parts, index])
        return region, index, fd


def _initialised(sources, number, count):
    """(code, text) of what a worker_init_fn raises; None. get_worker_info() answers it as in a DataLoader, and it alone:
    samples must not depend on the process that fetches them."""
    try:
        for source in sources:
            if source.init is not None:
                _utils.worker._worker_info = _utils.worker.WorkerInfo(
                    id=number, num_workers=count, seed=source.seed + number, dataset=source.dataset)
                source.init(number)
    except BaseException as error:
        return "conflict", f"{source.what}(), worker_init_fn of data process {number}:\n{told(error)[1]}"
    finally:
        _utils.worker._worker_info = None
    return None


def _serve(sources, number, count, link):
    _core.set_title(f"ductile data process {number}")
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork
    torch.set_flush_denormal(True)
    broken = _initialised(sources, number, count)
    memory, here = _Memory(), os.getpid()
    while True:
        message = link.recv(1 << 16)
        if not message:
            return
        place, (process, spare) = pickle.loads(message)
        if process == here:
            memory.free.update(spare)
        try:
            if broken:
                raise Error(*broken)
            fetched = sources[place.test].fetch(*place[1:])
            body, buffers = taken_apart(fetched)
            region, index, fd = memory.store([body, *buffers])
            del fetched, body, buffers
            answer, fds = (place, here, None, region, index), [] if fd is None else [fd]
        except Exception as error:
            sample = getattr(error, "ductile_sample", None)
            at = "" if sample is None else f", sample {sample}"
            code, text = told(error)
            text = text if isinstance(error, Error) else f"{sources[place.test].what}(){at}:\n{text}"
            if len(text) > _LONGEST:  # its end says most
                text = "..." + text[-_LONGEST:]
            answer, fds = (place, here, (code, text), None, None), []
        socket.send_fds(link, [pickle.dumps(answer)], fds)
        for fd in fds:
            os.close(fd)


def _warn_of_threads():
    """A fork has one of this process's threads, and what the others hold stays locked in it. Most threads hold nothing, so
    this need not go wrong; if it does, data processes hang, and this line says why."""
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
        print(f"ductile: this worker has {threads} threads when it forks its data processes"
              f"{' (Python knows ' + ', '.join(names) + ')' if names else ''}. What they hold at this moment stays locked in a "
              "data process, which may hang by it: start threads later, in the first loss, or set num_workers=0",
              file=sys.stderr, flush=True)


def _forked():
    """os.fork(). A machine that has no room for a process now may have some soon."""
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, None):
        try:
            return os.fork()
        except OSError as error:
            if pause is None:
                raise Error("unavailable", f"data processes cannot be forked: {error.strerror}") from None
            time.sleep(pause)


class Keeper:
    """A process that forks data processes, and forks one again that has died. The worker forks it while
    it has one thread; it has one itself, so it may fork at any time."""

    def __init__(self, sources, links, control, of_worker):
        _warn_of_threads()
        sys.stdout.flush()
        sys.stderr.flush()
        worker = os.getpid()
        self.pid = _forked()
        if self.pid:
            return
        try:
            for link in of_worker:
                link.close()
            _core.die_with(worker)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _core.set_title("ductile keeper of data processes")
            self._keep(sources, links, control)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker is gone
        except BaseException as error:
            print(f"ductile keeper of data processes: {told(error)[1]}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)

    def _keep(self, sources, links, control):
        running, forked, short = {}, {}, 0
        for number in range(len(links)):
            forked[number] = time.monotonic()
            running[self._fork(sources, links, control, number)] = number
        while True:
            pid, status = os.wait()
            number = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            short = short + 1 if time.monotonic() - forked[number] < _SHORT_LIFE else 0
            if short > len(links):  # what ends at once shall not take a core for it
                time.sleep(min(0.05 * 2 ** (short - len(links)), _SHORT_LIFE))
            forked[number] = time.monotonic()
            running[self._fork(sources, links, control, number)] = number
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            control.send(pickle.dumps((number, why)))

    def _fork(self, sources, links, control, number):
        keeper = os.getpid()
        pid = _forked()
        if pid:
            return pid
        try:
            _core.die_with(keeper)
            control.close()
            for other, link in enumerate(links):
                if other != number:
                    link.close()
            _serve(sources, number, len(links), links[number])
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker is gone
        except BaseException as error:
            print(f"ductile data process {number}: {told(error)[1]}", file=sys.stderr, flush=True)
            os._exit(1)
        finally:
            os._exit(0)


def children(pid):
    """The processes that a process of one thread has forked."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
