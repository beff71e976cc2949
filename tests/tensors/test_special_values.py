"""Infinities, NaN, zeros of both signs and no elements at all: values and gradients are torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shmgpu as gt

pytestmark = pytest.mark.operations

INF, NAN = np.inf, np.nan


def f32(*values):
    return np.array(values, np.float32)


DISTANT = f32([1, 1.5, 1], [1, 2, 2], [0, 0, 0])
CASES = (
    {
        "logsumexp of an infinity": (lambda f, x: x.logsumexp(0), f32(INF, 1)),
        "logsumexp of minus infinities": (lambda f, x: x.logsumexp(0), f32(-INF, -INF)),
        "logsumexp of nothing": (lambda f, x: x.logsumexp(1), np.zeros((3, 0), np.float32)),
        "to the power of 0": (lambda f, x: x**0, f32(0, 1, -2)),
        "powers of 0": (lambda f, x: 0**x, f32(0, 1, -2, 3)),
        "powers": (lambda f, x, y: f.pow(x, y), f32(0, 0, 2, -1), f32(0, 2, 3, 2)),
        "a cast through whole numbers": (lambda f, x: x.to(f.int64).to(f.float32) + x, f32(1.5, 2)),
        "maximum": (lambda f, x, y: f.maximum(x, y), f32(NAN, 1, 2, 3), f32(1, NAN, 2, 1)),
        "minimum": (lambda f, x, y: f.minimum(x, y), f32(NAN, 1, 2, 3), f32(1, NAN, 2, 1)),
        "windows with several that are no numbers": (  # of which the last one has the gradient
            lambda f, x: f.max_pool2d(x, 2),
            np.where(np.isin(np.arange(16), (0, 4, 6, 11)), NAN, np.arange(16.0)).reshape(
                1, 1, 4, 4
            ),
        ),
        "a square of bools": (lambda f, x: x.square(), np.array([True, False])),
        "a power of bools": (lambda f, x: x**2, np.array([True, False])),
        "any of bytes": (lambda f, x: x.any(), np.array([1, 0], np.uint8)),
        "all of bytes": (lambda f, x: x.all(0), np.array([[1, 0], [2, 3]], np.uint8)),
        "powers of whole numbers below 0": (
            lambda f, x, y: f.pow(x, y),
            np.array([1, -1, -1, 2, 3]),
            np.array([-1, -3, -2, -1, 2]),
        ),
        "products without elements": (
            lambda f, x, w: x @ w,
            np.zeros((4, 0), np.float32),
            np.ones((0, 3), np.float32),
        ),
        "the greatest of NaN": (lambda f, x: x.amax(0), f32(NAN, 1, 2)),
        "a variance of one": (lambda f, x: x.var(0), f32(2)),
        "a deviation of equals": (lambda f, x: x.std(), f32(1, 1, 1)),
        "clamp": (lambda f, x: x.clamp(0, 1), f32(NAN, -1, 0.5, 2, 0, 1)),
        "softmax": (lambda f, x: x.softmax(0), f32(INF, 1)),
        "log_softmax": (lambda f, x: x.log_softmax(0), f32(-INF, 1)),
        "binary_cross_entropy": (
            lambda f, x, y: f.nn.functional.binary_cross_entropy(x, y, reduction="none"),
            f32(0, 1, 1, 0, 0.25, 0, 1),
            f32(0, 1, 0, 1, 0.5, 0.5, 0.5),
        ),
        "sqrt": (lambda f, x: x.sqrt(), f32(0, 4, -1)),
        "rsqrt": (lambda f, x: x.rsqrt(), f32(0, 4, -1)),
        "abs": (lambda f, x: x.abs(), f32(0, -0.0, -1, NAN)),
        "sign": (lambda f, x: x.sign(), f32(0, -0.0, -1, NAN)),
        "relu": (lambda f, x: x.relu(), f32(0, -0.0, -1, NAN)),
        "remainder": (lambda f, x, y: x % y, f32(7, -7, INF, 1, 5), f32(2, 2, 2, 0, INF)),
        "a quotient by 0": (lambda f, x, y: x / y, f32(1, 0, -1), f32(0, 0, 0)),
        "log": (lambda f, x: x.log(), f32(0, -1, INF)),
        "where": (lambda f, x, y: f.where(x > 0, x, y), f32(NAN, 1), f32(1, NAN)),
        "sigmoid": (lambda f, x: x.sigmoid(), f32(-200, 200, NAN, -INF)),
        "tanh": (lambda f, x: x.tanh(), f32(INF, -INF, NAN)),
        "cumsum": (lambda f, x: x.cumsum(0), f32(INF, -INF, 1)),
        "sort": (lambda f, x: x.sort()[0], f32(1, NAN, 3, -INF)),
        "a mean of nothing": (lambda f, x: x.mean(), np.zeros((0,), np.float32)),
        "the root of a sum of squares": (lambda f, x: (x * x).sum().sqrt(), f32(0, 0)),
        "attention of a row that may look nowhere": (
            lambda f, q, m: f.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=m),
            f32([1, 2], [3, 4]),
            f32([-INF, -INF], [0, -INF]),
        ),
        "attention without keys": (
            lambda f, q, k, m: f.nn.functional.scaled_dot_product_attention(
                q, k, k, attn_mask=m.detach()
            ),
            f32([1, 2], [3, 4]),
            np.zeros((0, 2), np.float32),
            np.zeros((2, 0), np.float32),
        ),
        "clamp by tensors": (
            lambda f, x, a, b: f.clamp(x, a, b),
            f32(0, 1, 2, 3),
            *f32([1] * 4, [2] * 4),
        ),
        "clamp from below": (
            lambda f, x, a: f.clamp(x, min=a),
            f32(NAN, 0, 1, 2),
            f32(1, 1, 1, NAN),
        ),
        "clamp from above": (
            lambda f, x, b: f.clamp(x, max=b),
            f32(NAN, 0, 1, 2),
            f32(1, 1, 1, NAN),
        ),
        "a median of equals": (lambda f, x: x.median(), f32(3, 1, 1, 2)),
        "adaptive_max_pool1d of equals": (
            lambda f, x: f.nn.functional.adaptive_max_pool1d(x, 2),
            f32([[1, 1, 0, 2, 2]]),
        ),
        "adaptive_max_pool2d of equals": (
            lambda f, x: f.nn.functional.adaptive_max_pool2d(x, (2, 1)),
            f32([[[0, 1, 1], [1, 0, 1], [1, 1, 1]]]),
        ),
        "adaptive_max_pool2d of equals in even windows": (
            lambda f, x: f.nn.functional.adaptive_max_pool2d(x, (2, 1)),
            f32([[[0, 1], [1, 0], [NAN, 1], [1, NAN]]]),
        ),
        "hinge_embedding_loss": (
            lambda f, x, y: f.nn.functional.hinge_embedding_loss(x, y.detach()),
            f32(1, 2, 0.5),
            f32(-1, -1, -1),
        ),
        "margin_ranking_loss": (
            lambda f, x, y: f.nn.functional.margin_ranking_loss(x, y, f.ones(2)),
            f32(1, 2),
            f32(1, 3),
        ),
        "cosine_embedding_loss": (
            lambda f, x, y: f.nn.functional.cosine_embedding_loss(x, y, -f.ones(2)),
            f32([1, 0], [3, 4]),
            f32([0, 1], [3, 4]),
        ),
    }
    | {
        f"{name} with p={p}": (call_with(p), f32([3, -4, 0], [1, 2, 2], [0, 0, 0]), *others)
        for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF, -1)
        for name, call_with, *others in (
            ("norm", lambda p: lambda f, x: x.norm(p=p, dim=1)),
            ("normalize", lambda p: lambda f, x: f.nn.functional.normalize(x, p=p)[:2]),
            ("dist", lambda p: lambda f, x, y: f.dist(x, y, p=p or 4), DISTANT),
            (
                "pairwise_distance",
                lambda p: lambda f, x, y: f.nn.functional.pairwise_distance(x, y, p=p),
                DISTANT,
            ),
            (
                "triplet_margin_loss",
                lambda p: lambda f, x, y: f.nn.functional.triplet_margin_loss(x, y, 2 * y, p=p),
                DISTANT,
            ),
        )
    }
    | {
        f"cdist with p={p}": (
            lambda f, x, y, p=p: f.cdist(x, y, p=p),
            f32([3, -4, 0], [1, 2, 2]),
            DISTANT,
        )
        for p in (0.5, 1, 1.5, 2, 3)
    }
)


def outcome(f, call, arrays):
    tensors = [f.tensor(one) for one in arrays]
    wanted = [
        t.requires_grad_() for t, one in zip(tensors, arrays, strict=True) if one.dtype.kind == "f"
    ]
    out = call(f, *tensors)
    found = [np.asarray(out.detach().numpy())]
    if out.requires_grad:
        out.sum().backward()
        found += [np.asarray(one.grad.numpy()) for one in wanted if one.grad is not None]
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_they_are_what_torch_makes_of_them(engine, name):
    call, *arrays = CASES[name]
    theirs, ours = outcome(torch, call, arrays), outcome(gt, call, arrays)
    assert [one.dtype for one in ours] == [one.dtype for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["maximum", "relu", "where", "abs"])
def test_loops_in_c_do_the_same(name):
    """Chains that repeat are compiled."""
    call, *arrays = CASES[name]
    arrays = [np.tile(one, 4096) for one in arrays]

    def chain(f, *tensors):
        return (call(f, *tensors) * 2 + 1) * 0.5

    theirs = outcome(torch, chain, arrays)
    with gt.init(inline=True, arena="64MiB"):
        for _ in range(6):
            ours = outcome(gt, chain, arrays)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_the_gradient_of_a_determinant_is_that_of_a_polynomial(engine):
    for rows in ([[1, 2], [2, 4]], [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[0, 0], [0, 0]], [[3]]):
        x = gt.tensor(rows, dtype="float64", requires_grad=True)
        gt.linalg.det(x).backward()
        without = [
            [np.delete(np.delete(np.array(rows, float), i, 0), j, 1) for j in range(len(rows))]
            for i in range(len(rows))
        ]
        cofactors = [
            [(-1) ** (i + j) * np.linalg.det(one) for j, one in enumerate(row)]
            for i, row in enumerate(without)
        ]
        np.testing.assert_allclose(x.grad.data, cofactors, atol=1e-12)
    strange = gt.tensor([[[NAN, 1], [2, 3]], [[1, 2], [3, 4]]], requires_grad=True)
    gt.linalg.det(strange).sum().backward()
    assert np.isnan(strange.grad.data[0]).all()
    np.testing.assert_allclose(strange.grad.data[1], [[4, -3], [-2, 1]], rtol=1e-5)


def test_a_tensor_is_iterated_over_by_its_first_axis_and_one_without_axes_is_not(engine):
    assert [row.tolist() for row in gt.tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="without axes"):
        list(gt.tensor(1.0))
