"""Square brackets, and all that finds or writes elements by number, as in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same
from tensors.samples import OURS

from shmgpu.tensors import tensor as st

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(23)
X = RNG.uniform(-2, 2, (4, 3, 5))
FIRST, SECOND = np.array([0, 3, -1]), np.array([[2], [0]])
FLOATS = ["float64", "float32", "float16", "bfloat16"]

PARTS = {
    "numbers": lambda t, i, j: t[i],
    "numbers behind a slice": lambda t, i, j: t[:, :, i],
    "two together": lambda t, i, j: t[i, j],
    "two apart": lambda t, i, j: t[i, :, j],
    "between slices": lambda t, i, j: t[1:, j, ::2],
    "with a None": lambda t, i, j: t[None, i],
    "a None between": lambda t, i, j: t[i, None, j],
    "behind dots": lambda t, i, j: t[..., i],
    "a number and numbers": lambda t, i, j: t[1, :, i],
    "a list": lambda t, i, j: t[[0, 2]],
    "a part of a part": lambda t, i, j: t[1:3][:, [2, 0]],
    "all three": lambda t, i, j: t[i, j, j],
}


@pytest.mark.parametrize("what", PARTS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_by_number(engine, what, dtype):
    agree(lambda f, x, i, j: PARTS[what](x * 1, i, j), X, FIRST, SECOND, dtype=dtype)


WRITES = {
    "a row": lambda t, v: t.__setitem__(1, v),
    "slices": lambda t, v: t.__setitem__((slice(1, None), slice(None, 2)), 3.0),
    "a stretched row": lambda t, v: t.__setitem__((slice(None), 1), v),
    "steps": lambda t, v: t.__setitem__((..., slice(None, None, 2)), 7),
    "all": lambda t, v: t.__setitem__(slice(None), v),
    "dots": lambda t, v: t.__setitem__(Ellipsis, v),
    "an element": lambda t, v: t.__setitem__((0, 1, 2), 9.5),
    "rows by number": lambda t, v: t.__setitem__([0, 2], v),
    "elements by number": lambda t, v: t.__setitem__(([0, 2], slice(None), [1, 4]), 5.0),
    "with a None": lambda t, v: t.__setitem__((0, None), v),
    "nothing": lambda t, v: t.__setitem__(slice(0, 0), v),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_that_are_written(engine, what, dtype):
    def written(f, x, v):
        y = x * 2
        WRITES[what](y, v)
        return y * y

    agree(written, X, RNG.uniform(-1, 1, 5), dtype=dtype)


OVER = {
    "zero_": lambda x, v: x.zero_(),
    "fill_": lambda x, v: x.fill_(2),
    "uniform_": lambda x, v: x.uniform_(1, 1),
    "brackets": lambda x, v: x.__setitem__(slice(None), 1),
    "dots": lambda x, v: x.__setitem__(Ellipsis, v),
    "dots and a constant": lambda x, v: x.__setitem__(Ellipsis, v.detach()),
    "copy_": lambda x, v: x.copy_(v),
    "copy_ of a constant": lambda x, v: x.copy_(v.detach()),
    "a view": lambda x, v: x.view(-1).zero_(),
    "a turned view": lambda x, v: x.T.copy_(v.T),
    "each part": lambda x, v: [x.__setitem__(i, 3) for i in range(len(x))],
    "twice": lambda x, v: x.zero_().copy_(v),
}


@pytest.mark.parametrize("what", OVER)
@pytest.mark.parametrize("shape", [(3, 2), (1, 1)])
def test_the_gradient_of_what_was_written_over_is_zero(engine, what, shape):
    def made(f, w, v):
        x = w * 2
        OVER[what](x, v)
        return (x * x).sum()

    grads = []
    for f in (torch, OURS):
        w, v = (f.ones(shape, requires_grad=True) for _ in range(2))
        made(f, w, v).backward()
        grads.append([None if one.grad is None else one.grad.tolist() for one in (w, v)])
    assert grads[0] == grads[1]


def test_a_number_that_was_written_over_has_a_gradient_of_zero(engine):
    w = st.tensor(2.0, requires_grad=True)
    x = w * 2
    x.fill_(3)
    with OURS.no_grad():
        x.zero_()  # nobody sees that: the graph is as it was
    (x + w).backward()
    assert (x.item(), w.grad.item()) == (0.0, 1.0)


def test_a_mask_writes_one_number(engine):
    def written(f, x):
        y = x * 1
        y[y > 0.5] = 0.25
        return y

    agree(written, X)


MASKED = {
    "a value for each hit": lambda f, y, v: y.__setitem__(y > 0.5, v[: int((y > 0.5).sum())]),
    "those of another": lambda f, y, v: y.__setitem__(y > 0.5, (y + v[0])[y > 0.5]),
    "a row for each hit": lambda f, y, v: y.__setitem__(y[:, 0, 0] > 0, v[:5]),
    "in place": lambda f, y, v: y.__setitem__(y > 0, y[y > 0] * 3),
    "nowhere": lambda f, y, v: y.__setitem__(y > 99, v[:0]),
    "one of an axis": lambda f, y, v: y.__setitem__(y < 0, v[:1]),
    "a mask that is known": lambda f, y, v: y.__setitem__(
        X > 0.5 if f is OURS else torch.tensor(X > 0.5), v[: int((X > 0.5).sum())]
    ),
    "a part": lambda f, y, v: y[1].__setitem__(y[1] > 0, v[: int((y[1] > 0).sum())]),
}


@pytest.mark.parametrize("what", MASKED)
def test_a_mask_writes_a_value_for_each_hit(engine, what):
    def written(f, x, v):
        y = x * 2
        MASKED[what](f, y, v)
        return y * y

    agree(written, X, RNG.uniform(-1, 1, X.size), dtype="float64")


AMONG = {  # masks beside other parts of an index, of (4, 3, 5)
    "a mask, then a slice": lambda f, m, n: (m, slice(None, 2)),
    "a mask, then a number": lambda f, m, n: (m, 1),
    "a mask behind dots": lambda f, m, n: (..., n),
    "a mask behind a slice": lambda f, m, n: (slice(1, None), slice(None), n),
    "a mask behind a new axis": lambda f, m, n: (None, m),
    "a mask of two axes": lambda f, m, n: (slice(None), n.expand(3, 5), None),
    "two masks": lambda f, m, n: (m, slice(None), n & (n.cumsum(0) < 3)),
    "a mask as a list": lambda f, m, n: (slice(None), 0, [True, False, True, True, False]),
    "a mask that is known": lambda f, m, n: (
        (slice(None), slice(3), np.arange(5) > 2)
        if f is OURS
        else (slice(None), slice(3), torch.arange(5) > 2)
    ),
    "a mask that holds nowhere": lambda f, m, n: (m & ~m, slice(2)),
}


@pytest.mark.parametrize("what", AMONG)
def test_a_mask_stands_among_other_parts(engine, what):
    def made(f, x, m, n, value=None):
        index = AMONG[what](f, m, n)
        y = x * 2
        if value is not None:
            y[index] = value
        return y if value is not None else y[index]

    masks = np.array([True, False, True, False]), np.array([False, True, True, False, True])
    agree(made, X, *masks, dtype="float64")
    agree(lambda f, x, m, n: made(f, x, m, n, 7.0), X, *masks, dtype="float64")
    agree(lambda f, x, m, n: made(f, x, m, n, made(f, -x, m, n)), X, *masks, dtype="float64")


def test_a_mask_is_added_to_where_it_holds(engine):
    x, y = st.tensor(X), torch.tensor(X)
    x[x > 0] += 1
    y[y > 0] += 1
    same(x, y)
    x = st.ones(3)
    with pytest.raises(ValueError, match=r"\(2,\) does not fit into \(3,\)"):
        x[x > 0] = st.ones(2)
    with pytest.raises(IndexError, match="not a prefix"):
        x[st.ones(2) > 0] = st.ones(2)
    assert x.tolist() == [1, 1, 1]


def test_writing_into_a_leaf_that_collects_gradients_is_refused(engine):
    x = st.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no_grad"):
        x[0] = 2.0


def test_a_part_written_with_another_type_is_converted(engine):
    x, y = st.tensor([1, 2, 3]), torch.tensor([1, 2, 3])
    x[0], y[0] = 7.9, 7.9
    same(x, y)


def test_a_written_part_leaves_earlier_copies_alone(engine):
    x = st.ones(4)
    before = x.clone()
    x[1:3] = x[0:2] + 1
    np.testing.assert_array_equal(before.data, np.ones(4))
    np.testing.assert_array_equal(x.data, [1, 2, 2, 1])


def test_a_part_that_is_written_over_itself(engine):
    def written(f, x):
        y = x * 1
        y[1:] = y[:-1] * 1
        return y

    agree(written, RNG.uniform(-1, 1, (40, 40)))


def test_slices_that_go_back_as_in_numpy(engine):
    x = st.tensor(X)
    np.testing.assert_array_equal(x[::-1, 1, -2::-2].data, X[::-1, 1, -2::-2])
    x[::-2, 0] = st.tensor(X[:2, 1])
    want = X.copy()
    want[::-2, 0] = X[:2, 1]
    np.testing.assert_array_equal(x.data, want)


def test_what_is_no_index_is_refused_in_a_sentence(engine):
    x = st.ones(2, 3)
    for index, words in (
        ((0, 0, 0), "too many"),
        (5, "out of range"),
        ("a", "str is not an index"),
        (1.5, "float is not an index"),
        (True, "True is not an index"),
        ((..., 0, ...), "..."),
        (([0, 1], [0, 1, 2]), "broadcast"),
        (st.ones(2), "integers"),
        ((x > 0, 0), "too many"),
        ((slice(None), x[:, 0] > 0), r"shape \(2,\) is not a prefix of \(3,\)"),
    ):
        with pytest.raises((IndexError, TypeError, ValueError), match=words):
            x[index]


@pytest.mark.parametrize("dtype", FLOATS)
def test_gathering_and_scattering(engine, dtype):
    i = RNG.integers(0, 3, (2, 3, 4))
    agree(lambda f, x, i: f.gather(x, 1, i), X, i, dtype=dtype)
    agree(lambda f, x, i: f.gather(x, -2, i), X, i, dtype=dtype)
    agree(
        lambda f, x, i, s: f.scatter_add(x, 1, i, s),
        X, i, RNG.uniform(-1, 1, i.shape), dtype=dtype, tol=None if dtype[0] == "f" else 0.1,
    )  # fmt: skip
    agree(lambda f, x, i: f.index_select(x, 1, i), X, np.array([2, 0, 0]), dtype=dtype)
    agree(lambda f, x, i: f.take(x, i), X, np.array([[7, 0], [59, 7]]), dtype=dtype)
    agree(lambda f, i, w: f.embedding(i, w), np.array([[3, 1], [1, 0]]), X[:, 0], dtype=dtype)


def test_gathering_without_axes_and_of_nothing(engine):
    agree(lambda f, x, i: f.gather(x, 0, i), np.array(2.5), np.array(0))
    agree(lambda f, x, i: f.gather(x, 1, i), X, np.zeros((0, 2, 5), np.int64))
    agree(lambda f, x, i: x[i], X, np.zeros((0,), np.int64))
    agree(lambda f, i, w: f.embedding(i, w), np.zeros((0, 2), np.int64), X[:, 0])


def test_rows_that_are_used_twice_get_both_gradients(engine):
    agree(lambda f, x, i: x[i], X, np.array([1, 1, 1, 0]))
    agree(lambda f, i, w: f.embedding(i, w), np.array([2, 2, 2]), X[:, 0])


@pytest.mark.parametrize("name", ["gather", "embedding", "index"])
def test_a_number_beyond_the_end_is_an_error_of_the_read(engine, name):
    x, i = st.tensor(X[0]), st.tensor([[9]])
    calls = {
        "gather": lambda: OURS.gather(x, 0, i),
        "embedding": lambda: OURS.embedding(i, x),
        "index": lambda: x[i],
    }
    with pytest.raises(Exception, match=r"(?i)index"):
        calls[name]().numpy()
