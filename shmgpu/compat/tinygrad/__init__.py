"""tinygrad's names over meshes of helpers: ``from shmgpu.compat.tinygrad import Tensor, nn``.

Programs that shard tensors over devices run with other imports and device names: a device is a
helper, ``"helper:0"``, and :data:`Device.DEFAULT` is ``"helper"``. In a program that has imported
this, all tensors have tinygrad's methods, and where a name means something else there, it means
that. Owns the names. Never computes: all of it is done by the package's own functions.
"""

from __future__ import annotations

from shmgpu.compat.tinygrad import nn as nn
from shmgpu.compat.tinygrad.device import Device, GlobalCounters
from shmgpu.compat.tinygrad.jit import TinyJit
from shmgpu.compat.tinygrad.methods import install
from shmgpu.compat.tinygrad.tensor import Tensor, dtypes

__all__ = ["Device", "GlobalCounters", "Tensor", "TinyJit", "dtypes", "nn"]

install()
