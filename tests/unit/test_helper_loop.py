"""What a helper's loop does with what comes: the port, and what runs functions, are played."""

from __future__ import annotations

import os
import pickle
import struct
import types

import numpy as np
import pytest
from fuzz import fuzz_blocks, make_corpus

from shmgpu import core
from shmgpu.errors import BadFunction
from shmgpu.helper import broadcasts, late, lazy, process

OK = (core.OK, 0)
_pack = struct.Struct(core.WORK_FORMAT).pack


def work(delivery, kind=core.WORK_CALL, size=8):
    """A message's: its delivery tells them apart, and a call's sequence is that, times ten."""
    return _pack(
        *lazy._Work(
            delivery=delivery, function=7, params=64, token=5, sequence=10 * delivery, members=3,
            size=size, generation=2, rows=0, ticket=9, slot=1, kind=kind, reserved=0,
        )
    )  # fmt: skip


class Port:
    """The core as a helper's loop uses it: gives what was scripted, and notes what is told."""

    def __init__(self, told, *comes):
        self.told, self.comes = told, list(comes)
        self.taken = lazy.Works()
        self.taken.count = self._next()

    def __getattr__(self, name):
        return getattr(core, name)

    def _next(self):
        found = self.comes.pop(0)
        if isinstance(found, int):
            return found
        self.taken.view[: core.WORK_BYTES * len(found)] = b"".join(found)
        return len(found)

    def helper_take(self, works, most, timeout):
        self.told.append(("take", timeout))
        return self._next()

    def helper_step(self, works, most, status, value):
        self.told.append(("step", status, value))
        return self._next()

    def helper_finish(self, delivery, status, value):
        self.told.append(("finish", delivery, status, value))

    def helper_go_on(self):
        self.told.append("go on")

    def helper_offer_end(self):
        self.told.append("offers its end")

    def broadcast_take(self):
        return 77


class Executor:
    """Notes what it is to run; after ``breaks`` calls the helper cannot go on."""

    def __init__(self, told, breaks=None, events=(), later=()):
        self.told, self.breaks, self.events, self.calls = told, breaks, list(events), 0
        self.later_after = dict(later)  # number of a call: what it left for later
        self.helper = types.SimpleNamespace(
            later=[], when_children_leave=[], keeps_something=[], room=None
        )
        self.memory, self.origin, self.quick = memoryview(b"b" * 256), 0, {}
        self.last_error = SystemExit(3)
        self.device = types.SimpleNamespace(
            take_event=lambda: self.events.pop(0) if self.events else None
        )

    @property
    def broken(self):
        return self.breaks is not None and self.calls >= self.breaks

    def _ran(self, *said):
        self.calls += 1
        self.told.append(said)
        if self.calls in self.later_after:
            self.helper.later.append(self.later_after[self.calls])

    def read(self, params, size):
        assert params == 64
        return b"b" * size

    def serve(self, function, block, slot, generation, sequence):
        self._ran("serve", sequence, block)
        return core.OK, sequence

    def serve_batch(self, batch):
        self._ran("batch", *[one[5] for one in batch])
        return [(core.OK, 0)] * len(batch)

    def grow(self, params, size, slot, generation, sequence):
        self._ran("grow", params, size, slot, generation, sequence)
        return OK

    def serve_gang(self, members, ticket, function, block, slot, generation, sequence):
        self._ran("gang", members, ticket, function, block, slot, generation, sequence)
        return OK

    def do_later(self):
        self.told.append(("later", *self.helper.later))
        self.helper.later.clear()

    def fail(self, work, error):
        self.told.append(("failed", work[5], str(error)))
        return core.EREMOTE, 1


def played(monkeypatch, loop, *comes, **settings):
    """What a loop tells, and how it ends."""
    told = []
    executor = Executor(told, **settings)
    port = Port(told, *comes)
    monkeypatch.setattr(process, "core", port)
    monkeypatch.setattr(lazy, "core", port)
    return told, loop(executor, port.taken)


# ---- one after another ------------------------------------------------------------------------


def test_calls_are_answered_as_the_next_are_taken(monkeypatch):
    told, status = played(
        monkeypatch,
        process.serve,
        [work(1)],
        [work(2), work(3)],
        core.EINTR,
        core.EAGAIN,
        [work(4, size=16)],
        core.ESTOPPED,
    )
    assert status == 0 and told == [
        ("serve", 10, b"b" * 8),
        ("step", core.OK, 10),
        ("batch", 20, 30),
        ("step", core.OK, 0),
        ("take", -1),
        "offers its end",
        ("take", -1),
        ("serve", 40, b"b" * 16),
        ("step", core.OK, 40),
    ]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (core.WORK_GROW, ("grow", 64, 8, 1, 2, 10)),
        (core.WORK_GANG, ("gang", 3, 9, 7, b"b" * 8, 1, 2, 10)),
        (core.WORK_BROADCAST, ("first", 7, b"b" * 8, 1, 2, 10, 5)),
        (core.WORK_APPLY, ("apply", 7, 77, b"b" * 8, 1, 2, 5)),
    ],
)
@pytest.mark.parametrize("loop", [process.serve, process.serve_overlapped])
def test_what_is_no_plain_call_goes_where_it_is_done(monkeypatch, loop, kind, said):
    def noted(kind):
        def note(self, *args):
            self._executor._ran(kind, *args)
            return OK

        return note

    monkeypatch.setattr(broadcasts.Broadcasts, "run_first", noted("first"))
    monkeypatch.setattr(broadcasts.Broadcasts, "apply", noted("apply"))
    told, status = played(monkeypatch, loop, [work(1, kind)], core.ESTOPPED)
    assert told[0] == said and status == 0


@pytest.mark.parametrize("loop", [process.serve, process.serve_overlapped])
@pytest.mark.parametrize("kind", [core.WORK_CALL, core.WORK_GROW])
def test_what_was_left_for_later_is_done_when_all_answers_are_sent(monkeypatch, loop, kind):
    told, _ = played(monkeypatch, loop, [work(1, kind)], core.ESTOPPED, later={1: "x"})
    assert [one[0] if isinstance(one, tuple) else one for one in told] == [
        "grow" if kind else "serve", "finish", "go on", "later", "take",
    ]  # fmt: skip
    assert ("later", "x") in told


def test_of_a_batch_what_was_left_for_later_is_done_after_all_of_it(monkeypatch):
    told, _ = played(monkeypatch, process.serve, [work(1), work(2)], core.ESTOPPED, later={1: "x"})
    assert told == [
        ("batch", 10, 20),
        ("finish", 1, core.OK, 0),
        ("finish", 2, core.OK, 0),
        "go on",
        ("later", "x"),
        ("take", -1),
    ]


@pytest.mark.parametrize("loop", [process.serve, process.serve_overlapped])
@pytest.mark.parametrize("comes", [[work(1)], [work(1), work(2)], [work(1, core.WORK_GROW)]])
def test_a_helper_that_cannot_go_on_answers_and_ends(monkeypatch, loop, comes):
    told, status = played(monkeypatch, loop, comes, breaks=1, later={1: "x"})
    assert status == 3  # as sys.exit() was given
    assert [one[:2] for one in told[1:]] == [("finish", n + 1) for n in range(len(comes))]


@pytest.mark.parametrize(
    ("error", "status"), [(SystemExit(4), 4), (SystemExit("words"), 1), (ValueError(), 1)]
)
def test_a_helper_ends_with_the_status_that_it_was_given(error, status):
    assert process._end(types.SimpleNamespace(last_error=error)) == status


@pytest.mark.parametrize("loop", [process.serve, process.serve_overlapped])
def test_a_port_that_fails_ends_the_helper_with_a_word(monkeypatch, loop, caplog):
    _, status = played(monkeypatch, loop, core.ESYSTEM)
    assert status == 1 and f"the helper ends: {core.status_text(core.ESYSTEM)}" in caplog.text


def test_who_looks_when_children_leave_costs_the_others_nothing(caplog):
    told = []
    helper = types.SimpleNamespace(when_children_leave=[lambda: 1 / 0, lambda: told.append(1)])
    process._look_after(helper)
    assert told == [1] and "for a child that left could not be released" in caplog.text


# ---- two batches on a device --------------------------------------------------------------------


class Event:
    def __init__(self, told, number, error=None):
        self.told, self.number, self.error = told, number, error

    def synchronize(self):
        self.told.append(("waits", self.number))
        if self.error is not None:
            raise self.error


def overlapped(monkeypatch, *comes, errors=(None, None), **settings):
    told, events = [], []
    events.extend(Event(told, n + 1, error) for n, error in enumerate(errors))
    executor = Executor(told, events=events, **settings)
    port = Port(told, *comes)
    monkeypatch.setattr(process, "core", port)
    monkeypatch.setattr(lazy, "core", port)
    assert process.serve_overlapped(executor, port.taken) == 0
    return [one for one in told if one[0] not in ("serve", "batch")]


def test_a_batch_is_answered_after_the_next_ones_work_was_enqueued(monkeypatch):
    told = overlapped(monkeypatch, [work(1)], [work(2)], core.EAGAIN, core.EAGAIN, core.ESTOPPED)
    assert told == [
        ("take", 0),  # one is on the device: nothing is waited for
        ("waits", 1),
        ("finish", 1, core.OK, 10),
        ("take", 0),
        ("waits", 2),
        ("finish", 2, core.OK, 20),
        ("take", -1),
        "offers its end",
        ("take", -1),
    ]


@pytest.mark.parametrize("kind", [core.WORK_BROADCAST, core.WORK_GANG])
def test_what_others_wait_for_is_answered_at_once(monkeypatch, kind):
    monkeypatch.setattr(broadcasts.Broadcasts, "run_first", lambda *_: OK)
    told = overlapped(monkeypatch, [work(1, kind)], core.ESTOPPED)
    assert told[-3:] == [("waits", 1), ("finish", 1, core.OK, 0), ("take", -1)]


def test_what_is_on_the_device_is_answered_before_the_end(monkeypatch):
    told = overlapped(monkeypatch, [work(1)], core.ESTOPPED)
    assert told == [("take", 0), ("waits", 1), ("finish", 1, core.OK, 10)]


def test_a_kernel_that_fails_fails_the_calls_of_its_batch(monkeypatch):
    errors = (RuntimeError("no memory"), None)
    told = overlapped(monkeypatch, [work(1), work(2)], core.ESTOPPED, errors=errors)
    assert told == [
        ("take", 0),
        ("waits", 1),
        ("failed", 10, "no memory"),
        ("failed", 20, "no memory"),
        ("finish", 1, core.EREMOTE, 1),
        ("finish", 2, core.EREMOTE, 1),
    ]


# ---- sessions that are made at the first call ---------------------------------------------------


def test_a_broadcast_waits_for_the_session_and_the_last_of_each_function_is_run(monkeypatch):
    told, closed = [], []
    port = Port(told, [work(1, core.WORK_APPLY)], core.EINTR, [work(2, core.WORK_APPLY)], [work(3)])
    port.comes.insert(0, port.taken.count)  # what is taken first
    monkeypatch.setattr(lazy, "core", port)
    monkeypatch.setattr(core, "broadcast_close", closed.append)
    postponed = lazy.Postponed()
    assert postponed.wait(port.taken)
    assert [one for one in told if one[0] == "finish"] == [
        ("finish", 1, core.OK, 0),
        ("finish", 2, core.OK, 0),
    ]
    assert closed == [77]  # the first is not run any more
    ran = []

    def apply(*said):
        ran.append(said)
        return core.OK, 0

    postponed.apply(types.SimpleNamespace(apply=apply))
    assert ran == [(7, 77, b"", 1, 2, 5)]
    postponed.apply(types.SimpleNamespace(apply=apply))
    assert len(ran) == 1  # which is done once
    postponed._keep(7, lazy._Broadcast(78, 1, 2, 6))
    with pytest.raises(RuntimeError, match="the last broadcast failed on it"):
        postponed.apply(types.SimpleNamespace(apply=lambda *_: (core.EREMOTE, 0)))


@pytest.mark.parametrize(
    ("keeps", "offers"),
    [([], True), ([False], True), ([False, True], False), ([True], False), ([None], False)],
)
def test_a_helper_that_keeps_something_offers_no_end(monkeypatch, caplog, keeps, offers):
    told = []

    def look(kept):
        if kept is None:
            raise ValueError("no idea")
        return kept

    monkeypatch.setattr(core, "helper_offer_end", lambda: told.append(1))
    looks = [lambda kept=kept: look(kept) for kept in keeps]
    lazy.offer_end(types.SimpleNamespace(keeps_something=looks))
    assert bool(told) == offers
    assert ("could not be told: it stays" in caplog.text) == (keeps == [None])


# ---- functions that came later -------------------------------------------------------------------


@pytest.fixture
def takes(monkeypatch):
    monkeypatch.setattr(late, "bodies", {})
    monkeypatch.setattr(late, "_last", {})
    monkeypatch.setattr(late, "_broadcasts", 0)


def given(helper, *args, **kwargs):
    return args, kwargs


RUNS = (late.run_torch, late.run_numpy, late.run_torch_mutating, late.run_numpy_mutating)


@pytest.mark.parametrize("run", RUNS)
def test_a_function_that_was_carried_is_run_by_its_key(takes, run):
    late.adopt(None, {"f#1": pickle.dumps(given)})
    assert run(None, "f#1", 5, x=6) == ((5,), {"x": 6})
    with pytest.raises(BadFunction, match="f was forgotten by its program while this call waited"):
        run(None, "f#2")


def test_one_that_cannot_be_read_says_so_when_it_is_called(takes):
    late.adopt(None, {"f#1": b"nonsense", "g#1": pickle.dumps(given)})
    with pytest.raises(pickle.UnpicklingError):
        late.run_numpy(None, "f#1", 5, x=6)
    assert late.run_numpy(None, "g#1") == ((), {})


def test_one_is_kept_for_a_while_after_it_was_carried_last(takes):
    late.adopt(None, {"f#1": pickle.dumps(given)})
    for _ in range(late.KEPT):
        late.adopt(None, {})
        assert late.run_numpy(None, "f#1") == ((), {})
    late.adopt(None, {"g#1": pickle.dumps(given)})
    assert set(late.bodies) == {"g#1"} == set(late._last)


def test_helpers_that_programs_share_take_none(monkeypatch):
    monkeypatch.setattr(late, "bodies", None)
    with pytest.raises(PermissionError, match="share take no functions"):
        late.adopt(None, {})
    with pytest.raises(BadFunction):
        late.run_numpy(None, "f#1")


# ---- broadcasts ---------------------------------------------------------------------------------


BLOCK = make_corpus.block((np.arange(4.0),))
FIRST = (fuzz_blocks.ROW, BLOCK, 0, 1, 9, 5)  # function, block, slot, generation, sequence, version


@pytest.fixture
def logged(monkeypatch):
    """What is said: without its exception, which would keep what was mapped."""
    said = []

    def note(text, *args, **_):
        said.append(text % args)

    monkeypatch.setattr(broadcasts, "logger", types.SimpleNamespace(error=note, exception=note))
    return said


@pytest.fixture
def target(logged):
    found = fuzz_blocks.Target()
    found.look = lambda helper, *args, **kwargs: ran.append((helper.caller, args[0].tolist()))
    ran = found.ran = []
    found.executor.functions[fuzz_blocks.ROW].body = lambda *a, **k: found.look(*a, **k)
    yield found
    found.executor.last_error = None


def raises(kind):
    """A function that raises a new one each time: an exception keeps alive what it went through."""

    def body(*_, **__):
        raise kind("no")

    return body


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("published", "outcome", "version"), [(core.OK, OK, 5), (core.ESYSTEM, (core.EREMOTE, 0), 0)]
)
def test_a_broadcast_is_run_and_handed_over(target, published, outcome, version):
    handed = []

    def publish(descriptor):
        handed.append(os.fstat(descriptor).st_size)
        return published

    before = descriptors()
    assert broadcasts.Broadcasts(target.executor, publish).run_first(*FIRST) == outcome
    assert len(handed) == 1 and target.executor.helper.version == version
    assert [caller for caller, _ in target.ran] == [(0, 1)] and descriptors() == before


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_a_broadcast_for_which_there_is_no_memory_has_not_run(target, monkeypatch, error):
    monkeypatch.setattr(broadcasts, "_write", raises(error))
    before = descriptors()
    status, _ = broadcasts.Broadcasts(target.executor, raises(error)).run_first(*FIRST)
    assert status == core.ENO_MEMORY and not target.ran and descriptors() == before
    monkeypatch.undo()
    monkeypatch.setattr(core, "broadcast_map", raises(error))
    status, _ = broadcasts.Broadcasts(target.executor, raises(error)).run_first(*FIRST)
    assert status == core.ENO_MEMORY and not target.ran and descriptors() == before


def test_a_broadcast_that_cannot_be_read_again_has_not_run(target, monkeypatch, logged):
    monkeypatch.setattr(broadcasts, "BlockReader", raises(ValueError))
    before = descriptors()
    outcome = broadcasts.Broadcasts(target.executor, None).run_first(*FIRST)
    assert outcome == (core.EBAD_PARAMS, core.UNREADABLE) and descriptors() == before
    assert logged == ["a broadcast could not be read again from its memory file"]
    assert not target.ran


def file_of(target):
    """The memory file that the first helper would hand over."""
    made = []
    broadcasts.Broadcasts(
        target.executor, lambda one: made.append(os.dup(one)) or core.OK
    ).run_first(*FIRST)
    target.ran.clear()
    target.executor.helper.version = 0
    return made[0]


@pytest.mark.parametrize(
    ("block", "caller"), [(b"", (0, 0)), (BLOCK, (0, 1))], ids=["nobody waits", "one waits"]
)
def test_another_helper_runs_it_and_has_its_version(target, block, caller):
    before = descriptors()
    others = broadcasts.Broadcasts(target.executor)
    assert others.apply(fuzz_blocks.ROW, file_of(target), block, 0, 1, 6) == OK
    assert [found for found, _ in target.ran] == [caller]
    assert target.executor.helper.version == 6 and descriptors() == before


@pytest.mark.parametrize(
    ("block", "is_logged"), [(b"", True), (BLOCK, False)], ids=["nobody waits", "one waits"]
)
def test_one_that_fails_elsewhere_is_told_to_who_waits_or_to_the_log(
    target, logged, block, is_logged
):
    descriptor = file_of(target)

    def fails(helper, *_):
        helper.later.append("what its failure undoes")
        raise ValueError("no")

    target.look = fails
    target.executor.helper.later.append("what was left before")
    others = broadcasts.Broadcasts(target.executor)
    status, _ = others.apply(fuzz_blocks.ROW, descriptor, block, 0, 1, 6)
    assert status == core.EREMOTE and target.executor.helper.version == 0
    said = "look, as it was last broadcast, failed: this helper ends and is replaced"
    assert logged == [said] * is_logged
    assert target.executor.helper.later == ["what was left before"]


def test_one_that_cannot_be_read_elsewhere_ends_that_helper(target, logged):
    before, others = descriptors(), broadcasts.Broadcasts(target.executor)
    with open("/dev/null") as nothing:
        outcome = others.apply(fuzz_blocks.ROW, os.dup(nothing.fileno()), b"", 0, 1, 6)
    assert outcome == (core.EBAD_PARAMS, core.UNREADABLE) and not target.ran
    assert logged == ["a broadcast could not be read: this helper ends and is replaced"]
    assert descriptors() == before
