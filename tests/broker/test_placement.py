"""Calls bound to helpers, or in front of others, and those after them that are not."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

import shmgpu
from shmgpu.child import runtime


@shmgpu.function(arrays="numpy")
def whose(helper, x):
    return np.array([helper.id])


@shmgpu.function(arrays="numpy")
def hold(helper, gate):
    while not os.path.exists(gate):
        time.sleep(0.002)


@pytest.fixture(autouse=True)
def broker():
    with shmgpu.init(helpers=2, devices="cpu", arena="1MiB"):
        yield


ASKED = {
    "called": lambda function, x: function(x),
    "submitted": lambda function, x: function.submit(x).result(30),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("helper", [0, 1])
def test_a_call_goes_to_the_helper_that_it_is_bound_to(asked, helper):
    x = shmgpu.arena.zeros(4)
    bound = whose.options(helpers=[helper])
    assert [int(ASKED[asked](bound, x)[0]) for _ in range(5)] == [helper] * 5


@pytest.mark.parametrize("after", ASKED)
@pytest.mark.parametrize("asked", ASKED)
def test_a_call_without_options_has_nothing_of_the_one_before_it(asked, after, tmp_path):
    """Both are of one signature, so what was made for the first serves the second, too."""
    x = shmgpu.arena.zeros(5)
    for _ in range(3):
        ASKED[asked](whose.options(helpers=[1], priority=2), x)
    call = runtime.require_port().prepare(whose, (x,), {}, None)
    assert (call.config.placement, call.config.priority) == (0, 0)
    call.release()
    gate = tmp_path / "gate"
    held = hold.options(helpers=[1]).submit(str(gate))
    try:
        answers = [int(ASKED[after](whose.options(timeout=20), x)[0]) for _ in range(3)]
        assert answers == [0, 0, 0]
        ASKED[asked](whose.options(helpers=[0], priority=2), x)
        assert int(ASKED[after](whose, x)[0]) == 0
    finally:
        gate.touch()
        held.result(30)
