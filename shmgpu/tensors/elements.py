"""A tensor's elements as a program reads them: their type and shape, arrays, numbers, text.

Owns the array that ``tensor.data`` is, and the methods of tensors that only read. Never changes an
element, and never records an operation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from shmgpu.codec.dtypes import DType
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import is_float
from shmgpu.tensors import current
from shmgpu.tensors.operands import Shown

_READ_ONLY = "a tensor's data is a read-only array: under no_grad(), change the tensor itself"


class Data(np.ndarray[Any, Any]):
    """A tensor's elements: a read-only array.

    Programs that change ``tensor.data`` in place, as PyTorch lets them, are told what does.
    """

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.flags.writeable:
            raise ValueError(f"{_READ_ONLY}: tensor[...] = value")
        super().__setitem__(index, value)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):  # an operation in place
            raise AttributeError(f"{_READ_ONLY}: tensor.{name}(...)")
        raise AttributeError(f"a tensor's data is a NumPy array, which has no attribute {name!r}")

    def numpy(self) -> np.ndarray[Any, Any]:
        """The same elements as a plain array."""
        return self.view(np.ndarray)


def shown_elements(node: Node) -> Data:
    """A node's elements as a read-only array, computed now if they were not before."""
    shown = current.elements(node).view(Data)
    shown.setflags(write=False)
    return shown


class Size(int):
    """How many elements a tensor has; called, its shape, or the length of one axis."""

    shape: tuple[int, ...]

    def __new__(cls, shape: tuple[int, ...]) -> Size:
        """Of a tensor of that shape."""
        made = super().__new__(cls, math.prod(shape))
        made.shape = shape
        return made

    def __call__(self, dim: int | None = None) -> Any:
        """The shape, or the length of one axis."""
        return self.shape if dim is None else self.shape[dim]


class Readable(Shown):
    """What can be read of a tensor: its type, its shape, and its elements in many forms."""

    __slots__ = ()

    if TYPE_CHECKING:  # which the tensor has
        data: Data

    # ---- what they are ------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """The number of its current value, as :mod:`shmgpu.debug` shows it."""
        return self._node.number

    node_id = id  # GT's name for it

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
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._node.spec.nbytes

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floats."""
        return is_float(self.dtype)

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """True: the helper decides how elements lie in memory."""
        return True

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def size(self) -> Size:
        """``size()`` is the shape, ``size(dim)`` the length of an axis; itself it is a number.

        PyTorch's method, and NumPy's and the array API's attribute: how many elements there are.
        """
        return Size(self._node.spec.shape)

    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self._node.spec.shape)

    nelement, ndimension = numel, dim  # PyTorch's other names

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    # ---- themselves -----------------------------------------------------------------------------

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

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise ValueError(
                f"whether {self.numel()} elements are true is not one answer (the shape is "
                f"{self.shape}): use any() or all(), or shmgpu.equal(a, b)"
            )
        return bool(self.item())

    def __index__(self) -> int:
        if is_float(self.dtype):
            raise TypeError(f"a tensor of {self.dtype.name} is not an index: use int(tensor)")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self if self.shape else self.item(), spec) if spec else str(self)

    def __complex__(self) -> complex:
        return complex(self.item())

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self.numpy().__dlpack_device__()

    def __repr__(self) -> str:
        text = np.array2string(np.asarray(self.data), separator=", ", prefix="tensor(")
        grad = ", requires_grad=True" if self._node.needs_grad else ""
        return f"tensor({text}, dtype={self.dtype.name}{grad})"
