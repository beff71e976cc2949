"""The test build, for tests that make a role die at an exact place; see csrc/base/fault.h."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FAULTS_BUILD = ROOT / "build" / "faults"


@pytest.fixture(scope="session")
def faults_build():
    """Where the test build is, and the environment of programs that use it: cwd=, env=."""
    core = FAULTS_BUILD / "shmgpu" / "_core.abi3.so"
    if not core.exists():
        pytest.skip("the test build is not here: make faults")
    sources = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".c", ".h")]
    if max(path.stat().st_mtime for path in sources) > core.stat().st_mtime:
        pytest.fail("The test build is older than its sources: make faults.", pytrace=False)

    return {"cwd": FAULTS_BUILD, "env": {**os.environ, "PYTHONPATH": str(FAULTS_BUILD)}}


@pytest.fixture(scope="session")
def with_faults(faults_build):
    """Runs ``python ARGUMENTS`` on the test build, with faults armed: a CompletedProcess."""

    def run(*arguments: object, faults: str = "", timeout: float = 60):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=faults_build["cwd"],
            env={**faults_build["env"], "SHMGPU_FAULTS": faults},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    return run


class EventFile(logging.Handler):
    """Appends every event of every role forked from here on, one line each."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.file = open(path, "a", buffering=1)

    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "event", None)
        if event is not None:
            self.file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        self.file.close()
        super().close()


@pytest.fixture
def events(tmp_path):
    """The broker's events of a kind: ``events("helper_died")`` is a list of their fields."""
    path = tmp_path / "events"
    handler = EventFile(path)
    logger = logging.getLogger("shmgpu")
    logger.addHandler(handler)

    def of_kind(kind):
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [event for event in found if event["kind"] == kind]

    yield of_kind
    logger.removeHandler(handler)
    handler.close()
