"""Clients' shared-memory regions: which are registered, for all workers.

Owns the protocol's system shared-memory extension: names in the control table, and the descriptors
of the regions that this worker has registered, which keep a region reachable when its client has
removed its name. Never maps a region: helpers do (`shmgpu.serve.models.region_maps`).

Off unless allowed: whoever may register regions can have helpers read and write every shared-memory
file that the server's user can open, except those with a reserved name.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from shmgpu.serve.protocol.types import ProtocolError, SharedMemoryRef, refusal, show_name
from shmgpu.serve.state.control_table import ControlTable

# Files of shared memory that are no client's: this package's, semaphores, Triton's own.
RESERVED = ("shmgpu", "sem.", "triton_python_backend_shm_region_")
FOLDER = "/dev/shm"  # where shm_open looks for names
LONGEST_KEY = 250  # bytes
LONGEST_NAME = 1024  # characters
NO_CUDA = (
    "device memory of other processes is not served: register system shared memory, or send the "
    "tensors"
)
DENIED = "client shared memory is off: start the server with --allow-client-shm"

# How calls that several requests share name places, a row for each request, and what helpers say of
# an output in the place of its bytes.
PLACE = 3  # numbers for each tensor: its region's, the offset in it, bytes
LOST = -1  # a region of the request is not what it was
ALONE = -2  # its answer says more than such a call can


def open_region(region: dict[str, Any], flags: int) -> int:
    """A descriptor of a registered region, by whatever still leads to it.

    Raises:
        RegionLost: nothing does.
    """
    holder = f"/proc/{region['pid']}/fd/{region['descriptor']}"
    for attempt, where in ((_open_path, holder), (_open, region["key"])):
        try:
            descriptor = attempt(where, flags)
        except OSError:
            continue
        if identity(os.fstat(descriptor)) == region["identity"]:
            return descriptor
        os.close(descriptor)
    raise RegionLost(
        f"shared memory region {region['name']!r} is not there any more, or cannot be "
        f"{'written to' if flags & os.O_RDWR else 'read'}: unregister it, and register it again"
    )


def _open(key: str, flags: int) -> int:
    """As shm_open does, but at a FIFO that would wait until somebody writes to it."""
    return _open_path(f"{FOLDER}/{key}", flags | os.O_NOFOLLOW)


def _open_path(path: str, flags: int) -> int:
    """Without waiting, whatever lies there by now."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)


def identity(status: os.stat_result) -> list[int]:
    """What makes a file the same file."""
    return [status.st_dev, status.st_ino]


class RegionLost(Exception):
    """A helper cannot use a region as the request says: the client's to correct."""


class Regions:
    """The regions, as one worker sees them.

    Args:
        table: the control table.
        allowed: whether clients may have regions at all.
        most: how many there may be.
    """

    def __init__(self, table: ControlTable, allowed: bool, most: int) -> None:
        self.table = table
        self.allowed = allowed
        self.most = most
        self.held: dict[int, int] = {}  # number -> descriptor
        self.version = -1

    def register(self, name: str, key: Any, offset: Any, byte_size: Any) -> None:
        """Let requests name a region.

        Args:
            name: as requests will say it.
            key: of the file, as shm_open takes it; with or without its slash.
            offset: of the region in the file, bytes.
            byte_size: of the region.

        Raises:
            ProtocolError: 400; 403 where it is not allowed; 409 where the name is taken, which
                the HTTP front end, as Triton's, calls 400.
        """
        self._permit()
        if not 0 < len(name) <= LONGEST_NAME:
            raise refusal(
                f"the region's name has {len(name)} characters, and this server takes from 1 to "
                f"{LONGEST_NAME}: choose another"
            )
        word = _key(key)
        for value, what in ((offset, "'offset'"), (byte_size, "'byte_size'")):
            if type(value) is not int or not 0 <= value < 1 << 62:
                raise refusal(f"{what} must be a whole number of bytes, from 0: correct it")
        if not byte_size:
            raise refusal("'byte_size' is 0: give the bytes of the region")
        try:
            descriptor = _open(word, os.O_RDONLY)
        except OSError:
            raise refusal(
                f"there is no shared memory {show_name(word)} that this server may open: create it "
                "before it is registered, with permissions for the server's user"
            ) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise refusal(
                    f"{show_name(word)} is no shared memory, but another kind of file: create it "
                    "with shm_open"
                )
            if offset + byte_size > status.st_size:
                raise refusal(
                    f"the region has {byte_size} bytes from {offset} on, and the shared memory "
                    f"{show_name(word)} has {status.st_size}: correct 'offset' and 'byte_size'"
                )
            number = self._enter(
                {
                    "name": name,
                    "key": word,
                    "offset": offset,
                    "byte_size": byte_size,
                    "identity": identity(status),
                    "pid": os.getpid(),
                    "descriptor": descriptor,
                }
            )
        except BaseException:
            os.close(descriptor)
            raise
        self.held[number] = descriptor
        self.refresh()

    def _enter(self, region: dict[str, Any]) -> int:
        name = region["name"]
        with self.table.change() as state:
            regions = state["regions"]
            if name in regions:
                raise ProtocolError(
                    409,
                    f"shared memory region {show_name(name)} already in manager: unregister it, or "
                    "choose another name",
                )
            if len(regions) >= self.most:
                raise refusal(
                    f"{len(regions)} shared memory regions are registered, and this server takes "
                    f"{self.most}: unregister some"
                )
            number: int = state.get("next_region", 1)
            state["next_region"] = number + 1
            regions[name] = {**region, "number": number}
        return number

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all; one that is not registered is no error."""
        regions = self.table.read()[1]["regions"]
        if not regions or (name and name not in regions):
            return
        with self.table.change() as state:
            if name:
                state["regions"].pop(name, None)
            else:
                state["regions"].clear()
        self.refresh()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """What is registered under that name, or at all, as the protocol shows it.

        Raises:
            ProtocolError: 404; no region has that name.
        """
        regions = self.table.read()[1]["regions"]
        if name:
            if name not in regions:
                raise ProtocolError(404, unknown_region(name))
            chosen = [regions[name]]
        else:
            chosen = list(regions.values())
        return [
            {
                "name": region["name"],
                "key": f"/{region['key']}",
                "offset": region["offset"],
                "byte_size": region["byte_size"],
            }
            for region in chosen
        ]

    def locate(self, shm: SharedMemoryRef, whose: str) -> tuple[int, int, int]:
        """Where a tensor lies, for helpers: the region's number, offset and bytes.

        Raises:
            ProtocolError: 404, there is no such region; 400, it is not that large.
        """
        self._permit()
        region = self.table.read()[1]["regions"].get(shm.region)
        if region is None:
            raise ProtocolError(
                404, f"{unknown_region(shm.region)}, which {whose} names: register it"
            )
        if shm.offset + shm.nbytes > region["byte_size"]:
            raise refusal(
                f"Invalid offset for shared memory region: {whose} has {shm.nbytes} bytes from "
                f"{shm.offset} on in {show_name(shm.region)}, which has {region['byte_size']}: "
                "correct 'shared_memory_offset' and 'shared_memory_byte_size'"
            )
        return region["number"], shm.offset, shm.nbytes

    def refresh(self) -> None:
        """Close what was unregistered, by whichever worker."""
        if not self.held or self.version == self.table.version:
            return
        self.version, state = self.table.read()
        numbers = {region["number"] for region in state["regions"].values()}
        for number in self.held.keys() - numbers:
            os.close(self.held.pop(number))

    def close(self) -> None:
        """Close all."""
        while self.held:
            os.close(self.held.popitem()[1])

    def _permit(self) -> None:
        if not self.allowed:
            raise ProtocolError(403, DENIED)


def unknown_region(name: str) -> str:
    """That there is none of that name, in Triton's words."""
    return f"Unable to find shared memory region: {show_name(name)}"


def _key(key: Any) -> str:
    """The name of the file: no path, and not reserved."""
    word = key[1:] if isinstance(key, str) and key.startswith("/") else key
    if (
        not isinstance(word, str)
        or not 0 < len(os.fsencode(word)) <= LONGEST_KEY
        or "/" in word
        or "\0" in word
        or word in (".", "..")
    ):
        raise refusal(
            "'key' is not a name of shared memory: give the name that shm_open takes, such as "
            "'/images'"
        )
    if word.startswith(RESERVED):
        raise refusal(
            f"the shared memory {show_name(word)} has a reserved name: create one whose name does "
            f"not begin with {', '.join(RESERVED)}"
        )
    return word
