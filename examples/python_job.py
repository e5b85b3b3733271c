"""Spirals: points of two arms that are to be told apart, as a Python job. The tutorial python.md trains it."""
import ductile
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def spirals(size):
    turn, arm = 3 * torch.pi * torch.linspace(0, 1, size).sqrt(), torch.arange(size) % 2
    angle = turn + torch.pi * arm
    return TensorDataset(torch.stack([turn * angle.cos(), turn * angle.sin()], 1) / 10, arm)


class Job(ductile.Job):
    options = {"train": {"epochs": 60, "virtual_ranks": 4}, "optimizer": {"name": "adamw", "lr": 0.01}}
    metrics = ("accuracy",)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def train_data(self):
        return DataLoader(spirals(1200), batch_size=60, shuffle=True)

    def test_data(self):
        return DataLoader(spirals(400), batch_size=100)

    def loss(self, model, batch):
        points, arm = batch
        z = model(points + 0.02 * torch.randn_like(points) if model.training else points)
        return nn.functional.cross_entropy(z, arm), {"accuracy": ductile.ratio((z.argmax(1) == arm).sum(), len(arm))}
