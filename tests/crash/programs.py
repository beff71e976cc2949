"""Programs for tests whose parent dies, or that need a process of their own.

A program is a function of a test file; the file ends with ``programs.main(globals())`` and is run
as a module. So a program is read, linted and debugged as any other function. It says what it has
reached by :func:`say`, a line at a time, because lines of several processes must not mix.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import shmgpu

TESTS = pathlib.Path(__file__).resolve().parents[1]
DEADLINE_S = 20.0


def main(names: Mapping[str, Any]) -> None:
    """Be the program that the command line names."""
    if names["__name__"] == "__main__":
        names[sys.argv[1]](*sys.argv[2:])


def say(*words: object) -> None:
    """One line to standard output, in one write."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def command(program: Callable[..., Any], *args: object) -> list[str]:
    module = f"crash.{pathlib.Path(program.__code__.co_filename).stem}"
    return [sys.executable, "-m", module, program.__name__, *map(str, args)]


def environment() -> dict[str, str]:
    """Ours, with this folder and the very package that is tested here on the path."""
    package = str(pathlib.Path(shmgpu.__file__).parents[1])
    path = os.pathsep.join([str(TESTS), package, os.environ.get("PYTHONPATH", "")])
    ours = {**os.environ, "PYTHONPATH": path}
    ours.pop("PYTHONUNBUFFERED", None)  # what is held back is what may be written twice
    return ours


class Running:
    """A program in a session of its own: everything it forks can be found, and is ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid

    def line(self) -> str:
        """The next line it says; fails when it ends without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=DEADLINE_S)
            pytest.fail(f"the program ended with {self.process.returncode}: {errors}")
        return line.strip()

    def lines(self, count: int) -> list[str]:
        return [self.line() for _ in range(count)]

    def others(self) -> list[int]:
        """Living processes of its session, itself left out."""
        return [pid for pid in of_session(self.pid) if pid != self.pid]

    def end(self) -> tuple[str, str]:
        """What it has still to say, when it has ended by itself."""
        return self.process.communicate(timeout=60)


@contextlib.contextmanager
def start(
    program: Callable[..., Any], *args: object, before: Sequence[str] = (), **settings: Any
) -> Iterator[Running]:
    """Run a program, ``before`` in front of its command. Nothing of it outlives the block."""
    process = subprocess.Popen(
        [*before, *command(program, *args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=settings.pop("stdin", subprocess.DEVNULL),
        text=True,
        start_new_session=True,
        env=environment(),
        **settings,
    )
    running = Running(process)
    try:
        yield running
    finally:
        for pid in of_session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.communicate(timeout=DEADLINE_S)


def run(
    program: Callable[..., Any], *args: object, before: Sequence[str] = (), **settings: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    with start(program, *args, before=before, **settings) as running:
        out, errors = running.end()
        return subprocess.CompletedProcess([], running.process.returncode, out, errors)


def result(program: Callable[..., Any], *args: object, **settings: Any) -> list[str]:
    """The lines of a program that must end well."""
    done = run(program, *args, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# ---- looking at processes ------------------------------------------------------------------


def stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty when it has gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def is_alive(pid: int) -> bool:
    fields = stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def of_session(session: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat(int(name))
            if fields and fields[3] == str(session) and fields[0] not in "ZX":
                found.append(int(name))
    return found


def cpu_ticks(pid: int) -> int:
    """Processor time it has used, user and system, in clock ticks."""
    fields = stat(pid)
    return int(fields[11]) + int(fields[12])


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> Any:
    """Wait for a condition; returns what it returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds:g} s not: {what}")
        time.sleep(0.005)
    return found


# ---- what this machine allows --------------------------------------------------------------


@functools.cache
def _works(*words: str) -> bool:
    try:
        return subprocess.run(words, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


def needs(*words: str) -> tuple[str, ...]:
    """``words``, to be put before a command; skips the test where they cannot be run."""
    if not _works(*words, "true"):
        pytest.skip(f"this machine does not allow: {' '.join(words)}")
    return words
