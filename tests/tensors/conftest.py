"""Tensors are tested in this process: both engines, without a broker where none is needed."""

from __future__ import annotations

import pytest

import shmgpu
from shmgpu import lazy


@pytest.fixture(params=["torch", "numpy"])
def engine(request, monkeypatch):
    """Each engine in turn, in this very process."""
    monkeypatch.setattr(lazy, "_backend", request.param)
    with shmgpu.init(inline=True, arena="64MiB"):
        yield request.param
