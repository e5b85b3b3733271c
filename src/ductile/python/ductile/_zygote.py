"""A process that has imported what every worker needs, and becomes each of them by a fork.

The launcher of the workers (process/zygote.h) starts it as it would start a worker, with a socket as its input, and
sends the arguments of each worker, the pipe of its progress, a socket through which the worker asks whether it is still
wanted, and its log. The user's program is not imported here: what it does at its import may differ from
worker to worker, and whether its files are still those of the run is for the worker to see."""

import ctypes
import gc
import os
import signal
import socket
import sys

_CONTROL, _LONGEST = 3, 1 << 16
_PR_SET_PDEATHSIG = 1


def become_worker():
    """Returns in a worker, with its arguments. The zygote itself ends here, with its launcher."""
    link = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    try:
        _import_all()
    except Exception:
        os._exit(1)  # a worker will say it
    from ductile import _core

    with open("/proc/self/cmdline", "rb") as file:
        words = file.read()
    program = words.split(b"\0")  # PYTHON -m ductile.worker, and what says which interpreter that is
    program = program[:min(program.index(word) for word in (b"--run", b"--interpreter") if word in program)]
    _core.set_title("ductile zygote")
    if len(os.listdir("/proc/self/task")) > 1:  # of a sitecustomize, say: a fork would lose the others
        print("ductile: workers of this Python are started one by one, since it has threads from the beginning",
              file=sys.stderr, flush=True)
        os._exit(0)
    gc.collect()
    gc.freeze()  # a collection in a worker writes to none of the pages that all share
    try:
        link.send(b"r")  # ready
    except OSError:
        os._exit(0)
    while True:
        message, fds, _, _ = socket.recv_fds(link, _LONGEST, _CONTROL, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        fits = len(message) + sum(map(len, program)) < len(words) - 64
        if fits and _core.fork_as_sibling() == 0:
            link.close()
            return _begun(program, message, fds)
        for fd in fds:  # if there is no worker, the launcher sees it by this
            os.close(fd)


def _import_all():
    """What a worker imports before it comes to the user's program."""
    import numpy  # noqa: F401
    import torch  # noqa: F401

    from ductile import _core, _loop, _optimizer, _run, _task  # noqa: F401


def _begun(program, message, fds):
    import numpy

    from ductile import _core

    progress, launcher, log = fds
    os.setpgid(0, 0)
    cpus, count, *words = message.split(b"\0")
    variables, arguments = words[:int(count)], words[int(count):]
    if cpus:
        os.sched_setaffinity(0, map(int, cpus.split(b",")))
    for variable in variables:  # a name alone: there is none
        name, given, value = variable.partition(b"=")
        if given:
            os.environb[name] = value
        else:
            os.environb.pop(name, None)
    for output in (1, 2):
        os.dup2(log, output)
    os.close(log)
    arguments += [b"--progress-fd", str(progress).encode()]
    _core.set_title(b"\0".join([*program, *arguments]))
    if b"--run" not in arguments:  # it is asked something, and nobody else wants the answer
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    numpy.random.seed()  # until the worker seeds all generators for the program; random does so by itself
    try:
        os.write(launcher, str(os.getpid()).encode())
        wanted = os.read(launcher, 1)
    except OSError:
        wanted = b""
    if not wanted:
        os._exit(0)
    os.close(launcher)
    return [os.fsdecode(word) for word in arguments]
