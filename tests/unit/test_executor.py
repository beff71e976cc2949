"""What a helper answers of calls that end otherwise than with a result."""

from __future__ import annotations

import collections
import types

import numpy as np
import pytest
from fuzz import fuzz_blocks, make_corpus

from shmgpu import core
from shmgpu.codec import layout
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name
from shmgpu.codec.layout import TreeLayout
from shmgpu.errors import BadParams, GangAborted
from shmgpu.helper import block_reader, decoded, hints, inline, mutation_check
from shmgpu.helper import executor as executors

BLOCK = make_corpus.block((np.arange(4.0),))


@pytest.fixture
def executor():
    target = fuzz_blocks.Target()  # which has the memory that it serves
    yield target.executor


class Gang:
    """As a member sees it, of which another member has died."""

    def __init__(self, *told):
        pass

    def settle(self):
        raise GangAborted("a member died")


def raise_it(helper, x):
    raise GangAborted("a member died")


@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_member_of_a_gang_that_was_given_up_says_that_it_had_begun(
    at_its_end, executor, monkeypatch
):
    """Or the dispatcher would take it for one whose function has not run, and run it again."""
    monkeypatch.setattr(executors, "GangMember", Gang)
    executor.functions[fuzz_blocks.ROW].body = raise_it
    executor._backends = ()
    if at_its_end:
        executor.serve = lambda *call: (core.OK, 0)
    outcome = executor.serve_gang(3, 1, fuzz_blocks.ROW, BLOCK, 0, 1, 1)
    assert outcome == (core.EABORTED, 0)


# ---- results that wait for a larger buffer ---------------------------------------------------


PLACE = fuzz_blocks.ORIGIN + fuzz_blocks.BLOCK
KEY = (9, 0, 7)  # sequence, slot, generation
ONE = TreeLayout(b"A", [ArraySpec(by_name("float64"), (4,))])


def work_of(target, block, function=fuzz_blocks.ROW, slot=0):
    """Put a block into the arena of slot 0: how it is named in a message."""
    target.pages[fuzz_blocks.BLOCK : fuzz_blocks.BLOCK + len(block)] = block
    return function, PLACE, len(block), slot, KEY[2], KEY[0]


@pytest.fixture
def target():
    found = fuzz_blocks.Target()
    found.executor.reader.refusals = 1 << 40  # which are not logged
    yield found


def parked(target):
    """A result that did not fit: how many bytes it needs."""
    function, params, size, *_ = work_of(target, make_corpus.block((np.arange(4.0),), room=(0, 8)))
    executor = target.executor
    target.pages[8192 : 8192 + 32] = np.arange(4.0).tobytes()
    status, needed = executor.serve(function, executor.read(params, size), 0, KEY[2], KEY[0])
    assert status == core.ENEEDS_SPACE
    return needed


def offered(target, room):
    _, params, size, *_ = work_of(target, make_corpus.block((), room=room))
    return target.executor.grow(params, size, 0, KEY[2], KEY[0])


def test_a_result_that_waits_goes_to_a_buffer_that_is_just_large_enough(target):
    needed = parked(target)
    assert offered(target, (0, needed)) == (core.OK, needed)
    data = target.pages[16384 : 16384 + needed]
    found, values, begin = layout.read_result(data, needed, False)
    assert found == ONE and values == []
    assert np.frombuffer(data, np.float64, 4, begin).tolist() == [0, 1, 2, 3]
    assert offered(target, (0, needed)) == (core.ETOO_LARGE, 0)  # it is there once


@pytest.mark.parametrize(
    ("room", "outcome"),
    [((0, -1), (core.EBAD_PARAMS, core.UNREADABLE)), ((1, 0), (core.EBAD_PARAMS, core.UNREADABLE))],
    ids=["a byte too small", "another child's"],
)
def test_a_result_that_waits_is_written_nowhere_else(target, room, outcome):
    needed = parked(target)
    before = bytes(target.pages[16384:])
    status, value = offered(target, (room[0], needed + room[1]))
    assert status == outcome[0] and (room[0] or value == outcome[1])
    assert bytes(target.pages[16384:]) == before


def test_a_result_that_nobody_wants_any_more_is_gone(target):
    needed = parked(target)
    assert target.executor.grow(0, 0, 0, KEY[2], KEY[0]) == (core.OK, 0)
    assert offered(target, (0, needed)) == (core.ETOO_LARGE, 0)


# ---- exceptions --------------------------------------------------------------------------------


def told(target, status, value):
    """The type, text and traceback that lie in the output buffer."""
    assert status == core.EREMOTE and value
    _, values, _ = layout.read_result(bytes(target.pages[16384 : 16384 + value]), value, False)
    return values


def raising(target, error):
    def body(helper, *args):
        raise error

    target.executor.functions[fuzz_blocks.ROW].body = body
    function, params, size, *_ = work_of(target, make_corpus.block((np.arange(4.0),)))
    executor = target.executor
    return executor.serve(function, executor.read(params, size), 0, KEY[2], KEY[0])


class Speechless(Exception):
    def __str__(self):
        raise ValueError("no words")


def test_an_exception_is_told_with_its_type_its_text_and_where(target):
    name, text, trace = told(target, *raising(target, KeyError("k")))
    assert (name, text) == ("KeyError", "'k'") and "in body" in trace
    assert executors.__file__ not in trace  # the frames around the function are nobody's business
    assert not target.executor.broken and isinstance(target.executor.last_error, KeyError)


def test_an_exception_without_a_text_is_told_all_the_same(target):
    assert told(target, *raising(target, Speechless()))[1] == "(its text could not be made)"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_function_that_ends_its_process_has_the_helper_end(target, error):
    assert raising(target, error)[0] == core.EREMOTE
    assert target.executor.broken


def test_an_exception_that_cannot_be_sent_is_one_without_words(target, monkeypatch, caplog):
    def refuses(*_):
        raise MemoryError

    monkeypatch.setattr(target.executor.writer, "put_values", refuses)
    assert raising(target, ValueError("no")) == (core.EREMOTE, 0)
    assert "an exception could not be sent to its caller" in caplog.text
    assert target.executor.put_failure(None, ValueError("no"), KEY) == (core.EREMOTE, 0)


@pytest.mark.parametrize("was_served", [True, False])
def test_a_call_that_failed_on_its_device_later_is_told_so(target, was_served):
    work = work_of(target, make_corpus.block((np.arange(4.0),)))
    if was_served:
        target.executor.serve(work[0], target.executor.read(*work[1:3]), 0, 1, 1)
    outcome = target.executor.fail(work, RuntimeError("the device failed"))
    assert told(target, *outcome)[:2] == ["RuntimeError", "the device failed"]


def test_of_a_call_that_cannot_be_read_again_no_words_are_left(target):
    good = make_corpus.block((np.arange(4.0),))
    for work in (
        work_of(target, good, function=99),
        work_of(target, good[:-1]),
        work_of(target, good, slot=1),
    ):
        assert target.executor.fail(work, RuntimeError("no")) == (core.EREMOTE, 0)
    target.executor.serve(fuzz_blocks.ROW, good, 0, 1, 1)  # and it is known, as slot 0's
    assert target.executor.fail(work, RuntimeError("no")) == (core.EREMOTE, 0)


def test_what_was_left_for_later_is_done_in_turn_and_its_failures_are_logged_ever_more_seldom(
    target, caplog
):
    executor, done = target.executor, []
    for number in range(9):

        def work(number=number):
            done.append(number)
            if number:
                raise ValueError("no")

        executor.helper.afterwards(
            work, (lambda error: done.append("told")) if number > 7 else None
        )
    executor.do_later()
    assert done == [*range(9), "told"] and not executor.helper.later
    logged = [one.getMessage().rpartition("failure ")[2] for one in caplog.records]
    assert logged == ["1)", "2)", "4)", "8)"]


# ---- blocks ------------------------------------------------------------------------------------


def served(target, block):
    return target.executor.serve(fuzz_blocks.ROW, block, 0, 1, 1)[0]


ARENA = fuzz_blocks.ARENA


@pytest.mark.parametrize(
    ("place", "room", "is_good"),
    [
        ((0, ARENA - 32), (0, 4096), True),
        ((0, ARENA - 31), (0, 4096), False),
        ((0, 0), (0, 4096), True),
        ((-1, ARENA - 1), (0, 4096), False),
        ((0, 8192), (0, ARENA - 16384), True),
        ((0, 8192), (0, ARENA - 16383), False),
        ((0, 8192), (-1, 4096), False),
    ],
)
def test_arguments_and_results_lie_within_the_callers_arena_to_the_last_byte(
    target, place, room, is_good
):
    block = make_corpus.block((np.arange(4.0),), place=place, room=room)
    assert (served(target, block) == core.EBAD_PARAMS) != is_good


@pytest.mark.parametrize(("size", "is_good"), [(32, True), (31, False)])
def test_a_promised_result_has_the_room_that_it_needs(target, size, is_good):
    block = make_corpus.block((np.arange(4.0),), hint=ONE, room=(0, size))
    assert (served(target, block) == core.OK) == is_good


BLOCKS = [make_corpus.block((np.arange(4.0),), place=(0, 8192 + 64 * n)) for n in range(6)]
SIZE = len(BLOCKS[0])


@pytest.mark.parametrize(
    ("name", "most", "kept"),
    [
        ("MAX_DECODED", 3, [1, 2, 3, 1, 2, 3]),
        ("MAX_KEPT", 3 * SIZE, [1, 2, 3, 1, 2, 3]),
        ("MAX_KEPT", 3 * SIZE - 1, [1, 2, 1, 2, 1, 2]),
        ("MAX_REMEMBERED", SIZE, [1, 2, 3, 4, 5, 6]),
        ("MAX_REMEMBERED", SIZE - 1, [0] * 6),
    ],
)
def test_blocks_are_remembered_up_to_a_number_and_a_size(target, monkeypatch, name, most, kept):
    monkeypatch.setattr(block_reader, name, most)
    found = target.executor.reader.decoded
    for block, count in zip(BLOCKS, kept, strict=True):
        served(target, block)
        assert len(found) == count and (block in found) == (count > 0)
        served(target, block)
        assert len(found) == count


@pytest.mark.parametrize(("most", "kept"), [(3, [1, 2, 3, 1, 2, 3]), (2, [1, 2, 1, 2, 1, 2])])
def test_signatures_are_remembered_up_to_a_number(target, monkeypatch, most, kept):
    monkeypatch.setattr(block_reader, "MAX_DECODED", most)
    for length, count in enumerate(kept):
        served(target, make_corpus.block((np.arange(length + 1.0),)))
        assert len(target.executor.reader._signatures) == count


def test_refusals_are_logged_ever_more_seldom(target, caplog):
    target.executor.reader.refusals = 0
    for _ in range(9):
        assert served(target, b"nonsense") == core.EBAD_PARAMS
    logged = [one.getMessage().rpartition("refusal ")[2] for one in caplog.records]
    assert logged == ["1)", "2)", "4)", "8)"]


# ---- what is found out about a call ---------------------------------------------------------


def test_a_tensor_counts_its_writes_and_what_does_not_has_none():
    torch = pytest.importorskip("torch")
    made = torch.zeros(2)
    before = mutation_check._version(made)
    made += 1
    assert mutation_check._version(made) == before + 1
    with torch.inference_mode():
        assert mutation_check._version(torch.zeros(2)) == 0
    assert mutation_check._version(np.zeros(2)) == 0


def no_helper(x, y):
    return x


def helper_first(helper, x):
    return x


@pytest.mark.parametrize(
    ("body", "message", "said"),
    [
        (no_helper, "f() takes 2 arguments", "if x is an argument, write def f(helper, x, y))"),
        (helper_first, "f() takes 2 arguments", "which callers leave out: they pass x)"),
        (lambda helper: 0, "f() takes 1 argument", "which callers leave out: they pass -)"),
        (max, "f() takes 2 arguments", ""),  # which Python cannot tell the parameters of
        (no_helper, "g() takes 2 arguments", ""),
        (helper_first, "no 'Helper' has this", ""),
        (no_helper, "no 'Helper' has this", "if x is an argument"),
    ],
)
def test_who_forgot_the_helper_is_told_so(body, message, said):
    function = types.SimpleNamespace(name="f", body=body)
    found = hints.hint(TypeError(message), message, function, None)
    assert said in found and bool(said) == bool(found)
    assert hints.hint(TypeError(message), message, None, None) == ""


def test_only_a_wrong_call_is_one():
    function = types.SimpleNamespace(name="f", body=no_helper)
    assert hints.hint(ValueError("f() takes"), "f() takes", function, None) == ""


def test_a_helper_is_shown_with_its_device_and_its_pool():
    helper = decoded.Helper(2, "cpu", "fast", 1)
    assert repr(helper) == "<helper 2 on cpu, pool 'fast'>"


def test_a_sparse_result_is_refused_with_a_way():
    torch = pytest.importorskip("torch")
    with pytest.raises(BadParams, match=r"returned a torch.sparse_coo tensor.*to_dense\(\)"):
        decoded.Leaf(torch.zeros(2).to_sparse())


# ---- without helpers -----------------------------------------------------------------------------


def test_a_transport_without_helpers_has_nothing_that_waits(target):
    one = inline.InlineTransport(target.executor)
    assert one.outstanding() == 0 and one.descriptors() == ()
    assert one.await_end(1, 0) == core.EAGAIN and one.cancel(1) == core.OK == one.give_up(1)
    assert one.await_replies(0) == 0 and one.version(0) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_it_from_within_a_call(target, error):
    def body(helper, *_):
        raise error

    target.executor.functions[fuzz_blocks.ROW].body = body
    function, params, *_ = work_of(target, BLOCK)
    config = types.SimpleNamespace(function=function, broadcast=False, pool=0)
    reply = types.SimpleNamespace()
    with pytest.raises(error):
        inline.InlineTransport(target.executor).call(config, params, 0, reply)


def test_calls_without_helpers_are_numbered_and_answered(target):
    one = inline.InlineTransport(target.executor)
    function, params, *_ = work_of(target, make_corpus.block((np.arange(4.0),), room=(0, 8)))
    config = types.SimpleNamespace(function=function, broadcast=False, pool=0)
    replies = []
    for _ in range(2):
        replies.append(types.SimpleNamespace())
        assert one.call(config, params, 0, replies[-1]) == core.ENEEDS_SPACE
        assert one.abandon(replies[-1].sequence) == core.ENOT_RUNNING
    assert [reply.sequence for reply in replies] == [1, 2]
    assert {reply.token for reply in replies} == {0}
    sequence = [0]
    assert one.submit(config, params, 0, 77, sequence) == core.OK and sequence == [3]
    asking, ends = collections.deque(), collections.deque()
    assert one.await_replies(0) == 1 << 32
    one.take_growing(asking)
    assert len(asking) == 1 and one.await_replies(0) == 0
    assert one.grow(3, 0, 0) == core.OK and one.await_replies(0) == 1  # there is no larger one
    one.take_ends(1, ends)
    assert len(ends) == 1 and one.await_replies(0) == 0
