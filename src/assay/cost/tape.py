"""A forward pass on paper: what each operation computes, moves, and keeps for its backward pass.

The rules of mixers, feed-forward parts and norms write their forward here with the operations of :mod:`assay.cost.ops`;
sizes are those of one device. Two books are kept, and one question is answered from them:

* *work*, by operation class: FLOPs, and bytes read and written if each class were one fused kernel;
* *kept*: the storages that autograd holds until the backward pass, each counted once however many operations hold it;
* the backward pass is replayed over the record to find how far memory rises above what was kept.
"""

from __future__ import annotations

from typing import NamedTuple

from assay.cost.rules import Work


class Numerics(NamedTuple):
    """What decides the width of every number and which kernels run.

    Attributes:
        compute: bytes of an activation: 4 or 2.
        param: bytes of a parameter as it is stored in the model.
        autocast: parameters and stream are ``param`` wide, matrix products run ``compute`` wide (torch.autocast).
        fused: kernels of an accelerator (fused RMSNorm, Boolean dropout masks) instead of torch's on a CPU.
        stored: bytes of a weight and of a cached key as inference reads them; 0: ``compute``.
        backend: attention kernel: ``sdpa`` (flash: scores are never stored), ``reference`` (scores stored), or
            ``auto``: sdpa where it honours the layer, else reference.
    """

    compute: int = 4
    param: int = 4
    autocast: bool = False
    fused: bool = False
    backend: str = "auto"
    stored: int = 0

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream."""
        return self.param if self.autocast else self.compute

    @property
    def wide(self) -> int:
        """Bytes of a statistic: float32."""
        return 4

    def read(self, *, train: bool) -> int:
        """Bytes of a weight as a matrix product reads it."""
        return self.compute if train or not self.stored else self.stored


class Store:
    """One allocation. ``shared`` names what is made once a pass for all layers, such as rotary tables."""

    __slots__ = ("nbytes", "shared")

    def __init__(self, nbytes: int, shared: object = None) -> None:
        self.nbytes = nbytes
        self.shared = shared


class Value:
    """An activation: ``n`` elements of ``width`` bytes in a store."""

    __slots__ = ("n", "store", "width")

    def __init__(self, n: int, width: int, store: Store | None = None) -> None:
        self.n = n
        self.width = width
        self.store = Store(n * width) if store is None else store

    @property
    def nbytes(self) -> int:
        return self.n * self.width


class OpWork:
    """FLOPs and bytes of one operation class, forward and backward."""

    __slots__ = ("backward_bytes", "backward_flops", "bytes", "flops")

    def __init__(self) -> None:
        self.flops = self.bytes = self.backward_flops = self.backward_bytes = 0

    def add(self, other: OpWork, times: int = 1) -> None:
        self.flops += other.flops * times
        self.bytes += other.bytes * times
        self.backward_flops += other.backward_flops * times
        self.backward_bytes += other.backward_bytes * times


class Node(NamedTuple):
    """One differentiable operation, as autograd records it."""

    out: Value
    ins: tuple[Value, ...]
    kept: tuple[Store, ...]
    param_grads: int
    scratch: int
    passes: bool  # the gradient goes on as it is: additions


class Tape:
    """The record of one part's forward pass on one device.

    Args:
        work: sequences, new tokens and past tokens on this device.
        numerics: widths and kernels.
        train: keep what the backward pass needs; dropout acts.
        tp: devices that share each layer's heads and inner widths.
        sequence_parallel: norms, residuals and dropout also split the tokens over the ``tp`` devices.
        recompute_core: attention's core is computed again in the backward pass instead of kept.
    """

    def __init__(
        self,
        work: Work,
        numerics: Numerics,
        *,
        train: bool = True,
        tp: int = 1,
        sequence_parallel: bool = False,
        recompute_core: bool = False,
    ) -> None:
        self.at, self.numerics, self.train = work, numerics, train
        self.tp, self.sp = tp, tp if sequence_parallel else 1
        self.recompute_core = recompute_core
        self.work: dict[str, OpWork] = {}
        self.kept: dict[Store, str] = {}
        self.nodes: list[Node] = []
        self.named: list[tuple[int, tuple[Value, ...]]] = []
        self.biases: dict[int, Value] = {}  # what positions add to scores, by attention
        self.unknown: set[str] = set()  # kinds whose forward nobody described

    # sizes

    @property
    def tokens(self) -> int:
        return self.at.tokens

    def share(self, features: int) -> int:
        """This device's part of features that tensor parallelism divides."""
        return -(-features // self.tp)

    def inner(self, features: int, width: int | None = None) -> Value:
        """A new value of ``features`` (already this device's) for every token."""
        return Value(self.tokens * features, self.numerics.compute if width is None else width)

    def stream(self, features: int, width: int | None = None) -> Value:
        """A new value of the residual stream."""
        n = -(-self.tokens * features // self.sp)
        return Value(n, self.numerics.stream if width is None else width)

    # the books

    def count(self, op: str, flops: int, *moved: int, backward_bytes: int | None = None) -> None:
        """Add work of a class: ``moved`` are the bytes of its inputs, then of its output.

        Backward: twice the FLOPs; the inputs are read again, their gradients written, the output's gradient read.
        """
        entry = self.work.get(op)
        if entry is None:
            entry = self.work[op] = OpWork()
        entry.flops += flops
        entry.bytes += sum(moved)
        entry.backward_flops += 2 * flops
        entry.backward_bytes += 2 * sum(moved) - moved[-1] if backward_bytes is None else backward_bytes

    def node(
        self,
        op: str,
        out: Value,
        *ins: Value,
        keep: tuple[Value | Store, ...] = (),
        param_grads: int = 0,
        scratch: int = 0,
        passes: bool = False,
    ) -> Value:
        """Record a differentiable operation: what it keeps, and what its backward pass allocates."""
        stores: tuple[Store, ...] = ()
        if self.train and keep:
            stores = tuple([k.store if isinstance(k, Value) else k for k in keep])
            for store in stores:
                self.kept.setdefault(store, op)
        self.nodes.append(Node(out, ins, stores, param_grads, scratch, passes))
        return out

    def held(self, *values: Value) -> None:
        """Say that a function's local names kept these values alive until here, though nothing reads them again."""
        self.named.append((len(self.nodes) - 1, values))

    # what they say

    def kept_bytes(self) -> int:
        """Bytes held for the backward pass, without what all layers share."""
        return sum(s.nbytes for s in self.kept if s.shared is None)

    def shared_bytes(self) -> dict[object, int]:
        """What is held once for all layers, by name."""
        return {s.shared: s.nbytes for s in self.kept if s.shared is not None}

    def kept_by_op(self) -> dict[str, int]:
        out: dict[str, int] = {}
        for store, op in self.kept.items():
            if store.shared is None:
                out[op] = out.get(op, 0) + store.nbytes
        return out

    def param_grads(self) -> int:
        """Bytes of parameter gradients that the backward pass leaves behind."""
        return sum(node.param_grads for node in self.nodes)

    def forward_rise(self) -> int:
        """How far memory rises in a forward pass that keeps nothing: values live while they are used or named."""
        last = {value: i for i, node in enumerate(self.nodes) for value in (*node.ins, node.out)}
        for i, values in self.named:
            last.update((value, i) for value in values if value in last)
        ends: dict[int, list[Value]] = {}
        for value, i in last.items():
            ends.setdefault(i, []).append(value)
        live = top = 0
        held: set[Value] = set()
        for i, node in enumerate(self.nodes):
            for value in (*node.ins, node.out):
                if value not in held:
                    held.add(value)
                    live += value.nbytes
            top = max(top, live + node.scratch)
            for value in ends.get(i, ()):
                held.discard(value)
                live -= value.nbytes
        return top

    def backward_rise(self) -> int:
        """How far memory rises over what was kept at the start, the arriving gradient included.

        Replays the record backwards: a gradient lives from its making to its use, a kept storage until the last
        operation that holds it has run, parameter gradients stay.
        """
        holders: dict[Store, int] = {}
        for node in self.nodes:
            for store in node.kept:
                holders[store] = holders.get(store, 0) + 1
        live = top = 0
        waiting: dict[Value, int] = {}  # gradient bytes that wait for the operation that made the value
        if self.nodes:
            last = self.nodes[-1].out
            waiting[last] = last.nbytes
            live = top = last.nbytes
        for node in reversed(self.nodes):
            arrived = waiting.pop(node.out, 0)
            if node.passes:
                for i, value in enumerate(node.ins):  # one buffer, owned by the first that will hold it
                    waiting[value] = waiting.get(value, 0) + (arrived if i == 0 else 0)
                continue
            made = sum(v.nbytes for v in node.ins)
            live += made + node.param_grads
            top = max(top, live + node.scratch)
            live -= arrived
            for value in node.ins:
                if waiting.get(value):
                    live -= value.nbytes  # summed into the gradient that waits already
                else:
                    waiting[value] = value.nbytes
            for store in node.kept:
                holders[store] -= 1
                if not holders[store] and store.shared is None:
                    live -= store.nbytes
        return top
