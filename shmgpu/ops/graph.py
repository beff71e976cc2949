"""What a child records: nodes, each an operation on earlier nodes, or a value.

Owns the node and :func:`apply`, which makes one. A node is never changed: an operation in place
makes a new node and has the tensor point there. Nothing is computed here, and nothing here knows
what any operation means: its row of the table (:mod:`shmgpu.ops`) says what comes of which shapes.

Both are in C as well, in ``shmgpu._graph``, which takes their place where it was built.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmgpu.codec import arrays
from shmgpu.codec.dtypes import DType

MAX_KNOWN = 1 << 16  # outcomes of rules that are remembered


class Spec(arrays.ArraySpec):
    """Element type and shape; there is one object of each (:func:`spec_of`), a quick key."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


Params = tuple[Any, ...]
Rule = Callable[[tuple[Spec, ...], Params], Spec]
Gradient = Callable[["Node", "Node"], "Node"]


class Op:
    """A row of the table of operations.

    Attributes:
        name: PyTorch's, where it has one.
        rule: (inputs' specs, params) -> the output's spec; raises ValueError or TypeError, in a
            sentence with the shapes, where there is none.
        numpy, torch: (module, inputs' specs, params, output's spec) -> the kernel, a callable that
            gets the inputs' arrays and returns the output's.
        torch_on_host: the same for torch where arrays lie on a host; ``torch``, unless it is named.
        gradients: for each input (the output's gradient, the node) -> the input's gradient, or
            None where there is none. () where the operation has no gradient at all.
        saves: what the gradients look at: "i" inputs, "o" the output.
        broadcasts: gradients have the output's shape and are summed to the input's.
        is_view: the output's elements lie where the first input's do.
        in_place: the kernels take ``out=``, and it may be one of the inputs of the same spec.
        takes_out: the kernels take ``out=``, and it must not be an input.
        may_fail: whether it can be done depends on elements, such as an index that is out of range.
        is_collective: other helpers take part, so all must do it, in one order: a plan neither
            drops nor moves it. Others may fail in it, so it may fail.
        numbers: places where torch's kernel takes a plain number for a tensor without axes.
    """

    __slots__ = (
        "broadcasts",
        "gradients",
        "in_place",
        "is_collective",
        "is_view",
        "may_fail",
        "name",
        "numbers",
        "numpy",
        "rule",
        "saves",
        "takes_out",
        "torch",
        "torch_on_host",
    )

    def __init__(
        self,
        name: str,
        rule: Rule,
        *,
        numpy: Callable[..., Any],
        torch: Callable[..., Any],
        torch_on_host: Callable[..., Any] | None = None,
        gradients: tuple[Gradient | None, ...] = (),
        saves: str = "",
        broadcasts: bool = False,
        is_view: bool = False,
        in_place: bool = False,
        takes_out: bool = False,
        may_fail: bool = False,
        is_collective: bool = False,
        numbers: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.rule = rule
        self.numpy = numpy
        self.torch = torch
        self.torch_on_host = torch_on_host or torch
        self.gradients = gradients
        self.saves = saves
        self.broadcasts = broadcasts
        self.is_view = is_view
        self.in_place = in_place
        self.takes_out = takes_out or in_place
        self.may_fail = may_fail or is_collective
        self.is_collective = is_collective
        self.numbers = numbers

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


class Node:
    """A value: known (a leaf), or what ``op`` makes of ``inputs``.

    Attributes:
        op, inputs, params: where it comes from; op is None for a leaf.
        spec: element type and shape.
        value: where its elements are; None until they are computed.
        number: rises with each node, so that inputs have smaller ones than what is made of them.
        needs_grad: some leaf under it wants a gradient.
        owners: how many tensors show it; while there are any its value must be kept.
        is_released: its gradient was taken, and will not be taken again.
        again: of a checkpoint only: (gradient, node) -> the gradients of its inputs but the first.
        hooks: where the gradient is looked at only: what may change it, and what keeps it.
        leaf: of a node that collects gradients: a weak reference to the tensor that shows it. The
            way back ends here, even where the node was computed (a weight that was updated).
        undo: of what an operation in place made, until it is computed: a weak reference to the
            tensor, and the node that it showed before. It shows that one again if this one fails;
            what stands behind the two is then called.
    """

    __slots__ = (
        "again",
        "hooks",
        "inputs",
        "is_released",
        "leaf",
        "needs_grad",
        "number",
        "op",
        "owners",
        "params",
        "spec",
        "undo",
        "value",
    )

    again: Callable[[Node, Node], list[Node]]
    hooks: tuple[dict[int, Callable[[Node], Node]], dict[int, Callable[[Node], Node]]]

    def __init__(
        self,
        op: Op | None,
        inputs: tuple[Node, ...],
        params: Params,
        spec: Spec,
        value: Any = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.spec = spec
        self.value = value
        self.number = next(_numbers)
        self.needs_grad = False
        self.owners = 0
        self.is_released = False
        self.leaf: Any = None
        self.undo: tuple[Any, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.spec.dtype

    def __repr__(self) -> str:
        source = "leaf" if self.op is None else self.op.name
        return f"<node {self.number}: {source} {self.spec.dtype.name} {self.spec.shape}>"


class Scalar:
    """The value of a leaf that is a plain number: it travels beside the program, not in it.

    Attributes:
        source: the one that this is in another element type.
    """

    __slots__ = ("number", "source")

    def __init__(self, number: complex) -> None:
        self.number = number
        self.source: Scalar | None = None


_numbers = itertools.count(1)
next_number = _numbers.__next__  # every node made until now has a lower one
_spec = operator.attrgetter("spec")
_known: dict[tuple[Any, ...], Spec] = {}
_specs: dict[tuple[DType, tuple[int, ...]], Spec] = {}


class GradMode(threading.local):
    """Whether operations are recorded for gradients: in each thread, and True in a new one."""

    enabled = True


grad_mode = GradMode()


def spec_of(dtype: DType, shape: tuple[int, ...]) -> Spec:
    """The spec of that type and shape: the same object each time, so that it is a quick key.

    Raises:
        TypeError: a length is no integer.
    """
    key = (dtype, shape)
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= MAX_KNOWN:
            _specs.clear()
        # (3, False) and (3, 0) are the same key, so what a damaged program says must not reach
        # others.
        spec = _specs[key] = Spec(dtype, tuple([operator.index(n) for n in shape]))
    return spec


def apply(op: Op, inputs: tuple[Node, ...], params: Params = ()) -> Node:
    """Record an operation.

    Args:
        op: its row.
        inputs: what it is done to; a tuple of this node's own, for references are counted.
        params: what else the result depends on.

    Raises:
        ValueError, TypeError: the operation has no result for such inputs.
    """
    key = (op, params, *map(_spec, inputs))
    spec = _known.get(key)
    if spec is None:
        spec = op.rule(tuple([node.spec for node in inputs]), params)
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        _known[key] = spec
    node = Node(op, inputs, params, spec)
    if op.gradients and grad_mode.enabled:
        for one in inputs:
            if one.needs_grad:
                node.needs_grad = True
                break
    return node


def leaf(spec: Spec, value: Any) -> Node:
    """A node whose value is known."""
    return Node(None, (), (), spec, value)


native: Any = None
if not TYPE_CHECKING:
    try:
        import shmgpu._graph as native
    except ImportError:  # a tree that was not built
        pass
    else:
        native.bind(Scalar, grad_mode)
        Node, apply, next_number = native.Node, native.apply, native.next_number
