"""Hypothesis chooses shapes, axes, types and layouts: every family gives what torch gives.

Shapes have no axes to four, with lengths from 0; tensors come as they are, transposed, stretched,
or turned round, so that kernels meet elements that do not lie in order.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as some
from tensors.against_torch import agree

from shmgpu.engine import plan

pytestmark = pytest.mark.operations

FLOATS = ["float64", "float32", "float16", "bfloat16"]

chosen = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
lengths = some.integers(0, 4)
shapes = some.lists(lengths, max_size=4).map(tuple)
full_shapes = some.lists(some.integers(1, 4), min_size=1, max_size=4).map(tuple)
types = some.sampled_from(FLOATS)
seeds = some.integers(0, 1 << 20)

LAYOUTS = {
    "as it is": lambda f, x: x,
    "transposed": lambda f, x: x.transpose(0, -1) if x.ndim else x,
    "stretched": lambda f, x: x.unsqueeze(0).expand(2, *x.shape) if x.ndim < 4 else x,
    "turned": lambda f, x: f.flip(x, (0,)) if x.ndim else x,
    "every other": lambda f, x: x[::2] if x.ndim else x,
}
layouts = some.sampled_from(sorted(LAYOUTS)).map(LAYOUTS.get)


@pytest.fixture(autouse=True)
def _memory_is_planned_for_the_smallest(monkeypatch):
    """So that small tensors lie in buffers and are written over, as great ones are."""
    monkeypatch.setattr(plan, "MIN_BUFFER", 0)


def values(shape, seed):
    """All different, so that the greatest is one, and order does not depend on the library."""
    count = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(count)
    return ((order - count / 2 + 0.25) / max(count / 4, 1)).reshape(shape)


ELEMENTWISE = {
    "sin": lambda f, x: f.sin(x),
    "sigmoid": lambda f, x: f.sigmoid(x),
    "gelu": lambda f, x: f.gelu(x),
    "silu": lambda f, x: f.silu(x),
    "power": lambda f, x: (x * x + 0.5) ** 0.5,
    "where": lambda f, x: f.where(x > 0.3, x, -x),
    "clamp": lambda f, x: f.clamp(x, -0.5, 0.7),
    "square": lambda f, x: x * x,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
@chosen
@given(shape=shapes, dtype=types, layout=layouts, seed=seeds)
def test_elementwise(engine, name, shape, dtype, layout, seed):
    agree(
        lambda f, x: ELEMENTWISE[name](f, layout(f, x)),
        values(shape, seed), dtype=dtype, tol=0.05 if dtype == "bfloat16" else None,
    )  # fmt: skip


@chosen
@given(
    shape=full_shapes,
    drop=some.integers(0, 4),
    ones=some.lists(some.booleans(), min_size=4, max_size=4),
    name=some.sampled_from("add sub mul div maximum minimum".split()),
    dtype=types,
    layout=layouts,
    seed=seeds,
)
def test_two_that_are_stretched_to_one_shape(engine, shape, drop, ones, name, dtype, layout, seed):
    other = tuple(1 if one else n for one, n in zip(ones, shape, strict=False))[drop:]
    x, y = values(shape, seed), np.abs(values(other, seed + 1)) + 0.5
    assume(not np.isin(x, y).any())  # where they are equal, libraries may share the gradient anew
    agree(lambda f, x, y: getattr(f, name)(x, y), x, y, dtype=dtype, tol=_loose(dtype))


def _loose(dtype):
    return {"bfloat16": 0.1, "float16": 0.02}.get(dtype)


REDUCTIONS = "sum mean amax amin var logsumexp prod all any".split()


@pytest.mark.parametrize("name", REDUCTIONS)
@chosen
@given(
    shape=full_shapes, axis=some.integers(-4, 3), second=some.integers(-4, 3), pair=some.booleans(),
    keep=some.booleans(), dtype=types, layout=layouts, seed=seeds,
)  # fmt: skip
def test_reductions(engine, name, shape, axis, second, pair, keep, dtype, layout, seed):
    def call(f, x):
        y = layout(f, x)
        dim = axis % y.ndim - (y.ndim if axis < 0 else 0)
        if pair and name != "prod" and (dim - second) % y.ndim:
            dim = (dim, second % y.ndim)
        options = {"keepdim": keep}
        if name == "var":
            options["correction"] = 0
        return getattr(f, name)(y, dim, **options)

    agree(call, values(shape, seed), dtype=dtype, tol=_loose(dtype))


# Without axes, or with one of length 0 at some place.
hollow = some.just(()) | some.tuples(full_shapes, some.integers(0, 3)).map(
    lambda drawn: (*drawn[0][: drawn[1]], 0, *drawn[0][drawn[1] :])
)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "all", "any", "cumsum", "softmax"])
@chosen
@given(shape=hollow, axis=some.integers(0, 3), layout=layouts)
def test_of_nothing_and_without_axes(engine, name, shape, axis, layout):
    def call(f, x):
        y = layout(f, x)
        return getattr(f, name)(y, axis % max(y.ndim, 1))

    agree(call, values(shape, 1), tol=1e-5)


@chosen
@given(
    batch=some.lists(some.integers(1, 3), max_size=2).map(tuple), n=lengths, k=lengths, m=lengths,
    left=some.booleans(), right=some.booleans(), dtype=types, seed=seeds,
)  # fmt: skip
def test_products(engine, batch, n, k, m, left, right, dtype, seed):
    """Batched on either side or both, of vectors too, and of what is transposed."""
    a = values(((*batch, n, k) if left else (n, k)), seed)
    b = values(((*batch, m, k) if right else (m, k)), seed + 1)
    agree(lambda f, x, y: x @ y.transpose(-1, -2), a, b, dtype=dtype, tol=_loose(dtype))
    agree(lambda f, x, y: x @ y, a, values((k,), seed), dtype=dtype, tol=_loose(dtype))


ALONG = {
    "softmax": lambda f, x, d: f.softmax(x, d),
    "log_softmax": lambda f, x, d: f.log_softmax(x, d),
    "cumsum": lambda f, x, d: f.cumsum(x, d),
    "argmax": lambda f, x, d: f.argmax(x, d),
    "argmin": lambda f, x, d: f.argmin(x, d, keepdim=True),
    "sort": lambda f, x, d: tuple(f.sort(x, d)),
    "topk": lambda f, x, d: tuple(f.topk(x, 1, d)),
    "roll": lambda f, x, d: f.roll(x, 2, d),
    "flip": lambda f, x, d: f.flip(x, (d,)),
    "cat": lambda f, x, d: f.cat([x, x * 2], d),
    "stack": lambda f, x, d: f.stack([x, x * 2], d),
    "chunk": lambda f, x, d: tuple(f.chunk(x, 2, d)),
    "select": lambda f, x, d: f.index_select(x, d, f.zeros(3, dtype=torch.int64)),
    "pad": lambda f, x, d: f.pad(x, (0, 0) * (-1 - d) + (2, 1), value=0.5),
}


@pytest.mark.parametrize("name", ALONG)
@chosen
@given(shape=full_shapes, axis=some.integers(-4, -1), dtype=types, layout=layouts, seed=seeds)
def test_along_an_axis(engine, name, shape, axis, dtype, layout, seed):
    assume(layout is not LAYOUTS["stretched"] or name not in ("sort", "topk", "argmax", "argmin"))

    def call(f, x):
        y = layout(f, x)
        return ALONG[name](f, y, -1 - (-1 - axis) % y.ndim)

    # Sums of 16 bits are rounded on the way by one library, at the end by the other.
    agree(call, values(shape, seed), dtype=dtype, tol=_loose(dtype))


@chosen
@given(
    shape=full_shapes, seed=seeds, dtype=types,
    parts=some.lists(
        some.one_of(
            some.integers(-4, 3), some.just(None), some.just("index"),
            some.slices(4).filter(lambda one: (one.step or 1) > 0),
        ),
        max_size=5,
    ),
)  # fmt: skip
def test_square_brackets(engine, shape, seed, dtype, parts):
    index, axis = [], 0
    for one in parts:
        if one is None:
            index.append(None)
            continue
        if axis == len(shape):
            break
        if one == "index":
            one = np.random.default_rng(seed).integers(-shape[axis], shape[axis], 2).tolist()
        elif isinstance(one, int):
            one %= shape[axis]
        index.append(one)
        axis += 1
    x = values(shape, seed)

    def read(f, x):
        return x[tuple(index)]

    def write(f, x):
        y = x * 2
        y[tuple(index)] = 0.5
        return y

    agree(read, x, dtype=dtype)
    agree(write, x, dtype=dtype)


@chosen
@given(
    size=some.tuples(some.integers(3, 7), some.integers(3, 7)),
    kernel=some.tuples(some.integers(1, 3), some.integers(1, 3)),
    stride=some.tuples(some.integers(1, 3), some.integers(1, 3)),
    padding=some.tuples(some.integers(0, 2), some.integers(0, 2)),
    dilation=some.tuples(some.integers(1, 2), some.integers(1, 2)),
    groups=some.integers(1, 2), n=some.integers(0, 2), seed=seeds,
)  # fmt: skip
def test_windows(engine, size, kernel, stride, padding, dilation, groups, n, seed):
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(r <= s + 2 * p for r, s, p in zip(reach, size, padding, strict=True)))
    x, w = values((n, 4, *size), seed), values((2 * groups, 4 // groups, *kernel), seed + 1)
    agree(lambda f, x, w: f.conv2d(x, w, None, stride, padding, dilation, groups), x, w, tol=1e-4)
    margin = tuple(min(p, k // 2) for p, k in zip(padding, kernel, strict=True))
    agree(lambda f, x: f.avg_pool2d(x, kernel, stride, margin), x, tol=1e-4)
    assume(all(r <= s + 2 * p for r, s, p in zip(reach, size, margin, strict=True)))
    agree(lambda f, x: f.max_pool2d(x, kernel, stride, margin, dilation), x, tol=1e-4)
