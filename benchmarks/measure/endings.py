"""How a command ends when somebody ends it: Ctrl-C, SIGTERM, a pipe whose reader has left.

None of the three is a failure of the suite, so none leaves a traceback. The signals are exceptions
(KeyboardInterrupt, SystemExit), so that probes are ended and their files removed on the way out.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

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


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)
