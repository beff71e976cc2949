"""What whoever joins a broker must know of it: its functions by name, and its pools.

Owns the form: JSON in a memory file that the door hands over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shmgpu import functions
from shmgpu.errors import ConfigError
from shmgpu.functions import name_of as name_of

_LIMIT = 16 << 20  # bytes of one that are read


@dataclass(frozen=True)
class Manifest:
    """A broker as its guests see it.

    Attributes:
        rows: row of each function, by ``module:qualname``.
        pools: number of each pool, by name.
    """

    rows: Mapping[str, int]
    pools: Mapping[str, int]

    def row_of(self, target: functions.Function[Any, Any]) -> int:
        """The row of a function; 0: none of that name, or of a script's function, more than one.

        What is run as a script may have been imported from its package by the broker.
        """
        name = name_of(target)
        row = self.rows.get(name, 0)
        if row or getattr(target.body, "__module__", "") not in functions.MAIN:
            return row
        found = [row for known, row in self.rows.items() if known.endswith(f".{name}")]
        return found[0] if len(found) == 1 else 0

    def write(self) -> int:
        """Into a memory file; its descriptor."""
        descriptor = os.memfd_create("shmgpu-manifest", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(json.dumps({"rows": dict(self.rows), "pools": dict(self.pools)}).encode())
        return descriptor

    @classmethod
    def read(cls, descriptor: int) -> Manifest:
        """Back; raises ConfigError for what is none."""
        try:
            found = json.loads(os.pread(descriptor, _LIMIT, 0))
            rows = {str(name): int(row) for name, row in found["rows"].items()}
            pools = {str(name): int(number) for name, number in found["pools"].items()}
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise ConfigError(f"the broker's manifest cannot be read ({error})") from error
        return cls(rows, pools)


def of_this_process(pools: Mapping[str, int]) -> Manifest:
    """Of a broker that this process is about to start."""
    return Manifest({name_of(f): row for row, f in functions.by_row.items()}, pools)
