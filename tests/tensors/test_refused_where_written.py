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
    with pytest.raises(TypeError, match="bitwise_not is of bools and whole numbers"):
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
