"""Ductile for PyTorch users: training that machines may join and leave.

    class Job(ductile.Job):
        options = {"train": {"epochs": 10, "virtual_ranks": 8}}
        metrics = ("accuracy",)

        def model(self): return Net()
        def train_data(self): return DataLoader(Images("train"), batch_size=512, shuffle=True)
        def test_data(self): return DataLoader(Images("test"), batch_size=500)

        def loss(self, model, batch):
            x, y = batch
            z = model(x)
            return F.cross_entropy(z, y), {"accuracy": ductile.ratio((z.argmax(1) == y).sum(), len(y))}

    ductile train train.py:Job --workers 4        # or, in Python: ductile.train(Job())

Whatever happens to the workers, the weights have the same bits.
"""

from ductile._errors import Error
from ductile._job import Job, Ratio, ratio
from ductile._run import Run, load, train

__all__ = ["Error", "Job", "Ratio", "Run", "job", "load", "ratio", "train"]


def __getattr__(name):  # the loop needs torch, and whoever only starts runs does not
    if name == "job":
        from ductile._loop import job

        return job
    raise AttributeError(f"module 'ductile' has no attribute {name!r}")
