"""The shape of an output, from the shapes of the inputs: rules that rows of the table name.

A rule gets the inputs' specs and the operation's params, and returns the output's spec or raises
ValueError in a sentence with the shapes. Owns these rules. Never converts a type: types are brought
together before (:mod:`shmgpu.ops.promotion`), and a rule only checks them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from shmgpu.codec.dtypes import DType
from shmgpu.ops.graph import Params, Rule, Spec, spec_of

Specs = tuple[Spec, ...]
Shape = tuple[int, ...]


def broadcast(shapes: Sequence[Shape], name: str) -> Shape:
    """The shape that all of them are broadcast to; ValueError where there is none."""
    ndim = max(map(len, shapes))
    out = [1] * ndim
    for shape in shapes:
        for axis, length in enumerate(shape, ndim - len(shape)):
            if length != 1 and out[axis] != length:
                if out[axis] != 1:
                    listed = " and ".join(str(tuple(shape)) for shape in shapes)
                    raise ValueError(
                        f"{name}: the shapes {listed} cannot be broadcast together: axis "
                        f"{axis - ndim} is {out[axis]} in one and {length} in another"
                    )
                out[axis] = length
    return tuple(out)


def elementwise(name: str, dtype: DType | None = None) -> Rule:
    """All inputs are broadcast to one shape; the output's type is theirs, or the one given."""

    def rule(specs: Specs, params: Params) -> Spec:
        first = specs[0]
        if all(spec is first for spec in specs):
            shape = first.shape
        else:
            shape = broadcast([spec.shape for spec in specs], name)
        return spec_of(dtype or specs[-1].dtype, shape)

    return rule


def not_of_bools(name: str, rule: Rule) -> Rule:
    """The same, of integers and floats only."""

    def checked(specs: Specs, params: Params) -> Spec:
        if specs[0].dtype.name == "bool":
            raise TypeError(
                f"{name} is of numbers, not of bools: convert first, as in x.to('int64')"
            )
        return rule(specs, params)

    return checked


def whole(value: Any, name: str, word: str) -> int:
    """An argument that must be an integer; TypeError where it is not."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {word}={value!r} must be a whole number") from None


def only(name: str, **settings: tuple[Any, Any, str]) -> None:
    """ValueError for settings of PyTorch's that can have one value here.

    Each is (what was given, that value, what to do instead).
    """
    for word, (given, value, instead) in settings.items():
        if given is not value and given != value:
            raise ValueError(f"{name}: {word}={given!r} must be {value!r}: {instead}")


@lru_cache(maxsize=1024, typed=True)
def axis_of(dim: int, ndim: int, name: str) -> int:
    """The axis as a number from 0; IndexError where there is none."""
    dim = whole(dim, name, "dim")
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(
            f"{name}: dim={dim} is out of range for {ndim} axes: use {-max(ndim, 1)} to "
            f"{max(ndim, 1) - 1}"
        )
    return dim % max(ndim, 1)


def axes_of(dim: int | Sequence[int] | None, ndim: int, name: str) -> Shape:
    """Axes as numbers from 0 in order; all of them for None or ()."""
    if dim is None or dim == ():
        return tuple(range(ndim))
    if not isinstance(dim, Sequence):
        dim = (dim,)
    axes = tuple(sorted(axis_of(one, ndim, name) for one in dim))
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name}: dim={tuple(dim)} names an axis twice")
    return axes if ndim else ()


def reduced(shape: Shape, axes: Shape, keepdim: bool) -> Shape:
    """The shape with these axes gone, or of length 1."""
    if keepdim:
        return tuple([1 if axis in axes else n for axis, n in enumerate(shape)])
    return tuple([n for axis, n in enumerate(shape) if axis not in axes])


def reduction(dtype_of: Callable[[DType], DType] | None = None) -> Rule:
    """Params: (axes, keepdim)."""

    def rule(specs: Specs, params: Params) -> Spec:
        axes, keepdim = params
        (spec,) = specs
        dtype = spec.dtype if dtype_of is None else dtype_of(spec.dtype)
        return spec_of(dtype, reduced(spec.shape, axes, keepdim))

    return rule


def matmul(specs: Specs, params: Params) -> Spec:
    """Matrices in the last two axes, the others broadcast; vectors as NumPy takes them."""
    a, b = specs
    if not a.shape or not b.shape:
        raise ValueError(
            f"matmul: the shapes {a.shape} and {b.shape} need an axis each: multiply numbers by *"
        )
    left, right = a.shape, b.shape
    if left[-1] != right[-2 if len(right) > 1 else -1]:
        raise ValueError(
            f"matmul: {left} @ {right} does not fit: the last axis of the first is {left[-1]}, "
            f"the {'last but one' if len(right) > 1 else 'only'} axis of the second "
            f"{right[-2 if len(right) > 1 else -1]}"
        )
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    batch = broadcast([left[:-2], right[:-2]], "matmul")
    return spec_of(a.dtype, (*batch, *rows, *columns))
