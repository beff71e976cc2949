"""A helper dies over a program: what can be done again is, and what is gone says so by name."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest

import shmgpu as gt
from shmgpu.engine import session
from shmgpu.tensors import current, recorder

MOMENTS = ["before", "after"]  # it has done nothing yet, or all but say so


@pytest.fixture
def deaths(tmp_path):
    """The helper of a broker dies by SIGKILL over as many of its next programs as are armed."""
    armed = Deaths(tmp_path)
    with gt.init(helpers=1, devices="cpu", threads=1, arena="8MiB", session=armed.session):
        yield armed


class Deaths:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def arm(self, moment, programs=1):
        for number in range(programs):
            (self.folder / f"{moment}{number}").touch()

    def _die(self, moment):
        for one in self.folder.glob(f"{moment}*"):
            one.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def session(self, helper):
        """In the helper, and so in each of its replacements."""
        execute = session.Engine.execute

        def dying(*args):
            self._die("before")
            found = execute(*args)
            self._die("after")
            return found

        session.Engine.execute = dying

    @property
    def count(self):
        return gt.stats()["helpers"][0]["deaths"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_program_of_arena_data_alone_is_done_again_and_nobody_hears_of_it(deaths, moment):
    x = gt.tensor([1.0, 2.0, 3.0])
    deaths.arm(moment)
    assert ((x * 2) + gt.ones(3)).data.tolist() == [3, 5, 7]
    assert deaths.count == 1
    assert x.data.tolist() == [1, 2, 3]


def test_one_over_which_helpers_die_again_and_again_is_given_up(deaths):
    deaths.arm("before", 10)
    doubled = gt.ones(3) * 2
    with pytest.raises(gt.HelperDied, match="again and again"):
        _ = doubled.data
    assert deaths.count == recorder.MAX_TRIES
    for one in deaths.folder.iterdir():
        one.unlink()
    assert (gt.ones(3) * 2).sum().item() == 6


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_that_uses_a_resident_tensor_says_what_is_gone(deaths, moment):
    held = gt.ones(3, 4) * 2
    assert held.sum().item() == 24
    deaths.arm(moment)
    with pytest.raises(gt.HelperDied, match=r"helper 0 has died, and with it .*float32 \(3, 4\)"):
        _ = (held + 1).data
    with pytest.raises(gt.HelperDied, match=r"create them again, or load the state_dict"):
        _ = held.data
    assert (gt.ones(3, 4) * 2).sum().item() == 24


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_step_that_changes_a_resident_weight_is_not_done_twice(deaths, moment):
    weight = gt.ones(4, requires_grad=True)
    for step in range(3):
        (weight * 2).sum().backward()
        if step == 2:
            deaths.arm(moment)
        weight -= 0.5 * weight.grad
        weight.grad = None
        if step < 2:
            assert weight.sum().item() == -4 * step
    with pytest.raises(gt.HelperDied):
        weight.sum().item()
    assert deaths.count == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_one_that_nobody_waited_for_is_done_again_as_well(deaths, moment):
    x = gt.tensor([1.0, 2.0, 3.0])
    deaths.arm(moment)
    first = x * 2
    current.recorder().send()
    assert first.data.tolist() == [2, 4, 6]
    assert deaths.count == 1
    deaths.arm(moment)
    several = [x + n for n in range(3)]  # one message each, of a program that was told before
    for one in several:
        assert one.shape == (3,)
        current.recorder().send()
    for n, one in enumerate(several):
        assert one.data.tolist() == [1 + n, 2 + n, 3 + n]
    assert deaths.count == 2


def test_what_followed_from_a_program_in_flight_is_gone_with_it_or_right(deaths):
    x = gt.tensor([1.0, 2.0])
    (x * 3).sum().item()
    deaths.arm("before")
    first = x * 3
    current.recorder().send()
    second = first + 1  # uses what the first left in the helper
    current.recorder().send()
    third = x * 5
    current.recorder().send()
    with pytest.raises(gt.HelperDied, match=r"float32 \(2,\)"):
        _ = second.data
    assert third.data.tolist() == [5, 10]
    assert first.data.tolist() == [3, 6]


def test_what_is_done_again_is_let_go_of_in_the_end(deaths):
    from shmgpu.tensors.functions import engine_figures

    x = gt.tensor([1.0, 2.0])
    deaths.arm("before")
    kept = [x * (n + 2) for n in range(2)]
    current.recorder().send()
    more = x - 1
    current.recorder().send()
    assert [one.sum().item() for one in kept] == [6, 9] and more.sum().item() == 1
    del kept, more
    for _ in range(2):  # what is let go of rides on the next message
        (x + 1).sum().item()
    ((figures,),) = [engine_figures()]
    assert [row["tensors"] for row in figures["children"]] == [0]
