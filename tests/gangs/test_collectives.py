"""Collectives of real helpers, asked for by a child: values held against NumPy's."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gangs.members import ask, torch_members

import shmgpu
from shmgpu import core
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name, of_numpy
from shmgpu.collectives.operations import CollectiveSpec

HELPERS = 4


@pytest.fixture(scope="module", autouse=True)
def broker():
    with shmgpu.init(helpers=HELPERS, devices="cpu", arena="64MiB"):
        yield


def given_to(size, shape, dtype=np.float32, seed=0):
    """An array for each rank, in the arena."""
    generator = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        array = shmgpu.arena.zeros(shape, dtype)
        if np.dtype(dtype).kind == "f":
            array[...] = generator.standard_normal(shape)
        else:
            array[...] = generator.integers(0, 50, shape)
        found.append([array])
    return found


def spec_of(array):
    return ArraySpec(of_numpy(array.dtype), array.shape)


def reduced(arrays, reduction):
    """In the order of ranks, as promised; 16-bit floats in float32."""
    wide = [array.astype(np.float32) if array.dtype.itemsize == 2 else array for array in arrays]
    result = wide[0].copy()
    for array in wide[1:]:
        result = {
            "sum": np.add,
            "mean": np.add,
            "prod": np.multiply,
            "max": np.maximum,
            "min": np.minimum,
        }[reduction](result, array)
    if reduction == "mean":
        result = result / result.dtype.type(len(arrays))
    return result.astype(arrays[0].dtype)


def test_what_can_be_asked_for_has_a_name_and_how_many_there_are_has_none():
    assert set(core.REDUCTIONS) == {"sum", "mean", "max", "min", "prod"}
    assert set(core.COLLECTIVES) == {
        *("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        *("broadcast", "scatter", "gather", "send", "recv"),
    }
    assert set(core.COLLECTIVE_DTYPES) == {
        *("bytes", "float16", "bfloat16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    }


def test_each_member_knows_its_rank_and_runs_in_a_process_of_its_own():
    out = [ArraySpec(by_name("int64"), (4,))]
    rows = np.array([own[0] for own in ask([0, 1, 3], {"step": "who"}, out=out)])
    assert rows[:, 0].tolist() == [0, 1, 2]
    assert set(rows[:, 1]) == set(rows[:, 2]) == {3}
    assert len(set(rows[:, 3])) == 3
    assert os.getpid() not in rows[:, 3]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", "min", "prod"])
def test_an_all_reduce_gives_every_member_the_same_bits_as_a_loop_over_ranks(size, reduction):
    for dtype in (np.float32, np.float64, np.float16):
        given = given_to(size, (37, 11), dtype)
        out = [spec_of(given[0][0])]
        task = {"step": "collective", "kind": "all_reduce", "reduction": reduction}
        expected = reduced([own[0] for own in given], reduction)
        for own in ask(range(size), task, given, out):
            np.testing.assert_array_equal(own[0], expected)


@pytest.mark.parametrize("algorithm", ["auto", "naive", "ring", "all_to_all"])
@pytest.mark.parametrize("count", [0, 1, 1000, 300_000])
def test_every_algorithm_gives_the_same_bits_and_is_counted(algorithm, count):
    given = given_to(3, (count,), np.float32, seed=count)
    before = shmgpu.stats()["helpers"]
    task = {"step": "collective", "kind": "all_reduce", "algorithm": algorithm}
    for own in ask([0, 1, 2], task, given, [spec_of(given[0][0])]):
        np.testing.assert_array_equal(own[0], reduced([own[0] for own in given], "sum"))
    rows = shmgpu.stats()["helpers"]
    used = algorithm if algorithm != "auto" else ("naive" if count <= 8192 else "all_to_all")
    for helper in range(3):
        for name in ("naive", "ring", "all_to_all"):
            counted = rows[helper][f"{name}_all_reduces"] - before[helper][f"{name}_all_reduces"]
            assert counted == (name == used)
        assert rows[helper]["collectives"] - before[helper]["collectives"] == 1


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
def test_integers_keep_their_type_and_wrap(dtype):
    given = given_to(4, (1001,), np.dtype(dtype))
    task = {"step": "collective", "kind": "all_reduce", "times": 3}
    expected = given[0][0] + given[1][0] + given[2][0] + given[3][0]
    for _ in range(2):
        expected = expected * np.dtype(dtype).type(4)
    for own in ask(range(4), task, given, [spec_of(given[0][0])]):
        assert own[0].dtype == dtype
        np.testing.assert_array_equal(own[0], expected)


def test_bytes_are_counted_as_the_operation_defines_them():
    given = given_to(3, (3000,), np.float32)
    before = shmgpu.stats()["helpers"]
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        ask([0, 1, 2], {"step": "collective", "kind": kind}, given, [spec_of(given[0][0])])
    after = shmgpu.stats()["helpers"]
    moved = [after[h]["collective_bytes"] - before[h]["collective_bytes"] for h in range(3)]
    n = 3000 * 4
    each = 4 * n // 3 + 2 * n + 2 * n // 3 + 2 * n // 3
    assert moved == [each, each + n, each + n]  # helper 0 is the root of the broadcast


@pytest.mark.parametrize("kind", ["all_reduce", "broadcast", "all_gather"])
def test_tensors_of_torch_are_exchanged_as_arrays_are(kind):
    torch = pytest.importorskip("torch")
    given = given_to(2, (1000,), np.float32)
    out = [spec_of(given[0][0])]
    task = {"step": "torch", "kind": kind}
    results = ask([1, 2], task, given, out, function=torch_members)
    first, second = given[0][0], given[1][0]
    expected = {
        "all_reduce": [first + second] * 2,
        "broadcast": [first] * 2,
        "all_gather": [np.concatenate([first, second])[:1000]] * 2,
    }[kind]
    for own, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(torch.from_numpy(own[0]).numpy(), wanted)


def test_a_result_that_does_not_fit_is_an_error_and_waits_for_nobody():
    with pytest.raises(shmgpu.ShmError, match="smaller than the result"):
        ask([0, 1], {"step": "too much"}, out=[ArraySpec(by_name("float64"), (8,))])
    given = given_to(2, (10,))
    ask([0, 1], {"step": "collective", "kind": "all_reduce"}, given, [spec_of(given[0][0])])


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"kind": "scan"}, "'scan' is no collective: use one of .*'all_gather'"),
        ({"reduction": "median"}, "'median' is no reduction: use one of .*'max'"),
        ({"algorithm": "tree"}, "'tree' is no algorithm: use one of .*'ring'"),
        ({"counts": (3, -1)}, "moves 0 elements or more, not -1"),
        ({"kind": "all_to_all", "counts": (-1,), "received": (-2,)}, "moves 0 elements or more"),
        ({"dtype": by_name("complex64")}, "elements of complex64 have no sum"),
        ({"dtype": by_name("bool")}, "elements of bool have no sum"),
        ({"dtype": by_name("int8"), "reduction": "mean"}, "a mean of int8 would be rounded"),
    ],
)
def test_what_is_no_collective_is_refused_where_it_is_described(told, sentence):
    with pytest.raises(shmgpu.BadParams, match=sentence):
        CollectiveSpec(**{"kind": "all_reduce", "counts": (1,), **told})


def test_what_a_collective_cannot_do_is_said_in_a_sentence():
    given = given_to(2, (10,), np.int32)
    task = {"step": "collective", "kind": "all_reduce", "reduction": "mean"}
    with pytest.raises(shmgpu.RemoteError, match="a mean of int32 would be rounded"):
        ask([0, 1], task, given, [spec_of(given[0][0])])
    with pytest.raises(shmgpu.RemoteError, match="'median' is no reduction"):
        ask([0, 1], {**task, "reduction": "median"}, given, [spec_of(given[0][0])])
