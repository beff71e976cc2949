"""The array API standard: each function, with each element type, gives what array-api-strict gives.

That one is a thin layer over NumPy which refuses whatever the standard does not promise.
"""

from __future__ import annotations

import inspect
import pathlib
import re
import warnings

import array_api_strict as strict
import numpy as np
import pages
import pytest

import shmgpu as gt
from shmgpu import array_api as xp
from shmgpu.codec.dtypes import DType

pytestmark = pytest.mark.operations

INF, NAN = np.inf, np.nan
FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
WHOLE = (*SIGNED, "uint8")
NUMBERS = (*WHOLE, *FLOATS)
BOOL = ("bool",)
EVERY = (*BOOL, *NUMBERS)
BITS = (*BOOL, *WHOLE)
PAGE = pathlib.Path(xp.__file__).with_name("README.md")


@pytest.fixture(autouse=True)
def _of_that_version():
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        strict.set_array_api_strict_flags(api_version=xp.__array_api_version__)
        yield
        strict.reset_array_api_strict_flags()


SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 0.5, -2.5, 1e-40, 3.5, -7.25]


def values(dtype, place=0):
    """Twelve elements, (3, 4), with what is special about the type; another order at each place."""
    if dtype == "bool":
        some = np.arange(12) % 3 == place % 3
    elif dtype in FLOATS:
        some = np.roll(np.array(SPECIAL), 5 * place)
    else:
        told = np.iinfo(dtype)
        some = np.array(
            [0, 1, 2, 3, 5, 7, 11, 100, told.max, told.max // 2, told.min, told.min + 1]
        )
        some = np.roll(some, 5 * place)
    return some.astype(dtype).reshape(3, 4)


def small(dtype, place=0):
    """Twelve elements, (3, 4), without what overflows."""
    some = np.roll(np.array([0, 1, 2, 3, 1, 0, 2, 1, 3, 2, 0, 1]), 5 * place)
    if dtype in (*FLOATS, *SIGNED):
        some = some - 1
    return some.astype(dtype).reshape(3, 4)


def cube(dtype, place=0):
    return np.concatenate([small(dtype, place), small(dtype, place + 1)]).reshape(2, 3, 4)


def one(name, kinds, make=values):
    return kinds, lambda f, x: getattr(f, name)(x), (make,)


def two(name, kinds, make=values):
    return kinds, lambda f, x, y: getattr(f, name)(x, y), (make, make)


def call(kinds, do, *makes):
    return kinds, do, makes or (small,)


# Functions: with which types, what is done, and what each argument is made of.
CASES = {
    **{
        name: one(name, FLOATS)
        for name in (
            "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal "
            "sin sinh sqrt tan tanh signbit"
        ).split()
    },
    **{
        name: one(name, NUMBERS)
        for name in (
            "abs negative positive square sign ceil floor round trunc isfinite isinf isnan"
        ).split()
    },
    "conj": one("conj", FLOATS),
    "real": one("real", FLOATS),
    "logical_not": one("logical_not", BOOL),
    "bitwise_invert": one("bitwise_invert", BITS),
    **{name: two(name, NUMBERS) for name in "add subtract multiply maximum minimum".split()},
    **{name: two(name, NUMBERS) for name in "less less_equal greater greater_equal".split()},
    **{name: two(name, EVERY) for name in "equal not_equal".split()},
    **{
        name: two(name, FLOATS)
        for name in "atan2 copysign divide hypot logaddexp nextafter".split()
    },
    **{name: two(name, BOOL) for name in "logical_and logical_or logical_xor".split()},
    **{name: two(name, BITS) for name in "bitwise_and bitwise_or bitwise_xor".split()},
    **{
        name: call(WHOLE, lambda f, x, y, name=name: getattr(f, name)(x, f.abs(y)), values, small)
        for name in "bitwise_left_shift bitwise_right_shift".split()
    },
    "pow": call(NUMBERS, lambda f, x, y: f.pow(x, f.abs(y)), small, small),
    "pow of floats": two("pow", FLOATS),
    "floor_divide": call(
        NUMBERS, lambda f, x, y: f.floor_divide(x, f.where(y == 0, f.ones_like(y), y)), small, small
    ),
    "remainder": call(
        NUMBERS, lambda f, x, y: f.remainder(x, f.where(y == 0, f.ones_like(y), y)), small, small
    ),
    "remainder of specials": call(
        FLOATS, lambda f, x, y: f.remainder(x, f.abs(y) + 1), values, small
    ),
    "clip": call(NUMBERS, lambda f, x: f.clip(x, 1, 2)),
    "clip below": call(NUMBERS, lambda f, x: f.clip(x, max=1)),
    "clip of neither": call(NUMBERS, lambda f, x: f.clip(x)),
    "clip by tensors": call(NUMBERS, lambda f, x, y: f.clip(x, y, y + 1), small, small),
    "clip by one": call(NUMBERS, lambda f, x, y: f.clip(x, min=y[0, :]), small, small),
    **{
        f"{name} and a number": call(NUMBERS, lambda f, x, name=name: getattr(f, name)(x, 2))
        for name in "add subtract multiply maximum minimum less equal floor_divide pow".split()
    },
    **{
        f"a number and {name}": call(NUMBERS, lambda f, x, name=name: getattr(f, name)(1, x))
        for name in "add subtract multiply maximum less not_equal".split()
    },
    "a float and a tensor": call(FLOATS, lambda f, x: f.atan2(0.5, x) + f.hypot(x, 1.5)),
    # reductions
    **{
        f"{name} over {label}": call(
            kinds,
            lambda f, x, name=name, options=options: getattr(f, name)(x, **options),
            cube,
        )
        for name, kinds in {
            "sum": (*SIGNED, *FLOATS), "prod": (*SIGNED, *FLOATS), "max": NUMBERS, "min": NUMBERS,
            "mean": FLOATS, "std": FLOATS, "var": FLOATS, "all": EVERY, "any": EVERY,
            "count_nonzero": EVERY,
        }.items()
        for label, options in {
            "all": {},
            "one": {"axis": 1},
            "the last": {"axis": -1, "keepdims": True},
            "two": {"axis": (0, 2)},
            "none": {"axis": ()},
            "all, kept": {"keepdims": True},
        }.items()
    },
    **{
        f"{name} of specials": call(
            FLOATS, lambda f, x, name=name: getattr(f, name)(x, axis=1), values
        )
        for name in "sum prod max min mean std var all any count_nonzero".split()
    },
    "sum in a type": call(WHOLE, lambda f, x: f.sum(x, axis=0, dtype=f.float64)),
    "sum of bytes in a type": call(("uint8",), lambda f, x: f.sum(x, dtype=f.int64)),
    "prod in a type": call((*WHOLE, *FLOATS), lambda f, x: f.prod(x, axis=0, dtype=f.float64)),
    "var corrected": call(FLOATS, lambda f, x: f.var(x, axis=1, correction=1)),
    "std corrected by half": call(FLOATS, lambda f, x: f.std(x, axis=1, correction=0.5)),
    "cumulative_sum": call((*SIGNED, *FLOATS), lambda f, x: f.cumulative_sum(x, axis=1)),
    "cumulative_sum of a vector": call((*SIGNED, *FLOATS), lambda f, x: f.cumulative_sum(x[0, :])),
    "cumulative_sum in a type": call(
        WHOLE, lambda f, x: f.cumulative_sum(x, axis=0, dtype=f.float64)
    ),
    "cumulative_sum from 0": call(
        (*SIGNED, *FLOATS), lambda f, x: f.cumulative_sum(x, axis=-1, include_initial=True)
    ),
    "cumulative_prod": call((*SIGNED, *FLOATS), lambda f, x: f.cumulative_prod(x, axis=1)),
    "cumulative_prod from 1": call(
        (*SIGNED, *FLOATS), lambda f, x: f.cumulative_prod(x, axis=0, include_initial=True)
    ),
    "diff": call(NUMBERS, lambda f, x: f.diff(x)),
    "diff of all": call(
        NUMBERS, lambda f, x, y: f.diff(x, axis=0, n=2, prepend=y, append=y), small, small
    ),
    # searching and order
    "argmax": call(NUMBERS, lambda f, x: f.argmax(x)),
    "argmax along": call(NUMBERS, lambda f, x: f.argmax(x, axis=1, keepdims=True)),
    "argmax kept": call(NUMBERS, lambda f, x: f.argmax(x, keepdims=True)),
    "argmin": call(NUMBERS, lambda f, x: f.argmin(x)),
    "argmin along": call(NUMBERS, lambda f, x: f.argmin(x, axis=0)),
    "nonzero": call(EVERY, lambda f, x: f.nonzero(x)),
    "searchsorted": call(
        NUMBERS, lambda f, x, y: f.searchsorted(f.sort(f.reshape(x, (12,))), y[0, :]), small, small
    ),
    "searchsorted right": call(
        NUMBERS,
        lambda f, x, y: f.searchsorted(f.sort(f.reshape(x, (12,))), y[0, :], side="right"),
        small,
        small,
    ),
    "searchsorted by places": call(
        NUMBERS,
        lambda f, x, y: f.searchsorted(
            f.reshape(x, (12,)), y[0, :], sorter=f.argsort(f.reshape(x, (12,)))
        ),
        small,
        small,
    ),
    "where": call(EVERY, lambda f, x, y: f.where(x == y, x, y), small, small),
    "where of a number": call(NUMBERS, lambda f, x: f.where(x == x, x, 3)),
    "sort": call(NUMBERS, lambda f, x: f.sort(x)),
    "sort of specials": call(NUMBERS, lambda f, x: f.sort(x, axis=0), values),
    "sort down": call(NUMBERS, lambda f, x: f.sort(x, axis=0, descending=True)),
    "argsort": call(NUMBERS, lambda f, x: f.argsort(x)),
    "argsort along": call(NUMBERS, lambda f, x: f.argsort(x, axis=0)),
    "argsort down": call(
        NUMBERS, lambda f, x: f.take_along_axis(x, f.argsort(x, axis=0, descending=True), axis=0)
    ),
    "unique_values": call(EVERY, lambda f, x: f.sort(f.astype(f.unique_values(x), f.float64))),
    "unique_counts": call(EVERY, lambda f, x: f.unique_counts(x)),
    "unique_inverse": call(EVERY, lambda f, x: f.unique_inverse(x)),
    "unique_all": call(EVERY, lambda f, x: f.unique_all(x)),
    # arranging
    "broadcast_to": call(EVERY, lambda f, x: f.broadcast_to(x, (2, 3, 4))),
    "broadcast_arrays": call(EVERY, lambda f, x: tuple(f.broadcast_arrays(x, x[:1, :], x[0, 0]))),
    "concat": call(EVERY, lambda f, x, y: f.concat([x, y[:1, :]]), small, small),
    "concat along": call(EVERY, lambda f, x, y: f.concat([x, y], axis=-1), small, small),
    "concat of vectors": call(
        EVERY, lambda f, x, y: f.concat([x, y[0, :]], axis=None), small, small
    ),
    "stack": call(EVERY, lambda f, x, y: f.stack([x, y]), small, small),
    "stack behind": call(EVERY, lambda f, x, y: f.stack([x, y], axis=-1), small, small),
    "unstack": call(EVERY, lambda f, x: f.unstack(x)),
    "unstack along": call(EVERY, lambda f, x: f.unstack(x, axis=-1)),
    "expand_dims": call(EVERY, lambda f, x: f.expand_dims(x, 0)),
    "expand_dims behind": call(EVERY, lambda f, x: f.expand_dims(x, axis=-1)),
    "squeeze": call(EVERY, lambda f, x: f.squeeze(f.expand_dims(x, axis=1), 1)),
    "squeeze of two": call(EVERY, lambda f, x: f.squeeze(x[:1, :1], (0, -1))),
    "flip": call(EVERY, lambda f, x: f.flip(x)),
    "flip along": call(EVERY, lambda f, x: f.flip(x, axis=1)),
    "moveaxis": call(EVERY, lambda f, x: f.moveaxis(x, 0, -1), cube),
    "moveaxis of two": call(EVERY, lambda f, x: f.moveaxis(x, (0, 1), (2, 0)), cube),
    "permute_dims": call(EVERY, lambda f, x: f.permute_dims(x, (2, 0, 1)), cube),
    "matrix_transpose": call(EVERY, lambda f, x: f.matrix_transpose(x), cube),
    "reshape": call(EVERY, lambda f, x: f.reshape(x, (4, -1), copy=True)),
    "roll": call(EVERY, lambda f, x: f.roll(x, 2)),
    "roll along": call(EVERY, lambda f, x: f.roll(x, (1, -1), axis=(0, 1))),
    "repeat": call(EVERY, lambda f, x: f.repeat(x, 2)),
    "repeat along": call(EVERY, lambda f, x: f.repeat(x, 3, axis=1)),
    "repeat by a tensor": call(EVERY, lambda f, x: f.repeat(x, f.asarray([1, 0, 2]), axis=0)),
    "tile": call(EVERY, lambda f, x: f.tile(x, (2, 1, 2))),
    "tile less": call(EVERY, lambda f, x: f.tile(x, (2,))),
    "take": call(EVERY, lambda f, x: f.take(x, f.asarray([2, 0, 0]), axis=0)),
    "take of a vector": call(EVERY, lambda f, x: f.take(x[0, :], f.asarray([3, 1]))),
    "take_along_axis": call(
        EVERY, lambda f, x: f.take_along_axis(x, f.asarray([[1, 0], [3, 3], [0, 2]]), axis=1)
    ),
    "tril": call(EVERY, lambda f, x: f.tril(x, k=1), cube),
    "triu": call(EVERY, lambda f, x: f.triu(x, k=-1), cube),
    "meshgrid": call(EVERY, lambda f, x, y: tuple(f.meshgrid(x[0, :], y[:, 0])), small, small),
    "meshgrid ij": call(
        EVERY, lambda f, x, y: tuple(f.meshgrid(x[0, :], y[:, 0], indexing="ij")), small, small
    ),
    # products
    "matmul": call(NUMBERS, lambda f, x, y: f.matmul(x, f.matrix_transpose(y)), cube, small),
    "matmul of vectors": call(NUMBERS, lambda f, x, y: f.matmul(x[0, :], y[1, :]), small, small),
    "tensordot": call(
        NUMBERS, lambda f, x, y: f.tensordot(x, f.matrix_transpose(y), axes=1), cube, small
    ),
    "tensordot of axes": call(
        NUMBERS, lambda f, x, y: f.tensordot(x, y, axes=((1, 2), (0, 1))), cube, small
    ),
    "vecdot": call(NUMBERS, lambda f, x, y: f.vecdot(x, y), cube, small),
    "vecdot along": call(NUMBERS, lambda f, x, y: f.vecdot(x, y, axis=-2), cube, small),
    # made like others, and casts
    "zeros_like": call(EVERY, lambda f, x: f.zeros_like(x)),
    "ones_like": call(EVERY, lambda f, x: f.ones_like(x)),
    "full_like": call(NUMBERS, lambda f, x: f.full_like(x, 1)),
    "empty_like": call(EVERY, lambda f, x: f.zeros_like(f.empty_like(x))),
    "asarray": call(EVERY, lambda f, x: f.asarray(x, copy=True)),
    **{
        f"astype {kind}": call(EVERY, lambda f, x, kind=kind: f.astype(x, getattr(f, kind)))
        for kind in NUMBERS
    },
    "astype bool": call(EVERY, lambda f, x: f.astype(x, f.bool)),
}  # fmt: skip

MADE = {
    "arange": lambda f: f.arange(5),
    "arange from": lambda f: f.arange(2, 11, 3),
    "arange down": lambda f: f.arange(5, 0, -2),
    "arange of none": lambda f: f.arange(5, 2),
    "arange of floats": lambda f: f.arange(0.0, 1.0, 0.25, dtype=f.float64),
    "arange in a type": lambda f: f.arange(4, dtype=f.int8),
    "asarray of a number": lambda f: f.asarray(3),
    "asarray of bools": lambda f: f.asarray([True, False]),
    "asarray in a type": lambda f: f.asarray([1, 2], dtype=f.float32),
    "empty": lambda f: f.zeros_like(f.empty((2, 3), dtype=f.float32)),  # any bits may lie there
    "eye": lambda f: f.eye(3, dtype=f.float32),
    "eye beside": lambda f: f.eye(3, 4, k=1, dtype=f.int8),
    "eye below": lambda f: f.eye(3, 2, k=-1, dtype=f.float64),
    "full of a whole number": lambda f: f.full((2,), 3),
    "full of a bool": lambda f: f.full(2, True),
    "full in a type": lambda f: f.full((2, 2), 1.5, dtype=f.float64),
    "linspace": lambda f: f.linspace(0, 1, 5, dtype=f.float64),
    "linspace without the end": lambda f: f.linspace(0, 1, 4, endpoint=False, dtype=f.float64),
    "linspace of none": lambda f: f.linspace(0, 1, 0, dtype=f.float64),
    "linspace of one": lambda f: f.linspace(2, 1, 1, endpoint=False, dtype=f.float32),
    "ones": lambda f: f.ones(3, dtype=f.int16),
    "zeros": lambda f: f.zeros((2, 0), dtype=f.bool),
    "from_dlpack": lambda f: f.from_dlpack(np.arange(3.0)),
    "meshgrid of nothing": lambda f: tuple(f.meshgrid()),
    "isdtype": lambda f: f.asarray(
        [
            f.isdtype(getattr(f, name), kind)
            for name in EVERY
            for kind in (
                "bool", "signed integer", "unsigned integer", "integral", "real floating",
                "complex floating", "numeric", getattr(f, name), ("bool", f.int8),
            )
        ]
    ),
    "can_cast": lambda f: f.asarray(
        [f.can_cast(getattr(f, a), getattr(f, b)) for a in EVERY for b in EVERY]
    ),
    "finfo": lambda f: f.asarray(
        [
            [float(getattr(f.finfo(getattr(f, name)), one)) for one in
             ("bits", "eps", "max", "min", "smallest_normal")]
            for name in FLOATS
        ],
        dtype=f.float64,
    ),
    "iinfo": lambda f: f.asarray(
        [[int(getattr(f.iinfo(getattr(f, name)), one)) for one in ("bits", "max", "min")]
         for name in WHOLE]
    ),
}  # fmt: skip
TOLERANCE = {"float32": 2e-6, "float64": 1e-12}


def same(ours, theirs):
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        if hasattr(theirs, "_fields"):
            assert ours._fields == theirs._fields
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
        return
    assert isinstance(ours, gt.Tensor)
    name = str(theirs.dtype).rpartition(".")[2].rstrip("'>")
    assert ours.dtype.name == name and ours.shape == theirs.shape
    want = np.asarray(theirs._array)
    tol = TOLERANCE.get(name, 0)
    np.testing.assert_allclose(ours.numpy(), want, rtol=tol, atol=tol / 10)
    if name in FLOATS:
        zeros = want == 0
        np.testing.assert_array_equal(np.signbit(ours.numpy())[zeros], np.signbit(want)[zeros])


def functions_of(names):
    return {name.split()[0] if name.split()[0] != "a" else name.split()[-1] for name in names}


PAIRS = [(name, dtype) for name, (kinds, *_) in CASES.items() for dtype in kinds]


@pytest.mark.parametrize(("name", "dtype"), PAIRS)
def test_a_function_gives_what_the_strict_namespace_gives(engine, name, dtype):
    _, do, makes = CASES[name]
    arrays = [make(dtype, place) for place, make in enumerate(makes)]
    theirs = do(strict, *[strict.asarray(a) for a in arrays])
    same(do(xp, *[xp.asarray(a) for a in arrays]), theirs)


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_no_tensor_is_what_the_strict_namespace_makes(engine, name):
    same(MADE[name](xp), MADE[name](strict))


@pytest.mark.parametrize("first", NUMBERS)
def test_types_promote_as_the_standard_says_whatever_the_shapes(engine, first):
    kinds = WHOLE if first in WHOLE else FLOATS
    for second in kinds:
        for shape in ((), (2,)):
            a, b = np.ones(2, first), np.ones(shape, second)
            for name in ("add", "equal", "maximum"):
                same(
                    getattr(xp, name)(xp.asarray(a), xp.asarray(b)),
                    getattr(strict, name)(strict.asarray(a), strict.asarray(b)),
                )
        both = [f.result_type(getattr(f, first), getattr(f, second)) for f in (xp, strict)]
        assert both[0].name == str(both[1]).rpartition(".")[2].rstrip("'>")
    assert xp.result_type(xp.asarray(np.ones(2, "int8")), 3) is xp.int8
    assert xp.result_type(xp.float32, 1.5) is xp.float32
    with pytest.raises(ValueError, match="one tensor or type"):
        xp.result_type(1, 2)


EMPTY = {
    "sum": lambda f, x: f.sum(x, axis=1), "prod": lambda f, x: f.prod(x, axis=1),
    "all": lambda f, x: f.all(x, axis=1), "any": lambda f, x: f.any(x),
    "concat": lambda f, x: f.concat([x, x], axis=1), "reshape": lambda f, x: f.reshape(x, (0, 3)),
    "sort": lambda f, x: f.sort(x), "cumulative_sum": lambda f, x: f.cumulative_sum(x, axis=1),
    "add": lambda f, x: f.add(x, x), "count_nonzero": lambda f, x: f.count_nonzero(x, axis=0),
    "flip": lambda f, x: f.flip(x), "matmul": lambda f, x: f.matmul(x, f.matrix_transpose(x)),
    "unique_values": lambda f, x: f.unique_values(x), "mean": lambda f, x: f.mean(x, axis=0),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_of_no_elements_it_is_the_same(engine, name):
    a = np.zeros((3, 0))
    same(EMPTY[name](xp, xp.asarray(a)), EMPTY[name](strict, strict.asarray(a)))


OPERATORS = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y, "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
    "-x": lambda x, y: -x, "+x": lambda x, y: +x, "abs": lambda x, y: abs(x),
    "1 -": lambda x, y: 1 - x, "2 *": lambda x, y: 2 * x, "+ 3": lambda x, y: x + 3,
    "@": lambda x, y: x @ y.mT, "T": lambda x, y: x.T, "mT": lambda x, y: x.mT,
    "slices": lambda x, y: x[1:, ::-1], "an ellipsis": lambda x, y: x[..., None, 1],
    "a mask": lambda x, y: x[x == y], "a row": lambda x, y: x[1, :],
}  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_does_the_same(engine, name, dtype):
    if dtype == "uint8" and name == "-x":
        pytest.skip("below 0")
    a, b = small(dtype), small(dtype, 1)
    do = OPERATORS[name]
    same(do(xp.asarray(a), xp.asarray(b)), do(strict.asarray(a), strict.asarray(b)))


def test_attributes_and_conversions_are_those_of_the_standard(engine):
    x = xp.asarray([[1.5, 2.0, 3.0]])
    assert (x.ndim, x.shape, x.size, x.dtype) == (2, (1, 3), 3, xp.float32)
    assert x.size() == (1, 3) and x.size(1) == x.size(dim=-1) == 3  # PyTorch's spelling, too
    assert x.device == xp.__array_namespace_info__().default_device()
    assert x.to_device("cpu") is x and x.to_device("cpu", stream=None) is x
    n = xp.asarray(2)
    assert (int(n), float(n), bool(n), complex(n), range(5)[n]) == (2, 2.0, True, 2 + 0j, 2)
    assert np.from_dlpack(x).tolist() == x.tolist()
    assert x.__dlpack_device__() == np.ones(1).__dlpack_device__()


def test_a_tensor_tells_its_namespace(engine):
    x = gt.ones(2)
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2022.12") is xp
    with pytest.raises(ValueError, match=r"2024\.12"):
        x.__array_namespace__(api_version="1999.1")
    info = xp.__array_namespace_info__()
    assert info.devices() == [info.default_device()]
    assert info.default_dtypes()["real floating"] is xp.float32
    assert set(info.dtypes()) == set(EVERY)
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", *FLOATS}
    assert info.capabilities()["boolean indexing"]


def standard():
    """The names of the standard: those of the strict namespace, less its own."""
    own = {"ArrayAPIStrictFlags", "Device", "ModuleType"}
    names = {n for n in dir(strict) if "flags" not in n and n not in own}
    return {n for n in names if not n.startswith("_")} | {"__array_namespace_info__"}


LATER = {"broadcast_shapes", "isin"}  # of a later version of the standard


def left_out():
    """The rows of the page's table."""
    text = pages.text_of(PAGE).partition("## What is left out")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def test_every_name_of_the_standard_is_there_or_on_the_page_with_the_reason():
    assert xp.__array_api_version__ == "2024.12"
    missing = standard() - LATER - {*dir(xp), "__array_namespace_info__"}
    assert missing <= left_out()
    assert not {name for name in left_out() if hasattr(xp, name)}
    assert {"linalg", "fft"} <= left_out()
    assert not set(dir(xp)) - standard()


def test_every_function_is_tried():
    tried = functions_of(CASES) | functions_of(MADE) | {"result_type"}
    functions = {n for n in dir(xp) if inspect.isfunction(getattr(xp, n)) and n[0] != "_"}
    assert functions <= tried | {"clip"}


def test_arguments_have_the_standard_s_names_and_kinds():
    for name in sorted(dir(xp)):
        ours, theirs = getattr(xp, name), getattr(strict, name, None)
        if not inspect.isfunction(ours) or not inspect.isfunction(theirs) or name[0] == "_":
            continue
        told = inspect.signature(theirs).parameters.values()
        expected = [(one.name, one.kind) for one in told]
        have = [(one.name, one.kind) for one in inspect.signature(ours).parameters.values()]
        assert have == expected, name


@pytest.mark.parametrize(
    ("do", "error", "says"),
    [
        (lambda x: xp.acos(xp.asarray(1)), TypeError, "int64, and must be of the kind real"),
        (lambda x: xp.add(1, 2), TypeError, "must be a tensor"),
        (lambda x: xp.sum(3), TypeError, "takes tensors, not int"),
        (lambda x: xp.mean(xp.asarray([1])), TypeError, "mean"),
        (lambda x: xp.var(xp.asarray([1])), TypeError, "must be of floats"),
        (lambda x: xp.logical_and(x, x), TypeError, "kind bool"),
        (lambda x: xp.squeeze(x, 0), ValueError, "is not of length 1"),
        (lambda x: xp.take(x, xp.asarray([0])), ValueError, "give axis="),
        (lambda x: xp.cumulative_sum(x), ValueError, "give axis="),
        (lambda x: xp.expand_dims(x, axis=5), IndexError, "out of range"),
        (lambda x: xp.vecdot(x, x, axis=0), ValueError, "count from the end"),
        (lambda x: xp.vecdot(x, x[:, :1]), ValueError, "differ along"),
        (lambda x: xp.moveaxis(x, (0, 0), (0, 1)), ValueError, "equally many axes, once"),
        (lambda x: xp.matrix_transpose(x[0, :]), ValueError, "two axes"),
        (lambda x: xp.nonzero(x[0, 0]), ValueError, "an axis at least"),
        (lambda x: xp.arange(1, 2, 0), ValueError, "leads nowhere"),
        (lambda x: xp.asarray([1], copy=False), ValueError, "is no tensor"),
        (lambda x: xp.asarray(x, dtype=xp.int8, copy=False), ValueError, "forbids"),
        (lambda x: xp.from_dlpack(np.ones(2), copy=False), ValueError, "copied into the arena"),
        (lambda x: xp.isdtype(xp.int8, "whole"), ValueError, "must be one of"),
        (lambda x: xp.finfo(xp.int8), TypeError, "use iinfo"),
        (lambda x: xp.iinfo(xp.float32), TypeError, "integer type"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(engine, do, error, says):
    with pytest.raises(error, match=says):
        do(xp.asarray(small("float32")))


def test_code_for_the_standard_computes_gradients_too(engine):
    def loss(x):
        f = x.__array_namespace__()
        return f.sum(f.square(f.std(x, axis=0)) + f.mean(f.exp(-f.abs(x)), axis=0))

    x = gt.tensor(np.random.default_rng(0).standard_normal((4, 3)), requires_grad=True)
    loss(x).backward()
    step = 1e-6
    moved = np.zeros((4, 3))
    moved[1, 2] = step
    up, down = (float(loss(xp.asarray(x.numpy() + sign * moved))) for sign in (1, -1))
    assert x.grad.numpy()[1, 2] == pytest.approx((up - down) / (2 * step), rel=1e-6)
    assert isinstance(xp.float32, DType)
