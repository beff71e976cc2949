"""Tensors of what a program has: numbers, lists, arrays, tensors of other libraries.

Owns :func:`tensor`, which copies, and :func:`from_numpy`, which borrows an array of the arena.
Never sends a message.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from shmgpu import core
from shmgpu.child import plans, runtime
from shmgpu.codec import arrays
from shmgpu.ops import graph
from shmgpu.ops.graph import spec_of
from shmgpu.ops.promotion import float32
from shmgpu.tensors import current, devices
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.message import Held
from shmgpu.tensors.operands import kind_of, leaf_of


def tensor(
    data: Any, dtype: Any = None, requires_grad: bool = False, *, device: Any = None
) -> Tensor:
    """A tensor with a copy of the data.

    Args:
        data: a number, nested lists, an array, a torch tensor on the CPU, a tensor.
        dtype: element type; by default that of the data, and float32 for Python's floats.
        requires_grad: collect gradients. Integers in lists then become float32.
        device: accepted, and changes nothing: tensors live where helpers compute.

    Raises:
        TypeError: a gradient is wanted of a type that has none.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     (shmgpu.tensor([1.0, 2.0]) * 3).tolist()
        [3.0, 6.0]
    """
    if requires_grad and dtype is None and not arrays.is_array(data):
        dtype = float32
    devices.accepted(device)
    made = Tensor(leaf_of(data, dtype))
    if requires_grad:
        made.requires_grad_()
    return made


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
    kind = kind_of(array)
    lent = array.view(_Lent)
    borrower = object()
    weakref.finalize(lent, plans.return_loans, [array], borrower).atexit = False
    plans.lend(array, borrower)
    held = Held(lent, core.address_of(array))
    made = Tensor(graph.leaf(spec_of(kind, array.shape), held))
    return made.requires_grad_() if requires_grad else made
