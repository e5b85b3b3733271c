"""What a program logs by itself, as lines of a run directory's metrics.jsonl (docs/reference/run-folder.md).

In a job the lines are those of virtual rank 0, written by the worker that has it, once for each step: before a
line is added, the file says whether the step has one that counts. A step that is done again gives the same
figures, so it does not matter which of its attempts wrote it."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import sys
import time

_FIXED = {"step", "epoch", "time", "seconds", "generation", "begins", "logged"}
_OWN = {"lr", "batch_size", "noise_scale", "samples_per_second"}  # of Ductile, besides train/ and eval/
_PATIENCE = 1.0  # seconds for another process that writes
_EVERY = 5.0  # seconds between writes of what a run logged last


def complain(text):
    print(f"ductile: {text}", file=sys.stderr, flush=True)


def number(value):
    """What a line can hold of a value: a number; None: it is none."""
    if isinstance(value, (bool, int, float)):
        return value
    item = getattr(value, "item", None)  # a tensor or an array with one element
    if item is not None and getattr(value, "size", 1) != 0:
        with contextlib.suppress(Exception):
            value = item()
            return value if isinstance(value, (bool, int, float)) else None
    return None


def shown(value):
    """A number as JSON has it, which knows neither NaN nor infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def plain(value):
    """What a JSON file can hold of anything: a configuration may be made of whatever a program has."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str):
        return value
    held = number(value)
    return str(value) if held is None else shown(held)


def flat(values, before=""):
    """{"a": {"b": 1}} as {"a.b": 1}."""
    out = {}
    for key, value in values.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            out.update(flat(value, name + "."))
        else:
            out[name] = value
    return out


class Figures:
    """Named numbers of what a program gives; it is told once of each other thing that they are left out."""

    def __init__(self, prefix="wandb/"):
        self.prefix, self._told = prefix, set()

    def of(self, values):
        out = {}
        for name, value in flat(values).items():
            held = number(value)
            if held is not None:
                out[name] = held
            elif name not in self._told:
                self._told.add(name)
                complain(f"{name} is {type(value).__name__}, which a run directory does not hold; numbers are logged")
        return out

    def fields(self, figures):
        """As they stand in a line: under names that Ductile does not use for its own."""
        out = {}
        for name, value in figures.items():
            taken = name in _FIXED or name in _OWN or name.startswith(("train/", "eval/"))
            try:
                value = float(value)
            except OverflowError:  # an integer of hundreds of digits
                value = math.inf if value > 0 else -math.inf
            out[self.prefix + name if taken else name] = shown(value)
        return out


class _Diary:
    """The lines of metrics.jsonl, read as they come: which steps have a line of the program that counts."""

    def __init__(self, path):
        self.path, self._end = path, 0
        self.torn = False  # the file ends within a line
        self._steps = {"train": set(), "eval": set()}
        self.last_step = self.seconds = self._newest = 0

    def read(self):
        try:
            with open(self.path, "rb") as file:
                file.seek(self._end)
                text = file.read()
        except FileNotFoundError:
            return
        whole = text.rfind(b"\n") + 1
        self._end += whole
        self.torn = whole < len(text)
        for line in text[:whole].splitlines():
            with contextlib.suppress(Exception):  # torn, or anything else: each worker would meet it again
                self._take(json.loads(line))

    def _take(self, fields):
        step, generation = int(fields.get("step", 0)), int(fields.get("generation", self._newest))
        seconds, logged = float(fields.get("seconds", 0)), fields.get("logged")
        if math.isfinite(seconds):
            self.seconds = max(self.seconds, seconds)
        if generation < self._newest:
            return  # of a writer that has been replaced
        self._newest = generation
        if "begins" in fields:  # later steps are done again
            self._steps = {kind: {s for s in steps if s <= step} for kind, steps in self._steps.items()}
            self.last_step = step
        else:
            self.last_step = max(self.last_step, step)
            if isinstance(logged, str) and logged in self._steps:
                self._steps[logged].add(step)

    def has(self, kind, step):
        return step in self._steps[kind]


def _is_torn(file):
    """Whether a file, open for reading as well, ends within a line."""
    size = os.fstat(file.fileno()).st_size
    return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"


def _append(file, line, torn=False):
    """One line by one write, which ends the torn one before it. A file takes less than all where its disk is full."""
    text = (json.dumps({name: shown(value) for name, value in line.items()}, allow_nan=False) + "\n").encode()
    text = b"\n" + text if torn else text
    if file.write(text) != len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class RunLog:
    """Writes into a run directory. Errors of files are told, and end nothing."""

    def __init__(self, folder):
        self.folder = folder
        self.path = os.path.join(folder, "metrics.jsonl")
        self.diary = _Diary(self.path)
        self._kept = 0.0  # when keep() wrote

    @contextlib.contextmanager
    def _alone(self, file):
        """For one process at a time, as long as none of them is stopped in the middle."""
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    break
                time.sleep(0.001)
        yield  # closing the file ends the lock

    def line(self, step, fields, kind=None, **more):
        """Appends one line; with `kind` only if none of that kind and step counts. True: it is written."""
        try:
            with open(self.path, "ab", buffering=0) as file, self._alone(file):
                self.diary.read()
                if kind is not None and self.diary.has(kind, step):
                    return False
                line = {"step": step, **more, "time": round(time.time(), 6), "seconds": more.get("seconds", self.diary.seconds),
                        **fields}
                if kind is not None:
                    line["logged"] = kind
                _append(file, line, self.diary.torn)
                return True
        except Exception as error:
            complain(f"{self.path}: {error}; what the program logs is not written")
            return False

    def event(self, kind, **fields):
        try:
            with open(os.path.join(self.folder, "events.jsonl"), "a+b", buffering=0) as file:
                _append(file, {"time": round(time.time(), 6), "seconds": self.diary.seconds, "kind": kind, **fields},
                        _is_torn(file))
        except Exception as error:
            complain(f"{self.folder}/events.jsonl: {error}")

    def last_step(self):
        """That of the newest line that counts; 0 where nothing can be read."""
        try:
            self.diary.read()
        except Exception as error:
            complain(f"{self.path}: {error}; the step of what the program logs is not known")
        return self.diary.last_step

    def keep(self, name, values, at_once=True):
        """Writes a file of what holds for the whole run, over what it holds already; False: not now."""
        if not at_once and time.monotonic() - self._kept < _EVERY:
            return False
        self._kept = time.monotonic()
        path = os.path.join(self.folder, name)
        other = f"{path}.tmp{os.getpid()}"
        try:
            before = {}
            with contextlib.suppress(FileNotFoundError, ValueError, RecursionError), open(path) as file:
                before = json.load(file)
            before = before if isinstance(before, dict) else {}
            for key, value in plain(values).items():
                held = before.get(key)
                before[key] = {**(held if isinstance(held, dict) else {}), **value} if isinstance(value, dict) else value
            with open(other, "w") as file:
                json.dump(plain(before), file, indent=2, allow_nan=False)
                file.write("\n")
            os.replace(other, path)
            return True
        except Exception as error:
            complain(f"{path}: {error}; what the program keeps there is not written")
            with contextlib.suppress(OSError):
                os.unlink(other)
            return False


class InJob:
    """What a worker's program logs. `row` is that of the loss of virtual rank 0, or of an evaluation, under way."""

    def __init__(self, folder):
        self.run = RunLog(folder)
        self.figures = Figures()
        self.row, self.changed = None, None
        self.summary = {}
        self.trained = None  # the step of the last row
        self.unkept = False  # wandb.json lacks what was logged last

    def log(self, values):
        if self.row is None:
            return False
        self.row.update(self.figures.of(values))
        return True

    @contextlib.contextmanager
    def rows(self, kind, step, epoch):
        """What is logged within this is one line; step None: that of the last one."""
        self.row = {}
        try:
            yield
        finally:
            row, self.row = self.row, None
        if kind == "train":
            self.trained = step
        elif step is None:
            last = self.run.last_step()
            step = self.trained if self.trained is not None else last
        if row:
            self.run.line(step, self.figures.fields(row), kind, **({} if epoch is None else {"epoch": epoch}))
            self.summary.update(row)
        if self.changed is not None:
            changed = self.changed()
            self.unkept = self.unkept or bool(row) or changed
            self._keep(at_once=changed or kind == "eval")

    def _keep(self, at_once):
        if self.unkept and self.run.keep("wandb.json", self.kept(), at_once):
            self.unkept = False

    def finish(self):
        """At the end of the worker: wandb.json gets the last values, from the worker that has trained the last step."""
        if self.changed is None or self.trained is None:
            return
        self.unkept = self.changed() or self.unkept
        if self.unkept and self.trained >= self.run.last_step():
            self._keep(at_once=True)

    def kept(self):
        return {"summary": self.summary}


class Nowhere:
    """Of a program that is only asked for its job."""

    def log(self, values):
        return False


# Of a worker, or of a process that describes a job; None: the program runs by itself.
job = None


_NOTHING = contextlib.nullcontext()


def rows(kind, step=None, epoch=None):
    """`with rows(...)` around a loss, or all those of an evaluation: what is logged in it is one line."""
    return job.rows(kind, step, epoch) if isinstance(job, InJob) and job.changed is not None else _NOTHING


def new_folder(name, runs=None):
    """A run directory of a program that is no job, as those of `ductile train` are named."""
    runs = os.fspath(runs or os.environ.get("DUCTILE_RUNS") or "runs")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name or "run").lstrip(".-")[:80] or "run"
    stem += time.strftime("-%Y%m%d-%H%M%S")
    for n in range(1, 10000):
        folder = os.path.join(runs, stem if n == 1 else f"{stem}-{n}")
        os.makedirs(runs, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            os.makedirs(os.path.join(folder, "checkpoints"))
            # A report knows by the first words that there is no job (run/report.cc).
            with open(os.path.join(folder, "job.toml"), "w") as file:
                file.write(f"# No job: a program logged this run by itself.\nname = {json.dumps(name or 'run')}\n")
            return folder
    raise FileExistsError(stem)
