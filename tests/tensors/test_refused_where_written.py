"""What engines would refuse is refused in the line that records it; what is recorded, computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import shmgpu as gt

BOOLS = [True, False]


@pytest.mark.parametrize(
    "write",
    [
        lambda b: b - b,
        lambda b: b - True,
        lambda b: b % b,
        lambda b: b // b,
        lambda b: b**b,
        lambda b: b @ b,
        lambda b: abs(b),
        lambda b: b.relu(),
        lambda b: b.clamp(False, True),
        lambda b: gt.linear(b, b.unsqueeze(0)),
    ],
)
def test_bools_are_not_reckoned_with(engine, write):
    with pytest.raises(TypeError, match="not of bools"):
        write(gt.tensor(BOOLS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_floats_have_no_bits_to_turn(engine, dtype):
    with pytest.raises(TypeError, match="bitwise_not takes bools and integers"):
        ~gt.ones(2, dtype=dtype)


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda n: n // 0, ZeroDivisionError),
        (lambda n: n % 0, ZeroDivisionError),
        (lambda n: n**-1, ValueError),
        (lambda n: n.sum(1.5), TypeError),
        (lambda n: n.sum((0, "x")), TypeError),
        (lambda n: n.argmax(0.0), TypeError),
        (lambda n: n.unsqueeze(0).tril(2.5), TypeError),
        (lambda n: n.unsqueeze(0).triu(n), TypeError),
        (lambda n: gt.one_hot(n, 2.5), TypeError),
    ],
)
def test_arguments_that_have_no_outcome(engine, write, error):
    with pytest.raises(error):
        write(gt.tensor([2, 3]))


@pytest.mark.parametrize("name", ["add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor", "eq"])
@pytest.mark.parametrize("plain", [True, False])
def test_a_plain_bool_leaves_bools_as_they_are(engine, name, plain):
    made = getattr(gt, name)(gt.tensor(BOOLS), plain)
    want = getattr(torch, name)(torch.tensor(BOOLS), plain)
    assert made.dtype is gt.bool
    assert made.tolist() == want.tolist()
    assert (made & True).data.dtype == np.bool_  # also where it was kept with the helper


@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "bitwise_and"])
def test_numbers_beyond_a_type_wrap(engine, name):
    made = getattr(gt, name)(gt.tensor([1, 200], dtype="uint8"), -1)
    plain = torch.tensor(-1) if name == "maximum" else -1
    want = getattr(torch, name)(torch.tensor([1, 200], dtype=torch.uint8), plain)
    assert made.tolist() == want.tolist()


def test_a_whole_number_that_no_type_holds(engine):
    with pytest.raises(OverflowError, match="does not fit into int64"):
        gt.tensor([1]) + 2**70
    assert (gt.tensor([1.0]) + 2**70).item() == 2.0**70


def test_in_place_keeps_the_type_and_loses_nothing(engine):
    x = gt.tensor([1, 2])
    with pytest.raises(TypeError, match="the result is float32 and the tensor int64"):
        x += 1.5
    assert x.tolist() == [1, 2]
    y = gt.tensor([1.0, 2.0], dtype="float16")
    y += gt.ones(2)
    assert y.dtype is gt.float16


def test_a_mask_whose_elements_are_known_selects(engine):
    a = np.arange(6.0, dtype="float32").reshape(2, 3)
    x = gt.tensor(a, requires_grad=True)
    for mask in (a > 2, a > 9, np.array([True, False]), [False, True]):
        assert np.array_equal(x[mask].data, a[mask])
    x[a > 2].sum().backward()
    assert np.array_equal(x.grad.data, a > 2)
    with pytest.raises(IndexError, match=r"the mask's shape \(3,\) is not a prefix of \(2, 3\)"):
        x[np.ones(3, bool)]
    assert np.array_equal(x[x > 2].data, a[a > 2])  # a tensor is looked at
    with pytest.raises(IndexError, match=r"3 indices are too many for the 2 axes of \(2, 3\)"):
        x[x > 2, 0]
    with pytest.raises(TypeError, match=r"x\[mask\], which looks at it"):
        x.index_select(0, x[:, 0] > 2)
