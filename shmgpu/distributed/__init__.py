"""Many helpers as one device: a tensor is cut over a mesh of them, and programs with it.

Owns what a layout is (:mod:`.layout`), how each operation may be done on pieces (:mod:`.rules`),
which way is chosen (:mod:`.choice`), and the local programs that come of it (:mod:`.lowering`).
Never sends, never computes: all of it is a function from a program to programs.

The names are for users, and under those that ``torch.distributed.tensor`` has. They are made in
:mod:`shmgpu.parallel`, and loaded when they are first used.
"""

from __future__ import annotations

from typing import Any

_NAMES = {
    name: module
    for module, names in {
        "distributed.placements": "Partial Placement Replicate Shard",
        "parallel.device_mesh": "DeviceMesh init_device_mesh",
        "parallel.tensors": "DTensor distribute_tensor from_local",
        "parallel.constraints": "constrain local_map parallelize",
        "parallel.watching": "CommDebugMode explain",
        "parallel.modules": "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleOutput "
        "RowwiseParallel SequenceParallel loss_parallel parallelize_module",
        "parallel.fully_sharded": "fully_shard",
    }.items()
    for name in names.split()
}

_METHODS = "parallel.tensors"

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _NAMES:
        raise AttributeError(f"module 'shmgpu.distributed' has no attribute {name!r}")
    importlib.import_module(f"shmgpu.{_METHODS}")  # tensors have all of their methods
    found = getattr(importlib.import_module(f"shmgpu.{_NAMES[name]}"), name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return __all__
