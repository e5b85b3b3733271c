"""What a layer of a Python job costs beside its arithmetic: microseconds of processor time for each call of a layer.

    PYTHONPATH=build/release/python OMP_NUM_THREADS=1 python3 bench/python/layers.py [--rounds 9] [--calls 2000]

The same small layers (Linear and ReLU, 8 wide) in models of 4 and of 40 pairs; a cost is that of one layer more, so what
a step costs once is not in it. Alternately: the loss of a virtual rank as the worker asks for it, a plain call of
model and loss, and the same graph run by libtorch's own interpreter, without Python (traced and frozen)."""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

import ductile
from ductile._task import Task

SMALL, LARGE = 4, 40


class Job(ductile.Job):
    def __init__(self, pairs):
        self.pairs = pairs

    def model(self):
        return torch.nn.Sequential(*[layer for _ in range(self.pairs) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())])

    def train_data(self):
        return torch.utils.data.DataLoader([(torch.rand(8), i % 8) for i in range(64)], batch_size=8)

    test_data = train_data

    def loss(self, model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])


def runs_of(pairs):
    """name -> a call of it."""
    job = Job(pairs)
    options = {"seed": 1, "train": {"virtual_ranks": 1, "batch_size": 8, "eval_batch_size": 0},
               "loader": {"shuffle": True, "prefetch": 0}, "data": {"train_limit": 0, "test_limit": 0}}
    task = Task(job, options, "layers.py:Job")
    task.make_model(1)
    model, batch = task.model, task.feeder.train_batch(0, 0, 8, 0)
    x = batch[0].clone().requires_grad_()  # as the parameters, whose gradients a frozen graph does not have
    traced = torch.jit.freeze(torch.jit.trace(model, x).eval())
    return {"ductile": lambda: task.loss(0, 0, 8, 0, 0, 1), "plain": lambda: job.loss(model, batch), "without Python": lambda: traced(x)}


def microseconds(call, calls):
    begin = time.process_time()
    for _ in range(calls):
        call()
    return 1e6 * (time.process_time() - begin) / calls


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=2000)
    a = parser.parse_args()
    torch.set_num_threads(1)
    small, large = runs_of(SMALL), runs_of(LARGE)
    found = {name: [] for name in small}
    for each in (*small.values(), *large.values()):
        microseconds(each, 20)
    for _ in range(a.rounds):
        for name in small:
            more = microseconds(large[name], a.calls) - microseconds(small[name], a.calls)
            found[name].append(more / (2 * (LARGE - SMALL)))
    found["ductile less plain"] = [a - b for a, b in zip(found["ductile"], found["plain"])]
    found["plain less without Python"] = [a - b for a, b in zip(found["plain"], found["without Python"])]
    for name, values in found.items():
        values.sort()
        print(f"{name}: us a layer, median {statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f}) of {a.rounds} rounds")


if __name__ == "__main__":
    main()
