"""The feeder: the same batches for any number of data processes, whichever of them die."""

import contextlib
import io
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import unittest

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, SequentialSampler, SubsetRandomSampler, get_worker_info

from ductile import _feeder, _streams
from ductile._errors import Error
from ductile._feeder import Feeder
from ductile._processes import rebuilt, taken_apart
from ductile._sources import Source
from ductile._state import State
from support import children, end, kill, wait


class Drawn(Dataset):
    """Draws at each access; dies, or fails, at some samples."""

    def __init__(self, size, deadly=(), torn=()):
        self.size, self.deadly, self.torn = size, deadly, torn

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if index in self.torn:
            raise ValueError(f"sample {index} is torn")
        return torch.randn(50), random.random(), index


class Numbers(IterableDataset):
    """A stream that is shared among those who read it as torch's documents say; it draws, too."""

    def __init__(self, size, short=False):
        self.size, self.short = size, short

    def __len__(self):
        return self.size

    def __iter__(self):
        info = get_worker_info()
        offset = random.randrange(self.size)  # another order in each epoch
        for i in range(info.id, self.size // 4 if self.short else self.size, info.num_workers):
            yield torch.randn(50), random.random(), (i + offset * info.num_workers) % self.size


class Shuffle:
    """A stage as webdataset's detshuffle is: it counts in itself how often it has run."""

    def __init__(self, size):
        self.size, self.runs, self.draws = size, 0, random.Random(5)

    def __call__(self, samples):
        self.runs += 1
        waiting = []
        for sample in samples:
            waiting.append(sample)
            if len(waiting) > self.size:
                yield waiting.pop(self.draws.randrange(len(waiting)))
        yield from waiting


def by_worker(shards):
    """As webdataset splits its shards among the workers of a DataLoader."""
    info = get_worker_info()
    return itertools.islice(shards, info.id, None, info.num_workers)


class Pipeline(IterableDataset):
    """As webdataset: shards, and stages behind each other. It does not say how many samples it has."""

    def __init__(self, shards, *stages):
        self.shards, self.stages = shards, stages
        self.module, self.generator = random, torch.Generator().manual_seed(3)  # neither can be copied as other things are

    def __iter__(self):
        samples = iter(range(self.shards))
        for stage in self.stages:
            samples = stage(samples)
        for i in samples:
            yield torch.rand(3, generator=self.generator), random.random(), i


def webdataset_like():
    return Pipeline(50, by_worker, lambda shards: (10 * shard + i for shard in shards for i in range(10)), Shuffle(16))


class Streamed:
    """As a streamed data set of Hugging Face: none of torch's, told of the epoch, and without a length."""

    def __init__(self, shards):
        self.num_shards, self.epoch, self.table = shards, 0, torch.arange(300000)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"epoch": self.epoch}

    def __iter__(self):
        info, order = get_worker_info(), list(range(self.num_shards))
        random.Random(self.epoch).shuffle(order)
        self.epoch += 1000  # which it should not do
        for shard in order[info.id::info.num_workers]:
            for i in range(10):
                yield {"x": self.table[10 * shard + i].float(), "label": i, "text": f"number {i}"}


class Table:
    """As a data set of Hugging Face in memory: rows by number, columns by name, several rows at once."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        return (self[i] for i in range(self.size))

    def __getitem__(self, key):
        if isinstance(key, str):
            return [key] * self.size
        if isinstance(key, (slice, list)):
            return {"x": "several"}
        return {"x": torch.full((3,), key / self.size), "label": key % 10, "text": f"number {key}"}

    def __getitems__(self, keys):
        return self[list(keys)]


def collated(samples):
    x, draws, indices = zip(*samples)
    return {"x": torch.stack(x), "draws": draws, "indices": list(indices)}


def feeder(data, processes, ranks=4, batch=32, test_processes=0, **how):
    train = Source(DataLoader(data, batch_size=batch, num_workers=processes, collate_fn=collated, **how), "train", 7, True,
                   ranks)
    test = Source(DataLoader(data, batch_size=10, num_workers=test_processes, collate_fn=collated), "test", 7, False)
    out = Feeder(train, test, batch, ranks, 4)
    out.host(0, ranks)
    return out


def stream(feeder, steps, ranks=4, batch=32, size=200):
    """The batches of the first steps, rank by rank."""
    per_epoch = size // batch
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        for rank in range(ranks):
            yield feeder.train_batch(epoch, at * batch + rank * batch // ranks, batch // ranks, rank)


def equal(a, b):
    return torch.equal(a["x"], b["x"]) and a["draws"] == b["draws"] and a["indices"] == b["indices"]


def processes_of(feeder):
    return children(feeder.pool.keeper.pid)


class Batches(unittest.TestCase):
    def test_are_the_same_for_any_number_of_processes(self):
        data = Drawn(200)
        alone = list(stream(feeder(data, 0), 14))
        for processes in (1, 4):
            for mine, theirs in zip(alone, stream(feeder(data, processes), 14), strict=True):
                self.assertTrue(equal(mine, theirs))

    def test_of_chosen_samples_are_those_of_the_stream(self):
        """Sample by sample: a seed belongs to a sample and an epoch. What was read ahead of the stream stays."""
        data, draw = Drawn(200), random.Random(4)
        alone, ahead = feeder(data, 0), feeder(data, 2)
        streamed = list(itertools.chain(stream(alone, 6)))
        by_sample = {n: (x, d) for b in streamed for n, x, d in zip(b["indices"], b["x"], b["draws"])}
        served = stream(ahead, 6)
        for i, mine in enumerate(streamed):
            self.assertTrue(equal(mine, next(served)))
            chosen = draw.sample(sorted(by_sample), draw.choice([1, 13, 24]))
            for rank in range(4):
                own = chosen[6 * rank:6 * rank + 6]
                if not own:
                    break
                batch = ahead.train_batch(0, 6 * rank, len(own), rank, chosen)
                self.assertEqual(batch["indices"], own)
                self.assertTrue(torch.equal(batch["x"], torch.stack([by_sample[n][0] for n in own])))
                self.assertEqual(list(batch["draws"]), [by_sample[n][1] for n in own])
            if i == 5:
                os.kill(processes_of(ahead)[0], signal.SIGKILL)
        asked = [*ahead.pool.ready, *itertools.chain(*ahead.pool.asked)]
        self.assertTrue([p for p in asked if not isinstance(p.first, tuple) and p not in ahead.pool.dropped])

    def test_of_many_chosen_samples_fit_into_the_sockets(self):
        large = feeder(Drawn(80000), 2)
        many = list(range(70000, 79000))
        for rank, count in ((0, 4096), (0, 4097), (1, 2250), (0, 4500)):
            self.assertEqual(large.train_batch(0, rank * count, count, rank, many)["indices"],
                             many[rank * count:(rank + 1) * count])

    def test_stay_what_they_are_while_somebody_has_them(self):
        f = feeder(Drawn(200), 2)
        kept = [(b, b["x"].clone()) for b in stream(f, 14)]
        for batch, copy in kept:
            self.assertTrue(torch.equal(batch["x"], copy))

    def test_use_memory_again(self):
        f = feeder(Drawn(200), 1)
        for _ in stream(f, 60):
            pass
        self.assertLess(len(f.pool.regions[0].mapped), 20)  # and not 240

    def test_come_again_from_a_process_that_died(self):
        data = Drawn(200)
        alone = list(stream(feeder(data, 0), 14))
        f = feeder(data, 2)
        draw = random.Random(3)
        for i, (mine, theirs) in enumerate(zip(alone, stream(f, 14), strict=True)):
            self.assertTrue(equal(mine, theirs), i)
            if i % 7 == 3:
                kill(draw.choice(processes_of(f)))

    def test_follow_a_change_of_ranks_and_of_the_batch_size(self):
        data = Drawn(200)
        a, b = feeder(data, 0), feeder(data, 2)
        for f in (a, b):
            next(stream(f, 1))
            f.host(2, 4)
        for epoch, first, count, rank in [(0, 48, 8, 2), (0, 56, 8, 3), (0, 80, 8, 2), (1, 4, 4, 1), (1, 20, 4, 1)]:
            self.assertTrue(equal(a.train_batch(epoch, first, count, rank), b.train_batch(epoch, first, count, rank)))

    def test_of_an_evaluation_are_in_order(self):
        a, b = feeder(Drawn(95), 0), feeder(Drawn(95), 2, test_processes=2)
        for first in range(0, 95, 10):
            count = min(10, 95 - first)
            mine, theirs = a.test_batch(first, count, 10), b.test_batch(first, count, 10)
            self.assertEqual(mine["indices"], list(range(first, first + count)))
            self.assertTrue(equal(mine, theirs))

    def test_follow_a_sampler_of_the_users_own(self):
        chosen = list(range(0, 200, 2))
        for processes in (0, 2):
            f = feeder(Drawn(200), processes, sampler=SubsetRandomSampler(chosen))
            self.assertEqual(f.sources[0].size, 100)
            seen = [i for b in stream(f, 3, size=100) for i in b["indices"]]
            self.assertEqual(len(set(seen)), 96)
            self.assertTrue(set(seen) <= set(chosen))
        again = feeder(Drawn(200), 0, sampler=SubsetRandomSampler(chosen))
        self.assertEqual([i for b in stream(again, 3, size=100) for i in b["indices"]], seen)


    def test_of_an_evaluation_are_those_of_its_sampler(self):
        """Half of the samples are for training and half for the test, as a sampler splits them."""
        chosen = set(range(1, 200, 2))
        for shuffle in (False, True):  # loader.shuffle says nothing about which samples there are
            for sampler in (SubsetRandomSampler(sorted(chosen)), SequentialSampler(range(100))):
                source = Source(DataLoader(Drawn(200), sampler=sampler), "data", 7, shuffle)
                wanted = chosen if isinstance(sampler, SubsetRandomSampler) else set(range(100))
                self.assertEqual((source.size, set(source.indices(0, 0, 100))), (100, wanted))

class Streams(unittest.TestCase):
    def test_are_the_same_for_any_number_of_processes(self):
        alone = list(stream(feeder(Numbers(200), 0), 14))
        for processes in (1, 3):
            for mine, theirs in zip(alone, stream(feeder(Numbers(200), processes), 14), strict=True):
                self.assertTrue(equal(mine, theirs))

    def test_that_do_not_ask_which_they_are_are_named(self):
        class ByProcess(IterableDataset):
            """As scripts do it that know of ranks, and not of the data processes of each."""

            def __init__(self, same=False, drawn=False):
                self.same, self.drawn = same, drawn

            def __len__(self):
                return 64

            def __iter__(self):
                for i in range(int(os.environ.get("RANK", 0)), 64, int(os.environ.get("WORLD_SIZE", 1))):
                    yield torch.tensor([0.0 if self.same else random.random() if self.drawn else i])

        with self.assertRaises(Error) as caught:
            Source(ByProcess(), "train.py:Job, train_data", 1, True, 4).check()
        self.assertIn("the streams of virtual ranks 0 and 1 begin with the same samples", str(caught.exception))
        self.assertIn("get_worker_info()", str(caught.exception))
        # Of one rank, drawn anew for each, all the same: nothing is wrong.
        Source(ByProcess(), "train_data", 1, True, 1).check()
        with contextlib.redirect_stderr(io.StringIO()) as said:
            Source(ByProcess(same=True), "train_data", 1, True, 4).check()
            Source(Numbers(64), "train_data", 1, True, 4).check()
        self.assertEqual(said.getvalue(), "")
        with contextlib.redirect_stderr(io.StringIO()) as said:  # they may be stored ones that are shuffled
            Source(ByProcess(drawn=True), "train_data", 1, True, 4).check()
        self.assertIn("train_data(): ByProcess does not ask torch.utils.data.get_worker_info()", said.getvalue())

    def test_are_shared_among_the_ranks_and_differ_by_epoch(self):
        batches = list(stream(feeder(Numbers(192), 0), 12, size=192))
        epochs = [[i for b in part for i in b["indices"]] for part in (batches[:24], batches[24:])]
        for seen in epochs:
            self.assertEqual(sorted(seen), list(range(192)))
        self.assertNotEqual(*epochs)

    def test_come_again_from_a_process_that_died(self):
        alone = list(stream(feeder(Numbers(200), 0), 14))
        f = feeder(Numbers(200), 2)
        draw = random.Random(3)
        for i, (mine, theirs) in enumerate(zip(alone, stream(f, 14), strict=True)):
            self.assertTrue(equal(mine, theirs), i)
            if i % 7 == 3:
                kill(draw.choice(processes_of(f)))

    def test_go_on_where_they_were_on_another_worker(self):
        alone = list(stream(feeder(Numbers(200), 0), 6))
        other = feeder(Numbers(200), 1)
        other.host(2, 4)
        self.assertTrue(equal(other.train_batch(0, 4 * 32 + 2 * 8, 8, 2), alone[4 * 4 + 2]))

    def test_of_other_libraries_are_read_as_they_are(self):
        """Whatever they keep in themselves, and whichever process read which stream before."""
        for make, collate in ((webdataset_like, collated), (lambda: Streamed(50), None)):
            def fed(processes):
                train = Source(DataLoader(make(), batch_size=32, num_workers=processes, collate_fn=collate), "train", 7, True, 4, 200)
                return Feeder(train, Source(DataLoader(make(), batch_size=10, collate_fn=collate), "test", 7, False, 1, 50), 32, 4, 4)

            def bits(batch):
                return [value.tolist() if isinstance(value, torch.Tensor) else value for value in batch.values()]

            alone = fed(0)
            self.assertEqual((alone.sources[0].size, alone.sources[1].size), (200, 50))
            batches = [bits(batch) for batch in stream(alone, 14)]
            for processes in (1, 3):
                self.assertEqual([bits(batch) for batch in stream(fed(processes), 14)], batches)
            late = fed(0)  # a worker that joins, and takes two of the ranks over
            late.host(2, 4)
            self.assertEqual(bits(late.train_batch(1, 16, 8, 2)), batches[6 * 4 + 2])
            self.assertEqual(bits(late.test_batch(0, 10, 10)), bits(alone.test_batch(0, 10, 10)))
            self.assertEqual(bits(late.test_batch(0, 10, 10)), bits(alone.test_batch(0, 10, 10)))

    def test_share_what_is_large_and_what_cannot_be_copied(self):
        data = Streamed(50)
        copy = _streams._copied(data)
        self.assertIs(copy.table, data.table)
        self.assertIsNot(copy, data)
        data.file = sys.stdin
        f = Feeder(Source(DataLoader(data, batch_size=4), "train", 7, True, 1, 20), Source(Drawn(10), "test", 7, False), 4, 1, 0)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            f.train_batch(0, 0, 4, 0)
            f.train_batch(1, 0, 4, 0)
        self.assertEqual(said.getvalue().count("Streamed cannot be copied"), 1)

    def test_are_not_read_before_data_processes_are_there(self):
        class Counted(Numbers):
            read = 0

            def __iter__(self):
                Counted.read += 1
                return super().__iter__()

        class Pool(_feeder.Pool):
            def __init__(self, *of):
                seen.append(Counted.read)
                super().__init__(*of)

        seen = []
        self.addCleanup(setattr, _feeder, "Pool", _feeder.Pool)
        _feeder.Pool = Pool
        feeder(Counted(200), 1)
        self.assertEqual(seen, [0])
        self.assertGreater(Counted.read, 0)

    def test_that_end_early_begin_again(self):
        seen = [i for b in stream(feeder(Numbers(200, short=True), 0), 6) for i in b["indices"]]
        self.assertEqual(len(seen), 192)
        self.assertLess(len(set(seen)), 192)

    def test_of_an_evaluation_are_in_order(self):
        a, b = feeder(Numbers(95), 0), feeder(Numbers(95), 1, test_processes=1)
        for first in range(0, 95, 10):
            count = min(10, 95 - first)
            self.assertTrue(equal(a.test_batch(first, count, 10), b.test_batch(first, count, 10)))


class Tables(unittest.TestCase):
    def test_of_other_libraries_are_read_as_they_are(self):
        seen = []
        for processes in (0, 2):
            f = Feeder(Source(DataLoader(Table(200), batch_size=32, num_workers=processes), "train", 7, True, 4, 100),
                       Source(DataLoader(Table(95), batch_size=10), "test", 7, False), 32, 4, 4)
            self.assertEqual(f.sources[0].size, 100)
            seen.append([(b["x"].tolist(), b["label"].tolist(), b["text"]) for b in stream(f, 6, size=100)])
        self.assertEqual(*seen)
        self.assertEqual(f.test_batch(90, 5, 10)["text"], [f"number {i}" for i in range(90, 95)])


class Faults(unittest.TestCase):
    def test_of_a_sample_are_told_with_its_number(self):
        f = feeder(Drawn(200, torn={11}), 2)
        with self.assertRaises(Error) as caught:
            list(stream(f, 14))
        self.assertIn("sample 11 is torn", str(caught.exception))
        self.assertIn("ValueError", str(caught.exception))

    def test_of_a_worker_init_fn_are_told(self):
        def init(number):
            info = get_worker_info()
            info.dataset.size = 200
            assert (info.id, info.num_workers) == (number, 2)
            if broken:
                raise ValueError("no such file")

        for broken in (False, True):
            f = feeder(Drawn(200), 2, worker_init_fn=init)
            if not broken:
                next(stream(f, 1))
                continue
            wait(lambda: len(processes_of(f)) == 2, "two data processes")
            processes = processes_of(f)
            with self.assertRaises(Error) as caught:
                next(stream(f, 1))
            self.assertIn("worker_init_fn of data process", str(caught.exception))
            self.assertIn('raise ValueError("no such file")', str(caught.exception))
            self.assertEqual(processes_of(f), processes)  # none was started again

    def test_that_kill_every_process_are_told(self):
        f = feeder(Drawn(200, deadly={11}), 2)
        with self.assertRaises(Error) as caught:
            list(stream(f, 14))
        self.assertIn("5 data processes ended while they fetched 8 samples", str(caught.exception))
        self.assertIn("signal 9", str(caught.exception))

    def test_of_the_keeper_cost_the_worker_and_not_the_job(self):
        f = feeder(Drawn(200), 2)
        batches = stream(f, 14)
        next(batches)
        kill(f.pool.keeper.pid)
        with self.assertRaises(Error) as caught:
            list(batches)
        self.assertEqual(caught.exception.code, "unavailable")

    def test_of_descriptors_that_have_run_out_are_told(self):
        f = feeder(Drawn(200), 1)
        wait(lambda: len(processes_of(f)) == 1, "a data process")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = [os.open("/dev/null", os.O_RDONLY)]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (kept[0] + 10, limits[1]))
            with contextlib.suppress(OSError):
                while True:
                    kept.append(os.open("/dev/null", os.O_RDONLY))
            with self.assertRaisesRegex(Error, "ulimit -n"):
                next(stream(f, 1))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in kept:
                os.close(fd)

    def test_of_a_stopped_process_are_ended(self):
        self.addCleanup(setattr, _feeder, "_PATIENCE", _feeder._PATIENCE)
        _feeder._PATIENCE = 0.1
        alone = list(stream(feeder(Drawn(200), 0), 14))
        f = feeder(Drawn(200), 2)
        for i, (mine, theirs) in enumerate(zip(alone, stream(f, 14), strict=True)):
            self.assertTrue(equal(mine, theirs), i)
            if i == 10:
                for pid in processes_of(f):
                    os.kill(pid, signal.SIGSTOP)
        os.kill(f.pool.keeper.pid, signal.SIGSTOP)  # which forks no other one then
        for pid in processes_of(f):
            kill(pid)
        with self.assertRaises(Error) as caught:
            list(stream(f, 14))
        self.assertEqual(caught.exception.code, "unavailable")

    def test_what_is_no_data_set_is_named(self):
        class Stream(IterableDataset):
            def __iter__(self):
                return iter(range(3))

        for data, why in ((Stream(), "or set data.train_limit"), (DataLoader(Stream(), batch_size=2), "__len__"),
                          (DataLoader(Stream(), batch_size=None), "such as webdataset's with .batched()"),
                          ([1, 2, 3].__iter__(), "a Dataset (map-style")):
            with self.assertRaises(Error) as caught:
                Source(data, "train.py:Job, train_data", 1, True)
            self.assertIn(why, str(caught.exception))
        with self.assertRaises(Error):
            Source(DataLoader(Drawn(10), batch_size=None), "train_data", 1, True)

    def test_that_threads_may_make_are_told(self):
        """Before they happen: a fork keeps what other threads have locked."""
        code = ("import feeder_test as t, threading, sys\nlocked = threading.Event()\n"
                "if len(sys.argv) > 1: threading.Thread(target=locked.wait, daemon=True).start()\n"
                "f = t.feeder(t.Drawn(200), 1)\nnext(t.stream(f, 1))")
        for words in ((), ("thread",)):
            done = subprocess.run([sys.executable, "-c", code, *words], stderr=subprocess.PIPE, text=True, timeout=120,
                                  cwd=os.path.dirname(os.path.abspath(__file__)), env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("this worker has 2 threads when it forks its data processes (Python knows Thread-1" in done.stderr,
                             bool(words), done.stderr)

    def test_data_processes_end_with_their_worker(self):
        # A process of its own: this one may have threads, and a worker forks before it has any.
        code = ("import feeder_test as t\nf = t.feeder(t.Drawn(200), 2)\nnext(t.stream(f, 1))\n"
                "t.wait(lambda: len(t.processes_of(f)) == 2, 'both data processes')\n"
                "print(f.pool.keeper.pid, *t.processes_of(f), flush=True)\nt.signal.pause()")
        worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                                  cwd=os.path.dirname(os.path.abspath(__file__)))
        self.addCleanup(end, worker)
        numbers = [int(word) for word in worker.stdout.readline().split()]
        self.assertEqual(len(numbers), 3)
        kill(worker.pid)
        wait(lambda: not any(os.path.exists(f"/proc/{number}") for number in numbers), "their end")


    def test_prefetch_as_large_as_it_may_be(self):
        """Questions and answers of so many batches would fill both directions of a socket."""
        code = "import feeder_test as t\nf = t.feeder(t.Drawn(200), 1)\nf.prefetch = 1024\nprint(len(list(t.stream(f, 3))))"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=300,
                              cwd=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(done.stdout.strip(), "12")

    def test_a_process_that_cannot_be_forked_now_is_forked_later(self):
        code = ("import errno, os, feeder_test as t\nfork, calls = os.fork, []\n"
                "def tried():\n"
                "    calls.append(0)\n"
                "    if len(calls) in (2, 3): raise BlockingIOError(errno.EAGAIN, 'no room')\n"
                "    return fork()\n"
                "os.fork = tried\n"
                "print(len(next(t.stream(t.feeder(t.Drawn(200), 2), 1))['indices']))")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=300,
                              cwd=os.path.dirname(os.path.abspath(__file__)))
        self.assertEqual(done.stdout.strip(), "8")


class Objects(unittest.TestCase):
    def test_of_any_kind_are_handed_over(self):
        import numpy

        batch = {"a": torch.arange(6).view(2, 3).t(), "b": [numpy.arange(4.0), "text", None], "c": torch.tensor([]),
                 "d": torch.randn(3).bfloat16(), "e": torch.tensor(True), "f": (1, 2.5)}
        body, buffers = taken_apart(batch)
        memory, parts = bytearray(), []
        for piece in (body, *buffers):
            parts.append((len(memory), piece.nbytes))
            memory += piece
            memory += bytes(-len(memory) % 64)
        back = rebuilt(memoryview(memory), parts)
        self.assertEqual(back.keys(), batch.keys())
        for key in "acde":
            self.assertEqual(back[key].dtype, batch[key].dtype)
            self.assertTrue(torch.equal(back[key], batch[key]), key)
        self.assertTrue((back["b"][0] == batch["b"][0]).all())
        self.assertEqual(back["b"][1:], batch["b"][1:])
        self.assertEqual(back["f"], batch["f"])


    def test_have_the_same_strides_for_any_number_of_processes(self):
        """torch.equal() does not see them, and sums of a transposed matrix round another way."""
        def turned(samples):
            x = torch.stack([x for x, _, _ in samples])  # [8, 50]
            image = x.view(8, 2, 5, 5).to(memory_format=torch.channels_last)
            return {"t": x.t(), "last": image, "one": image[:1], "part": x[:, 3:20:2], "many": x[:, :1].expand(8, 7),
                    "half": x.bfloat16().t(), "number": x[0, 0], "view": x[1:]}

        seen = []
        for processes in (0, 1):
            f = Feeder(Source(DataLoader(Drawn(200), batch_size=32, num_workers=processes, collate_fn=turned), "train", 7,
                              True, 4), Source(Drawn(10), "test", 7, False), 32, 4, 4)
            seen.append(f.train_batch(0, 0, 8, 0))
        for name, mine in seen[0].items():
            theirs = seen[1][name]
            self.assertTrue(torch.equal(mine, theirs), name)
            self.assertEqual((mine.stride(), mine.data_ptr() % 64), (theirs.stride(), theirs.data_ptr() % 64), name)
        self.assertEqual(seen[1]["t"].stride(), (1, 50))  # what the collate_fn made
        self.assertTrue(seen[1]["last"].is_contiguous(memory_format=torch.channels_last))

    def test_of_many_tensors_and_long_errors_are_handed_over(self):
        """A message between processes holds some 200 KiB."""
        def many(samples):
            return [torch.tensor([float(i)]) for i in range(32000)]

        def torn(samples):
            raise ValueError("\N{SNOWMAN}" * 100000 + " is torn")

        for collate in (many, torn):
            f = Feeder(Source(DataLoader(Drawn(9), batch_size=4, num_workers=1, collate_fn=collate), "train", 7, True, 1),
                       Source(Drawn(9), "test", 7, False), 4, 1, 0)
            if collate is many:
                self.assertEqual([float(t) for t in f.train_batch(0, 0, 4, 0)], list(range(32000)))
                continue
            with self.assertRaises(Error) as caught:
                f.train_batch(0, 0, 4, 0)
            self.assertIn("is torn", str(caught.exception))

    def test_that_cannot_be_pickled_are_given_by_this_process(self):
        f = Feeder(Source(DataLoader(Drawn(9), batch_size=4, collate_fn=lambda samples: lambda: len(samples)), "train", 7,
                          True, 1), Source(Drawn(9), "test", 7, False), 4, 1, 4)
        self.assertEqual(f.train_batch(0, 0, 4, 0)(), 4)


class Registered(unittest.TestCase):
    def test_objects_come_back_as_they_were_saved(self):
        counts, queue, weight = {"a": 1}, [1, 2], torch.zeros(3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([weight], lr=1.0), 0.5)
        state = State({"counts": counts, "queue": queue, "weight": weight, "schedule": schedule}, "job.py:Job")
        counts["a"], queue[:] = 5, [3]
        state.save()
        saved = [tensor.clone() for _, tensor in state.tensors]
        counts["b"], queue[:] = 7, []
        schedule.last_epoch = 9
        for (_, tensor), before in zip(state.tensors, saved, strict=True):
            tensor.copy_(before)
        state.restore()
        self.assertEqual((counts, queue, schedule.last_epoch), ({"a": 5}, [3], 0))

    def test_equal_tensors_in_objects_have_equal_bytes_and_come_back_as_they_were(self):
        def given():
            whole = torch.arange(24.0).reshape(2, 3, 2, 2)
            return {"plain": whole.clone(), "part": whole[:, 1], "last": whole.contiguous(memory_format=torch.channels_last),
                    "scalar": torch.tensor(True), "none": torch.zeros(0, 3), "half": torch.ones(3, dtype=torch.bfloat16),
                    "complex": torch.ones(2, dtype=torch.complex64).conj(), "expanded": torch.ones(1).expand(4),
                    "trained": torch.nn.Parameter(torch.ones(2)), "twice": [whole, whole]}

        one, other = State({"all": given()}, "job.py:Job"), State({"all": given()}, "job.py:Job")
        self.assertTrue(one.tensors[0][1].equal(other.tensors[0][1]))
        values = given()
        state = State({"all": values}, "job.py:Job")
        values.clear()
        state.restore()
        for name, want in given().items():
            for got, as_it_was in zip(*(x if isinstance(x, list) else [x] for x in (values[name], want)), strict=True):
                self.assertEqual((type(got), got.dtype, got.shape, got.requires_grad),
                                 (type(as_it_was), as_it_was.dtype, as_it_was.shape, as_it_was.requires_grad), name)
                self.assertTrue(got.equal(as_it_was), name)
        self.assertTrue(values["last"].is_contiguous(memory_format=torch.channels_last))
        self.assertIs(values["twice"][0], values["twice"][1])

    def test_what_cannot_be_kept_is_named(self):
        for given, why in ((5, "a dictionary of names"), ({"n": 5}, 'state "n" is int')):
            with self.assertRaises(Error) as caught:
                State(given, "job.py:Job")
            self.assertIn(why, str(caught.exception))
        growing = []
        state = State({"growing": growing}, "job.py:Job")
        growing += range(100000)
        with self.assertRaises(Error) as caught:
            state.save()
        self.assertIn('state "growing" has grown to', str(caught.exception))


if __name__ == "__main__":
    unittest.main()
