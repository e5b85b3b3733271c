"""The user's data, read as a description: which samples, in which order, and how they become a batch."""

import operator

from torch.utils.data import (BatchSampler, DataLoader, IterableDataset, RandomSampler,
                              SequentialSampler, default_collate)

from ductile import _core
from ductile._errors import Error
from ductile._seeds import seed_all
from ductile._streams import Streams


class Source:
    """One of the job's two sets of samples, of which an epoch has at most `limit` (0: all), for a number of virtual ranks.
    `fetch` depends on the seed of the job and on its arguments alone, so it does not matter which process calls it."""

    def __init__(self, data, what, seed, shuffle, ranks=1, limit=0):
        self.what, self.seed, self.ranks = what, seed, ranks
        self.streams = None  # of data that can only be read from the beginning
        self.shuffled, self.sampler = False, None
        self.batch_size, self.processes, sampler = None, 0, None
        if isinstance(data, DataLoader):
            self._check_batches(data)
            self.dataset, self.collate = data.dataset, data.collate_fn
            self.batch_size, self.processes = data.batch_size, data.num_workers
            sampler, self.init = data.sampler, data.worker_init_fn
        else:
            self.dataset, self.collate, self.init = data, default_collate, None
        if self._is_stream():
            self._read_as_streams(limit)
            return
        plain = self._is_plain(sampler)
        self.shuffled = shuffle and plain and not isinstance(sampler, SequentialSampler)
        self.sampler = None if plain else sampler  # it chooses the samples, so it counts in evaluation, too
        self.size = self._listed = len(self.dataset) if plain else len(sampler)
        if self.size < 1:
            raise Error("invalid_argument", f"{what}(): the data set is empty")
        self.size = min(self.size, limit or self.size)
        self._order = (-1, None)  # of an epoch, by the user's sampler

    def _is_plain(self, sampler):
        """Whether it gives every sample once, so that nothing but the order is said by it."""
        if type(sampler) is RandomSampler and (sampler.replacement or sampler._num_samples is not None):
            return False
        return sampler is None or type(sampler) in (RandomSampler, SequentialSampler) and \
            len(sampler) == len(self.dataset)

    def _is_stream(self):
        data = self.dataset
        if isinstance(data, IterableDataset) or (hasattr(data, "__iter__") and not hasattr(data, "__getitem__") and
                                                 not hasattr(data, "__next__")):
            return True
        if not hasattr(data, "__getitem__"):
            raise Error("invalid_argument", f"{self.what}() gives {type(data).__name__}: a Dataset (map-style, with __len__ "
                        "and __getitem__, or an IterableDataset) or a DataLoader of one is needed")
        return False

    def _read_as_streams(self, limit):
        try:
            self.size = len(self.dataset)
        except (TypeError, NotImplementedError):
            if not limit:
                raise Error("invalid_argument", f"{self.what}(): {type(self.dataset).__name__} does not say how many samples an "
                            "epoch has; give it a __len__, or set data.train_limit (of the samples to evaluate on, "
                            "data.test_limit) to that number, of all virtual ranks together") from None
            self.size = limit
        if self.size < 1:
            raise Error("invalid_argument", f"{self.what}(): the data set is empty")
        self.size = min(self.size, limit or self.size)
        self.streams = Streams(self.dataset, self.what, self.seed, self.ranks)

    def check(self):
        """Refuses what only a look into the data shows. That may open files and start threads, so it waits until the data
        processes are there."""
        if self.streams is not None:
            self.streams.check()

    def place(self, first, count, rank):
        """(first, stream) that fetch() takes for `count` samples of a virtual rank from place `first` of the
        epoch on."""
        if self.streams is None:
            return first, 0
        return (first - rank * count) // self.ranks, rank

    def _check_batches(self, loader):
        if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
            raise Error("invalid_argument", f"{self.what}(): a DataLoader with a batch_sampler of its own, or without "
                        "batches, does not say which samples a virtual rank has; give batch_size and a sampler (and let a data "
                        "set that makes batches itself, such as webdataset's with .batched(), give samples)")

    def order(self):
        """True if the samples are shuffled for each epoch, False if they have the order of their numbers, None if
        they have another one, or no numbers."""
        return None if self.streams is not None or self.sampler is not None else self.shuffled

    def indices(self, epoch, first, count):
        """The samples at the places [first, first + count) of an epoch; or `first` names them, a tuple."""
        if isinstance(first, tuple):
            return first
        if self.shuffled:
            return _core.permutation(self.seed, epoch, self.size, first, count)
        if self.sampler is None:
            return range(first, first + count)
        if self._order[0] != epoch:
            # A generator of its own would go on from where the last epoch left it.
            if getattr(self.sampler, "generator", None) is not None:
                self.sampler.generator.manual_seed(_core.mix(self.seed, epoch))
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            seed_all(_core.mix(self.seed, epoch))
            order = list(self.sampler)
            if len(order) != self._listed:  # `size` may have been limited since
                raise Error("invalid_argument", f"{self.what}(): the sampler says that it has {self._listed} samples and "
                            f"gives {len(order)}; every epoch has to have as many as len() says")
            self._order = (epoch, order)
        return self._order[1][first:first + count]

    def _number(self, index):
        """Of a sample, for its seed."""
        try:
            return operator.index(index) & 0xFFFFFFFFFFFFFFFF
        except TypeError:
            raise Error("invalid_argument", f"{self.what}(): the sampler gives {index!r}, a {type(index).__name__}; a "
                        "sample is named by a whole number, since its seed is made of it: let the data set look the "
                        "key up") from None

    def fetch(self, epoch, first, count, stream=0):
        """The batch of these places (or samples: see indices), each sample fetched under a seed of its own."""
        if self.streams is not None:
            return self.collate(self.streams.read(epoch, first, count, stream))
        of_epoch = _core.mix(self.seed, epoch)
        samples = []
        for index in self.indices(epoch, first, count):
            seed_all(_core.mix(of_epoch, self._number(index)))
            try:
                samples.append(self.dataset[index])
            except Exception as error:
                error.ductile_sample = index
                raise
        return self.collate(samples)
