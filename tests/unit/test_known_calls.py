"""A call that C runs in a helper ends as it does where the executor runs it, to the last byte."""

from __future__ import annotations

import types
from collections import OrderedDict

import numpy as np
import pytest
from fuzz import fuzz_blocks, make_corpus

from shmgpu import core
from shmgpu.child import quick
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import TreeLayout
from shmgpu.codec.pytree import flatten
from shmgpu.helper import known

pytestmark = pytest.mark.skipif(bool(quick.why_not()), reason=f"not used: {quick.why_not()}")

FIRST, RESULT = 8192, 16384  # where arguments lie, and where results go
X = np.arange(4, dtype="float32") + 1


def promised(tree):
    """The layout of a result of such arrays."""
    flat = flatten(tree, lambda leaf: isinstance(leaf, np.ndarray))
    specs = [ArraySpec(by_name(str(one.dtype)), one.shape) for one in flat.arrays]
    return TreeLayout(bytes(flat.structure), specs)


ONE = promised(X)
PAIR = promised((X, X))
NAMED = promised({"b": X, "a": [X, X]})


class Refuses(Exception):
    pass


def refuses(helper, *_):
    raise Refuses("no")


def shares(helper, x):
    helper.out[:] = x
    return helper.out


def writes(helper, x):
    helper.out[...] = x * 2


def turns(helper, x):
    helper.out[...] = x
    return helper.out[::-1]


def swaps(helper, x):
    first, second = helper.out
    first[...], second[...] = x, x * 2
    return second, first


def in_room(helper, x):
    return np.add(x, 1, out=helper.room)


# What a call passes, what it promises, what its function is, and whether C is to put its result.
CALLS = {
    "one": (((X,), {}), ONE, lambda h, x: x + 1, True),
    "in room": (((X,), {}), ONE, in_room, True),
    "two": (((X, X), {}), ONE, lambda h, x, y: x + y, True),
    "pair": (((X,), {}), PAIR, lambda h, x: (x + 1, x), True),
    "by name": (((X,), {"k": 3}), ONE, lambda h, x, k: x * k, True),
    "between": (((1, X, 2.5), {"y": X}), ONE, lambda h, a, x, b, y: a * x + b * y, True),
    "nested": (
        (([X], (X, "t")), {"c": {"d": X}}),
        NAMED,
        lambda h, xs, p, c: {"b": xs[0] + c["d"], "a": [p[0], p[0] * 2]},
        True,
    ),
    "number": (((X,), {}), None, lambda h, x: float(x.sum()), True),
    "whole": (((X,), {}), None, lambda h, x: -7, True),
    "none": (((X,), {}), None, lambda h, x: None, True),
    "true": (((X,), {}), ONE, lambda h, x: True, True),
    "no arrays": (((1, "a"), {}), None, lambda h, a, b: a, True),
    "written": (((X,), {}), ONE, writes, True),
    "shares": (((X,), {}), ONE, shares, True),
    "large int": (((X,), {}), None, lambda h, x: 1 << 70, False),
    "text": (((X,), {}), None, lambda h, x: "text", False),
    "NumPy's number": (((X,), {}), None, lambda h, x: x[0], False),
    "arrays unpromised": (((X,), {}), None, lambda h, x: x + 1, False),
    "other shape": (((X,), {}), ONE, lambda h, x: x[:2] + 1, False),
    "other dtype": (((X,), {}), ONE, lambda h, x: x.astype("float64"), False),
    "other order": (((X,), {}), ONE, lambda h, x: x[::-1], False),
    "other keys": (((X,), {}), NAMED, lambda h, x: {"b": x, "c": [x, x]}, False),
    "order of keys": (((X,), {}), NAMED, lambda h, x: {"a": [x, x], "b": x}, False),
    "a list for a tuple": (((X,), {}), PAIR, lambda h, x: [x, x], False),
    "one more": (((X,), {}), PAIR, lambda h, x: (x, x, x), False),
    "a subclass": (((X,), {}), ONE, lambda h, x: x.view(np.matrix), False),
    "turned": (((X,), {}), ONE, turns, False),
    "swapped": (((X,), {}), PAIR, swaps, False),
    "raises": (((X,), {}), ONE, refuses, False),
}
DECLARED = {"written", "shares", "turned", "swapped"}


def served(name, batch=0):
    """A target that serves such a call, and its block."""
    (args, named), hint, body, _ = CALLS[name]
    target = fuzz_blocks.Target()
    function = target.executor.functions[fuzz_blocks.ROW]
    function.body, function.batch_max_rows = body, batch
    block = make_corpus.block(args, named, hint=hint, declared=name in DECLARED)
    for at in range(4):
        place = FIRST + 64 * at
        target.pages[place : place + X.nbytes] = (X * (at + 1)).tobytes()
    return target, block


def known_of(target, block):
    """What C would run it by, after it came twice."""
    executor = target.executor
    for _ in range(2):
        executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)
    function = executor.functions[fuzz_blocks.ROW]
    return known.known_call(function, executor.reader.decoded[block], executor.views)


def run(name, is_known):
    """The same call three times: how each ended, how many of them Python put the result of."""
    target, block = served(name)
    executor, helper = target.executor, target.executor.helper
    made = known_of(target, block)
    put, ends = executor.writer.put, []
    executor.writer.put = lambda *told: ends.append("put") or put(*told)
    for _ in range(3):
        executor.reader.known.clear()
        if is_known:
            executor.reader.known[block] = made
        target.pages[RESULT : RESULT + 4096] = bytes(4096)
        outcome = executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)
        ends.append((outcome, bytes(target.pages[RESULT : RESULT + 4096])))
        assert helper.out is None and (helper.room is None) == (
            CALLS[name][1] is not ONE or name in DECLARED
        )
    return [one for one in ends if one != "put"], ends.count("put")


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_as_where_python_runs_it(name):
    found, by_python = run(name, True)
    wanted, _ = run(name, False)
    assert found == wanted
    if wanted[0][0][0] == core.OK:
        assert by_python == (0 if CALLS[name][3] else 3)


def test_the_block_of_another_child_is_read_anew():
    target, block = served("pair")
    assert known_of(target, block).slot == 0
    executor = target.executor
    assert executor.reader.known and executor.serve(fuzz_blocks.ROW, block, 0, 1, 1) == (core.OK, 0)
    status, _ = executor.serve(fuzz_blocks.ROW, block, 1, 1, 1)
    assert status == core.EBAD_PARAMS


@pytest.mark.parametrize("batch", [0, 8])
def test_a_batched_function_that_gives_other_rows_is_refused_by_itself_too(batch):
    target, block = served("number", batch)
    executor = target.executor
    for _ in range(2):
        status, _ = executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)
        assert status == (core.EREMOTE if batch else core.OK)


def test_what_a_call_left_for_later_is_dropped_where_it_raises():
    target, block = served("pair")
    executor, later = target.executor, target.executor.helper.later

    def body(helper, x):
        helper.afterwards(print)
        raise Refuses("no")

    executor.functions[fuzz_blocks.ROW].body = body
    known_of(target, block)
    later.append("an earlier one's")
    assert executor.reader.known
    assert executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)[0] == core.EREMOTE
    assert later == ["an earlier one's"]


@pytest.mark.parametrize(
    ("tree", "is_made"),
    [
        ([X] * known.MAX_ARRAYS, True),
        ([X] * (known.MAX_ARRAYS + 1), False),
        ({1: X}, False),
        (OrderedDict(x=X), False),
    ],
    ids=["16 arrays", "17 arrays", "a number for a key", "an OrderedDict"],
)
def test_what_c_does_not_know_is_left_to_python(tree, is_made):
    target, _ = served("pair")
    target.executor.functions[fuzz_blocks.ROW].body = lambda helper, x: tree
    block = make_corpus.block((X,), hint=promised(tree))
    assert (known_of(target, block) is not None) == is_made
    assert target.executor.serve(fuzz_blocks.ROW, block, 0, 1, 1) == (core.OK, 0)


def test_a_result_that_does_not_fit_waits_for_a_larger_buffer():
    target, _ = served("number")
    block = make_corpus.block((X,), room=(0, 20))
    known_of(target, block)
    assert target.executor.reader.known
    status, needed = target.executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)
    assert (status, needed) == (core.ENEEDS_SPACE, 26)


def test_the_same_block_of_another_function_is_that_ones():
    target, block = served("number")
    executor, other = target.executor, fuzz_blocks.ROW + 1
    known_of(target, block)
    function = vars(executor.functions[fuzz_blocks.ROW])
    more = {"body": lambda h, x: "text", "mutates": True}
    executor.functions[other] = types.SimpleNamespace(**(function | more))
    assert executor.serve(other, block, 0, 1, 1)[0] == core.OK
    kept = bytes(target.pages[RESULT : RESULT + 64])
    assert executor.serve(other, block, 0, 1, 1)[0] == core.OK
    assert bytes(target.pages[RESULT : RESULT + 64]) == kept


def test_a_call_that_comes_once_costs_nothing_for_the_next():
    target, block = served("pair")
    executor = target.executor
    executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)
    assert block in executor.reader.decoded and not executor.reader.known


def test_promised_shapes_that_numpy_refuses_end_the_call_and_nothing_else():
    target, _ = served("pair")
    refused = ArraySpec(by_name("float32"), (0, 1 << 46, 1 << 46))
    hint = TreeLayout(PAIR.tree.structure, [refused, refused])
    block = make_corpus.block((X,), hint=hint)
    for _ in range(3):
        assert target.executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)[0] == core.EREMOTE
    assert target.executor.reader.known == {block: None}


@pytest.mark.parametrize(
    ("form", "result"),
    [(0, X), ((0,), (X,)), ((0, 0), (X, X)), ({"a": 0}, {"a": X}), ((1, 0), (X, X))],
    ids=str,
)
def test_a_promise_of_more_arrays_than_its_form_has_is_left_to_python(form, result):
    """Whoever wrote the block wrote the promise."""
    rooms = (np.zeros(4, "float32"), np.zeros(4, "float32"))
    run = quick.native.QuickKnown(
        1,
        0,
        lambda helper: result,
        (0,),
        None,
        (),
        (),
        form,
        rooms,
        tuple(one.view for one in rooms),
        (16, 16),
        0,
        0,
        False,
        True,
        False,
    )
    assert run.run(types.SimpleNamespace()) is result
    assert not any(one.any() for one in rooms)
