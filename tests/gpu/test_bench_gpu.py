"""The workload `gpu` on a device: each body runs, and its figures make sense."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shmgpu.common import devices

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import isolate  # noqa: E402
from benchmarks.measure.figures import Unavailable  # noqa: E402
from benchmarks.workloads import gpu  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(devices.available() == 0, reason="this machine shows no CUDA device"),
]


def call(target, **arguments):
    return isolate.call(f"benchmarks.workloads.gpu:{target}", 110.0, **arguments)


def test_copies_from_the_arena_are_those_of_pinned_memory():
    found = call("copies", seconds=0.2, mebibytes=8)
    assert set(found) == set(gpu.WAYS)
    assert all(rate > 0 for rate in found.values())


@pytest.mark.parametrize("graph", [True, False])
def test_a_graph_answers_as_the_model_does_and_is_timed(graph):
    assert call("model_latency", seconds=0.2, graph=graph)["median"] > 0


@pytest.mark.parametrize("target", ["through_helpers", "with_own_models"])
def test_the_memory_of_shared_and_of_own_models_is_seen(target):
    found = call(target, seconds=0.2, clients=3, width=256)
    assert found["rate"] > 0 and found["memory"] > 0


def test_helpers_run_through_mps_or_the_reason_is_said():
    try:
        found = call("through_helpers", seconds=0.2, clients=3, width=256, mps=True)
    except Unavailable as reason:
        assert "MPS" in str(reason) or "mps" in str(reason)
    else:
        assert found["rate"] > 0
