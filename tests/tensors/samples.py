"""For every row of the table of operations: a call that records it, and the same in torch.

A sample's arrays are float64 unless their names say otherwise, and where its gradients are compared
with differences they lie away from edges. ``at`` makes the call of either library: it is given
``f``, the functions of that library under PyTorch's names, and the tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import shmgpu
from shmgpu import optim
from shmgpu.ops.casting import CAST_PARTS
from shmgpu.ops.graph import apply
from shmgpu.tensors import current
from shmgpu.tensors.recomputing import checkpoint
from shmgpu.tensors.tensor import Tensor

_RNG = np.random.default_rng(11)


class Ours:
    """Our functions and types, by attribute."""

    def __getattr__(self, name: str) -> Any:
        return getattr(shmgpu, name)


class Theirs:
    """torch's, wherever they stand."""

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name, None) or getattr(torch, name)


OURS, THEIRS = Ours(), Theirs()


def stepped(rule: str, **settings: Any) -> Callable[..., Any]:
    """A parameter after a step of an optimiser, with such a gradient."""

    def at(f: Any, x: Any, gradient: Any) -> Any:
        one = x.detach().clone().requires_grad_()
        one.grad = gradient.detach()
        optimizer = getattr(optim if f is OURS else torch.optim, rule)([one], **settings)
        if f is OURS:
            current.recorder()._steps = 0  # one that nobody looked at would be sent with this one
        optimizer.step()
        return one.detach()

    return at


@dataclasses.dataclass
class Sample:
    """Arrays, and what is done with them.

    Attributes:
        at: (functions, tensors...) -> the outcome.
        arrays: what the tensors are made of.
        grads: the call is differentiable.
        back: the row is recorded by the gradient, not by the call.
        compare: whether torch has the like.
    """

    at: Callable[..., Any]
    arrays: tuple[np.ndarray, ...]
    grads: bool = True
    back: bool = False
    compare: bool = True


def spread(*shape: int) -> np.ndarray:
    """Numbers that are all different, away from 0 and from each other."""
    count = int(np.prod(shape))
    return ((_RNG.permutation(count) - count / 2 + 0.2) * (4.0 / max(count, 4))).reshape(shape)


def positive(*shape: int) -> np.ndarray:
    return np.abs(spread(*shape)) + 0.3


def whole(high: int, *shape: int) -> np.ndarray:
    return _RNG.integers(0, high, shape)


def bools(*shape: int) -> np.ndarray:
    return _RNG.random(shape) < 0.5


def one(name: str, array: Any = None, **more: Any) -> Sample:
    return Sample(
        lambda f, x: getattr(f, name)(x), (spread(2, 3) if array is None else array,), **more
    )


def two(name: str, **more: Any) -> Sample:
    return Sample(lambda f, x, y: getattr(f, name)(x, y), (spread(2, 3), positive(3)), **more)


def logic(name: str, make: Any = bools) -> Sample:
    arrays = (make(2, 3), make(3)) if make is bools else (make(9, 2, 3), make(9, 3))
    return Sample(lambda f, x, y: getattr(f, name)(x, y), arrays, grads=False)


def over(name: str, array: Any = None, **more: Any) -> Sample:
    x = spread(2, 3, 2) if array is None else array
    return Sample(lambda f, x: getattr(f, name)(x, 1), (x,), **more)


def image(at: Any, **more: Any) -> Sample:
    return Sample(at, (spread(2, 4, 5, 6), spread(4, 2, 3, 2), spread(4)), **more)


def _assigned(f: Any, x: Any, y: Any) -> Any:
    changed = x * 1
    changed[1:, ::2] = y
    return changed


def regular(f: Any, x: Any) -> Any:
    """Square matrices, of up to 5 rows, that have an inverse whatever the elements are."""
    return f.tanh(x) + 5 * f.eye(x.shape[-1], dtype=x.dtype)


def _in_parts(f: Any, x: Any) -> Any:
    """Within its type, so that it is differentiable."""
    return Tensor(apply(CAST_PARTS, (x._node,), (x.dtype,))) if f is OURS else x * 1


_MATRICES = np.sin(np.arange(18.0)).reshape(2, 3, 3)
_conv = image(lambda f, x, w, b: f.conv2d(x, w, b, (2, 1), (1, 2), (1, 2), 2))
_conv_back = dataclasses.replace(_conv, back=True)
_norm = Sample(
    lambda f, x, w, b: f.layer_norm(x, (3, 2), w, b),
    (spread(2, 3, 2), positive(3, 2), spread(3, 2)),
)
_norm_back = dataclasses.replace(_norm, back=True)
_batch = Sample(
    lambda f, x, w, b: f.nn.functional.batch_norm(x, None, None, w, b, True),
    (np.sin(np.arange(24.0)).reshape(3, 2, 4), np.array([0.5, 1.5]), np.array([0.2, -0.7])),
)
_batch_back = dataclasses.replace(_batch, back=True)
_nll = Sample(lambda f, x, t: f.nll_loss(x, t, ignore_index=1), (spread(4, 3, 2), whole(3, 4, 2)))
_table = Sample(lambda f, i, w: f.embedding(i, w), (np.array([[0, 2], [2, 1]]), spread(4, 3)))

SAMPLES: dict[str, Sample] = {
    # casting
    "to": Sample(lambda f, x: x.to(torch.float32), (spread(3),), grads=False),
    "alias": Sample(lambda f, x: (x * 2).detach() + x, (spread(3),), grads=False),
    # updates
    "running_mean": Sample(stepped("SGD", momentum=0.9), (spread(3), spread(3)), grads=False),
    "running_square": Sample(stepped("Adam", lr=0.1), (spread(3), spread(3)), grads=False),
    "adam_step": Sample(stepped("Adam", lr=0.1), (spread(3), spread(3)), grads=False),
    # elementwise
    **{name: two(name) for name in "add sub mul div maximum minimum remainder".split()},
    "pow": Sample(lambda f, x, y: f.pow(x, y), (positive(2, 3), spread(3))),
    "floor_divide": two("floor_divide", grads=False),
    **{name: two(name, grads=False) for name in "eq ne lt le gt ge".split()},
    "logical_not": one("logical_not", bools(3), grads=False),
    **{name: logic(name) for name in "logical_and logical_or".split()},
    **{name: logic(name, whole) for name in "bitwise_and bitwise_or bitwise_xor".split()},
    "bitwise_not": one("bitwise_not", whole(9, 3), grads=False),
    **{
        name: one(name, np.array([1.0, np.nan, -np.inf, np.inf]), grads=False)
        for name in "isnan isfinite isinf".split()
    },
    **{
        name: one(name)
        for name in "neg abs sign floor ceil round exp sin cos tanh sigmoid relu erf".split()
    },
    **{name: one(name, positive(2, 3)) for name in "log sqrt rsqrt log1p".split()},
    **{name: logic(name, whole) for name in "bitwise_left_shift bitwise_right_shift".split()},
    "where": Sample(lambda f, c, x, y: f.where(c, x, y), (bools(2, 3), spread(3), spread(2, 1))),
    "clamp": Sample(lambda f, x: f.clamp(x, -0.5, 0.6), (spread(2, 3),)),
    # shaping
    "reshape": Sample(lambda f, x: x.reshape(3, 4), (spread(2, 6),)),
    "permute": Sample(lambda f, x: x.permute(2, 0, 1), (spread(2, 3, 2),)),
    "slice": Sample(lambda f, x: x[1:, ::2], (spread(3, 5),)),
    "slice_backward": Sample(lambda f, x: f.pad(x, (1, 2, 0, 1)), (spread(2, 3),)),
    "slice_add": Sample(lambda f, x: x[1:, ::2] * x[:-1, 1:4], (spread(3, 5),), back=True),
    "cat": Sample(lambda f, x, y: f.cat([x, y, x], 1), (spread(2, 3), spread(2, 2))),
    # stretching
    "expand": Sample(lambda f, x: x.expand(4, 2, 3), (spread(2, 1),)),
    "sum": over("sum"),
    # reductions
    "amax": over("amax"),
    "amin": over("amin"),
    "all": over("all", bools(2, 3), grads=False),
    "any": over("any", bools(2, 3), grads=False),
    "prod": over("prod"),
    # linear
    "matmul": Sample(lambda f, x, y: x @ y, (spread(2, 3, 4), spread(4, 2))),
    "linear": Sample(
        lambda f, x, w, b: f.linear(x, w, b), (spread(2, 3, 4), spread(5, 4), spread(5))
    ),
    # losses in one pass, and gradients in one pass
    "mse_loss": Sample(lambda f, x, y: f.mse_loss(x, y), (spread(3, 4), spread(3, 4))),
    "mse_backward": Sample(
        lambda f, x, y: f.mse_loss(x, y), (spread(3, 4), spread(3, 4)), back=True
    ),
    "relu_backward": Sample(lambda f, x: f.relu(x), (spread(3, 4),), back=True),
    "add_scaled": Sample(lambda f, x, y: f.add(x, y, alpha=0.5), (spread(3, 4), spread(4))),
    # creation
    "full": Sample(lambda f, x: x * f.full((2, 3), 1.5, dtype=torch.float64), (spread(3),)),
    "arange": Sample(lambda f, x: x + f.arange(2, 7, 2), (spread(3),)),
    "linspace": Sample(lambda f, x: x + f.linspace(-1, 2, 7, dtype=torch.float64), (spread(7),)),
    "eye": Sample(lambda f, x: x + f.eye(3, 4, dtype=torch.float64), (spread(3, 4),)),
    "randn": Sample(lambda f, x: x * 0 + f.randn(3), (spread(3),), grads=False, compare=False),
    "rand": Sample(lambda f, x: x * 0 + f.rand(3), (spread(3),), grads=False, compare=False),
    # activations
    "softmax": over("softmax"),
    "softmax_backward": over("softmax", back=True),
    "log_softmax": over("log_softmax"),
    "log_softmax_backward": over("log_softmax", back=True),
    "gelu": one("gelu"),
    "gelu_backward": Sample(lambda f, x: f.gelu(x, approximate="tanh"), (spread(5),), back=True),
    "silu": one("silu"),
    "silu_backward": one("silu", back=True),
    "leaky_relu": one("leaky_relu"),
    # normalising
    "layer_norm": _norm,
    "layer_norm_moments": _norm_back,
    "layer_norm_input": _norm_back,
    "layer_norm_weight": _norm_back,
    "batch_norm": _batch,
    "batch_norm_moments": _batch_back,
    "batch_norm_input": _batch_back,
    "batch_norm_sums": _batch_back,
    # windows
    "conv2d": _conv,
    "conv2d_input": _conv_back,
    "conv2d_weight": _conv_back,
    "max_pool2d": Sample(lambda f, x: f.max_pool2d(x, 2, 1, 1), (spread(1, 2, 4, 5),), grads=False),
    "max_pool2d_indices": Sample(lambda f, x: f.max_pool2d(x, 3, 2, 1), (spread(1, 2, 4, 5),)),
    "avg_pool2d": Sample(lambda f, x: f.avg_pool2d(x, 2, 1, 1), (spread(1, 2, 4, 5),)),
    "avg_pool2d_backward": Sample(
        lambda f, x: f.avg_pool2d(x, (2, 3), (2, 1)), (spread(1, 2, 4, 5),), back=True
    ),
    # losses
    "binary_cross_entropy": Sample(
        lambda f, x, y: f.binary_cross_entropy(f.sigmoid(x), f.sigmoid(y)),
        (spread(2, 3), spread(2, 3)),
    ),
    "nll_loss": _nll,
    "nll_loss_backward": dataclasses.replace(_nll, back=True),
    # indexing
    "gather": Sample(lambda f, x, i: f.gather(x, 1, i), (spread(3, 4), whole(4, 2, 3))),
    "scatter_add": Sample(
        lambda f, x, i, s: f.scatter_add(x, 0, i, s), (spread(3, 4), whole(3, 2, 3), spread(2, 3))
    ),
    "embedding": _table,
    "embedding_backward": dataclasses.replace(_table, back=True),
    "index": Sample(
        lambda f, x, i, j: x[i, :, j], (spread(3, 2, 4), whole(3, 2, 1), np.array([-1, 0, 2]))
    ),
    "index_put": Sample(lambda f, x, i: x[:, i], (spread(2, 3), np.array([0, 0, 2])), back=True),
    "slice_scatter": Sample(_assigned, (spread(3, 4), spread(2))),
    # rearranging
    "tril": Sample(lambda f, x: f.tril(x, 1), (spread(2, 3, 4),)),
    "triu": Sample(lambda f, x: f.triu(x, -1), (spread(2, 3, 4),)),
    # recomputing
    "checkpoint": Sample(
        lambda f, x: checkpoint(f.tanh, x.detach().requires_grad_()),
        (spread(2, 3),),
        grads=False,
        compare=False,
    ),
    # ordering
    "argmax": over("argmax", grads=False),
    "argmin": over("argmin", grads=False),
    "argsort": over("argsort", grads=False),
    "cumsum": over("cumsum"),
    "cumprod": over("cumprod"),
    "searchsorted": Sample(
        lambda f, x, y: f.searchsorted(f.sort(x, 1)[0], y),
        (spread(2, 5), spread(2, 3)),
        grads=False,
    ),
    "cast_parts": Sample(_in_parts, (spread(2, 3),)),
    # solving
    "inv": Sample(lambda f, x: f.linalg.inv(regular(f, x)), (_MATRICES,)),
    "det": Sample(lambda f, x: f.linalg.det(regular(f, x)), (_MATRICES,)),
    "cofactors": Sample(lambda f, x: f.linalg.det(regular(f, x)), (_MATRICES,), back=True),
    "solve": Sample(
        lambda f, x, y: f.linalg.solve(regular(f, x), y),
        (_MATRICES, np.cos(np.arange(12.0)).reshape(3, 4)),
    ),
    # transcendental
    **{name: one(name) for name in "expm1 atan asinh sinh cosh tan".split()},
    **{name: one(name, positive(2, 3)) for name in "log2 log10".split()},
    "fmod": Sample(
        lambda f, x, y: f.fmod(x, y),
        (np.array([[0.7, -2.3, 3.1], [1.9, -0.4, 2.2]]), np.array([1.1, 0.9, 1.3])),
    ),
    "logaddexp": two("logaddexp"),
    **{name: one(name, spread(2, 3) * 0.4) for name in "asin acos atanh".split()},
    "acosh": one("acosh", positive(2, 3) + 1),
    **{name: two(name) for name in "atan2 hypot copysign".split()},
    "signbit": one("signbit", np.array([0.0, -0.0, 1.0, -np.inf]), grads=False),
    "nextafter": two("nextafter", grads=False),
}
