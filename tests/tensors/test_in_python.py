"""Tensors do the same where the module in C was not built: what it replaces is tested, too."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent

# Those that record, walk back, repeat a structure, give memory on; fail, and all the others.
RECORDING = "test_templates test_recording test_residency test_donations"
OTHERS = "test_grad_mode test_hooks test_optim test_failures test_deaths test_ops test_neural"

WITHOUT = """
import sys
sys.modules["shmgpu._graph"] = None  # as if it was not there
import pytest
from shmgpu.ops import graph
assert graph.native is None
sys.exit(pytest.main(sys.argv[1:]))
"""


def passes(names: str) -> None:
    files = [str(HERE / f"{name}.py") for name in names.split()]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "-q", "-x", "-m", "not slow", *files],
        cwd=HERE.parents[1], capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.mark.timeout(300)
def test_recording_without_the_module_in_c():
    passes(RECORDING)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_of_it_without_the_module_in_c():
    passes(OTHERS)
