"""Brokers of ``shmgpu up`` for tests, each in a process of its own, and what is seen of them."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmgpu

TESTS = pathlib.Path(__file__).resolve().parents[1]
DEADLINE_S = 30.0


def environment(**more: str) -> dict[str, str]:
    """Ours, with the tests and the very package that is tested on the path."""
    package = str(pathlib.Path(shmgpu.__file__).parents[1])
    path = os.pathsep.join([str(TESTS), package, os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def up(
    path: pathlib.Path, *modules: str, before: tuple[str, ...] = (), **settings: Any
) -> Iterator[subprocess.Popen[str]]:
    """A broker that is ready to be joined at ``path``; it ends, in order, with the block.

    ``before``: words before the interpreter's, as :func:`as_nobody` gives them.
    """
    settings = {"slots": 3, "helpers": 2, "devices": "cpu", "arena": "1MiB", **settings}
    code = (
        "import sys, shmgpu.broker.daemon as d\n"
        "try:\n"
        f"    d.up({list(modules) or ['attach.served']!r}, path={str(path)!r}, **{settings!r})\n"
        "except SystemExit as end:\n"
        "    sys.exit(0 if end.code == 128 + 15 else end.code)\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
        news.bind("\0shmgpu-test-" + os.urandom(8).hex())
        news.settimeout(DEADLINE_S)
        address = "@" + news.getsockname()[1:].decode()
        process = subprocess.Popen(
            [*before, sys.executable, "-c", code],
            env=environment(NOTIFY_SOCKET=address),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: process.poll() is not None or _is_ready(news), "the broker is ready")
            assert process.poll() is None, process.stderr.read()
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in (0, -signal.SIGKILL), said


def _is_ready(news: socket.socket) -> bool:
    news.settimeout(0.01)
    try:
        return b"READY=1" in news.recv(4096)
    except TimeoutError:
        return False


def program(
    code: str, *, before: tuple[str, ...] = (), **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    return subprocess.run(
        [*before, sys.executable, "-c", code], env=environment(**more),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def said(code: str, **more: Any) -> str:
    """What a program that must end well prints."""
    done = program(code, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


NOBODY = ("setpriv", "--reuid", "65534", "--regid")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def as_nobody(*groups: str, first: str = "65534") -> tuple[str, ...]:
    """For ``before=``: another user, in these groups; skips where that one cannot run Python."""
    rest = ["--groups", ",".join(groups)] if groups else ["--clear-groups"]
    if not _nobody_runs_python():
        pytest.skip("another user cannot run this interpreter: is it in root's home?")
    return (*NOBODY, first, *rest)


@functools.cache
def _nobody_runs_python() -> bool:
    words = (*NOBODY, "65534", "--clear-groups", sys.executable, "-c", "import numpy")
    return subprocess.run(words, capture_output=True).returncode == 0
