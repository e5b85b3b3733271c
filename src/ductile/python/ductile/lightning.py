"""A logger for Lightning's Trainer, which writes a run directory:

    from ductile.lightning import DuctileLogger
    trainer = Trainer(logger=DuctileLogger(name="digits"))

`ductile report RUN` draws what it logged. Lightning trains by itself then: such a run is no job of Ductile's, and keeps
none of its promises."""

import argparse
import os
import time

from ductile import _logs


def _base():
    """Lightning's Logger, under either of its names; without Lightning the class stands alone."""
    for module in ("lightning.pytorch.loggers.logger", "pytorch_lightning.loggers.logger"):
        try:
            return __import__(module, fromlist=["Logger"]).Logger
        except ImportError:
            continue
    return object


class DuctileLogger(_base()):
    """Lightning's Logger interface. Of several processes the one with rank 0 writes.

    save_dir  where run directories are made: by default $DUCTILE_RUNS, or runs/
    name      the first part of the directory's name
    version   the directory itself, to go on with it: from the first step that is logged again on, its steps count anew.
              Step 0 makes none of them void, since a Trainer that only tests or validates logs there"""

    def __init__(self, save_dir=None, name="lightning", version=None):
        super().__init__()
        self._save_dir = os.fspath(save_dir or os.environ.get("DUCTILE_RUNS") or "runs")
        self._name, self._version, self._log = name, version, None
        self._figures = _logs.Figures("lightning/")
        self._began, self._step, self._ended = time.monotonic(), 0, False
        self._before = 0  # the last step of the run that is gone on with, until one is logged again

    @property
    def name(self):
        return self._name

    @property
    def version(self):
        """The name of the run directory; of processes of other ranks, which have none, None."""
        if self._version is None and self._writes():
            self._version = os.path.basename(self._run().folder)
        return self._version

    @property
    def save_dir(self):
        return self._save_dir

    root_dir = save_dir

    @property
    def log_dir(self):
        return os.path.join(self._save_dir, self.version) if self.version is not None else None

    @property
    def experiment(self):
        """What writes; None of processes of other ranks."""
        return self._run() if self._writes() else None

    def log_hyperparams(self, params=None, *args, **kwargs):
        if self._writes() and params is not None:
            values = vars(params) if isinstance(params, argparse.Namespace) else dict(params)
            self._run().keep("wandb.json", {"name": self._name, "config": values})

    def log_metrics(self, metrics, step=None):
        if not self._writes():
            return
        self._step = self._step if step is None else int(step)
        figures = self._figures.of(metrics)
        more = {"epoch": figures.pop("epoch")} if "epoch" in figures else {}
        if figures:
            log = self._run()  # which may set the clock
            seconds = round(time.monotonic() - self._began, 3)
            if 0 < self._step <= self._before and log.line(self._step - 1, {}, begins=True, seconds=seconds):
                self._before = 0
            log.line(self._step, self._figures.fields(figures), **more, seconds=seconds)

    def log_graph(self, model, input_array=None):
        """A run directory holds no graph."""

    def save(self):
        """Each line is written when it is logged."""

    def after_save_checkpoint(self, checkpoint_callback):
        """Lightning's checkpoints stay where Lightning puts them."""

    def finalize(self, status):
        if self._writes() and self._log is not None and not self._ended:
            self._ended = True  # fit() and test() both finalize
            self._run().event("end", status="done" if status in ("success", "finished") else "failed", step=self._step)

    @staticmethod
    def _writes():
        ranks = (os.environ.get(name) for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"))
        return next((rank for rank in ranks if rank), "0") == "0"

    def _run(self):
        if self._log is None:
            folder = self._version and os.path.join(self._save_dir, self._version)
            new = not folder or not os.path.isfile(os.path.join(folder, "job.toml"))
            self._log = _logs.RunLog(_logs.new_folder(self._name, self._save_dir) if new else folder)
            self._version = os.path.basename(self._log.folder)
            if not new:
                self._before = self._log.last_step()
                self._began -= self._log.diary.seconds  # the run's clock goes on
            self._log.event("start" if new else "resume", step=self._before)
        return self._log
