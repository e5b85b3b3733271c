"""A module's forward pass as a list of calls, recorded while it runs on real tensors.

Every function of torch that is called, and every module that is not looked into, becomes a Node. Values are real, so
whatever Python decides by shapes, types and options is decided as in training. What it decides by the values of tensors
is refused, with the line; so is what escapes the recording. _calls.py lays recordings of several batch sizes side by side."""

import copy
import dataclasses
import inspect
import linecache
import os
import random
import sys
import threading

import numpy
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ductile._errors import Error

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

INPUT = -1  # in place of a node's number: an input of the model

# These make plain numbers of values, which a graph of operators cannot hold.
_READS_VALUES = {"item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__long__",
                 "is_nonzero", "equal", "allclose", "__contains__"}
# These change tensors, or what is differentiated, where no recording sees it.
_HIDDEN = {"__set__", "backward", "register_hook", "set_", "resize_", "share_memory_", "detach_", "requires_grad_", "retain_grad"}

_ARITHMETIC = {"add", "sub", "mul", "matmul", "truediv", "div", "floordiv", "mod", "pow", "and", "or", "xor"}

# Modules of torch that are made of others; those are looked into.
_CONTAINERS = (nn.Sequential, nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer,
               nn.TransformerDecoderLayer)


class Untraceable(BaseException):
    """Not an Exception, which the user's code may catch."""

    def __init__(self, where, what, remedy):
        self.where, self.what, self.remedy = where, what, remedy

    def as_error(self):
        return Error("invalid_argument", f"{line_of(self.where)}: {self.what}. {self.remedy}")


def remedy(scope):
    if scope:
        return f"Keep the module {scope} whole: --leaf {scope} (in Python, leaf=[\"{scope}\"])"
    return "It stands in the model's own forward(): move it into a module of its own, and name that with --leaf (in Python, leaf=[...])"


def line_of(where):
    """train.py:12: `if x.sum() > 0:`"""
    if where is None:
        return "a place that is no line of Python"
    file, number = where
    text = linecache.getline(file, number).strip()
    return f"{file}:{number}" + (f": `{text}`" if text else "")


def user_line():
    """(file, line) of the innermost frame that is neither torch's nor Ductile's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", _TORCH, _HERE)) and not name.endswith((os.sep + "contextlib.py", os.sep + "functools.py")):
            return name, frame.f_lineno
        frame = frame.f_back
    return None


@dataclasses.dataclass(frozen=True)
class Ref:
    """Tensor number `output` of node `node`; a node INPUT stands for the model's inputs."""

    node: int
    output: int


@dataclasses.dataclass(frozen=True)
class Held:
    """A parameter or buffer of the model, by its first name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Constant:
    """A tensor that is always the same: number `index` of the recording's constants."""

    index: int


def mapped(change, tree):
    """The tree with its leaves changed. Containers are tuples (also named ones), lists, dictionaries and slices."""
    if isinstance(tree, tuple):
        parts = [mapped(change, item) for item in tree]
        if type(tree) in (tuple, torch.Size):
            return tuple(parts)
        return tuple.__new__(type(tree), parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, list):
        return [mapped(change, item) for item in tree]
    if isinstance(tree, dict):
        made = copy.copy(tree)
        for key, item in tree.items():
            made[key] = mapped(change, item)
        return made
    if isinstance(tree, slice):
        return slice(mapped(change, tree.start), mapped(change, tree.stop), mapped(change, tree.step))
    return change(tree)


def items(tree):
    """What mapped() would change, in order."""
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in items(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in items(item)]
    if isinstance(tree, slice):
        return [leaf for item in (tree.start, tree.stop, tree.step) for leaf in items(item)]
    return [tree]


def tensors(tree):
    """The tensors of a result, in order; fields of a dataclass, too."""
    found = []
    for leaf in items(tree):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif hasattr(type(leaf), "__dataclass_fields__"):
            found += tensors([getattr(leaf, name) for name in type(leaf).__dataclass_fields__])
    return found


def named_tensors(tree, name):
    """(name, tensor) of each tensor in a tree: ("batch['mask']", ...)."""
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, (tuple, list)):
        for i, part in enumerate(tree):
            yield from named_tensors(part, f"{name}[{i}]")
    elif isinstance(tree, dict):
        for key, part in tree.items():
            yield from named_tensors(part, f"{name}[{key!r}]")


def distinct(found):
    """The tensors of a list, each once."""
    return list({id(tensor): tensor for tensor in found}.values())


def place(tensor):
    """The address of a tensor's memory; 0 where it has none of its own kind."""
    try:
        return tensor.storage().data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError):
        return 0


class Fact:
    """What is known of a tensor that was made."""

    __slots__ = ("shape", "bytes", "place", "differentiable")

    def __init__(self, tensor):
        self.shape, self.place, self.differentiable = tuple(tensor.shape), place(tensor), tensor.requires_grad
        self.bytes = tensor.numel() * tensor.element_size()


class Node:
    """One call. `target` is a function, or the path of a module. The first `returned` of its outputs are the tensors of its
    result, the others tensors that it changed in place, or that share their memory: `changed` has what these were before."""

    def __init__(self, index, target, is_module, args, kwargs, scope, where):
        self.index, self.target, self.is_module = index, target, is_module
        self.args, self.kwargs, self.scope, self.where = args, kwargs, scope, where
        self.outputs, self.returned, self.changed = [], 0, []
        self.mutates, self.writes = [], set()  # arguments that it changes in place; buffers that it changes
        self.fixed = False  # made of constants alone
        self.grad, self.autocast = torch.is_grad_enabled(), None
        if torch.is_autocast_cpu_enabled():
            self.autocast = torch.get_autocast_cpu_dtype()
        self.random, self.generator = False, None

    @property
    def name(self):
        """Of the function: "add" for add, add_, __iadd__, __radd__."""
        name = name_of(self.target).strip("_")
        return name[1:] if name[:1] in "ir" and name[1:] in _ARITHMETIC else name

    def reads(self):
        """Tensors of other nodes and of the model's inputs, each once, in order."""
        found = {}
        for leaf in [*items(self.args), *items(self.kwargs), *self.changed]:
            if isinstance(leaf, Ref):
                found[leaf] = None
        return list(found)

    def held(self):
        return {leaf.name for leaf in [*items(self.args), *items(self.kwargs)] if isinstance(leaf, Held)}


def name_of(function):
    name = getattr(function, "__name__", type(function).__name__)
    if name in ("__get__", "__set__"):
        return getattr(function.__self__, "__name__", name)
    return name


class Recorder(TorchFunctionMode):
    """`with recorder.watching(): ...` records the one call of the root module in it."""

    def __init__(self, root, leaf=()):
        super().__init__()
        self.root, self.leaf = root, set(leaf)
        self.paths = {module: path for path, module in root.named_modules()}
        self.held = {id(t): name for name, t in [*root.named_parameters(), *root.named_buffers()]}
        self._weights = {name for name, _ in root.named_parameters()}
        self._held_places = {place(t): name for name, t in [*root.named_parameters(), *root.named_buffers()] if place(t)}
        self.nodes, self.constants, self.results, self.inputs = [], [], None, None
        self.after = None  # torch's generator when the model's forward() ended
        self.scopes = [""]
        self._known = {}     # id -> (tensor, what it is), which keeps the tensors alive, so that no id is used again
        self._by_place = {}  # memory -> ids of known tensors
        self._state = "idle"
        self._drawn, self._strayed = None, False  # Python's and numpy's generators, as calls have left them; who else drew

    # ---- Where calls come from.

    def watching(self):
        return _Watched(self)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._state != "recording":
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _READS_VALUES and any(not self._is_constant(t) for t in tensors([args, kwargs])):
            what = "the way that Python takes depends on the values of a tensor" if name == "__bool__" else \
                f"a tensor's values become plain numbers ({name.strip('_')}), which an operator cannot hand on"
            raise Untraceable(user_line(), what, self._remedy())
        if name in _HIDDEN:
            raise Untraceable(user_line(), f"{name_of(func)}{' = ...' if name == '__set__' else '()'} acts outside of the graph of "
                              "operators", self._remedy())
        return self._call(func, args, kwargs, lambda: func(*args, **kwargs), False)

    def module_call(self, module, args, kwargs, original):
        if self._state == "inside":
            return original(module, *args, **kwargs)
        path = self.paths.get(module)
        if self._state == "idle":
            if module is self.root:
                return self._root_call(args, kwargs, original)
            if path is not None:
                raise Untraceable(user_line(), f"loss() calls the part {path} of the model by itself, so no call of the model shows its "
                                  "operators", "Let the model's forward() call it, and loss() the model")
            return original(module, *args, **kwargs)
        if path is None or module is self.root:
            return original(module, *args, **kwargs)
        if self._is_leaf(module, path):
            self.__exit__(None, None, None)  # what it asks of torch is as in training
            try:
                return self._call(path, args, kwargs, lambda: original(module, *args, **kwargs), True)
            finally:
                self.__enter__()
        self.scopes.append(path)
        result = original(module, *args, **kwargs)
        self.scopes.pop()  # not where it raises: remedy() names the innermost
        return result

    def getitem(self, tensor, index, original):
        if self._state != "recording":
            return original(tensor, index)
        self.__exit__(None, None, None)
        try:
            return self._call(original, (tensor, index), {}, lambda: original(tensor, index), False)
        finally:
            self.__enter__()

    def _is_leaf(self, module, path):
        if path in self.leaf or type(module).__name__ in self.leaf or isinstance(module, torch.jit.ScriptModule):
            return True
        return type(module).__module__.startswith(("torch.nn.", "torch.ao.nn.")) and type(module) not in _CONTAINERS

    def _root_call(self, args, kwargs, original):
        if self.results is not None:
            raise Untraceable(user_line(), "the model is called a second time", "Let one forward() do all of it")
        self.inputs = distinct(tensors([args, kwargs]))
        for i, tensor in enumerate(self.inputs):
            self._know(tensor, Ref(INPUT, i))
        words = list(inspect.signature(self.root.forward).parameters) + [f"argument {i + 1}" for i in range(len(args))]
        given = {**dict(zip(words, args)), **kwargs}
        names = {id(t): name for word, tree in given.items() for name, t in named_tensors(tree, word)}
        self.input_names = [names.get(id(tensor), f"tensor {i}") for i, tensor in enumerate(self.inputs)]
        self._state, self._drawn = "recording", _other_generators()
        try:
            with self:
                result = original(self.root, *args, **kwargs)
        finally:
            self._state = "idle"
        if self._strayed or _other_generators() != self._drawn:
            code = type(self.root).forward.__code__
            raise Untraceable((code.co_filename, code.co_firstlineno), "forward(), or a module that it calls, draws from Python's random or "
                              "numpy.random, so its way is another one in each step", "Draw by functions of torch, or keep the module "
                              "that draws whole with --leaf (in Python, leaf=[...])")
        self.results = [self._value(tensor) for tensor in tensors(result)]
        is_plain = isinstance(result, (torch.Tensor, tuple, list, dict))
        self.output = mapped(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, result) if is_plain else result
        self.after = torch.get_rng_state()
        return result

    def forget(self):
        """Lets go of the tensors between calls; addresses in what was recorded stay those of different tensors."""
        self._known, self._by_place = {}, {}

    def _remedy(self):
        return remedy(self.scopes[-1])

    # ---- Tensors.

    def _know(self, tensor, value):
        self._known[id(tensor)] = (tensor, value)
        at = place(tensor)
        if at:
            self._by_place.setdefault(at, {})[id(tensor)] = None

    def _value(self, tensor):
        """What a tensor is to the graph."""
        value = self._known[id(tensor)][1] if id(tensor) in self._known else None
        is_seen = not isinstance(value, Ref) or value.node == INPUT or \
            self.nodes[value.node].outputs[value.output].differentiable or not tensor.requires_grad
        if value is not None and is_seen:
            return value
        if id(tensor) in self.held:
            return Held(self.held[id(tensor)])
        if tensor.requires_grad:
            kind = "a parameter that is registered in no module" if tensor.is_leaf else \
                "made by what the recording does not see (an autograd.Function, torch.autograd.grad, a scripted function)"
            raise Untraceable(user_line(), f"a tensor {list(tensor.shape)} is {kind}", self._remedy())
        self.constants.append((tensor, user_line()))
        self._know(tensor, Constant(len(self.constants) - 1))
        return self._known[id(tensor)][1]

    def _is_constant(self, tensor):
        """Whether its values are the same in every step."""
        found = self._known.get(id(tensor))
        if found is None:
            return id(tensor) not in self.held
        value = found[1]
        if isinstance(value, Constant):
            return True
        return isinstance(value, Ref) and value.node != INPUT and self.nodes[value.node].fixed

    def _argument(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return self._value(leaf)
        if tensors(leaf):
            raise Untraceable(user_line(), f"a {type(leaf).__name__} with tensors in it is handed to a call; tensors, and tuples, lists and "
                              "dictionaries of them can be", self._remedy())
        return leaf

    # ---- Calls.

    def _call(self, target, args, kwargs, run, is_module):
        given = tensors([args, kwargs])
        node = Node(len(self.nodes), target, is_module, None, None, self.scopes[-1], user_line())
        if is_module:
            self._strayed |= _other_generators() != self._drawn
        versions = [t._version for t in given]
        before = torch.get_rng_state()
        self._state = "inside"
        try:
            result = run()
        finally:
            self._state = "recording"
        if is_module:
            self._drawn = _other_generators()
        made = tensors(result)
        mutated = [t for t, version in zip(given, versions) if t._version != version]
        if not made and not mutated:
            return result
        node.random = not torch.equal(before, torch.get_rng_state())
        if not mutated and not node.random and made and all(any(t is g for g in given) for t in made):
            return result  # as x.contiguous() of what is contiguous
        node.args, node.kwargs = mapped(self._argument, tuple(args)), mapped(self._argument, dict(kwargs))
        node.generator = before if node.random else None
        node.fixed = not is_module and not node.random and not mutated and all(self._is_constant(t) for t in given)
        self.nodes.append(node)
        self._take(node, given, made, mutated)
        return result

    def _take(self, node, given, made, mutated):
        """The tensors that the node made, and those that are other ones now, are its outputs."""
        aliases = []
        for tensor in mutated:
            held = self.held.get(id(tensor)) or self._held_places.get(place(tensor))
            if held in self._weights:
                raise Untraceable(node.where, f"the parameter {held} is changed in forward()", "Weights change between steps alone; "
                                  "compute with a changed copy (torch.nn.utils.parametrize)")
            if held:
                node.writes.add(held)
            value = self._value(tensor)
            if isinstance(value, Held):
                continue
            node.mutates.append(value)
            for other in self._by_place.get(place(tensor), {}):
                if all(self._known[other][0] is not t for t in [*made, *aliases]):
                    aliases.append(self._known[other][0])
        for tensor in made:
            node.outputs.append(Fact(tensor))
            is_same = any(tensor is g for g in given) and all(tensor is not t for t in mutated)
            if not is_same and id(tensor) not in self.held:
                self._know(tensor, Ref(node.index, len(node.outputs) - 1))
        node.returned = len(made)
        for tensor in aliases:
            value = self._value(tensor)
            node.changed.append(value)
            node.outputs.append(Fact(tensor))
            if isinstance(value, (Ref, Constant)):
                self._know(tensor, Ref(node.index, len(node.outputs) - 1))


def _other_generators():
    return random.getstate(), numpy.random.get_state()[1].tobytes(), numpy.random.get_state()[2:]


class _Watched:
    """Calls of nn.Module are the recorder's, in this thread; so is x[index], which torch 1.13 shows to a mode only if the index is a
    tuple."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __enter__(self):
        recorder, thread = self.recorder, threading.get_ident()
        call, getitem = self.call, self.getitem = nn.Module.__call__, torch.Tensor.__getitem__

        def recorded_call(module, *args, **kwargs):
            if threading.get_ident() != thread:
                return call(module, *args, **kwargs)
            return recorder.module_call(module, args, kwargs, call)

        def recorded_getitem(tensor, index):
            if threading.get_ident() != thread:
                return getitem(tensor, index)
            return recorder.getitem(tensor, index, getitem)

        nn.Module.__call__, torch.Tensor.__getitem__ = recorded_call, recorded_getitem
        return recorder

    def __exit__(self, kind, error, trace):
        nn.Module.__call__, torch.Tensor.__getitem__ = self.call, self.getitem
