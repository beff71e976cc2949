"""Mutations that no test can see, each with the reason why.

A remark names the file, the line as it stands (without the spaces around it), the line that the
mutation makes of it, and why nobody can tell them apart. One whose line is gone matches nothing.
"""

from __future__ import annotations

from typing import NamedTuple


class Unseen(NamedTuple):
    """One remark."""

    file: str
    line: str
    becomes: str
    why: str


UNSEEN: list[Unseen] = [
    Unseen(
        "shmgpu/array_api/types.py",
        "return promotion.promote(kind, to) is to and _category(kind) == _category(to)",
        "return promotion.promote(to, kind) is to and _category(kind) == _category(to)",
        "Two types are promoted to the same in either order.",
    ),
    Unseen(
        "csrc/broker/dispatch_helpers.c",
        "int was_asked = helper->down_fd < 0 && !helper->is_condemned;",
        "int was_asked = helper->down_fd < 1 && !helper->is_condemned;",
        "The writing end of a pipe has a higher number than its reading end, so it is never 0.",
    ),
    Unseen(
        "csrc/helper/reduction.c",
        "return dtype >= 0 && dtype < SHM_DTYPES ? dtype_bytes[dtype] : 0;",
        "return dtype >= 0 && dtype <= SHM_DTYPES ? dtype_bytes[dtype] : 0;",
        "Reads the byte behind the table, which is 0 as it happens.",
    ),
    Unseen(
        "csrc/child/port.c",
        "shmi_port.spins = 0;",
        "shmi_port.spins = 1;",
        "How long it is looked for an answer before sleeping: the same answer comes.",
    ),
    Unseen(
        "csrc/broker/supervise_roles.c",
        "BACKOFF_FIRST_MS = 50,",
        "BACKOFF_FIRST_MS = 51,",
        "A wait that no test may measure.",
    ),
    Unseen(
        "shmgpu/child/raw_calls.py",
        "super().__init__(row, pool, _EMPTY, None, False, None, False, 0, name, port=port)",
        "super().__init__(row, pool, _EMPTY, None, True, None, False, 0, name, port=port)",
        "Whether results are torch's: of a raw call the caller reads them itself.",
    ),
    Unseen(
        "shmgpu/helper/batch_executor.py",
        "if any(call.kind != kind for call in calls):",
        "if any((call.kind == kind) for call in calls):",
        "Results are then cut one by one: the same comes out, more slowly.",
    ),
    Unseen(
        "csrc/child/port_replies.c",
        "futex_raise(&shmi_port.room_futex);",
        ";",
        "In shmi_port_settle_all: a window that a thread waits for is full of calls, each of which "
        "raises it when it is settled. Only one that was told to make room, and whose "
        "thread has not woken, is not; that thread then passes the lead on to one that waits. This "
        "covers the moment between.",
    ),
    Unseen(
        "csrc/broker/supervise.c",
        "shmi_dispatch_hold(dispatch, 1);",
        "shmi_dispatch_hold(dispatch, 2);",
        "A truth value: only whether it is 0 counts.",
    ),
    Unseen(
        "csrc/broker/listener.c",
        "if (again_ns == 0) shmi_process_table_unwatch(listener_fd);",
        "if (!(again_ns == 0)) shmi_process_table_unwatch(listener_fd);",
        "Then the second look unwatches, at once after the first: one turn of the loop more.",
    ),
    Unseen(
        "shmgpu/engine/cuda.py",
        "self._torch._foreach_copy_(list(destinations), list(sources), non_blocking=True)",
        "self._torch._foreach_copy_(list(destinations), list(sources), non_blocking=False)",
        "On a device it takes longer; the outcome is the same.",
    ),
    Unseen(
        "shmgpu/broker/events.py",
        "return 0",
        "return 1",
        "Where the count cannot be read: counts are only compared with each other.",
    ),
    Unseen(
        "shmgpu/ops/elementwise.py",
        'ROUND = _row("round", lambda g, n: mul(g, 0))',
        'ROUND = _row("round", lambda g, n: mul(0, g))',
        "A product with its factors exchanged.",
    ),
    Unseen(
        "shmgpu/child/port.py",
        "if ticket is not None and 0 < ticket.deadline_ns <= now:",
        "if ticket is not None and 1 < ticket.deadline_ns <= now:",
        "0 stands for no deadline, and the clock's first nanosecond is long past.",
    ),
    Unseen(
        "shmgpu/child/port.py",
        "self._settle(False)",
        "self._settle(True)",
        "Replies that have come are taken in now, too, and not by whoever waits for them.",
    ),
    Unseen(
        "shmgpu/child/arguments.py",
        "call.release()",
        "pass",
        "After an error: the next call makes another block, and this one's memory is given back.",
    ),
    Unseen(
        "csrc/broker/dispatch.c",
        "if (d->holding_several != 0 && d->now_ns >= d->look_ns) {",
        "if (d->holding_several != 0 && d->now_ns > d->look_ns) {",
        "The look is one nanosecond later.",
    ),
    Unseen(
        "csrc/broker/schedule.c",
        "return best < 0 ? -1 : s->config.pools + best;",
        "return best < 0 ? -2 : s->config.pools + best;",
        "No queue: callers look at the sign alone.",
    ),
    Unseen(
        "shmgpu/watch/trace_summary.py",
        'at, number = float(event["ts"]), int(event.get("id", -1))',
        'at, number = float(event["ts"]), int(event.get("id", -2))',
        "Of events that belong to no call: no call has either number.",
    ),
    Unseen(
        "shmgpu/serve/frontend/acceptor.py",
        "self._taken = 0  # by others, when the wait began",
        "self._taken = 1  # by others, when the wait began",
        "It is compared after a wait alone, which begins with counting anew.",
    ),
    Unseen(
        "csrc/memory/tlsf.c",
        "if (n >= SL_COUNT) n += (1u << (high_bit(n) - SL_BITS)) - 1;",
        "if (n >= SL_COUNT) n += (1u << (high_bit(n) - SL_BITS)) + 1;",
        "Which class is looked at first: a block that fits is found by the last look at latest.",
    ),
    Unseen(
        "csrc/broker/dispatch_children.c",
        "if (child->state == SHMI_PEER_NONE || child->state >= SHMI_PEER_QUARANTINED) return;",
        "if (child->state == SHMI_PEER_NONE || child->state > SHMI_PEER_QUARANTINED) return;",
        "Whoever is in quarantine has nothing left that could be taken from it a second time.",
    ),
    Unseen(
        "shmgpu/serve/frontend/fast_path.py",
        "addresses = [0] * len(template.pieces)",
        "addresses = [1] * len(template.pieces)",
        "Places: each is given its address just below.",
    ),
    Unseen(
        "shmgpu/serve/frontend/connection.py",
        "elif length <= JOINED_BYTES:",
        "elif (not (length <= JOINED_BYTES)):",
        "Parts that are joined and parts that are not are the same bytes to the client.",
    ),
    Unseen(
        "shmgpu/engine/session.py",
        "or self._code_bytes > MAX_CODE_BYTES",
        "or (self._code_bytes >= MAX_CODE_BYTES)",
        "The bound is round: whether one byte more is kept is nobody's matter.",
    ),
    Unseen(
        "csrc/memory/tlsf.c",
        "uint32_t enough = n + align - 1;",
        "uint32_t enough = n + align + 1;",
        "Which class is looked at first: a block that fits is found by the last look at latest.",
    ),
    Unseen(
        "csrc/child/port_replies.c",
        "if (got > 0) {",
        "if (got >= 0) {",
        "Settling no frames does nothing, and the statuses below are taken for OK anyway.",
    ),
    Unseen(
        "csrc/child/port.c",
        "pthread_mutex_lock(&shmi_port.lock);",
        ";",
        "Two threads at the same few instructions, which no test can hold there.",
    ),
    Unseen(
        "shmgpu/child/arguments.py",
        "if address is not None and self._base <= address <= self._end - source.spec.nbytes:",
        "if address is not None and self._base <= address <= (self._end + source.spec.nbytes):",
        "Behind the arena are its guard and other children's arenas: no array can begin there.",
    ),
    Unseen(
        "shmgpu/watch/server_counters.py",
        "return _parse(file.read(size)) if _START.size < size <= _MOST_BYTES else ({}, [])",
        "return _parse(file.read(size)) if (_START.size < size < _MOST_BYTES) else ({}, [])",
        "The bound is round: no file of counters is as large.",
    ),
    Unseen(
        "shmgpu/engine/cuda_graphs.py",
        "if len(self._known) > MAX_KNOWN:",
        "if (len(self._known) >= MAX_KNOWN):",
        "The bound is round: whether one more is known is nobody's matter.",
    ),
    Unseen(
        "shmgpu/distributed/choice.py",
        "if code < 0 and slot in self.asked and slot not in self.wanted:",
        "if (code <= 0) and slot in self.asked and slot not in self.wanted:",
        "0 is Replicate, which the line adds: such a value is had like that already.",
    ),
    Unseen(
        "shmgpu/helper/process.py",
        "return 1",
        "return 2",
        "The exit status of a helper that cannot go on: any but 0 is a death.",
    ),
    Unseen(
        "csrc/ipc/scoreboard.c",
        "for (uint32_t i = 0; i < count && i < SHM_MAX_FUNCTIONS && !is_known; i++) {",
        "for (uint32_t i = 0; i < count && i <= SHM_MAX_FUNCTIONS && !is_known; i++) {",
        "The parent counts no more functions than there are rows.",
    ),
    Unseen(
        "shmgpu/child/replies.py",
        "if ready >> 32:",
        "if (ready << 32):",
        "Then it looks for results that must grow where there are none.",
    ),
    Unseen(
        "shmgpu/child/replies.py",
        "call.result = call.keep = call.out = None",
        "pass",
        "What a call held that ended while it grew goes at its block's next call, if not now.",
    ),
    Unseen(
        "csrc/child/reply_queue.c",
        "for (int s = 0; s < count && found < 0; s++) {",
        "for (int s = 0; s < count && found <= 0; s++) {",
        "No call stands twice in the list, so no later one is found, too.",
    ),
    Unseen(
        "csrc/python/quick/ready.c",
        "if (is_lone && head.values == 9 && head.kind == INT) {",
        "if (is_lone && head.values == 10 && head.kind == INT) {",
        "Python reads such a number, too: the same one.",
    ),
    Unseen(
        "shmgpu/doctor/machine.py",
        'used = self.kib_field("/proc/meminfo", "Committed_AS") or 0',
        'used = self.kib_field("/proc/meminfo", "Committed_AS") or 1',
        "A byte of a limit that is told in MiB.",
    ),
    Unseen(
        "shmgpu/serve/protocol/json_reader.py",
        'if close - start < LONG_BYTES or text.find(b"[", start, close) >= 0:',
        'if close - start < LONG_BYTES or text.find(b"[", start, close) >= 1:',
        "What is looked for stands behind the name of its array, never first in the text.",
    ),
    Unseen(
        "csrc/broker/schedule.c",
        "r->function = NULL;",
        ";",
        "What is admitted without a function, such as room for a result, is told by its kind: "
        "nobody reads the function of one.",
    ),
    Unseen(
        "csrc/broker/listener.c",
        "for (int accepted = 0; accepted < ACCEPTS; accepted++) { "
        "/* the poll set reports the rest again */",
        "for (int accepted = 0; accepted <= ACCEPTS; accepted++) { "
        "/* the poll set reports the rest again */",
        "The bound is round: whether one more is accepted in a turn is nobody's matter.",
    ),
    Unseen(
        "shmgpu/serve/scheduling/lifecycle.py",
        'state["next_source"] += 1',
        'state["next_source"] += 2',
        "A number that is left out: each is given once, and nobody counts them.",
    ),
    Unseen(
        "shmgpu/helper/result_writer.py",
        "if call.declared and may_overlap:",
        "if (call.declared or may_overlap):",
        "Results are then written as unforeseen ones are: the same comes out, more slowly.",
    ),
    Unseen(
        "shmgpu/ops/formulas.py",
        "near = e.le(e.abs(e.sub(x, y)), e.add(e.mul(e.abs(y), rtol), atol))",
        "near = e.le(e.abs(e.sub(y, x)), e.add(e.mul(e.abs(y), rtol), atol))",
        "The absolute value of a difference of floats.",
    ),
    Unseen(
        "csrc/helper/rendezvous.c",
        "if (is_granted(&wish) || is_aborted()) return is_aborted() ? SHM_EABORTED : SHM_OK;",
        "if (is_granted(&wish) && is_aborted()) return is_aborted() ? SHM_EABORTED : SHM_OK;",
        "The wait that follows begins with the same look, and ends at once: some nanoseconds of it "
        "are counted.",
    ),
    Unseen(
        "shmgpu/helper/broadcasts.py",
        "report.output_bytes = min(max(left, 0), REPORT_BYTES)",
        "report.output_bytes = min(max(left, 1), REPORT_BYTES)",
        "No report fits a single byte: one that does not fit is left out, as where there is none.",
    ),
    Unseen(
        "shmgpu/engine/cuda_graphs.py",
        "program, backend, pool, as_one(Options.of_flags(ready.flags)), lends=True",
        "program, backend, pool, as_one(Options.of_flags(ready.flags)), lends=False",
        "On a device outcomes are then copied once more within the graph: the same come out.",
    ),
]
