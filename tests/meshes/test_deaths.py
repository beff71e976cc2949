"""A member dies: a step is done again or stands, whole pieces are mended, lost ones are named."""

from __future__ import annotations

import os
import pathlib
import signal

import numpy as np
import pytest
from meshes.networks import train

import shmgpu as gt
from shmgpu.distributed import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from shmgpu.engine import session
from shmgpu.ops import collective

MOMENTS = ("before", "in the middle", "at the commit", "after the commit", "after")


class Deaths:
    """One helper dies by SIGKILL at a moment of its next program, where that is armed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def arm(self, moment, helper):
        (self.folder / f"{moment} {helper}").touch()

    def _die(self, moment, helper):
        armed = self.folder / f"{moment} {helper.id}"
        if armed.exists():
            if not (self.folder / "again and again").exists():
                armed.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def session(self, helper):
        """In each helper, and so in each replacement."""
        execute, commit, gang = session.Engine.execute, collective.commit, collective._gang

        def dying(*args):
            self._die("before", helper)
            found = execute(*args)
            self._die("after", helper)
            return found

        def meeting():
            self._die("in the middle", helper)
            return gang()

        def committing():
            self._die("at the commit", helper)
            commit()
            self._die("after the commit", helper)

        session.Engine.execute = dying
        collective.commit, collective._gang = committing, meeting


@pytest.fixture
def deaths(tmp_path):
    """A broker of two helpers that may die."""
    armed = Deaths(tmp_path)
    settings = {"devices": "cpu", "threads": 1, "arena": "32MiB"}
    with gt.init(helpers=2, session=armed.session, **settings):
        yield armed


def count():
    return sum(row["deaths"] for row in gt.stats()["helpers"])


def trained(deaths, moments):
    """Losses and final weights of data-parallel steps, before each of which somebody may die."""
    mesh = init_device_mesh("cpu", (2,))
    whole = lambda one: distribute_tensor(one, mesh, [Replicate()])  # noqa: E731
    rows = lambda one: distribute_tensor(one, mesh, [Shard(0)])  # noqa: E731

    def each(step):
        if step in moments:
            deaths.arm(*moments[step])

    losses, weights = train(steps=9, put=(whole, whole), batch=rows, each=each)
    return losses, [one.numpy().copy() for one in weights]


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_in_a_step_of_data_parallel_training_costs_that_step_and_no_bit(
    deaths, moment, victim
):
    losses, weights = trained(deaths, {})
    before = count()
    again, ended = trained(deaths, {2: (moment, victim), 6: (moment, 1 - victim)})
    assert count() == before + 2
    assert again == losses
    for got, want in zip(ended, weights, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_piece_that_nobody_else_has_is_named_and_the_rest_lives_on(deaths):
    mesh = init_device_mesh("cpu", (2,))
    cut = distribute_tensor(np.ones((6, 4), "f4"), mesh, [Shard(0)])
    whole = distribute_tensor(np.full((6, 4), 2.0, "f4"), mesh)
    parts = cut.redistribute(placements=[Partial()])
    assert (cut + whole).sum().item() == 72
    deaths.arm("in the middle", 1)
    with pytest.raises(gt.HelperDied, match=r"its piece of a tensor that lay S\(0\)"):
        (cut + whole).sum().item()
    with pytest.raises(gt.HelperDied, match="state_dict"):
        cut.numpy()
    with pytest.raises(gt.HelperDied):
        (parts * 2).numpy()
    assert whole.sum().item() == 48
    assert (whole * distribute_tensor(np.ones((6, 4), "f4"), mesh, [Shard(1)])).sum().item() == 48


def test_members_may_die_one_after_the_other_over_one_step(deaths):
    x = distribute_tensor(np.ones((6, 4), "f4"), init_device_mesh("cpu", (2,)))
    assert x.sum().item() == 24
    for number in range(2):
        deaths.arm("before", number)
    with pytest.raises(gt.HelperDied):  # nobody is left who has it
        (x * 2).sum().item()


def test_a_step_over_which_members_die_again_and_again_is_given_up(deaths):
    mesh = init_device_mesh("cpu", (2,))
    (deaths.folder / "again and again").touch()
    deaths.arm("before", 1)
    with pytest.raises(gt.HelperDied, match="again and again"):
        (distribute_tensor(np.ones((6, 4), "f4"), mesh) * 2).numpy()
    assert count() > 1
    (deaths.folder / "before 1").unlink()
    assert distribute_tensor(np.ones((6, 4), "f4"), mesh).sum().item() == 24


def test_what_failed_says_which_operation_and_leaves_the_rest(deaths):
    mesh = init_device_mesh("cpu", (2,))
    table = distribute_tensor(np.arange(12, dtype="f4").reshape(6, 2), mesh, [Shard(0)])
    good = table * 2
    wrong = gt.nn.functional.embedding(gt.tensor([0, 9]), table)
    with pytest.raises(gt.RemoteError, match="embedding"):
        wrong.numpy()
    np.testing.assert_array_equal(good.numpy(), table.numpy() * 2)
    assert count() == 0
