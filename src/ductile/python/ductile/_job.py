"""What a user writes: a class with a model, data and a loss."""


class Described(BaseException):
    """Ends a program that was only asked for its job."""

    def __init__(self, job):
        self.job = job


class Ratio:
    """A sum over samples and the number of samples (or tokens, or pixels) that it is of."""

    __slots__ = ("sum", "of")

    def __init__(self, sum, of):
        self.sum = sum
        self.of = of


def ratio(sum, of):
    """A metric that is `sum` divided by `of`, over all virtual ranks and steps of a line of the
    metrics: `ratio(hits, len(y))`. Both are numbers, or tensors with one element."""
    return Ratio(sum, of)


class Job:
    """A training job. Derive from it and name the class: `ductile train train.py:Job`.

    options   what job.toml would say, as nested dictionaries: {"train": {"epochs": 10}}. Options
              of the command line (`--set`) go before these.
    metrics   the names of the ratios that loss() returns beside the loss. "accuracy" is also what
              the best evaluation is chosen by, and may be the run's target.
    """

    options = {}
    metrics = ()

    def __new__(cls, *args, **kwargs):
        job = super().__new__(cls)
        job._made_with_arguments = bool(args or kwargs)
        return job

    def model(self):
        """A new torch.nn.Module. Parameters are float32, on the CPU. It is called under the job's
        seed on every worker, so all of them begin with the same weights."""
        raise NotImplementedError

    def train_data(self):
        """A Dataset or a DataLoader, which is read as a description: its dataset, batch size (of all
        virtual ranks together), order, collate_fn and number of data processes. An IterableDataset is
        read once for each virtual rank, which get_worker_info() names; its __len__ is the size of an
        epoch, of all ranks together, or the option data.train_limit is, where it has none."""
        raise NotImplementedError

    def test_data(self):
        """The same for the samples to evaluate on; they are read in order, or in that of a sampler of
        your own, which also says which ones they are."""
        raise NotImplementedError

    def loss(self, model, batch):
        """The mean loss over the samples of `batch`, a tensor with one element; or the loss of each sample, [B],
        of which Ductile takes the mean, and which methods that choose samples need (train.method). Or this and a
        dictionary with a value for each of `metrics`: a ratio(), or a number that is a mean over
        the samples. `batch` is what the collate_fn makes of the samples of one virtual rank, in
        evaluation of a part of the test samples.

        It may depend on the model, the batch, random draws (of torch, numpy.random and random) and
        what state() names, alone. What it keeps elsewhere is lost when a worker is."""
        raise NotImplementedError

    def optimizer(self, model):
        """How the weights are updated, in the place of the options `optimizer` and `schedule`: a
        torch.optim.Optimizer over the model's parameters, or that and a scheduler of its learning rate.
        After each step of all virtual ranks it sees the mean of their gradients (clipped, with
        optimizer.clip_norm), and then the scheduler steps, once. Every worker runs it, and what it keeps
        is saved."""
        raise NotImplementedError

    def state(self, model):
        """A dictionary that names what loss() keeps outside of the model: tensors that it changes in
        place, dictionaries, lists, objects with state_dict() and load_state_dict(). It is saved, and
        after each step it is what virtual rank 0 has made of it. It is called after model();
        of a model with lazy parameters twice, before and after they have their sizes."""
        return {}
