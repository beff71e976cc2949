"""Run the test suite as two halves side by side: many of its tests wait, and there are two cores.

    python tests/side_by_side.py

The halves are directories. What the first prints is shown as it comes, the other's when it has
ended. The exit status is 0 when both passed. With arguments, pytest runs once, with these.
"""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent
SHOWN = ("attach", "broker", "crash", "hostile")  # they wait for processes
BESIDE_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    """Run what was asked for: the exit status."""
    if arguments:
        return subprocess.call([sys.executable, "-m", "pytest", *arguments])
    shown = [str(TESTS / name) for name in SHOWN]
    others = [str(one) for one in sorted(TESTS.iterdir()) if one.is_dir() and one.name not in SHOWN]
    environment = {**os.environ, "SHMGPU_TESTS_BESIDE": "1"}
    with tempfile.TemporaryFile("w+") as kept:
        other = _start(others, environment, kept)
        try:
            first = _start(shown, environment, None)
            try:
                status = first.wait()
            finally:
                _end(first)
            while other.poll() is None:
                time.sleep(BESIDE_SECONDS)
        finally:
            _end(other)
            kept.seek(0)
            sys.stdout.write(kept.read())
            sys.stdout.flush()
    return status or other.returncode


def _start(paths: list[str], environment: dict[str, str], output: object) -> subprocess.Popen:
    # Each has a cache of its own for what failed last: two would write to the same file.
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *paths]
    return subprocess.Popen(words, env=environment, stdout=output, stderr=output)


def _end(process: subprocess.Popen) -> None:
    """As a time limit ends a run: with the stacks, where it still runs."""
    if process.poll() is None:
        process.send_signal(signal.SIGABRT)
        process.wait()


def _told(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _told)
    signal.signal(signal.SIGABRT, _told)
    raise SystemExit(main(sys.argv[1:]))
