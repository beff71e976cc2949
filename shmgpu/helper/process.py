"""The helper process: make the session, then serve until told to end.

Owns the loop between the C helper port and the executor. The loop runs in the main thread; what a
function raises never leaves it.
"""

from __future__ import annotations

import os
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from shmgpu import core, function_table
from shmgpu.collectives.choice import Backends
from shmgpu.common import config, devices
from shmgpu.common.logs import logger
from shmgpu.common.module_loader import own_traceback
from shmgpu.helper import late
from shmgpu.helper.batch_executor import BatchExecutor
from shmgpu.helper.broadcasts import Broadcasts
from shmgpu.helper.decoded import Helper
from shmgpu.helper.lazy import Postponed, Works, offer_end, refuse
from shmgpu.helper.shares import Share

_unpack = struct.Struct(core.WORK_FORMAT).unpack_from
_unpack_all = struct.Struct(core.WORK_FORMAT).iter_unpack
_unpack_one = struct.Struct(core.ONE_WORK_FORMAT).unpack_from
_WORK = core.WORK_BYTES
_MAY_OVERLAP = (
    core.WORK_CALL,
    core.WORK_GROW,
)  # kinds of work after which the next one may begin at once


class Setup:
    """What a helper is made of.

    Attributes:
        session: the session function, or None.
        device: name of its device.
        pool: name of its pool.
        threads: compute threads; 0 leaves them alone.
        gpu_memory: cap on device memory, bytes; 0 means none.
        parked: bytes of results that may wait for a larger output buffer.
        children: how many arenas there are.
        share: of the cores; None where the threads are what was asked for.
        devices: names of all helpers' devices, by number.
        takes_functions: whether it serves one program, which may define functions as it runs.
        is_lazy: whether the session is made at the first call. Once a helper has been ended for
            being idle, all that take its place are.
        idle: seconds without a call after which a helper that keeps nothing ends, and a fresh one
            takes its place; 0: never.
        meeting_fd: file by which helpers with a GPU each make communicators; -1: there are not two.
    """

    def __init__(
        self,
        session: Callable[[Helper], Any] | None,
        device_name: str,
        pool: str,
        threads: int,
        gpu_memory: int,
        parked: int,
        children: int,
        share: Share | None = None,
        devices: tuple[str, ...] = (),
    ) -> None:
        self.session = session
        self.device = device_name
        self.pool = pool
        self.threads = threads
        self.gpu_memory = gpu_memory
        self.parked = parked
        self.children = children
        self.share = share
        self.devices = devices
        self.takes_functions = False
        self.is_lazy = False
        self.idle = 0.0
        self.meeting_fd = -1


def run(number: int, generation: int, setup: Setup, report: Callable[[str, str], None]) -> int:
    """Be helper ``number``; returns the exit status.

    ``report`` is told the message and traceback of a session that could not be made.
    """
    helper = Helper(number, setup.device, setup.pool, generation)
    taken = Works()
    postponed: Postponed | None = None
    if setup.is_lazy:
        postponed = Postponed()
        core.helper_session(core.SESSION_NONE)
        core.helper_ready(core.OK)
        if not postponed.wait(taken):
            return int(taken.count != core.ESTOPPED)
        core.helper_session(core.SESSION_LOADING)
    pid = os.getpid()
    try:
        executor = _load(helper, setup)
        if postponed is not None:
            postponed.apply(Broadcasts(executor))
    except BaseException as error:
        if os.getpid() != pid:
            end_copy("a session function")
        report(f"{type(error).__name__}: {error}", own_traceback(error))
        if postponed is not None:
            refuse(_executor(helper, setup, devices.make("cpu", 0, [])), taken, error)
        core.helper_ready(core.ESESSION)
        return 1
    if os.getpid() != pid:
        end_copy("a session function")
    if setup.idle:
        core.helper_tell_idle(int(setup.idle * 1e9))
    if postponed is None:
        core.helper_ready(core.OK)
        taken.take()
    else:
        core.helper_session(core.SESSION_LOADED)
    return (serve_overlapped if executor.device.is_cuda else serve)(executor, taken)


def _load(helper: Helper, setup: Setup) -> BatchExecutor:
    """Make the device and the session, and what runs functions on them."""
    if setup.threads:
        devices.set_threads(setup.threads)
    if setup.device == "cpu":
        devices.hide_from_children()
    size = core.arena_bytes()
    regions = [(core.arena_base(child), size) for child in range(setup.children)]
    device = devices.make(setup.device, setup.gpu_memory, regions, core.maps_old_arena)
    helper.when_children_leave.append(device.let_go_of_old_arenas)
    if setup.share is not None:
        helper.when_children_leave.append(setup.share.look)
    if setup.session is not None:
        helper.session = setup.session(helper)
    function_table.find_bodies()
    if setup.takes_functions:
        late.take()
    return _executor(helper, setup, device)


def _executor(helper: Helper, setup: Setup, device: Any) -> BatchExecutor:
    base, reserved = core.reservation()
    size = core.arena_bytes()
    return BatchExecutor(
        helper,
        function_table.by_row,
        core.window_on(base, reserved),
        base,
        lambda slot: (core.arena_base(slot), core.arena_base(slot) + size),
        device,
        setup.parked,
        Backends(helper.id, setup.devices, setup.meeting_fd),
        watches=config.resolve("debug"),
    )


def end_copy(who: str) -> None:
    """End this process, which a user's code forked: it would read the helper's calls as its own."""
    logger.error(
        "%s forked a process that came back from it, and was ended: have it end itself with "
        "os._exit()",
        who,
    )
    os._exit(1)


def serve(executor: BatchExecutor, taken: Works) -> int:
    """Take calls until there are no more.

    The call that repeats (plain arrays and values in and one array out, as promised) is run right
    here, because every Python frame it does without is time that other processes get. The executor
    has others run by C.
    """
    works, view, count = taken.works, taken.view, taken.count
    capacity = core.MAX_BATCH
    step, unpack, count_bytes = core.helper_step, _unpack_one, core.count_bytes
    copied_out = core.BYTES_COPIED_OUT
    helper, memory, origin, quick = (
        executor.helper,
        executor.memory,
        executor.origin,
        executor.quick,
    )
    later = helper.later
    broadcasts = Broadcasts(executor)
    ndarray = np.ndarray
    while True:
        if count == 1:
            function, params, sequence, size, generation, slot, kind = unpack(view)
            if kind:
                outcome = _serve_other(executor, broadcasts, view)
                if executor.broken or later:
                    core.helper_finish(_unpack(view, 0)[0], *outcome)
                    if executor.broken:
                        return _end(executor)
                    count = _go_on(executor, works)
                else:
                    count = step(works, capacity, *outcome)
                continue
            offset = params - origin
            block = memory[offset : offset + size]  # the private copy: only it is looked at
            known = quick.get(block)
            if known is not None and known[0] == function and known[1] == slot:
                _, _, body, values, argument, several, out, shape, dtype, nbytes = known
                try:
                    helper.caller = slot, generation
                    helper.offered = expected = out.view()
                    if several is None:
                        result = body(helper, *values, argument.view())
                    else:
                        arguments = values.copy()
                        for place, one in several:
                            arguments[place] = one.view()
                        result = body(helper, *arguments)
                    if type(result) is ndarray and result.shape == shape and result.dtype == dtype:
                        if result is not expected:
                            out[...] = result
                            count_bytes(copied_out, nbytes)
                        if later:
                            core.helper_finish(_unpack(view, 0)[0], 0, 0)
                            count = _go_on(executor, works)
                            if executor.broken:
                                return _end(executor)
                        else:
                            count = step(works, capacity, 0, 0)
                        continue
                except BaseException as error:
                    outcome = executor.put_error(block, error, (sequence, slot, generation))
                else:
                    outcome = executor.put(block, function, result, (sequence, slot, generation))
            else:
                outcome = executor.serve(function, block, slot, generation, sequence)
            if executor.broken or later:
                core.helper_finish(_unpack(view, 0)[0], *outcome)
                count = core.ESTOPPED if executor.broken else _go_on(executor, works)
                if executor.broken:
                    return _end(executor)
            else:
                count = step(works, capacity, *outcome)
        elif count > 1:
            count = _serve_batch(executor, works, view, count)
            if executor.broken:
                return _end(executor)
        elif count == core.EINTR:
            _look_after(helper)
            count = core.helper_take(works, capacity, -1)
        elif count == core.EAGAIN:
            offer_end(helper)
            count = core.helper_take(works, capacity, -1)
        elif count == core.ESTOPPED:
            return 0
        else:
            logger.error("the helper ends: %s", core.status_text(count))
            return 1


def _serve_other(executor: BatchExecutor, broadcasts: Broadcasts, view: Any) -> tuple[int, int]:
    """Do what was taken, which is no plain call."""
    work = _unpack(view, 0)
    _, function, params, token, sequence, members, size, generation, _, ticket, slot, kind, _ = work
    if kind == core.WORK_GROW:
        return executor.grow(params, size, slot, generation, sequence)
    block = executor.read(params, size) if params else b""
    if kind == core.WORK_GANG:
        return executor.serve_gang(members, ticket, function, block, slot, generation, sequence)
    if kind == core.WORK_BROADCAST:
        return broadcasts.run_first(function, block, slot, generation, sequence, token)
    return broadcasts.apply(function, core.broadcast_take(), block, slot, generation, token)


def _go_on(executor: BatchExecutor, works: Any) -> int:
    """All that was taken is finished: send the answers, do what was left for later, take more."""
    core.helper_go_on()
    executor.do_later()
    return core.ESTOPPED if executor.broken else core.helper_take(works, core.MAX_BATCH, -1)


def _look_after(helper: Helper) -> None:
    """A child may have left: release what was kept for it."""
    for look in helper.when_children_leave:
        try:
            look()
        except Exception:
            logger.exception("what was kept for a child that left could not be released")


def _serve_batch(executor: BatchExecutor, works: Any, view: Any, count: int) -> int:
    batch = []
    deliveries = []
    for work in _unpack_all(view[: count * _WORK]):
        delivery, function, params, _, sequence, _, size, generation, _, _, slot, _, _ = work
        deliveries.append(delivery)
        batch.append((function, params, size, slot, generation, sequence))
    outcomes = executor.serve_batch(batch)
    later = executor.helper.later
    if not (executor.broken or later) and outcomes.count((core.OK, 0)) == count:
        return core.helper_step(works, core.MAX_BATCH, core.OK, 0)
    for delivery, (status, value) in zip(deliveries, outcomes, strict=True):
        core.helper_finish(delivery, status, value)
    if executor.broken:
        return core.ESTOPPED
    return _go_on(executor, works) if later else core.helper_take(works, core.MAX_BATCH, -1)


class _Started:
    """A batch whose work was enqueued on a device and may not be complete."""

    __slots__ = ("batch", "deliveries", "event", "is_lone", "outcomes")

    def __init__(
        self,
        deliveries: list[int],
        batch: list[tuple[int, ...]],
        outcomes: list[tuple[int, int]],
        event: Any,
        is_lone: bool,
    ) -> None:
        self.is_lone = is_lone  # others wait for its end: members of its gang, other helpers
        self.deliveries = deliveries
        self.batch = batch
        self.outcomes = outcomes
        self.event = event

    def finish(self, executor: BatchExecutor) -> None:
        """Wait for the device, then answer."""
        if self.event is not None:
            try:
                self.event.synchronize()
            except RuntimeError as error:  # a kernel failed after it was enqueued
                self.outcomes = [executor.fail(work, error) for work in self.batch]
        for delivery, (status, value) in zip(self.deliveries, self.outcomes, strict=True):
            core.helper_finish(delivery, status, value)


def serve_overlapped(executor: BatchExecutor, taken: Works) -> int:
    """As :func:`serve`, with up to two batches on the device, so that copy and compute overlap.

    A batch is answered when its event has come: at once when nothing else is queued, else after
    the next one's work has been enqueued. Answers go out in the order of hand-over.
    """
    works, view, count = taken.works, taken.view, taken.count
    started: deque[_Started] = deque()
    broadcasts = Broadcasts(executor)
    while True:
        if count > 0:
            one = _start(executor, broadcasts, view, count)
            started.append(one)
            later = executor.helper.later
            is_lone = one.is_lone or executor.broken or later
            keep = 1 if one.event is not None and not is_lone else 0
            while len(started) > keep:
                started.popleft().finish(executor)
            if later and not executor.broken:
                core.helper_go_on()
                executor.do_later()
            if executor.broken:
                return _end(executor)
        elif count == core.EAGAIN:
            if started:
                started.popleft().finish(executor)
            else:
                offer_end(executor.helper)
        elif count == core.EINTR:
            _look_after(executor.helper)
        else:
            while started:
                started.popleft().finish(executor)
            if count == core.ESTOPPED:
                return 0
            logger.error("the helper ends: %s", core.status_text(count))
            return 1
        count = core.helper_take(works, core.MAX_BATCH, 0 if started else -1)


def _start(executor: BatchExecutor, broadcasts: Broadcasts, view: Any, count: int) -> _Started:
    """Run what was taken, as far as it can be run without waiting for the device."""
    batch: list[tuple[int, ...]] = []
    deliveries = []
    for index in range(count):
        (delivery, function, params, _, sequence, _, size, generation, _, _, slot, kind, _) = (
            _unpack(view, index * _WORK)
        )
        deliveries.append(delivery)
        batch.append((function, params, size, slot, generation, sequence))
    if count > 1:
        outcomes = executor.serve_batch(batch)
    elif kind:
        outcomes = [_serve_other(executor, broadcasts, view)]
    else:
        function, params, size, slot, generation, sequence = batch[0]
        block = executor.read(params, size)
        outcomes = [executor.serve(function, block, slot, generation, sequence)]
    event = executor.device.take_event()
    return _Started(deliveries, batch, outcomes, event, kind not in _MAY_OVERLAP)


def _end(executor: BatchExecutor) -> int:
    """The helper cannot continue; the C helper port writes the last replies when it is closed."""
    error = executor.last_error
    if isinstance(error, SystemExit):
        logger.warning("a function called sys.exit(): the helper ends and is replaced")
        return error.code if isinstance(error.code, int) else 1
    sys.stderr.flush()
    return 1
