"""Brokers in a process namespace of their own, as in a container whose only program is shmgpu's."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from attach.commands import Place
from attach.test_first_call import SCRIPT
from crash import programs

ALONE = ("unshare", "-pf", "--kill-child", "--mount-proc")  # what it runs is PID 1
CALL = "import numpy as np, served_here\nprint(served_here.double(np.ones(2)).tolist())\n"


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    made.environment |= {"SHMGPU_AUTO": "start", "SHMGPU_ARENA": "1MiB", "SHMGPU_THREADS": "1"}
    return made


def alone(place, *words):
    return subprocess.Popen(
        [*programs.needs(*ALONE), sys.executable, *words],
        env=place.environment,
        cwd=place.directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_is_pid_1_starts_a_broker_that_ends_with_the_namespace(place):
    (place.directory / "script.py").write_text(SCRIPT)
    said, complained = (program := alone(place, "script.py")).communicate(timeout=60)
    assert program.returncode == 0, complained
    assert said.startswith("[3.0, 3.0] ")
    status, said, complained = place.run("script.py")  # at what the other one left
    assert status == 0, complained
    assert place.run("shmgpu", "down")[0] == 0


def test_a_broker_that_is_pid_1_serves_who_enters_and_ends_in_order(place):
    broker = alone(place, "-m", "shmgpu.cli.main", "up", "--devices", "cpu", "served_here")
    try:
        assert broker.stdout.readline().startswith("a broker serves at")
        first = pathlib.Path(f"/proc/{broker.pid}/task/{broker.pid}/children")
        pid = first.read_text().split()[0]
        entered = subprocess.run(
            ["nsenter", "--target", pid, "--pid", "--mount", sys.executable, "-c", CALL],
            env=place.environment, capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert entered.stdout == "[2.0, 2.0]\n", entered.stderr
        status, _, complained = place.run("-c", CALL)  # whom it cannot watch, it tells so
        assert status == 1 and "of another process namespace" in complained
        os.kill(int(pid), signal.SIGTERM)
        _, complained = broker.communicate(timeout=30)
        assert broker.returncode == 0, complained
        assert not place.path.exists()
    finally:
        broker.kill()
        broker.communicate()
