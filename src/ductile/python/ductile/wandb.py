"""wandb's calls, into the run directory: `import ductile.wandb as wandb`.

    wandb.init(project="digits", config={"width": 64})
    wandb.log({"loss": loss, "margin": margin})
    wandb.summary["best"] = 0.97
    wandb.finish()

In a job, what loss() logs (or the body of a loop) for virtual rank 0 is in the run's metrics, once for each step,
whoever trains it and however often it was done again; what it logs in evaluation is one line at that step. Calls for the
same step are one line, and the last value of a name counts. In a program that is no job, log() writes a run directory of
its own. `ductile report RUN` draws both.

Numbers are logged, also tensors and arrays with one element; anything else is told once and left out. No account is
needed, and nothing leaves the machine."""

import argparse
import os
import sys
import time

from ductile import _logs
from ductile._errors import Error

__all__ = ["Config", "Run", "config", "define_metric", "finish", "init", "log", "run", "summary", "watch"]


class Config(dict):
    """A dictionary whose entries are attributes, too."""

    def __init__(self, values=None, changed=None):
        super().__init__(_as_dict(values))
        object.__setattr__(self, "_changed", changed or (lambda: None))

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}; there are {sorted(self)}") from None

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self._changed()

    __setattr__ = __setitem__

    def update(self, values=None, allow_val_change=None, **more):
        super().update({**_as_dict(values), **more})
        self._changed()

    def setdefaults(self, values):
        for name, value in _as_dict(values).items():
            self.setdefault(name, value)
        self._changed()


def _as_dict(values):
    if isinstance(values, argparse.Namespace):
        return dict(vars(values))
    if values is not None and not hasattr(values, "keys"):
        raise Error("invalid_argument", f"config is {type(values).__name__}; a dictionary or the namespace of argparse is needed")
    return dict(values or {})


class Run:
    """One run: of the job, or of this program alone. Its directory (`dir`) is made when something is written."""

    def __init__(self, project, name, config, folder, disabled):
        self.project, self.name, self.disabled = project, name, disabled
        self._parent, self._log, self._figures = folder, None, _logs.Figures()
        self._dirty, self._row, self._began = bool(config), {}, time.monotonic()
        self.step, self.finished = 0, False
        self.config, self.summary = Config(config, self._change), Config(None, self._change)
        if isinstance(_logs.job, _logs.InJob) and not disabled:
            _logs.job.changed, _logs.job.kept = self._take_changed, self._kept

    @property
    def id(self):
        return os.path.basename(self.dir)

    @property
    def dir(self):
        """The run directory."""
        if isinstance(_logs.job, _logs.InJob):
            return _logs.job.run.folder
        return self._alone().folder

    def log(self, data, step=None, commit=None):
        """Logs named numbers. In a job the step is the job's; elsewhere it is `step`, or the number of calls before."""
        if self.finished:
            raise Error("conflict", "wandb.log() after wandb.finish(); call wandb.init() for another run")
        if not hasattr(data, "items"):
            raise Error("invalid_argument", f"wandb.log() takes a dictionary of names and numbers, and got {type(data).__name__}")
        if self.disabled:
            return
        if _logs.job is not None:
            _logs.job.log(data)
            return
        if step is not None and step != self.step:
            self._flush()
            if step < self.step:
                _logs.complain(f"wandb.log(step={step}) after step {self.step}: steps do not go back, so it is left out")
                return
            self.step = step
        self._row.update(self._figures.of(data))
        if commit if commit is not None else step is None:
            self._flush()
            self.step += 1

    def finish(self, exit_code=0, quiet=None):
        """Ends the run of a program that is no job; that of a job ends with the job."""
        if self.finished:
            return
        self.finished = True
        if self.disabled or _logs.job is not None:
            return
        self._flush()
        if self._log is not None or self.summary:
            self._alone().keep("wandb.json", self._kept())
            self._alone().event("end", status="failed" if exit_code else "done", step=self.step)

    def watch(self, *models, **options):
        """Of wandb's interface; gradients are not logged."""

    def define_metric(self, *names, **options):
        """Of wandb's interface; all metrics are drawn over the step."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.finish(exit_code=0 if kind is None else 1)

    def __repr__(self):
        return f"ductile.wandb.Run(project={self.project!r}, name={self.name!r})"

    def _change(self):
        self._dirty = True

    def _take_changed(self):
        dirty, self._dirty = self._dirty, False
        return dirty

    def _kept(self):
        logged = _logs.job.summary if isinstance(_logs.job, _logs.InJob) else {}
        return {"project": self.project, "name": self.name, "config": dict(self.config),
                "summary": {**logged, **self.summary}}

    def _alone(self):
        if self._log is None:
            if _logs.job is not None or self.disabled:
                raise Error("conflict", "this run has no directory: it is disabled, or its program is only asked for its job")
            self._log = _logs.RunLog(_logs.new_folder(self.name or self.project, self._parent))
            self._log.event("start", step=0)
            print(f"ductile: run {self._log.folder}", file=sys.stderr, flush=True)
        return self._log

    def _flush(self):
        row, self._row = self._row, {}
        if row:
            self._alone().line(self.step, self._figures.fields(row), seconds=round(time.monotonic() - self._began, 3))
            dict.update(self.summary, row)
            self._log.keep("wandb.json", self._kept(), at_once=self._take_changed())


run = None


def init(project=None, name=None, config=None, dir=None, mode=None, **others):
    """Begins a run. `dir` is where its directory is made (by default $DUCTILE_RUNS, or runs/), unless it is a job's;
    mode="disabled" logs nothing. wandb's other arguments (entity, tags, ...) are accepted and say nothing."""
    global run
    if run is not None and not run.finished and _logs.job is None:
        run.finish()
    run = Run(project, name, config, dir, "disabled" in (mode, os.environ.get("WANDB_MODE")))
    return run


def _begun(what):
    if run is None:
        raise Error("conflict", f"wandb.{what} before wandb.init()")
    return run


def log(data, step=None, commit=None):
    """Logs named numbers: Run.log() of the run that init() began."""
    _begun("log()").log(data, step, commit)


def finish(exit_code=0, quiet=None):
    """Ends the run that init() began."""
    if run is not None:
        run.finish(exit_code)


def watch(*models, **options):
    """Of wandb's interface; gradients are not logged."""


def define_metric(*names, **options):
    """Of wandb's interface; all metrics are drawn over the step."""


def __getattr__(name):
    if name in ("config", "summary"):
        return getattr(_begun(name), name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"ductile.wandb has no {name}: it has init, log, config, summary, finish, watch and define_metric, "
                         "which write numbers into the run directory")
