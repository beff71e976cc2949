"""How the compute threads of a helper wait: asleep.

Owns how OpenMP and OpenBLAS are told so. By default their threads spin between two parallel
regions, for milliseconds, on cores that callers and other programs need: beside two busy processes
a training step takes forty times the processor time and completes a hundred times less often. Each
library reads its environment once, when it is loaded or first used. So the environment is set in
helpers for libraries that are loaded later; libraries that the program imported before its broker
started are told in the way each of them has. Never overrides what the user's environment says.

GNU's OpenMP (torch's own) has no call for this. Its spin count is an internal variable that is set
when the library is loaded: see :func:`_calm_gnu`.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OPENBLAS_THREAD_TIMEOUT")


def wishes() -> dict[str, str]:
    """The variables that let compute threads sleep, without those about which the user decided."""
    wanted = {}
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        wanted["OMP_WAIT_POLICY"] = "PASSIVE"
    if not {"OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys():
        wanted["KMP_BLOCKTIME"] = "0"
    if "OPENBLAS_THREAD_TIMEOUT" not in os.environ:
        wanted["OPENBLAS_THREAD_TIMEOUT"] = "4"  # 2**4 ticks of the clock, the least it takes
    return wanted


def calm() -> bool:
    """In a helper, before it computes: let its compute threads sleep while they wait.

    Returns:
        False where an OpenMP library is loaded that cannot be told any more: its threads spin.
    """
    wanted = wishes()
    os.environ.update(wanted)
    is_calm = True
    for path in loaded("libgomp", "libiomp", "libomp", "openblas"):
        name = os.path.basename(path)
        if "openblas" in name:
            if "OPENBLAS_THREAD_TIMEOUT" in wanted:
                call(path, "openblas_read_env")  # its next pool heeds it, and a fork has none yet
        elif name.startswith("libgomp"):
            is_calm &= "OMP_WAIT_POLICY" not in wanted or _calm_gnu(path)
        elif "KMP_BLOCKTIME" in wanted:
            is_calm &= call(path, "kmp_set_blocktime", 0)  # LLVM's, and Intel's, its twin
    return is_calm


def mapped(*names: str) -> Iterator[tuple[str, int, int, bytes]]:
    """(path, first address, end, permissions) of what is mapped here of libraries of those names.

    The kernel is asked, not the loader: that holds its lock while it tells, and a thread that
    imports a library meanwhile would wait for it with the interpreter's.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            maps = file.read()
    except OSError:
        return
    wanted = tuple(map(os.fsencode, names))
    for line in maps.splitlines():
        if not any(name in line for name in wanted):
            continue
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith(b"/"):
            continue
        name = os.path.basename(fields[5])
        if name.startswith(wanted) or (b"openblas" in wanted and b"openblas" in name):
            first, _, end = fields[0].partition(b"-")
            yield os.fsdecode(fields[5]), int(first, 16), int(end, 16), fields[1]


def loaded(*names: str) -> dict[str, int]:
    """The path of each library of those names in this process, and where it begins in memory."""
    found: dict[str, int] = {}
    for path, first, _, _ in mapped(*names):
        found.setdefault(path, first)
    return found


def _function(path: str, name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] | None = getattr(ctypes.CDLL(path), name, None)
    except OSError:
        return None
    return found


def call(path: str, name: str, *arguments: int) -> bool:
    """Call a function of a loaded library; False where it has none of that name."""
    function = _function(path, name)
    if function is not None:
        function(*arguments)
    return function is not None


# ---- GNU's OpenMP ---------------------------------------------------------------------------

SPINS, SPINS_OF_MANY = 300_000, 100  # where the environment said nothing, in every version
_PT_LOAD, _WRITABLE = 1, 2
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")  # of an ELF file: 64 bits, little-endian
_SEGMENT = struct.Struct("<IIQQQQQQ")


def _calm_gnu(path: str) -> bool:
    """Set GNU's spin count to zero, as GOMP_SPINCOUNT=0 would have when the library was loaded.

    The count has no name outside the library. But its variables are a few hundred bytes, in which
    the two counts are the only ones of their values; where that is not so, nothing is written.
    """
    counts = spin_counts(path)
    if counts is None:
        return False
    for count in counts:
        count.value = 0
    return True


def spin_counts(path: str) -> tuple[ctypes.c_uint64, ctypes.c_uint64] | None:
    """The two counts, where they lie, when they are what an unset environment makes them."""
    base = loaded("libgomp").get(path)
    if base is None:
        return None
    found: dict[int, list[int]] = {SPINS: [], SPINS_OF_MANY: []}
    for first, size in _writable_segments(base):
        aligned = -(-first // 8) * 8
        words = (ctypes.c_uint64 * ((first + size - aligned) // 8)).from_address(aligned)
        for index, word in enumerate(words):
            if word in found:
                found[word].append(aligned + 8 * index)
    if [len(addresses) for addresses in found.values()] != [1, 1]:
        return None
    spins, of_many = (ctypes.c_uint64.from_address(address) for [address] in found.values())
    return spins, of_many


def _writable_segments(base: int) -> list[tuple[int, int]]:
    """(address, bytes) of a loaded library's variables, as its own headers say."""
    header = ctypes.string_at(base, _HEADER.size)
    if header[:6] != b"\x7fELF\x02\x01":
        return []
    fields = _HEADER.unpack(header)
    offset, size, count = fields[4], fields[8], fields[9]
    if size != _SEGMENT.size:
        return []
    segments = [
        _SEGMENT.unpack(ctypes.string_at(base + offset + index * size, size))
        for index in range(count)
    ]
    return [
        (base + address, in_memory)
        for kind, flags, _, address, _, _, in_memory, _ in segments
        if kind == _PT_LOAD and flags & _WRITABLE
    ]
