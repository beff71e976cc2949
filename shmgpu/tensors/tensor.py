"""Tensors with all that they can: methods, operators, what is done in place, :func:`grad`.

Owns how methods are made of functions. What a tensor itself is, :mod:`shmgpu.tensors.base` says;
its functions are listed in :mod:`shmgpu.tensors.operations`. Whoever imports this file has tensors
with all of their methods. Never defines an operation.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.ops import arranging, elementwise, graph, linear, shaping, stretching
from shmgpu.ops.promotion import TYPES
from shmgpu.tensors import autograd, current, interop, whole
from shmgpu.tensors.base import Tensor, _unpickled
from shmgpu.tensors.conversion import from_numpy, tensor
from shmgpu.tensors.elements import Data
from shmgpu.tensors.factories import Sizes, full, manual_seed, ones, rand, randn, zeros
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.operands import as_operand
from shmgpu.tensors.operations import ALSO, FUNCTIONS, as_argument, recording
from shmgpu.tensors.sharing import snapshot, turn, view

__all__ = [
    "ALSO",
    "DTYPES",
    "FUNCTIONS",
    "Data",
    "Tensor",
    "_unpickled",
    "as_argument",
    "as_operand",
    "from_numpy",
    "full",
    "grad",
    "manual_seed",
    "ones",
    "rand",
    "randn",
    "recording",
    "set_verbosity",
    "snapshot",
    "tensor",
    "view",
    "zeros",
]

DTYPES = {one.name: one for one in TYPES}
# PyTorch's other names for them.
DTYPES |= {
    name: DTYPES[of]
    for name, of in {
        "half": "float16", "float": "float32", "double": "float64", "short": "int16",
        "int": "int32", "long": "int64",
    }.items()
}  # fmt: skip

_NOT_METHODS = {
    "linear",
    "where", "cat", "stack", "permute", "gelu", "silu", "leaky_relu", "softplus", "dropout",
    "layer_norm", "conv2d", "max_pool2d", "avg_pool2d", "scaled_dot_product_attention", "embedding",
    "mse_loss", "l1_loss", "nll_loss", "cross_entropy", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "pad", "one_hot", "einsum", "concat", "vstack", "hstack",
    "cdist", "cosine_similarity", "reshape", "tile", "searchsorted", "bucketize", "to",
    "concatenate", "std_mean", "var_mean", "isin",
}  # fmt: skip
_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "mod": "remainder",
    "floordiv": "floor_divide", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
_CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "int": "int32", "long": "int64", "short": "int16", "char": "int8", "byte": "uint8",
    "bool": "bool",
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
    "abs absolute acos acosh addcdiv addcmul addmm addmv arccos arcsin arctan asin asinh atan "
    "atan2 atanh baddbmm bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max "
    "clamp_min clip copysign cos cosh cumprod cumsum deg2rad divide eq erf exp exp2 expm1 fix "
    "float_power floor floor_divide fmod frac ge gt hypot index_add index_copy index_fill le "
    "lerp log log10 log1p log2 logical_and logical_not logical_or logical_xor logit lt "
    "masked_fill multiply nan_to_num ne neg negative nextafter pow rad2deg reciprocal relu "
    "remainder round rsqrt scatter scatter_add sgn sigmoid sign sin sinc sinh sqrt square "
    "subtract tan tanh tril triu true_divide trunc xlogy"
)


def _changing(name: str) -> Callable[..., Any]:
    call = FUNCTIONS[name]

    def update(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return self._updated(call(self, *args, **options)._node)

    update.__doc__ = f"As :func:`shmgpu.{name}`; this tensor becomes the result."
    return update


def _turning(name: str) -> Callable[..., Any]:
    record = getattr(shaping, name)

    def update(self: Tensor, *args: Any, **options: Any) -> Tensor:
        return turn(self, record(self._node, *args, **options))

    update.__doc__ = f"As :func:`shmgpu.{name}`; this tensor takes that shape."
    return update


def _of_torch(cls: Any, function: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
    return interop.with_torch(cls, function, args, kwargs or {}, {*FUNCTIONS, *dir(whole)})


def _add_methods() -> None:
    # Pickles name this file, so that whoever reads them finds tensors with their operations.
    for one in (Data, Tensor, _unpickled):
        one.__module__ = __name__
    Tensor.__torch_function__ = classmethod(_of_torch)
    for name in _CHANGING.split():
        setattr(Tensor, f"{name}_", _changing(name))
    for name in ("squeeze", "unsqueeze"):
        setattr(Tensor, f"{name}_", _turning(name))
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
        setattr(Tensor, method, functools.partialmethod(Tensor.to, dtype))

    def permute(self: Tensor, *dims: Sizes) -> Tensor:
        """The axes in another order; name each once, as arguments or in one sequence."""
        return view(self, shaping.permute(self._node, _dims(dims)))

    def reshape(self: Tensor, *shape: Sizes) -> Tensor:
        """The same elements in another shape; one length may be -1, and is then inferred."""
        return view(self, shaping.reshape(self._node, _dims(shape)))

    def expand(self: Tensor, *shape: Sizes) -> Tensor:
        """Axes of length 1 expanded to these lengths; -1 keeps an axis as it is."""
        return view(self, stretching.expand(self._node, _dims(shape)))

    def repeat(self: Tensor, *sizes: Sizes) -> Tensor:
        """Repeated so many times along each axis."""
        counts = _dims(sizes)
        if len(counts) < self.ndim:
            raise ValueError(f"repeat: {counts} says nothing of some of the {self.ndim} axes")
        return Tensor(arranging.tile(self._node, counts))

    def tile(self: Tensor, *dims: Sizes) -> Tensor:
        """Repeated so many times along each axis; missing counts are 1."""
        return Tensor(arranging.tile(self._node, _dims(dims)))

    def where(self: Tensor, condition: Any, other: Any) -> Any:
        """These elements where the condition holds, those of ``other`` elsewhere."""
        return FUNCTIONS["where"](condition, self, other)

    names = "allclose bernoulli bincount equal masked_select multinomial nonzero unique"
    for name in names.split():
        setattr(Tensor, name, getattr(whole, name))
    for made in (permute, reshape, expand, repeat, tile, where):
        setattr(Tensor, made.__name__, made)
    Tensor.view = reshape  # type: ignore[method-assign, assignment]


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
    with current.together:
        found = autograd.gradients(
            [one._node for one in outs],
            seeds,
            create_graph=create_graph,
            retain_graph=retain_graph,
            only=[one._node for one in ins],
        )
        for index, one in enumerate(ins):
            if one._node not in found and not allow_unused:
                raise RuntimeError(
                    f"grad: the outputs do not depend on input {index}: omit it, or pass "
                    "allow_unused=True to get None in its place"
                )
        return tuple(
            [
                Tensor(one._own_gradient(found[one._node])) if one._node in found else None
                for one in ins
            ]
        )


# ---- settings, in the spelling of GT -----------------------------------------------------------


def set_verbosity(level: int) -> None:
    """How much is logged: 0 errors, 1 warnings, 2 events, 3 everything."""
    levels = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
    if level not in range(4):
        raise ValueError(f"set_verbosity({level!r}): pass 0, 1, 2 or 3")
    logging.getLogger("shmgpu").setLevel(levels[level])
