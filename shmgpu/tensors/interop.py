"""Tensors that are passed to other libraries' functions.

NumPy's functions compute on a tensor's elements, as they do on any object that is not NumPy's own.
PyTorch's functions cannot: they raise an error that names what to call instead. Owns both answers.
Never records anything.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection
from typing import Any

INDEXING = {"__getitem__", "__setitem__"}  # of PyTorch's own tensors
WITHOUT_ELEMENTS = {"shape", "ndim"}  # functions of NumPy to which the shape is enough


def with_numpy(kind: type, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call NumPy's function with the elements of what is of that kind, however deep it lies."""
    plain = getattr(function, "__wrapped__", None)
    if plain is not None and function.__name__ in WITHOUT_ELEMENTS:
        return plain(*args, **kwargs)
    plainly = _converted(kind, (args, kwargs), lambda one: one.__array__())
    return function(*plainly[0], **plainly[1])


def _converted(kind: type, value: Any, convert: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if type(value) in (tuple, list):
        return type(value)(_converted(kind, one, convert) for one in value)
    if type(value) is dict:
        return {name: _converted(kind, one, convert) for name, one in value.items()}
    return value


def with_torch(
    kind: Any, function: Callable[..., Any], args: Any, kwargs: Any, names: Collection[str]
) -> Any:
    """Let what is of that kind be an index, or a length, of PyTorch's tensors; refuse all else.

    Args:
        kind: the class of the package's tensors.
        function: PyTorch's.
        args: what it was called with.
        kwargs: likewise.
        names: functions of the package.

    Raises:
        TypeError: it computes, and has no elements to do so with.
    """
    name = str(getattr(function, "__name__", function))
    if name in INDEXING:
        copy = sys.modules["torch"].tensor
        return function(*_converted(kind, args, lambda one: copy(one.__array__())))
    try:
        plainly = _converted(kind, (args, kwargs), _index)
    except TypeError:
        pass
    else:
        return function(*plainly[0], **plainly[1])
    ways = [f"shmgpu.{name}()"] if name in names else []
    if not name.startswith("__") and hasattr(kind, name):
        ways.append(f"the tensor's own .{name}()")
    use = f"use {' or '.join(ways)}, or " if ways else ""
    raise TypeError(
        f"PyTorch's {name}() was given a tensor of shmgpu, whose elements are in a helper: {use}"
        "give it a copy of them, torch.tensor(t.numpy())"
    )


def _index(tensor: Any) -> int:
    if tensor.shape:
        raise TypeError("not one number")
    return operator.index(tensor)
