"""What a model file declares, and what helpers run of it.

Owns declarations, loaded models, batches and adapters for files of models. Never knows HTTP or
gRPC.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """What pickles of earlier releases name here, from where it lives."""
    if name not in ("Model", "Tensor", "model"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmgpu.serve.models import declaration

    return getattr(declaration, name)
