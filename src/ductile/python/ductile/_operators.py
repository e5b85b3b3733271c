"""The calls of a module grouped into named operators, which a planner may place on different devices.

The rule. A call that uses parameters begins an operator, which has the name of the module that holds them. Other calls
join an operator where that costs no parallelism: the last one that they read, if it depends on all others that they read
(an activation joins its convolution, a residual sum the end of its branch). Where they read operators that do not depend on
each other (two towers, a key and a query), they begin one of their own, and so do calls that make their tensors larger
(upsampling), since the smaller one is better sent. What reads the model's inputs alone joins the one operator that reads it,
and what reads neither inputs nor operators (masks, positions, weights made of weights) is computed by each that reads it."""

import difflib

from ductile._errors import Error
from ductile._trace import INPUT, Constant, Ref, Untraceable, line_of, place, remedy

_GROWS = 1.5  # times the bytes that are read: such calls do not join what they read

LOSS = "loss"  # the operator that is a job's loss()


class Operator:
    """`inputs` and `outputs` are tensors (Refs), `nodes` the numbers of the calls in order, `copies` those calls that change a
    tensor which others read as it was, and so get a copy of it."""

    def __init__(self, name, kind, number):
        self.name, self.kind, self.number = name, kind, number
        self.nodes, self.inputs, self.outputs = [], [], []
        self.parameters, self.buffers = [], []
        self.copies, self.before = set(), 0  # `before`: the operators that it depends on, as bits
        self.early = False  # depends on the model's inputs alone, and has no weights
        self.is_loss = False


class Grouping:
    """`reserved`: names that no operator may have."""

    def __init__(self, root, calls, reserved=()):
        self.root, self.calls, self.nodes = root, calls, calls.nodes
        self.names = {id(t): name for name, t in [*root.named_parameters(), *root.named_buffers()]}
        self.weights = {name for name, _ in root.named_parameters()}
        self.modules = dict(root.named_modules())
        self.held = [self._held(node) for node in self.nodes]
        self.written = {name for node, held in zip(self.nodes, self.held) for name in node.writes | (held if node.is_module else set())
                        if name not in self.weights}
        self.live = self._live()
        self.loose = self._loose()
        self.owner = {}  # node -> Operator, of those that are not loose
        self.homes = {}  # buffer that changes -> the first Operator that uses it
        self.operators = []
        for node in self.nodes:
            if node.index in self.live and node.index not in self.loose:
                self._place(node)
        self._join_early()
        self._wire()
        self._sort()
        self._check_in_place()
        self._name(set(reserved))

    # ---- What nodes are.

    def _held(self, node):
        """Parameters and buffers that a call uses, by their first names."""
        held = node.held() | node.writes
        if node.is_module:
            module = self.modules[node.target]
            held |= {self.names[id(t)] for t in [*module.parameters(), *module.buffers()] if id(t) in self.names}
        return held

    def _live(self):
        """Calls that a result needs, or that leave something behind: in a buffer, or in a tensor that another one reads."""
        live = set()
        wanted = [ref.node for ref in self.calls.results if isinstance(ref, Ref)]
        wanted += [n.index for n, held in zip(self.nodes, self.held) if n.writes or n.mutates or (n.is_module and held - self.weights)]
        while wanted:
            index = wanted.pop()
            if index == INPUT or index in live:
                continue
            live.add(index)
            wanted += [ref.node for ref in self.nodes[index].reads()]
        return live

    def _loose(self):
        """Calls that depend on no input: whoever reads what they make computes it. Not those that draw, or that use a buffer
        which changes: these happen once."""
        loose = set()
        for node, held in zip(self.nodes, self.held):
            reads = {ref.node for ref in node.reads()}
            if reads <= loose and not node.random and not node.is_module and not held & self.written:
                loose.add(node.index)
        return loose

    def _closure(self, node):
        """The loose calls that a call needs, and itself."""
        found, wanted = set(), [node.index]
        while wanted:
            index = wanted.pop()
            if index in found:
                continue
            found.add(index)
            wanted += [ref.node for ref in self.nodes[index].reads() if ref.node in self.loose]
        return found

    def _uses(self, node):
        """Parameters of a call with its loose ones; of a module, its buffers, too. Who uses any begins an operator."""
        used = set()
        for index in self._closure(node):
            used |= self.held[index] & (self.weights | self.held[index] if self.nodes[index].is_module else self.weights)
        return used

    # ---- Grouping.

    def _place(self, node):
        read = {}  # operators that it reads
        for index in self._closure(node):
            for ref in self.nodes[index].reads():
                if ref.node in self.owner:
                    read[self.owner[ref.node].number] = self.owner[ref.node]
        op = None
        if not self._uses(node):
            op = self._home(node, read)
            if op is None and read and not self._grows(node):
                late = {k: o for k, o in read.items() if not o.early}  # what is early holds nobody up
                op = next((o for k, o in sorted((late or read).items(), reverse=True)
                           if all(k == other or o.before >> other & 1 for other in late)), None)
        if op is None:
            op = self._begin(node)
            op.early = not self._uses(node) and not self.held[node.index] & self.written and all(o.early for o in read.values())
        for k, o in read.items():
            if o is not op:
                op.before |= o.before | 1 << k
        op.nodes.append(node.index)
        self.owner[node.index] = op
        for name in self.held[node.index] & self.written:
            self.homes.setdefault(name, op)

    def _home(self, node, read):
        """The operator that uses a buffer which this call uses, too, and one of them changes, if it may read what this call reads."""
        homes = {self.homes[name].number: self.homes[name] for name in self.held[node.index] & self.written if name in self.homes}
        if len(homes) != 1:
            return None
        number, home = homes.popitem()
        if all(k == number or home.before >> k & 1 for k in read):
            return home
        ahead = any(o.before >> number & 1 for o in self.operators)  # somebody waits for it
        return None if ahead else home

    def _begin(self, node):
        if node.is_module:
            name, kind = node.target, type(self.modules[node.target]).__name__.lower()
        else:
            first = next((h for h in sorted(self._uses(node), key=self._order) if h in self.weights), None)
            kind = node.name
            if first is None:
                name = f"{node.scope}.{kind}" if node.scope else kind
            else:
                name = first.rpartition(".")[0] or first
        op = Operator(name, kind, len(self.operators))
        self.operators.append(op)
        return op

    def _order(self, name):
        return list(self.names.values()).index(name)

    def _grows(self, node):
        read = sum(self.calls.bytes(ref) for ref in node.reads() if ref.node not in self.loose)
        made = self.calls.recordings[-1].nodes[node.index].outputs[:node.returned]
        return sum(fact.bytes for fact in made) > _GROWS * read

    def _join_early(self):
        """What reads the model's inputs alone is done where it is needed, if that is one place."""
        for op in [o for o in self.operators if o.early]:
            readers = {id(r): r for r in map(self.owner.get, self._readers(op)) if r is not op}
            is_result = any(isinstance(ref, Ref) and self.owner.get(ref.node) is op for ref in self.calls.results)
            if len(readers) != 1 or is_result:
                continue
            reader = next(iter(readers.values()))
            reader.nodes += op.nodes
            for index in op.nodes:
                self.owner[index] = reader
            self.operators.remove(op)

    def _readers(self, op):
        """Nodes that read what an operator makes, also by way of loose ones."""
        return [index for index in self.owner
                if any(self.owner.get(ref.node) is op for i in self._closure(self.nodes[index]) for ref in self.nodes[i].reads())]

    def _wire(self):
        for op in self.operators:
            own = set()
            for index in op.nodes:
                own |= self._closure(self.nodes[index])
            op.nodes = sorted(own)
            op.inputs = list(dict.fromkeys(ref for index in op.nodes for ref in self.nodes[index].reads() if ref.node not in own))
            used = {h for index in op.nodes for h in self.held[index]}
            op.parameters = [name for name in self.names.values() if name in used & self.weights]
            op.buffers = [name for name in self.names.values() if name in used - self.weights]
        read = {ref for op in self.operators for ref in op.inputs} | {r for r in self.calls.results if isinstance(r, Ref)}
        for op in self.operators:
            op.outputs = sorted((ref for ref in read if self.owner.get(ref.node) is op), key=lambda ref: (ref.node, ref.output))
        for name in self.written:
            users = [op for op in self.operators if name in op.buffers]
            if len(users) > 1 and any(name in self.nodes[i].writes for op in users for i in op.nodes):
                node = next(self.nodes[i] for op in users[::-1] for i in op.nodes if name in self.held[i])
                raise Untraceable(node.where, f"the buffer {name} is changed in forward(), and used by {users[0].name} and "
                                  f"{users[1].name}, which may run on different devices", remedy(node.scope))

    def _sort(self):
        """Operators follow those that they read; else they stand as their first calls do."""
        waiting, self.operators, done = sorted(self.operators, key=lambda op: op.number), [], set()
        while waiting:
            op = next(o for o in waiting if all(ref.node == INPUT or self.owner[ref.node] in done for ref in o.inputs))
            waiting.remove(op)
            self.operators.append(op)
            done.add(op)

    # ---- Changes in place.

    def _check_in_place(self):
        """A call that changes a tensor in place changes its own operator's; of what others read it changes a copy."""
        for op in self.operators:
            for index in op.nodes:
                node = self.nodes[index]
                if node.mutates:
                    self._check_change(op, node)

    def _check_change(self, op, node):
        touched = [v for v in [*node.mutates, *node.changed] if isinstance(v, (Ref, Constant))]
        if any(isinstance(v, Constant) and v.index in self.calls.lasting for v in touched):
            raise Untraceable(node.where, "a tensor that is no buffer of a module is changed, so the next step begins with other values",
                              f"Register it (register_buffer). {remedy(node.scope)}")
        foreign = [v for v in touched if isinstance(v, Constant) or v.node not in op.nodes]
        places = {self._memory(v) for v in touched} - {None}
        outside = set(ref for other in self.operators if other is not op for ref in other.inputs) | \
            {r for r in self.calls.results if isinstance(r, Ref)}
        seen = [ref for ref in outside if ref.node < node.index and self._memory(ref) in places]
        if not foreign and not seen:
            return
        if node.writes or any(v not in node.mutates for v in touched) or len(set(node.mutates)) > 1:
            by = next((self.nodes[i] for o in self.operators if o is not op for i in o.nodes
                       if any(self._memory(ref) in places for ref in self.nodes[i].reads())), node)
            raise Untraceable(node.where, "a tensor is changed in place that shares its memory with another one, which another operator "
                              f"uses ({line_of(by.where)})", "Write it without the change in place (x = x + y for x += y, relu for "
                              f"relu_, torch.where, clone()), or keep both in one operator. {remedy(node.scope)}")
        op.copies.add(node.index)

    def _memory(self, ref):
        if isinstance(ref, Constant):
            return None
        if ref.node == INPUT:
            return place(self.calls.inputs[ref.output]) or None
        return self.calls.facts(ref)[0].place or None

    # ---- Names.

    def _name(self, taken):
        """No name has a space: options of a job separate them by spaces."""
        for op in self.operators:
            op.name = "_".join(op.name.split())
            name, k = op.name, 1
            while op.name in taken:
                k += 1
                op.name = f"{name}#{k}"
            taken.add(op.name)


def tied_classes(operators):
    """By operator: a number that those share which hold the same parameter, else -1."""
    owner, classes = {}, [-1] * len(operators)
    for i, op in enumerate(operators):
        for name in op.parameters if not op.is_loss else ():
            first = owner.setdefault(name, i)
            if first == i:
                continue
            if classes[first] < 0:
                classes[first] = first
            classes[i] = classes[first]
    return classes


def check_leaves(root, wanted):
    """Each name of --leaf is a module's path, or a class of modules."""
    known = {path for path, _ in root.named_modules() if path} | {type(m).__name__ for m in root.modules() if m is not root}
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise Error("invalid_argument", f"--leaf {name}: the model has no module of this name, and none of such a class"
                        + (f"; did you mean {near[0]}?" if near else ""))
