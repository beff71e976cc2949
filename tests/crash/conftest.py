"""The test build, for tests that make a role die at an exact place; see csrc/fault.h."""

from __future__ import annotations

import logging
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULTS_BUILD = ROOT / "build" / "faults"


@pytest.fixture(scope="session")
def with_faults():
    """Runs ``python ARGUMENTS`` on the test build, with faults armed: a CompletedProcess."""
    core = FAULTS_BUILD / "shmgpu" / "_core.abi3.so"
    if not core.exists():
        pytest.skip("the test build is not here: make faults")
    sources = [path for path in (ROOT / "csrc").iterdir() if path.suffix in (".c", ".h")]
    if max(path.stat().st_mtime for path in sources) > core.stat().st_mtime:
        pytest.fail("The test build is older than its sources: make faults.", pytrace=False)

    def run(*arguments: object, faults: str = "", timeout: float = 60):
        environment = {**os.environ, "PYTHONPATH": str(FAULTS_BUILD), "SHMGPU_FAULTS": faults}
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=FAULTS_BUILD,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


@pytest.fixture
def event_log(tmp_path):
    """What the logger ``shmgpu`` says in every role from here on: call it for the text."""
    path = tmp_path / "events.log"
    handler = logging.FileHandler(path)  # it appends: roles write whole lines
    logger = logging.getLogger("shmgpu")
    logger.addHandler(handler)
    yield path.read_text
    logger.removeHandler(handler)
    handler.close()
