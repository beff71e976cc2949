"""The functions that helpers run for tensors, and the engine behind them.

Their rows are entered when the package is imported, because the table is sealed when a broker
starts; the engine, and torch with it, is loaded at the first call.
"""

from __future__ import annotations

from typing import Any

from shmgpu.entries import Helper
from shmgpu.functions import function

_KEPT = "shmgpu.engine"


def engine_of(helper: Helper, backend: str) -> Any:
    """The helper's engine of that backend, made at first use."""
    engines = helper.__dict__.setdefault(_KEPT, {})
    engine = engines.get(backend)
    if engine is None:
        from shmgpu.engine.backends import NumpyBackend, TorchBackend
        from shmgpu.engine.session import Engine

        made = NumpyBackend() if backend == "numpy" else TorchBackend(helper.device)
        engine = engines[backend] = Engine(made)
    return engine


@function(arrays="torch")
def execute_torch(helper: Helper, head: bytes, code: bytes, *arrays: Any) -> Any:
    """Run a program with torch, on the helper's device."""
    return engine_of(helper, "torch").execute(helper.caller, head, code, arrays)


@function(arrays="numpy")
def execute_numpy(helper: Helper, head: bytes, code: bytes, *arrays: Any) -> Any:
    """Run a program with NumPy."""
    return engine_of(helper, "numpy").execute(helper.caller, head, code, arrays)


EXECUTE = {"torch": execute_torch, "numpy": execute_numpy}
