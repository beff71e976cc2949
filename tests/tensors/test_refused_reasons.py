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


def _put(x, shape):
    x[whole(0, 2)] = ones(*shape)
    return x


def _sequential(milestones):
    found = optim.SGD([weight()], 0.1)
    both = [optim.lr_scheduler.ConstantLR(found), optim.lr_scheduler.ExponentialLR(found, 0.9)]
    return optim.lr_scheduler.SequentialLR(found, both, milestones)


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
    "select": (lambda n: ones(3, 2).select(0, n), [0, 2, -3], [3, -4]),
    "narrow": (
        lambda n: gt.narrow(ones(3), 0, *n), [(0, 3), (3, 0), (2, 1)], [(0, 4), (2, 2), (-4, 1)],
    ),
    "dim": (lambda n: ones(2, 3).sum(n), [0, 1, -1, -2, (0, 1)], [2, -3, (0, 0), (1, -1)]),
    "the dim of a number": (lambda n: gt.tensor(1.0).sum(n), [0, -1], [1, -2]),
    "permute": (lambda n: ones(2, 3).permute(*n), [(1, 0)], [(0,), (0, 0), (0, 1, 2)]),
    "flatten": (lambda n: ones(2, 3, 4).flatten(*n), [(1, 1), (0, 2)], [(2, 1)]),
    "tile": (lambda n: gt.tile(ones(2), n), [(0,), (2, 3)], [(-1,)]),
    "repeat": (lambda n: ones(2, 3).repeat(*n), [(2, 2), (1, 1, 1)], [(2,)]),
    "repeat_interleave": (lambda n: gt.repeat_interleave(ones(2), n), [0, 2], [-1]),
    "diagonal": (
        lambda n: ones(2, 3, 4).diagonal(0, *n), [(0, 1), (2, 0), (-1, -2)], [(1, 1), (0, -3)],
    ),
    "diag": (lambda n: gt.diag(ones(*n)), [(2,), (2, 3)], [(2, 2, 2)]),
    "trace": (lambda n: gt.trace(ones(*n)), [(2, 2), (2, 3)], [(2,), (2, 2, 2)]),
    "t": (lambda n: ones(*n).t(), [(2,), (2, 3)], [(2, 3, 4)]),
    "chunk": (lambda n: ones(4).chunk(n), [1, 5], [0, -1]),
    "stack": (lambda n: gt.stack([ones(*one) for one in n]), [[(2,), (2,)]], [[(2,), (3,)]]),
    "meshgrid": (
        lambda n: gt.meshgrid(*n[0], indexing=n[1]),
        [lambda: ([ones(2), ones(3)], "ij"), lambda: ([[ones(2), ones(3)]], "xy")],
        [lambda: ([ones(2), ones(3)], "yx")],
    ),
    "roll": (
        lambda n: gt.roll(ones(2, 3), *n), [(1,), ((1, 2), (0, 1))], [((1, 2), (0,)), (1, (0, 1))],
    ),
    "tril": (lambda n: gt.tril(ones(*n)), [(2, 3), (2, 2, 3)], [(2,), ()]),
    "one_hot": (lambda n: F.one_hot(whole(0), n), [1, 3], [0]),
    "a pad that takes": (lambda n: gt.pad(ones(3), n), [(-1, -2), (-3, 0)], [(-2, -2)]),
    "topk": (lambda n: ones(3).topk(n), [0, 3], [-1, 4]),
    "bucketize": (lambda n: gt.bucketize(ones(2), ones(*n)), [(3,)], [(), (2, 2)]),
    "quantile": (lambda n: gt.quantile(ones(3), n), [0, 1, 0.5], [-0.1, 1.1]),
    "the way of a quantile": (
        lambda n: gt.quantile(ones(3), 0.5, interpolation=n), ["linear", "nearest"], ["cubic"],
    ),
    "median": (lambda n: ones(*n).median(0), [(1,)], [(0,), (0, 2)]),
    "tensordot": (
        lambda n: gt.tensordot(ones(2, 3), ones(*n[0]), n[1]),
        [((3, 4), 1), ((2, 3), 2), ((4, 2), ([0], [1]))],
        [((4, 3), 1), ((3, 2), 2), ((4, 2), ([1], [1]))],
    ),
    "bmm": (
        lambda n: gt.bmm(ones(*n[0]), ones(*n[1])),
        [((2, 3, 4), (2, 4, 5))],
        [((2, 3, 4), (1, 4, 5)), ((2, 3, 4), (2, 3, 5)), ((3, 4), (4, 5))],
    ),
    "addmm": (
        lambda n: gt.addmm(ones(*n), ones(2, 3), ones(3, 4)), [(2, 4), (4,), ()], [(3,), (1, 2, 4)],
    ),
    "div": (
        lambda n: gt.div(ones(2), 2, rounding_mode=n), [None, "floor", "trunc"], ["round"],
    ),
    "celu": (lambda n: F.celu(ones(2), n), [1, -1], [0]),
    "hardtanh": (lambda n: F.hardtanh(ones(2), *n), [(0.0, 0.0), (-1.0, 1.0)], [(1.0, 0.0)]),
    "prelu": (lambda n: F.prelu(ones(2, 4), ones(*n)), [(1,), (4,)], [(2,), (2, 4)]),
    "binary_cross_entropy": (
        lambda n: F.binary_cross_entropy(ones(1) * n, ones(1)), [0.0, 1.0], [-0.01, 1.01],
    ),
    "label_smoothing": (
        lambda n: F.cross_entropy(ones(2, 3), whole(0, 1), label_smoothing=n),
        [0, 1],
        [-0.1, 1.1],
    ),
    "mse_loss": (lambda n: F.mse_loss(ones(2), ones(*n)), [(2,)], [(3,)]),
    "embedding's padding": (
        lambda n: F.embedding(whole(0), ones(3, 2), n), [0, 2, -3], [3, -4],
    ),
    "Embedding's padding": (lambda n: nn.Embedding(3, 2, n), [0, 2, -3], [3, -4]),
    "index_put": (
        lambda n: _put(ones(3, 2), n), [(2, 2), (2,), ()], [(3, 2), (2, 3)],
    ),
    "a place in brackets": (
        lambda n: ones(2, 3)[n],
        [0, -2, (1, 2), (..., 0), (slice(5), None)],
        [2, -3, (0, 0, 0), (..., 0, ...)],
    ),
    "item": (lambda n: ones(*n).item(), [(), (1,), (1, 1)], [(2,), (0,)]),
    "bool": (lambda n: bool(ones(*n)), [(), (1,)], [(2,)]),
    "bincount": (
        lambda n: gt.bincount(gt.ones(3, dtype=n[0]), None if n[1] is None else ones(n[1])),
        [("int64", None), ("int32", 3)],
        [("float32", None), ("int64", 2)],
    ),
    "multinomial": (lambda n: gt.multinomial(ones(*n), 1), [(3,), (2, 3)], [(), (2, 2, 3)]),
    "conv1d": (
        lambda n: F.conv1d(ones(*n[0]), ones(*n[1])),
        [((2, 5), (3, 2, 5)), ((1, 2, 5), (3, 2, 1))],
        [((5,), (3, 2, 5)), ((1, 1, 2, 5), (3, 2, 1)), ((2, 5), (2, 5)), ((2, 5), (3, 2, 6))],
    ),
    "a kernel as great as the image": (
        lambda n: F.conv2d(ones(1, 1, 3, 3), ones(1, 1, n, 1)), [1, 3], [4],
    ),
    "padding='same'": (
        lambda n: F.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3), padding="same", stride=n),
        [1, (1, 1)],
        [2, (1, 2)],
    ),
    "conv_transpose2d of nothing left": (
        lambda n: F.conv_transpose2d(ones(1, 1, 2, 2), ones(1, 1, 2, 2), padding=n), [0, 1], [2],
    ),
    "batch_norm in training": (
        lambda n: F.batch_norm(ones(*n), None, None, training=True), [(2, 3), (1, 3, 2)], [(1, 3)],
    ),
    "instance_norm": (lambda n: F.instance_norm(ones(*n)), [(1, 2, 2)], [(1, 2, 1), (2, 3)]),
    "alpha_dropout": (lambda n: F.alpha_dropout(ones(2), n), [0, 1], [-0.1, 1.1]),
    "eye_": (lambda n: nn.init.eye_(ones(*n)), [(2, 3)], [(2,), (2, 2, 2)]),
    "xavier_uniform_": (lambda n: nn.init.xavier_uniform_(ones(*n)), [(2, 3)], [(2,)]),
    "orthogonal_": (lambda n: nn.init.orthogonal_(ones(*n)), [(2, 3), (2, 3, 1)], [(2,)]),
    "sparse_": (lambda n: nn.init.sparse_(ones(*n), 0.5), [(2, 3)], [(2,), (2, 2, 2)]),
    "kaiming_normal_": (
        lambda n: nn.init.kaiming_normal_(ones(2, 3), mode=n), ["fan_in", "fan_out"], ["fan"],
    ),
    "a list of modules": (
        lambda n: nn.ModuleList([nn.ReLU(), nn.ReLU()])[n], [0, 1, -2], [2, -3],
    ),
    "Unflatten": (
        lambda n: nn.Unflatten(n, (2, 2))(ones(4, 4)), [0, 1, -2], [2, -3],
    ),
    "attn_mask": (
        lambda n: nn.MultiheadAttention(4, 2)(*[ones(3, 2, 4)] * 3, attn_mask=ones(*n)),
        [(3, 3), (4, 3, 3)],
        [(3, 2), (2, 3, 3)],
    ),
    "key_padding_mask": (
        lambda n: nn.MultiheadAttention(4, 2)(
            *[ones(3, 2, 4)] * 3, key_padding_mask=gt.zeros(*n, dtype="bool")
        ),
        [(2, 3)],
        [(3, 2), (3,)],
    ),
    "vector_to_parameters": (
        lambda n: nn.utils.vector_to_parameters(ones(n), [weight()]), [2], [1, 3],
    ),
    "ReduceLROnPlateau's factor": (
        lambda n: optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([weight()], 0.1), factor=n),
        [0.99],
        [1.0, 1.5],
    ),
    "ReduceLROnPlateau's least": (
        lambda n: optim.lr_scheduler.ReduceLROnPlateau(optim.SGD([weight()], 0.1), min_lr=n),
        [0.1, [0.1]],
        [[0.1, 0.1]],
    ),
    "ConstantLR": (
        lambda n: optim.lr_scheduler.ConstantLR(optim.SGD([weight()], 0.1), n),
        [0.1, 1.0],
        [0.0, 1.1],
    ),
    "LambdaLR": (
        lambda n: optim.lr_scheduler.LambdaLR(optim.SGD([weight()], 0.1), n),
        [lambda: abs, [abs]],
        [[abs, abs]],
    ),
    "SequentialLR": (lambda n: _sequential(n), [[2]], [[], [2, 3]]),
    "anneal_strategy": (
        lambda n: optim.lr_scheduler.OneCycleLR(
            optim.SGD([weight()], 0.1), 1.0, 5, anneal_strategy=n
        ),
        ["cos", "linear"],
        ["step"],
    ),
    "Adadelta": (lambda n: optim.Adadelta([weight()], rho=n), [0, 1], [1.1, -0.1]),
    "betas": (
        lambda n: optim.Adam([weight()], betas=n),
        [(0, 0.99)],
        [(1, 0.9), (0.9, 1), (-0.1, 0.9), (0.9, -0.1)],
    ),
    "lr": (lambda n: optim.SGD([weight()], n), [0, 0.1], [-0.1, float("inf"), float("nan")]),
    "a parameter twice": (
        lambda n: optim.SGD([*[weight()] * n, weight()], 0.1), [1], [2],
    ),
    "matrix_norm": (
        lambda n: gt.linalg.matrix_norm(ones(2, 3), *n),
        [("fro", (0, 1)), (1, (0, 1)), (-1, (0, 1)), (float("inf"), (1, 0))],
        [("fro", (0,)), ("fro", (0, 1, 0)), ("nuc", (0, 1)), (2, (0, 1))],
    ),
    "autocast": (
        lambda n: gt.amp.autocast("cpu", dtype=n), ["float16", "bfloat16"], ["float32", "int8"],
    ),
    "several tensors back": (
        lambda n: gt.autograd.backward([weight().sum(), weight().sum()], n),
        [None, lambda: [ones(), ones()]],
        [lambda: [ones()], lambda: [ones()] * 3, lambda: [ones(2), ones()]],
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


@pytest.mark.table
@pytest.mark.parametrize("what", CALLS)
def test_what_lies_just_within_is_taken(here, what):
    call, taken, _ = CALLS[what]
    for one in taken:
        look_at(call(given(one)))


@pytest.mark.table
@pytest.mark.parametrize("what", CALLS)
def test_each_reason_alone_is_enough(here, what):
    call, _, refused = CALLS[what]
    for one in refused:
        with pytest.raises(SENTENCES) as told:
            look_at(call(given(one)))
            pytest.fail(f"{one} is taken")
        assert len(str(told.value)) > 20, "a sentence"
