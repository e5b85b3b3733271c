"""Batches of virtual ranks, fetched in this process or ahead of it by data processes.

A batch is named by its place (which set, epoch, first place, count; or its samples, where a method has
chosen them), and its bytes follow from the name and the job's seed alone. So any process may make it, once more if need be: how many data processes there
are, and which of them dies, changes nothing but time.

The data processes are forked by a keeper, which the worker forks while it has one thread; what they
fetch lies in memory that both map. A data process that dies is forked again by the keeper, and what it
was asked for is asked again.
"""

import collections
import contextlib
import os
import pickle
import select
import signal
import socket
import sys

from ductile._errors import Error
from ductile._processes import Keeper, Regions, children, handed_over, is_stopped

_MOST_DEATHS = 5  # of data processes, one after the other, at the same batch

_PATIENCE = 10.0  # seconds without a batch, after which it is looked whether a process is stopped

_MOST_ASKED = 64  # of a data process at a time: more questions, or answers, would not fit into its socket

_KEEPER_GONE = "the keeper of this worker's data processes is gone; what it wrote is in worker.log, if it was not killed"

_NO_DESCRIPTOR = ("the memory of a data process could not be received, since this process has as many files open as it may; "
                  "close some, or raise the limit (ulimit -n)")

_MOST_CHOSEN = 4096  # samples that data processes are asked for by their numbers, in one step: all questions fit into a socket

Place = collections.namedtuple("Place", "test epoch first count stream")  # first: a number, or a tuple of samples


@contextlib.contextmanager
def _keeper_lives():
    """A socket whose other end is gone, with or without something unread in it, has lost its keeper: a
    data process alone leaves it open."""
    try:
        yield
    except (BrokenPipeError, ConnectionResetError):
        raise Error("unavailable", _KEEPER_GONE) from None


class Feeder:
    def __init__(self, train, test, batch, ranks, prefetch):
        self.sources = (train, test)
        self.batch, self.ranks, self.prefetch = batch, ranks, prefetch
        self.hosted = (0, ranks)
        processes = max(train.processes, test.processes)
        self.pool = Pool(self.sources, processes) if processes > 0 else None
        for source in self.sources:
            source.check()

    def host(self, begin, end):
        """From now on the ranks [begin, end) are asked for."""
        self.hosted = (begin, end)
        if self.pool:
            self.pool.forget()

    def train_batch(self, epoch, first, count, rank, chosen=None):
        """The samples at `count` places of the epoch from `first` on; or of the list `chosen`, of which the next
        virtual ranks have the next ones."""
        source = self.sources[0]
        if chosen is not None:
            return self._chosen_batch(epoch, first, count, rank, chosen)
        place = self._place(epoch, first, count, rank)
        if not self.pool or not source.processes:
            return handed_over(source.fetch(*place[1:]))
        self.batch = count * self.ranks
        ahead = [place]
        for _ in range(2 * source.processes + self.prefetch):
            epoch, first, rank = self._next(epoch, first, count, rank)
            ahead.append(self._place(epoch, first, count, rank))
        return self.pool.get(ahead)

    def _chosen_batch(self, epoch, first, count, rank, chosen):
        source = self.sources[0]
        begin, end = self.hosted
        ranks = end - rank if begin <= rank < end else 1  # of another worker's rank, which is verified, no more
        last = min(first + count * ranks, len(chosen), first + max(count, _MOST_CHOSEN))
        ahead = [Place(False, epoch, tuple(chosen[at:at + count]), min(count, len(chosen) - at), 0)
                 for at in range(first, last, count)]
        if not self.pool or not source.processes or count > _MOST_CHOSEN:
            return handed_over(source.fetch(*ahead[0][1:]))
        return self.pool.get(ahead)

    def _place(self, epoch, first, count, rank):
        at, stream = self.sources[0].place(first, count, rank)
        return Place(False, epoch, at, count, stream)

    def _next(self, epoch, first, count, rank):
        """What is asked for after a batch, if the batch size stays."""
        begin, end = self.hosted
        if rank + 1 < end:
            return epoch, first + count, rank + 1
        step = first - rank * count + self.batch
        if step + self.batch > self.sources[0].size:
            step, epoch = 0, epoch + 1
        return epoch, step + begin * count, begin

    def test_batch(self, first, count, step):
        source = self.sources[1]
        if not self.pool or not source.processes:
            return handed_over(source.fetch(0, first, count))
        ahead = []
        for at in range(first, source.size, step)[:2 * source.processes + 1]:
            ahead.append(Place(True, 0, at, min(step, source.size - at), 0))
        return self.pool.get(ahead)


class Pool:
    """Data processes, each with a socket. One thread at a time.

    A data process takes its questions in order and answers each of them. So the first one without an
    answer is what a process was at when it died; those behind it still lie in the socket, for the
    process that takes its place."""

    def __init__(self, sources, count):
        self.sources = sources
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.keeper = Keeper(sources, [pair[1] for pair in pairs], theirs, [pair[0] for pair in pairs] + [ours])
        theirs.close()
        for pair in pairs:
            pair[1].close()
        self.control, self.sockets = ours, [pair[0] for pair in pairs]
        self.regions = [Regions() for _ in pairs]
        self.asked = [[] for _ in pairs]  # places without an answer, by process, in order
        self.deaths = collections.Counter()  # of processes that were at this place
        self.ready = {}  # place -> (process, region, where it tells its parts), or an error
        self.stopped = set()  # processes that were seen so when no batch had come for a while
        self.dropped = set()  # asked for and not wanted any more
        self.poll = select.poll()
        for s in (self.control, *self.sockets):
            self.poll.register(s.fileno(), select.POLLIN)
        self.by_fd = {s.fileno(): k for k, s in enumerate(self.sockets)}

    def forget(self):
        """What was prepared for other ranks is not waited for."""
        for places in self.asked:
            self.dropped.update(places)
        for place in list(self.ready):
            self._discard(place)

    def get(self, ahead):
        """The batch of the first of these places; the others will be asked for next."""
        wanted = ahead[0]
        self.dropped.difference_update(ahead)
        for place in ahead:
            if place not in self.ready and not any(place in places for places in self.asked):
                process = self._process_for(place)
                if place == wanted or len(self.asked[process]) < _MOST_ASKED:
                    self._ask(process, place)
        # The batch size has changed, or an evaluation has ended. What is read ahead of the stream is wanted after a
        # step whose samples were chosen.
        chosen = isinstance(wanted.first, tuple)
        for place in [p for p in self.ready if p not in ahead]:
            if not chosen or place.test or isinstance(place.first, tuple):
                self._discard(place)
        while wanted not in self.ready:
            events = self.poll.poll(_PATIENCE * 1000)
            if not events:
                self._end_stopped()
            for fd, _ in events:
                if fd == self.control.fileno():
                    self._hear_of_death()
                    break  # which has read from the others
                self._take(self.by_fd[fd])
        found = self.ready.pop(wanted)
        if isinstance(found, Error):
            raise found
        process, region, index = found
        return self.regions[process].batch(region, index)

    def _end_stopped(self):
        """A data process that somebody has stopped (SIGSTOP) would be waited for without end: one that is seen so twice
        is killed, and another one takes its place. If it is the keeper, the worker is lost."""
        stopped = {pid for pid in (self.keeper.pid, *children(self.keeper.pid)) if is_stopped(pid)}
        for pid in stopped & self.stopped:
            print(f"ductile: data process {pid} is stopped, and is killed", file=sys.stderr, flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stopped = stopped

    def _process_for(self, place):
        if self.sources[place.test].streams is not None:  # the process that is at that place
            return place.stream % len(self.sockets)
        return min(range(len(self.sockets)), key=lambda k: len(self.asked[k]))

    def _discard(self, place):
        found = self.ready.pop(place)
        if not isinstance(found, Error):
            self.regions[found[0]].unused(found[1])

    def _ask(self, process, place):
        self.asked[process].append(place)
        with _keeper_lives():
            self.sockets[process].send(pickle.dumps((place, self.regions[process].free())))

    def _take(self, process):
        with _keeper_lives():
            message, fds, _, _ = socket.recv_fds(self.sockets[process], 1 << 18, 1)
        if not message:
            raise Error("unavailable", _KEEPER_GONE)
        place, incarnation, error, number, index = pickle.loads(message)
        region = (incarnation, number)
        self.regions[process].add(region, fds)
        wanted = place in self.asked[process]
        if wanted:
            self.asked[process].remove(place)
            self.deaths.pop(place, None)
        if place in self.dropped or not wanted or place in self.ready:
            self.dropped.discard(place)
            self.regions[process].unused(region)
        elif error:
            self.ready[place] = Error(*error)
        elif not self.regions[process].has(region):
            raise Error("unavailable", _NO_DESCRIPTOR)
        else:
            self.ready[place] = (process, region, index)

    def _hear_of_death(self):
        with _keeper_lives():
            message = self.control.recv(1 << 12)
        if not message:
            raise Error("unavailable", _KEEPER_GONE)
        process, why = pickle.loads(message)
        while select.select([self.sockets[process]], [], [], 0)[0]:
            self._take(process)  # what it answered before it died
        print(f"ductile: a data process ended with {why}; another one takes its place", file=sys.stderr, flush=True)
        if not self.asked[process]:
            return
        place = self.asked[process].pop(0)
        self.deaths[place] += 1
        if self.deaths[place] >= _MOST_DEATHS:
            which = (f"sample {place.first[0]} and the next that were chosen" if isinstance(place.first, tuple)
                     else f"place {place.first} on")
            raise Error("conflict", f"{_MOST_DEATHS} data processes ended while they fetched {place.count} samples from "
                        f"{which} in epoch {place.epoch}, the last one with {why}. What they wrote is "
                        "in worker.log; with num_workers=0 the worker itself fetches (and calls no worker_init_fn)")
        self._ask(process, place)
