"""The workload `steps`: every program runs with each library, and is timed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure.figures import ProbeFailed  # noqa: E402
from benchmarks.workloads import steps  # noqa: E402

pytest.importorskip("torch")

HEAVY = {"unread", "deep", "length", "layers"}


@pytest.mark.parametrize("library", ["shmgpu", "torch"])
@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in steps.PROGRAMS],
)
def test_a_program_runs_with_each_library(program, library):
    ((quantity, value),) = steps.run(0.02, program, library).items()
    assert value > 0
    group = next(one for one in steps.WORKLOAD.groups if one.name == program)
    assert all(quantity in probe.units for probe in group.probes)


def test_a_loss_that_runs_away_fails_the_probe_when_it_is_read():
    class Loss:
        def item(self):
            return float("nan")

    reading = steps._read(Loss, every=2)
    reading()
    with pytest.raises(ProbeFailed, match="too large"):
        reading()
