"""Every row of the table, on both engines: what torch gives, and gradients that are slopes."""

from __future__ import annotations

import importlib

import numpy as np
import pages
import pytest
import torch
from tensors.samples import OURS, SAMPLES, THEIRS

import shmgpu
from shmgpu import ops
from shmgpu.engine import plan
from shmgpu.ops import collective, redistribution
from shmgpu.tensors import tensor as st

pytestmark = pytest.mark.operations

STEP = 1e-5
RNG = np.random.default_rng(3)

FLAT = {"sign", "floor", "ceil", "round"}  # their gradient is 0, whatever it is multiplied by
DIFFERENTIABLE = [name for name, sample in SAMPLES.items() if sample.grads]


@pytest.fixture(autouse=True)
def _memory_is_planned_for_the_smallest(monkeypatch):
    """So that every kernel that says it takes ``out=`` is given it."""
    monkeypatch.setattr(plan, "MIN_BUFFER", 0)


def rows_under(node):
    """Names of the operations that a node was recorded from."""
    found, stack, seen = set(), [node], set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            if node.op is not None:
                found.add(node.op.name)
    return found


def ours_of(arrays, grads=True):
    return [st.tensor(a, requires_grad=grads and a.dtype == np.float64) for a in arrays]


def wanted(tensors):
    return [one for one in tensors if one.requires_grad]


def gradients(sample, tensors, seed, **options):
    out = sample.at(OURS, *tensors)
    return st.grad([out], wanted(tensors), [st.tensor(seed)], **options)


def test_every_row_has_a_sample():
    of_meshes = {row.name for row in (*collective.LOWERED, *redistribution.RECORDED)}
    assert set(SAMPLES) == set(ops.TABLE) - of_meshes
    without = {name for name, row in ops.TABLE.items() if len(row.gradients) == 0}
    assert not {n for n in DIFFERENTIABLE if not SAMPLES[n].back and SAMPLES[n].compare} & (
        without - {"alias", "full", "arange", "linspace", "eye", "max_pool2d_indices"}
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_records_its_row(engine, name):
    sample = SAMPLES[name]
    tensors = ours_of(sample.arrays, grads=sample.grads)
    out = sample.at(OURS, *tensors)
    recorded = rows_under(out._node)
    if sample.back:
        seed = st.tensor(np.ones(out.shape))
        for one in st.grad([out], wanted(tensors), [seed]):
            recorded |= rows_under(one._node)
    assert name in recorded


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample.compare])
def test_values_and_gradients_are_those_of_torch(engine, name):
    sample = SAMPLES[name]
    ours = ours_of(sample.arrays, sample.grads)
    theirs = [torch.tensor(a) for a in sample.arrays]
    for one in theirs:
        one.requires_grad_(sample.grads and one.dtype == torch.float64)
    out, want = sample.at(OURS, *ours), sample.at(THEIRS, *theirs)
    assert out.shape == tuple(want.shape)
    assert out.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(out.data, want.detach().numpy(), rtol=1e-7, atol=1e-7)
    if sample.grads:
        seed = RNG.standard_normal(out.shape)
        out.backward(st.tensor(seed))
        want.backward(torch.tensor(seed))
        for a, b in zip(ours, theirs, strict=True):
            if b.requires_grad:
                np.testing.assert_allclose(a.grad.data, b.grad.numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    "name", [n for n in DIFFERENTIABLE if SAMPLES[n].compare and n not in FLAT]
)
def test_gradients_of_a_weighted_result_move_with_its_weights(engine, name):
    sample = SAMPLES[name]
    weights = RNG.standard_normal(sample.at(OURS, *ours_of(sample.arrays)).shape)

    def moved(library, grad, tensor, tensors, seed):
        """The gradient of the gradients, each taken so many times."""
        grads = grad([sample.at(library, *tensors)], wanted(tensors), [seed], create_graph=True)
        total = sum((g * tensor(m)).sum() for g, m in zip(grads, moves, strict=True))
        return grad([total], [seed])[0]

    theirs = [torch.tensor(a, requires_grad=a.dtype == np.float64) for a in sample.arrays]
    moves = [RNG.standard_normal(one.shape) for one in wanted(theirs)]
    got = moved(
        OURS, st.grad, st.tensor, ours_of(sample.arrays), st.tensor(weights, requires_grad=True)
    )
    want = moved(
        THEIRS, torch.autograd.grad, torch.tensor, theirs, torch.tensor(weights, requires_grad=True)
    )
    np.testing.assert_allclose(got.data, want.numpy(), rtol=1e-7, atol=1e-7)


def along(arrays, directions, step):
    return [a if d is None else a + step * d for a, d in zip(arrays, directions, strict=True)]


def directions_of(arrays):
    return [RNG.standard_normal(a.shape) if a.dtype == np.float64 else None for a in arrays]


def slope(f, arrays, directions):
    """How fast a number grows as the arrays move."""
    up, down = (f(along(arrays, directions, sign * STEP)) for sign in (1, -1))
    return (up - down) / (2 * STEP)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_slopes(engine, name):
    sample = SAMPLES[name]
    seed = RNG.standard_normal(sample.at(OURS, *ours_of(sample.arrays)).shape)

    def value(arrays):
        return float((sample.at(OURS, *ours_of(arrays, False)).data * seed).sum())

    got = gradients(sample, ours_of(sample.arrays), seed)
    for _ in range(2):
        moves = directions_of(sample.arrays)
        there = [d for d in moves if d is not None]
        along_gradient = sum(float((g.data * d).sum()) for g, d in zip(got, there, strict=True))
        np.testing.assert_allclose(
            along_gradient, slope(value, sample.arrays, moves), rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_of_gradients_are_slopes_of_gradients(engine, name):
    sample = SAMPLES[name]
    seed = RNG.standard_normal(sample.at(OURS, *ours_of(sample.arrays)).shape)
    weights = [RNG.standard_normal(a.shape) for a in sample.arrays if a.dtype == np.float64]

    def value(arrays):
        got = gradients(sample, ours_of(arrays), seed)
        return sum(float((g.data * w).sum()) for g, w in zip(got, weights, strict=True))

    tensors = ours_of(sample.arrays)
    got = gradients(sample, tensors, seed, create_graph=True)
    plain = gradients(sample, ours_of(sample.arrays), seed)
    for a, b in zip(got, plain, strict=True):
        np.testing.assert_allclose(a.data, b.data, rtol=1e-7, atol=1e-9)
    total = sum((g * st.tensor(w)).sum() for g, w in zip(got, weights, strict=True))
    if not total.requires_grad:
        assert abs(slope(value, sample.arrays, directions_of(sample.arrays))) < 1e-6
        return
    total.backward()
    moves = directions_of(sample.arrays)
    there = [d for d in moves if d is not None]
    along_gradient = sum(
        float((one.grad.data * d).sum())
        for one, d in zip(wanted(tensors), there, strict=True)
        if one.grad is not None
    )
    np.testing.assert_allclose(
        along_gradient, slope(value, sample.arrays, moves), rtol=1e-5, atol=1e-5
    )


def test_a_sentence_names_what_is_wrong_where_it_is_recorded(engine):
    x = st.zeros(2, 3)
    for call, words in (
        (lambda: OURS.conv2d(st.zeros(1, 3, 5, 5), st.zeros(4, 2, 3, 3)), r"\(1, 3, 5, 5\)"),
        (lambda: OURS.gather(x, 1, st.zeros(2, 3)), "of integers"),
        (lambda: OURS.softmax(x, 2), "out of range"),
        (lambda: OURS.layer_norm(x, (2,)), r"\(2, 3\)"),
        (lambda: OURS.take(x, x > 0), "mask"),
        (lambda: x[[5], [5], [5]], "too many"),
        (lambda: OURS.nll_loss(x, OURS.zeros(3, dtype="int64")), r"\(2,\), not \(3,\)"),
        (lambda: OURS.max_pool2d(x, 2), r"\(2, 3\)"),
        (lambda: OURS.one_hot(OURS.arange(3), -1), "num_classes"),
        (lambda: OURS.mean(OURS.arange(3)), "float32"),
    ):
        with pytest.raises((ValueError, TypeError, IndexError), match=words):
            call()
    assert issubclass(shmgpu.errors.ShmError, Exception)


def test_the_page_of_operations_is_current():
    page = importlib.import_module("shmgpu.ops.page")
    text = page.text()
    assert pages.text_of(page.PAGE) == text, (
        "run python -m shmgpu.ops.page and commit what it writes"
    )
    for name in ops.TABLE:
        assert f"| `{name}` |" in text


def test_shapes_that_do_not_fit_a_layer_are_refused_where_it_is_recorded(engine):
    image, weight = st.zeros(1, 4, 5, 6), st.zeros(6, 2, 3, 3)
    for call, words in (
        (lambda: OURS.dot(st.zeros(3), st.zeros(4)), r"dot: the shapes \(3,\) and \(4,\)"),
        (lambda: OURS.dot(st.zeros(3, 1), st.zeros(3, 1)), "dot: the shapes"),
        (lambda: OURS.linear(st.zeros(2, 3), st.zeros(5, 4)), r"linear: .* \(2, 3\) .* \(5, 4\)"),
        (lambda: OURS.linear(st.zeros(2, 3), st.zeros(3)), "the weight must have two axes"),
        (lambda: OURS.linear(st.tensor(1.0), st.zeros(5, 4)), "linear: the input"),
        (lambda: OURS.linear(st.zeros(2, 3), st.zeros(5, 3), st.zeros(4)), "bias .* has 5 rows"),
        (lambda: OURS.linear(st.zeros(2, 3), st.zeros(5, 3), st.zeros(5, 1)), "linear: the bias"),
        (lambda: OURS.conv2d(st.zeros(5, 6), weight), r"the input \(5, 6\) must be \(N, C, H, W\)"),
        (lambda: OURS.conv2d(image, st.zeros(6, 4, 3)), r"the weight \(6, 4, 3\) \(out"),
        (lambda: OURS.conv2d(image, weight), "groups=1 is for 2 channels, .* has 4"),
        (lambda: OURS.conv2d(image, weight, groups=0), "groups=0"),
        (lambda: OURS.conv2d(image, st.zeros(5, 2, 3, 3), groups=2), "the 5 outputs must"),
        (lambda: OURS.conv2d(image, weight, st.zeros(4), groups=2), r"the bias \(4,\) must be"),
        (lambda: OURS.conv2d(image, st.zeros(6, 4, 6, 1)), r"the kernel \(6, 1\) .* is greater"),
        (lambda: OURS.conv2d(image, st.zeros(6, 4, 3, 3), dilation=3), "dilation"),
        (lambda: OURS.conv2d(image, weight, groups=2, padding="same", stride=2), "is for stride 1"),
        (lambda: OURS.conv2d(image, weight, groups=2, stride=0), "stride=0 must be a whole number"),
        (lambda: OURS.conv2d(image, weight, groups=2, stride=(1, 2, 3)), "or two of them, from 1"),
        (lambda: OURS.conv2d(image, weight, groups=2, padding=-1), "padding=-1 .* from 0"),
        (lambda: OURS.avg_pool2d(st.zeros(5, 6), 2), "pooling: the input"),
        (lambda: OURS.max_pool2d(image, 7), r"windows of \(7, 7\) .* do not fit into \(5, 6\)"),
        (lambda: OURS.max_pool2d(image, 2, 1, 2), "at most half a window"),
        (lambda: OURS.avg_pool2d(image, (2, 2.5)), r"kernel_size=\(2, 2.5\) must be"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    # At the very border they fit.
    assert OURS.conv2d(image, st.zeros(6, 4, 5, 6)).shape == (1, 6, 1, 1)
    assert OURS.max_pool2d(image, (5, 6)).shape == (1, 4, 1, 1)
    assert OURS.max_pool2d(image, 2, 2, 1).shape == (1, 4, 3, 4)
