"""The worker of a Python job: `python -m ductile.worker`, with the arguments of ductile-worker.

It imports the user's program, starts its data processes while this process has one thread, and hands
the rest to the C++ worker, which calls back for the loss of a virtual rank."""

import json
import os
import signal
import sys

from ductile import _logs, _program
from ductile._errors import Error, of_user, told

_CONFIGURATION, _FAILED = 2, 3
_LINE = 4096  # what a pipe takes at once


def _value(arguments, name, default=None):
    return arguments[arguments.index(name) + 1] if name in arguments else default


def _tell(fd, line):
    rest = (json.dumps(line) + "\n").encode()
    while fd >= 0 and rest:
        rest = rest[os.write(fd, rest):]


def _fail(fd, error):
    code, text = told(error, "internal")
    print(f"ductile.worker: {text}", file=sys.stderr, flush=True)
    cut = text
    while len(json.dumps({"error": cut, "code": code})) >= _LINE:  # the end of a traceback says most
        cut = "..." + cut[len(cut) // 8 + 4:]
    _tell(fd, {"error": cut, "code": code})
    return _CONFIGURATION if code == "invalid_argument" else _FAILED


def _another_python():
    """The option that names another Python than this one: the system's, where this is not it."""
    system = "/usr/bin/python3"
    here = sys.prefix == sys.base_prefix and os.path.realpath(sys.executable) == os.path.realpath(system)
    return f"--set python.interpreter={'PATH' if here else system}"


def _need_torch():
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Error("invalid_argument", f"{sys.executable} cannot import torch ({error}); install it there, or name the "
                    f"Python that has it: {_another_python()}") from None
    try:
        from ductile import _core  # noqa: F401
    except ImportError as error:
        raise Error("invalid_argument", f"{sys.executable} cannot load Ductile's extension ({error}); it is built for "
                    "one Python and one torch: build it for this one (in the source tree: scripts/setup --tests && scripts/build "
                    "release ductile ductile-worker _core), or name the Python for "
                    f"which it is built: {_another_python()}") from None


def describe(text, args):
    """What `ductile train` has to know of a job before there is a run: its options, and what a worker
    will compare."""
    _need_torch()
    from ductile._optimizer import has_rule

    _logs.job = _logs.Nowhere()

    job = _program.described(text, args)
    options = job.options
    if not isinstance(options, dict):
        raise Error("invalid_argument", f"{text}: options is {type(options).__name__}; a dictionary is needed")
    try:
        options = json.loads(json.dumps(options))
    except (TypeError, ValueError) as error:
        raise Error("invalid_argument", f"{text}: options: {error}; numbers, texts, true and false, lists and "
                    "dictionaries of them are options") from None
    if not isinstance(options.setdefault("train", {}), dict):
        raise Error("invalid_argument", f"{text}: options[\"train\"] is {options['train']!r}; a dictionary is needed, such as "
                    "{\"train\": {\"epochs\": 10}}")
    if "batch_size" not in options["train"]:
        with of_user("invalid_argument", f"{text}, train_data()"):
            data = job.train_data()
        if getattr(data, "batch_size", None):
            options["train"]["batch_size"] = data.batch_size
    return {"options": options, "source": _program.sources(text), "versions": _program.versions(),
            "optimizer": has_rule(job)}


def capture(fd, text, args, options):
    """What `ductile capture` asks for: the operators of a job's model."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a script's shell has told its children to ignore it
    _need_torch()
    from ductile import _capture

    _logs.job = _logs.Nowhere()
    return _capture.for_command(text, args, {**options, "progress": lambda share: _tell(fd, {"row": {"share": share}})})


def work(arguments):
    run = _value(arguments, "--run")
    if run is None:
        raise Error("invalid_argument", "ductile.worker: --run DIR is missing")
    _need_torch()
    from ductile import _core
    from ductile._seeds import seed_all

    _core.prepare(run)  # this thread computes as the others do
    options = json.loads(_core.job(run))
    text, class_name = options["python"]["object"], _program.split(options["python"]["object"])[1]
    words = ["ductile-worker", *arguments]
    _logs.job = logs = _logs.InJob(run)
    seed_all(options["seed"])  # what the program draws at its import, in a module that it makes itself, or in __init__
    if class_name is None:
        code = _work_by_loop(words, options, text)
    else:
        job = _program.load(text, options["python"]["args"])
        code = _engine(words, _task(job, options, f"{os.path.basename(_program.split(text)[0])}:{class_name}"))
    logs.finish()
    return code


def _refuse_forks():
    """A fork of a process with threads has one of them: what the others held stays locked, and OpenMP waits for ever."""

    def fork():
        raise RuntimeError("a worker has threads, so it cannot be forked any more. Let the DataLoader of train_data() have "
                           "processes (num_workers), start what you need when the program is imported, or use "
                           "multiprocessing.get_context(\"spawn\")")

    os.fork = os.forkpty = fork


def _engine(words, task):
    from ductile import _core

    _refuse_forks()
    return _core.work(words, task)


def _task(job, options, name):
    from ductile._task import Task

    _program.check_same(options["python"]["object"], options["python"])
    return Task(job, options, name)


def _work_by_loop(words, options, text):
    from ductile._loop import Mode

    task = []
    Mode.now = "work"
    Mode.prepare = lambda loop: task.append(_task(loop, options, os.path.basename(text)))
    Mode.work = lambda: _engine(words, task[0])
    _program.run_loop(text, options["python"]["args"])
    if Mode.code is None:
        raise _program.no_loop(text)
    return Mode.code


def main(arguments):
    if "--zygote" in arguments:
        from ductile._zygote import become_worker

        arguments = become_worker()
    fd = int(_value(arguments, "--progress-fd", "-1"))
    try:
        file = _value(arguments, "--read-weights")
        if file is not None:
            _need_torch()
            from ductile import _weights

            _weights.convert(file, _value(arguments, "--to"), _value(arguments, "--key", ""))
            _tell(fd, {"done": {}})
            return 0
        args = json.loads(_value(arguments, "--args", "[]"))
        text = _value(arguments, "--capture")
        if text is not None:
            _tell(fd, {"done": capture(fd, text, args, json.loads(_value(arguments, "--options")))})
            return 0
        text = _value(arguments, "--describe-job")
        if text is None:
            return work(arguments)
        _tell(fd, {"done": describe(text, args)})
        return 0
    except BaseException as error:
        return _fail(fd, error)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of the user's program shall not hold the worker up
