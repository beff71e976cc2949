"""Each reason for which a call is refused, alone; and that what lies just within is taken.

A refusal that has several reasons is seen to have each of them: the other reasons hold in none of
these calls.
"""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu as gt
from shmgpu import nn, optim
from shmgpu.nn import functional as F


def ones(*shape, dtype=None):
    return gt.ones(*shape, dtype=dtype)


def whole(*values):
    return gt.tensor(np.array(values, "int64"))


def weight():
    return gt.ones(2, requires_grad=True)


# Of each: what is taken, and what is refused for one reason each.
CALLS = {
    "reshape": (
        lambda n: ones(2, 3).reshape(*n),
        [(3, 2), (-1, 2), (6,)],
        [(-1, -1), (4, 2), (-2, -3), (-1, 4), (0, -1)],
    ),
    "expand": (lambda n: ones(1, 3).expand(*n), [(5, 3), (2, 1, 3)], [(5, 4), (3,), (-2, 1, 3)]),
    "unflatten": (lambda n: ones(6).unflatten(0, n), [(2, 3), (-1, 2)], [(2, 2), (-2, -3)]),
    "split": (lambda n: ones(4).split(n), [[4], [0, 4]], [[1, 2], [5, -1]]),
    "linspace": (
        lambda n: gt.linspace(0, 1, n[0], dtype=n[1]),
        [(0, "float32"), (1, "float64")],
        [(-1, "float32"), (3, "int64")],
    ),
    "arange": (
        lambda n: gt.arange(*n),
        [(0, 3, 1), (3, 0, -1), (2, 2, 1), (0, 1, 0.5)],
        [(0, 3, 0), (0, 3, -1), (3, 0, 1), (0, float("inf"), 1), (float("nan"), 1, 1)],
    ),
    "eye": (lambda n: gt.eye(*n), [(0, 0), (1, 0), (0, 1)], [(-1, 1), (1, -1)]),
    "pad": (
        lambda n: gt.pad(ones(2, 2), n),
        [(), (1, 1), (1, 1, 1, 1)],
        [(1,), (1, 1, 1), (1, 1, 1, 1, 1, 1)],
    ),
    "dot": (
        lambda n: gt.dot(ones(*n[0]), ones(*n[1])),
        [((3,), (3,)), ((0,), (0,))],
        [((3,), (2,)), ((3, 3), (3, 3)), ((3,), (3, 3))],
    ),
    "matmul": (
        lambda n: gt.matmul(ones(*n[0]), ones(*n[1])),
        [((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2))],
        [((), (3,)), ((3,), ()), ((2, 3), (2, 3))],
    ),
    "linear": (
        lambda n: F.linear(*[ones(*one) for one in n]),
        [((4,), (3, 4), (3,)), ((2, 4), (3, 4))],
        [((), (3, 4)), ((4,), (4,)), ((4,), (2, 3, 4)), ((5,), (3, 4)), ((4,), (3, 4), (4,))],
    ),
    "conv2d": (
        lambda n: F.conv2d(ones(*n[0]), ones(*n[1]), n[2], groups=n[3]),
        [((1, 4, 3, 3), (2, 4, 1, 1), None, 1), ((4, 3, 3), (2, 2, 1, 1), None, 2)],
        [
            ((3, 3), (2, 4, 1, 1), None, 1),
            ((1, 4, 3, 3), (4, 1, 1), None, 1),
            ((1, 4, 3, 3), (2, 4, 1, 1), None, 0),
            ((1, 4, 3, 3), (2, 4, 1, 1), None, 2),  # for eight channels
            ((1, 4, 3, 3), (3, 2, 1, 1), None, 2),  # three outputs for two groups
        ],
    ),
    "conv2d's bias": (
        lambda n: F.conv2d(ones(1, 1, 3, 3), ones(2, 1, 1, 1), ones(*n)), [(2,)], [(1,), (2, 1)],
    ),
    "conv_transpose2d": (
        lambda n: F.conv_transpose2d(ones(*n[0]), ones(*n[1]), groups=n[2]),
        [((1, 4, 3, 3), (4, 2, 1, 1), 1), ((4, 3, 3), (4, 2, 1, 1), 2)],
        [
            ((3, 3), (4, 2, 1, 1), 1),
            ((1, 4, 3, 3), (4, 1, 1), 1),
            ((1, 4, 3, 3), (4, 2, 1, 1), 0),
            ((1, 3, 3, 3), (4, 2, 1, 1), 1),
            ((1, 4, 3, 3), (4, 2, 1, 1), 3),
        ],
    ),
    "conv_transpose2d's bias": (
        lambda n: F.conv_transpose2d(ones(1, 2, 3, 3), ones(2, 1, 1, 1), ones(*n), groups=2),
        [(2,)],
        [(1,), (3,), (2, 1)],
    ),
    "output_padding": (
        lambda n: F.conv_transpose2d(
            ones(1, 1, 3, 3), ones(1, 1, 2, 2), output_padding=n[0], stride=n[1], dilation=n[2]
        ),
        [(0, 1, 1), (1, 2, 1), ((1, 2), (2, 3), 1)],
        [(1, 1, 1), (2, 2, 2), ((2, 1), (2, 3), 1), ((1, 3), (2, 3), 1)],
    ),
    "the kernel of a pool": (
        lambda n: F.max_pool2d(ones(1, 1, 4, 4), n), [1, 4, (4, 1)], [0, 5, (5, 1), (1, 5)],
    ),
    "the padding of a pool": (
        lambda n: F.max_pool2d(ones(1, 1, 6, 6), n[0], padding=n[1]),
        [(2, 1), ((2, 4), (1, 2))],
        [(2, 2), ((2, 4), (2, 2)), ((4, 2), (2, 2))],
    ),
    "adaptive_avg_pool2d": (
        lambda n: F.adaptive_avg_pool2d(ones(*n[0]), n[1]),
        [((1, 4, 4), 1), ((1, 1, 4, 4), (None, 3))],
        [((4, 4), 1), ((1, 1, 1, 4, 4), 1), ((1, 4, 4), (1, 2, 3)), ((1, 4, 4), 0),
         ((1, 4, 4), 1.5)],
    ),
    "interpolate": (
        lambda n: F.interpolate(ones(*n[0]), size=n[1], scale_factor=n[2]),
        [((1, 1, 2), 3, None), ((1, 1, 2, 2), None, 2), ((1, 1, 2, 2), (1, 2), None)],
        [
            ((1, 2), 3, None),
            ((1, 1, 2), None, None),
            ((1, 1, 2), 3, 2),
            ((1, 1, 2), 0, None),
            ((1, 1, 2, 2), (1, 2, 3), None),
            ((1, 1, 2, 2), None, (2, 0)),
        ],
    ),
    "group_norm": (
        lambda n: F.group_norm(ones(2, 4), n), [1, 2, 4], [0, 3, -1],
    ),
    "layer_norm": (
        lambda n: F.layer_norm(ones(2, 3), n), [(3,), (2, 3)], [(), (2,), (2, 2, 3), (3, 2)],
    ),
    "layer_norm's weight": (
        lambda n: F.layer_norm(ones(2, 3), (3,), ones(*n[0]), ones(*n[1])),
        [((3,), (3,))],
        [((2,), (3,)), ((3,), (2,))],
    ),
    "rms_norm": (
        lambda n: F.rms_norm(ones(2, 3), n), [(3,), (2, 3)], [(), (2,), (2, 2, 3), (3, 2)],
    ),
    "attention": (
        lambda n: F.scaled_dot_product_attention(*[ones(*one) for one in n]),
        [((2, 3), (5, 3), (5, 4))],
        [((3,), (5, 3), (5, 4)), ((2, 4), (5, 3), (5, 4)), ((2, 3), (4, 3), (5, 4))],
    ),
    "shared heads": (
        lambda n: F.scaled_dot_product_attention(
            ones(*n[0]), ones(*n[1]), ones(*n[1]), enable_gqa=True
        ),
        [((4, 2, 3), (2, 5, 3)), ((4, 2, 3), (4, 5, 3))],
        [((4, 2, 3), (5, 3)), ((2, 3), (2, 5, 3)), ((4, 2, 3), (3, 5, 3))],
    ),
    "nll_loss": (
        lambda n: F.nll_loss(ones(*n[0]), whole(*n[1])),
        [((2, 3), (0, 2)), ((1, 3, 1), ((1,),))],
        [((), (0,)), ((2, 3), (0, 1, 2)), ((2, 3), ((0, 1),)), ((2, 3), (0, 3)),
         ((2, 3), (-1, 0))],
    ),
    "gather": (
        lambda n: ones(2, 3).gather(1, gt.zeros(*n, dtype="int64")),
        [(2, 5), (1, 1), (0, 3)],
        [(2,), (3, 3), (2, 3, 1)],
    ),
    "an index of gather": (
        lambda n: ones(2, 3).gather(1, whole([n], [0])), [0, 2], [3, -1],
    ),
    "scatter_add": (
        lambda n: gt.zeros(4).scatter_add(0, whole(*n[0]), ones(*n[1])),
        [((0, 3), (2,)), ((0,), (2,))],
        [((0, 3), (1,)), ((0, 4), (2,)), ((0, -1), (2,))],
    ),
    "cat": (
        lambda n: gt.cat([ones(*one) for one in n], 1),
        [((2, 3), (2, 0)), ((2, 3), (2, 4))],
        [((2, 3), (3, 3)), ((2, 3), (2, 3, 1)), ((2, 3), (2,))],
    ),
    "searchsorted": (
        lambda n: gt.searchsorted(ones(*n[0]), ones(*n[1])),
        [((3,), (2, 2)), ((2, 3), (2, 1))],
        [((), (2,)), ((2, 3), (3, 1)), ((2, 3), (2,))],
    ),
    "the side of searchsorted": (
        lambda n: gt.searchsorted(ones(3), ones(2), side=n[0], right=n[1]),
        [("left", False), ("right", True), ("right", False), (None, True)],
        [("middle", False), ("left", True)],
    ),
    "glu": (lambda n: F.glu(ones(*n)), [(2,), (3, 4), (0,)], [(), (3,), (4, 3)]),
    "argmax": (lambda n: ones(*n).argmax(0), [(1,), (2, 0)], [(0,), (0, 2)]),
    "einsum": (
        lambda n: gt.einsum(n[0], *[ones(*one) for one in n[1:]]),
        [("ij,jk", (2, 3), (3, 4)), ("...i->...", (2, 3)), ("ij,ij->ij", (2, 1), (2, 3)),
         ("ij,jk->ik", (2, 3), (1, 4)), ("ii", (2, 2)), ("ii", (1, 1))],
        [("ij,jk", (2, 3)), ("ij", (2,)), ("i", (2, 3)), ("ij,jk", (2, 3), (4, 5)),
         ("i->j", (2,)), ("i->ii", (2,)), ("i-", (2, 2)), ("i+", (2, 2))],
    ),
    "smooth_l1_loss": (
        lambda n: F.smooth_l1_loss(ones(2), ones(2), beta=n), [0, 0.5], [-0.5],
    ),
    "huber_loss": (lambda n: F.huber_loss(ones(2), ones(2), delta=n), [0.5], [0, -0.5]),
    "batch_norm without training": (
        lambda n: F.batch_norm(ones(2, 3), *[one and ones(one) for one in n]),
        [(3, 3)],
        [(None, 3), (3, None), (None, None)],
    ),
    "MultiheadAttention": (
        lambda n: nn.MultiheadAttention(*n), [(4, 1), (4, 4)], [(4, 0), (0, 1), (4, 3)],
    ),
    "Conv2d": (
        lambda n: nn.Conv2d(n[0], n[1], 1, groups=n[2]),
        [(4, 6, 2), (1, 1, 1)],
        [(4, 6, 0), (3, 4, 2), (4, 3, 2)],
    ),
    "GroupNorm": (lambda n: nn.GroupNorm(*n), [(1, 4), (4, 4)], [(0, 4), (3, 4)]),
    "trunc_normal_": (
        lambda n: nn.init.trunc_normal_(ones(2), **n),
        [{"a": -1, "b": 1}, {"a": 3.9, "b": 9}, {"a": -9, "b": -3.9}],
        [{"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 4.1, "b": 9}, {"a": -9, "b": -4.1}],
    ),
    "dirac_": (
        lambda n: nn.init.dirac_(ones(*n[0]), n[1]),
        [((4, 2, 1), 1), ((4, 2, 1), 2), ((1, 1, 1, 1, 1), 1)],
        [((4, 2), 1), ((1, 1, 1, 1, 1, 1), 1), ((3, 2, 1), 2)],
    ),
    "what an RNN takes": (
        lambda n: nn.RNN(3, 2)(ones(*n)), [(5, 3), (5, 1, 3)], [(3,), (5, 2), (1, 5, 1, 3)],
    ),
    "what an LSTMCell takes": (
        lambda n: nn.LSTMCell(3, 2)(ones(*n)), [(3,), (5, 3)], [(5, 2), (1, 5, 3)],
    ),
    "the state of an LSTMCell": (
        lambda n: nn.LSTMCell(3, 2)(ones(5, 3), tuple(ones(*one) for one in n)),
        [((5, 2), (5, 2))],
        [((5, 2),), ((5, 2), (5, 3)), ((5, 3), (5, 2)), ((5, 2), (5, 2), (5, 2))],
    ),
    "SGD": (
        lambda n: optim.SGD([weight()], 0.1, **n),
        [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "dampening": 0.1}],
        [{"nesterov": True}, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}],
    ),
    "the parameters of an optimiser": (
        lambda n: optim.SGD([n], 0.1),
        [weight],
        [lambda: np.ones(2), lambda: weight() * 2, lambda: ones(2)],
    ),
    "ReduceLROnPlateau": (
        lambda n: optim.lr_scheduler.ReduceLROnPlateau(
            optim.SGD([weight()], 0.1), mode=n[0], threshold_mode=n[1]
        ),
        [("min", "rel"), ("max", "abs")],
        [("mean", "rel"), ("min", "ratio")],
    ),
    "CosineAnnealingWarmRestarts": (
        lambda n: optim.lr_scheduler.CosineAnnealingWarmRestarts(optim.SGD([weight()], 0.1), *n),
        [(1, 1), (2, 3)],
        [(0, 1), (1, 0)],
    ),
    "OneCycleLR": (
        lambda n: optim.lr_scheduler.OneCycleLR(optim.SGD([weight()], 0.1), 1.0, **n),
        [{"total_steps": 1}, {"epochs": 2, "steps_per_epoch": 3},
         {"total_steps": 3, "pct_start": 0}, {"total_steps": 3, "pct_start": 1}],
        [{"total_steps": 0}, {"epochs": 2}, {"steps_per_epoch": 3}, {},
         {"total_steps": 3, "pct_start": -0.1}, {"total_steps": 3, "pct_start": 1.1}],
    ),
    "LinearLR": (
        lambda n: optim.lr_scheduler.LinearLR(optim.SGD([weight()], 0.1), *n),
        [(1.0, 1.0), (0.1, 0.0)],
        [(0.0, 1.0), (1.1, 1.0), (0.5, -0.1), (0.5, 1.1)],
    ),
    "CyclicLR": (
        lambda n: optim.lr_scheduler.CyclicLR(
            optim.SGD([weight()], 0.1, momentum=0.9), 0.1, 1.0, **n
        ),
        [{"mode": "triangular2"}, {"mode": "own", "scale_fn": lambda x: x}],
        [{"mode": "own"}],
    ),
    "what is of numbers": (
        lambda n: n(gt.tensor([True])),
        [lambda: lambda x: ~x, lambda: lambda x: x & x, lambda: lambda x: x + x],
        [
            lambda: lambda x: x - x, lambda: lambda x: -x, lambda: lambda x: x << x,
            lambda: lambda x: x >> x, lambda: lambda x: x // x, lambda: lambda x: x % x,
            lambda: abs,
            lambda: lambda x: x**x,
            lambda: gt.relu,
        ],
    ),
    "the state of a generator": (
        lambda n: gt.Generator().set_state(n), [], [(1,), (1, 2, 3), (1.5, 2), ("a", 2)],
    ),
    "device": (
        lambda n: gt.device(*n),
        [("cpu",), ("cuda", 1), ("cuda:1",), ("cuda",)],
        [("tpu",), ("cuda:x",), ("cuda:1", 1), ("cuda:1", 0)],
    ),
    "a number for whole numbers": (
        lambda n: whole(1) + n, [2**63 - 1, -(2**63)], [2**63, -(2**63) - 1],
    ),
    "the power of whole numbers": (
        lambda n: ones(2, dtype=n[0]) ** n[1],
        [("int64", 0), ("float32", -1), ("int64", -1.0)],
        [("int64", -1)],
    ),
    "a division of whole numbers": (
        lambda n: ones(2, dtype=n[0]) // n[1],
        [("int64", 1), ("float32", 0), ("int64", 0.0)],
        [("int64", 0)],
    ),
}  # fmt: skip
TAKEN = [(what, at) for what, (_, taken, _) in CALLS.items() for at in range(len(taken))]
REFUSED = [(what, at) for what, (_, _, refused) in CALLS.items() for at in range(len(refused))]
SENTENCES = (
    gt.ShmError,
    ValueError,
    TypeError,
    IndexError,
    RuntimeError,
    OverflowError,
    ZeroDivisionError,
)


@pytest.fixture(scope="module", params=["torch", "numpy"])
def here(request):
    with gt.init(inline=True, backend=request.param, arena="32MiB", threads=1):
        yield


def given(one):
    return one() if callable(one) else one


def look_at(found):
    """Some are refused only where their values are known."""
    for one in found if isinstance(found, tuple) else (found,):
        if isinstance(one, gt.Tensor):
            one.numpy()


@pytest.mark.parametrize(("what", "at"), TAKEN)
def test_what_lies_just_within_is_taken(here, what, at):
    call, taken, _ = CALLS[what]
    look_at(call(given(taken[at])))


@pytest.mark.parametrize(("what", "at"), REFUSED)
def test_each_reason_alone_is_enough(here, what, at):
    call, _, refused = CALLS[what]
    with pytest.raises(SENTENCES) as told:
        look_at(call(given(refused[at])))
    assert len(str(told.value)) > 20, "a sentence"
