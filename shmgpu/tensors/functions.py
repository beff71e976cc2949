"""The functions that tensors call in helpers: their rows. The engine has their bodies.

Owns the rows, which are entered when the package is imported, because the table is sealed when a
broker starts. Helpers find the bodies by name. Never imports the engine.
"""

from __future__ import annotations

from typing import Any

from shmgpu.function_table import NamedBody
from shmgpu.functions import Function

EXECUTE: dict[str, Function[..., Any]] = {
    "torch": Function(NamedBody("shmgpu.engine.functions:execute_torch"), arrays="torch"),
    "numpy": Function(NamedBody("shmgpu.engine.functions:execute_numpy"), arrays="numpy"),
}
device_of: Function[[], str] = Function(
    NamedBody("shmgpu.engine.functions:device_of"), arrays="numpy"
)
engine_figures: Function[[], list[dict[str, Any]]] = Function(
    NamedBody("shmgpu.engine.functions:engine_figures"), arrays="numpy"
)

for _execute in EXECUTE.values():
    # Handles rise: no two messages are alike, and what a helper kept of each would lie between its
    # large arrays (1.1 GiB of pages after 10,000 steps of a small network).
    _execute.takes_raw_calls = True
