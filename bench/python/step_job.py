"""The net that bench/python/step.py measures: as a Python job, and as a plain loop when it is run."""

import mmap
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

BATCH = 64


def counter():
    """Where the steps are counted that were begun: 8 bytes of the file that STEP_COUNTER names."""
    if "STEP_COUNTER" not in os.environ:
        return memoryview(bytearray(8)).cast("q")
    with open(os.environ["STEP_COUNTER"], "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8)).cast("q")


begun = counter()


def data():
    g = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(6400, 3, 16, 16, generator=g), torch.randint(0, 10, (6400,), generator=g))


def net():
    layers, width = [], 3
    for out in (32, 32, 32, 32):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def loop():
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model, samples = net(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    loader = torch.utils.data.DataLoader(samples, batch_size=BATCH, shuffle=True)
    while True:
        for x, y in loader:
            begun[0] += 1
            optimizer.zero_grad(set_to_none=True)
            z = model(x)
            loss = F.cross_entropy(z, y)
            loss.backward()
            optimizer.step()
            loss.item(), int((z.argmax(1) == y).sum())


if __name__ == "__main__":
    loop()
else:
    import ductile

    class Job(ductile.Job):
        options = {"train": {"batch_size": BATCH, "epochs": 1000, "eval_every_epochs": 0, "log_every": 50},
                   "optimizer": {"lr": 0.05}, "schedule": {"name": "constant"},
                   "checkpoint": {"every_seconds": 0, "at_end": False}}
        metrics = ("accuracy",)

        def model(self):
            return net()

        def train_data(self):
            return data()

        def test_data(self):
            return torch.utils.data.Subset(data(), range(64))

        def loss(self, model, batch):
            begun[0] += 1
            x, y = batch
            z = model(x)
            return F.cross_entropy(z, y), {"accuracy": ductile.ratio((z.argmax(1) == y).sum(), len(y))}
