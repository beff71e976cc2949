"""The table of operations: name, rule of shapes, kernels of NumPy and torch, gradients.

A row (:class:`shmgpu.ops.graph.Op`) stands in the file of its family, beside the function that
records it. This file gathers the rows. Never sends, never computes a value itself: kernels are
called by the engine.
"""

from __future__ import annotations

import types

from shmgpu.ops import (
    activations,
    attention,
    batch_normalising,
    casting,
    collective,
    creation,
    distances,
    elementwise,
    indexing,
    linear,
    losses,
    nonlinearities,
    normalising,
    ordering,
    rearranging,
    recomputing,
    redistribution,
    reductions,
    resampling,
    shaping,
    signals,
    solving,
    stretching,
    transcendental,
    updates,
    windows,
)
from shmgpu.ops.graph import Op

FAMILIES: tuple[types.ModuleType, ...] = (
    casting,
    elementwise,
    shaping,
    stretching,
    reductions,
    linear,
    creation,
    activations,
    normalising,
    windows,
    nonlinearities,
    batch_normalising,
    signals,
    resampling,
    attention,
    losses,
    distances,
    indexing,
    rearranging,
    ordering,
    solving,
    recomputing,
    transcendental,
    updates,
    redistribution,
    collective,
)

TABLE: dict[str, Op] = {}

for _family in FAMILIES:
    for _row in vars(_family).values():
        if isinstance(_row, Op) and TABLE.get(_row.name) is not _row:
            if _row.name in TABLE:
                raise ValueError(f"two operations are called {_row.name}")
            TABLE[_row.name] = _row
