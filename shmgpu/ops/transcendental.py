"""Inverse and other functions of one or two numbers, exact where formulas of simpler ones are not.

Owns their rows and the functions that record them. Gradients are the derivatives that tables of
calculus give; at the edge of a function's domain they are infinite or NaN, as in PyTorch. Never
raises for a number outside the domain: the result is NaN.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.ops.elementwise import (
    Operand,
    add,
    ceil,
    div,
    eq,
    exp,
    floor,
    lt,
    mul,
    neg,
    row,
    rsqrt,
    sub,
    where,
)
from shmgpu.ops.graph import Node, apply
from shmgpu.ops.promotion import bool_, floats, is_float, together

# ---- one number ----------------------------------------------------------------------------------

EXPM1 = row("expm1", lambda g, n: mul(g, add(n, 1)), saves="o")
LOG2 = row("log2", lambda g, n: div(g, mul(n.inputs[0], math.log(2))), saves="i")
LOG10 = row("log10", lambda g, n: div(g, mul(n.inputs[0], math.log(10))), saves="i")
TAN = row("tan", lambda g, n: mul(g, add(mul(n, n), 1)), saves="o")
SINH = row("sinh", lambda g, n: mul(g, cosh(n.inputs[0])), saves="i")
COSH = row("cosh", lambda g, n: mul(g, sinh(n.inputs[0])), saves="i")
ASIN = row(
    "asin",
    lambda g, n: mul(g, rsqrt(sub(1, mul(n.inputs[0], n.inputs[0])))),
    numpy="arcsin",
    saves="i",
)
ACOS = row(
    "acos",
    lambda g, n: neg(mul(g, rsqrt(sub(1, mul(n.inputs[0], n.inputs[0]))))),
    numpy="arccos",
    saves="i",
)
ATAN = row(
    "atan",
    lambda g, n: div(g, add(mul(n.inputs[0], n.inputs[0]), 1)),
    numpy="arctan",
    saves="i",
)
ASINH = row(
    "asinh",
    lambda g, n: mul(g, rsqrt(add(mul(n.inputs[0], n.inputs[0]), 1))),
    numpy="arcsinh",
    saves="i",
)
ACOSH = row(
    "acosh",
    lambda g, n: mul(g, rsqrt(sub(mul(n.inputs[0], n.inputs[0]), 1))),
    numpy="arccosh",
    saves="i",
)
ATANH = row(
    "atanh",
    lambda g, n: div(g, sub(1, mul(n.inputs[0], n.inputs[0]))),
    numpy="arctanh",
    saves="i",
)
SIGNBIT = row("signbit", dtype=bool_, in_place=False)


def expm1(x: Node) -> Node:
    """``exp(x) - 1``, exact also for small x; float32 for integers."""
    return apply(EXPM1, floats(x))


def asin(x: Node) -> Node:
    """The angle whose sine it is, in radians; NaN beyond 1. Integers give float32."""
    return apply(ASIN, floats(x))


def acos(x: Node) -> Node:
    """The angle whose cosine it is, in radians; NaN beyond 1. Integers give float32."""
    return apply(ACOS, floats(x))


def atan(x: Node) -> Node:
    """The angle whose tangent it is, in radians; float32 for integers."""
    return apply(ATAN, floats(x))


def asinh(x: Node) -> Node:
    """The number whose hyperbolic sine it is; float32 for integers."""
    return apply(ASINH, floats(x))


def acosh(x: Node) -> Node:
    """The number whose hyperbolic cosine it is; NaN below 1. Integers give float32."""
    return apply(ACOSH, floats(x))


def atanh(x: Node) -> Node:
    """The number whose hyperbolic tangent it is; NaN beyond 1. Integers give float32."""
    return apply(ATANH, floats(x))


def signbit(x: Node) -> Node:
    """Whether the sign bit is set (negative, or -0.0), bool."""
    return apply(SIGNBIT, (x,)) if is_float(x.spec.dtype) else lt(x, 0)


def arcsin(x: Node) -> Node:
    """As :func:`shmgpu.asin`."""
    return asin(x)


def arccos(x: Node) -> Node:
    """As :func:`shmgpu.acos`."""
    return acos(x)


def arctan(x: Node) -> Node:
    """As :func:`shmgpu.atan`."""
    return atan(x)


def arcsinh(x: Node) -> Node:
    """As :func:`shmgpu.asinh`."""
    return asinh(x)


def arccosh(x: Node) -> Node:
    """As :func:`shmgpu.acosh`."""
    return acosh(x)


def arctanh(x: Node) -> Node:
    """As :func:`shmgpu.atanh`."""
    return atanh(x)


# ---- two numbers ---------------------------------------------------------------------------------


def _turn(g: Node, n: Node) -> Node:
    """A gradient over the square of the distance from the origin, and 0 there."""
    y, x = n.inputs
    square = add(mul(y, y), mul(x, x))
    return where(eq(square, 0), 0.0, div(g, square))


FMOD = row(
    "fmod",
    lambda g, n: g,
    lambda g, n: neg(mul(g, _towards_zero(div(*n.inputs)))),
    saves="i",
    bools=False,
)
LOGADDEXP = row(
    "logaddexp",
    lambda g, n: div(g, add(exp(sub(n.inputs[1], n.inputs[0])), 1)),
    lambda g, n: div(g, add(exp(sub(*n.inputs)), 1)),
    saves="i",
    numbers=(),
)


def _towards_zero(x: Node) -> Node:
    if not is_float(x.spec.dtype):
        return x
    return where(lt(x, 0), ceil(x), floor(x))


ATAN2 = row(
    "atan2",
    lambda g, n: mul(_turn(g, n), n.inputs[1]),
    lambda g, n: neg(mul(_turn(g, n), n.inputs[0])),
    numpy="arctan2",
    saves="i",
    numbers=(),
)
HYPOT = row(
    "hypot",
    lambda g, n: mul(g, div(n.inputs[0], n)),
    lambda g, n: mul(g, div(n.inputs[1], n)),
    saves="io",
    numbers=(),
)


def _copied_sign(g: Node, n: Node) -> Node:
    """1 or -1, as the sign was kept or turned, and 0 at 0."""
    x = n.inputs[0]
    return mul(g, where(eq(x, 0), 0.0, div(n, x)))


COPYSIGN = row("copysign", _copied_sign, lambda g, n: mul(g, 0), saves="io")


def _torch_nextafter(torch: Any, specs: Any, params: Any, out: Any) -> Any:
    """Of float16, which torch has not, NumPy's."""
    if out.dtype.name != "float16":
        return torch.nextafter

    def kernel(x: Any, y: Any) -> Any:
        import numpy

        found = numpy.nextafter(x.cpu().numpy(), y.cpu().numpy())
        return torch.from_numpy(numpy.asarray(found)).to(x.device)

    return kernel


NEXTAFTER = row(
    "nextafter",
    lambda g, n: g,
    lambda g, n: mul(g, 0),
    torch=_torch_nextafter,
    in_place=False,
    numbers=(),
)


def log2(x: Operand) -> Node:
    """The logarithm to base 2; float32 for integers."""
    return apply(LOG2, floats(x))


def log10(x: Operand) -> Node:
    """The logarithm to base 10; float32 for integers."""
    return apply(LOG10, floats(x))


def tan(x: Operand) -> Node:
    """The tangent; float32 for integers."""
    return apply(TAN, floats(x))


def sinh(x: Operand) -> Node:
    """The hyperbolic sine; float32 for integers."""
    return apply(SINH, floats(x))


def cosh(x: Operand) -> Node:
    """The hyperbolic cosine; float32 for integers."""
    return apply(COSH, floats(x))


def fmod(a: Operand, b: Operand) -> Node:
    """The remainder of a division, with the sign of ``a``, as in C."""
    return apply(FMOD, together(a, b))


def logaddexp(a: Operand, b: Operand) -> Node:
    """``log(exp(a) + exp(b))`` without overflow; float32 for integers."""
    return apply(LOGADDEXP, floats(a, b))


def atan2(input: Operand, other: Operand) -> Node:
    """The angle from the first axis to the point (other, input), in radians.

    Shapes and types as for :func:`shmgpu.div`. At the origin it is 0, and so is its gradient.
    """
    return apply(ATAN2, floats(input, other))


def arctan2(input: Operand, other: Operand) -> Node:
    """As :func:`shmgpu.atan2`."""
    return atan2(input, other)


def hypot(input: Operand, other: Operand) -> Node:
    """``sqrt(input ** 2 + other ** 2)`` without overflow; shapes and types as of :func:`atan2`."""
    return apply(HYPOT, floats(input, other))


def copysign(input: Operand, other: Operand) -> Node:
    """The first number with the sign of the second; -0.0 is negative.

    Shapes and types as for :func:`shmgpu.div`; no gradient flows to the second.
    """
    return apply(COPYSIGN, floats(input, other))


def nextafter(input: Operand, other: Operand) -> Node:
    """The next representable number after the first towards the second; it has no gradient."""
    return apply(NEXTAFTER, floats(input, other))
