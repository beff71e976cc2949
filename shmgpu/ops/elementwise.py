"""Operations on one element, or on those at the same position.

Owns their rows and the functions that record them, which take nodes and plain numbers, in
PyTorch's spelling. Gradients are recorded by the same functions. Never sums the gradient of an
operand that was broadcast: autograd does.
"""

from __future__ import annotations

import builtins
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.casting import cast
from shmgpu.ops.graph import Gradient, Node, Op, Scalar, apply
from shmgpu.ops.kernels import Binder, named, numpy_erf
from shmgpu.ops.promotion import (
    as_node,
    bool_,
    floats,
    int64,
    is_float,
    result_type,
    together,
)

Operand = Node | complex


def row(
    name: str,
    *gradients: Gradient | None,
    numpy: str | Binder | None = None,
    torch: str | Binder | None = None,
    saves: str = "",
    dtype: Any = None,
    in_place: bool = True,
    numbers: tuple[int, ...] = (1,),
    bools: bool = True,
    may_fail: bool = False,
) -> Op:
    """A row of the table: shapes are broadcast, the type is the inputs' unless ``dtype`` says.

    ``numpy`` and ``torch`` name the library's function, where its name is another than the row's.
    """
    rule = rules.elementwise(name, dtype)

    def binder(given: str | Binder | None) -> Binder:
        return named(given or name) if not callable(given) else given

    return Op(
        name,
        rule if bools else rules.not_of_bools(name, rule),
        numpy=binder(numpy),
        torch=binder(torch),
        gradients=gradients,
        saves=saves,
        broadcasts=True,
        in_place=in_place and dtype is None,
        takes_out=in_place,
        may_fail=may_fail,
        numbers=numbers,
    )


# ---- two numbers, one number -----------------------------------------------------------------

ADD = row("add", lambda g, n: g, lambda g, n: g)
SUB = row("sub", lambda g, n: g, lambda g, n: neg(g), numpy="subtract", bools=False)
MUL = row(
    "mul",
    lambda g, n: mul(g, n.inputs[1]),
    lambda g, n: mul(g, n.inputs[0]),
    numpy="multiply",
    saves="i",
)
DIV = row(
    "div",
    lambda g, n: div(g, n.inputs[1]),
    lambda g, n: neg(mul(g, div(n, n.inputs[1]))),
    numpy="divide",
    saves="io",
)


def _base_gradient(g: Node, n: Node) -> Node:
    """The slope of ``x ** 0`` is 0, also where x is 0."""
    base, exponent = n.inputs
    slope = mul(g, mul(exponent, pow(base, sub(exponent, 1))))
    if type(exponent.value) is Scalar and exponent.value.number:
        return slope
    return where(eq(exponent, 0), 0.0, slope)


def _exponent_gradient(g: Node, n: Node) -> Node:
    base, exponent = n.inputs
    is_flat = logical_and(eq(base, 0), ge(exponent, 0))
    return mul(g, where(is_flat, 0.0, mul(n, log(base))))


def _numpy_pow(np: Any, specs: Any, params: Any, out: Any) -> Any:
    if is_float(out.dtype):
        return np.power

    def power(a: Any, b: Any, out: Any = None) -> Any:
        """Of integers: 1 and -1 have powers below 0, and those of others are 0."""
        below = np.less(b, 0)
        if not below.any():
            return np.power(a, b, out=out)
        unit = np.where(np.equal(a, 1), 1, np.where(np.equal(a, -1), 1 - 2 * (b & 1), 0))
        found = np.where(below, unit, np.power(a, np.where(below, 0, b))).astype(a.dtype)
        if out is None:
            return found
        out[...] = found
        return out

    return power


POW = row(
    "pow",
    _base_gradient,
    _exponent_gradient,
    numpy=_numpy_pow,
    saves="io",
    bools=False,
)
BOUND = ("bound",)  # params of a maximum or minimum whose second operand limits the first
MAXIMUM = row(
    "maximum",
    lambda g, n: _where(ge, g, n) if n.params else mul(g, _share(n.inputs[0], n.inputs[1])),
    lambda g, n: _where(lt, g, n) if n.params else mul(g, _share(n.inputs[1], n.inputs[0])),
    saves="i",
    numbers=(),
)
MINIMUM = row(
    "minimum",
    lambda g, n: _where(le, g, n) if n.params else mul(g, _share(n.inputs[1], n.inputs[0])),
    lambda g, n: _where(gt, g, n) if n.params else mul(g, _share(n.inputs[0], n.inputs[1])),
    saves="i",
    numbers=(),
)
REMAINDER = row(
    "remainder",
    lambda g, n: g,
    lambda g, n: neg(mul(g, floor_divide(n.inputs[0], n.inputs[1]))),
    saves="i",
    bools=False,
    may_fail=True,
)
FLOOR_DIVIDE = row("floor_divide", bools=False, may_fail=True)


def _share(a: Node, b: Node) -> Node:
    """1 where a is above b or one of them is NaN, half where they are equal, else 0."""
    dtype = a.spec.dtype
    return sub(1, mul(add(cast(lt(a, b), dtype), cast(le(a, b), dtype)), 0.5))


def _where(compare: Any, g: Node, n: Node) -> Node:
    """All of the gradient where the operands compare so, and nothing elsewhere or at NaN."""
    return where(compare(*n.inputs), g, 0)


def _numpy_add_scaled(np: Any, specs: Any, params: Any, out: Any) -> Any:
    return lambda a, b, alpha, out=None: np.add(a, b * alpha, out=out)


def _torch_add_scaled(torch: Any, specs: Any, params: Any, out: Any) -> Any:
    return lambda a, b, alpha, out=None: torch.add(a, b, alpha=alpha, out=out)


ADD_SCALED = row(
    "add_scaled",
    lambda g, n: g,
    lambda g, n: mul(g, n.inputs[2]),
    None,
    numpy=_numpy_add_scaled,
    torch=_torch_add_scaled,
    saves="i",
    numbers=(2,),
)


def add(a: Operand, b: Operand, *, alpha: complex = 1) -> Node:
    """``a + alpha * b``; shapes are broadcast, and types promoted, as in PyTorch.

    Raises:
        ValueError: their shapes cannot be broadcast.
    """
    if alpha == 1:
        return apply(ADD, together(a, b))
    return add_scaled(a, b, alpha)


def add_scaled(a: Operand, b: Operand, alpha: Operand) -> Node:
    """``a + alpha * b``, where the factor may be a node: one value, of the type of the result."""
    a, b = together(a, b)
    return apply(ADD_SCALED, (a, b, as_node(alpha, a.spec.dtype)))


def sub(a: Operand, b: Operand, *, alpha: complex = 1) -> Node:
    """``a - alpha * b``; shapes and types as for :func:`add`."""
    return apply(SUB, together(a, b)) if alpha == 1 else add(a, b, alpha=-alpha)


def mul(a: Operand, b: Operand) -> Node:
    """``a * b``, element by element; shapes and types as for :func:`add`."""
    return apply(MUL, together(a, b))


def div(a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Node:
    """``a / b``; float32 for integers, infinite or NaN where b is 0. Shapes as for :func:`add`.

    Args:
        a: a tensor or a number.
        b: likewise.
        rounding_mode: "floor" as :func:`floor_divide`, "trunc" towards 0; of integers both are
            integers.

    Raises:
        ValueError: there is no such mode.
        ZeroDivisionError: integers are rounded after a division by a plain 0.
    """
    if rounding_mode is None:
        return apply(DIV, floats(a, b))
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode != "trunc":
        raise ValueError(f"div: rounding_mode={rounding_mode!r} must be None, 'floor' or 'trunc'")
    if is_float(result_type((a, b))):
        found = div(a, b)
        return where(lt(found, 0), ceil(found), floor(found))
    below = floor_divide(a, b)
    is_inexact = ne(mul(below, b), a)
    return add(below, cast(logical_and(is_inexact, lt(below, 0)), below.spec.dtype))


def pow(a: Operand, b: Operand) -> Node:
    """``a ** b``; shapes and types as for :func:`add`.

    Raises:
        TypeError: both are bools.
        ValueError: an integer to a negative power given as a plain integer.
    """
    if isinstance(a, Node) and a.spec.dtype is not bool_ and not isinstance(b, Node):
        if isinstance(b, int) or is_float(a.spec.dtype):  # to 2.0, integers become floats
            if b == 2:
                return mul(a, a)
            if b == 1:
                return a
        if b == 0.5:
            return sqrt(a)
        if isinstance(b, int) and b < 0 and not is_float(a.spec.dtype):
            raise ValueError(
                f"pow: integers have no power of {b}: give a float, as in x ** {float(b)}"
            )
    return apply(POW, together(a, b))


def maximum(a: Operand, b: Operand) -> Node:
    """The larger of two elements, NaN if one is; equal ones share the gradient."""
    return apply(MAXIMUM, together(a, b))


def minimum(a: Operand, b: Operand) -> Node:
    """The smaller of two elements, NaN if one is; equal ones share the gradient."""
    return apply(MINIMUM, together(a, b))


def _refuse_zero(name: str, a: Operand, b: Operand) -> None:
    if not isinstance(b, Node) and b == 0 and not is_float(result_type((a, b))):
        raise ZeroDivisionError(f"{name}: integers are divided by 0")


def remainder(a: Operand, b: Operand) -> Node:
    """``a % b`` with the sign of ``b``, as Python's; shapes and types as for :func:`add`.

    Raises:
        ZeroDivisionError: integers are divided by a plain 0.
    """
    _refuse_zero("remainder", a, b)
    return apply(REMAINDER, together(a, b))


def floor_divide(a: Operand, b: Operand) -> Node:
    """``a // b``, rounded down; it has no gradient. Shapes and types as for :func:`add`.

    Raises:
        ZeroDivisionError: integers are divided by a plain 0.
    """
    _refuse_zero("floor_divide", a, b)
    return apply(FLOOR_DIVIDE, together(a, b))


# ---- comparisons -------------------------------------------------------------------------------

EQ = row("eq", numpy="equal", dtype=bool_)
NE = row("ne", numpy="not_equal", dtype=bool_)
LT = row("lt", numpy="less", dtype=bool_)
LE = row("le", numpy="less_equal", dtype=bool_)
GT = row("gt", numpy="greater", dtype=bool_)
GE = row("ge", numpy="greater_equal", dtype=bool_)


def eq(a: Operand, b: Operand) -> Node:
    """``a == b``, bool; shapes as for :func:`add`. NaN equals nothing."""
    return apply(EQ, together(a, b))


def ne(a: Operand, b: Operand) -> Node:
    """``a != b``, bool; shapes as for :func:`add`."""
    return apply(NE, together(a, b))


def lt(a: Operand, b: Operand) -> Node:
    """``a < b``, bool; shapes as for :func:`add`."""
    return apply(LT, together(a, b))


def le(a: Operand, b: Operand) -> Node:
    """``a <= b``, bool; shapes as for :func:`add`."""
    return apply(LE, together(a, b))


def gt(a: Operand, b: Operand) -> Node:
    """``a > b``, bool; shapes as for :func:`add`."""
    return apply(GT, together(a, b))


def ge(a: Operand, b: Operand) -> Node:
    """``a >= b``, bool; shapes as for :func:`add`."""
    return apply(GE, together(a, b))


# ---- logic -------------------------------------------------------------------------------------

LOGICAL_NOT = row("logical_not", dtype=bool_)
LOGICAL_AND = row("logical_and", dtype=bool_, numbers=())
LOGICAL_OR = row("logical_or", dtype=bool_, numbers=())
BITWISE_NOT = row("bitwise_not", numpy="invert")
BITWISE_AND = row("bitwise_and")
BITWISE_OR = row("bitwise_or")
BITWISE_XOR = row("bitwise_xor")
LEFT_SHIFT = row("bitwise_left_shift", numpy="left_shift", bools=False)
RIGHT_SHIFT = row("bitwise_right_shift", numpy="right_shift", bools=False)


def logical_not(x: Node) -> Node:
    """Where an element is 0 or False, bool."""
    return apply(LOGICAL_NOT, (x,))


def logical_and(a: Operand, b: Operand) -> Node:
    """Where neither element is 0 or False, bool; shapes as for :func:`add`."""
    return apply(LOGICAL_AND, together(a, b))


def logical_or(a: Operand, b: Operand) -> Node:
    """Where not both elements are 0 or False, bool; shapes as for :func:`add`."""
    return apply(LOGICAL_OR, together(a, b))


_TAKES = {
    False: ("bools and integers", "compare first, as in (x > 0) & (x < 1)"),
    True: ("integers", "convert first, as in x.to('int64')"),
}


def _bits(op: Op, *operands: Operand) -> Node:
    nodes = together(*operands)
    if is_float(nodes[0].spec.dtype):
        kinds, advice = _TAKES[op in (LEFT_SHIFT, RIGHT_SHIFT)]
        raise TypeError(f"{op.name} takes {kinds}, not {nodes[0].spec.dtype.name}: {advice}")
    return apply(op, nodes)


def bitwise_and(a: Operand, b: Operand) -> Node:
    """``a & b`` of bools or integers: TypeError for floats. Shapes as for :func:`add`."""
    return _bits(BITWISE_AND, a, b)


def bitwise_or(a: Operand, b: Operand) -> Node:
    """``a | b`` of bools or integers: TypeError for floats. Shapes as for :func:`add`."""
    return _bits(BITWISE_OR, a, b)


def bitwise_xor(a: Operand, b: Operand) -> Node:
    """``a ^ b`` of bools or integers: TypeError for floats. Shapes as for :func:`add`."""
    return _bits(BITWISE_XOR, a, b)


def bitwise_left_shift(a: Operand, b: Operand) -> Node:
    """``a << b`` of integers: TypeError for others. Shapes as for :func:`add`."""
    return _bits(LEFT_SHIFT, a, b)


def bitwise_right_shift(a: Operand, b: Operand) -> Node:
    """``a >> b`` of integers, the sign kept; else TypeError. Shapes as of :func:`add`."""
    return _bits(RIGHT_SHIFT, a, b)


ISNAN = row("isnan", dtype=bool_, in_place=False)
ISFINITE = row("isfinite", dtype=bool_, in_place=False)
ISINF = row("isinf", dtype=bool_, in_place=False)


def isnan(x: Node) -> Node:
    """Where an element is NaN, bool."""
    return apply(ISNAN, (x,))


def isfinite(x: Node) -> Node:
    """Where an element is neither infinite nor NaN, bool."""
    return apply(ISFINITE, (x,))


def isinf(x: Node) -> Node:
    """Where an element is infinite, bool."""
    return apply(ISINF, (x,))


def bitwise_not(x: Node) -> Node:
    """``~x`` of bools or integers: TypeError for floats."""
    return logical_not(x) if x.spec.dtype is bool_ else _bits(BITWISE_NOT, x)


# ---- one number ----------------------------------------------------------------------------------


def _numpy_sign(np: Any, specs: Any, params: Any, out: Any) -> Any:
    """0 of NaN, as torch has it."""
    if not is_float(out.dtype):
        return np.sign

    def sign(x: Any, out: Any = None) -> Any:
        strange = np.isnan(x)
        found = np.asarray(np.sign(x, out=out))
        if strange.any():
            found[strange] = 0
        return found

    return sign


def _numpy_relu(np: Any, specs: Any, params: Any, out: Any) -> Any:
    zero = np.zeros((), out.dtype.numpy)
    return lambda x, out=None: np.maximum(x, zero, out=out)


def _torch_relu(torch: Any, specs: Any, params: Any, out: Any) -> Any:
    return lambda x, out=None: torch.clamp(x, min=0, out=out)


def _numpy_sigmoid(np: Any, specs: Any, params: Any, out: Any) -> Any:
    def sigmoid(x: Any, out: Any = None) -> Any:
        with np.errstate(over="ignore"):
            return np.reciprocal(1 + np.exp(-x), out=out, dtype=x.dtype)

    return sigmoid


def _numpy_erf(np: Any, specs: Any, params: Any, out: Any) -> Any:
    each = numpy_erf(np)
    return lambda x: np.asarray(each(x)).astype(x.dtype, copy=False)


def _numpy_rsqrt(np: Any, specs: Any, params: Any, out: Any) -> Any:
    return lambda x, out=None: np.reciprocal(np.sqrt(x), out=out)


NEG = row("neg", lambda g, n: neg(g), numpy="negative")
ABS = row("abs", lambda g, n: mul(g, sign(n.inputs[0])), saves="i", bools=False)
SIGN = row("sign", lambda g, n: mul(g, 0), numpy=_numpy_sign)
FLOOR = row("floor", lambda g, n: mul(g, 0))
CEIL = row("ceil", lambda g, n: mul(g, 0))
ROUND = row("round", lambda g, n: mul(g, 0))
EXP = row("exp", lambda g, n: mul(g, n), saves="o")
LOG = row("log", lambda g, n: div(g, n.inputs[0]), saves="i")
LOG1P = row("log1p", lambda g, n: div(g, add(n.inputs[0], 1)), saves="i")
SQRT = row("sqrt", lambda g, n: div(mul(g, 0.5), n), saves="o")
RSQRT = row(
    "rsqrt", lambda g, n: mul(mul(g, -0.5), mul(n, mul(n, n))), numpy=_numpy_rsqrt, saves="o"
)
SIN = row("sin", lambda g, n: mul(g, cos(n.inputs[0])), saves="i")
COS = row("cos", lambda g, n: neg(mul(g, sin(n.inputs[0]))), saves="i")
TANH = row("tanh", lambda g, n: mul(g, sub(1, mul(n, n))), saves="o")
SIGMOID = row("sigmoid", lambda g, n: mul(g, mul(n, sub(1, n))), numpy=_numpy_sigmoid, saves="o")


def _numpy_relu_backward(np: Any, specs: Any, params: Any, out: Any) -> Any:
    return lambda g, y, out=None: np.multiply(g, ~(y <= 0), out=out)  # 1 at NaN, as in torch


def _torch_relu_backward(torch: Any, specs: Any, params: Any, out: Any) -> Any:
    backward = torch.ops.aten.threshold_backward

    def kernel(g: Any, y: Any, out: Any = None) -> Any:
        if out is None:
            return backward(g, y, 0)
        return backward.grad_input(g, y, 0, grad_input=out)

    return kernel


RELU_BACKWARD: Op = row(
    "relu_backward",
    lambda g, n: apply(RELU_BACKWARD, (g, n.inputs[1])),
    None,
    numpy=_numpy_relu_backward,
    torch=_torch_relu_backward,
    saves="i",
    numbers=(),
)
RELU = row(
    "relu",
    lambda g, n: apply(RELU_BACKWARD, (g, n)),
    numpy=_numpy_relu,
    torch=_torch_relu,
    saves="o",
    bools=False,
)
ERF = row(
    "erf",
    lambda g, n: mul(g, mul(exp(neg(mul(n.inputs[0], n.inputs[0]))), 1.1283791670955126)),
    numpy=_numpy_erf,
    saves="i",
    in_place=False,
)


def neg(x: Node) -> Node:
    """``-x``; TypeError for bools."""
    if x.spec.dtype is bool_:
        raise TypeError("neg: a bool tensor has no negative: use ~x, or x.to('int64')")
    return apply(NEG, (x,))


def abs(x: Node) -> Node:
    """The absolute value; TypeError for bools. The gradient at 0 is 0."""
    return apply(ABS, (x,))


def sign(x: Node) -> Node:
    """-1, 0 or 1; its gradient is 0."""
    return x if x.spec.dtype is bool_ else apply(SIGN, (x,))


def floor(x: Node) -> Node:
    """Rounded down, in x's type; its gradient is 0."""
    return apply(FLOOR, (x,)) if is_float(x.spec.dtype) else x


def ceil(x: Node) -> Node:
    """Rounded up, in x's type; its gradient is 0."""
    return apply(CEIL, (x,)) if is_float(x.spec.dtype) else x


def round(x: Node, *, decimals: int = 0) -> Node:
    """Rounded to the nearest integer, halves to even, in x's type; its gradient is 0.

    Args:
        x: a tensor.
        decimals: how many digits of a float are kept after the point; -1 rounds to tens, -2 to
            hundreds.

    Raises:
        TypeError: integers are given with ``decimals``.
    """
    if not decimals:
        return apply(ROUND, (x,)) if is_float(x.spec.dtype) else x
    if not is_float(x.spec.dtype):
        raise TypeError(
            f"round: the tensor is {x.spec.dtype.name}, and decimals={decimals} is for floats"
        )
    scale = 10.0 ** builtins.abs(rules.whole(decimals, "round", "decimals"))
    if decimals > 0:
        return div(apply(ROUND, (mul(x, scale),)), scale)
    return mul(apply(ROUND, (div(x, scale),)), scale)


def exp(x: Node) -> Node:
    """The exponential function; float32 for integers."""
    return apply(EXP, floats(x))


def log(x: Node) -> Node:
    """The natural logarithm, -inf at 0 and NaN below; float32 for integers."""
    return apply(LOG, floats(x))


def log1p(x: Node) -> Node:
    """``log(1 + x)``, exact also for small x; float32 for integers."""
    return apply(LOG1P, floats(x))


def sqrt(x: Node) -> Node:
    """The square root, NaN below 0; float32 for integers."""
    return apply(SQRT, floats(x))


def rsqrt(x: Node) -> Node:
    """One over the square root; float32 for integers."""
    return apply(RSQRT, floats(x))


def sin(x: Node) -> Node:
    """The sine of radians; float32 for integers."""
    return apply(SIN, floats(x))


def cos(x: Node) -> Node:
    """The cosine of radians; float32 for integers."""
    return apply(COS, floats(x))


def tanh(x: Node) -> Node:
    """The hyperbolic tangent; float32 for integers."""
    return apply(TANH, floats(x))


def sigmoid(x: Node) -> Node:
    """``1 / (1 + exp(-x))``; float32 for integers."""
    return apply(SIGMOID, floats(x))


def erf(x: Node) -> Node:
    """The error function; float32 for integers."""
    return apply(ERF, floats(x))


def relu(x: Node) -> Node:
    """The greater of x and 0; the gradient at 0 is 0."""
    return apply(RELU, (x,))


# ---- a choice ------------------------------------------------------------------------------------

WHERE = row(
    "where",
    None,
    lambda g, n: where(n.inputs[0], g, 0),
    lambda g, n: where(n.inputs[0], 0, g),
    saves="i",
    in_place=False,
    numbers=(2,),  # only the last may be a plain number: the other says the type
)


def square(x: Node) -> Node:
    """``x * x``; int64 for bools."""
    return mul(x, x) if x.spec.dtype is not bool_ else cast(x, int64)


def reciprocal(x: Node) -> Node:
    """``1 / x``; float32 for integers."""
    return div(1, x)


def where(condition: Node, a: Operand, b: Operand) -> Node:
    """``a`` where the condition is True, else ``b``; all three are broadcast.

    Raises:
        TypeError: the condition is not bool.
        ValueError: the shapes cannot be broadcast.
    """
    if condition.spec.dtype is not bool_:
        raise TypeError(
            f"where: the condition is {condition.spec.dtype.name}, and must be bool: compare, as "
            "in where(x > 0, x, y)"
        )
    return apply(WHERE, (condition, *together(a, b)))


def _clamp_kernel(name: str) -> Binder:
    def bind(module: Any, specs: Any, params: Any, out: Any) -> Any:
        cut = getattr(module, name)
        has_min, has_max = params
        if has_min and has_max:
            return cut
        if has_min:
            return lambda x, low, out=None: cut(x, low, None, out=out)
        return lambda x, high, out=None: cut(x, None, high, out=out)

    return bind


def _clamp_gradient(g: Node, n: Node) -> Node:
    """All of it where x lies within, its bounds included, and nothing elsewhere."""
    x, *bounds = n.inputs
    if n.params[0]:
        g = where(ge(x, bounds[0]), g, 0)
    return where(le(x, bounds[-1]), g, 0) if n.params[1] else g


CLAMP = Op(
    "clamp",
    rules.not_of_bools("clamp", rules.elementwise("clamp")),
    numpy=_clamp_kernel("clip"),
    torch=_clamp_kernel("clamp"),
    gradients=(_clamp_gradient, None, None),
    saves="i",
    in_place=True,
    numbers=(1, 2),
)


def clamp(x: Node, min: Operand | None = None, max: Operand | None = None) -> Node:
    """Elements limited to the range from ``min`` to ``max``, each a number or a tensor.

    An element that equals a bound has the whole gradient, as in PyTorch.

    Raises:
        ValueError: neither is given.
    """
    bounds = [one for one in (min, max) if one is not None]
    if not bounds:
        raise ValueError("clamp: give min, max or both")
    if not any(isinstance(one, Node) for one in bounds):
        return apply(CLAMP, together(x, *bounds), (min is not None, max is not None))
    # Both operands decide the type, so the order of the two steps does not matter.
    dtype = result_type([x, *bounds])
    out = as_node(x, dtype)
    if min is not None:
        out = apply(MAXIMUM, together(out, min), BOUND)
    return out if max is None else apply(MINIMUM, together(out, max), BOUND)
