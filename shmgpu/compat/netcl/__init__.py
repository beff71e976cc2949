"""netcl's distributed names over meshes of helpers: ``from shmgpu.compat.netcl import all_reduce``.

Each has the arguments it has there. What differs is how it is done: replicas are pieces of one
model that lies replicated on a mesh, a step of all of them is one message, and means are weighted
by how many rows each replica has. Owns the names. Never computes: that is done by the package's own
functions.
"""

from __future__ import annotations

from shmgpu.compat.netcl.collectives import all_reduce, all_reduce_p2p, broadcast, gather, scatter
from shmgpu.compat.netcl.replicas import (
    DeviceManager,
    broadcast_params,
    prepare_replicas,
    replicate_params,
    shard_batch,
    sync_grads,
)
from shmgpu.compat.netcl.training import data_parallel_step

__all__ = [
    "DeviceManager",
    "all_reduce",
    "all_reduce_p2p",
    "broadcast",
    "broadcast_params",
    "data_parallel_step",
    "gather",
    "prepare_replicas",
    "replicate_params",
    "scatter",
    "shard_batch",
    "sync_grads",
]
