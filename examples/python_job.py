"""Spirals: points of two arms that are to be told apart, as a Python job. The tutorial python.md trains it."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import ductile


class Spirals(Dataset):
    def __init__(self, size, noise):
        self.size, self.noise = size, noise

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        arm, turn = index % 2, math.sqrt(index / self.size) * 3 * math.pi
        x = turn * torch.tensor([math.cos(turn + math.pi * arm), math.sin(turn + math.pi * arm)]) / 10
        return x + self.noise * torch.randn(2), arm  # another draw in each epoch


class Job(ductile.Job):
    options = {"train": {"epochs": 60, "virtual_ranks": 4}, "optimizer": {"name": "adamw", "lr": 0.01}}
    metrics = ("accuracy",)

    def model(self):
        return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))

    def train_data(self):
        return DataLoader(Spirals(1200, 0.02), batch_size=60, shuffle=True)

    def test_data(self):
        return DataLoader(Spirals(400, 0), batch_size=100)

    def loss(self, model, batch):
        x, y = batch
        z = model(x)
        return F.cross_entropy(z, y), {"accuracy": ductile.ratio((z.argmax(1) == y).sum(), len(y))}
