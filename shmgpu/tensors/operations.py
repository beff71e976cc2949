"""Operations as functions of tensors: made from one list of what the families record.

Owns that list, and how a function over nodes becomes one over tensors: arguments, views, and the
casts of mixed precision. Methods and operators are made of the same functions, above. Never
computes.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.ops import (
    activations,
    arranging,
    attention,
    casting,
    distances,
    elementwise,
    formulas,
    indexing,
    linear,
    losses,
    normalising,
    ordering,
    products,
    rearranging,
    reductions,
    shaping,
    short_formulas,
    solving,
    stretching,
    transcendental,
    windows,
)
from shmgpu.ops.graph import Node
from shmgpu.tensors import autocasting, current, misuse
from shmgpu.tensors.base import Tensor
from shmgpu.tensors.operands import as_operand, leaf_of
from shmgpu.tensors.sharing import view

_ALIASES = {"axis": "dim", "keepdims": "keepdim"}  # NumPy's names, which PyTorch takes, too


# Operations that return a view of their first argument: a change in place of one is seen in the
# other.
_VIEWS = frozenset(
    "permute transpose unsqueeze squeeze flatten narrow split chunk movedim unbind "
    "ravel unflatten select swapaxes broadcast_to diagonal split_with_sizes tensor_split hsplit "
    "vsplit".split()
)
# Operations that return their first argument if there is nothing to do.
_ITSELF = frozenset(["dropout"])


def _names(own: list[str]) -> tuple[str, dict[str, str]]:
    """Of a function's parameters: the first, and what others are called in PyTorch."""
    also = _ALIASES | dict(zip(("input", "other"), own, strict=False))
    if "training" in own:
        also["train"] = "training"
    return own[0], {name: meant for name, meant in also.items() if name not in own}


def recording(record: Callable[..., Any]) -> Callable[..., Any]:
    """The function over tensors that records as ``record`` does over nodes."""
    is_view = record.__name__ in _VIEWS
    always = record.__name__ == "diagonal"  # flattened on the way, and a view of any matrix
    is_itself = record.__name__ in _ITSELF
    follow = autocasting.following(record)
    signature = inspect.signature(record)
    first, also = _names(list(signature.parameters))

    @functools.wraps(record)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args and kwargs:
            kwargs = {also.get(k, k): v for k, v in kwargs.items()}
            if first in kwargs:
                args = (kwargs.pop(first),)
        try:
            out = follow(
                *[
                    a._node if type(a) is Tensor else a if type(a) in _PLAIN else as_argument(a)
                    for a in args
                ],
                **{also.get(k, k): as_argument(v) for k, v in kwargs.items()} if kwargs else kwargs,
            )
        except misuse.FAILURES as error:
            misuse.refuse(record, args, {also.get(k, k): v for k, v in kwargs.items()}, error)
            raise
        if type(out) is Node:
            if is_view and type(args[0]) is Tensor:
                return view(args[0], out, always=always)
            if is_itself and type(args[0]) is Tensor and out is args[0]._node:
                return args[0]
            return Tensor(out)
        with current.together:
            if is_view and type(args[0]) is Tensor:
                return tuple([view(args[0], one) for one in out])
            made = [Tensor(one) for one in out]
        return type(out)(*made) if hasattr(out, "_fields") else tuple(made)

    call.__dict__["__signature__"] = _of_tensors(signature)
    return call


_SHOWN = {"Node": "Tensor", "Operand": "Tensor | complex", "Dim": "int | Sequence[int] | None"}
_SHOWN |= {"Shape": "Sequence[int]", "Found": "(values, indices)"}


@functools.cache  # hundreds of parameters have a dozen annotations
def _shown(annotation: Any) -> str:
    return re.sub(r"\w+", lambda word: _SHOWN.get(word[0], word[0]), str(annotation))


def _of_tensors(of_nodes: inspect.Signature) -> inspect.Signature:
    """What ``help()`` shows: the same in the words of whoever calls."""
    return of_nodes.replace(
        parameters=[
            one.replace(annotation=_shown(one.annotation)) for one in of_nodes.parameters.values()
        ],
        return_annotation=_shown(of_nodes.return_annotation),
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
    return leaf_of(value, None) if arrays.is_array(value) else value


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
        (transcendental, "fmod log2 log10 tan sinh cosh logaddexp"),
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
        (formulas, "absolute clip trunc logical_xor lerp"),
        (formulas, "addcmul addcdiv nan_to_num isclose count_nonzero norm"),
        (distances, "cosine_similarity cdist"),
        (formulas, "var_mean std_mean aminmax median quantile trace"),
        (arranging, "split_with_sizes tensor_split hsplit vsplit flipud fliplr rot90 diag_embed"),
        (arranging, "select_scatter slice_scatter"),
        (short_formulas, "clamp_min clamp_max exp2 fix sgn frac deg2rad rad2deg logit sinc xlogy"),
        (short_formulas, "fmax fmin float_power isposinf isneginf nansum nanmean dist kthvalue"),
        (short_formulas, "inner vdot kron cross matrix_power isin"),
        (solving, "inverse det"),
    )
    for name in names.split()
}

# The same by other names, which PyTorch and NumPy have, too.
ALSO = {
    "concatenate": "concat", "divide": "div", "ger": "outer", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "moveaxis": "movedim",
    "multiply": "mul", "negative": "neg",
    "not_equal": "ne", "subtract": "sub", "swapdims": "swapaxes", "true_divide": "div",
}  # fmt: skip
FUNCTIONS |= {name: FUNCTIONS[of] for name, of in ALSO.items()}
