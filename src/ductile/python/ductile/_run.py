"""Starting jobs from Python, and what has come of them."""

import contextlib
import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading

from ductile._errors import Error, of_user
from ductile._job import Job

_EXIT_CODES = {2: "invalid_argument", 4: "not_found"}  # where the program says no more


class Run:
    """A run directory. `result` is the event "end" of the run: its figures."""

    def __init__(self, folder, result=None):
        self.folder = os.fspath(folder)
        self.result = result or {}

    @property
    def best(self):
        """The figures of the best evaluation: {"loss": ..., "accuracy": ..., ...}."""
        return self.result.get("best", {})

    @property
    def model_file(self):
        """The weights that were evaluated last, as safetensors under PyTorch's names."""
        return os.path.join(self.folder, "model.safetensors")

    def __repr__(self):
        return f"ductile.Run({self.folder!r})"


def _program():
    here = os.path.dirname(os.path.realpath(__file__))
    package = os.path.dirname(os.path.abspath(__file__))
    beside = [os.path.join(package, "..", "..", "bin", "ductile"),      # of a build tree
              os.path.join(package, "..", "bin", "ductile"),            # of `pip install --target`
              os.path.join(sysconfig.get_path("scripts"), "ductile")]
    for program in (os.environ.get("DUCTILE_PROGRAM"), *beside, shutil.which("ductile")):
        if program and os.access(program, os.X_OK):
            return program
    raise Error("not_found", f"the program ductile is neither on PATH nor beside {here}; build it, or set "
                "DUCTILE_PROGRAM")


def _object_of(job):
    kind = type(job)
    if not isinstance(job, Job):
        raise Error("invalid_argument", f"ductile.train() takes a job, an object of a class derived from ductile.Job, "
                    f"and got {kind.__name__}")
    if job._made_with_arguments:
        raise Error("invalid_argument", f"{kind.__name__} was made with arguments, which workers cannot know; read them "
                    "from sys.argv in its methods, or write them into the class")
    try:
        file = os.path.abspath(inspect.getfile(kind))
    except (TypeError, OSError):
        file = ""
    if not os.path.isfile(file) or "." in kind.__qualname__:
        raise Error("invalid_argument", f"{kind.__qualname__} is not a class of a file's own, and workers import it from "
                    "there; write it into a .py file")
    return f"{file}:{kind.__qualname__}"


def command_of(script):
    """Starts a run of a program that has a loop of its own."""
    return [_program(), "train", script, "--set", f"python.interpreter={sys.executable}", "--", *sys.argv[1:]]


def _finished(command):
    """(exit code, output, errors) of a program that trains. It saves a checkpoint at the first signal, and ends without one
    at the second: so it has a session of its own, where neither a terminal's Ctrl-C reaches it nor that of a notebook that
    tells all processes of its kernel, and gets each signal of this process once."""
    process, passed, kept = None, [], {}

    def pass_on(number, frame=None):
        passed.append(number)
        if process is not None:
            process.send_signal(number)

    if threading.current_thread() is threading.main_thread():  # no other one may set a handler
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                kept[number] = signal.signal(number, pass_on)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   start_new_session=True)
        for number in passed:  # meanwhile
            process.send_signal(number)
        while True:
            try:
                out, err = process.communicate()
                break
            except KeyboardInterrupt:
                pass_on(signal.SIGINT)
    except BaseException:
        if process is not None:
            process.kill()
            process.wait()
        raise
    finally:
        for number, before in kept.items():
            signal.signal(number, before)
    if passed and passed[0] != signal.SIGINT:
        os.kill(os.getpid(), passed[0])  # which ends this process, too
    if passed or process.returncode == 130:
        raise _interrupted(out)
    return process.returncode, out, err


def _interrupted(out):
    """Names the run, which nobody else has done: ductile.train() says nothing before it is done."""
    with contextlib.suppress(ValueError):
        told = json.loads(out)
        if told.get("resume"):
            return KeyboardInterrupt(f"saved; go on with `{told['resume']}`")
    return KeyboardInterrupt()


def train(job, workers=1, out=None, options=(), weights=None):
    """Trains a job in `workers` processes, as `ductile train FILE.py:CLASS` does, and returns its Run.

    out      the run directory; None: one is made in runs/
    options  like those of --set: ["train.epochs=3"]
    weights  a file of weights to begin with, of torch.save() or safetensors

    Raises Error if the job fails, and KeyboardInterrupt if it is interrupted, after a checkpoint was saved: it says how the
    run goes on, `ductile train --resume RUN`. A second Ctrl-C does not wait for the checkpoint."""
    from ductile._program import refuse_while_read

    refuse_while_read("ductile.train()")
    command = [_program(), "train", _object_of(job), "--json", "--workers", str(workers),
               "--set", f"python.interpreter={sys.executable}"]
    for option in options:
        command += ["--set", option]
    if weights is not None:
        command += ["--weights", os.fspath(weights)]
    if out is not None:
        command += ["--out", os.fspath(out)]
    command += ["--", *sys.argv[1:]]
    code, out, err = _finished(command)
    told = json.loads(out) if out else {}
    if code != 0:
        raise Error(told.get("code") or _EXIT_CODES.get(code, "internal"), told.get("error") or err.strip())
    return Run(told["run"], told["result"])


def load(run, weights=None):
    """The model of a Python job's run, an object of the user's own class, with the weights of
    RUN/model.safetensors, or of the safetensors file `weights`, in evaluation mode. Imports the user's program; one with a loop of its own is run
    as far as ductile.job(), in this process."""
    import torch

    from ductile import _core, _program as program, _weights

    folder = run.folder if isinstance(run, Run) else os.fspath(run)
    python = json.loads(_core.job(folder))["python"]
    if not python["object"]:
        raise Error("invalid_argument", f"{folder}: its model is not Python's; `ductile ckpt export` gives its weights")
    argv = sys.argv
    try:
        job = program.described(python["object"], python["args"])
        with of_user("invalid_argument", f"{python['object']}, model()"):
            model = job.model()
    finally:
        sys.argv = argv
    path = os.path.join(folder, "model.safetensors") if weights is None else os.fspath(weights)
    saved = _core.tensors(path)
    verdict = "it is not the program that was trained" if weights is None else "they are weights of another model"
    missing, others = _weights.put(model, saved, path, verdict)
    for name in others:
        if weights is None or saved[name].is_floating_point():
            raise Error("invalid_argument", f"{path}: holds {name}, {saved[name].dtype} {list(saved[name].shape)}, and the "
                        f"model of {python['object']} has nothing of that name; {verdict}")
    for name, place, _ in missing:
        if isinstance(place, torch.nn.Parameter):
            raise Error("invalid_argument", f"{path}: holds no {name}, which the model of {python['object']} has; {verdict}")
    return model.eval()
