"""The job of blobs.py with a loss for each sample, as methods that choose samples need it. A worker writes down which
samples it has run, and their losses, where DUCTILE_TEST_RECORD names a file."""

import json
import os
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler

import blobs
import ductile


class Numbered(blobs.Blobs):
    """Samples that know their numbers; those of the test set are below 0."""

    def __getitem__(self, index):
        return (*super().__getitem__(index), index if self.train else -1 - index)


def losses_of(model, batch):
    time.sleep(blobs.arguments.slow)
    x, y, numbers = batch
    draw = torch.rand(()).item()
    if model.training:
        x = blobs.planted(blobs.arguments.fault, x)
    elif "looks" in blobs.arguments.fault:
        x = x + (time.time_ns() % 1000) * 1e-6
    z = model(x)
    losses = F.cross_entropy(z, y, reduction="none")
    if "DUCTILE_TEST_RECORD" in os.environ and numbers[0] >= 0:
        with open(os.environ["DUCTILE_TEST_RECORD"], "a") as file:
            line = {"numbers": numbers.tolist(), "losses": losses.tolist(), "training": model.training,
                    "graded": torch.is_grad_enabled(), "draw": draw}
            file.write(json.dumps(line) + "\n")
    return losses, ductile.ratio((z.argmax(1) == y).sum(), len(y))


class Job(blobs.Job):
    options = {
        "seed": 3,
        "train": {"epochs": 4, "virtual_ranks": 6, "log_every": 5},
        "optimizer": {"name": "sgd", "lr": 0.05},
        "schedule": {"name": "constant"},
        "checkpoint": {"every_steps": 10, "every_seconds": 0},
    }
    metrics = ("accuracy",)

    def train_data(self):
        if "stream" in blobs.arguments.fault:
            return super().train_data()
        how = {"shuffle": "ordered" not in blobs.arguments.fault}
        if "sampler" in blobs.arguments.fault:
            how = {"sampler": SubsetRandomSampler(range(300))}
        return DataLoader(Numbered(600, True), batch_size=48, num_workers=blobs.arguments.processes, **how)

    def test_data(self):
        return DataLoader(Numbered(100, False), batch_size=32)

    def loss(self, model, batch):
        if "state" in blobs.arguments.fault:  # shapes the loss, and is changed by every one
            self.seen["losses"] = self.seen.get("losses", 0) + 1
            self.mean.mul_(0.9).add_(batch[0].mean((0, 2, 3)), alpha=0.1 / self.seen["losses"])
            batch = (batch[0] - self.mean[:, None, None], *batch[1:])
        losses, accuracy = losses_of(model, batch)
        return (losses.mean() if "mean" in blobs.arguments.fault else losses), {"accuracy": accuracy}


class Tuned(Job):
    """Its optimiser and schedule are PyTorch's."""

    options = {name: value for name, value in Job.options.items() if name not in ("optimizer", "schedule")}

    def optimizer(self, model):
        return blobs.own_optimizer(model)
