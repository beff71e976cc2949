"""Element-wise functions of the array API.

Owns the table that maps the standard's names to operations. Never computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.array_api import types
from shmgpu.array_api.arguments import F, of_type, tensor_of, together
from shmgpu.tensors.tensor import Tensor

# The standard's name: the function's, what it takes, and what is done.
ONE = {
    "abs": ("abs", "numeric", "Absolute values."),
    "acos": ("acos", "real floating", "Inverse cosines."),
    "acosh": ("acosh", "real floating", "Inverse hyperbolic cosines."),
    "asin": ("asin", "real floating", "Inverse sines."),
    "asinh": ("asinh", "real floating", "Inverse hyperbolic sines."),
    "atan": ("atan", "real floating", "Inverse tangents."),
    "atanh": ("atanh", "real floating", "Inverse hyperbolic tangents."),
    "bitwise_invert": ("bitwise_not", ("bool", "integral"), "Each bit inverted."),
    "cos": ("cos", "real floating", "Cosines."),
    "cosh": ("cosh", "real floating", "Hyperbolic cosines."),
    "exp": ("exp", "real floating", "e to the power of each element."),
    "expm1": ("expm1", "real floating", "e to the power of each element, minus 1."),
    "isfinite": ("isfinite", "numeric", "Whether elements are neither infinite nor NaN."),
    "isinf": ("isinf", "numeric", "Whether elements are infinite."),
    "isnan": ("isnan", "numeric", "Whether elements are NaN."),
    "log": ("log", "real floating", "Natural logarithms."),
    "log1p": ("log1p", "real floating", "Natural logarithms of 1 plus each element."),
    "log2": ("log2", "real floating", "Logarithms to base 2."),
    "log10": ("log10", "real floating", "Logarithms to base 10."),
    "logical_not": ("logical_not", "bool", "Whether elements are False."),
    "negative": ("neg", "numeric", "Negated elements."),
    "reciprocal": ("reciprocal", "real floating", "1 divided by each element."),
    "signbit": ("signbit", "real floating", "Whether the sign bit is set, as of -0."),
    "sin": ("sin", "real floating", "Sines."),
    "sinh": ("sinh", "real floating", "Hyperbolic sines."),
    "sqrt": ("sqrt", "real floating", "Square roots."),
    "square": ("square", "numeric", "Squares."),
    "tan": ("tan", "real floating", "Tangents."),
    "tanh": ("tanh", "real floating", "Hyperbolic tangents."),
}
WHOLE = {
    "ceil": ("ceil", "Rounded up to integers."),
    "floor": ("floor", "Rounded down to integers."),
    "round": ("round", "Rounded to the nearest integers, halves to even."),
    "trunc": ("trunc", "Rounded towards 0."),
}
TWO = {
    "add": ("add", "numeric", "Sums."),
    "atan2": ("atan2", "real floating", "Angles of the points (x2, x1)."),
    "bitwise_and": ("bitwise_and", ("bool", "integral"), "Bits that are set in both."),
    "bitwise_left_shift": ("bitwise_left_shift", "integral", "Bits shifted left by x2."),
    "bitwise_or": ("bitwise_or", ("bool", "integral"), "Bits that are set in at least one."),
    "bitwise_right_shift": ("bitwise_right_shift", "integral", "Bits shifted right by x2."),
    "bitwise_xor": ("bitwise_xor", ("bool", "integral"), "Bits that are set in exactly one."),
    "copysign": ("copysign", "real floating", "Magnitudes of x1 with the signs of x2."),
    "divide": ("div", "real floating", "Quotients."),
    "equal": ("eq", None, "Whether elements are equal."),
    "floor_divide": ("floor_divide", "numeric", "Quotients, rounded downwards."),
    "greater": ("gt", "numeric", "Whether x1 is greater."),
    "greater_equal": ("ge", "numeric", "Whether x1 is greater or equal."),
    "hypot": ("hypot", "real floating", "Roots of the sums of squares."),
    "less": ("lt", "numeric", "Whether x1 is less."),
    "less_equal": ("le", "numeric", "Whether x1 is less or equal."),
    "logaddexp": ("logaddexp", "real floating", "Logarithms of the sums of exponentials."),
    "logical_and": ("logical_and", "bool", "Whether both are True."),
    "logical_or": ("logical_or", "bool", "Whether one is True."),
    "logical_xor": ("logical_xor", "bool", "Whether exactly one is True."),
    "maximum": ("maximum", "numeric", "The larger elements; NaN where either is."),
    "minimum": ("minimum", "numeric", "The smaller elements; NaN where either is."),
    "multiply": ("mul", "numeric", "Products."),
    "nextafter": ("nextafter", "real floating", "The next numbers after x1 towards x2."),
    "not_equal": ("ne", None, "Whether elements differ."),
    "pow": ("pow", "numeric", "x1 to the power of x2."),
    "remainder": ("remainder", "numeric", "What is left of x1 / x2; its sign is that of x2."),
    "subtract": ("sub", "numeric", "Differences."),
}


def checked(name: str, kind: Any, x: Any) -> Tensor:
    """The tensor; TypeError where it is none, or is of another kind."""
    if kind is not None and not types.isdtype(tensor_of(x, name).dtype, kind):
        kinds = " or ".join(kind) if isinstance(kind, tuple) else kind
        raise TypeError(f"{name}: the tensor is {x.dtype.name}, and must be of the kind {kinds}")
    return tensor_of(x, name)


def _one(name: str) -> Callable[..., Tensor]:
    called, kind, does = ONE[name]
    call = F[called]

    def function(x: Tensor, /) -> Tensor:
        made: Tensor = call(checked(name, kind, x))
        return made

    return _told(function, name, does)


def _whole(name: str) -> Callable[..., Tensor]:
    called, does = WHOLE[name]
    call = F[called]

    def function(x: Tensor, /) -> Tensor:
        checked(name, "numeric", x)
        made: Tensor = x if types.isdtype(x.dtype, "integral") else call(x)
        return made

    return _told(function, name, does)


def _two(name: str) -> Callable[..., Tensor]:
    called, kind, does = TWO[name]
    call = F[called]

    def function(x1: Any, x2: Any, /) -> Tensor:
        a, b = together(name, x1, x2)
        for one in (a, b):
            if isinstance(one, Tensor):
                checked(name, kind, one)
        made: Tensor = call(a, b)
        return made

    return _told(function, name, does)


def _told(function: Callable[..., Tensor], name: str, does: str) -> Callable[..., Tensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = does
    return function


MADE = (
    {name: _one(name) for name in ONE}
    | {name: _whole(name) for name in WHOLE}
    | {name: _two(name) for name in TWO}
)


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:
    """Elements limited to the range from ``min`` to ``max``, in x's type.

    Args:
        x: a tensor of numbers.
        min: a number, or a tensor; the two are broadcast.
        max: likewise.
    """
    checked("clip", "numeric", x)
    low, high = (of_type(one, x.dtype) if isinstance(one, Tensor) else one for one in (min, max))
    if low is None and high is None:
        return x.clone()
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        if low is not None:
            x = F["maximum"](x, low)
        return x if high is None else F["minimum"](x, high)
    made: Tensor = F["clamp"](x, low, high)
    return made


def positive(x: Tensor, /) -> Tensor:
    """The elements as they are."""
    return checked("positive", "numeric", x).clone()


def conj(x: Tensor, /) -> Tensor:
    """The elements as they are: there are no complex numbers."""
    return checked("conj", "numeric", x)


def real(x: Tensor, /) -> Tensor:
    """The elements as they are: there are no complex numbers."""
    return checked("real", "numeric", x)


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; NaN of NaN."""
    checked("sign", "numeric", x)
    found: Tensor = F["sign"](x)
    if types.isdtype(x.dtype, "real floating"):
        found = F["where"](F["isnan"](x), x, found)
    return found


_remainder = _two("remainder")


def remainder(x1: Any, x2: Any, /) -> Tensor:
    """The remainder of x1 / x2, with the sign of x2, also where it is 0."""
    found = _remainder(x1, x2)
    if types.isdtype(found.dtype, "real floating"):
        found = F["where"](F["eq"](found, 0), F["copysign"](found, x2), found)
    return found


OWN = (clip, positive, conj, real, remainder, sign)
MADE |= {function.__name__: function for function in OWN}
