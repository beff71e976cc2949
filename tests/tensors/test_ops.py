"""Every operation gives what torch gives: values, shapes, types, and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same
from tensors.samples import THEIRS

from shmgpu.tensors import tensor as st

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(7)


def draw(shape, dtype="float32", low=-2.0, high=2.0):
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    drawn = RNG.uniform(low, high, shape)
    return drawn.astype(dtype)


BINARY = "add sub mul div maximum minimum remainder eq ne lt le gt ge".split()
UNARY = "neg abs sign floor ceil exp sin cos tanh sigmoid erf relu".split()
POSITIVE = "log sqrt rsqrt".split()
SHAPES = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((), (2, 2)),
    ((0, 3), (3,)),
    ((), ()),
]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_operations_on_two(engine, name, left, right):
    agree(lambda f, a, b: getattr(f, name)(a, b), draw(left), draw(right), grads=False)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_gradients_of_operations_on_two(engine, name, left, right):
    agree(lambda f, a, b: getattr(f, name)(a, b), draw(left), draw(right, low=0.5))


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_operations_on_one_and_their_gradients(engine, name):
    low = 0.1 if name in POSITIVE else -2.0
    agree(lambda f, a: getattr(f, name)(a), draw((3, 5), low=low), tol=1e-4)


TYPES = ["bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("left", TYPES)
@pytest.mark.parametrize("right", TYPES)
def test_types_meet_as_in_torch(engine, left, right):
    for shape in ((2,), ()):
        one, other = draw((2,), left, 0), draw(shape, right, 0)
        a, b, x, y = st.tensor(one), st.tensor(other), torch.tensor(one), torch.tensor(other)
        same(a + b, x + y, 1e-2)
        same(a * b, x * y, 1e-2)
    for number in (True, 2, 1.5):
        same(a + number, x + number, 1e-2)
        same(number * a, number * x, 1e-2)
    if y.all():
        same(a / b, x / y, 1e-2)


@pytest.mark.parametrize("dim", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin", "var", "logsumexp"])
def test_reductions_and_their_gradients(engine, name, dim, keepdim):
    def reduced(f, t):
        axes = (0, 1, 2) if dim is None and f is THEIRS else dim
        return getattr(f, name)(t, dim=axes, keepdim=keepdim)

    agree(reduced, draw((2, 3, 4)), tol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 4), (4, 2)),
    ],
)
def test_products_and_their_gradients(engine, left, right):
    agree(lambda f, a, b: a @ b, draw(left), draw(right), tol=1e-4)


SHAPING = {
    "reshape": lambda t: t.reshape(4, 6),
    "reshape -1": lambda t: t.reshape(-1, 2),
    "permute": lambda t: t.permute(2, 0, 1),
    "transpose": lambda t: t.transpose(0, -1),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(),
    "flatten": lambda t: t.flatten(1),
    "expand": lambda t: t.unsqueeze(0).expand(5, 2, 3, 4),
    "row": lambda t: t[1],
    "slice": lambda t: t[:, 1:3],
    "step": lambda t: t[..., ::2],
    "none": lambda t: t[None, :, -1],
    "narrow": lambda t: t.narrow(1, 1, 2),
    "split": lambda t: t.split(2, 2)[1],
    "chunk": lambda t: t.chunk(2, 2)[0],
}


@pytest.mark.parametrize("what", SHAPING)
def test_shapes_and_their_gradients(engine, what):
    agree(lambda f, t: SHAPING[what](t), draw((2, 3, 4)))


def test_a_sum_with_a_view_of_itself(engine):
    def symmetric(f, t):
        once = t * 2
        return once + once.T

    agree(symmetric, draw((64, 64)))


def test_joined(engine):
    agree(lambda f, a, b: f.cat([a, b], 0), draw((2, 3)), draw((4, 3)))
    agree(lambda f, a, b: f.stack([a, b], 1), draw((2, 3)), draw((2, 3)))


def test_second_derivatives(engine):
    drawn = draw((5,), "float64")
    a, x = st.tensor(drawn, requires_grad=True), torch.tensor(drawn, requires_grad=True)
    (g,) = st.grad((a * a * a).sum(), a, create_graph=True)
    (h,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
    (g * g).sum().backward()
    (h * h).sum().backward()
    same(a.grad, x.grad)
