"""What networks are made of gives what torch gives, in every float type."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensors.against_torch import agree
from tensors.samples import OURS

from shmgpu.tensors import tensor as st

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(17)
FLOATS = ["float64", "float32", "float16", "bfloat16"]


def draw(*shape, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(engine, name, dtype, dim):
    agree(lambda f, x: getattr(f, name)(x, dim), draw(3, 4, 5) * 5, dtype=dtype)


def test_softmax_of_great_numbers_none_and_no_axes(engine):
    agree(lambda f, x: f.softmax(x, -1), np.array([1000.0, 1001.0, -1000.0]))
    agree(lambda f, x: f.log_softmax(x, -1), np.array([1000.0, 1001.0, -1000.0]))
    agree(lambda f, x: f.softmax(x, 0), np.array(3.0))
    agree(lambda f, x: f.softmax(x, 1), draw(2, 0))
    agree(lambda f, x: f.softmax(x, -1, dtype=torch.float64), np.arange(4), grads=False)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.gelu(x),
        lambda f, x: f.gelu(x, approximate="tanh"),
        lambda f, x: f.silu(x),
        lambda f, x: f.leaky_relu(x),
        lambda f, x: f.leaky_relu(x, 0.3),
        lambda f, x: f.relu(x),
        lambda f, x: f.sigmoid(x),
        lambda f, x: f.tanh(x),
        lambda f, x: f.softplus(x),
    ],
)
def test_bent_lines(engine, call, dtype):
    agree(call, draw(4, 5) * 2, dtype=dtype)


def test_leaky_relu_at_its_bend(engine):
    agree(lambda f, x: f.leaky_relu(x, 0.2), np.array([0.0, -0.0, 1.0]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_layer_norm(engine, dtype, shape):
    agree(
        lambda f, x, w, b: f.layer_norm(x, shape, w, b),
        draw(3, 4, 5), draw(*shape), draw(*shape),
        dtype=dtype, tol=0.1 if dtype == "bfloat16" else None,
    )  # fmt: skip
    agree(
        lambda f, x: f.layer_norm(x, shape, eps=1e-3),
        draw(3, 4, 5),
        dtype=dtype,
        tol=0.1 if dtype == "bfloat16" else None,
    )


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (2, 1), "padding": (0, 2), "dilation": (2, 1)},
        {"padding": "same"},
        {"padding": "valid", "dilation": 2},
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(engine, options, groups):
    arrays = draw(2, 4, 7, 8), draw(6, 4 // groups, 3, 2), draw(6)
    agree(lambda f, x, w, b: f.conv2d(x, w, b, groups=groups, **options), *arrays, tol=1e-4)
    agree(lambda f, x, w: f.conv2d(x, w, groups=groups, **options), *arrays[:2], tol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_convolution_of_one_image_in_every_type(engine, dtype):
    agree(lambda f, x, w: f.conv2d(x, w), draw(2, 5, 5), draw(3, 2, 2, 2), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((2, 3), (1, 2)), (2, 1, 1)])
def test_pooling(engine, options, dtype):
    x = RNG.permutation(2 * 3 * 6 * 7).reshape(2, 3, 6, 7) / 100.0
    agree(lambda f, x: f.max_pool2d(x, *options), x, dtype=dtype)
    agree(lambda f, x: f.max_pool2d(x, *options), x, dtype=dtype, grads=False)
    agree(lambda f, x: f.avg_pool2d(x, *options), x, dtype=dtype)
    agree(lambda f, x: f.max_pool2d(x, 2, dilation=2), x[0], dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("options", [(2,), (3, 2, 1), ((2, 3), (1, 2))])
def test_pooling_of_many_channels_takes_the_first_of_equal_ones(engine, options, dtype):
    x = RNG.integers(0, 3, (2, 19, 6, 7)) / 4.0
    agree(lambda f, x: f.max_pool2d(x, *options), x, dtype=dtype)
    agree(lambda f, x: f.max_pool2d(x, *options), x, dtype=dtype, grads=False)
    x[0, 3, 2, 2] = x[1, 18, 0, 0] = np.nan
    agree(lambda f, x: f.max_pool2d(x, *options).nan_to_num(7.0), x, dtype=dtype, grads=False)


@pytest.mark.parametrize("shape", [(40, 3), (8, 3, 50), (8, 3, 5, 10)])
def test_moments_of_a_batch_far_from_zero_are_exact(engine, shape):
    """Squares that are added up before the mean is taken off would leave nothing of the spread."""
    x = (RNG.standard_normal(shape) + 1000).astype("float32")
    axes = (0, *range(2, len(shape)))
    got = OURS.nn.functional.batch_norm(OURS.tensor(x), None, None, training=True).numpy()
    x = x.astype("float64")
    want = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=5e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", [None, "causal", "bool", "float"])
def test_attention(engine, dtype, mask):
    q, k, v = draw(2, 3, 5, 4), draw(2, 3, 5, 4), draw(2, 3, 5, 6)
    if mask == "bool":
        seen = RNG.random((5, 5)) < 0.6
        seen[:, 0] = True
        agree(
            lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, m),
            q, k, v, seen, dtype=dtype,
        )  # fmt: skip
    elif mask == "float":
        agree(
            lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, m, scale=0.3),
            q, k, v, draw(3, 5, 5), dtype=dtype,
        )  # fmt: skip
    else:
        agree(
            lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=mask is not None),
            q, k, v, dtype=dtype,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", ["nll_loss", "cross_entropy"])
def test_losses_of_classes(engine, name, reduction, dtype):
    for scores, target in (
        (draw(6, 5), RNG.integers(0, 5, 6)),
        (draw(2, 5, 3), RNG.integers(0, 5, (2, 3))),
        (draw(5), np.array(3)),
    ):
        agree(
            lambda f, x, t: getattr(f, name)(x, t, reduction=reduction),
            scores, target, dtype=dtype,
        )  # fmt: skip
    target = np.array([1, -100, 4, -100, 0, 2])
    agree(lambda f, x, t: getattr(f, name)(x, t, reduction=reduction), draw(6, 5), target)
    target[target < 0] = 3
    agree(
        lambda f, x, t: getattr(f, name)(x, t, reduction=reduction, ignore_index=3),
        draw(6, 5), target,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_with_probabilities_and_smoothing(engine, reduction):
    target = np.abs(draw(6, 5))
    agree(
        lambda f, x, t: f.cross_entropy(x, t / t.sum(1, keepdim=True), reduction=reduction),
        draw(6, 5), target,
    )  # fmt: skip
    places = np.array([1, -100, 4, 3, 0, 2])
    agree(
        lambda f, x, t: f.cross_entropy(x, t, reduction=reduction, label_smoothing=0.1),
        draw(6, 5), places,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_two_classes(engine, reduction):
    target = RNG.integers(0, 2, (4, 3)).astype(float)
    agree(
        lambda f, x: f.binary_cross_entropy(x, f.ones(4, 3) * 0.3, reduction=reduction),
        draw(4, 3, low=0.05, high=0.95),
    )  # fmt: skip
    agree(
        lambda f, x: f.binary_cross_entropy(x, f.ones(2), reduction=reduction),
        np.array([0.0, 1.0]), grads=False,
    )  # fmt: skip
    agree(
        lambda f, x, t: f.binary_cross_entropy_with_logits(x, t, reduction=reduction),
        draw(4, 3) * 50, target,
    )  # fmt: skip
    agree(lambda f, x, y: f.mse_loss(x, y, reduction=reduction), draw(3), draw(3))
    agree(lambda f, x, y: f.l1_loss(x, y, reduction=reduction), draw(3), draw(3))


def test_a_target_of_minus_a_hundred_counts_for_nothing_unless_another_number_is_said(engine):
    logits = torch.linspace(-1, 1, 6).reshape(2, 3).log_softmax(1)
    targets = torch.tensor([2, -100])
    expected = torch.nn.functional.nll_loss(logits, targets).item()
    ours = st.FUNCTIONS["nll_loss"](st.tensor(logits.numpy()), st.tensor(targets.numpy()))
    assert ours.item() == pytest.approx(expected)


def test_a_class_that_there_is_not_is_an_error(engine):
    with pytest.raises(Exception, match=r"(?i)target"):
        OURS.cross_entropy(st.zeros(2, 3), st.tensor([0, 3])).item()


def test_dropout_keeps_the_mean_and_its_gradient_has_the_same_holes(engine):
    st.manual_seed(4)
    x = st.ones(200, 100, requires_grad=True)
    y = OURS.dropout(x, 0.25)
    y.backward()
    kept = y.data != 0
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y.data[kept], 1 / 0.75, rtol=1e-6)
    np.testing.assert_array_equal(x.grad.data, y.data)
    st.manual_seed(4)
    np.testing.assert_array_equal(OURS.dropout(st.ones(200, 100), 0.25).data, y.data)
    assert (OURS.dropout(x, 0.25).data != y.data).any()


def test_dropout_does_nothing_outside_of_training(engine):
    x = st.ones(3)
    np.testing.assert_array_equal(OURS.dropout(x, 0.9, training=False).data, x.data)
    assert not OURS.dropout(x, 1.0).data.any()
    with pytest.raises(ValueError, match="probability"):
        OURS.dropout(x, 1.5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_drawn_is_within_its_bounds(engine, dtype):
    x = st.rand(100, 1000, dtype=dtype).data.astype("float64")
    assert x.min() >= 0
    assert x.max() < 1
    assert math.isclose(x.mean(), 0.5, abs_tol=0.01)
    z = st.randn(100, 1000, dtype=dtype).data.astype("float64")
    assert math.isclose(z.std(), 1, abs_tol=0.02)
