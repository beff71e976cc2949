"""In helpers: files of models that need no code, one adapter for each kind.

An adapter loads its file onto the helper's device, finds out what the file says of its inputs and
outputs, and makes the :class:`~shmgpu.serve.models.declaration.Model` that is served. What the file
does not say stands in a configuration beside it: see :mod:`shmgpu.serve.models.adapters.sidecar`.
Never imports a framework before a file of its kind is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.serve.models.adapters import exported, onnx, torchscript
from shmgpu.serve.models.declaration import Model

# By kind of file, as in shmgpu.serve.state.repository: (helper, path) -> its model.
ADAPTERS: dict[str, Callable[[Any, str], Model]] = {
    "torchscript": torchscript.load,
    "exported": exported.load,
    "onnx": onnx.load,
}
