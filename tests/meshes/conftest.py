"""Real brokers: a mesh is of helpers, which are processes."""

from __future__ import annotations

import contextlib

import pytest

import shmgpu as gt
from shmgpu.distributed import init_device_mesh
from shmgpu.tensors import current, functions


class Broker:
    """What a test asks of the helpers of the broker that it runs in."""

    def mesh(self, *shape, names=None):
        return init_device_mesh("cpu", shape, mesh_dim_names=names)

    @property
    def placer(self):
        return current.recorder().placer

    def programs(self):
        """What was lowered so far, in order."""
        return [one.lowered for one in self.placer._programs._known.values()]

    def collectives(self):
        """Kinds, of each program that was lowered."""
        return [[one.kind for one in lowered.collectives] for lowered in self.programs()]

    def held(self):
        """How many tensors each helper holds, and how many programs it ran."""
        gt.tensors.current.recorder().flush()
        found = []
        for number in current.recorder().helpers:
            rows = [
                row
                for figures in functions.engine_figures.options(helpers=[number])()
                for row in figures["children"]
            ]
            found.append((sum(r["tensors"] for r in rows), sum(r["runs"] for r in rows)))
        return found


@contextlib.contextmanager
def broker_of(helpers, **settings):
    settings = {"devices": "cpu", "arena": "32MiB", "threads": 1, **settings}
    with gt.init(helpers=helpers, **settings):
        yield Broker()


@pytest.fixture
def two():
    """A broker of two helpers."""
    with broker_of(2) as broker:
        yield broker


@pytest.fixture
def four():
    """A broker of four helpers."""
    with broker_of(4) as broker:
        yield broker
