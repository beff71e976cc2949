"""The command line and programs, run in a runtime directory of a test's own."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import shmgpu

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 60.0


class Place:
    """A runtime directory, and what is run in it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.path = directory / "broker.sock"
        package = str(pathlib.Path(shmgpu.__file__).parents[1])
        found = os.pathsep.join([str(HERE), package, os.environ.get("PYTHONPATH", "")])
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"},
            "PYTHONPATH": found,
            "XDG_CONFIG_HOME": str(directory / "config"),
            "SHMGPU_SOCKET": str(self.path),
        }

    def start(
        self, *words: str, stdin: Any = subprocess.DEVNULL, **more: str
    ) -> subprocess.Popen[str]:
        """A process of a Python program, or of the command line (``shmgpu``)."""
        return subprocess.Popen(
            [
                sys.executable,
                *(["-m", "shmgpu.cli.main", *words[1:]] if words[0] == "shmgpu" else words),
            ],
            env={**self.environment, **more},
            cwd=self.directory,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **more: str) -> tuple[int, str, str]:
        """To its end: exit status, output, complaints."""
        process = self.start(*words, **more)
        try:
            said, complained = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return process.returncode, said, complained

    def program(self, code: str, **more: str) -> str:
        """What a program that must end well prints."""
        status, said, complained = self.run("-c", code, **more)
        assert status == 0, complained
        return said.strip()

    @contextlib.contextmanager
    def up(self, *words: str, **more: str) -> Iterator[Broker]:
        """A broker in the foreground, once programs can join."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
            news.bind("\0shmgpu-test-" + os.urandom(8).hex())
            more["NOTIFY_SOCKET"] = "@" + news.getsockname()[1:].decode()
            process = self.start(
                *("shmgpu", "up", "--arena", "1MiB", "--devices", "cpu", "--threads", "1"),
                *words,
                "served_here",
                **more,
            )
            broker = Broker(process, news)
            try:
                broker.hear("READY=1")
                yield broker
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                broker.end()
            finally:
                if process.poll() is None:
                    process.kill()
                process.communicate()


class Broker:
    """One that runs in the foreground, and what it tells the service manager."""

    def __init__(self, process: subprocess.Popen[str], news: socket.socket) -> None:
        self.process = process
        self.news = news
        self.heard: list[str] = []

    def hear(self, word: str) -> str:
        """The first thing told from now on that holds that word."""
        deadline = time.monotonic() + DEADLINE_S
        self.news.settimeout(0.05)
        while time.monotonic() < deadline:
            try:
                told = self.news.recv(4096).decode()
            except TimeoutError:
                assert self.process.poll() is None, self.process.communicate()[1]
                continue
            self.heard.append(told)
            if word in told:
                return told
        raise AssertionError(f"{word} was not told, but {self.heard}")

    def end(self) -> str:
        """Wait for its end, which must be a good one; what it had to say."""
        said, complained = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, complained
        return said + complained


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.01)
    return value


@contextlib.contextmanager
def starting_by_themselves(directory: pathlib.Path, **more: str) -> Iterator[Place]:
    """A place whose programs start small brokers, which are ended with the block."""
    place = Place(directory)
    place.environment |= {
        "SHMGPU_AUTO": "start",
        "SHMGPU_ARENA": "1MiB",
        "SHMGPU_THREADS": "1",
        "SHMGPU_IDLE_TIMEOUT": "20",
        **more,
    }
    try:
        yield place
    finally:
        if any(path.is_socket() for path in directory.iterdir()):
            place.run("shmgpu", "down", "--all")
