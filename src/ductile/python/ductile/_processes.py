"""Data processes and the memory through which they hand over batches."""

import ctypes
import io
import mmap
import os
import pickle
import signal
import socket
import sys
import weakref

import torch

from ductile import _core
from ductile._errors import told

_ALIGNED = 64


# ---- Batches as bytes: any object that can be pickled, its tensors and arrays out of band.

class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if type(value) is torch.Tensor and value.device.type == "cpu" and value.layout == torch.strided \
                and not value.requires_grad and value.numel() > 0:
            plain = value.contiguous()
            if plain.dtype == torch.bfloat16:  # numpy has none
                return _tensor, (pickle.PickleBuffer(plain.view(torch.int16).numpy()), plain.dtype, plain.shape)
            return _tensor, (pickle.PickleBuffer(plain.numpy()), plain.dtype, plain.shape)
        return NotImplemented


def _tensor(buffer, dtype, shape):
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


def taken_apart(batch):
    """(the bytes of the object, its buffers)."""
    buffers, file = [], io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(batch)
    return file.getbuffer(), [b.raw() for b in buffers]


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

    def batch(self, region, parts):
        # What is made of the memory holds this array, and it is gone when all of that is.
        memory = self.mapped[region]
        window = (ctypes.c_ubyte * len(memory)).from_buffer(memory)
        self.in_use[region] = weakref.ref(window)
        return rebuilt(memoryview(window), parts)

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
        """(region, parts, file descriptor of a region that is new)."""
        parts, end = [], 0
        for piece in pieces:
            parts.append((end, piece.nbytes))
            end = -(-(end + piece.nbytes) // _ALIGNED) * _ALIGNED
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
        memory = memoryview(self.maps[region])
        for piece, (begin, size) in zip(pieces, parts):
            memory[begin:begin + size] = piece
        return region, parts, fd


def _serve(sources, number, link):
    _core.set_title(f"ductile data process {number}")
    torch.set_num_threads(1)  # libgomp's threads do not survive a fork
    torch.set_flush_denormal(True)
    for source in sources:
        if source.init is not None:
            source.init(number)
    memory, here = _Memory(), os.getpid()
    while True:
        message = link.recv(1 << 16)
        if not message:
            return
        place, (process, spare) = pickle.loads(message)
        if process == here:
            memory.free.update(spare)
        try:
            fetched = sources[place.test].fetch(*place[1:])
            body, buffers = taken_apart(fetched)
            region, parts, fd = memory.store([body, *buffers])
            del fetched, body, buffers
            answer, fds = (place, here, None, region, parts), [] if fd is None else [fd]
        except Exception as error:
            sample = getattr(error, "ductile_sample", None)
            at = "" if sample is None else f", sample {sample}"
            code, text = told(error)
            answer, fds = (place, here, (code, f"{sources[place.test].what}(){at}:\n{text}"[:60000]), None, None), []
        socket.send_fds(link, [pickle.dumps(answer)], fds)
        for fd in fds:
            os.close(fd)


class Keeper:
    """A process that forks data processes, and forks one again that has died. The worker forks it while
    it has one thread; it has one itself, so it may fork at any time."""

    def __init__(self, sources, links, control, of_worker):
        sys.stdout.flush()
        sys.stderr.flush()
        worker = os.getpid()
        self.pid = os.fork()
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
        finally:
            os._exit(0)

    def _keep(self, sources, links, control):
        running = {}
        for number in range(len(links)):
            running[self._fork(sources, links, control, number)] = number
        while True:
            pid, status = os.wait()
            number = running.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            running[self._fork(sources, links, control, number)] = number
            why = f"signal {-code}" if code < 0 else f"exit code {code}"
            control.send(pickle.dumps((number, why)))

    def _fork(self, sources, links, control, number):
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _core.die_with(keeper)
            control.close()
            for other, link in enumerate(links):
                if other != number:
                    link.close()
            _serve(sources, number, links[number])
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker is gone
        except BaseException as error:
            print(f"ductile data process {number}: {told(error)[1]}", file=sys.stderr, flush=True)
            os._exit(1)
        finally:
            os._exit(0)
