"""What an attached program is handed: it may change what is its own, and nothing that others use.

The receiver here speaks to the listening socket by itself, as a program would that means harm.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import json
import mmap
import os
import pathlib
import re
import socket
import struct
import tempfile

import numpy as np
import pytest
from attach import brokers, served

import shmgpu

GROUP = 12345
STRANGER = 65534
HELLO = struct.Struct("<IIiiiiq64s")
WELCOME = struct.Struct("<IIiiIIQQii256s")
HEADER = (pathlib.Path(__file__).parents[2] / "csrc" / "ipc" / "attach_handshake.h").read_text()
MAGIC = 0x756D6873
JOIN, ASK = 0, 1
SEALS = (fcntl.F_SEAL_SEAL, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_WRITE, 0x10)
REFUSED = (errno.EPERM, errno.EACCES, errno.EBADF, errno.EINVAL)
PUNCH = 1 | 2  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
LIBC = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    found = re.search(r"SHMI_ATTACH_VERSION = (\d+)", HEADER)
    assert found is not None
    return int(found[1])


def handed_out(path, kind):
    """The descriptors of an answer, by what they are, and the socket: the place is kept with it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(path))
    connection.send(HELLO.pack(MAGIC, version(), kind, 0, 0, 0, 0, b"stranger"))
    message, extra, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(64 * 4))
    assert WELCOME.unpack(message)[2] == 0, message
    numbers = array.array("i")
    for _, _, data in extra:
        numbers.frombytes(data)
    return {name_of(number): number for number in numbers}


def name_of(number):
    link = os.readlink(f"/proc/self/fd/{number}")
    if not link.startswith("pipe:"):
        return link.removeprefix("/memfd:").removesuffix(" (deleted)")
    flags = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    return "replies" if flags == os.O_RDONLY else "requests"


def is_done(what) -> bool:
    try:
        what()
    except OSError as error:
        assert error.errno in REFUSED, error
        return False
    return True


def is_punched(number, size) -> bool:
    done = LIBC.fallocate(number, PUNCH, ctypes.c_long(0), ctypes.c_long(size))
    assert done == 0 or ctypes.get_errno() in REFUSED, ctypes.get_errno()
    return done == 0


def is_writable(number, size) -> bool:
    """By whatever means there are; also when it is opened once more."""
    numbers = [number]
    if is_done(lambda: numbers.append(os.open(f"/proc/self/fd/{number}", os.O_RDWR))):
        assert len(numbers) == 2
    found = [is_done(lambda at=at: os.pwrite(at, b"x", 0)) for at in numbers]
    found += [is_done(lambda at=at: mmap.mmap(at, size).close()) for at in numbers]
    found += [is_punched(at, size) for at in numbers]
    for private in (mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE):
        mmap.mmap(number, size, mmap.MAP_PRIVATE, private).close()  # a copy of one's own
    for at in numbers[1:]:
        os.close(at)
    return any(found)


def is_resizable(number, size) -> bool:
    found = [is_done(lambda to=to: os.ftruncate(number, to)) for to in (0, 2 * size)]
    return any(found)


def is_sealable(number) -> bool:
    found = [is_done(lambda s=seal: fcntl.fcntl(number, fcntl.F_ADD_SEALS, s)) for seal in SEALS]
    return any(found)


def tried(path, kind):
    """What a receiver can do with each memory file: (writes, resizes, seals)."""
    found = {}
    for name, number in handed_out(path, kind).items():
        if name in ("requests", "replies"):
            found[name] = None
            continue
        size = os.fstat(number).st_size
        writes, resizes = is_writable(number, size), is_resizable(number, size)
        found[name] = (writes, resizes, is_sealable(number))
    return found


def as_receiver(body, stranger):
    """What it returns in a process of its own, which may be another user's of the group."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if stranger:
                os.setgroups([GROUP])
                os.setresgid(STRANGER, STRANGER, STRANGER)
                os.setresuid(STRANGER, STRANGER, STRANGER)
            os.write(write, json.dumps(body()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return json.loads(text)


@pytest.fixture(scope="module")
def path():
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        place = pathlib.Path(folder) / "b.sock"
        group = {"group": GROUP} if os.geteuid() == 0 else {}
        with brokers.up(place, helpers=1, **group):
            yield place


OWN, OTHERS = [True, False, False], [False, False, False]


@pytest.mark.parametrize("stranger", [False, pytest.param(True, marks=brokers.needs_root)])
def test_a_receiver_can_change_what_is_its_own_and_nothing_that_others_use(path, stranger):
    found = as_receiver(lambda: tried(path, JOIN), stranger)
    assert found == {
        "shmgpu-arena": OWN,
        "shmgpu-scoreboard": OTHERS,
        "shmgpu-page": OWN,
        "requests": None,
        "replies": None,
        "shmgpu-manifest": OTHERS,
    }
    assert as_receiver(lambda: tried(path, ASK), stranger) == {"shmgpu-manifest": OTHERS}
    with shmgpu.connect(path, wait=brokers.DEADLINE_S):
        assert served.add_one(np.zeros(1)).tolist() == [1]


@pytest.mark.parametrize("stranger", [False, pytest.param(True, marks=brokers.needs_root)])
def test_what_is_handed_out_for_reading_is_open_for_reading_alone(path, stranger):
    def modes():
        return {
            name: fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            for name, number in handed_out(path, JOIN).items()
        }

    assert as_receiver(modes, stranger) == {
        "shmgpu-arena": os.O_RDWR,
        "shmgpu-scoreboard": os.O_RDONLY,
        "shmgpu-page": os.O_RDWR,
        "requests": os.O_WRONLY,
        "replies": os.O_RDONLY,
        "shmgpu-manifest": os.O_RDONLY,
    }


def test_a_manifest_can_be_changed_by_nobody_not_even_who_wrote_it():
    made = shmgpu.attach.manifest.Manifest({"m:f": 1}, {"default": 0}, {})
    number = made.write()
    try:
        assert not is_writable(number, os.fstat(number).st_size)
        assert not is_resizable(number, 16)
        assert shmgpu.attach.manifest.Manifest.read(number) == made
    finally:
        os.close(number)


def keeps_its_arena(path, ready, over):
    """Attach, leave, and go on reading and writing what it was handed: what it found there."""
    handed = handed_out(path, JOIN)
    arena = handed.pop("shmgpu-arena")
    size = os.fstat(arena).st_size
    memory = mmap.mmap(arena, size)
    memory[: 1 << 16] = b"x" * (1 << 16)
    for number in handed.values():
        os.close(number)  # now it has left
    brokers.until(lambda: os.fstat(arena).st_blocks == 0, "its memory is given back")
    ready.touch()
    found = 0
    while not over.exists():
        found += memory.find(b"TOP SECRET") >= 0
        memory[:] = b"\xff" * size
    return found


@pytest.mark.parametrize("stranger", [False, pytest.param(True, marks=brokers.needs_root)])
def test_who_has_left_neither_reads_nor_writes_the_arena_of_who_comes_next(stranger):
    group = {"group": GROUP} if stranger else {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        place, ready, over = (pathlib.Path(folder) / name for name in ("b.sock", "ready", "over"))
        with brokers.up(place, helpers=2, slots=1, **group):
            with shmgpu.connect(place):  # helpers have worked for somebody there
                assert served.add_one(np.zeros(3)).tolist() == [1, 1, 1]
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                seen = as_receiver(lambda: keeps_its_arena(place, ready, over), stranger)
                os.write(write, str(seen).encode())
                os._exit(0)
            try:
                brokers.until(ready.exists, "somebody has left and stays")
                with shmgpu.connect(place, wait=brokers.DEADLINE_S):
                    secret = shmgpu.arena.zeros(1 << 15, dtype="uint8")
                    secret[:10] = np.frombuffer(b"TOP SECRET", dtype="uint8")
                    x = shmgpu.arena.zeros(1000) + 1234.5
                    for _ in range(50):
                        assert (served.add_one(x) == 1235.5).all()
                    assert (x == 1234.5).all() and bytes(secret[:10]) == b"TOP SECRET"
                    assert not secret[10:].any()
            finally:
                over.touch()
                os.waitpid(pid, 0)
            assert os.read(read, 10) == b"0"
            os.close(read)
            os.close(write)
