"""Order, extremes, sums on the way, triangles, margins, and what is made by rule, as in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same
from tensors.samples import OURS, THEIRS

from shmgpu.tensors import tensor as st

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(29)
X = RNG.permutation(24).reshape(2, 3, 4) / 4.0 - 3
DTYPES = ["float64", "float32", "float16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_extremes_and_order_over_an_axis(engine, dim, dtype):
    for call in (
        lambda f, x: f.argmax(x, dim),
        lambda f, x: f.argmin(x, dim, keepdim=True),
        lambda f, x: tuple(f.max(x, dim)),
        lambda f, x: tuple(f.min(x, dim, keepdim=True)),
        lambda f, x: tuple(f.sort(x, dim)),
        lambda f, x: tuple(f.sort(x, dim, descending=True)),
        lambda f, x: f.argsort(x, dim, descending=True),
        lambda f, x: tuple(f.topk(x, 2, dim)),
        lambda f, x: tuple(f.topk(x, 1, dim, largest=False)),
        lambda f, x: f.cumsum(x, dim),
        lambda f, x: f.prod(x, dim),
    ):
        agree(call, X, dtype=dtype)


def test_extremes_of_all(engine):
    agree(lambda f, x: f.argmax(x), X)
    agree(lambda f, x: f.argmin(x), X)
    agree(lambda f, x: x.max(), X)
    agree(lambda f, x: x.min(), X)
    agree(lambda f, x, y: f.max(x, y), X, -X)
    agree(lambda f, x, y: f.min(x, y), X, -X)
    found = st.tensor(X).max(1)
    np.testing.assert_array_equal(found.values.data, X.max(1).astype("float32"))
    np.testing.assert_array_equal(found.indices.data, X.argmax(1))
    np.testing.assert_array_equal(st.tensor(X, "float64").max((0, 2)).data, X.max((0, 2)))


def test_of_equal_elements_the_first_is_found(engine):
    x = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])
    for name in ("argmax", "argmin"):
        agree(lambda f, x, name=name: getattr(f, name)(x, 1), x)
    same(OURS.argsort(st.tensor(x), 1), torch.argsort(torch.tensor(x), dim=1, stable=True))


def test_products_with_zeros_have_gradients(engine):
    agree(lambda f, x: f.prod(x, 1), np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0], [1.0, 2.0, 3.0]]))
    agree(lambda f, x: f.prod(x), np.array([2.0, 0.5, 3.0]))


@pytest.mark.parametrize("zeros", range(4))
@pytest.mark.parametrize("dim", [0, 1, (0, 2), None])
def test_higher_derivatives_of_products_with_zeros_are_slopes(engine, zeros, dim):
    rng = np.random.default_rng(zeros)
    x = rng.uniform(0.5, 2, (3, 3, 3))
    for at in range(zeros):
        x[0, at % 3, at // 2] = 0.0
    seed = rng.standard_normal(np.prod(x, axis=dim).shape)
    weights = [rng.standard_normal(x.shape) for _ in range(3)]

    def derivative(order, array):
        """Of that order, along as many of the weights: a tensor, and the number it leads to."""
        made = st.tensor(array, requires_grad=True)
        value = (OURS.prod(made, dim) * st.tensor(seed)).sum()
        for weight in weights[:order]:
            (slopes,) = st.grad([value], [made], create_graph=True)
            value = (slopes * st.tensor(weight)).sum()
        return value.item()

    for order in range(1, 4):
        step = 1e-4 * weights[order - 1]
        slope = derivative(order - 1, x + step) - derivative(order - 1, x - step)
        np.testing.assert_allclose(derivative(order, x), slope / 2e-4, rtol=1e-5, atol=1e-5)


def test_bools_and_whole_numbers(engine):
    for array in (RNG.random((3, 4)) < 0.5, RNG.integers(-5, 5, (3, 4)), np.zeros((0, 4), bool)):
        for name in ("sum", "prod", "all", "any"):
            agree(lambda f, x, name=name: getattr(f, name)(x), array)
            agree(lambda f, x, name=name: getattr(f, name)(x, 1), array)
        agree(lambda f, x: f.cumsum(x, 0), array)
        agree(lambda f, x: f.tril(x), array)
    agree(lambda f, x: f.argmax(x, 1), RNG.integers(0, 9, (3, 4)))
    agree(lambda f, x: tuple(f.sort(x, 0)), np.array([3, 1, 2]))
    agree(lambda f, x: f.all(x, 1), X)
    for name in ("mean", "softmax", "var"):
        with pytest.raises(TypeError, match="int64"):
            st.FUNCTIONS[name](st.tensor([1, 2]), 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: f.tril(x),
        lambda f, x: f.triu(x, 1),
        lambda f, x: f.tril(x, -2),
        lambda f, x: f.pad(x, (1, 2)),
        lambda f, x: f.pad(x, (1, 0, 0, 2), value=1.5),
        lambda f, x: f.pad(x, (-1, 2, 1, -1)),
        lambda f, x: f.pad(x, (-1, -1), value=3.0),
        lambda f, x: f.roll(x, 1, 0) if f is OURS else torch.roll(x, 1, 0),
        lambda f, x: f.roll(x, (2, -1), (1, 2)),
        lambda f, x: f.roll(x, 3),
        lambda f, x: f.flip(x, (0, 2)),
        lambda f, x: f.movedim(x, 0, -1),
        lambda f, x: tuple(f.unbind(x, 1)),
        lambda f, x: f.std(x, 1),
        lambda f, x: f.square(x),
        lambda f, x: f.reciprocal(x + 9),
    ],
)
def test_elements_that_move(engine, call, dtype):
    agree(call, X, dtype=dtype, tol=0.1 if dtype == "bfloat16" else None)


def test_one_of_many(engine):
    agree(lambda f, x: f.one_hot(x, 5), np.array([[0, 4], [2, 2]]))


MADE = {
    "arange 5": lambda f: f.arange(5),
    "arange 1 5": lambda f: f.arange(1, 5),
    "arange down": lambda f: f.arange(5, -3, -2),
    "arange floats": lambda f: f.arange(0, 1, 0.1),
    "arange none": lambda f: f.arange(3, 3),
    "arange as floats": lambda f: f.arange(7, dtype=torch.float32),
    "arange halves": lambda f: f.arange(7, dtype=torch.bfloat16),
    "linspace": lambda f: f.linspace(-1, 1, 7),
    "linspace one": lambda f: f.linspace(2, 3, 1),
    "eye": lambda f: f.eye(3),
    "eye wide": lambda f: f.eye(2, 4, dtype=torch.int64),
    "full": lambda f: f.full((2, 3), 7),
    "full of floats": lambda f: f.full((2,), 0.5),
    "full of bools": lambda f: f.full((), True),
    "zeros": lambda f: f.zeros(2, 0),
    "ones": lambda f: f.ones((2, 1), dtype=torch.float16),
    "zeros_like": lambda f: f.zeros_like(f.arange(3)),
    "ones_like": lambda f: f.ones_like(f.zeros(2), dtype=torch.int32),
    "full_like": lambda f: f.full_like(f.zeros(2), 3.5),
}


@pytest.mark.parametrize("what", MADE)
def test_what_is_made_by_rule(engine, what):
    same(MADE[what](OURS), MADE[what](THEIRS))


def test_shapes_of_what_does_not_matter_or_is_drawn(engine):
    x = st.zeros(2, 3, dtype="float64")
    for name in ("empty_like", "rand_like", "randn_like"):
        made = getattr(OURS, name)(x)
        assert (made.shape, made.dtype.name) == ((2, 3), "float64")
    assert OURS.empty(2, 0).numpy().shape == (2, 0)
    assert not np.array_equal(OURS.randn_like(x).data, OURS.randn_like(x).data)


def test_impossible_wishes_are_refused_in_a_sentence(engine):
    x = st.ones(2, 3)
    for call, words in (
        (lambda: OURS.arange(0, 5, -1), "steps of -1"),
        (lambda: OURS.linspace(0, 1, -1), "0 or more"),
        (lambda: OURS.eye(-1), "0 or more"),
        (lambda: OURS.tril(st.ones(3)), "two axes"),
        (lambda: OURS.pad(x, (1, 2, 3)), "pairs"),
        (lambda: OURS.pad(x, (-9, 0)), "more from"),
        (lambda: OURS.topk(x, 4), "k=4"),
        (lambda: OURS.argmax(st.ones(0)), "empty"),
        (lambda: OURS.roll(x, (1, 2), 0), "equally many"),
        (lambda: OURS.zeros(2, dtype="complex64").data, "complex64"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            call()


@pytest.mark.parametrize("name", "float double half bfloat16 int long bool".split())
def test_types_by_name(engine, name):
    agree(lambda f, x: getattr(x, name)(), np.array([0.0, 1.25, -2.5]), grads=False)
