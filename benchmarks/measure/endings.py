"""How a command ends when somebody ends it: Ctrl-C, SIGTERM, a pipe whose reader has left.

None of the three is a failure of the suite, so none leaves a traceback. The signals are exceptions
(KeyboardInterrupt, SystemExit), so that probes are ended and their files removed on the way out.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENDINGS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED = 128 + signal.SIGINT
READER_LEFT = 128 + signal.SIGPIPE


def run(main: Callable[[], int]) -> int:
    """Return the exit status of ``main()``, or of what ended it."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        status = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nobody to go to; the interpreter would try once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_LEFT
    return status


@contextmanager
def held() -> Iterator[None]:
    """Let an end wait until the block is left.

    For whoever starts a process: an exception between the fork and its number's return would leave
    a process that nobody knows. Threads other than the main one are never interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {end: signal.signal(end, lambda number, _: came.append(number)) for end in ENDINGS}
    try:
        yield
    finally:
        for end, handler in before.items():
            signal.signal(end, handler)
        for number in came:
            signal.raise_signal(number)


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)
