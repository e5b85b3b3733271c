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

The modules ductile.ckpt, .data, .plan, .sched and .sim need no torch: checkpoints and data sets as arrays of
numpy, the pipeline planner, the scheduling policies and their simulator, for notebooks and scripts.
"""

from ductile._errors import AbsenceError, DamageError, Error, RefusalError, TryAgainError
from ductile._job import Job, Ratio, ratio
from ductile._run import Run, load, train

__all__ = ["AbsenceError", "DamageError", "Error", "Job", "Ratio", "RefusalError", "Run", "TryAgainError", "capture", "ckpt",
           "data", "job", "load", "plan", "ratio", "sched", "sim", "train"]

_MODULES = ("ckpt", "data", "plan", "sched", "sim")


def __getattr__(name):
    if name == "job":  # the loop needs torch, and whoever only starts runs does not
        from ductile._loop import job

        return job
    if name == "capture":
        from ductile._capture import capture

        return capture
    if name in _MODULES:  # each is read when it is used
        import importlib

        return importlib.import_module(f"ductile.{name}")
    raise AttributeError(f"module 'ductile' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
