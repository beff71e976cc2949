"""The element type of a result, from the types of its operands: PyTorch's rules.

Owns the table of promotion and the ranks of operands: an array with axes decides before one
without, and that before a plain number, unless the lower rank is of a higher category (bool, whole
number, float). Never looks at a value. Source: PyTorch's documentation, *Tensor Attributes*, "type
promotion".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from shmgpu.codec import dtypes
from shmgpu.codec.dtypes import DType
from shmgpu.ops.casting import CAST, NAMES, refuse_strange
from shmgpu.ops.graph import MAX_KNOWN, Node, Scalar, apply, spec_of

bool_ = dtypes.by_name("bool")
uint8 = dtypes.by_name("uint8")
int8 = dtypes.by_name("int8")
int16 = dtypes.by_name("int16")
int32 = dtypes.by_name("int32")
int64 = dtypes.by_name("int64")
float16 = dtypes.by_name("float16")
bfloat16 = dtypes.by_name("bfloat16")
float32 = dtypes.by_name("float32")
float64 = dtypes.by_name("float64")

TYPES = tuple(map(dtypes.by_name, NAMES))

BOOL, WHOLE, FLOAT = range(3)
CATEGORY = dict.fromkeys(TYPES, FLOAT) | {bool_: BOOL}
CATEGORY |= dict.fromkeys((uint8, int8, int16, int32, int64), WHOLE)

# Of a plain number, by its category.
OF_NUMBER = {BOOL: bool_, WHOLE: int64, FLOAT: float32}

_ORDER = {dtype: place for place, dtype in enumerate(TYPES)}
_decided: dict[tuple[Any, ...], DType] = {}  # outcomes for operands' specs and kinds
# Pairs of types of one category that do not give the greater of the two.
_ODD = {
    frozenset((uint8, int8)): int16,
    frozenset((float16, bfloat16)): float32,
}


def is_float(dtype: DType) -> bool:
    """Whether gradients can be of that type."""
    return CATEGORY.get(dtype) == FLOAT


@cache
def promote(a: DType, b: DType) -> DType:
    """The type of an operation on both."""
    odd = _ODD.get(frozenset((a, b)))
    if odd is not None:
        return odd
    return max(a, b, key=lambda dtype: (CATEGORY[dtype], _ORDER[dtype]))


def category_of_number(number: complex) -> int:
    """The category of a plain number; TypeError for a complex one."""
    if isinstance(number, bool):
        return BOOL
    if isinstance(number, int):
        return WHOLE
    if isinstance(number, float):
        return FLOAT
    raise TypeError(f"{number!r} is not a number that tensors support: use bool, int or float")


def result_type(operands: Sequence[Node | complex]) -> DType:
    """The type that an element-wise operation on these is done in."""
    key = tuple([one.spec if isinstance(one, Node) else type(one) for one in operands])
    decided = _decided.get(key)
    if decided is None:
        decided = _decide(operands)
        if len(_decided) >= MAX_KNOWN:
            _decided.clear()
        _decided[key] = decided
    return decided


def _decide(operands: Sequence[Node | complex]) -> DType:
    ranks: list[DType | None] = [None, None, None]
    for operand in operands:
        if not isinstance(operand, Node):
            rank, dtype = 0, OF_NUMBER[category_of_number(operand)]
        else:
            rank, dtype = (2 if operand.spec.shape else 1), operand.spec.dtype
        held = ranks[rank]
        ranks[rank] = dtype if held is None else promote(held, dtype)
    decided: DType | None = None
    for best in reversed(ranks):
        if decided is None:
            decided = best
        elif best is not None and CATEGORY[best] > CATEGORY[decided]:
            decided = best
    assert decided is not None
    return decided


_BEYOND = 1 << 63  # of what int64 holds
_PYTHON = {BOOL: bool, WHOLE: int, FLOAT: float}
# For a number of each type: what converts it to Python's own, and its spec.
_NUMBERS = {dtype: (_PYTHON[category], spec_of(dtype, ())) for dtype, category in CATEGORY.items()}


def number(value: complex, dtype: DType) -> Node:
    """A plain number as a node of that type.

    Raises:
        TypeError: tensors have no such type.
        OverflowError: it is of integers, and this one fits into none.
    """
    if dtype not in _NUMBERS:
        refuse_strange(dtype)
    kind, spec = _NUMBERS[dtype]
    plain = kind(value)
    if kind is int and not -_BEYOND <= plain < _BEYOND:
        raise OverflowError(f"{value} does not fit into int64: give a float")
    return Node(None, (), (), spec, Scalar(plain))


def as_node(operand: Node | complex, dtype: DType) -> Node:
    """The operand as a node of that type."""
    if not isinstance(operand, Node):
        return number(operand, dtype)
    if operand.spec.dtype is dtype:
        return operand
    if type(operand.value) is Scalar:
        made = number(operand.value.number, dtype)
        made.value.source = operand.value
        return made
    return apply(CAST, (operand,), (dtype,))


def together(*operands: Node | complex) -> tuple[Node, ...]:
    """The operands as nodes of the type that an operation on them is done in."""
    first = operands[0]
    if isinstance(first, Node):
        dtype = first.spec.dtype
        for other in operands[1:]:
            if not isinstance(other, Node) or other.spec.dtype is not dtype:
                break
        else:
            return operands  # type: ignore[return-value]
    dtype = result_type(operands)
    return tuple([as_node(operand, dtype) for operand in operands])


def floats(*operands: Node | complex) -> tuple[Node, ...]:
    """The same, in a float type: the default one, float32, where none of them is of one."""
    dtype = result_type(operands)
    if CATEGORY[dtype] != FLOAT:
        dtype = float32
    return tuple([as_node(operand, dtype) for operand in operands])
