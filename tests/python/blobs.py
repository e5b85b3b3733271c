"""A job with what makes results depend on luck: convolution, batch norm, dropout, a data set that draws.

Its arguments choose how it goes wrong, or how many data processes it has."""

import argparse
import multiprocessing
import os
import random
import time

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info, random_split

import ductile

_parser = argparse.ArgumentParser()
_parser.add_argument("--processes", type=int, default=0)
_parser.add_argument("--slow", type=float, default=0.0, help="seconds that a loss takes more")
_parser.add_argument("--fault", type=lambda words: words.split(","), default=[])
arguments = _parser.parse_args()
at_import = numpy.random.rand() + random.random()


class Blobs(Dataset):
    def __init__(self, size, train):
        self.centres = torch.randn(10, 3, 12, 12, generator=torch.Generator().manual_seed(5))
        self.size, self.train = size, train

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if "sample" in arguments.fault and self.train and index == 17:
            raise ValueError("sample 17 is torn")
        g = torch.Generator().manual_seed(index + (0 if self.train else 10**6))
        x = self.centres[index % 10] + 2 * torch.randn(3, 12, 12, generator=g)
        if self.train:
            x = torch.roll(x, (random.randint(-2, 2), int(torch.randint(-2, 3, ()))), (1, 2))
            if numpy.random.rand() < 0.5:
                x = x.flip(2)
        return x, index % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8 * 36, 10)
        if "reassigned" in arguments.fault:
            self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        if self.training and "reassigned" in arguments.fault:
            self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 2, 3))
            x = x - self.mean[:, None, None]
        return self.fc(self.drop(F.max_pool2d(F.relu(self.bn(self.conv(x))), 2)).flatten(1))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(432, 432, bias=False)
        self.second = nn.Linear(432, 432, bias=False)
        self.second.weight = self.first.weight
        self.last = nn.LazyLinear(10) if "lazy" in arguments.fault else nn.Linear(432, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x.flatten(1))))))


class Stream(IterableDataset):
    """The same samples, one after the other; each virtual rank has its part."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __iter__(self):
        info, blobs = get_worker_info(), Blobs(self.size, True)
        first = info.id + (os.getpid() % 97 if "process" in arguments.fault else 0)
        return (blobs[i] for i in range(first, self.size, info.num_workers))


class Nudged(torch.optim.Adagrad):
    """State of all kinds: there from the beginning, later, other than float32, replaced, and drawn."""

    @torch.no_grad()
    def step(self):
        super().step()
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            state["seen"] = state.get("seen", torch.zeros((), dtype=torch.int64)) + 1
            last, before = state.get("last"), state.get("before")
            state["last"] = p.grad.clone() if before is None else before
            state["before"] = p.grad.double() if last is None else last.double()
            p.add_(torch.randn_like(p), alpha=1e-3 * random.random() / int(state["seen"]))


def own_optimizer(model):
    if "nudged" in arguments.fault:
        optimizer = Nudged([{"params": model.conv.parameters()}, {"params": model.fc.parameters(), "lr": 0.02}], lr=0.05)
        return optimizer, torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.05, 7, cycle_momentum=False)
    if "lbfgs" in arguments.fault:
        return torch.optim.LBFGS(model.parameters())
    if "foreign" in arguments.fault:
        return torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True, eps=1e-3)  # some gradients are rounding alone
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=50)


class Job(ductile.Job):
    options = {
        "seed": 3,
        "train": {"max_steps": 40, "virtual_ranks": 6, "log_every": 5, "eval_every_epochs": 1},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "checkpoint": {"every_steps": 10, "every_seconds": 0},
    }
    metrics = ("accuracy", "margin")

    def model(self):
        return Tied() if "tied" in arguments.fault else Net()

    def state(self, model):
        if not {"state", "emptied"} & set(arguments.fault):
            return {}
        self.seen, self.mean = {"tensors": {"of": torch.ones(3).t()}}, torch.zeros(3)
        return {"seen": self.seen, "mean": self.mean}

    def __init__(self):
        self.shift = (at_import + torch.randn(3, 1, 1)) if "drawn" in arguments.fault else 0

    def train_data(self):
        if "stream" in arguments.fault:
            return DataLoader(Stream(600), batch_size=48, num_workers=arguments.processes)
        data = Blobs(600, True)
        if "drawn" in arguments.fault:
            data = random_split(data, [504, 96])[0]
        return DataLoader(data, batch_size=48, shuffle=True, num_workers=arguments.processes)

    def test_data(self):
        data = Blobs(100, False)
        if "drawn" in arguments.fault:  # the other part of the one set
            data = random_split(Blobs(600, True), [504, 96])[1]
        return DataLoader(data, batch_size=32, num_workers=min(arguments.processes, 2))

    def loss(self, model, batch):
        time.sleep(arguments.slow)
        x, y = batch
        x = x + self.shift
        if "state" in arguments.fault and model.training:  # both shape the loss
            self.seen["steps"] = self.seen.get("steps", 0) + 1
            self.seen["tensors"]["of"] = 0.9 * self.seen["tensors"]["of"] + x.mean((0, 2, 3))
            self.mean.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1 / self.seen["steps"])
            x = x - self.mean[:, None, None]
        if model.training:
            x = planted(arguments.fault, x)
        if "emptied" in arguments.fault and model.training:
            self.mean.storage().resize_(0)
        z = model(x)
        if "loss" in arguments.fault and model.training:
            return {}["a key that is not there"]
        hits = (z.argmax(1) == y).sum()
        return F.cross_entropy(z, y), {"accuracy": ductile.ratio(hits, len(y)), "margin": z.max(1).values.mean()}


_calls, _average = [0], [0.0]


class _Thing:
    """Hashed by its place in memory, as objects are."""

    def __init__(self, value):
        self.value = value


def planted(faults, x):
    """What users do, and should not: the batch, as it is changed by it."""
    if "clock" in faults:
        x = x + (time.time_ns() % 1000) * 1e-6
    if "texts" in faults:
        x = x + sum(i * len(text) for i, text in enumerate({"a", "bb", "ccc", "dddd", "eeeee", "ffffff"})) * 1e-3
    if "objects" in faults:
        clutter = [bytearray(random.SystemRandom().randrange(1, 99)) for _ in range(50)]
        things = [_Thing(i) for i in range(50)]
        x = x + sum(i * thing.value for i, thing in enumerate(set(things))) * 1e-5 + 0 * len(clutter)
    if "unseeded" in faults:
        x = x + float(numpy.random.default_rng().random())
    if "average" in faults:
        _average[0] = 0.9 * _average[0] + 0.1 * float(x.mean())
        x = x - _average[0]
    if "counter" in faults:
        _calls[0] += 1
        x = x / _calls[0]
    if "fork" in faults:
        multiprocessing.get_context("fork").Process(target=print).start()
    return x


class Tuned(Job):
    """Its optimiser and schedule are PyTorch's."""

    options = {name: value for name, value in Job.options.items() if name != "optimizer"}

    def optimizer(self, model):
        return own_optimizer(model)


class NoJob:
    pass


if __name__ == "__main__":
    run = ductile.train(Job(), workers=2, out=os.environ["OUT"], options=["train.max_steps=10"])
    print(run.result["digest"], run.best["accuracy"])
