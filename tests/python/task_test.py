"""What the worker calls of a job, in this process: what loss() may do to its tensors, and what is named."""

import unittest

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import ductile
from ductile._errors import Error
from ductile._task import Task

OPTIONS = {"seed": 3, "train": {"virtual_ranks": 2, "batch_size": 8, "eval_batch_size": 0},
           "loader": {"shuffle": True, "prefetch": 2}, "data": {"train_limit": 0, "test_limit": 0}}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.bn = torch.nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(3))


class Job(ductile.Job):
    """`change`, a function of the job and its model, is what its loss does besides."""

    def __init__(self):
        self.change = lambda job, model: None

    def model(self):
        return Net()

    def train_data(self):
        return DataLoader([(torch.full((4,), i / 40), i % 2) for i in range(40)], batch_size=8, shuffle=True)

    def test_data(self):
        return DataLoader([(torch.full((4,), i / 8), i % 2) for i in range(8)], batch_size=4)

    def loss(self, model, batch):
        self.change(self, model)
        x, y = batch
        return F.cross_entropy(model.fc(model.bn(x)), y)


def task_of(job, **options):
    task = Task(job, {k: dict(v, **options.get(k, {})) if isinstance(v, dict) else v for k, v in OPTIONS.items()},
                "train.py:Job")
    return task, task.make_model(5)


def loss(task, rank=0):
    return task.loss(0, 4 * rank, 4, rank, 0, 11)


class Case(unittest.TestCase):
    def refused(self, code, call, *words):
        with self.assertRaises(Error) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(caught.exception.code, code)


class Buffers(Case):
    def test_that_grow_in_place_are_named(self):
        for change, now in ((lambda job, model: model.seen.resize_(4), "is torch.float32 [4]"),
                            (lambda job, model: model.seen.resize_(2), "is torch.float32 [2]"),
                            (lambda job, model: setattr(model.seen, "data", torch.zeros(9)), "is torch.float32 [9]"),
                            (lambda job, model: setattr(model.seen, "data", torch.zeros(3).int()), "is torch.int32 [3]")):
            job = Job()
            task, _ = task_of(job)
            loss(task)
            job.change = change
            self.refused("conflict", lambda: loss(task), "buffer seen was torch.float32 [3] and " + now)

    def test_keep_their_memory_whatever_is_assigned(self):
        def assigned(job, model):
            model.seen = model.seen + 1
            model.bn.running_mean.data = model.bn.running_mean + 1

        job = Job()
        task, (_, averaged, carried) = task_of(job)
        tensors = {name: tensor for name, tensor, _ in averaged + carried}
        worker = {"seen": tensors["seen"].detach(), "bn.running_mean": tensors["bn.running_mean"].detach()}
        job.change = assigned
        for _ in range(2):
            loss(task)
        self.assertTrue(torch.equal(worker["seen"], torch.full((3,), 2.0)))
        self.assertGreater(float(worker["bn.running_mean"].min()), 1.0)
        before = {name: place.clone() for name, place in worker.items()}
        task.evaluate(lambda count: None)  # what it makes of them is dropped
        for name, place in worker.items():
            self.assertTrue(torch.equal(place, before[name]), name)
            self.assertEqual(dict(task.model.named_buffers())[name].data_ptr(), place.data_ptr())


if __name__ == "__main__":
    unittest.main()
