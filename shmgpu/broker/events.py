"""What happened to a broker's processes, as one structured line of the log each.

Owns the wording: an event of the supervisor becomes a record of the logger ``shmgpu`` whose message
reads ``helper_died role="helper 0" cause="killed by SIGSEGV" action="replaced at once" ...`` and
whose ``event`` attribute is a dictionary of these fields. Reads two of the kernel's counters; never
decides anything and never ends a process.
"""

from __future__ import annotations

import logging
import pathlib
import signal
from collections.abc import Callable
from typing import Any

from shmgpu import core
from shmgpu.common.logs import logger

VMSTAT = "/proc/vmstat"  # has the kernel's count of processes it killed for want of memory
LET_GO = 2  # the attempts of one that died when its pool needed it no longer

Fields = dict[str, Any]


def emit(level: int, kind: str, **fields: Any) -> None:
    """Write one event: fields that are None are left out."""
    event: Fields = {"kind": kind}
    event.update((name, value) for name, value in fields.items() if value is not None)
    logger.log(level, "%s", line(event), extra={"event": event})


def line(event: Fields) -> str:
    """``kind name=value name="a value"``, one line whatever the values hold."""
    words = [str(event["kind"])]
    for name, value in event.items():
        if name == "kind":
            continue
        text = str(value)
        if not text or any(c.isspace() or c in '"=\\' or not c.isprintable() for c in text):
            text = text.replace("\\", "\\\\").replace('"', '\\"')
            text = '"' + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + '"'
        words.append(f"{name}={text}")
    return " ".join(words)


def describe_exit(status: int) -> str:
    """``exit status 3``, or ``killed by SIGKILL``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


class MemoryKills:
    """Whether the kernel has killed anybody for want of memory since the last look."""

    def __init__(self) -> None:
        self._seen = self._count()

    def _count(self) -> int:
        try:
            text = pathlib.Path(VMSTAT).read_text(encoding="ascii")
        except OSError:
            return 0
        return next(
            (int(row.split()[1]) for row in text.splitlines() if row.startswith("oom_kill ")), 0
        )

    def rose(self) -> bool:
        """True once for any number of such kills."""
        before, self._seen = self._seen, self._count()
        return self._seen > before


class Causes:
    """Says why a process ended."""

    def __init__(self) -> None:
        self._memory = MemoryKills()

    def of(self, event: dict[str, int]) -> str:
        """Of a helper_died, helper_failed or child_ended event."""
        how = describe_exit(event["exit_status"])
        ended_by_us = {
            core.REASON_HUNG: f"a call exceeded its function's hang_after: {how}",
            core.REASON_PROTOCOL: f"it broke the protocol again and again: {how}",
            core.REASON_ENDING: f"told to end: {how}",
            core.REASON_BROADCAST: f"a broadcast failed there: {how}",
        }
        if event["reason"] in ended_by_us:
            return ended_by_us[event["reason"]]
        if event["exit_status"] == 0 and event["is_failure"]:
            return f"{how} before its main had ended"
        if event["exit_status"] == -signal.SIGKILL and self._memory.rose():
            return f"{how}, likely out of memory"
        return how


def helper_started(event: dict[str, int], **_: Any) -> None:
    """A helper was forked; the first of its slot is no news."""
    if event["generation"] > 1:
        emit(logging.INFO, "helper_respawned", **_who("helper", event), deaths=event["deaths"])


def helper_ready(event: dict[str, int], **_: Any) -> None:
    """A helper has made its session."""
    emit(logging.INFO, "helper_ready", **_who("helper", event))


def helper_failed(event: dict[str, int], *, cause: str, **_: Any) -> None:
    """A session function raised."""
    emit(
        logging.ERROR,
        "helper_failed",
        **_who("helper", event),
        cause=f"could not make its session: {cause}",
        action=_replacement(event),
    )


def helper_died(event: dict[str, int], *, cause: str, stack: str, **_: Any) -> None:
    """A helper ended unasked."""
    name = core.function_name(event["function"]) if event["function"] else None
    emit(
        logging.ERROR,
        "helper_died",
        **_who("helper", event),
        cause=cause,
        function=name,
        deaths=event["deaths"],
        action=_replacement(event),
        stack="next record" if stack else "none was left",
    )
    _emit_stack("helper", event, stack)


def helper_hung(event: dict[str, int], **_: Any) -> None:
    """A call exceeded hang_after."""
    emit(
        logging.ERROR,
        "helper_hung",
        **_who("helper", event),
        cause="a call exceeded its function's hang_after",
        action="told to abort, killed a second later, then replaced",
        stack="with its death",
    )


def child_started(event: dict[str, int], **_: Any) -> None:
    """A child was forked; the first of its slot is no news."""
    if event["attempts"]:
        emit(logging.INFO, "child_restarted", **_who("child", event), restarts=event["attempts"])


def child_ended(
    event: dict[str, int], *, cause: str, stack: str, restarts_left: int, is_told: bool, **_: Any
) -> None:
    """A child ended; one that failed is an error."""
    if not event["is_failure"]:
        emit(logging.DEBUG, "child_ended", **_who("child", event), cause=cause)
        return
    where = "next record" if stack else "none was left"
    if event["is_final"]:
        action = "the launch ends"
        if not stack and is_told:
            where = "with the ChildError"
    else:
        cleared = "as soon as its arena is cleared"
        action = f"restarted {_in(event)}, {cleared}; {restarts_left} restarts left"
    emit(
        logging.ERROR,
        "child_failed",
        **_who("child", event),
        cause=cause,
        action=action,
        stack=where,
    )
    _emit_stack("child", event, stack)


def helper_delayed(event: dict[str, int], **_: Any) -> None:
    """A dead helper's replacement could not be forked."""
    _delayed("helper", event)


def child_delayed(event: dict[str, int], **_: Any) -> None:
    """A child could not be forked again."""
    _delayed("child", event)


def _delayed(role: str, event: dict[str, int]) -> None:
    emit(
        logging.WARNING,
        f"{role}_delayed",
        **_who(role, event),
        cause=f"it could not be started: {core.error_detail()}",
        attempts=event["attempts"],
        action=f"tried again {_in(event)}",
    )


def child_cleared(event: dict[str, int], **_: Any) -> None:
    """A dead child's arena is zero again."""
    emit(logging.DEBUG, "child_cleared", **_who("child", event))


def child_joined(event: dict[str, int], **_: Any) -> None:
    """A process that was not forked here took a slot."""
    emit(logging.INFO, "child_joined", **_who("child", event))


def child_left(event: dict[str, int], **_: Any) -> None:
    """It left, or died: it was not ours to ask."""
    emit(logging.INFO, "child_left", **_who("child", event), action="its slot is cleaned")


def child_refused(event: dict[str, int], **_: Any) -> None:
    """A process that asked to join was sent away."""
    emit(
        logging.WARNING,
        "child_refused",
        role="parent",
        cause=core.status_text(event["exit_status"]),
        action="sent away",
    )


def child_protocol(event: dict[str, int], **_: Any) -> None:
    """A child sent what no child may send, again and again."""
    emit(
        logging.ERROR,
        "child_protocol",
        **_who("child", event),
        cause="it broke the protocol again and again",
        action="killed",
    )


def draining(event: dict[str, int], **_: Any) -> None:
    """The broker was told to end, or has to."""
    signalled = event["exit_status"] == core.ESIGNALLED
    emit(
        logging.INFO,
        "draining",
        role="parent",
        cause=core.status_text(event["exit_status"]),
        action="what helpers hold is finished, then children are told to end"
        if signalled
        else "children are told to end",
    )


def idle(event: dict[str, int], **_: Any) -> None:
    """The broker ends because no program is joined."""
    emit(
        logging.INFO,
        "idle",
        role="parent",
        cause=f"nobody has been joined for {event['delay_ns'] / 1e9:g} s",
        action="the broker ends",
    )


def helper_retired(event: dict[str, int], **_: Any) -> None:
    """One that its pool no longer needs has ended."""
    emit(
        logging.INFO,
        "helper_retired",
        **_who("helper", event),
        cause="its pool needs fewer",
        action="it finished what it held, and ended",
    )


def helper_unloaded(event: dict[str, int], **_: Any) -> None:
    """One that was idle for long has ended, and its memory is given back."""
    emit(
        logging.INFO,
        "helper_unloaded",
        **_who("helper", event),
        cause="no call had come for long",
        action="another process takes its place, which loads when a call comes",
    )


def scale_refused(event: dict[str, int], *, pool: str, **_: Any) -> None:
    """Somebody asked for what a pool cannot have, or was not the one to ask."""
    emit(
        logging.WARNING,
        "scale_refused",
        role="parent",
        pool=pool,
        helpers=event["attempts"],
        cause=core.error_detail() or core.status_text(event["exit_status"]),
    )


def scaled(event: dict[str, int], *, pool: str, **_: Any) -> None:
    """A pool is to have more helpers, or fewer."""
    emit(
        logging.INFO,
        "scaled",
        role="parent",
        pool=pool,
        helpers=event["attempts"],
        before=event["deaths"],
    )


def paused(event: dict[str, int], *, pool: str, **_: Any) -> None:
    """A pool starts no more calls."""
    emit(
        logging.INFO,
        "paused",
        role="parent",
        pool=pool,
        cause="shmgpu pause",
        action="its calls wait until shmgpu resume",
    )


def resumed(event: dict[str, int], *, pool: str, **_: Any) -> None:
    """A paused pool goes on."""
    emit(logging.INFO, "resumed", role="parent", pool=pool, cause="shmgpu resume")


WRITERS: dict[str, Callable[..., None]] = {
    writer.__name__: writer
    for writer in (
        helper_started,
        helper_ready,
        helper_failed,
        helper_died,
        helper_hung,
        child_started,
        child_ended,
        child_cleared,
        helper_delayed,
        child_delayed,
        child_joined,
        child_left,
        child_refused,
        child_protocol,
        draining,
        helper_retired,
        helper_unloaded,
        idle,
        scaled,
        scale_refused,
        paused,
        resumed,
    )
}


def _who(role: str, event: dict[str, int]) -> Fields:
    return {
        "role": f"{role} {event['index']}",
        "pid": event["pid"] or None,
        "generation": event["generation"] or None,
    }


def _in(event: dict[str, int]) -> str:
    return f"in {event['delay_ns'] / 1e9:g} s" if event["delay_ns"] else "at once"


def _replacement(event: dict[str, int]) -> str:
    if event["attempts"] == LET_GO:
        return "not replaced: its pool needs fewer"
    if not event["is_final"]:
        tried = "given up, and tried again" if event["attempts"] else "replaced"
        return f"{tried} {_in(event)}"
    return "not replaced: the launch ends"


def _emit_stack(role: str, event: dict[str, int], stack: str) -> None:
    if stack:
        record = {"kind": "stack", **_who(role, event), "stack": stack}
        logger.error(
            "the stack of %s %d:\n%s", role, event["index"], stack, extra={"event": record}
        )
