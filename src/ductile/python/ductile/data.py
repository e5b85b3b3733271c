"""Data sets and their batches as arrays of numpy, without torch: the formats, the order and the augmentation of training.

    import ductile
    train = ductile.data.open("cifar-10-batches-bin")
    image, label = train[7]                                         # uint8 [H, W, C], a number
    for batch in ductile.data.Loader(train, batch_size=128, seed=1, augment={"flip": True, "pad": 4}, epochs=1):
        batch.input, batch.labels                                   # float32 [B, C, H, W], int64 [B]

The samples of a batch, and their bytes, are those that a run with the same options and seed trains on:
`ductile.data.of_run(RUN)` reads them from its job. Formats are those of docs/guides/data.md.
"""

import threading
import typing


from ductile._arrays import numpy
from ductile._errors import Error
from ductile._native import base, parsed, path_of, text_of

__all__ = ["Batch", "Dataset", "Loader", "formats", "inspect", "of_run", "open", "order", "step"]


class Batch(typing.NamedTuple):
    """The samples of a step, or of a part of it."""

    input: numpy.ndarray    # float32 [B, C, H, W], or int64 [B, T] of tokens
    labels: numpy.ndarray   # int64 [B], or [B, T]: the token after each
    samples: numpy.ndarray  # uint64 [B]: which samples of the data set these are
    epoch: int
    first: int              # the place in the epoch of the first sample; -1 of Loader.fetch()
    next_cursor: int        # where the step after this one begins; -1 of Loader.fetch()
    part: int               # virtual rank


class Dataset:
    """One split of a data set: a sequence of (sample, label).

    info   a dictionary: format, split, size, num_classes, class_names; of images channels, height and width (0: sizes
           vary), mean and std of each channel (of values from 0 to 1); of tokens sequence_length; bad (samples that were
           skipped, with where and what)

    A sample is as it is stored, decoded: uint8 [H, W, C], or token numbers [T + 1], whose label is 0."""

    def __init__(self, options, split="train"):
        """As open() does; `options` are those of the section [data] of a job."""
        self.options = dict(options)
        self._set = base.Dataset(text_of(self.options, "options"), split)
        self.info = parsed(self._set.info())

    def __len__(self):
        return self.info["size"]

    def __getitem__(self, index):
        index = self._index(index)
        return self._set.sample(index), self._set.label(index)

    def label(self, index):
        """The class of a sample, which is not read."""
        return self._set.label(self._index(index))

    def where(self, index):
        """The file of a sample and, inside a larger file, its offset."""
        return self._set.where(self._index(index))

    def _index(self, index):
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"sample {index} of {size}")
        return index % size

    def __repr__(self):
        return f"<ductile data set, {self.info['format']}, {self.info['split']}, {len(self)} samples>"


def open(path=None, format=None, split="train", **options):
    """One split of a data set.

    path      a file or folder; None for format "digits", which is drawn in memory
    format    one of formats() but "synthetic"; None: what the names of files tell
    split     "train" or "test"
    options   of the section [data] of a job: test_path, train_limit, test_limit, on_bad_sample ("fail", "skip"), and
              tokens={"type": "u16", "sequence_length": 128}

    Raises AbsenceError, RefusalError (with what the format expects), DamageError (file and offset of what is wrong)."""
    return Dataset(_options(path, format, options), split)


def formats():
    """The formats: a list of dictionaries with `name`, `help` and `needs_path`."""
    return parsed(base.formats())


def inspect(path=None, format=None, split="train", **options):
    """Reads and decodes all of a split; returns a dictionary as `ductile data inspect --json` prints it: samples, classes
    with their counts, sizes, mean and std of each channel, encodings, and each bad sample. Ctrl-C ends it."""
    return parsed(base.inspect(text_of(_options(path, format, options), "options"), split))


def _options(path, format, options):
    path = path_of(path)
    if format is None:
        format = "digits" if path is None else base.guess_format(path)
    return {"format": format, **({} if path is None else {"path": path}), **options}


def order(seed, epoch, size, first=0, count=None):
    """Which samples lie at the places [first, first + count) of an epoch over `size` samples (None: up to its end), as
    int64: the order in which a run with that seed trains."""
    if not (0 <= first <= size and (count is None or 0 <= count <= size - first)):
        raise Error("invalid_argument", f"places from {first} on, {count} of them, of an epoch over {size} samples")
    out = numpy.empty(size - first if count is None else count, "i8")
    base.order(seed, epoch, size, first, out)
    return out


def step(cursor, batch_size, size):
    """What a step of `batch_size` samples takes that begins at `cursor`, the number of samples that the epochs before it
    have: (epoch, first place in the epoch, cursor of the next step). Fewer samples than a step at the end of an epoch
    are dropped."""
    return base.step(cursor, batch_size, size)


class Loader:
    """Batches that are read, decoded and augmented by threads ahead of who asks for them: an iterator of Batch.

    dataset      a Dataset
    batch_size   samples of a step
    seed         of order and augmentation
    augment      options of the section [augment] of a job; those that the data decide (crop, mean, std) are taken from
                 `train`
    train        the Dataset that the model is trained on; None: this one. Give it for a test set
    loader       options of the section [loader]: threads, prefetch, cache_mb, shuffle
    training     False: one pass in the order of the data set, without random augmentation
    parts        a step is cut into so many equal parts (virtual ranks), each of which is a Batch
    start        the cursor of the first step
    epochs       ends after so many epochs of training; None: never

    `augment` is then the resolved options. The bytes of a batch are a function of these arguments alone, apart from the
    loader's threads and prefetch. One thread at a time asks; the others wait."""

    def __init__(self, dataset, batch_size, seed=0, *, augment=None, train=None, loader=None, training=True, parts=1,
                 start=0, epochs=None):
        if epochs is not None and not training:
            raise Error("invalid_argument", "epochs are those of training; without it there is one pass")
        self.dataset = dataset
        self.augment = dict(augment or {})
        if "sequence_length" not in dataset.info:
            self.augment = parsed(base.resolve_augment(text_of(self.augment, "augment"), (train or dataset)._set))
        self._epochs, self._lock = epochs, threading.Lock()
        self._loader = base.Loader(dataset._set, text_of(self.augment, "augment"), text_of(loader or {}, "loader"), seed,
                                   batch_size, parts, 0, parts, training, start, (train or dataset)._set)

    @property
    def sample_shape(self):
        """[C, H, W] after augmentation, or [T]."""
        return tuple(self._loader.sample_shape())

    def __iter__(self):
        return self

    def __next__(self):
        with self._lock:
            found = self._loader.next()
        if found is None or (self._epochs is not None and found[3] >= self._epochs):
            raise StopIteration
        return Batch(*found)

    def fetch(self, indices, epoch=0):
        """The batch of these samples in this order, augmented as in that epoch; the iteration goes on as it would have."""
        with self._lock:
            return Batch(*self._loader.fetch([int(index) for index in indices], epoch))

    def indices(self, epoch, first, count):
        """Which samples lie at the places [first, first + count) of an epoch."""
        return numpy.array(self._loader.indices(epoch, first, count), "i8")


def of_run(run, split="train"):
    """The batches of a run: a Loader with the data, augmentation, seed, batch size and virtual ranks of its job, from the
    first step on, or of its test set. A run whose batch size changes on the way took other samples from there on.

    Raises AbsenceError if there is no run, and RefusalError for a Python job, whose data are the program's own."""
    text, parts = base.job_of(path_of(run))
    job = parsed(text)
    if job["data"]["format"] == "python":
        raise Error("invalid_argument", f"{run}: its data are those of the program {job['python']['object']}, which only a "
                    "worker reads")
    data, train, batch = job["data"], job["train"], job["train"]["batch_size"]
    trained_on = Dataset(data, "train")
    how = {"augment": job["augment"], "loader": job["loader"], "seed": job["seed"]}
    if split == "train":
        return Loader(trained_on, batch, parts=parts, **how)
    return Loader(Dataset(data, split), train["eval_batch_size"] or batch, train=trained_on, training=False, **how)
