"""SIGTERM in a child unwinds it, so that ``finally`` blocks run; what a child forks just ends.

An exception raised by a signal handler can be lost: hooks after a fork swallow it, and the
interpreter forgets a signal that arrives while it sets itself up there. Whoever asked such a
process to end, as ``multiprocessing.Pool`` asks its workers, would wait forever. So SIGTERM is
held back during a fork, and has its usual meaning afterwards.

Owns that handler. Never changes one that the user's code has set.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

SIGNAL_BASE = 128  # as a shell shows who was ended by a signal
STATUS = SIGNAL_BASE + signal.SIGTERM  # of a child that was told to end, and did in order
_forking = threading.local()  # .mask: what was blocked before
_hooks_are_set = False


def unwind() -> None:
    """From here on SIGTERM raises ``SystemExit`` in this process, and in none that it forks."""
    global _hooks_are_set
    if not _hooks_are_set:
        os.register_at_fork(
            before=_keep_back, after_in_parent=_let_in, after_in_child=_end_as_any_process
        )
        _hooks_are_set = True
    signal.signal(signal.SIGTERM, _unwind)


def end_at_once() -> None:
    """From here on SIGTERM ends this process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unwind(number: int, frame: Any) -> None:
    raise SystemExit(STATUS)


def _keep_back() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _end_as_any_process() -> None:
    # A thread of a child may fork: it is the main thread of the new process.
    if signal.getsignal(signal.SIGTERM) is _unwind:
        end_at_once()
    _let_in()
