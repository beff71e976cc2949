"""Which calls of a batch run as one, whatever the dispatcher was told of them."""

from __future__ import annotations

import types

import numpy as np
import pytest
from fuzz import fuzz_blocks, make_corpus

from shmgpu import core
from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import TreeLayout
from shmgpu.helper import batch_executor

ROW, ARENA, ORIGIN = fuzz_blocks.ROW, fuzz_blocks.ARENA, fuzz_blocks.ORIGIN
BLOCKS, ROOMS = 4096, 32768  # where blocks and results of the calls lie in arena 0, 4 KiB each


@pytest.fixture
def target():
    found = fuzz_blocks.Target()
    found.executor.reader.refusals = 1 << 40  # which are not logged
    yield found


def outcomes(target, blocks, functions=None):
    """What becomes of calls that come as one batch."""
    works = []
    for number, block in enumerate(blocks):
        at = BLOCKS + 1024 * number
        target.pages[at : at + len(block)] = block
        function = functions[number] if functions else ROW
        works.append((function, ORIGIN + at, len(block), 0, 1, number))
    return target.executor.serve_batch(works)


def runs(target, blocks, functions=None):
    """How many rows each run had."""
    seen = []

    def body(helper, x, *rest, **named):
        seen.append((helper.calls, len(x)))
        return x

    for function in target.executor.functions.values():
        function.body = body
    assert all(status == core.OK for status, _ in outcomes(target, blocks, functions))
    return seen


def hint(*shape, dtype="float32"):
    return TreeLayout(b"A", [ArraySpec(by_name(dtype), shape)])


def call(*shape, dtype="f4", values=(), named=None, number=0, out=None, declared=False):
    return make_corpus.block(
        (np.zeros(shape, dtype), *values),
        named,
        hint=out,
        declared=declared,
        place=(0, 8192 + 2048 * number),
        room=(0, 4096),
    )


TWO = hint(3, 2)
PAIRS = {
    "alike": (call(3, 2), call(3, 2, number=1), [(2, 6)]),
    "with other rows": (call(3, 2), call(5, 2, number=1), [(2, 8)]),
    "with a row too many": (call(4, 2), call(5, 2, number=1), [(1, 4), (1, 5)]),
    "alike with a row too many": (call(5, 2), call(5, 2, number=1), [(1, 5), (1, 5)]),
    "of other columns": (call(3, 2), call(3, 1, number=1), [(1, 3), (1, 3)]),
    "of another type": (call(3, 2), call(3, 2, dtype="i4", number=1), [(1, 3), (1, 3)]),
    "with the same value": (
        call(3, 2, values=(7,)), call(4, 2, values=(7,), number=1), [(2, 7)],
    ),
    "with another value": (
        call(3, 2, values=(7,)), call(3, 2, values=(8,), number=1), [(1, 3), (1, 3)],
    ),
    "with a value of another type": (
        call(3, 2, values=(1,)), call(3, 2, values=(True,), number=1), [(1, 3), (1, 3)],
    ),
    "by a name": (
        call(3, 2, values=(7,)), call(3, 2, named={"k": 7}, number=1), [(1, 3), (1, 3)],
    ),
    "declared both": (
        call(3, 2, out=TWO, declared=True),
        call(4, 2, out=hint(4, 2), declared=True, number=1),
        [(2, 7)],
    ),
    "declared by one": (
        call(3, 2, out=TWO, declared=True), call(4, 2, number=1), [(1, 3), (1, 4)],
    ),
    "declared of other columns": (
        call(3, 2, out=TWO, declared=True),
        call(4, 2, out=hint(4, 1), declared=True, number=1),
        None,
    ),
    "expected otherwise": (
        call(3, 2, out=TWO), call(4, 2, out=hint(4, 2), number=1), [(2, 7)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_calls_run_as_one_that_differ_in_rows_and_addresses_alone(target, pair):
    one, other, wanted = PAIRS[pair]
    if wanted is None:  # of which the second has not the shape that it declared
        seen = []
        target.executor.functions[ROW].body = lambda helper, x: seen.append(len(x)) or x
        outcomes(target, [one, other])
        assert seen == [3, 4]
        return
    assert runs(target, [one, other]) == wanted
    assert runs(target, [other, one]) in (wanted, wanted[::-1])


def test_of_three_those_go_together_that_may(target):
    blocks = [call(3, 2), call(3, 1, number=1), call(4, 2, number=2), call(2, 2, number=3)]
    assert runs(target, blocks) == [(2, 7), (1, 3), (1, 2)]


def test_calls_of_two_functions_are_two_batches(target):
    other = types.SimpleNamespace(**vars(target.executor.functions[ROW]))
    target.executor.functions[2] = other
    blocks = [call(3, 2), call(3, 2, number=1)]
    assert runs(target, blocks, [ROW, 2]) == [(1, 3), (1, 3)]


def test_one_that_lies_costs_the_others_nothing(target):
    target.executor.functions[ROW].body = lambda helper, x: x
    blocks = [call(3, 2), b"nonsense", make_corpus.block((7,)), call(4, 2, number=1)]
    found = outcomes(target, blocks, [ROW, ROW, ROW, ROW])
    assert [status == core.OK for status, _ in found] == [True, False, False, True]
    assert found[1][0] == found[2][0] == core.EBAD_PARAMS
    assert outcomes(target, blocks[:1], [99]) == [(core.EBAD_FUNCTION, 0)]


def put(target, number, *rows):
    """The elements of a call's array."""
    data = np.array(rows, "f4")
    at = 8192 + 2048 * number
    target.pages[at : at + data.nbytes] = data.tobytes()


def got(target, count, number):
    at = ROOMS + 4096 * number
    return np.frombuffer(target.pages[at : at + 4 * count], "f4").tolist()


def expecting(number, rows, declared=False):
    """A call of so many rows whose result has a place of its own."""
    block = bytearray(call(rows, 1, number=number, out=hint(rows, 1), declared=declared))
    block[8:16] = (ORIGIN + ROOMS + 4096 * number).to_bytes(8, "little")
    return bytes(block)


@pytest.mark.parametrize("rows", [(2, 2), (1, 3)], ids=["alike", "unlike"])
@pytest.mark.parametrize("declared", [False, True])
def test_each_call_is_given_its_own_rows_where_it_expects_them(target, rows, declared):
    def body(helper, x):
        if not declared:
            return x + 1
        np.add(x, 1, out=helper.out)
        return None

    target.executor.functions[ROW].body = body
    for number, count in enumerate(rows):
        put(target, number, *([10.0 * number + row] for row in range(count)))
    blocks = [expecting(number, count, declared) for number, count in enumerate(rows)]
    assert outcomes(target, blocks) == [(core.OK, 0)] * 2
    for number, count in enumerate(rows):
        assert got(target, count, number) == [10 * number + row + 1 for row in range(count)]


@pytest.mark.parametrize(
    "result",
    [
        lambda x: x.astype("f8"),
        lambda x: x.reshape(-1),
        lambda x: np.concatenate([x, x], 1),
        lambda x: [x],
        lambda x: x[:-1],
        lambda x: np.float32(3),
        lambda x: "text",
    ],
    ids=["wider", "flat", "more columns", "a list", "a row less", "a scalar", "text"],
)
def test_what_is_not_expected_is_described_or_refused(target, result):
    seen = []
    target.executor.functions[ROW].body = lambda helper, x: result(x)
    for number in range(2):
        put(target, number, [number], [number])
        target.pages[ROOMS + 4096 * number : ROOMS + 4096 * number + 8] = bytes(8)
    blocks = []
    for number in range(2):
        block = bytearray(call(2, 1, number=number, out=hint(2, 1)))
        block[8:16] = (ORIGIN + ROOMS + 4096 * number).to_bytes(8, "little")
        block[16:24] = (4096).to_bytes(8, "little")
        blocks.append(bytes(block))
    for number, (status, size) in enumerate(outcomes(target, blocks)):
        begin = ROOMS + 4096 * number
        data = bytes(target.pages[begin : begin + size])
        found, values, at = layout.read_result(data, size, False)
        if status == core.OK:
            one = found.specs[0]
            dtype = one.dtype.numpy
            count = one.nbytes // dtype.itemsize
            seen.append(np.frombuffer(data, dtype, count, at).tolist())
            assert one.shape[0] == 2
        else:
            assert status == core.EREMOTE and "row" in values[1]
    made = np.array([[0], [0], [1], [1]], "f4")
    wanted = result(made)
    wanted = wanted[0] if isinstance(wanted, list) else wanted
    if getattr(wanted, "shape", ())[:1] == (4,):
        assert seen == [wanted[:2].ravel().tolist(), wanted[2:].ravel().tolist()]
    else:
        assert seen == []


def test_what_a_function_that_mutates_writes_goes_back_to_each_caller(target):
    target.executor.functions[ROW].mutates = True

    def body(helper, x):
        x += 1

    target.executor.functions[ROW].body = body
    for number, count in enumerate((1, 3)):
        put(target, number, *([10.0 * number + row] for row in range(count)))
    statuses = outcomes(target, [call(1, 1, number=0), call(3, 1, number=1)])
    assert [status for status, _ in statuses] == [core.EREMOTE] * 2  # it returned no rows
    assert np.frombuffer(target.pages[8192:8196], "f4").tolist() == [1]
    assert np.frombuffer(target.pages[10240:10252], "f4").tolist() == [11, 12, 13]


def test_an_exception_is_each_calls_own_and_what_was_left_for_later_is_dropped(target):
    def body(helper, x):
        helper.afterwards(lambda: None)
        raise ValueError("no")

    target.executor.functions[ROW].body = body
    found = outcomes(target, [call(3, 2), call(3, 2, number=1)])
    assert [status for status, _ in found] == [core.EREMOTE] * 2
    assert not target.executor.helper.later and target.executor.helper.calls == 1
    assert target.executor.helper.out is None


@pytest.fixture
def one_by_one(target, monkeypatch):
    """Running them apart is found to be faster; what was measured."""
    measured = []
    strategy = types.SimpleNamespace(
        is_joined=lambda: False, was_apart=lambda calls, took: measured.append((calls, took >= 0))
    )
    monkeypatch.setattr(batch_executor, "LARGE_BYTES", 1)
    monkeypatch.setattr(target.executor._policy, "strategy", lambda *_: strategy)
    return measured


def test_calls_that_run_one_by_one_have_their_callers(target, one_by_one):
    ran = []

    def body(helper, x):
        ran.append((helper.caller, helper.calls, len(x)))
        return x

    target.executor.functions[ROW].body = body
    found = outcomes(target, [call(3, 2), call(1, 2, number=1)])
    assert [status for status, _ in found] == [core.OK] * 2
    assert ran == [((0, 1), 1, 3), ((0, 1), 1, 1)] and one_by_one == [(2, True)]


def test_one_that_ends_the_helper_ends_it_before_those_behind_it(target, one_by_one):
    ran = []

    def body(helper, x):
        ran.append(len(x))
        raise SystemExit(3)

    target.executor.functions[ROW].body = body
    found = outcomes(target, [call(3, 2), call(1, 2, number=1)])
    assert [status for status, _ in found] == [core.EREMOTE] * 2
    assert target.executor.broken and ran == [3]


@pytest.mark.parametrize(
    ("watches", "mutates", "status"),
    [(True, False, core.EREMOTE), (True, True, core.OK), (False, False, core.OK)],
)
def test_a_write_to_what_is_only_read_is_every_callers_error(
    target, monkeypatch, watches, mutates, status
):
    class Check:
        def __init__(self, leaves):
            checked.append(len(leaves))

        def refuse_writes(self, function):
            raise ValueError(f"{function.name} wrote")

    checked = []
    monkeypatch.setattr(batch_executor, "MutationCheck", Check)
    target.executor.functions[ROW].body = lambda helper, x: x
    target.executor.functions[ROW].mutates = mutates
    target.executor.watches = watches
    found = outcomes(target, [call(3, 2), call(1, 2, number=1)])
    assert [one for one, _ in found] == [status] * 2
    assert checked == ([1] if status else [])


def test_what_cannot_be_written_for_one_caller_is_that_callers_error(target, monkeypatch):
    target.executor.functions[ROW].body = lambda helper, x: x * 2.0
    put, written = target.executor.writer.put, []

    def fails_once(*told):
        written.append(told)
        if len(written) == 1:
            raise MemoryError
        return put(*told)

    monkeypatch.setattr(target.executor.writer, "put", fails_once)
    found = outcomes(target, [call(3, 2), call(1, 2, number=1)])
    assert [status for status, _ in found] == [core.EREMOTE, core.OK] and len(written) == 2
