"""Programs are recorded in this process, sent nowhere, and run by threads."""

from __future__ import annotations

import pytest

import shmgpu
from shmgpu.tensors import current


@pytest.fixture(autouse=True)
def recording(monkeypatch):
    """A recorder that sends nothing unasked."""
    monkeypatch.setattr(current, "_backend", "numpy")
    monkeypatch.setattr(current, "MAX_PENDING", 1 << 60)
    with shmgpu.init(inline=True, arena="16MiB", threads=1):
        yield
        current.recorder().pending.clear()
