"""Tensors are tested in this process: both engines, without a broker where none is needed."""

from __future__ import annotations

import pytest
import torch

import shmgpu
from shmgpu.tensors import current


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """A pool of OpenMP's threads in this process would be in the way of every later launch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["torch", "numpy"])
def engine(request, monkeypatch):
    """Each engine in turn, in this very process."""
    monkeypatch.setattr(current, "_backend", request.param)
    with shmgpu.init(inline=True, arena="64MiB", threads=1):
        yield request.param
