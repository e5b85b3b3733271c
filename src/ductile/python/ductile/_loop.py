"""The user's own loop: `for step in job: step.backward(loss)`.

The engine, which is the C++ worker, runs in a thread of its own and asks for the loss of a virtual rank;
the main thread answers it from the body of the user's loop."""

import ast
import copy
import linecache
import os
import sys
import threading

import torch
from torch.nn.parameter import UninitializedBuffer, is_lazy

from ductile._errors import Error, told
from ductile._job import Described, Job

_ONE_LOOP = ("a second loop over the job: one `for step in job` goes through all epochs and evaluations, so write it once, with no loop "
             "over epochs around it; train.epochs says how many")


class Mode:
    """What ductile.job() does in this process: "start" a run, "describe" the job, or "work"."""

    now = "start"
    prepare = None  # of a worker: reads the job's data, and starts its data processes
    work = None  # of a worker: runs the engine, and returns its exit code
    code = None  # of the engine, once it has ended


class Step:
    """One virtual rank of a step of training, or a part of the test samples.

    batch     what the collate_fn made of its samples
    training  False in evaluation: the model is in evaluation mode, and nothing is differentiated
    """

    def __init__(self, batch, training, graded):
        self.batch, self.training = batch, training
        self._graded = graded  # gradients are recorded
        self.loss, self.metrics = None, {}

    def backward(self, loss, **metrics):
        """Hands over the mean loss over the batch, or the loss of each sample, and a value for each of the job's
        metrics. Call it once for each step. The weights change when all virtual ranks have done so."""
        if self.loss is not None:
            raise Error("conflict", "step.backward() was called twice in one step")
        self.loss, self.metrics = loss, metrics


class _Module:
    """A module that the program has made itself. A worker that begins again needs it as it was: the same object, with the
    values of then, and with lazy parameters that have no sizes yet."""

    def __init__(self, module):
        self.module, self.begun = module, False
        self.values, self.kind, self.parts = None, type(module), None
        tensors = [*module.named_parameters(), *module.named_buffers()]
        if any(is_lazy(tensor) for _, tensor in tensors):
            self.parts = self._copied(vars(module), tensors)
        else:
            self.values = {name: tensor.detach().clone() for name, tensor in tensors}

    def _copied(self, parts, tensors):
        """What the module consists of. In the copy it stands for itself, since hooks of lazy modules are bound to it."""
        memo = {id(self.module): self.module}
        for _, tensor in tensors:
            if is_lazy(tensor) and not isinstance(tensor, torch.nn.Parameter):  # torch copies no lazy buffer
                memo[id(tensor)] = UninitializedBuffer(tensor.requires_grad, tensor.device, tensor.dtype)
        return copy.deepcopy(parts, memo)

    def made(self):
        if self.parts is not None and self.begun:
            vars(self.module).clear()
            self.module.__class__ = self.kind
            vars(self.module).update(self.parts)
            self.parts = self._copied(self.parts, [*self.module.named_parameters(), *self.module.named_buffers()])
        elif self.values is not None:
            with torch.no_grad():
                for name, tensor in [*self.module.named_parameters(), *self.module.named_buffers()]:
                    tensor.data = self.values[name].clone()
        self.begun = True
        return self.module


class Loop(Job):
    """A job as its program's own loop has it; made by ductile.job()."""

    def __init__(self, options, model, train, test, metrics, state, optimizer):
        self.options, self.metrics = options, tuple(metrics)
        self._state = state
        if optimizer is not None:
            self.optimizer = optimizer
        self._train, self._test = train, test
        self._model = _Module(model).made if isinstance(model, torch.nn.Module) else model
        self._turns = None  # of the engine, which asks, and the body, which answers
        self._step, self._error, self._over = None, None, False
        self._thread, self._entered, self._given = None, False, False
        self.net = None  # the module, while the loop runs

    # ---- What the engine calls, in its thread.

    def model(self):
        self.net = self._model()
        return self.net

    def train_data(self):
        return self._train

    def test_data(self):
        return self._test

    def state(self, model):
        return self._state

    def loss(self, model, batch):
        if self._error is not None:
            raise self._error
        self._step = Step(batch, model.training, torch.is_grad_enabled())
        self._turns.ask_and_wait()
        step, self._step = self._step, None
        if self._error is not None:
            raise self._error
        if step.loss is None:
            raise Error("conflict", "the body of the loop ended without step.backward(loss)")
        return step.loss, step.metrics

    def _engine(self):
        try:
            Mode.code = Mode.work()
        finally:
            self._over = True
            self._turns.ask()

    # ---- What the user's program calls, in the main thread.

    def __enter__(self):
        self._entered = True
        return self

    def __exit__(self, kind, error, trace):
        if self._thread is not None and not self._over:
            if kind is None:
                self._error = Error("conflict", "the loop was left before the job was done; train.max_steps and "
                                    "train.epochs say how long it is")
            else:
                self._error = Error("conflict", f"the body of the loop:\n{told(error)[1]}")
            self._turns.answer()
        elif kind is not None:
            return False
        if self._thread is None:
            raise Error("invalid_argument", "the block of `with ductile.job(...) as job:` has no loop `for step in job:`, which trains")
        self._thread.join()
        raise SystemExit(Mode.code)

    def __iter__(self):
        if not self._entered:
            raise Error("invalid_argument", "write `with ductile.job(...) as job:` around the loop")
        if self._thread is not None:
            raise Error("conflict", _ONE_LOOP)
        from ductile import _core

        Mode.prepare(self)
        self._turns = _core.Turns()
        self._thread = threading.Thread(target=self._engine, name="ductile")
        self._thread.start()
        return iter(self._next, None)

    def _next(self):
        if self._given:  # the body has answered; the engine may have asked already before it has its first step
            self._turns.answer_and_wait()
        else:
            self._turns.wait_for_question()
        self._given = True
        if self._over:
            torch.set_grad_enabled(True)
            raise StopIteration
        step = self._step
        if step._graded != torch.is_grad_enabled():  # of this thread; setting it costs a microsecond
            torch.set_grad_enabled(step._graded)
        return step


def _is_loop_over(node, name):
    """`for ... in NAME:`, or with a counter or a bar around it."""
    if not isinstance(node, ast.For):
        return False
    over = node.iter
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id in ("enumerate", "tqdm") and over.args:
        over = over.args[0]
    return isinstance(over, ast.Name) and over.id == name


def _nested(nodes, name, inside=False):
    """The lines of loops over NAME that lie in another loop."""
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if _is_loop_over(node, name):
            yield from [node.lineno] if inside else []
        else:
            yield from _nested(ast.iter_child_nodes(node), name, inside or isinstance(node, (ast.For, ast.While)))


def _second_loop(file, line):
    """The line of a loop that would be run a second time, below the `with ductile.job(...) as NAME:` in this line; None if there
    is none, or the text does not show it. A run is over when its loop is: nobody would see the error of what comes then."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for item in node.items if isinstance(node, ast.With) else []:
            if isinstance(item.optional_vars, ast.Name) and item.context_expr.lineno <= line <= item.context_expr.end_lineno:
                name = item.optional_vars.id
                after = [statement.lineno for statement in node.body if _is_loop_over(statement, name)][1:]
                return min([*after, *_nested(node.body, name)], default=None)
    return None


def job(options=None, *, model, train, test, metrics=(), state=None, optimizer=None):
    """A job whose loss is the body of a loop:

        with ductile.job({"train": {"epochs": 3}}, model=Net, train=loader, test=test_loader) as job:
            for step in job:
                x, y = step.batch
                step.backward(F.cross_entropy(job.net(x), y))

    model    a function that makes the torch.nn.Module, such as its class, or a module
    train    a Dataset or a DataLoader, as in Job.train_data(); test: the same
    metrics  as in Job
    state    a dictionary of what the body keeps outside of the model, as Job.state() gives
    optimizer  a function that makes the optimiser of the model, as Job.optimizer() does

    `python train.py` starts a run of one worker, and `ductile train train.py --workers 4` one of four.
    The body may be run again for a step that was given up; what it keeps outside of the model and `state`
    is lost when a worker is. The program ends with the loop, and what follows the `with` block is never run: what has come of
    the job is in its run directory."""
    loop = Loop(dict(options or {}), model, train, test, metrics, state or {}, optimizer)
    if Mode.now == "describe":
        caller = sys._getframe(1)
        again = _second_loop(caller.f_code.co_filename, caller.f_lineno)
        if again is not None:
            raise Error("invalid_argument", f"{os.path.basename(caller.f_code.co_filename)}, line {again}: {_ONE_LOOP}")
        raise Described(loop)
    if Mode.now == "start":
        from ductile._program import refuse_while_read
        from ductile._run import command_of

        refuse_while_read("ductile.job()")
        # Of a notebook, sys.argv[0] is the kernel's: it must not be replaced by a run.
        script = os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or "")
        if hasattr(sys, "ps1") or not os.path.isfile(script):
            raise Error("invalid_argument", "ductile.job() is called in no script; write the loop into a .py file, which "
                        "the workers run, and start it with `ductile train FILE.py`")
        command = command_of(script)
        os.execv(command[0], command)
    return loop
