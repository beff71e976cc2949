"""What a joining program must know of a broker: its functions by name, and its pools.

Owns the format, JSON in a memory file whose descriptor the endpoint hands over. Never trusts one
from another release.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from shmgpu import function_table
from shmgpu.attach import identity
from shmgpu.common.module_names import MAIN
from shmgpu.errors import ConfigError
from shmgpu.function_table import name_of as name_of

T = TypeVar("T")

WORDS = ("key", "owner", "instance", "program", "devices", "idle_timeout")
_LIMIT = 16 << 20  # bytes of one that are read
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# What reading raises of other bytes: RecursionError, too, of lists in lists in lists.
_NOT_ONE = (
    AttributeError,
    KeyError,
    OSError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
_VERSION = f"{sys.hexversion >> 16:04x}:"  # major and minor
_VERSION_LETTERS = len(_VERSION)


@dataclass(frozen=True)
class Manifest:
    """A broker as attached clients see it.

    Attributes:
        rows: row of each function, by ``module:qualname``.
        pools: number of each pool, by name.
        prints: fingerprint of each function's code, by its row; none where it has no code.
        sessions: fingerprint of each session function, by ``module:qualname``.
        pickles: rows of the functions whose arguments and results may be pickled.
        key: what its programs have in common, where it started by itself; see
            :class:`shmgpu.attach.automatic.SharedBroker`.
        owner: the process that it is for, which may define functions as it runs; "" where programs
            share it.
        instance: of its record of what it loaded; see :mod:`shmgpu.attach.sources`.
        program: what the program was called that started it.
        devices: what its helpers have, with commas between.
        idle_timeout: seconds for which it outlives its programs; "" where it does until it is told.
    """

    rows: Mapping[str, int]
    pools: Mapping[str, int]
    prints: Mapping[int, str] = field(default_factory=dict)
    pickles: frozenset[int] = frozenset()
    sessions: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    owner: str = ""
    instance: str = ""
    program: str = ""
    devices: str = ""
    idle_timeout: str = ""

    def row_of(self, target: function_table.DeclaredFunction) -> int:
        """The row of a function; 0: none of that name, or of a script's function, more than one.

        What is run as a script may have been imported from its package by the broker.
        """
        return _of_name(self.rows, name_of(target), target.body) or 0

    def has_other_code(self, target: function_table.DeclaredFunction) -> bool:
        """Whether the broker runs other code by that function's name than this process has."""
        return _differ(self.prints.get(self.row_of(target), ""), _print_of(target.body))

    def has_other_session(self, session: Callable[..., Any]) -> bool:
        """Whether it makes its sessions with other code by that function's name."""
        known = _of_name(self.sessions, function_table.name_of_body(session), session)
        return known is not None and _differ(known, _print_of(session))

    def is_own(self) -> bool:
        """Whether it is for this process alone."""
        return self.owner == str(os.getpid())

    def makes(self, session: Callable[..., Any]) -> bool:
        """Whether it makes sessions with the very code of that function, whatever its name."""
        own = _print_of(session)
        return not own or any(not _differ(known, own) for known in self.sessions.values())

    def write(self) -> int:
        """Write it to a memory file and seal that; a descriptor for reading it."""
        descriptor = os.memfd_create("shmgpu-manifest", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                told = {**asdict(self), "pickles": sorted(self.pickles)}
                file.write(json.dumps(told).encode())
            # All who attach are handed the same file: what one could write, the others would call.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            try:
                read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # without /proc the seals alone must do
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return read_only

    @classmethod
    def read(cls, descriptor: int) -> Manifest:
        """Back; raises ConfigError for what is none."""
        try:
            found = json.loads(os.pread(descriptor, _LIMIT, 0))
            rows = {str(name): int(row) for name, row in found["rows"].items()}
            pools = {str(name): int(number) for name, number in found["pools"].items()}
            prints = {int(row): str(text) for row, text in found["prints"].items()}
            pickles = frozenset([int(row) for row in found["pickles"]])
            sessions = {str(name): str(text) for name, text in found["sessions"].items()}
            words = {name: str(found[name]) for name in WORDS}
        except _NOT_ONE as error:
            raise ConfigError(f"the broker's manifest cannot be read ({error})") from error
        return cls(rows, pools, prints, pickles, sessions, **words)


def of_this_process(
    pools: Mapping[str, int], sessions: Iterable[Callable[..., Any]] = (), **words: str
) -> Manifest:
    """Of a broker that this process is about to start, and that makes its sessions with these.

    ``words`` are its key and the like.
    """
    rows = function_table.by_row
    prints = {row: text for row, f in rows.items() if (text := _print_of(f.body))}
    makers = {function_table.name_of_body(one): _print_of(one) for one in sessions}
    pickles = frozenset([row for row, f in rows.items() if f.pickle])
    names = {name_of(f): row for row, f in rows.items()}
    return Manifest(names, pools, prints, pickles, makers, **words)


def _of_name(known: Mapping[str, T], name: str, body: Any) -> T | None:
    """What is known by that name, or by that of a package's module which is run as a script."""
    if name in known or getattr(body, "__module__", "") not in MAIN:
        return known.get(name)
    found = [value for other, value in known.items() if other.endswith(f".{name}")]
    return found[0] if len(found) == 1 else None


def _differ(known: str, own: str) -> bool:
    """Whether two fingerprints are of different code: what two interpreters compile differs."""
    return known[:_VERSION_LETTERS] == own[:_VERSION_LETTERS] and known != own


def _print_of(body: Any) -> str:
    found = identity.fingerprint(body)
    return found and _VERSION + found
