"""The user's program: finding the job's class, and telling whether its files are those of the run."""

import collections
import contextlib
import difflib
import importlib
import importlib.util
import os
import platform
import runpy
import sys
import traceback

from ductile import _files
from ductile._errors import Error, of_user, told
from ductile._job import Described, Job

_read = None  # the program that is imported, or run, in this process now
_KEPT, _PIECES = 3000, 100  # characters, and calls of write(), of what a program has said that ends itself
_METHODS = {"model": "a new torch.nn.Module", "train_data": "a Dataset or a DataLoader of the samples to train on",
            "test_data": "a Dataset or a DataLoader of the samples to evaluate on",
            "loss": "the mean loss of a batch, or the loss of each of its samples"}


def split(text):
    """("train.py", "Job") of "train.py:Job"; a program with a loop of its own has no class: None."""
    if text.endswith(".py"):
        return text, None
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise Error("invalid_argument", f"python.object = \"{text}\": give FILE.py:CLASS, MODULE:CLASS, or FILE.py for a "
                    "loop of its own")
    return where, name


def script_of(text):
    """The file of the program as an absolute path; None for a module."""
    where, _ = split(text)
    return os.path.abspath(where) if where.endswith(".py") else None


@contextlib.contextmanager
def _reading(text):
    """While a program is imported, or run, to find the job in it."""
    global _read
    before, _read = _read, text
    try:
        yield
    finally:
        _read = before


class _Heard:
    """A stream of this process; what is written to it is also kept, as far as an error can tell it. A logger that the program
    makes may hold it for ever."""

    def __init__(self, stream, kept):
        self._stream, self._kept = stream, kept

    def write(self, text):
        if self._kept is not None:
            self._kept.append(text[-_KEPT:])
        return self._stream.write(text)

    def __getattr__(self, name):
        return getattr(self._stream, name)


@contextlib.contextmanager
def _heard():
    """What the program says on both streams while it is read, in pieces."""
    kept, before = collections.deque(maxlen=_PIECES), (sys.stdout, sys.stderr)
    mine = sys.stdout, sys.stderr = tuple(_Heard(stream, kept) for stream in before)
    try:
        yield kept
    finally:
        for stream in mine:
            stream._kept = None
        if (sys.stdout, sys.stderr) == mine:
            sys.stdout, sys.stderr = before


def _ended(what, script, error, said):
    """The error of a program that ends itself where it is only read: argparse does so, after it has said why."""
    text = "".join(said)
    if isinstance(error.code, str):
        text += error.code
    text = text.strip()[-_KEPT:]
    if not text:
        return Error("invalid_argument", f"{what}:\n{told(error)[1]}")
    code = error.code if isinstance(error.code, int) else int(error.code is not None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    where = f" in line {lines[-1]}" if lines else ""
    if code == 0:  # of --help, say
        return Error("invalid_argument", f"{script} has ended{where}, before there was a job, and says:\n{text}")
    return Error("invalid_argument", f"{what}: it ends itself{where}, with exit code {code}, before there is a job. (Its own "
                 f"arguments follow `--`.) It says:\n{text}")


def refuse_while_read(call):
    """A program that starts a run while it is read would be read again by that run, and so on without end."""
    if _read is None:
        return
    where, name = split(_read)
    remedy = "write the call below `if __name__ == \"__main__\":`" if name else f"name the class of the job: {where}:CLASS"
    raise Error("invalid_argument", f"{where} calls {call} when it is {'imported' if name else 'run'}, as it is by every worker, "
                f"so a run would start another one; {remedy}")


def _absent(path):
    return Error("invalid_argument", f"{path}: there is no such file; it is named by python.object, and every host of the job "
                 "has to see it under this path")


def _imported(text):
    where, _ = split(text)
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = os.path.abspath(where)
    if not os.path.isfile(path):
        raise _absent(path)
    folder, stem = os.path.dirname(path), os.path.splitext(os.path.basename(path))[0]
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module  # pickle, dataclasses and data processes look there
    spec.loader.exec_module(module)
    return module


def _found(text, args):
    """(module, what it has under the name) of `FILE.py:NAME`, imported in this process, with sys.argv as the program knows it."""
    where, name = split(text)
    sys.argv = [script_of(text) or where, *args]
    try:
        with _reading(text), _heard() as said:
            module = _imported(text)
    except Error:
        raise
    except SystemExit as error:
        raise _ended(f"{where} cannot be imported", script_of(text), error, said) from None
    except BaseException as error:
        raise Error("invalid_argument", f"{where} cannot be imported:\n{told(error)[1]}") from None
    return module, getattr(module, name, None)


def named(text, args):
    """What the program has under the name; a class, a function or something else."""
    module, found = _found(text, args)
    if found is None:
        where, name = split(text)
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 1)
        raise Error("invalid_argument", f"{where} has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return found


def load(text, args):
    """The job that `FILE.py:CLASS` names, made in this process."""
    where, name = split(text)
    module, found = _found(text, args)
    if not (isinstance(found, type) and issubclass(found, Job)):
        jobs = [n for n, v in vars(module).items()
                if isinstance(v, type) and issubclass(v, Job) and v is not Job]
        there = f"; it has {', '.join(jobs)}" if jobs else ""
        what = "has no" if found is None else "has something else than a class of ductile.Job under the name"
        raise Error("invalid_argument", f"{where} {what} {name}{there}. Derive a class from ductile.Job")
    with of_user("invalid_argument", f"{text} cannot be made"):
        return found()


def _refuse_without_methods(job, text):
    """A method that is missing would be told by the workers, when they call it."""
    missing = [name for name in _METHODS if getattr(getattr(job, name), "__func__", None) is getattr(Job, name)]
    if missing:
        raise Error("invalid_argument", f"{text} has no {' and no '.join(name + '()' for name in missing)}. Write it into the "
                    "class: " + "; ".join(f"{name}() returns {_METHODS[name]}" for name in missing))


def run_loop(text, args):
    """Runs a program with a loop of its own, as `python train.py` would."""
    from ductile._loop import Mode

    path = script_of(text)
    if not os.path.isfile(path):
        raise _absent(path)
    sys.argv = [path, *args]
    sys.path.insert(0, os.path.dirname(path))
    try:
        with _reading(text), _heard() as said:
            runpy.run_path(path, run_name="__main__")
    except (Error, Described):
        raise
    except SystemExit as error:
        if Mode.code is None:  # the loop has not come to its end, which ends the program
            raise _ended(f"{text} does not come to ductile.job()", path, error, said) from None
    except BaseException as error:
        raise Error("invalid_argument", f"{text}:\n{told(error)[1]}") from None


def described(text, args):
    """The job of a program, which trains nothing: one with a loop of its own is run as far as ductile.job()."""
    if split(text)[1]:
        job = load(text, args)
        _refuse_without_methods(job, text)
        return job
    from ductile._loop import Mode

    before, Mode.now = Mode.now, "describe"
    try:
        run_loop(text, args)
    except Described as told_by_loop:
        return told_by_loop.job
    finally:
        Mode.now = before
    raise no_loop(text)


def no_loop(text):
    return Error("invalid_argument", f"{text} does not come to ductile.job(); call it, or name the class of a job: "
                 f"{text}:Job")


def sources(text):
    """The program's files, as python.source in job.toml has them: a digest of what is in them, and their names."""
    script = _file_of(text)
    with _readable():
        return _files.described(script, _files.of(script)) if script else ""


@contextlib.contextmanager
def _readable():
    """A file that cannot be read now is not one that has changed."""
    try:
        yield
    except OSError as error:
        raise Error("unavailable", f"{error.filename}: {error.strerror}; whether the program is that of the run is not known") \
            from None


def _file_of(text):
    """The file of the program; None if it has none that could be read."""
    return script_of(text) or getattr(sys.modules[split(text)[0]], "__file__", None)


def vectors(flags, environment):
    """What oneDNN and OpenBLAS choose their kernels by: with other vectors they sum in another order, in the convolutions
    of a user's model, say. `flags` are the processor's; variables may hold both to less."""
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        held = environment.get("ONEDNN_MAX_CPU_ISA", "").upper() in ("AVX2", "AVX2_VNNI") and \
            environment.get("OPENBLAS_CORETYPE", "").lower() in ("haswell", "zen")
        return "AVX2" if held else "AVX-512"
    return "AVX2" if {"avx2", "fma"} <= flags else platform.machine()


def _flags():
    with open("/proc/cpuinfo") as file:
        return set(next((line for line in file if line.startswith("flags")), "").split())


def versions():
    """What shapes the results besides the program: "Python 3.11.2, torch 1.13.1, numpy 1.24.2, AVX2"."""
    import numpy
    import torch

    return f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}, " + \
        vectors(_flags(), os.environ)


def check_same(text, python):
    """Refuses a program or libraries other than those that the run began with."""
    with _readable():
        same = not python["source"] or _files.are_those(_file_of(text), python["source"])
    if not same:
        raise Error("invalid_argument",
                    f"{text}: its files are not those that the run began with, so the result could be "
                    "another; put them back, or start a new run. To go on nevertheless, empty "
                    "python.source in the run's job.toml")
    here, began = versions(), python["versions"]
    if began and began not in (here, here.rpartition(", ")[0]):  # older runs do not name the vectors
        raise Error("invalid_argument",
                    f"this worker has {here}, and the run began with {began}, so the result could be another; install the "
                    "same, or start a new run (a run that begins with ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell in "
                    "the environment of all its workers needs AVX2 alone). To go on nevertheless, empty python.versions in the "
                    "run's job.toml")
