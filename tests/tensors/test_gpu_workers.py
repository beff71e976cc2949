"""``gpu_workers(n)``: a program says on how many helpers its tensors live."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import shmgpu as gt
from shmgpu import control, errors

PROGRAM = """
import shmgpu as gt
gt.gpu_workers({count})
for n in range(4):  # each is computed before the next is made
    assert (gt.ones(2) + n).data[0] == n + 1
print(len([row for row in gt.stats()["helpers"] if row["finished"]]))
"""


@pytest.fixture
def place(tmp_path):
    """A socket at which no broker listens yet; one that does at the end is ended."""
    path = tmp_path / "broker.sock"
    yield path
    if path.exists():
        control.down(path=path)


def run(place, count, **environment):
    given = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    given.update(SHMGPU_SOCKET=str(place), SHMGPU_ARENA="8MiB", **environment)
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(count=count)],
        env=given, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_the_first_program_starts_a_broker_with_so_many_and_a_later_one_uses_fewer(place):
    first = run(place, 2)
    assert first.stdout.strip() == "2", first.stderr
    later = run(place, 1)  # both helpers have finished something by now: it is not refused
    assert later.returncode == 0, later.stderr


def test_a_broker_that_may_not_have_so_many_says_so(place):
    assert run(place, 1).returncode == 0
    refused = run(place, 9)
    assert refused.returncode != 0
    assert "gpu_workers(9): the broker has 1 helper, and" in refused.stderr


def test_it_comes_before_the_first_tensor():
    with gt.init(inline=True):
        gt.gpu_workers(1)
        gt.ones(2)
        with pytest.raises(RuntimeError, match="before the first"):
            gt.gpu_workers(1)


def test_a_broker_of_this_program_alone_says_when_to_ask():
    with gt.init(helpers=1, arena="8MiB"):
        gt.gpu_workers(1)
        with pytest.raises(errors.ConfigError, match="start it with helpers=2"):
            gt.gpu_workers(2)
        assert len(gt.stats()["helpers"]) == 1


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many"])
def test_what_is_no_number_of_helpers_is_refused(wrong):
    with gt.init(inline=True), pytest.raises(errors.ConfigError, match="gpu_workers"):
        gt.gpu_workers(wrong)
