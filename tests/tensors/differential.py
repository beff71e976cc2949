"""The differential generator: random calls of every operation, done by us and by torch, compared.

A call is drawn from a seed: which operation, of which element types (maybe several at once), with
which special numbers among the elements (NaN, infinities, zeros of both signs, denormal and extreme
ones), lying how (in order, transposed, every other, backwards, stretched), or without elements at
all. Both engines must give torch's values, types, shapes and gradients, or fail where torch fails.

    python -m tensors.differential --seconds 60 [--seed 7] [--only NAME]

in the folder ``tests`` runs more of them than the tests do; ``make fuzz T=operations`` is the same.
A seed that fails is printed, and repeats by ``--seed``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensors.samples import OURS, SAMPLES, THEIRS
from tensors.test_named_functions import CASES

import shmgpu as gt
from shmgpu import errors

FLOATS = ("float32", "float64", "float16", "bfloat16")
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
TOLERANCE = {"float64": 1e-9, "float32": 3e-5, "float16": 2e-2, "bfloat16": 1.5e-1}
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    -3.0,
    1e-3,
    "tiny",
    "-tiny",
    "huge",
]
PLAIN = (0.0, 1.0, -1.0, 0.5, 2.0, -3.0)  # what 16 bits are given: they overflow on the way
TINY = {"float16": 1e-7, "bfloat16": 1e-39, "float32": 1e-40, "float64": 1e-310}
HUGE = {"float16": 6e4, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}

# Whole numbers that are elements and not places.
OPERANDS = {
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "logical_and", "logical_or", "eq",
    "sum of whole numbers in a type", "count_nonzero", "cumsum in a type", "prod in a type",
    "mean of whole numbers",
}  # fmt: skip

# Those of which torch takes several float types at once.
MIXES = set(
    "add sub mul div maximum minimum remainder pow where eq ne lt le gt ge atan2 hypot".split()
)
# What differs, by no fault: a tolerance, or the reason why it is not compared where it may differ.
NEARLY = {
    "functional hardsigmoid": 1e-6,  # torch's gradient has a sixth of 32 bits
    "sinc, short (named)": 1e-3,  # near 0 torch's gradient is a difference of large numbers
}
# Of sums of products of sums, in another order; and a quotient as small as these have them.
NOT_IN_16_BITS = {"matrix_power 5 (named)", "sinc, short (named)"}
# Gradients: of a norm's element that is 0 torch's is 0, and ours NaN; outside of (0, 1) of a logit,
# which is NaN there, the other way round. A quotient by 0 that is cut has none in torch, here NaN.
SLOPES_ELSEWHERE = {"linalg.norm, -1 (named)", "logit (named)", "div, trunc (named)"}
TIES = {"median (named)", "median of an axis (named)"}  # which of equal elements it is
# Values where an element is infinite or NaN: torch's mean by Welford's method is then NaN.
NOT_AT_INFINITY = {
    "var_mean (named)", "std_mean (named)", "var_mean, biased (named)", "std_mean, biased (named)",
    "functional kl_div", "functional hardswish", "functional binary_cross_entropy_with_logits",
    "cdist, inf (named)",
}  # fmt: skip
# Which pivot is chosen where one is NaN; and torch refuses 16 bits only where there are elements.
SOLVED = "inv", "det", "solve", "linalg, "
# Gradients there: torch's own depend on whether an element was done in a vector or alone, or on the
# way in which its rule goes through the elements.
SLOPES_NOT_AT_INFINITY = {
    "prod", "prod in a type (named)", "cumprod", "cumprod with zeros (named)", "var", "std", "min",
    "norm inf (named)", "batch_norm", "nextafter", *NOT_AT_INFINITY,
    "clamped on one side (named)", "a power of a number", "dist inf (named)",
    "var, biased (named)", "std, unbiased (named)",
    *(f"linalg.norm, {order} (named)" for order in ("1", "inf", "-inf")),
    *(f"functional {name}" for name in "hardtanh relu6 hardshrink softshrink hardsigmoid".split()),
}  # fmt: skip
COMPOSED = "quantile", "cdist"  # likewise, in each form: here they are made of several operations

ACTIVATIONS = (
    "relu sigmoid tanh gelu silu softplus elu selu celu mish hardtanh relu6 hardsigmoid hardswish "
    "leaky_relu logsigmoid softsign tanhshrink softshrink hardshrink"
).split()
PAIRS = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits".split()


def _plain(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2, 2, shape)


SUBJECTS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    **{
        name: (sample.at, sample.arrays)
        for name, sample in SAMPLES.items()
        if sample.compare and not sample.back
    },
    **{f"{name} (named)": (call, tuple(arrays)) for name, (call, *arrays) in CASES.items()},
    **{
        f"functional {name}": (
            lambda f, x, name=name: getattr(f.nn.functional, name)(x),
            (_plain(3, 4),),
        )
        for name in ACTIVATIONS
    },
    **{
        f"functional {name}": (
            lambda f, x, y, name=name: getattr(f.nn.functional, name)(x, y),
            (_plain(3, 4), _plain(3, 4, seed=4)),
        )
        for name in PAIRS
    },
    "functional cross_entropy": (
        lambda f, x, t: f.nn.functional.cross_entropy(x, t, label_smoothing=0.1),
        (_plain(4, 3), np.array([0, 2, 1, 1])),
    ),
    "functional group_norm": (
        lambda f, x: f.nn.functional.group_norm(x, 2, eps=1e-3),
        (_plain(2, 4, 3),),
    ),
    "functional normalize": (lambda f, x: f.nn.functional.normalize(x, dim=-1), (_plain(3, 4),)),
    "functional kl_div": (
        lambda f, x, y: f.nn.functional.kl_div(x, y.abs() + 0.1, reduction="sum"),
        (_plain(3, 4), _plain(3, 4, seed=4)),
    ),
    "logsumexp": (lambda f, x: f.logsumexp(x, 1), (_plain(3, 4),)),
    "var": (lambda f, x: f.var(x, 1), (_plain(3, 4),)),
    "std": (lambda f, x: f.std(x, 0), (_plain(3, 4),)),
    "mean": (lambda f, x: f.mean(x, 1), (_plain(3, 4),)),
    "a power of a number": (lambda f, x: x**2 + x**0.5 + x**-1, (_plain(3, 4),)),
    "a number to a power": (lambda f, x: 2.0**x, (_plain(3, 4),)),
    "sort": (lambda f, x: f.sort(x, 1)[0], (_plain(3, 4),)),
    "max along": (lambda f, x: f.max(x, 1)[0], (_plain(3, 4),)),
    "min": (lambda f, x: f.min(x), (_plain(3, 4),)),
    "indexed by a mask": (lambda f, x: x[x > 0], (_plain(3, 4),)),
    "assigned by a mask": (lambda f, x: f.where(x > 0, x, x * 2), (_plain(3, 4),)),
    "masked_fill": (lambda f, x: x.masked_fill(x < 0, 0.5), (_plain(3, 4),)),
    "attention": (
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True),
        (_plain(2, 4, 3), _plain(2, 4, 3, seed=4), _plain(2, 4, 3, seed=5)),
    ),
}


@dataclasses.dataclass
class Drawn:
    """What a seed says: a subject, and for each of its arrays the elements, type and layout."""

    name: str
    arrays: list[np.ndarray]
    dtypes: list[str]
    layouts: list[str]
    weights: int

    def __str__(self) -> str:
        shown = [
            f"{dtype} {layout} {array.tolist()}"
            for array, dtype, layout in zip(self.arrays, self.dtypes, self.layouts, strict=True)
        ]
        return f"{self.name} of " + "\n   and ".join(shown)


LAYOUTS = ("in order", "in order", "transposed", "every other", "backwards", "stretched")


def draw(seed: int, only: str | None = None) -> Drawn:
    """The call of that seed."""
    rng = random.Random(seed)
    name = only or rng.choice(sorted(SUBJECTS))
    _, given = SUBJECTS[name]
    common = rng.choices(FLOATS, (6, 3, 1, 1))[0]
    if name.startswith(SOLVED) and common in ("float16", "bfloat16"):
        common = "float32"
    mixed = name in MIXES and rng.random() < 0.3
    share = rng.choice((0.0, 0.1, 0.4))
    gone = rng.choice([n for a in given for n in a.shape] or [0]) if rng.random() < 0.08 else None
    drawn = Drawn(name, [], [], [], rng.getrandbits(30))
    for array in given:
        array, layout = np.array(array), "in order"
        dtype = {"b": "bool", "i": "int64", "u": "uint8"}.get(array.dtype.kind)
        if array.dtype.kind == "f":
            dtype = rng.choice(FLOATS) if mixed else common
            array = array * rng.choice((1.0, 1.0, 3.0))
            for place in range(array.size):
                if rng.random() < share:
                    one = rng.choice(SPECIAL)
                    if dtype not in ("float16", "bfloat16") or one in PLAIN:
                        array.flat[place] = special(one, dtype)
            layout = rng.choice(LAYOUTS)
        elif array.dtype.kind == "i" and name.partition(" (")[0] in OPERANDS:
            dtype = rng.choice(WHOLE)
            told = np.iinfo(dtype)
            if rng.random() < 0.5:
                array = np.array(
                    [rng.choice((0, 1, 2, 7, told.max, told.min)) for _ in range(array.size)]
                ).reshape(array.shape)
        if gone is not None:
            array = array[tuple([slice(0, 0) if n == gone else slice(None) for n in array.shape])]
        drawn.arrays.append(array)
        drawn.dtypes.append(dtype)
        drawn.layouts.append(layout)
    return drawn


def special(one: Any, dtype: str) -> float:
    if one == "huge":
        return HUGE[dtype]
    if isinstance(one, str):
        return TINY[dtype] * (-1 if one[0] == "-" else 1)
    return one


def laid(f: Any, array: np.ndarray, dtype: str, layout: str) -> tuple[Any, Any]:
    """A tensor that collects gradients where it can, and the view of it that lies as is said."""
    kind = getattr(f, dtype)
    is_float = dtype in FLOATS
    if layout == "transposed" and array.ndim > 1:
        stored = np.ascontiguousarray(array.swapaxes(0, -1))
    elif layout == "every other" and array.ndim:
        stored = np.repeat(array, 2, axis=0)
    elif layout == "backwards" and array.ndim:
        stored = np.ascontiguousarray(array[::-1])
    elif layout == "stretched" and array.ndim and array.shape[0]:
        stored, array = np.ascontiguousarray(array[:1]), np.broadcast_to(array[:1], array.shape)
    else:
        stored, layout = array, "in order"
    made = f.tensor(np.array(stored), dtype=kind)
    if is_float:
        made.requires_grad_()
    if layout == "in order":
        return made, made
    view = {
        "transposed": lambda: made.transpose(0, -1),
        "every other": lambda: made[::2],
        "backwards": lambda: made.flip(0) if f is torch else made[::-1],
        "stretched": lambda: made.expand(*array.shape),
    }[layout]()
    return made, view


class Failed(Exception):
    """A library refused the call; the reason is its cause."""


def outcome(f: Any, functions: Any, drawn: Drawn) -> tuple[list[Any], list[Any]]:
    """Values, and gradients where there are any, as (type, array)."""
    call, _ = SUBJECTS[drawn.name]
    try:
        pairs = [
            laid(f, *each) for each in zip(drawn.arrays, drawn.dtypes, drawn.layouts, strict=True)
        ]
        made = call(functions, *[view for _, view in pairs])
        outs = list(made) if isinstance(made, tuple) else [made]
        values = [as_array(one) for one in outs]
        grads: list[Any] = []
        if outs[0].requires_grad:
            weights = np.random.default_rng(drawn.weights).uniform(0.5, 1.5, tuple(outs[0].shape))
            outs[0].backward(f.tensor(weights, dtype=outs[0].dtype))
            grads = [None if leaf.grad is None else as_array(leaf.grad) for leaf, _ in pairs]
        return values, grads
    except (RuntimeError, ValueError, TypeError, IndexError, OverflowError, errors.ShmError) as why:
        raise Failed(f"{type(why).__name__}: {why}") from why


def as_array(tensor: Any) -> tuple[str, np.ndarray]:
    tensor = tensor.detach()
    name = (
        str(tensor.dtype).rpartition(".")[2]
        if isinstance(tensor, torch.Tensor)
        else tensor.dtype.name
    )
    if name == "bfloat16":
        tensor = tensor.to(gt.float32) if isinstance(tensor, gt.Tensor) else tensor.float()
    return name, np.array(tensor.numpy())


def unlike(ours: Any, theirs: Any, loosest: str, is_extreme: bool, least: float) -> str:
    """In what two arrays differ, as a sentence; nothing where they agree."""
    (kind, got), (wanted, want) = ours, theirs
    if kind != wanted or got.shape != want.shape:
        return f"{kind} {got.shape} and not {wanted} {want.shape}"
    if kind not in FLOATS:
        near = np.equal(got, want)
    else:
        tol = max(TOLERANCE[kind], TOLERANCE[loosest], least)
        got, want = got.astype(np.float64), want.astype(np.float64)
        near = np.isclose(got, want, rtol=tol, atol=tol, equal_nan=True)
        if is_extreme:  # one library overflows on the way, and the other does not
            most = HUGE[loosest] ** 0.7
            near |= ~(np.abs(got) < most) | ~(np.abs(want) < most)
    if near.all():
        return ""
    place = tuple(np.argwhere(~near)[0].tolist())
    return f"{got[place]} and not {want[place]} at {place} of {got.shape}"


def compare(drawn: Drawn) -> str:
    """What is wrong, as a sentence; nothing where both do the same."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            values, grads = outcome(torch, THEIRS, drawn)
        except Failed:
            with contextlib.suppress(Failed):
                outcome(gt, OURS, drawn)  # more is allowed here: types mix in all operations
            return ""
        try:
            ours, own = outcome(gt, OURS, drawn)
        except Failed as why:
            return f"it failed: {why}"
    loosest = max(drawn.dtypes, key=lambda kind: TOLERANCE.get(kind, 0), default="float64")
    loosest = loosest if loosest in FLOATS else "float64"
    is_strange = any(
        dtype in FLOATS and not np.isfinite(array).all()
        for array, dtype in zip(drawn.arrays, drawn.dtypes, strict=True)
    )
    least = NEARLY.get(drawn.name, 0.0)
    is_extreme = any(
        dtype in FLOATS and np.abs(array[np.isfinite(array)]).max(initial=0) > HUGE[dtype] ** 0.7
        for array, dtype in zip(drawn.arrays, drawn.dtypes, strict=True)
    )
    for one, other in zip(ours, values, strict=True):
        if is_strange and (drawn.name in NOT_AT_INFINITY or drawn.name.startswith(SOLVED)):
            break
        if wrong := unlike(one, other, loosest, is_extreme, least):
            return f"the value is {wrong}"
    is_rounded = drawn.name in NOT_IN_16_BITS and loosest in ("float16", "bfloat16")
    if is_rounded or drawn.name in TIES | SLOPES_ELSEWHERE:
        return ""
    has_slope = drawn.name not in SLOPES_NOT_AT_INFINITY and not drawn.name.startswith(
        (*COMPOSED, *SOLVED)
    )
    if is_strange and not has_slope:
        return ""
    if not own and any(other is not None and other[1].any() for other in grads):
        return "it has no gradients, and torch's are not 0"
    for one, other in zip(own, grads, strict=False):
        if one is None or other is None:
            if other is not None and np.nan_to_num(other[1]).any():
                return "a gradient is missing"
            continue
        if wrong := unlike(one, other, loosest, is_extreme, least):
            return f"a gradient is {wrong}"
    return ""


AT_ONCE = 50  # seeds, on one engine and then on the other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    first = random.SystemRandom().getrandbits(30) if options.seed is None else options.seed
    until, count = time.monotonic() + options.seconds, 0
    while not count or time.monotonic() < until:
        for backend in ("torch", "numpy"):
            gt.set_backend(backend)
            with gt.init(inline=True, arena="64MiB", threads=1):
                for seed in range(first, first + AT_ONCE):
                    drawn = draw(seed, options.only)
                    if wrong := compare(drawn):
                        print(f"seed {seed}, {backend}: {drawn}\n   {wrong}")
                        return 1
                    count += 1
        first += AT_ONCE
    print(f"stat::number_of_executed_units: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
