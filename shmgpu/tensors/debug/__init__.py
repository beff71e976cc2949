"""What stands behind ``shmgpu.debug``: tapes, handles, ticks and saved traces, as data and as text.

Owns whether this process is debugging, and what each name of :mod:`shmgpu.debug` gives, under the
names that GT uses. Never changes what it looks at.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from shmgpu.child import runtime
from shmgpu.common import config, parsers
from shmgpu.common.logs import logger
from shmgpu.core import HELPER_READY, HELPER_STATES
from shmgpu.errors import ConfigError, ShmError
from shmgpu.tensors import functions
from shmgpu.tensors import recorder as recording
from shmgpu.tensors.debug import ledger, saved, ticks
from shmgpu.tensors.debug.rows import Handle, Instruction, Operation
from shmgpu.tensors.debug.tape import Tape, operation_of
from shmgpu.tensors.debug.ticks import Span, Tick
from shmgpu.watch.stats import stats
from shmgpu.watch.tables import align

LIMIT = 20_000  # rows of each tape


class NotDebugging(ShmError):
    """What is asked for is only known while debugging is on."""


_tape: Tape | None = None
_tick_ms = 10
_dir = ""


def enable(
    debug_dir: str | os.PathLike[str] | None = None,
    tick_rate_ms: int | None = None,
    limit: int = LIMIT,
) -> None:
    """Record what this child's tensors do from now on; earlier records are dropped.

    Args:
        debug_dir: folder that gets ``shmgpu-debug-RANK-PID.json`` when this child ends.
        tick_rate_ms: milliseconds of a tick of :func:`get_tick_trace`, 1 to 60,000.
        limit: rows that each tape keeps; older ones are dropped, and counted.

    Raises:
        ConfigError: a setting is out of range, or the folder cannot be made.
    """
    global _tape, _tick_ms, _dir
    _tick_ms = config.resolve("tick_rate_ms", tick_rate_ms)
    limit = parsers.parse_count(limit, "limit")
    folder = config.resolve("debug_dir", debug_dir)
    if folder:
        folder = parsers.parse_path(folder, "debug_dir")
    _dir = os.path.abspath(folder) if folder else ""
    if _dir:
        try:
            os.makedirs(_dir, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"debug_dir={_dir!r} cannot be made ({error.strerror}): name a folder that can"
            ) from error
    _tape = recording.observer = Tape(limit)
    if _at_end not in runtime.ending:
        runtime.ending.append(_at_end)


def disable() -> None:
    """Stop recording, and drop what was recorded."""
    global _tape
    _tape = recording.observer = None
    if _at_end in runtime.ending:
        runtime.ending.remove(_at_end)


def is_enabled() -> bool:
    """Whether debugging is on."""
    return _tape is not None


def _at_end() -> None:
    if _dir and _tape is not None:
        rank = 0 if runtime.current is None else runtime.current.rank
        path = pathlib.Path(_dir) / f"shmgpu-debug-{rank}-{os.getpid()}.json"
        try:
            save_debug_trace(path)
        except OSError as error:
            logger.warning("the debug trace was not saved: %s", error)
    disable()


def _on() -> Tape:
    if _tape is None:
        raise NotDebugging(
            "nothing was written down: call shmgpu.debug.enable() first, or start with "
            "debug=True or SHMGPU_DEBUG=1"
        )
    return _tape


# ---- the input tape ------------------------------------------------------------------------------


def get_tape() -> list[dict[str, Any]]:
    """The operations that this child recorded, oldest first.

    Those that wait to be needed are always known, and have the message 0; those before them are
    known while debugging is on. See :class:`shmgpu.debug.Operation` for the keys.
    """
    return [dataclasses.asdict(one) for one in _operations()]


def _operations() -> list[Operation]:
    rows = [] if _tape is None else list(_tape.operations)
    recorder = None if runtime.current is None else runtime.current.extra.get("recorder")
    if recorder is not None:
        rows += [operation_of(node) for node in recorder.waiting()]
    return rows


def print_tape() -> None:
    """The input tape as text."""
    _print("Input tape", _dropped("operations"), [
        ["message", "tensor", "", "type", "shape", "gradient"],
        *(
            [
                str(one.message or "waits"), f"#{one.tensor}", one.call, one.dtype,
                str(one.shape), "yes" if one.requires_grad else "",
            ]
            for one in _operations()
        ),
    ])  # fmt: skip


# ---- the output queue ----------------------------------------------------------------------------


def get_output_queue() -> list[dict[str, Any]]:
    """What became of the operations: on which helper they ran, what moved there, what was kept.

    See :class:`shmgpu.debug.Instruction` for the keys.
    """
    return [dataclasses.asdict(one) for one in _on().instructions]


def print_output_queue() -> None:
    """The output queue as text."""
    _print("Output queue", _dropped("instructions"), [
        ["message", "helper", "", "tensor", ""],
        *(
            [
                str(one.message), str(one.helper), one.kind,
                f"#{one.tensor}" if one.tensor else "", _details(one),
            ]
            for one in _on().instructions
        ),
    ])  # fmt: skip


def _details(one: Instruction) -> str:
    if one.kind == "RUN":
        return one.call
    if one.kind == "MEET":
        return f"{one.call}, {one.nbytes:,} bytes"
    if one.kind == "DIED":
        return "what it held is gone"
    if one.kind == "MOVE":
        return f"helper {one.source} -> helper {one.helper}, {one.nbytes:,} bytes"
    handle = f"handle {one.handle}" if one.handle else "in the arena"
    return f"{handle}, {one.nbytes:,} bytes" if one.nbytes else handle


def verify() -> int:
    """Check that every operation's inputs were with its helper, or a MOVE brought them there.

    The output queue is read from its beginning, and where each tensor lies is worked out anew.

    Returns:
        How many operations were checked.

    Raises:
        Unsound: an input was not there.
        NotDebugging: nothing was recorded.
    """
    tape = _on()
    return ledger.check(tape.before, tape.instructions)


# ---- handles, helpers, ticks ---------------------------------------------------------------------


def get_handles() -> list[dict[str, Any]]:
    """The tensors that helpers hold for this child, and where.

    See :class:`shmgpu.debug.Handle` for the keys.
    """
    return [dataclasses.asdict(one) for one in _handles()]


def _handles() -> list[Handle]:
    return sorted(_on().handles.values(), key=lambda one: one.tensor)


def print_handles() -> None:
    """The handles as text."""
    _print("Handles", 0, [
        ["tensor", "helper", "handle", "type", "shape", "bytes"],
        *(
            [
                f"#{one.tensor}", str(one.helper), str(one.handle), one.dtype, str(one.shape),
                f"{one.nbytes:,}",
            ]
            for one in _handles()
        ),
    ])  # fmt: skip


def get_worker_stats() -> dict[int, dict[str, Any]]:
    """By helper: its state, messages it has finished (of all children), milliseconds it was busy.

    Of its engines together: ``programs`` that they have ready, and what a device did with those
    that repeat: how many were ``captured`` as graphs, their ``replays``, and the ``fallbacks``
    (reason -> how many run operation by operation for it, or were captured again).

    While debugging is on also how many of this child's operations it ran, by name, and how many
    tensors of this child's it holds.
    """
    means = runtime.require()
    if means.inline:
        made: dict[int, dict[str, Any]] = {0: {"state": "inline"}}
        computing = {0}
    else:
        rows = stats()["helpers"]
        computing = {
            n for n, row in enumerate(rows) if row["pool"] == 0 and row["state"] == HELPER_READY
        }
        made = {
            number: {
                "state": HELPER_STATES[row["state"]],
                "pool": row["pool_name"],
                "messages": row["finished"],
                "busy_ms": row["busy_ns"] / 1e6,
                "in_flight": row["in_flight"],
            }
            for number, row in enumerate(rows)
        }
    for number, row in made.items():
        row.update(_engines(number) if number in computing else {})
        if _tape is not None:
            row["operations"] = dict(_tape.counts.get(number, {}))
            held = [one for one in _tape.handles.values() if one.helper == number]
            row["handles"] = len(held)
            row["nbytes"] = sum(one.nbytes for one in held)
    return made


def _engines(helper: int) -> dict[str, Any]:
    """What the engines of a helper have ready and captured; {} of one that does not answer."""
    try:
        engines = functions.engine_figures.options(helpers=[helper], timeout=_PATIENCE_S)()
    except ShmError:  # it died, or another call takes its time
        return {}
    fallbacks: dict[str, int] = {}
    for one in engines:
        for reason, count in one["fallbacks"].items():
            fallbacks[reason] = fallbacks.get(reason, 0) + count
    counted = {name: sum(one[name] for one in engines) for name in _ENGINE_COUNTS}
    return {**counted, "fallbacks": fallbacks}


_PATIENCE_S = 2.0
_ENGINE_COUNTS = ("programs", "captured", "replays")


def print_worker_stats() -> None:
    """The helpers as text."""
    lines = [
        ["helper", "state", "messages", "busy", "replays of graphs", "operations of this child", ""]
    ]
    reasons: dict[str, None] = {}
    for number, row in get_worker_stats().items():
        ran = row.get("operations", {})
        most = sorted(ran.items(), key=lambda item: -item[1])[:4]
        lines.append(
            [
                str(number), row["state"], f"{row.get('messages', 0):,}",
                f"{row.get('busy_ms', 0.0):,.1f} ms", f"{row.get('replays', 0):,}",
                f"{sum(ran.values()):,}",
                ", ".join(f"{count} {name}" for name, count in most),
            ]
        )  # fmt: skip
        reasons.update((reason, None) for reason in row.get("fallbacks", {}))
    _print("Helpers", 0, lines)
    for reason in reasons:
        print(f"  not replayed as a graph: {reason}")


def get_spans() -> list[Span]:
    """What helpers executed, when, and what it was, of all children where the broker tells."""
    return ticks.spans(_on())


def _ticks() -> tuple[list[Tick], int]:
    tape = _on()
    means = runtime.current
    helpers = set(tape.counts)
    if means is not None and not means.inline:
        helpers |= {n for n, row in enumerate(stats()["helpers"]) if row["state"] == HELPER_READY}
    return ticks.cut(ticks.spans(tape), sorted(helpers), tape.started_ns, _tick_ms)


def get_tick_trace() -> list[dict[str, Any]]:
    """For each tick since debugging began: the share that each helper was busy, and with what.

    See :class:`shmgpu.debug.Tick` for the keys.
    """
    return [dataclasses.asdict(one) for one in _ticks()[0]]


def print_tick_trace() -> None:
    """The ticks as text; a run of ticks in which nobody was busy is one line."""
    found, dropped = _ticks()
    lines = [["tick", "at", "helper", "", ""]]
    idle = 0
    for tick in found:
        if not any(tick.busy.values()):
            idle += 1
            continue
        if idle:
            lines.append(["", "", "all", "idle", f"for {idle} tick{'s' * (idle != 1)}"])
            idle = 0
        for helper, share in sorted(tick.busy.items()):
            running = "; ".join(tick.running[helper])
            state = f"busy {100 * share:.0f} %" if share else "idle"
            lines.append([str(tick.number), f"{tick.at_ms:g} ms", str(helper), state, running])
    _print(f"Ticks of {_tick_ms} ms", dropped, lines)


# ---- all of it as a file -------------------------------------------------------------------------


def save_debug_trace(path: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Write all of it to a file, for ``shmgpu trace``, Perfetto and programs.

    Args:
        path: of the file; ``shmgpu-debug-RANK-PID.json`` in the current folder, by default.

    Returns:
        Where it is.

    Raises:
        NotDebugging: nothing was recorded.
    """
    tape = _on()
    rank = 0 if runtime.current is None else runtime.current.rank
    name = f"shmgpu-debug-{rank}-{os.getpid()}.json"
    place = pathlib.Path(name if path is None else parsers.parse_path(path, "path"))
    found, dropped_ticks = _ticks()
    saved.write(
        place,
        tape,
        spans=ticks.spans(tape),
        rank=rank,
        parts={
            "tape": get_tape(),
            "output_queue": get_output_queue(),
            "handles": get_handles(),
            "tick_trace": [dataclasses.asdict(one) for one in found],
            "worker_stats": get_worker_stats() if runtime.current is not None else {},
            "tick_rate_ms": _tick_ms,
            "dropped": {**get_dropped(), "ticks": dropped_ticks},
        },
    )
    return place


def get_dropped() -> dict[str, int]:
    """How many rows of each tape were dropped, because the tapes are bounded."""
    tape = _on()
    return {
        "operations": tape.operations.dropped,
        "instructions": tape.instructions.dropped,
        "messages": tape.messages.dropped,
    }


def _dropped(kind: str) -> int:
    return 0 if _tape is None else get_dropped()[kind]


def _print(title: str, dropped: int, lines: Sequence[Sequence[str]]) -> None:
    print(title + (f" ({dropped:,} older rows were dropped)" if dropped else ""))
    if len(lines) == 1:
        print("  nothing")
        return
    text = align(lines, left=range(len(lines[0])))
    print("\n".join(f"  {line}".rstrip() for line in text.splitlines()))


print_input_tape, get_input_tape = print_tape, get_tape
