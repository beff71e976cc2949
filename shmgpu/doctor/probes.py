"""Kernel features, each used once in the way the core uses it.

Owns the trying: a release number says what a kernel could do, but a filter, a container or a
hardened setting may still refuse it. A probe raises OSError with what it was refused. Never leaves
anything behind or changes the process that runs it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import mmap
import os
import platform
import select
import signal
from collections.abc import Callable
from typing import Any

PAGE = mmap.PAGESIZE

# Python has no names for these, or not in all versions.
MADV_POPULATE_WRITE = 23
P_PIDFD = 3
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 1, 2, 4
F_GETPIPE_SZ = 1032
FUTEX_WAIT_BITSET_PRIVATE = 9 | 128
MAP_NORESERVE = 0x4000
SYS_EPOLL_PWAIT2 = 441
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


@functools.cache
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


def _raise_errno() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def memory_file() -> None:
    """An arena: a sealed memory file, mapped shared."""
    descriptor = os.memfd_create("shmgpu-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, PAGE)
        fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        mmap.mmap(descriptor, PAGE).close()
        try:
            os.ftruncate(descriptor, 0)
        except PermissionError:
            return
        raise OSError(errno.EOPNOTSUPP, "a sealed file could be shrunk")
    finally:
        os.close(descriptor)


def process_descriptor() -> None:
    """Watching, signalling and reaping a role by a descriptor."""
    descriptor = os.pidfd_open(os.getpid())
    try:
        with select.epoll() as watching:
            watching.register(descriptor, select.EPOLLIN)
        signal.pidfd_send_signal(descriptor, 0)
        try:
            os.waitid(P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            pass  # as it should: a process is no child of its own
    finally:
        os.close(descriptor)


def death_signal() -> None:
    """A role asks to die with its parent; here, for what is asked for already."""
    asked = ctypes.c_int(0)
    library = _libc()
    if library.prctl(PR_GET_PDEATHSIG, ctypes.byref(asked), 0, 0, 0) != 0:
        _raise_errno()
    if library.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(asked.value), 0, 0, 0) != 0:
        _raise_errno()


def futex() -> None:
    """A caller's thread sleeps on a word until its reply is there."""
    number = SYS_FUTEX.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, f"{platform.machine()} is not known to shmgpu")
    word = ctypes.c_uint32(1)
    got = _libc().syscall(
        ctypes.c_long(number), ctypes.byref(word), FUTEX_WAIT_BITSET_PRIVATE, 0, None, None, -1
    )
    if got != -1 or ctypes.get_errno() != errno.EAGAIN:  # the word is not 0: do not sleep
        _raise_errno()


def precise_wait() -> None:
    """The dispatcher waits for messages with a time-out in nanoseconds (Linux 5.11)."""
    with select.epoll() as waiting:
        event, limit = ctypes.create_string_buffer(16), _Timespec(0, 1)
        got = _libc().syscall(
            ctypes.c_long(SYS_EPOLL_PWAIT2),
            waiting.fileno(),
            event,
            1,
            ctypes.byref(limit),
            None,
            ctypes.c_size_t(8),
        )
        if got < 0:
            _raise_errno()


def populate() -> None:
    """All pages of an arena are taken by one call (Linux 5.14)."""
    with mmap.mmap(-1, PAGE) as mapped:
        mapped.madvise(MADV_POPULATE_WRITE)


def pipe_bytes() -> int:
    """How much a new pipe of this user holds."""
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        return fcntl.fcntl(ends[1], F_GETPIPE_SZ)
    finally:
        for end in ends:
            os.close(end)


def reserve(size_bytes: int) -> None:
    """Take that many addresses, as all arenas together do, and give them back."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    library = _libc()
    address = library.mmap(None, size_bytes, 0, flags, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        _raise_errno()
    library.munmap(address, size_bytes)


def oom_score() -> None:
    """A role offers itself to the out-of-memory killer; here, the value that is there already."""
    with open("/proc/self/oom_score_adj", "r+", encoding="ascii", buffering=1) as file:
        value = file.read()
        file.seek(0)
        file.write(value)


PROBES: dict[str, Callable[[], None]] = {
    probe.__name__: probe
    for probe in (
        memory_file,
        process_descriptor,
        death_signal,
        futex,
        precise_wait,
        populate,
        oom_score,
    )
}


def why_refused(name: str) -> str:
    """Nothing when the kernel did what the probe of that name asked, else what it said."""
    try:
        PROBES[name]()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # older Pythons check the advice themselves
        return str(error)
    return ""
