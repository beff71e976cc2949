"""The workloads `collectives` and `parallel`: their bodies give what their figures need."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import isolate  # noqa: E402
from benchmarks.measure.figures import ProbeFailed  # noqa: E402
from benchmarks.workloads import collectives  # noqa: E402

pytest.importorskip("torch")


def call(target, **arguments):
    return isolate.call(f"benchmarks.workloads.{target}", 100.0, seconds=0.05, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("kind", collectives.KINDS)
@pytest.mark.parametrize("whose", ["shmgpu", "gloo"])
def test_collectives_of_each_size_are_timed(whose, kind):
    found = call(f"collectives:{whose}_collectives", kind=kind)
    with_recording = collectives.RECORDED.values() if whose == "shmgpu" else ()
    assert set(found) == {*collectives.SIZES, *with_recording}
    assert whose == "shmgpu" or all(took > 0 for took in found.values())  # a difference of two


@pytest.mark.slow
def test_copies_of_each_size_are_timed():
    found = call("collectives:copies")
    assert set(found) == set(collectives.SIZES) and all(took > 0 for took in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("body", ["collectives:message", "parallel:processor"])
@pytest.mark.parametrize("on_mesh", [False, True])
def test_a_message_and_a_step_are_timed_on_a_mesh_and_on_one_helper(body, on_mesh):
    assert call(body, on_mesh=on_mesh)["us"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("body", ["data_parallel", "independent"])
def test_steps_are_counted_of_one_training_and_of_two(body):
    assert call(f"parallel:{body}")["rate"] > 0


def test_a_member_that_fails_fails_the_probe():
    def work(rank, folder):
        if rank == 1:
            raise ValueError("no")
        return dict.fromkeys(collectives.SIZES, 1.0)

    with pytest.raises(ProbeFailed, match=r"\[0, 1\]"):
        collectives._in_processes(work)
