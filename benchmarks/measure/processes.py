"""What workloads about processes share: how big one is, what it used, and a bare one beside it.

A ``BareWorker`` is what is left of a helper or child when all that shmgpu does is taken away: a
fork and two pipes. It is the limit that starting, replacing and keeping processes is held against.
"""

from __future__ import annotations

import math
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.measure.figures import ProbeFailed

MIB = 1 << 20
LOOK_AGAIN_S = 0.02
ENDED = "ZX"  # states of proc(5): waits to be asked for, is being taken away
_LENGTH = struct.Struct("<I")


def modules(with_torch: bool) -> tuple[str, ...]:
    """Return what a probe needs that runs shmgpu, with torch or without."""
    return ("shmgpu", "torch") if with_torch else ("shmgpu",)


def import_torch(wanted: bool) -> None:
    """Make this process as large as a user's: forks have to cope with torch's many objects."""
    if wanted:
        import torch  # noqa: F401


def memory_mib(pid: int | str = "self") -> tuple[float, float]:
    """Return a process's private dirty pages and its proportional share of all, in MiB.

    A process that looks at itself writes to some 400 KiB of pages more, once it has looked.
    """
    text = _proc(str(pid), "smaps_rollup")
    return _rollup(text, "Private_Dirty"), _rollup(text, "Pss")


def _rollup(text: str, key: str) -> float:
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    if match is None:
        raise ProbeFailed(f"/proc has no {key} of a process")
    return int(match[1]) * 1024 / MIB


def private_mib(pid: int) -> float:
    """Return the pages that only this process has, written to or not, in MiB."""
    text = _proc(str(pid), "smaps_rollup")
    return _rollup(text, "Private_Dirty") + _rollup(text, "Private_Clean")


def resident_mib(pid: int) -> float:
    """Return what a process (0: this one) has in memory, in MiB."""
    status = _proc(str(pid) if pid else "self", "status")
    return _rollup(status, "VmRSS")


def cpu_ticks(pid: int) -> int:
    """Return the clock ticks of user and system time that a process has used."""
    fields = _stat(str(pid))
    return int(fields[11]) + int(fields[12])


def cpu_ns(pid: int) -> float:
    """Return the nanoseconds a process's first thread has run; NaN where the kernel is silent."""
    try:
        return float(_proc(str(pid), "schedstat").split()[0])
    except OSError:
        return math.nan


def all_threads_ns(pid: int) -> float:
    """Return the processor time that the living threads of a process (0: this one) have had."""
    who = str(pid) if pid else "self"
    tasks = os.listdir(f"/proc/{who}/task")
    return sum(float(_proc(f"{who}/task/{task}", "schedstat").split()[0]) for task in tasks)


@contextmanager
def busy_neighbours(count: int = 2) -> Iterator[None]:
    """Keep as many cores busy with processes that have nothing to do with the measured ones."""
    program = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    running = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(count)]
    try:
        time.sleep(0.3)  # they have started
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def children_of(pid: int) -> list[int]:
    """Return the ids of what a process has forked, in order; of a dispatcher, its helpers first."""
    return [int(one) for one in _proc(str(pid), f"task/{pid}/children").split()]


def runs(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    try:
        return _stat(str(pid))[0] not in ENDED
    except OSError:
        return False


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's children, of theirs, and so on."""
    children: dict[int, list[int]] = {}
    for one, (_, parent, *_) in _stats():
        children.setdefault(int(parent), []).append(one)
    found: list[int] = []
    look = [pid]
    while look:
        mine = children.get(look.pop(), [])
        found += mine
        look += mine
    return found


def await_that(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until that is so, at most as long."""
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(LOOK_AGAIN_S)


def group_runs(group: int) -> bool:
    """Whether a process of that group has not ended."""
    return any(int(of) == group and state not in ENDED for _, (state, _, of, *_) in _stats())


def _stats() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            yield int(folder.name), _stat(folder.name)


def _stat(who: str) -> list[str]:
    """Return what /proc says from the state on: state, parent, group and so on, see proc(5)."""
    # The name may hold spaces and brackets: the fields count from behind the last one.
    return _proc(who, "stat").rpartition(")")[2].split()


def _proc(who: str, name: str) -> str:
    return (Path("/proc") / who / name).read_text()


class BareWorker:
    """A forked process that answers every request over two pipes with ``serve(request)``."""

    def __init__(self, serve: Callable[[bytes], bytes]) -> None:
        request_in, self._request = os.pipe()
        self._answer, answer_out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._request)
                os.close(self._answer)
                while request := _receive(request_in):
                    _send(answer_out, serve(request))
            finally:
                os._exit(0)
        os.close(request_in)
        os.close(answer_out)

    def ask(self, request: bytes) -> bytes:
        """Return the answer to a request that is not empty. Raises ProbeFailed."""
        _send(self._request, request)
        answer = _receive(self._answer)
        if not answer:
            raise ProbeFailed("a bare worker died")
        return answer

    def kill(self) -> None:
        """End the process by SIGKILL and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self) -> None:
        """Close the pipes, which ends the process, and wait until it is gone.

        Younger workers hold this one's write end as well, as forks do: end the youngest first.
        """
        os.close(self._request)
        os.close(self._answer)
        os.waitpid(self.pid, 0)


def _send(fd: int, message: bytes) -> None:
    os.write(fd, _LENGTH.pack(len(message)) + message)


def _receive(fd: int) -> bytes:
    """Return a message; nothing at the end of the stream. Messages are far below a pipe's size."""
    head = os.read(fd, _LENGTH.size)
    return os.read(fd, _LENGTH.unpack(head)[0]) if head else b""
