"""A small job whose model has what a state_dict() may hold besides parameters: buffers of all kinds, and a tied weight."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import ductile

_parser = argparse.ArgumentParser()
_parser.add_argument("--slow", type=float, default=0.0, help="seconds that a loss takes more")
arguments = _parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(8))  # shapes every loss
        self.register_buffer("unused", torch.zeros(2))
        self.register_buffer("exact", torch.tensor([1 / 3], dtype=torch.float64))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(3.0), persistent=False)
        self.register_buffer("large", torch.linspace(0, 1, 70_000))

    def forward(self, x):
        if self.training:
            self.seen += 1
        x = x - self.mean + self.large[-1]
        return self.last(self.norm(torch.tanh(self.second(torch.tanh(self.first(x))))))


class Job(ductile.Job):
    options = {"seed": 3, "train": {"epochs": 2, "virtual_ranks": 2, "log_every": 1},
               "optimizer": {"name": "sgd", "lr": 0.05}, "checkpoint": {"every_seconds": 0}}
    metrics = ("accuracy",)

    def model(self):
        return Net()

    def state(self, model):
        self.steps = {}
        return {"steps": self.steps}

    def train_data(self):
        x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16, shuffle=True)

    def test_data(self):
        return self.train_data()

    def loss(self, model, batch):
        time.sleep(arguments.slow)
        x, y = batch
        if model.training:
            self.steps["done"] = self.steps.get("done", 0) + 1
        z = model(x)
        return F.cross_entropy(z, y), {"accuracy": ductile.ratio((z.argmax(1) == y).sum(), len(y))}


class Tuned(Job):
    options = {name: value for name, value in Job.options.items() if name != "optimizer"}

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)
