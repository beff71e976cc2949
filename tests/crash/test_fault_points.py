"""The fault points themselves: a fault that never happens would prove nothing."""

from __future__ import annotations

import json

import pytest

from shmgpu import core

ARM = """
import json, sys
from shmgpu import _core
lib = _core.lib
texts = json.loads(sys.argv[1])
print(json.dumps([lib.shm_fault_arm(text.encode()) == 0 for text in texts]))
"""

GOOD = [
    "",
    "helper0@before_reply=KILL#3",
    "child*@after_read=exit0; parent@before_read=SEGV",
    "helper@in_function=STOP;",
    "helper12/2@in_function=ABRT ; helper*/*@after_reply=KILL#100",
]
BAD = [
    "helper0",
    "cook0@before_read=KILL",
    "helper0@lunch=KILL",
    "helper0@before_read=HUP",
    "helper0@before_read=KILL#0",
    "helper0@before_read=KILL#",
    "helper-1@before_read=KILL",
    "helper0/@before_read=KILL",
    "helper0@before_read=KILL helper1@before_read=KILL",
    "helper0@before_read=KILL; child",
]

PASSES = """
import os
from shmgpu import _core
import shmgpu

def main(rank):
    os.write(1, b"%d begins\\n" % rank)
    for n in range(5):
        assert _core.lib.shm_fault_pass(b"nowhere") < 0
        _core.lib.shm_fault_pass(b"in_function")
        os.write(1, b"%d %d\\n" % (rank, n))

try:
    shmgpu.launch(main, children=2, helpers=1, devices="cpu", arena="1MiB")
except shmgpu.ChildError as error:
    print(error)
"""


def test_faults_are_read_or_refused(with_faults):
    done = with_faults("-c", ARM, json.dumps(GOOD + BAD))
    assert json.loads(done.stdout) == [True] * len(GOOD) + [False] * len(BAD), done.stderr


def test_a_fault_happens_in_its_role_at_its_passing(with_faults):
    done = with_faults("-c", PASSES, faults="child1@in_function=exit0#3; child1/2@in_function=SEGV")
    lines = done.stdout.splitlines()
    # The other one is told to end when its sibling has: it came as far as it came.
    others = [line for line in lines if line.startswith("0 ")]
    assert others == ["0 begins", "0 0", "0 1", "0 2", "0 3", "0 4"][: len(others)]
    assert [line for line in lines if line.startswith("1 ")] == ["1 begins", "1 0", "1 1"]
    assert lines[-1].startswith("child 1 failed: it exited before its main had ended")
    assert "means nothing to shmgpu" not in done.stderr


def test_a_fault_that_cannot_be_read_ends_the_role_with_a_sentence(with_faults):
    done = with_faults("-c", PASSES, faults="helper0@before_read=KlLL")
    assert done.returncode != 0
    assert "SHMGPU_FAULTS=helper0@before_read=KlLL cannot be read" in done.stderr


@pytest.mark.skipif(core.HAS_FAULTS, reason="this is the test build")
def test_a_normal_build_has_no_fault_points():
    from shmgpu import _core

    with open(_core.__file__, "rb") as file:
        built = file.read()
    assert b"before_reply" not in built and b"SHMGPU_FAULTS" not in built
