"""Three ordinary programs do what their twins in PyTorch do, step for step: only imports differ."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import shmgpu as gt

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "twins"
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the examples are not beside these tests"
)
STEPS = {"gpt": 3, "digits": 6, "cartpole": 3}


@pytest.fixture(scope="module")
def beside():
    spec = importlib.util.spec_from_file_location("beside", FOLDER / "beside.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("name", STEPS)
def test_losses_and_weights_are_the_twin_s(engine, beside, name):
    program, twin = beside.load(name), beside.load(name, is_twin=True)
    pairs, ours, theirs = beside.checked(program, twin, STEPS[name])
    assert len(pairs) == STEPS[name]
    np.testing.assert_allclose(*np.array(pairs).T, rtol=1e-5)
    state = theirs.state_dict()
    for key, value in ours.state_dict().items():
        np.testing.assert_allclose(value.numpy(), state[key].numpy(), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", STEPS)
def test_a_twin_differs_in_its_imports_alone(beside, name):
    assert set(beside.PROGRAMS) == set(STEPS)
    ours, theirs = (beside.source_of(name, is_twin).splitlines() for is_twin in (False, True))
    changed = [one for one, other in zip(ours, theirs, strict=True) if one != other]
    assert 2 <= len(changed) <= 3
    assert all(re.match(r"(import|from) shmgpu", one) for one in changed)
    assert "shmgpu" not in "\n".join(theirs).partition('"""\n')[2].replace(
        "imports names shmgpu", ""
    )
    assert len(ours) <= 105


def test_a_program_and_its_twin_are_run_from_the_shell(beside):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "beside.py"), "digits", "--steps", "5", "--no-speed"],
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    for line, says in zip(
        told,
        (
            r"loss 2\.\d+ -> [0123]\.\d+",
            r"PyTorch's own losses: \d\.\de-(0[5-9]|1\d) apart at most in 5 steps",
            r"score 0\.\d+, PyTorch's 0\.\d+",
        ),
        strict=True,
    ):
        assert re.fullmatch(says, line), line


def test_speeds_are_of_steps_that_were_made(beside):
    with gt.init(inline=True, arena="32MiB"):
        speeds = beside.timed(beside.load("cartpole"), beside.load("cartpole", is_twin=True), 1, 2)
    assert all(speed > 0 for speed in speeds)
