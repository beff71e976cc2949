"""The gang that runs a program with collectives, as one of its members sees it.

Owns the interface of a gang's collectives, and which gang this thread is in. Never exchanges
anything: :mod:`shmgpu.collectives.programs` implements the interface.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Finish = Callable[[], None]


class Gang(Protocol):
    """Helpers that run the parts of one program, as one of them sees the others.

    Arrays belong to the library that computes, have one axis and are contiguous. Several arrays
    count as one, end to end. Each method returns when this member is done. With ``wait=False`` it
    may return before that, and returns a function that waits; the caller must leave ``arrays`` and
    ``out`` alone until it has called that.
    """

    rank: int  # the member's own

    def all_reduce(
        self,
        number: int,
        members: tuple[int, ...],
        op: str,
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: the reduction of everybody's arrays, in the order of ranks.

        ``op``: the reduction; where an algorithm is asked for, it stands behind a slash.
        """

    def all_gather(
        self,
        number: int,
        members: tuple[int, ...],
        counts: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: everybody's arrays in the order of members, so many elements of each."""

    def reduce_scatter(
        self,
        number: int,
        members: tuple[int, ...],
        op: str,
        counts: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``out``: the member's own part of the reduction; each member has so many elements."""

    def all_to_all(
        self,
        number: int,
        members: tuple[int, ...],
        sent: tuple[int, ...],
        received: tuple[int, ...],
        arrays: Sequence[Any],
        out: Any,
        *,
        wait: bool = True,
    ) -> Finish | None:
        """``arrays``: elements for each member in order; ``out``: what each has for this one."""


class _Running(threading.local):
    """What this thread runs now."""

    gang: Gang | None = None
    started: dict[int, Callable[[], Any]]
    arrive: Callable[[], None] | None = None
    tell: Callable[[Sequence[Any]], None] | None = None


_running = _Running()


class _Membership:  # a generator in its place would cost as much as a small program
    __slots__ = ("_arrive", "_before", "_gang", "_tell")

    def __init__(
        self,
        gang: Gang,
        arrive: Callable[[], None] | None,
        tell: Callable[[Sequence[Any]], None] | None,
    ) -> None:
        self._gang = gang
        self._arrive = arrive
        self._tell = tell

    def __enter__(self) -> None:
        self._before = _running.gang, _running.arrive, _running.tell
        _running.gang, _running.started = self._gang, {}
        _running.arrive, _running.tell = self._arrive, self._tell

    def __exit__(self, *error: object) -> None:
        _running.gang, _running.arrive, _running.tell = self._before
        _running.started.clear()


def member_of(
    gang: Gang,
    arrive: Callable[[], None] | None = None,
    tell: Callable[[Sequence[Any]], None] | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Make this thread a member of the gang for a while.

    Args:
        gang: the others.
        arrive: what commits its program.
        tell: what gives the caller the results of a program that says them early.
    """
    return _Membership(gang, arrive, tell)


def current() -> Gang:
    """The gang that runs this thread's program.

    Raises:
        RuntimeError: none does.
    """
    if _running.gang is None:
        raise RuntimeError("this program meets other helpers, and was not sent to a gang of them")
    return _running.gang


def started() -> dict[int, Callable[[], Any]]:
    """Collectives that this thread began and has not waited for: what ends each, by its number."""
    return _running.started


def commit() -> None:
    """Tell the others that all that may fail is done here; return when all have said so.

    Raises:
        GangAborted: another member failed or died.
    """
    if _running.arrive is not None:
        _running.arrive()


def say(results: Sequence[Any]) -> None:
    """Give the caller these, though the program goes on."""
    if _running.tell is not None:
        _running.tell(results)
