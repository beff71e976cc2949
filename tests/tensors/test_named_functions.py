"""Functions under torch's names that are made of others: values, types and gradients agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tensors.against_torch import agree, same
from tensors.samples import regular

import shmgpu as gt

pytestmark = pytest.mark.operations

RNG = np.random.default_rng(11)
A, B = RNG.uniform(-2, 2, (3, 4)), RNG.uniform(-2, 2, (3, 4))
BATCH, OTHER = RNG.uniform(-1, 1, (2, 3, 4)), RNG.uniform(-1, 1, (2, 4, 5))
V, W = RNG.uniform(-1, 1, 4), RNG.uniform(-1, 1, 3)
SQUARE = RNG.uniform(-1, 1, (2, 4, 4))
INTS = np.array([[3, 0, -5, 0], [7, 2, 0, 1], [0, 0, 4, 4]])
ZEROS = np.array([[2.0, 0.0, 3.0, 0.0, 1.5], [0.0, -1.0, 2.0, 0.5, 0.0], [1.0, -2.0, 3.0, 0.5, 7]])
PLACES = np.array([2, 0])
SPECIAL = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.5, 3.0])

CASES = {
    "mm": (lambda f, a, b: f.mm(a, b.T), A, B),
    "bmm": (lambda f, a, b: f.bmm(a, b), BATCH, OTHER),
    "mv": (lambda f, a, b: f.mv(a, b), A, V),
    "outer": (lambda f, a, b: f.outer(a, b), V, W),
    "addmm": (lambda f, c, a, b: f.addmm(c, a, b.T, beta=0.5, alpha=2), W, A, B),
    "addmm without": (lambda f, a, b: f.addmm(a[:, :3] * math.nan, a, b.T, beta=0).detach(), A, B),
    "addmv": (lambda f, c, a, b: f.addmv(c, a, b), W, A, V),
    "baddbmm": (lambda f, c, a, b: f.baddbmm(c[:, :, :1], a, b), BATCH, BATCH, OTHER),
    "tensordot": (lambda f, a, b: f.tensordot(a, b, 1), BATCH, RNG.uniform(-1, 1, (4, 2))),
    "tensordot of axes": (lambda f, a, b: f.tensordot(a, b, ([0, 2], [0, 1])), BATCH, OTHER),
    "einsum product": (lambda f, a, b: f.einsum("bij,bjk->bik", a, b), BATCH, OTHER),
    "einsum of three": (lambda f, a, b, v: f.einsum("bij,bjk,j->ki", a, b, v), BATCH, OTHER, V),
    "einsum without arrow": (lambda f, a, b: f.einsum("ij,kj", a, b), A, B),
    "einsum sum": (lambda f, a: f.einsum("ij->", a), A),
    "einsum dots": (lambda f, a, b: f.einsum("...ij,...jk->...ik", a, b), BATCH, OTHER),
    "einsum dots of unlike": (lambda f, a, v: f.einsum("...j,j->...", a, v), BATCH, V),
    "einsum diagonal": (lambda f, a: f.einsum("bii->bi", a), SQUARE),
    "einsum trace": (lambda f, a: f.einsum("bii->b", a), SQUARE),
    "einsum outer": (lambda f, a, b: f.einsum("i,j->ji", a, b), V, W),
    "einsum turned": (lambda f, a: f.einsum("bij->jbi", a), BATCH),
    **{
        f"{name} and a number": (
            lambda f, a, name=name: getattr(f, name)(
                a, 0.7 if f is gt else torch.tensor(0.7, dtype=torch.float64)
            ),
            A,
        )
        for name in "atan2 hypot copysign logaddexp maximum remainder fmod".split()
    },
    "sum in a type": (lambda f, a: f.sum(a, 1, dtype=f.float32), A),
    "sum of whole numbers in a type": (lambda f, a: f.sum(a, 1, dtype=f.int8), INTS),
    "sum of whole numbers as floats": (lambda f, a: a.sum(dtype=f.float64), INTS),
    "mean in a type": (lambda f, a: f.mean(a.float(), 0, True, dtype=f.float64), A),
    "mean of whole numbers": (lambda f, a: a.mean(dtype=f.float64), INTS),
    "prod in a type": (lambda f, a: f.prod(a.float(), 1, dtype=f.float64), A),
    "prod of whole numbers in a type": (lambda f, a: f.prod(a, 1, dtype=f.int16), INTS + 1),
    "by names": (lambda f, a, b: f.add(input=a, other=f.mul(other=b, input=a), alpha=2), A, B),
    "by names in part": (lambda f, a, b: f.maximum(a, other=b) + a.logaddexp(other=b), A, B),
    "by NumPy's names": (lambda f, a: f.sum(input=a, axis=1, keepdim=True), A),
    "a view by names": (lambda f, a: f.transpose(input=a, dim0=0, dim1=1), A),
    "where of a tensor": (lambda f, a, b: a.where(a > 0, b), A, B),
    "var_mean": (lambda f, a: f.cat(f.var_mean(a, dim=1, correction=0)), A),
    "std_mean": (lambda f, a: f.cat(f.std_mean(a, dim=0, keepdim=True)), A),
    "var, biased": (lambda f, a: a.var(1, False) + f.var(a, unbiased=False) + f.var(a, False), A),
    "std, unbiased": (lambda f, a: a.std(0, True, True) + a.std(dim=0, unbiased=False), A),
    "var of as many as are taken off": (lambda f, a: f.var(a, 1, correction=4).detach(), A),
    "var_mean, biased": (lambda f, a: f.stack(f.var_mean(a, unbiased=False)), A),
    "std_mean, biased": (lambda f, a: f.cat(f.std_mean(a, 1, False)), A),
    "movedim of several": (lambda f, a: f.movedim(a, (0, 2), (1, 0)), BATCH),
    "movedim of none": (lambda f, a: f.movedim(a.sum(), 0, -1), A),
    "a mask without axes": (lambda f, a: a.sum()[a.sum() > -99], A),
    "a mask without axes of rows": (lambda f, a: a[a[0, 0] < 99].sum(0), A),
    "a mask without axes, of nothing": (lambda f, a: a[a[0, 0] > 99], A),
    "chunks of nothing": (lambda f, a: f.stack(a[:0].chunk(3)), A),
    "parts of nothing": (lambda f, a: f.stack(a[:0].split(0) + a[:0].split(2)), A),
    **{
        f"round to {n} decimals": (lambda f, a, n=n: f.round(a * 33, decimals=n), A)
        for n in (0, 2, -1)
    },
    **{
        f"div, {mode}, of {what}": (
            lambda f, a, b, mode=mode: f.div(a, b, rounding_mode=mode).detach(),
            *numbers,
        )
        for mode in ("floor", "trunc", None)
        for what, numbers in {
            "floats": (A, B),
            "whole numbers": (INTS - 4, np.array([-3, 2, 5, -4])),
            "both": (INTS - 4, np.array([-1.5])),
        }.items()
    },
    "div, trunc": (lambda f, a, b: f.div(a, b, rounding_mode="trunc") + a, A, B),
    **{
        f"quantile, {way}": (lambda f, a, way=way: f.quantile(a, 0.3, 1, interpolation=way), A)
        for way in "linear lower higher nearest midpoint".split()
    },
    "quantile of all": (lambda f, a: a.quantile(0.77), A),
    "quantile of a number": (lambda f, a, q: f.quantile(a.sum(), q, 0, keepdim=True), A, V.clip(0)),
    "quantiles": (lambda f, a, q: f.quantile(a, q.detach(), 0), A, V.clip(0)),
    "quantiles of all": (lambda f, a, q: f.quantile(a, q.detach(), keepdim=True), A, V.clip(0)),
    "quantiles among NaN": (
        lambda f, a, q: f.quantile(f.where(a > 1.5, math.nan, a), q, 1, True).detach(),
        A,
        V.clip(0),
    ),
    "trace": (lambda f, a: f.trace(a) + a.T.trace(), A),
    "trace of whole numbers": (lambda f, a: f.trace(a), INTS),
    **{
        f"cdist, {p}": (lambda f, a, b, p=p: f.cdist(a, b, p), A, B[:2])
        for p in (1, 2, 3, math.inf)
    },
    "cdist of batches": (lambda f, a, b: f.cdist(a, b[:1] * 2), BATCH, BATCH),
    "cdist of one another": (lambda f, a: f.cdist(a, a), A),
    "logspace": (lambda f: f.logspace(-1, 2, 5, base=3, dtype=f.float64),),
    "bincount": (lambda f, a: f.bincount(a.flatten().abs(), minlength=3), INTS),
    "bincount of nothing": (lambda f, a: a[:0, 0].bincount(minlength=3), INTS),
    "bincount with weights": (
        lambda f, a, w: (
            f.bincount(a.abs()[0], w.detach()) + a.abs()[0].bincount(w.float().detach())
        ),
        INTS,
        V,
    ),
    "where it holds": (lambda f, a: f.stack(f.where(a > 0)), INTS),
    "where a number is": (lambda f, a: f.where(a.sum() > -99)[0], INTS),
    "where of numbers": (lambda f, a: f.where(a > 0, 1.0, 0), INTS),
    "linalg.norm": (lambda f, a: f.linalg.norm(a) + f.linalg.norm(a, "fro") + a.abs().max(), A),
    **{
        f"linalg.norm, {p}": (
            lambda f, a, p=p: f.linalg.norm(a, p, keepdim=True) + f.linalg.norm(a, p, 1).sum(),
            A,
        )
        for p in (1, -1, math.inf, -math.inf)
    },
    "linalg.matrix_norm": (
        lambda f, a: (
            f.linalg.matrix_norm(a, math.inf, (0, 2)) + f.linalg.matrix_norm(a, dim=(2, 0))
        ),
        BATCH,
    ),
    "linalg.vector_norm": (
        lambda f, a: f.linalg.vector_norm(a, 3, (0, 2), True) + f.linalg.vector_norm(a),
        BATCH,
    ),
    **{
        f"linalg, {name}": (lambda f, a, *more, call=call: call(f, regular(f, a), *more), *arrays)
        for name, (call, *arrays) in {
            "inv": (lambda f, a: f.linalg.inv(a) + f.inverse(a[0]) + a.inverse(), SQUARE),
            "inv of nothing": (lambda f, a: f.linalg.inv(a[:0]), SQUARE),
            "det": (lambda f, a: f.linalg.det(a) + f.det(a[0]) + a[:, :1, :1].det(), SQUARE),
            "det of nothing": (lambda f, a: f.det(a[:, :0, :0].double()).detach(), SQUARE),
            "solve": (lambda f, a, b: f.linalg.solve(a, b), SQUARE, BATCH.transpose(0, 2, 1)),
            "solve, one side": (lambda f, a, b: f.linalg.solve(a, b), SQUARE, OTHER[0]),
            "solve, one matrix": (lambda f, a, b: f.linalg.solve(a[0], b), SQUARE, OTHER),
            "solve, a vector": (lambda f, a, v: f.linalg.solve(a, v), SQUARE, V),
            "solve, vectors": (lambda f, a, v: f.linalg.solve(a, v[:2]), SQUARE, B),
            "solve from the right": (
                lambda f, a, b: (
                    f.linalg.solve(a, b, left=False) + f.linalg.solve(a[0], b, left=False)
                ),
                SQUARE,
                BATCH,
            ),
            "matrix_power": (lambda f, a: f.matrix_power(a, -3) + a.matrix_power(-1), SQUARE),
        }.items()
    },
    "linalg in a type": (
        lambda f, a: f.stack(
            [
                f.linalg.norm(a, dtype=f.float64),
                f.linalg.vector_norm(a, ord=1, dtype=f.float64),
                f.linalg.matrix_norm(a, 1, dtype=f.float64),
            ]
        ).detach(),
        A.astype("float32"),
    ),
    **{
        f"{name}, short": (lambda f, a, name=name: getattr(f, name)(a) + getattr(a, name)(), A)
        for name in "exp2 frac deg2rad rad2deg sinc nansum nanmean".split()
    },
    **{
        f"{name} of special numbers": (
            lambda f, a, name=name: getattr(f, name)(a).detach(),
            SPECIAL,
        )
        for name in "exp2 fix sgn frac sinc isposinf isneginf nansum nanmean logit".split()
    },
    **{
        f"{name} of whole numbers": (lambda f, a, name=name: getattr(f, name)(a), INTS)
        for name in "fix sgn isposinf isneginf nansum".split()
    },
    "logit": (lambda f, a: f.logit(a.abs() / 3, 0.1) + (a.abs() / 3).logit(), A),
    **{
        f"{name} of two": (lambda f, a, b, name=name: getattr(f, name)(a, b.abs()), A, B)
        for name in "fmax fmin xlogy".split()
    },
    **{
        f"{name} of special numbers": (
            lambda f, a, name=name: getattr(f, name)(a, f.roll(a, 3)).detach(),
            SPECIAL,
        )
        for name in "fmax fmin xlogy".split()
    },
    "fmax of ties": (lambda f, a, b: f.fmax(a, b) * 2 + f.fmin(a, b), A, A[:1]),
    "xlogy of zeros": (lambda f, a: f.xlogy(a, a.detach().abs() + 0.5) + a.xlogy(2.0), ZEROS),
    "float_power": (lambda f, a: f.float_power(a.abs(), 2.5), A),
    "whole numbers to 2.0": (lambda f, a: a**2.0, INTS),
    "whole numbers to 1.0": (lambda f, a: a**1.0, INTS),
    "whole numbers to 2": (lambda f, a: a**2 + a**1, INTS),
    "float_power of whole numbers": (lambda f, a: f.float_power(a, 2) + f.float_power(2, a), INTS),
    "clamped on one side": (lambda f, a, b: f.clamp_min(a, 0.1) + a.clamp_max(b), A, B),
    "nansum of an axis": (lambda f, a: f.nansum(f.where(a > 1, math.nan, a), 1, True), A),
    "nansum in a type": (lambda f, a: a.nansum(0, dtype=f.float32), INTS),
    "nanmean of an axis": (lambda f, a: f.nanmean(f.where(a > 1, math.nan, a), 1, True), A),
    "nanmean in a type": (lambda f, a: a.nanmean(0, dtype=f.float64).detach(), A.astype("f4")),
    **{f"dist {p}": (lambda f, a, b, p=p: f.dist(a, b, p), A, B) for p in (1, 2, 3, math.inf)},
    "kthvalue": (lambda f, a: f.kthvalue(a, 2)[0] + a.kthvalue(4, -1)[0], A),
    "kthvalue, where": (lambda f, a: f.kthvalue(a, 3, 0, keepdim=True)[1], A),
    "inner": (lambda f, a, b: f.inner(a, b) * f.inner(a[0], b[1]) + a.inner(b[1]).sum(), A, B),
    "inner of a number": (lambda f, a: f.inner(a, a.sum()), A),
    "vdot": (lambda f, a, b: f.vdot(a, b) + a.vdot(b), V, V[::-1].copy()),
    "ger": (lambda f, a, b: f.ger(a, b), V, W),
    "kron": (lambda f, a, b: f.kron(a, b) + f.kron(a[None], b)[0], A, B),
    "kron of a vector": (lambda f, a, b: f.kron(a, b), V, B),
    "cross": (lambda f, a, b: f.cross(a, b) + a.cross(b, dim=0), A, B),
    "cross of one": (lambda f, a, b: f.cross(a.T, b[:, :1].T, -1), A, B),
    **{f"matrix_power {n}": (lambda f, a, n=n: f.matrix_power(a, n), SQUARE) for n in (1, 2, 5)},
    "matrix_power 0": (lambda f, a: a.matrix_power(0).detach(), SQUARE),
    "isin": (lambda f, a: f.isin(a, f.tensor([[0], [4]])), INTS),
    "isin, invert": (lambda f, a: f.isin(a, f.tensor([0, 4]), invert=True), INTS),
    "split_with_sizes": (lambda f, a: f.split_with_sizes(a, [1, 3], dim=1)[1], A),
    **{
        f"tensor_split {parts}": (
            lambda f, a, parts=parts: f.cat(
                [p * n for n, p in enumerate(f.tensor_split(a, parts, 1))]
            ),
            np.repeat(A, 3, 0).T,
        )
        for parts in (1, 3)
    },
    "tensor_split before": (lambda f, a: f.cat([*a.tensor_split([2, -1, 9]), a[:1]], 0), A),
    "hsplit": (lambda f, a: f.hsplit(a, 2)[1] + a.hsplit([2])[1] + a[0].hsplit(2)[0], A),
    "vsplit": (lambda f, a: f.vsplit(a, 3)[1] + a.vsplit([1, 2])[2], A),
    "turned round": (lambda f, a: f.flipud(a) + f.fliplr(a) * 2 + a.flipud().fliplr(), A),
    **{f"rot90 {k}": (lambda f, a, k=k: f.rot90(a, k), A) for k in (-1, 1, 2, 4)},
    "rot90 of axes": (lambda f, a: f.rot90(a, dims=[2, 0]), BATCH),
    **{f"diag_embed {n}": (lambda f, a, n=n: f.diag_embed(a, n), A) for n in (-2, 0, 1)},
    "diag_embed of axes": (lambda f, a: f.diag_embed(a, offset=1, dim1=0, dim2=2), A),
    "diag_embed of whole numbers": (lambda f, a: f.diag_embed(a, -1), INTS),
    "select_scatter": (lambda f, a, b: f.select_scatter(a, b[:, 0], 1, -1), A, B),
    "slice_scatter": (lambda f, a, b: f.slice_scatter(a, b[:2], start=1) + a, A, B),
    "slice_scatter, steps": (lambda f, a, b: a.slice_scatter(b[:, :2], 1, 0, 4, step=2), A, B),
    "diagonal by names": (lambda f, a: f.diagonal(a, offset=1, dim1=2, dim2=0), BATCH),
    "flatten by names": (lambda f, a: f.flatten(a, start_dim=1, end_dim=2), BATCH),
    "what is no number": (
        lambda f, a: f.nan_to_num(a / 0, nan=1.0, posinf=2.0, neginf=-3.0),
        INTS - 1.0,
    ),
    "new ones": (lambda f, a: a.new_ones(2, 3) + a.new_empty(2, 3).fill_(2) * a.element_size(), A),
    "topk by names": (lambda f, a: f.topk(a, k=2, dim=1, largest=False, sorted=True)[0], A),
    **{
        name: (lambda f, a, b, name=name: getattr(f, name)(a, b), A, B)
        for name in "divide multiply subtract true_divide".split()
    },
    **{
        name: (lambda f, a, b, name=name: getattr(a, name)(b), A, B)
        for name in "greater greater_equal less less_equal not_equal multiply divide".split()
    },
    "negative": (lambda f, a: f.negative(a) - a.negative() * 2, A),
    "concatenate": (lambda f, a, b: f.concatenate([a, b], 1), A, B),
    "moveaxis": (lambda f, a: f.moveaxis(a, 0, 2) + a.moveaxis(0, 2), BATCH),
    "swapdims": (lambda f, a: f.swapdims(a, 0, 2) + a.swapdims(0, 2), BATCH),
    "ravel": (lambda f, a: f.ravel(a), A),
    "unflatten": (lambda f, a: f.unflatten(a, 1, (2, -1)), A),
    "select": (lambda f, a: f.select(a, 1, -2), A),
    "swapaxes": (lambda f, a: f.swapaxes(a, 0, 2), BATCH),
    "broadcast_to": (lambda f, a: f.broadcast_to(a, (2, 3, 4)), A),
    "tile": (lambda f, a: f.tile(a, (2, 1, 3)), A),
    "repeat": (lambda f, a: a.repeat(2, 3, 1), A),
    "repeat_interleave": (lambda f, a: f.repeat_interleave(a, 3, 1), A),
    "repeat_interleave of all": (lambda f, a: f.repeat_interleave(a, 2), A),
    "concat": (lambda f, a, b: f.concat([a, b], 1), A, B),
    "vstack": (lambda f, a, b: f.vstack([a, b]), V, A),
    "hstack": (lambda f, a, b: f.hstack([a, b]), A, B),
    "hstack of vectors": (lambda f, a, b: f.hstack([a, b]), V, W),
    "diagonal": (lambda f, a: f.diagonal(a, 1, 0, 2), BATCH),
    "diagonal below": (lambda f, a: f.diagonal(a, -2), A),
    "diag": (lambda f, a: f.diag(a), V),
    "diag beside": (lambda f, a: f.diag(a, -2), V),
    "diag of a matrix": (lambda f, a: f.diag(a, 1), A),
    "take_along_dim": (lambda f, a, i: f.take_along_dim(a, i[:, None], 0), A, PLACES),
    "index_add": (lambda f, a, b, i: f.index_add(a, 0, i, b[:2], alpha=3), A, B, PLACES),
    "index_copy": (lambda f, a, b, i: f.index_copy(a, 0, i, b[:2]), A, B, PLACES),
    "index_fill": (lambda f, a, i: f.index_fill(a, 1, i, 7.0), A, PLACES),
    "scatter": (lambda f, a, b, i: f.scatter(a, 1, i.unsqueeze(0), b), A, B[:1, :2], PLACES),
    "scatter of a number": (lambda f, a, i: f.scatter(a, 0, i.unsqueeze(1), 2.5), A, PLACES),
    "diff between": (lambda f, a, b: f.diff(a, 2, 1, prepend=b, append=b[:, :1]), A, B),
    "diff": (lambda f, a: f.diff(a, 2, dim=1), A),
    "clip": (lambda f, a: f.clip(a, -1, 0.5), A),
    "absolute": (lambda f, a: f.absolute(a), A),
    "trunc": (lambda f, a: f.trunc(a), A),
    "fmod": (lambda f, a, b: f.fmod(a, b), A, B),
    "fmod of a number": (lambda f, a: f.fmod(a, -0.7), A),
    "log2": (lambda f, a: f.log2(a.abs()), A),
    "log10": (lambda f, a: f.log10(a.abs()), A),
    "tan": (lambda f, a: f.tan(a), A),
    "sinh": (lambda f, a: f.sinh(a), A),
    "cosh": (lambda f, a: f.cosh(a), A),
    "logaddexp": (lambda f, a, b: f.logaddexp(a * 100, b), A, B),
    "cumprod with zeros": (lambda f, a: f.cumprod(a, 1), ZEROS),
    "cumprod of whole numbers": (lambda f, a: f.cumprod(a, 0), INTS),
    "cumsum in a type": (lambda f, a: f.cumsum(a, 0, dtype=f.float32), INTS),
    "searchsorted right": (lambda f, v, a: f.searchsorted(v.sort()[0], a, right=True), V, A),
    "searchsorted ties": (lambda f, a: f.searchsorted(f.arange(4), a, side="right"), INTS),
    "searchsorted by a sorter": (lambda f, v, a: f.searchsorted(v, a, sorter=f.argsort(v)), V, A),
    "searchsorted strange": (
        lambda f, v: f.searchsorted(f.sort(v)[0], v),
        np.array([math.nan, math.inf, 1, -math.inf]),
    ),
    "bucketize": (lambda f, a: f.bucketize(a, f.tensor([-1.0, 0.0, 0.5], dtype=f.float64)), A),
    "signbit of whole numbers": (lambda f, a: f.signbit(a), INTS),
    "copysign of zeros": (lambda f, a, b: f.copysign(a, b), ZEROS, -ZEROS),
    "copysign of a number": (lambda f, a: f.copysign(a, -1.0), A),
    "hypot of zeros": (lambda f, a: f.hypot(a * 0 + 3, a), ZEROS),
    "atan2 of whole numbers": (lambda f, a: (f.atan2(a, f.flip(a, (0,))) * 99).round(), INTS),
    "arctan2": (lambda f, a, b: f.arctan2(a, b), A, B),
    "arcs": (
        lambda f, a: (
            f.arcsin(a / 3)
            + f.arccos(a / 3)
            + f.arctan(a)
            + f.arcsinh(a)
            + f.arctanh(a / 3)
            + f.arccosh(a * a + 1.1)
        ),
        A,
    ),
    "shifts": (lambda f, a: (a << 3) + (a >> 1) + (1 << (a & 7)) - (-100 >> (a & 3)), INTS),
    "expm1_": (lambda f, a: (a * 1e-6).expm1_(), A),
    "lerp": (lambda f, a, b: f.lerp(a, b, 0.3), A, B),
    "addcmul": (lambda f, a, b: f.addcmul(a, a, b, value=0.1), A, B),
    "addcdiv": (lambda f, a, b: f.addcdiv(a, a, b, value=0.1), A, B),
    "nan_to_num": (lambda f, a: f.nan_to_num(a / 0.0, 1.0, 2.0, 3.0), np.array([1.0, -1.0, 0.0])),
    "isclose": (lambda f, a, b: f.isclose(a, b, 0.5, 0.1), A, B),
    "isclose of bytes": (  # whose difference would wrap around
        lambda f, a, b: f.isclose(a, b, 0.0, 3.0),
        np.array([3, 5, 250, 4], "u1"),
        np.array([5, 3, 2, 4], "u1"),
    ),
    "logical_xor": (lambda f, a, b: f.logical_xor(a, b), INTS, INTS[::-1].copy()),
    "count_nonzero": (lambda f, a: f.count_nonzero(a, 1), INTS),
    "norm": (lambda f, a: f.norm(a), A),
    "norm 1": (lambda f, a: f.norm(a, 1, 1), A),
    "norm 3": (lambda f, a: f.norm(a, 3, 0, True), A),
    "norm inf": (lambda f, a: f.norm(a, math.inf, 1), A),
    "norm of zeros": (lambda f, a: f.norm(a * 0), A),
    "median": (lambda f, a: f.median(a), A),
    "median of an axis": (lambda f, a: f.median(a, 1)[0], A),
    "aminmax": (lambda f, a: f.aminmax(a)[1], A),
    "masked_select": (lambda f, a: f.masked_select(a, a > 0), A),
    "reshape": (lambda f, a: f.reshape(a, (2, -1)), A),
    "where it is": (lambda f, a: a[a > 0], A),
    "mT": (lambda f, a: a.mT, BATCH),
    "t": (lambda f, a: a.t(), A),
    "view_as": (lambda f, a, b: a.view_as(b.T), A, B),
    "expand_as": (lambda f, a, b: a[:1].expand_as(b), A, B),
    "type_as": (lambda f, a, i: a.type_as(i), A, PLACES),
}


def outcome(f, call, arrays):
    tensors = [f.tensor(one) for one in arrays]
    wanted = [
        tensor.requires_grad_()
        for tensor, one in zip(tensors, arrays, strict=True)
        if one.dtype.kind == "f"
    ]
    out = call(f, *tensors)
    found = [np.asarray(out.detach().numpy())]
    if out.requires_grad:
        weights = f.arange(out.numel()).to(f.float64).reshape(out.shape) + 1
        (out * weights).sum().backward()
        found += [np.asarray(one.grad.numpy()) for one in wanted if one.grad is not None]
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_they_are_torchs(engine, name):
    call, *arrays = CASES[name]
    theirs, ours = outcome(torch, call, arrays), outcome(gt, call, arrays)
    assert [(one.dtype, one.shape) for one in ours] == [(one.dtype, one.shape) for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "step",
    [
        "abs_()", "clamp_(-1, 1)", "exp_()", "floor_()", "neg_()", "pow_(2)", "relu_()",
        "round_()", "sigmoid_()", "sqrt_()", "square_()", "tanh_()", "tril_()", "trunc_()",
        "lerp_(a, 0.5)", "masked_fill_(a > 0, 3.0)", "index_fill_(0, i, 2.0)",
        "addcmul_(a, a, value=2)", "scatter_(0, i.unsqueeze(1), 5.0)", "index_add_(0, i, a[:2])",
        "addcdiv_(a, a + 9)", "ceil_()", "clip_(-1, 1)", "clamp_(-1, 1).acos_()",
        "clamp_(-1, 1).asin_()", "atan_()", "copysign_(-a)", "floor_divide_(0.7)",
        "remainder_(0.7)", "reciprocal_()", "sign_()", "triu_(1)", "abs_().log_()",
        "abs_().log1p_()", "abs_().rsqrt_()", "index_copy_(0, i, a[:2])", "expm1_()",
        "scatter_add_(0, i.unsqueeze(1), a)", "absolute_()", "abs_().add_(1).acosh_()",
        "addmm_(a, a.T @ x)", "clamp_(-1, 1).arccos_()", "clamp_(-1, 1).arcsin_()", "arctan_()",
        "asinh_()", "atan2_(a)", "div_(9).atanh_()", "clamp_max_(0.5)", "clamp_min_(0.5)", "cos_()",
        "cosh_()", "cumprod_(1)", "cumsum_(0)", "deg2rad_()", "divide_(a)", "eq_(a)", "erf_()",
        "exp2_()", "fix_()", "float_power_(2)", "fmod_(a)", "frac_()", "ge_(a)", "gt_(a)",
        "hypot_(a)", "le_(a)", "abs_().log10_()", "abs_().log2_()", "logical_and_(a)",
        "logical_not_()", "logical_or_(a)", "logical_xor_(a)", "abs_().div_(3).logit_()", "lt_(a)",
        "multiply_(a)", "nan_to_num_()", "ne_(a)", "negative_()", "nextafter_(a)", "rad2deg_()",
        "sgn_()", "sin_()", "sinc_()", "sinh_()", "subtract_(a)", "tan_()", "true_divide_(a)",
        "xlogy_(a.abs())", "long().bitwise_and_(i[0])", "long().bitwise_or_(i[0])",
        "long().bitwise_xor_(i[0])", "long().bitwise_not_()", "round_(decimals=1)",
        "div_(0.3, rounding_mode='trunc')", "select(1, 0).addmv_(a, a[0])",
        "unsqueeze(0).baddbmm_(a[None], (a.T @ x)[None])",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_in_place_they_change_the_tensor_and_give_it_back(engine, step):
    ends = []
    for f in (torch, gt):
        x, a, i = f.tensor(A), f.tensor(B), f.tensor(PLACES)
        got = eval(f"x.{step}")
        if not step.startswith(("long", "select", "unsqueeze")):  # of another tensor
            assert got is x
        ends.append(np.asarray(got.numpy()))
        assert a is not x and i is not x
    np.testing.assert_allclose(*ends, rtol=1e-9)


def test_what_depends_on_elements_is_looked_at(engine):
    x, theirs = gt.tensor(INTS), torch.tensor(INTS)
    assert gt.nonzero(x).tolist() == torch.nonzero(theirs).tolist()
    for one, other in zip(gt.nonzero(x, as_tuple=True), theirs.nonzero(as_tuple=True), strict=True):
        assert one.tolist() == other.tolist()
    for one, other in zip(
        gt.unique(x, return_inverse=True, return_counts=True),
        torch.unique(theirs, return_inverse=True, return_counts=True),
        strict=True,
    ):
        assert one.tolist() == other.tolist()
    assert x.nonzero().tolist() == theirs.nonzero().tolist()
    assert x.masked_select(x > 1).tolist() == theirs.masked_select(theirs > 1).tolist()
    assert x.unique().tolist() == theirs.unique().tolist()
    twice = np.array([[1, 0, 1], [2, 5, 2]])
    for axis in (0, 1):
        for one, other in zip(
            gt.tensor(twice).unique(True, True, True, axis),
            torch.unique(torch.tensor(twice), True, True, True, axis),
            strict=True,
        ):
            assert one.tolist() == other.tolist()
    assert x.equal(x.clone()) and x.float().allclose(x.float() + 1e-9)
    assert x.float().clamp(0, 1).bernoulli().tolist() == x.clamp(0, 1).tolist()
    assert x.float().abs().multinomial(3).shape == (3, 3)
    assert x.nelement() == 12 and x.ndimension() == 2 and x.itemsize == 8 and x.is_contiguous()
    assert gt.equal(x, x.clone()) and not gt.equal(x, x + 1) and not gt.equal(x, x[:1])
    assert gt.allclose(x.float(), x.float() + 1e-9) and not gt.allclose(x.float(), x.float() + 1)
    assert gt.is_tensor(x) and not gt.is_tensor(INTS) and gt.numel(x) == 12
    assert gt.is_floating_point(x.float()) and not gt.is_floating_point(x)
    assert gt.as_tensor(x) is x and gt.as_tensor(INTS).tolist() == INTS.tolist()
    for indexing in ("ij", "xy"):
        ours = gt.meshgrid(gt.tensor(V), gt.tensor(W), indexing=indexing)
        others = torch.meshgrid(torch.tensor(V), torch.tensor(W), indexing=indexing)
        for one, other in zip(ours, others, strict=True):
            assert one.tolist() == other.tolist()


def test_functions_of_tensors_methods_and_triangles_are_torchs(engine):
    agree(lambda f, x: f.clone(f.t(x) * f.detach(x).reshape_as(f.t(x))), A)
    whole = gt.tensor(A)
    gt.t(whole).zero_()  # a view
    gt.clone(whole).add_(1)
    gt.detach(whole)[0] = 2
    assert whole.sum().item() == 2 * A.shape[1]
    for name in ("tril_indices", "triu_indices"):
        for sizes in ((3, 4), (4, 2, 1), (2, 3, -1), (0, 3)):
            same(getattr(gt, name)(*sizes), getattr(torch, name)(*sizes))
        assert getattr(gt, name)(2, 2, dtype="int32").dtype.name == "int32"
        with pytest.raises(ValueError, match="give 0 or more"):
            getattr(gt, name)(-1, 2)


def test_limits_of_types_are_torchs(engine):
    for name in "float16 bfloat16 float32 float64".split():
        told, want = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
        for what in "bits eps max min tiny smallest_normal".split():
            assert getattr(told, what) == getattr(want, what), (name, what)
        assert told.resolution == pytest.approx(want.resolution)
    for name in "uint8 int8 int16 int32 int64".split():
        told, want = gt.iinfo(getattr(gt, name)), torch.iinfo(getattr(torch, name))
        assert (told.bits, told.max, told.min) == (want.bits, want.max, want.min)
    assert gt.finfo() == gt.finfo(gt.get_default_dtype()) == gt.finfo("float32")
    assert isinstance(gt.ones(2, 3).shape, gt.Size) and gt.Size([2, 3]) == gt.ones(2, 3).shape


def test_parts_are_views(engine):
    ends = []
    for f in (torch, gt):
        x = f.tensor(A)
        x.tensor_split(3, 1)[0].fill_(1)
        x.hsplit(2)[1].add_(1)
        x.vsplit(3)[1].mul_(2)
        x.split_with_sizes([1, 2])[1].sub_(3)
        ends.append(x.tolist())
    assert ends[0] == ends[1]


def test_nothing_is_recorded_in_inference_mode(engine):
    x = gt.ones(2, requires_grad=True)
    with gt.inference_mode():
        assert not (x * 2).requires_grad
    assert not gt.inference_mode()(lambda: x * 2)().requires_grad
    assert not gt.inference_mode(lambda: x * 2)().requires_grad
    with gt.inference_mode(mode=False):
        assert (x * 2).requires_grad
    with gt.autocast("cpu", dtype="bfloat16"):
        assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.bfloat16


def test_several_tensors_go_back_at_once(engine):
    grads = []
    for f in (torch, gt):
        x = f.tensor(A, requires_grad=True)
        f.autograd.backward([x.sum(), x * x], [None, f.tensor(B)], retain_graph=True)
        f.autograd.backward(x.prod())
        with f.autograd.no_grad(), f.autograd.enable_grad():
            (again,) = f.autograd.grad(x.sum(), x)
        grads.append([np.asarray(one.numpy()) for one in (x.grad, again)])
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-9)
    x = gt.ones(2, requires_grad=True)
    for call, words in (
        (lambda: gt.autograd.backward([gt.ones(2)]), "nothing that a tensor depends on"),
        (lambda: gt.autograd.backward([x * 1], [gt.ones(3)]), r"\(3,\) is not the tensor's \(2,\)"),
        (lambda: gt.autograd.backward([x * 1], []), "0 gradients for 1 tensor: give one for each"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()
    gt.autograd.backward(x.sum() * 2, create_graph=True)
    with gt.autograd.set_grad_enabled(False):
        assert x.grad.tolist() == [2, 2]


def test_random_choices_are_within_their_bounds_and_follow_their_weights(engine):
    gt.manual_seed(5)
    drawn = gt.randint(-2, 3, (2000,))
    assert drawn.dtype is gt.int64 and sorted(set(drawn.tolist())) == [-2, -1, 0, 1, 2]
    assert gt.randint(4, (3, 2)).shape == (3, 2)
    assert sorted(gt.randperm(50).tolist()) == list(range(50))
    assert gt.randperm(50).tolist() != gt.randperm(50).tolist()
    centred = gt.normal(gt.full((4000,), 3.0), 0.5)
    assert abs(centred.mean().item() - 3) < 0.1 and abs(centred.std().item() - 0.5) < 0.1
    assert gt.normal(0.0, 1.0, (2, 3)).shape == gt.normal(size=(2, 3)).shape == (2, 3)
    rows, row = gt.normal(gt.zeros(2, 1), gt.ones(3)), gt.normal(std=gt.ones(3))
    assert rows.shape == (2, 3) and len(set(rows.flatten().tolist())) == 6  # each its own
    assert row.shape == gt.normal(row).shape == (3,)
    chosen = gt.bernoulli(gt.full((4000,), 0.25))
    assert set(chosen.tolist()) == {0, 1} and abs(chosen.mean().item() - 0.25) < 0.05
    weights = gt.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0]])
    many = gt.multinomial(weights, 2000, replacement=True).data
    assert abs((many[0] == 2).mean() - 0.75) < 0.05 and (many[1] == 1).all()
    few = gt.multinomial(weights[0], 2).tolist()
    assert sorted(few) == [0, 2]


def test_a_tensor_is_drawn_anew_as_torch_draws_by_default(engine):
    x = gt.zeros(4000, 2)
    for draw, mean, deviation in (
        (x.uniform_, 0.5, 12**-0.5),
        (x.normal_, 0.0, 1.0),
        (lambda: x.uniform_(2.0), 1.5, 12**-0.5),
        (lambda: x.normal_(2.0), 2.0, 1.0),
    ):
        assert draw() is x
        assert abs(x.mean().item() - mean) < 0.1 and abs(x.std().item() - deviation) < 0.1


def quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: gt.mm(x, x[0]), ValueError, "mm: takes tensors of"),
        (lambda x: gt.bmm(x[None], gt.zeros(2, 4, 3)), ValueError, "equally many"),
        (lambda x: gt.einsum("ij,jk->ik", x), ValueError, "of 2 tensors, not of 1"),
        (lambda x: gt.einsum("ijk->i", x), ValueError, "does not fit the axes"),
        (lambda x: gt.einsum("ij->k", x), ValueError, "letters that say nothing"),
        (lambda x: gt.einsum("ij,ik->jk", x, x[:2]), ValueError, "'i' is 3 and 2"),
        (lambda x: gt.tensordot(x, x, 1), ValueError, "differ in axes"),
        (lambda x: gt.select(x, 0, 3), IndexError, "select: 3 lies not within"),
        (lambda x: gt.unflatten(x, 1, (3, -1)), ValueError, "do not make the 4"),
        (lambda x: gt.diag(gt.zeros(2, 2, 2)), ValueError, "a vector or a matrix"),
        (lambda x: gt.randint(3, 3, (2,)), ValueError, "low < high"),
        (lambda x: gt.multinomial(x, 9), ValueError, "cannot be drawn"),
        (lambda x: gt.norm(gt.tensor([1, 2])), TypeError, "needs floats"),
        (lambda x: gt.quantile(x, 1.5), ValueError, "q=1.5 must be a share, 0 to 1"),
        (lambda x: gt.quantile(x, gt.ones(2)), TypeError, r"q is float32 \(2,\), and must be"),
        (lambda x: gt.quantile(x[:0], 0.5), ValueError, "of no elements"),
        (lambda x: gt.quantile(x, 0.5, interpolation="cubic"), ValueError, "use linear, lower"),
        (lambda x: gt.quantile(gt.tensor([1]), 0.5), TypeError, "a quantile needs floats"),
        (lambda x: gt.trace(x[0]), ValueError, "takes a matrix"),
        (lambda x: gt.kthvalue(x, 5), ValueError, "k=5 lies not within 1 to 4"),
        (lambda x: gt.cross(x, x, 1), ValueError, "must have 3 elements"),
        (lambda x: gt.cross(x[:2], x[:2]), ValueError, "no axis of"),
        (lambda x: gt.matrix_power(x, 2), ValueError, r"takes square matrices.*\(3, 4\)"),
        (lambda x: gt.matrix_power(gt.tensor([[1]]), -2), TypeError, "must be float32 or float64"),
        (lambda x: gt.tensor_split(x, 0), ValueError, "0 parts: give 1 or more"),
        (lambda x: gt.tensor_split(x.sum(), 1), ValueError, "without axes has no parts"),
        (lambda x: gt.hsplit(x, 3), ValueError, "4 of axis 1 are not 3 equal parts"),
        (lambda x: gt.vsplit(x[0], 2), ValueError, "must have two axes"),
        (lambda x: gt.hsplit(x.sum(), 2), ValueError, "has no axis 1"),
        (lambda x: gt.frac(gt.tensor([1])), TypeError, "must be of floats"),
        (lambda x: gt.nanmean(gt.tensor([1])), TypeError, "a mean needs floats"),
        (lambda x: gt.cdist(x, x.T), ValueError, "vectors of one length"),
        (lambda x: gt.round(gt.tensor([15]), decimals=-1), TypeError, "decimals=-1 is for floats"),
        (lambda x: x.div(2, rounding_mode="up"), ValueError, "must be None, 'floor' or 'trunc'"),
        (lambda x: gt.where(x > 0, x), TypeError, "and what elsewhere"),
        (lambda x: gt.bincount(gt.tensor([1, -1])), ValueError, "numbers from 0 on"),
        (lambda x: gt.bincount(gt.tensor([1.0])), TypeError, "must be of integers"),
        (lambda x: gt.bincount(gt.tensor([1]), x), ValueError, r"weights \(3, 4\) are not for"),
        (lambda x: gt.linalg.norm(x, 2), ValueError, "'fro', 1, -1, inf or -inf: for others"),
        (lambda x: gt.linalg.norm(x[None], 1), ValueError, "takes one axis, or two"),
        (lambda x: gt.linalg.matrix_norm(x, dim=(1,)), ValueError, "must be two axes"),
        (lambda x: gt.linalg.inv(x), ValueError, r"inv: takes square matrices .* \(3, 4\)"),
        (lambda x: gt.linalg.det(x[0]), ValueError, r"det: takes square matrices .* \(4,\)"),
        (lambda x: gt.linalg.det(x.long() @ x.T.long()), TypeError, "det: the tensor is int64"),
        (lambda x: gt.linalg.solve(x @ x.T, x.T), ValueError, "in how many rows they have"),
        (lambda x: gt.linalg.solve(x @ x.T, x.sum()), ValueError, "B has no axes"),
        (lambda x: gt.linalg.solve(x @ x.T, x[:, 0], left=False), ValueError, "are vectors"),
        (lambda x: gt.linalg.inv(x * 0 @ x.T).data, gt.RemoteError, "inv: a matrix is singular"),
        (lambda x: gt.linalg.solve(x * 0 @ x.T, x).data, gt.RemoteError, "solve: a matrix is sin"),
        (lambda x: gt.linalg.svd(x), AttributeError, r"'svd': it has norms.*numpy.linalg"),
        (lambda x: gt.svd(x), AttributeError, r"'svd': help\(shmgpu\) lists"),
        (lambda x: gt.tensor([1, 2]).std(), TypeError, "std: .* int64, and a deviation needs"),
        (lambda x: gt.tensor([1, 2]).var(), TypeError, "var: .* int64, and a variance needs"),
        (lambda x: gt.movedim(x, (0, 1), (0, 0)), ValueError, "each once"),
        (lambda x: gt.movedim(x, (0, 1), 0), ValueError, "as many axes"),
        (lambda x: bool(x > 0), ValueError, r"12 elements .* \(3, 4\)\): use any\(\) or all\(\)"),
        (lambda x: gt.tensor(None), gt.BadParams, "made of NoneType: give numbers"),
        (lambda x: gt.tensor([1, 2**70]), gt.BadParams, "integers of more than 64 bits"),
        (lambda x: gt.tensor([[1], [1, 2]]), gt.BadParams, "of one length"),
        (lambda x: x + torch.ones(2).to_sparse(), gt.BadParams, r"to_dense\(\)"),
        (lambda x: x + quantized(), gt.BadParams, r"torch.qint8\) .* with dequantize\(\)"),
        (lambda x: x.repeat(2), ValueError, "says nothing of some"),
        (lambda x: gt.normal(), TypeError, "give size="),
        (lambda x: gt.addmm(gt.zeros(2, 3, 3), x, x.T), ValueError, "cannot be broadcast"),
    ],
)
def test_what_cannot_be_meant_is_refused(engine, call, error, says):
    with pytest.raises(error, match=says):
        call(gt.tensor(A))
