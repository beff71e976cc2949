"""The launch to be judged.

Owns its sizes, and what follows from them alone, in the arithmetic of the core. Never looks at a
machine.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shmgpu import core
from shmgpu.common import config
from shmgpu.common import devices as device

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PAGE, HUGE_PAGE, GUARD = mmap.PAGESIZE, 2 * MIB, core.GUARD_BYTES


def size(count: int) -> str:
    """Bytes as people say them: ``64 MiB``, ``1.5 GiB``."""
    for unit, name in ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} bytes"


@dataclass(frozen=True)
class Plan:
    """The launch to be judged; sizes in bytes. ``devices`` empty: as ``launch`` chooses."""

    children: int = 1
    helpers: int = 1
    arena: int = 64 * MIB
    scratch: int = 4 * MIB
    window: int = 64
    gpu_memory: int = 0
    threads: int = 0
    huge_pages: bool = False
    prefault: bool = False
    devices: tuple[str, ...] = ()

    @classmethod
    def resolve(cls, devices: Iterable[Any] | None = None, **settings: Any) -> Plan:
        """Of settings as ``launch`` takes them; None or absent: the variable or the default.

        Raises:
            ConfigError: a setting, a variable or a device makes no sense.
        """
        names = set(cls.__dataclass_fields__) - {"devices"}
        values = {name: config.resolve(name, settings.pop(name, None)) for name in names}
        if settings:
            raise TypeError(f"a plan has no setting {sorted(settings)[0]!r}")
        return cls(**values, devices=tuple(device.name_of(one) for one in devices or ()))

    @property
    def roles(self) -> int:
        """Processes that are forked."""
        return self.children + self.helpers

    @property
    def arena_region(self) -> int:
        """Bytes of an arena's memory, rounded up to whole pages."""
        unit = HUGE_PAGE if self.huge_pages else PAGE
        return -(-self.arena // unit) * unit

    @property
    def scratch_region(self) -> int:
        """Bytes of a scratch region's memory, rounded up to whole pages."""
        return -(-self.scratch // PAGE) * PAGE

    @property
    def payload(self) -> int:
        """Bytes of all arenas and scratch regions."""
        return self.children * self.arena_region + self.helpers * self.scratch_region

    @property
    def addresses(self) -> int:
        """Bytes of addresses that every process reserves: the payload and its guards."""
        return self.payload + (HUGE_PAGE if self.huge_pages else GUARD) * (self.roles + 2)

    def describe(self) -> str:
        """In a few words."""
        return (
            f"{count(self.children, 'child', 'children')} and {count(self.helpers, 'helper')}, "
            f"arenas of {size(self.arena)}"
        )


def count(number: int, one: str, many: str = "") -> str:
    """``1 helper``, ``2 helpers``."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
