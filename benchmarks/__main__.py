"""``python -m benchmarks``."""

import signal
import sys

from benchmarks.cli import main


def _leave(number: int, frame: object) -> None:
    """End as for an exception, so that probes are ended and their files removed."""
    sys.exit(128 + number)


signal.signal(signal.SIGTERM, _leave)
sys.exit(main())
