"""Losses: how far predictions are from their targets.

Owns these compositions, and one row, which picks the likelihood of the right class: it refuses a
class that does not exist and skips those to be ignored, in one pass. Never reads a target in a
child.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from shmgpu.ops.activations import log_softmax, softplus
from shmgpu.ops.casting import cast
from shmgpu.ops.elementwise import abs, add, div, log, log1p, maximum, mul, ne, neg, sub, where
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.indexing import take, whole
from shmgpu.ops.promotion import floats, is_float
from shmgpu.ops.reductions import mean
from shmgpu.ops.shaping import reshape, unsqueeze
from shmgpu.ops.stretching import sum

Specs = tuple[Spec, ...]
REDUCTIONS: dict[str, Callable[[Node], Node]] = {"mean": mean, "sum": sum, "none": lambda x: x}


def reduced_by(loss: Node, reduction: str) -> Node:
    """The loss of each element as one number, as ``reduction`` says."""
    reduce = REDUCTIONS.get(reduction)
    if reduce is None:
        raise ValueError(f"reduction={reduction!r} must be one of {', '.join(REDUCTIONS)}")
    return reduce(loss)


def _alike(input: Node, target: Node, name: str) -> None:
    if input.spec.shape != target.spec.shape:
        raise ValueError(
            f"{name}: the input {input.spec.shape} and the target {target.spec.shape} must be "
            "of one shape"
        )


def _one_number(specs: Specs, params: Params) -> Spec:
    return spec_of(specs[0].dtype, ())


def _numpy_mse(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        difference = (a - b).ravel()
        return np.dot(difference, difference) / max(difference.size, 1)

    return kernel


def _torch_mse(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    mse = torch.ops.aten.mse_loss
    return lambda a, b: mse(a, b, 1)


def _numpy_mse_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    share = 2.0 / max(math.prod(out.shape), 1)

    def kernel(g: Any, a: Any, b: Any, out: Any = None) -> Any:
        return np.multiply(np.subtract(a, b, out=out), (g * share).astype(a.dtype), out=out)

    return kernel


def _torch_mse_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    backward = torch.ops.aten.mse_loss_backward

    def kernel(g: Any, a: Any, b: Any, out: Any = None) -> Any:
        if out is None:
            return backward(g, a, b, 1)
        return backward.grad_input(g, a, b, 1, grad_input=out)

    return kernel


def _share(node: Node) -> float:
    return 2.0 / max(math.prod(node.spec.shape), 1)


MSE_BACKWARD = Op(
    "mse_backward",
    lambda specs, params: specs[1],
    numpy=_numpy_mse_backward,
    torch=_torch_mse_backward,
    gradients=(
        lambda g, n: sum(mul(mul(g, sub(n.inputs[1], n.inputs[2])), _share(g))),
        lambda g, n: mul(mul(g, n.inputs[0]), _share(g)),
        lambda g, n: neg(mul(mul(g, n.inputs[0]), _share(g))),
    ),
    saves="i",
    takes_out=True,
)
MSE = Op(
    "mse_loss",
    _one_number,
    numpy=_numpy_mse,
    torch=_torch_mse,
    gradients=(
        lambda g, n: apply(MSE_BACKWARD, (g, *n.inputs)),
        lambda g, n: neg(apply(MSE_BACKWARD, (g, *n.inputs))),
    ),
    saves="i",
)


def mse_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """The mean of the squared differences; shapes are broadcast.

    ``reduction`` is ``"mean"``, ``"sum"``, or ``"none"``, which returns each element's loss.
    """
    alike = input.spec is target.spec and is_float(input.spec.dtype)
    if reduction == "mean" and alike and 0 not in input.spec.shape:
        return apply(MSE, (input, target))
    difference = sub(input, target)
    return reduced_by(mul(difference, difference), reduction)


def l1_loss(input: Node, target: Node, reduction: str = "mean") -> Node:
    """The mean absolute difference; shapes and ``reduction`` as for :func:`mse_loss`."""
    return reduced_by(abs(sub(input, target)), reduction)


BCE_LEAST = -100.0  # of a logarithm, as in PyTorch
BCE_FLAT = 1e-12  # p (1 - p) is at least this where it divides a gradient, as there


def _numpy_bce(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    dtype = out.dtype.numpy.type

    def kernel(p: Any, target: Any) -> Any:
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError("binary_cross_entropy: the input must be probabilities, 0 to 1")
        with np.errstate(divide="ignore"):
            yes = np.maximum(np.log(p), dtype(BCE_LEAST))
            no = np.maximum(np.log1p(-p), dtype(BCE_LEAST))
        return (target - dtype(1)) * no - target * yes

    return kernel


def _torch_bce(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    bce = torch.nn.functional.binary_cross_entropy
    return lambda p, target: bce(p, target, reduction="none")


def _bce_input(g: Node, n: Node) -> Node:
    p, target = n.inputs
    return div(mul(g, sub(p, target)), maximum(mul(sub(1.0, p), p), BCE_FLAT))


BCE = Op(
    "binary_cross_entropy",
    lambda specs, params: specs[0],
    numpy=_numpy_bce,
    torch=_torch_bce,
    gradients=(
        _bce_input,
        lambda g, n: mul(g, sub(log1p(neg(n.inputs[0])), log(n.inputs[0]))),
    ),
    saves="i",
    may_fail=True,
)


def binary_cross_entropy(
    input: Node, target: Node, reduction: str = "mean", weight: Node | None = None
) -> Node:
    """Binary cross entropy of probabilities and targets, both from 0 to 1 and of one shape.

    Logarithms are limited to -100, as in PyTorch. ``reduction`` is as for :func:`mse_loss`.
    ``weight`` is broadcast to the input's shape and multiplies each element's loss. An input
    outside 0 to 1 raises an error when the loss is read.

    Raises:
        ValueError: the shapes differ.
    """
    _alike(input, target, "binary_cross_entropy")
    loss = apply(BCE, floats(input, target))
    return reduced_by(_weighted(loss, weight), reduction)


def _weighted(loss: Node, weight: Node | None) -> Node:
    return loss if weight is None else mul(loss, weight)


def binary_cross_entropy_with_logits(
    input: Node,
    target: Node,
    reduction: str = "mean",
    weight: Node | None = None,
    pos_weight: Node | None = None,
) -> Node:
    """:func:`binary_cross_entropy` of the input's sigmoid, without overflow.

    ``pos_weight``, broadcast to the input's shape, multiplies the loss of targets that are 1.

    Raises:
        ValueError: the shapes differ.
    """
    _alike(input, target, "binary_cross_entropy_with_logits")
    if pos_weight is None:
        loss = sub(softplus(input), mul(input, target))
    else:
        share = add(mul(sub(pos_weight, 1.0), target), 1.0)
        loss = add(mul(sub(1.0, target), input), mul(share, softplus(neg(input))))
    return reduced_by(_weighted(loss, weight), reduction)


# ---- classes -------------------------------------------------------------------------------------


def _picked(specs: Specs, params: Params) -> Spec:
    scores, target = specs
    shape = scores.shape
    if len(shape) < 2 or target.shape != (shape[0], *shape[2:]):
        raise ValueError(
            f"nll_loss: the input {shape} is (N, classes, ...), so the target must be "
            f"{(shape[:1] + shape[2:])}, not {target.shape}"
        )
    return spec_of(scores.dtype, target.shape)


def _numpy_places(np: Any, classes: int, ignored: int) -> Any:
    def places(target: Any) -> tuple[Any, Any]:
        counts = target != ignored
        safe = np.where(counts, target, 0)
        if safe.size and not (0 <= safe.min() and safe.max() < classes):
            raise IndexError(f"nll_loss: a target lies not within the {classes} classes")
        return np.expand_dims(safe, 1), counts

    return places


def _numpy_nll(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    places = _numpy_places(np, specs[0].shape[1], params[0])
    zero = np.zeros((), specs[0].dtype.numpy)

    def nll(scores: Any, target: Any) -> Any:
        at, counts = places(target)
        return np.where(counts, -np.take_along_axis(scores, at, 1)[:, 0], zero)

    return nll


def _torch_nll(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    nll_loss, ignored = torch.nn.functional.nll_loss, params[0]
    return lambda scores, target: nll_loss(scores, target, reduction="none", ignore_index=ignored)


def _numpy_nll_backward(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    ignored, classes = params
    places = _numpy_places(np, classes, ignored)
    zero = np.zeros((), out.dtype.numpy)

    def backward(g: Any, target: Any) -> Any:
        at, counts = places(target)
        whole = np.zeros(out.shape, out.dtype.numpy)
        np.put_along_axis(whole, at, np.expand_dims(np.where(counts, -g, zero), 1), 1)
        return whole

    return backward


def _torch_nll_backward(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    ignored, _ = params

    def backward(g: Any, target: Any) -> Any:
        counts = target != ignored
        at = torch.where(counts, target, 0).unsqueeze(1)
        share = torch.where(counts, g, 0).neg_().unsqueeze(1)
        return g.new_zeros(out.shape).scatter_(1, at, share)

    return backward


NLL = Op(
    "nll_loss",
    _picked,
    may_fail=True,
    numpy=_numpy_nll,
    torch=_torch_nll,
    gradients=(
        lambda g, n: apply(
            NLL_BACKWARD, (g, n.inputs[1]), (n.params[0], n.inputs[0].spec.shape[1])
        ),
        None,
    ),
    saves="i",
)
NLL_BACKWARD: Op = Op(
    "nll_loss_backward",
    lambda specs, params: spec_of(
        specs[0].dtype, (specs[0].shape[0], params[1], *specs[0].shape[1:])
    ),
    may_fail=True,
    numpy=_numpy_nll_backward,
    torch=_torch_nll_backward,
    gradients=(lambda g, n: apply(NLL, (g, n.inputs[1]), n.params[:1]), None),
    saves="i",
)


def _shares(target: Node, ignore_index: int, weight: Node | None, like: Node, name: str) -> Node:
    """How much each target counts: by its class's weight, and not at all if it is ignored."""
    counts = ne(target, ignore_index)
    if weight is None:
        return cast(counts, like.spec.dtype)
    classes = (like.spec.shape[0 if len(like.spec.shape) == 1 else 1],)
    if weight.spec.shape != classes:
        raise ValueError(
            f"{name}: the weight {weight.spec.shape} must be one of each class: {classes}"
        )
    return where(counts, take(weight, where(counts, target, 0)), 0.0)


def nll_loss(
    input: Node,
    target: Node,
    reduction: str = "mean",
    ignore_index: int = -100,
    weight: Node | None = None,
) -> Node:
    """The negative log-likelihood of the right classes.

    Args:
        input: log-probabilities, (N, classes, ...) or (classes,).
        target: indices of the right classes, (N, ...) or ().
        reduction: ``"mean"`` (weighted), ``"sum"``, or ``"none"``.
        ignore_index: targets with this index are skipped.
        weight: (classes,): the weight of each class.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: the targets are not integers.
    """
    if reduction not in REDUCTIONS:
        reduced_by(input, reduction)
    target = whole(target, "nll_loss")
    single = len(input.spec.shape) == 1
    if single:
        input, target = unsqueeze(input, 0), reshape(target, (1,))
    loss = apply(NLL, (input, target), (ignore_index,))
    shares = None
    if weight is not None:
        shares = _shares(target, ignore_index, weight, input, "nll_loss")
        loss = mul(loss, shares)
    if single and reduction == "none":
        return reshape(loss, ())
    if reduction == "none":
        return loss
    total = sum(loss)
    if reduction == "sum":
        return total
    if shares is None:
        shares = _shares(target, ignore_index, None, input, "nll_loss")
    return div(total, sum(shares))


def cross_entropy(
    input: Node,
    target: Node,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    weight: Node | None = None,
) -> Node:
    """The cross entropy of unnormalised scores with the right classes.

    Args:
        input: scores, (N, classes, ...) or (classes,).
        target: indices of the right classes, (N, ...); or a probability of each class, in the
            input's shape.
        reduction: ``"mean"`` (weighted), ``"sum"``, or ``"none"``.
        ignore_index: targets with this index are skipped.
        label_smoothing: fraction of the probability that is spread over all classes.
        weight: (classes,): the weight of each class.

    Raises:
        ValueError: the shapes do not fit, or the smoothing is not from 0 to 1.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing={label_smoothing} must be 0 to 1")
    axis = 0 if len(input.spec.shape) == 1 else 1
    scores = log_softmax(input, axis)
    classes = input.spec.shape[axis]
    if is_float(target.spec.dtype):
        _alike(input, target, "cross_entropy")
        if label_smoothing:
            target = add(mul(target, 1.0 - label_smoothing), label_smoothing / classes)
        return reduced_by(neg(sum(mul(_by_class(scores, weight, axis), target), axis)), reduction)
    loss = nll_loss(scores, target, reduction, ignore_index, weight)
    if not label_smoothing:
        return loss
    counts = cast(ne(target, ignore_index), scores.spec.dtype)
    even = mul(neg(mean(_by_class(scores, weight, axis), axis)), counts)
    if reduction == "mean":
        shares = _shares(target, ignore_index, weight, scores, "cross_entropy")
        even = div(sum(even), sum(shares))
    elif reduction == "sum":
        even = sum(even)
    return add(mul(loss, 1.0 - label_smoothing), mul(even, label_smoothing))


def _by_class(scores: Node, weight: Node | None, axis: int) -> Node:
    """The scores of each class times its weight."""
    if weight is None:
        return scores
    shape = (scores.spec.shape[axis], *[1] * (len(scores.spec.shape) - axis - 1))
    return mul(scores, reshape(weight, shape))
