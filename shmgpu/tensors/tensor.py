"""Tensors: what a program works with; each shows one node of the graph.

Owns the class, its operators and methods, and the functions of the same names. All of them are made
from one list of what the families of operations record.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
import re
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from shmgpu import arena, core
from shmgpu.child import plans, runtime
from shmgpu.codec import arrays, dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.common import seeding as seeds
from shmgpu.errors import BadParams, NotRunning
from shmgpu.ops import (
    activations,
    arranging,
    attention,
    casting,
    creation,
    distances,
    elementwise,
    formulas,
    graph,
    indexing,
    linear,
    losses,
    normalising,
    ordering,
    products,
    rearranging,
    reductions,
    shaping,
    stretching,
    transcendental,
    views,
    windows,
)
from shmgpu.ops.casting import alias, cast
from shmgpu.ops.graph import Node, spec_of
from shmgpu.ops.promotion import (
    CATEGORY,
    OF_NUMBER,
    TYPES,
    bool_,
    category_of_number,
    float32,
    is_float,
    number,
)
from shmgpu.tensors import autocasting, autograd, current, interop
from shmgpu.tensors.grad_mode import Mode, no_grad
from shmgpu.tensors.message import Held, LostValue

DTYPES = {one.name: one for one in TYPES}


class Data(np.ndarray[Any, Any]):
    """A tensor's elements: a read-only array."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """The same elements as a plain array."""
        return self.view(np.ndarray)


class Tensor:
    """An array that is computed when it is read.

    Attributes:
        grad: sum of the gradients that :meth:`backward` has added, or None.
    """

    __slots__ = ("__weakref__", "_node", "_shared", "_view", "grad")
    __array_priority__ = 1000

    def __init__(self, node: Node) -> None:
        self._node = node
        self._shared: Shared | None = None  # with views of it, or with what it is a view of
        self._view: views.Chain | None = None  # of what is shared; None: it is that itself
        self.grad: Tensor | None = None
        current.show(node)

    def __del__(self) -> None:
        self._node.owners -= 1

    if TYPE_CHECKING:
        # Operators and methods are made from the list of operations below.
        def __getattr__(self, name: str) -> Any: ...
        def _operator(self, other: Any) -> Tensor: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operator
        __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __mod__ = __rmod__ = _operator
        __floordiv__ = __rfloordiv__ = __matmul__ = __rmatmul__ = _operator
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator
        __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _operator
        __iadd__ = __isub__ = __imul__ = __itruediv__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = _operator

    # ---- what it is ----------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The number of its current value, as :mod:`shmgpu.debug` shows it."""
        return self._node.number

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._node.spec.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self._node.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._node.spec.shape)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to or through it."""
        return self._node.needs_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)

    @property
    def is_leaf(self) -> bool:
        """Whether gradients end here: it was not computed from tensors that require them."""
        return self._node.leaf is not None or not self._node.needs_grad

    @property
    def T(self) -> Tensor:
        """The tensor with its axes in reverse order."""
        return view(self, shaping.permute(self._node, tuple(reversed(range(self.ndim)))))

    @property
    def mT(self) -> Tensor:
        """The matrices of the last two axes, transposed."""
        return view(self, shaping.transpose(self._node, -2, -1))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._node.spec.nbytes

    def t(self) -> Tensor:
        """A matrix transposed; a vector as it is. ValueError for more axes."""
        if self.ndim > 2:
            raise ValueError(f"t: takes at most two axes, not {self.shape}: use mT or permute")
        return self.T

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return is_float(self.dtype)

    def cpu(self) -> Tensor:
        """The tensor itself: its elements are read where the program runs."""
        return self

    def view_as(self, other: Tensor) -> Tensor:
        """The same elements in another tensor's shape."""
        return view(self, shaping.reshape(self._node, other.shape))

    def expand_as(self, other: Tensor) -> Tensor:
        """Axes of length 1 expanded to another tensor's shape."""
        return view(self, stretching.expand(self._node, other.shape))

    def type_as(self, other: Tensor) -> Tensor:
        """In another tensor's element type."""
        return Tensor(cast(self._node, other.dtype))

    def new_tensor(self, data: Any, dtype: Any = None) -> Tensor:
        """A tensor with a copy of the data, of this one's element type unless given."""
        return tensor(data, dtype=self.dtype if dtype is None else dtype)

    def new_zeros(self, *size: Any, dtype: Any = None) -> Tensor:
        """Zeros of this tensor's element type unless another is given."""
        return zeros(*size, dtype=self.dtype if dtype is None else dtype)

    def new_ones(self, *size: Any, dtype: Any = None) -> Tensor:
        """Ones of this tensor's element type unless another is given."""
        return ones(*size, dtype=self.dtype if dtype is None else dtype)

    def new_full(self, size: Sequence[int], fill_value: complex, dtype: Any = None) -> Tensor:
        """One value, of this tensor's element type unless another is given."""
        return full(size, fill_value, dtype=self.dtype if dtype is None else dtype)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the length of one axis."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self._node.spec.shape)

    def __iter__(self) -> Any:
        """Its parts along the first axis, as views."""
        if not self.shape:
            raise TypeError("a tensor without axes cannot be iterated over: use item()")
        return iter(FUNCTIONS["unbind"](self))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    # ---- its elements --------------------------------------------------------------------------

    @property
    def data(self) -> Data:
        """Its elements as a read-only array, computed now if they were not before."""
        shown = current.elements(self._node).view(Data)
        shown.setflags(write=False)
        return shown

    def numpy(self) -> np.ndarray[Any, Any]:
        """Its elements as a plain, read-only array."""
        return self.data.numpy()

    def item(self) -> Any:
        """The one element as a plain number."""
        if self.numel() != 1:
            raise ValueError(
                f"item() needs a tensor of one element, and the shape is {self.shape}: use tolist()"
            )
        return current.elements(self._node).item()

    def tolist(self) -> Any:
        """The elements as nested lists of plain numbers."""
        return current.elements(self._node).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.data, dtype=dtype) if copy else np.asarray(self.data, dtype=dtype)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return interop.with_numpy(Tensor, function, args, kwargs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return interop.with_torch(cls, function, args, kwargs or {}, FUNCTIONS)

    def __shmgpu_array__(self) -> np.ndarray[Any, Any]:
        """What a call carries: the elements where they lie in the arena."""
        if self._node.needs_grad and self._node.leaf is None and graph.grad_mode.enabled:
            raise BadParams(
                "a call cannot carry a tensor that gradients flow through (it would lose them): "
                "pass tensor.detach()"
            )
        return current.elements(self._node)

    @staticmethod
    def __shmgpu_result__(array: np.ndarray[Any, Any]) -> Any:
        """What a call with tensors gives: tensors; an array where tensors have no such type."""
        kind = dtypes.of_numpy(array.dtype)
        if kind not in CATEGORY:
            return array
        if not array.size:  # it lies nowhere
            return tensor(array)
        held = Held(array, core.address_of(array))
        return Tensor(graph.leaf(spec_of(kind, array.shape), held))

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if is_float(self.dtype):
            raise TypeError(f"a tensor of {self.dtype.name} is not an index: use int(tensor)")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self if self.shape else self.item(), spec) if spec else str(self)

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self.numpy().__dlpack_device__()

    # A copy is a tensor of its own: what a helper holds, and how often it is shown, are counted.

    def __copy__(self) -> Tensor:
        return self.__deepcopy__({}) if self._node.leaf is not None else Tensor(self._node)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self._node.needs_grad and self._node.leaf is None:
            raise RuntimeError(
                "a tensor that gradients flow through cannot be copied: copy tensor.detach()"
            )
        made = memo[id(self)] = snapshot(self)
        if self._node.needs_grad:
            made.requires_grad_()
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    def __reduce__(self) -> Any:
        if self._node.needs_grad and self._node.leaf is None:
            raise RuntimeError(
                "a tensor that gradients flow through cannot be pickled: pickle tensor.detach()"
            )
        return _unpickled, (np.array(self.numpy()), self.requires_grad)

    def __repr__(self) -> str:
        text = np.array2string(np.asarray(self.data), separator=", ", prefix="tensor(")
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({text}, dtype={self.dtype.name}{grad})"

    # ---- gradients -----------------------------------------------------------------------------

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        """Start or stop to collect gradients in this tensor."""
        node = self._node
        if wanted == node.needs_grad:
            return self
        if not wanted:
            if node.leaf is None:
                raise RuntimeError(
                    "gradients flow through this tensor: use detach() to get one without"
                )
            self._become(alias(node))
            return self
        if not is_float(node.spec.dtype):
            raise TypeError(
                f"a tensor of {node.spec.dtype.name} has no gradient: convert it to a float type"
            )
        if node.owners > 1:  # a tensor that is the same after an operation that had nothing to do
            self._become(alias(node))
        self._collect()
        return self

    def _collect(self) -> None:
        self._node.needs_grad = True
        self._node.leaf = weakref.ref(self)

    def detach(self) -> Tensor:
        """The same elements, through which no gradients flow.

        A change in place of one is seen in the other, as in PyTorch; see :meth:`clone`.
        """
        return view(self, alias(self._node))

    def clone(self) -> Tensor:
        """A separate tensor with the same elements."""
        return Tensor(
            elementwise.mul(self._node, 1) if self._node.needs_grad else alias(self._node)
        )

    def backward(
        self, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False
    ) -> None:
        """Compute gradients, and add them to ``grad`` of every leaf that this tensor depends on.

        Args:
            gradient: the gradient with respect to this tensor, in its shape; by default ones.
            retain_graph: keep what a second call needs.
            create_graph: make the gradients differentiable themselves.

        Raises:
            RuntimeError: no leaf requires a gradient, or the graph was released.
        """
        if not self._node.needs_grad:
            raise RuntimeError(
                "backward: nothing that this tensor depends on has requires_grad=True"
            )
        seed = None if gradient is None else as_operand(gradient, self.dtype)
        if seed is not None and seed.spec.shape != self.shape:
            raise ValueError(
                f"backward: the gradient's shape {seed.spec.shape} is not the tensor's {self.shape}"
            )
        keep = create_graph if retain_graph is None else retain_graph
        found = autograd.gradients(
            [self._node], [seed], create_graph=create_graph, retain_graph=keep
        )
        for node, share in found.items():
            tensor = node.leaf()
            if tensor is not None:
                before = tensor.grad
                if before is not None and type(before._node.value) is not LostValue:
                    share = elementwise.add(before._node, share)
                tensor.grad = Tensor(share)

    # ---- in place ------------------------------------------------------------------------------

    def _become(self, node: Node) -> None:
        """Show another node."""
        self._node.owners -= 1
        self._node = node
        current.show(node)

    def _updated(self, node: Node) -> Tensor:
        """Take the result of an in-place operation: whoever shares the elements shows it, too."""
        before = self._node
        if node.spec.shape != before.spec.shape:
            raise ValueError(
                f"in place: the result's shape {node.spec.shape} is not the tensor's {self.shape}"
            )
        dtype = before.spec.dtype
        if node.spec.dtype is not dtype:
            if CATEGORY[node.spec.dtype] > CATEGORY[dtype]:
                raise TypeError(
                    f"in place: the result is {node.spec.dtype.name} and the tensor {dtype.name}, "
                    "which cannot hold it: write x = x + y instead of x += y, or convert"
                )
            node = cast(node, dtype)
        if self._shared is None:
            self._replace(node)
        else:
            self._shared.write(self, node)
        return self

    def _replace(self, node: Node, checks: bool = True) -> None:
        """Show another node instead of this one; the other again where it cannot be computed."""
        before = self._node
        collects = before.leaf is not None
        if collects and checks and graph.grad_mode.enabled:
            raise RuntimeError(
                "a tensor that collects gradients was changed in place: do it under no_grad()"
            )
        if collects and (node.needs_grad or node.owners):  # its own, to be marked
            node = alias(node)
        if node.value is None and node is not before:
            node.undo = (weakref.ref(self), before)
        self._become(node)
        if collects:
            node.needs_grad = True
            node.leaf = before.leaf

    def zero_(self) -> Tensor:
        """Set all elements to 0."""
        return self._updated(creation.zeros_like(self._node))

    def copy_(self, source: Any) -> Tensor:
        """Copy the elements of ``source``, expanded to this shape."""
        node = as_operand(source, self.dtype)
        return self._updated(stretching.expand(cast(node, self.dtype), self.shape))

    def fill_(self, value: float) -> Tensor:
        """Set all elements to a number."""
        return self._updated(creation.full(self.shape, value, self.dtype))

    def uniform_(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Draw all elements anew, uniformly from ``low`` (included) to ``high`` (excluded)."""
        drawn = rand(*self.shape, dtype=self.dtype) * (high - low) + low
        return self._updated(drawn._node)

    def normal_(self, mean: float = 0.0, std: float = 1.0) -> Tensor:
        """Draw all elements anew, from a normal distribution."""
        drawn = randn(*self.shape, dtype=self.dtype) * std + mean
        return self._updated(drawn._node)

    def contiguous(self) -> Tensor:
        """Return the tensor itself: the helper decides how elements lie in memory."""
        return self

    def __getitem__(self, index: Any) -> Tensor:
        if type(index) is Tensor and index.dtype is bool_ and index.ndim:
            index = index.numpy()  # it is looked at: the shape depends on its elements
        if isinstance(index, (list, np.ndarray)):
            index = _places(index, self.shape)
        return view(self, indexing.getitem(self._node, _as_index(index)))

    def __setitem__(self, index: Any, value: Any) -> None:
        index = _as_index(index)
        if type(value) is Tensor and self._is_part(index, value):
            return  # ``x[index] += y`` has done so
        self._updated(indexing.setitem(self._node, index, as_operand(value, None)))

    def _is_part(self, index: Any, value: Tensor) -> bool:
        """Whether that tensor is the view which the index names."""
        if value._shared is None or value._shared is not self._shared:
            return False
        chain = views.chain_from(self._node, indexing.getitem(self._node, index))
        return chain is not None and value._view == (*(self._view or ()), *chain)


# ---- tensors that share their elements ---------------------------------------------------------


class Shared:
    """What a tensor and the views of it share: a change of one in place is seen in all of them.

    Nothing is shared in memory: the changed part is put back into the whole, and each view shows
    its part of that anew, when it is looked at. So a step in place costs the view's bytes.
    """

    __slots__ = ("_most", "_views", "_whole", "shape")

    def __init__(self, whole: Tensor) -> None:
        self._whole = weakref.ref(whole)
        self._views: list[weakref.ref[Tensor]] = []
        self._most = 16  # until those that are gone are looked for
        self.shape = whole.shape

    def add(self, one: Tensor) -> None:
        """One more view."""
        if len(self._views) >= self._most:
            self._views = [known for known in self._views if known() is not None]
            self._most = 16 + 2 * len(self._views)
        self._views.append(weakref.ref(one))

    def alive(self) -> list[Tensor]:
        """Those that are still there."""
        return [one for known in self._views if (one := known()) is not None]

    def write(self, changed: Tensor, node: Node) -> None:
        """One of them was changed in place.

        Raises:
            RuntimeError: that cannot be seen where it should be.
        """
        whole, chain = self._whole(), changed._view
        if chain is None:
            changed._replace(node)
            self._show_again(changed)
            return
        place = views.layout(self.shape, chain)
        if place is not None and views.overlaps_itself(place):
            raise RuntimeError(
                "several elements of an expanded tensor are one: clone() it before it is changed "
                "in place"
            )
        if whole is None:
            self._write_alone(changed, node, chain)
            return
        root, is_detached = whole._node, any(op is casting.ALIAS for op, _ in chain)
        if is_detached and root.needs_grad and root.leaf is None:
            raise RuntimeError(
                "a detached view of a tensor that gradients flow through was changed in place: "
                "change a clone() of it"
            )
        if root.leaf is not None and not is_detached and graph.grad_mode.enabled:
            raise RuntimeError(
                "a view of a tensor that collects gradients was changed in place: do it under "
                "no_grad()"
            )
        with Mode(graph.grad_mode.enabled and not is_detached):
            whole._replace(views.put_back(root, chain, node), checks=False)
            self._show_again(whole)

    def _show_again(self, whole: Tensor) -> None:
        for one in self.alive():
            assert one._view is not None
            one._replace(views.again(whole._node, one._view), checks=False)

    def _write_alone(self, changed: Tensor, node: Node, chain: views.Chain) -> None:
        """Nobody shows the whole any more: fine, unless another view shows the same elements."""
        for other in self.alive():
            if other is not changed and views.overlap(self.shape, chain, other._view or ()):
                raise RuntimeError(
                    "two views share elements of a tensor that is gone, and one was changed in "
                    "place: keep the tensor itself, or clone() the view"
                )
        changed._shared = changed._view = None
        changed._replace(node)


def snapshot(of: Tensor) -> Tensor:
    """The same elements now, through which no gradients flow, in a tensor of its own."""
    return Tensor(alias(of._node))


def view(of: Tensor, node: Node) -> Tensor:
    """The tensor that shows the node: a view where its elements lie among those of another.

    Where PyTorch would copy (an order of elements that one stride an axis cannot tell), it is a
    tensor of its own.
    """
    made = Tensor(node)
    chain = views.chain_from(of._node, node)
    if chain is None:
        return made
    shared = of._shared
    if shared is None:
        shared = of._shared = Shared(of)
    elif of._view is not None:
        chain = (*of._view, *chain)
    if any(op is shaping.RESHAPE for op, _ in chain[1:]):
        if views.layout(shared.shape, chain) is None:
            return made
    made._shared, made._view = shared, chain
    shared.add(made)
    return made


# ---- from and to what callers have -------------------------------------------------------------


def as_operand(value: Any, dtype: DType | None = None) -> Any:
    """A tensor's node, a plain number as it is, anything else as a new leaf."""
    if type(value) is Tensor:
        return value._node
    if isinstance(value, np.generic):
        value = value.item()  # as weak as Python's own, as in PyTorch
    if isinstance(value, (bool, int, float)):
        return value if dtype is None else number(value, dtype)
    return _leaf(value, None)


_LISTED = frozenset((list, tuple, int, float, bool))
_FLOAT64 = np.dtype(np.float64)


def _leaf(data: Any, dtype: Any) -> Node:
    """A copy of the data, in this child's arena."""
    current.recorder()  # the first tensor of a program joins a broker, or starts one
    if isinstance(data, Tensor):
        data = data.data
    is_listed = type(data) in _LISTED or not arrays.is_array(data)
    if is_listed:
        data = np.asarray(data)
    if dtype is not None:
        dtype = dtypes.of_any(dtype)
    elif is_listed and data.dtype is _FLOAT64:
        dtype = float32  # as PyTorch takes Python's floats
    copied, address = arena.kept(data, dtype)
    return graph.leaf(spec_of(_kind(copied), copied.shape), Held(copied, address))


def _as_index(index: Any) -> Any:
    """Tensors, arrays and lists in square brackets as nodes."""
    if isinstance(index, tuple):
        return tuple([_as_index(one) for one in index])
    if type(index) is Tensor:
        return index._node
    if isinstance(index, list) or (arrays.is_array(index) and not isinstance(index, np.generic)):
        return _leaf(index, None)
    return index


def _places(index: Any, shape: tuple[int, ...]) -> Any:
    """A mask of bools whose elements are known as the places where it holds."""
    if isinstance(index, list) and any(isinstance(one, Tensor) for one in index):
        return index
    mask = np.asarray(index)
    if mask.dtype != bool or not mask.ndim:
        return index
    if mask.shape != shape[: mask.ndim]:
        raise IndexError(f"the mask's shape {mask.shape} is not a prefix of {shape}")
    return mask.nonzero()


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of the data.

    Args:
        data: a number, nested lists, an array, a torch tensor on the CPU, a tensor.
        dtype: element type; by default that of the data, and float32 for Python's floats.
        requires_grad: collect gradients. Whole numbers in lists then become float32.

    Raises:
        TypeError: a gradient is wanted of a type that has none.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     (shmgpu.tensor([1.0, 2.0]) * 3).tolist()
        [3.0, 6.0]
    """
    if requires_grad and dtype is None and not arrays.is_array(data):
        dtype = float32
    made = Tensor(_leaf(data, dtype))
    if requires_grad:
        made.requires_grad_()
    return made


def _unpickled(array: np.ndarray[Any, Any], requires_grad: bool) -> Tensor:
    try:
        return tensor(array, requires_grad=requires_grad)
    except NotRunning as error:
        raise NotRunning(
            f"unpickling a tensor makes a new one, and no tensors can be made here "
            f"({error}): pass tensor.numpy() instead"
        ) from None


class _Lent(np.ndarray[Any, Any]):
    """An array of the caller's that a tensor shows: a type that no view of it passes over."""


def from_numpy(array: Any, requires_grad: bool = False) -> Tensor:
    """A tensor of the array's elements; without a copy if the array is in this child's arena.

    Such an array (``shmgpu.arena``, or a function's result) is borrowed: it is read-only while the
    tensor, a recorded operation that waits, an array from ``.data``, or the rest of a step that a
    helper still computes needs it. That rest ends with the next step. Any other array is copied.

    Args:
        array: a C-contiguous NumPy array to borrow; or anything that :func:`tensor` takes.
        requires_grad: collect gradients.

    Raises:
        TypeError: tensors have no such element type, or it has no gradients.
    """
    current.recorder()
    if type(array) is not np.ndarray or not runtime.require().port.arguments.holds(array):
        return tensor(array, requires_grad=requires_grad)
    kind = _kind(array)
    lent = array.view(_Lent)
    borrower = object()
    weakref.finalize(lent, plans.return_loans, [array], borrower).atexit = False
    plans.lend(array, borrower)
    held = Held(lent, core.address_of(array))
    return _made(graph.leaf(spec_of(kind, array.shape), held), requires_grad)


def _kind(array: np.ndarray[Any, Any]) -> DType:
    kind = dtypes.of_numpy(array.dtype)
    if kind not in CATEGORY:
        raise TypeError(
            f"tensors can be {', '.join(one.name for one in TYPES)}, not {kind.name}: convert"
        )
    return kind


# ---- made where they are needed ----------------------------------------------------------------


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = tuple(sizes[0])
    for n in sizes:
        if not isinstance(n, (int, np.integer)) or n < 0:
            raise ValueError(f"the shape {sizes} must consist of whole numbers, 0 or more")
    return tuple([int(n) for n in sizes])


def _made(node: Node, requires_grad: bool) -> Tensor:
    made = Tensor(node)
    return made.requires_grad_() if requires_grad else made


def full(
    size: Sequence[int], fill_value: complex, dtype: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor of one value."""
    kind = OF_NUMBER[category_of_number(fill_value)] if dtype is None else dtypes.of_any(dtype)
    return _made(creation.full(_shape(tuple(size)), fill_value, kind), requires_grad)


def zeros(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _made(creation.full(_shape(size), 0, dtypes.of_any(dtype)), requires_grad)


def ones(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _made(creation.full(_shape(size), 1, dtypes.of_any(dtype)), requires_grad)


def manual_seed(seed: int) -> None:
    """Seed the random numbers drawn from now on; takes precedence over ``launch(seed=)``."""
    seeds.seed_by_user(seed)


def randn(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of random numbers from the normal distribution with mean 0 and variance 1."""
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RANDN, _shape(size), dtypes.of_any(dtype))
    return _made(node, requires_grad)


def rand(*size: Any, dtype: Any = float32, requires_grad: bool = False) -> Tensor:
    """A tensor of random numbers, uniformly distributed from 0 (included) to 1 (excluded)."""
    current.recorder()  # what is drawn may follow from the place in the broker
    node = creation.random(creation.RAND, _shape(size), dtypes.of_any(dtype))
    return _made(node, requires_grad)


# ---- operations, as functions and as methods ---------------------------------------------------


_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # NumPy's names, which PyTorch takes, too


# What shows elements of its first argument: a change in place of one is seen in the other.
_VIEWS = frozenset(
    "permute transpose unsqueeze squeeze flatten narrow split chunk movedim unbind "
    "ravel unflatten select swapaxes broadcast_to".split()
)


def recording(record: Callable[..., Any]) -> Callable[..., Any]:
    """The function over tensors that records as ``record`` does over nodes."""
    is_view = record.__name__ in _VIEWS
    follow = autocasting.following(record)

    @functools.wraps(record)
    def call(*args: Any, **kwargs: Any) -> Any:
        out = follow(
            *[
                a._node if type(a) is Tensor else a if type(a) in _PLAIN else as_argument(a)
                for a in args
            ],
            **{_ALIASES.get(k, k): as_argument(v) for k, v in kwargs.items()} if kwargs else kwargs,
        )
        if type(out) is Node:
            return view(args[0], out) if is_view and type(args[0]) is Tensor else Tensor(out)
        if is_view and type(args[0]) is Tensor:
            return tuple([view(args[0], one) for one in out])
        made = [Tensor(one) for one in out]
        return type(out)(*made) if hasattr(out, "_fields") else tuple(made)

    call.__dict__["__signature__"] = _of_tensors(inspect.signature(record))
    return call


_SHOWN = {"Node": "Tensor", "Operand": "Tensor | complex", "Dim": "int | Sequence[int] | None"}
_SHOWN |= {"Shape": "Sequence[int]", "Found": "(values, indices)"}


def _of_tensors(of_nodes: inspect.Signature) -> inspect.Signature:
    """What ``help()`` shows: the same in the words of whoever calls."""

    def shown(annotation: Any) -> Any:
        return re.sub(r"\w+", lambda word: _SHOWN.get(word[0], word[0]), str(annotation))

    return of_nodes.replace(
        parameters=[
            one.replace(annotation=shown(one.annotation)) for one in of_nodes.parameters.values()
        ],
        return_annotation=shown(of_nodes.return_annotation),
    )


_PLAIN = frozenset((bool, int, float, str, type(None)))


def as_argument(value: Any) -> Any:
    """What ``record`` functions take: nodes for tensors and arrays, also in lists."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Tensor:
        return value._node
    if isinstance(value, (list, tuple)) and any(type(one) is Tensor for one in value):
        return [as_operand(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return _leaf(value, None) if arrays.is_array(value) else value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: recording(getattr(family, name))
    for family, names in (
        (
            elementwise,
            "add sub mul div pow maximum minimum remainder floor_divide eq ne lt le gt ge",
        ),
        (elementwise, "logical_not logical_and logical_or bitwise_and bitwise_or bitwise_xor"),
        (elementwise, "bitwise_left_shift bitwise_right_shift"),
        (elementwise, "bitwise_not neg abs sign floor ceil round exp log sqrt rsqrt sin cos tanh"),
        (elementwise, "sigmoid erf relu where clamp log1p square reciprocal isnan isfinite isinf"),
        (transcendental, "expm1 asin acos atan asinh acosh atanh atan2 hypot copysign signbit"),
        (transcendental, "nextafter arcsin arccos arctan arcsinh arccosh arctanh arctan2"),
        (shaping, "permute transpose unsqueeze squeeze flatten cat stack narrow split chunk"),
        (shaping, "flip movedim unbind"),
        (casting, "to"),
        (stretching, "sum"),
        (reductions, "mean var std amax amin logsumexp all any prod"),
        (linear, "matmul linear dot"),
        (activations, "softmax log_softmax gelu silu leaky_relu softplus dropout"),
        (normalising, "layer_norm"),
        (windows, "conv2d max_pool2d avg_pool2d"),
        (attention, "scaled_dot_product_attention"),
        (losses, "mse_loss l1_loss nll_loss cross_entropy binary_cross_entropy"),
        (losses, "binary_cross_entropy_with_logits"),
        (indexing, "gather scatter_add index_select take embedding masked_fill"),
        (rearranging, "tril triu pad roll one_hot"),
        (ordering, "argmax argmin max min argsort sort topk cumsum cumprod searchsorted"),
        (ordering, "bucketize"),
        (products, "mm bmm mv outer addmm addmv baddbmm tensordot einsum"),
        (arranging, "ravel unflatten select swapaxes broadcast_to tile repeat_interleave concat"),
        (arranging, "vstack hstack diagonal diag take_along_dim index_add index_copy index_fill"),
        (arranging, "scatter diff"),
        (shaping, "reshape"),
        (formulas, "absolute clip trunc fmod log2 log10 tan sinh cosh logaddexp logical_xor lerp"),
        (formulas, "addcmul addcdiv nan_to_num isclose count_nonzero norm"),
        (distances, "cosine_similarity"),
        (formulas, "var_mean std_mean aminmax median"),
    )
    for name in names.split()
}

_NOT_METHODS = {
    "linear",
    "where", "cat", "stack", "permute", "gelu", "silu", "leaky_relu", "softplus", "dropout",
    "layer_norm", "conv2d", "max_pool2d", "avg_pool2d", "scaled_dot_product_attention", "embedding",
    "mse_loss", "l1_loss", "nll_loss", "cross_entropy", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "pad", "one_hot", "einsum", "concat", "vstack", "hstack",
    "cosine_similarity", "reshape", "tile", "searchsorted", "bucketize",
}  # fmt: skip
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "mod": "remainder",
    "floordiv": "floor_divide", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "int": "int32", "long": "int64", "bool": "bool",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _reflected(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: call(other, self)


def _comparing(call: Callable[..., Any]) -> Callable[..., Any]:
    """Python asks the other side, and at last whether the two are one, of what is no number."""
    return lambda self, other: (
        NotImplemented if other is None or isinstance(other, str) else call(self, other)
    )


def _in_place(name: str) -> Callable[..., Any]:
    family = linear if name == "matmul" else elementwise
    record = getattr(family, name)

    def update(self: Tensor, other: Any, **options: Any) -> Tensor:
        operand = as_operand(other)
        is_free = self._node.leaf is None or not graph.grad_mode.enabled
        if is_free or getattr(operand, "needs_grad", False):
            return self._updated(record(self._node, operand, **options))
        # ``weight -= rate * weight.grad``: no gradient could flow through that, so it is a step of
        # training and not a mistake, although PyTorch wants no_grad() around it.
        with no_grad():
            return self._updated(record(self._node, operand, **options))

    update.__doc__ = f"As :func:`shmgpu.{name}`; this tensor becomes the result."
    return update


# Those that have a form in place, with an underscore.
_CHANGING = (
    "abs acos addcdiv addcmul asin atan ceil clamp clip copysign exp expm1 floor "
    "floor_divide index_add index_copy index_fill lerp log log1p masked_fill neg pow "
    "reciprocal relu remainder round rsqrt scatter scatter_add sigmoid sign sqrt square tanh "
    "tril triu trunc"
)


def _changing(name: str) -> Callable[..., Any]:
    call = FUNCTIONS[name]

    def update(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._updated(call(self, *args, **options)._node)

    update.__doc__ = f"As :func:`shmgpu.{name}`; this tensor becomes the result."
    return update


def _add_methods() -> None:
    for name in _CHANGING.split():
        setattr(Tensor, f"{name}_", _changing(name))
    for name, call in FUNCTIONS.items():
        if name not in _NOT_METHODS:
            setattr(Tensor, name, call)
    for operator, name in _OPERATORS.items():
        setattr(Tensor, f"__{operator}__", FUNCTIONS[name])
        setattr(Tensor, f"__r{operator}__", _reflected(FUNCTIONS[name]))
        setattr(Tensor, f"__i{operator}__", _in_place(name))
        if operator in ("add", "sub", "mul", "truediv"):
            setattr(Tensor, f"{name}_", _in_place(name))
    for name in _COMPARISONS:
        setattr(Tensor, f"__{name}__", _comparing(FUNCTIONS[name]))
    Tensor.__hash__ = object.__hash__  # type: ignore[method-assign]
    for dunder, name in {"neg": "neg", "abs": "abs", "invert": "bitwise_not"}.items():
        setattr(Tensor, f"__{dunder}__", FUNCTIONS[name])

    for method, dtype in _CASTS.items():
        setattr(Tensor, method, functools.partialmethod(FUNCTIONS["to"], dtype))

    def permute(self: Tensor, *dims: Any) -> Tensor:
        """The axes in another order; name each once, as arguments or in one sequence."""
        return view(self, shaping.permute(self._node, _dims(dims)))

    def reshape(self: Tensor, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be -1, and is then inferred."""
        return view(self, shaping.reshape(self._node, _dims(shape)))

    def expand(self: Tensor, *shape: Any) -> Tensor:
        """Axes of length 1 expanded to these lengths; -1 keeps an axis as it is."""
        return view(self, stretching.expand(self._node, _dims(shape)))

    def repeat(self: Tensor, *sizes: Any) -> Tensor:
        """Put beside itself so many times along each axis."""
        sizes = _dims(sizes)
        if len(sizes) < self.ndim:
            raise ValueError(f"repeat: {sizes} says nothing of some of the {self.ndim} axes")
        return Tensor(arranging.tile(self._node, sizes))

    def tile(self: Tensor, *dims: Any) -> Tensor:
        """Put beside itself so many times along each axis; missing ones count as 1."""
        return Tensor(arranging.tile(self._node, _dims(dims)))

    for made in (permute, reshape, expand, repeat, tile):
        setattr(Tensor, made.__name__, made)
    Tensor.view = reshape  # type: ignore[attr-defined]


def _dims(given: tuple[Any, ...]) -> tuple[int, ...]:
    if len(given) == 1 and isinstance(given[0], Sequence):
        given = tuple(given[0])
    return tuple([int(n) for n in given])


_add_methods()


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients of the outputs' sum with respect to each input.

    Args:
        outputs: the tensors to differentiate; their sum, if there are several.
        inputs: the tensors with respect to which gradients are taken.
        retain_graph: keep what a second call needs; by default as ``create_graph``.
        grad_outputs: the gradients with respect to the outputs; by default ones.
        create_graph: make the gradients differentiable themselves.
        allow_unused: return None for an input that the outputs do not depend on.

    Raises:
        RuntimeError: the outputs do not depend on an input, and that is not allowed.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     x = shmgpu.tensor([1.0, 2.0], requires_grad=True)
        ...     shmgpu.grad((x * x).sum(), x)[0].tolist()
        [2.0, 4.0]
    """
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    ins = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    seeds: list[Any] = [None] * len(outs)
    if grad_outputs is not None:
        given = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)
        seeds = [None if one is None else one._node for one in given]
    found = autograd.gradients(
        [one._node for one in outs],
        seeds,
        create_graph=create_graph,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        only=[one._node for one in ins],
    )
    for index, one in enumerate(ins):
        if one._node not in found and not allow_unused:
            raise RuntimeError(
                f"grad: the outputs do not depend on input {index}: omit it, or pass "
                "allow_unused=True to get None in its place"
            )
    return tuple([Tensor(found[one._node]) if one._node in found else None for one in ins])


# ---- settings, in the spelling of GT -----------------------------------------------------------


def set_verbosity(level: int) -> None:
    """How much is logged: 0 errors, 1 warnings, 2 events, 3 everything."""
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    if level not in range(4):
        raise ValueError(f"set_verbosity({level!r}): pass 0, 1, 2 or 3")
    logging.getLogger("shmgpu").setLevel(levels[level])
