"""Many helpers as one device: tensors are cut over a mesh of helpers, and programs with them.

Owns what a layout is (:mod:`.layout`), the ways in which each operation can run on pieces
(:mod:`.rules`), the choice between them (:mod:`.choice`), and the local programs that result
(:mod:`.lowering`). Never sends, never computes: all of it is a function from a program to programs.

Users import names of ``torch.distributed.tensor`` from here. The code behind those names is in
:mod:`shmgpu.parallel`, and is loaded when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_NAMES = {
    name: module
    for module, names in {
        "distributed.placements": "Partial Placement Replicate Shard",
        "parallel.device_mesh": "DeviceMesh init_device_mesh",
        "parallel.tensors": "DTensor distribute_tensor from_local",
        "parallel.constraints": "constrain local_map parallelize",
        "parallel.watching": "CommDebugMode all_reduce_algorithm explain",
        "parallel.modules": "ColwiseParallel ParallelStyle PrepareModuleInput PrepareModuleOutput "
        "RowwiseParallel SequenceParallel loss_parallel parallelize_module",
        "parallel.fully_sharded": "fully_shard",
        "parallel.mixed_precision": "MixedPrecisionPolicy",
    }.items()
    for name in names.split()
}

_METHODS = "parallel.tensors"

__all__ = sorted(_NAMES)


if TYPE_CHECKING:
    from shmgpu.distributed.typed_names import *  # noqa: F403
else:

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
