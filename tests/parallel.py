"""What keeps test processes apart that run side by side, and what lets a test have the machine.

``make test`` starts a worker for each core, and one more: tests wait for other processes, for
sockets and for the end of a delay, and meanwhile their core would rest (on two cores three workers
took 470 s for what two took 611 s for). The guard in conftest.py compares what is there before and
after a test, so nothing that one worker's tests make may be seen by another's: each has a /dev/shm
of its own, and a runtime directory of its own for the sockets of automatic brokers.
Processes need no such wall: the guard knows its own by their parent and by their image. Where no
private /dev/shm can be had (that takes CAP_SYS_ADMIN), there is one worker.

A test that is marked ``alone`` waits until no other runs, and the others wait for it.

Knows nothing of shmgpu.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pathlib
from collections.abc import Iterator

MOST_WORKERS = 9
WORKER_BYTES = 2 << 30  # torch, servers and their helpers
CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 0x4000, 1 << 18


def have_private_shm() -> bool:
    """Give this process, and whom it forks, an empty /dev/shm; False where that is not allowed.

    Of the calling thread alone, which must be the main one: whatever a test starts descends of it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"mode=1777") == 0
    )


def can_have_private_shm() -> bool:
    """Whether a worker will get one: tried in a process that is thrown away."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if have_private_shm() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def memory_bytes() -> int:
    """What the kernel thinks could be had."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def workers() -> int:
    """How many to start; 0: the tests run in the process that was started."""
    cores = len(os.sched_getaffinity(0))
    count = min(cores + 1, MOST_WORKERS, memory_bytes() // WORKER_BYTES) if cores > 1 else 0
    return count if count > 1 and can_have_private_shm() else 0


class Machine:
    """Who runs now, told by two locks on files that all workers open.

    Whoever comes takes the turn, and passes it on when he has the machine, shared or alone. So one
    who waits to have it alone holds the turn, and nobody overtakes him.
    """

    def __init__(self, place: pathlib.Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._turn = os.open(place / "turn", flags, 0o600)
        self._machine = os.open(place / "machine", flags, 0o600)

    @contextlib.contextmanager
    def held(self, alone: bool) -> Iterator[None]:
        """Have it for a test.

        A process that a test forks has a copy of the descriptor; the lock is given up for it, too.
        """
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._machine, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._turn)
        os.close(self._machine)
