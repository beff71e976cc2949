"""A member dies: a step is done again or stands, whole pieces are mended, lost ones are named."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from attach.brokers import until
from meshes.dying import Deaths, count
from meshes.networks import TARGETS, WEIGHTS, X, on, train

import shmgpu as gt
from shmgpu.distributed import Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from shmgpu.errors import remote_name
from shmgpu.ops.program_message import UnknownTensor
from shmgpu.tensors import current, functions

MOMENTS = ("before", "in the middle", "at the commit", "after the commit", "after")


@pytest.fixture
def deaths(tmp_path):
    """A broker of two helpers that may die."""
    armed = Deaths(tmp_path)
    settings = {"devices": "cpu", "threads": 1, "arena": "32MiB"}
    with gt.init(helpers=2, session=armed.session, **settings):
        yield armed


def trained(deaths, moments):
    """Losses and final weights of data-parallel steps, before each of which somebody may die."""
    mesh = init_device_mesh("cpu", (2,))
    whole, rows = on(mesh, Replicate()), on(mesh, Shard(0))

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


def test_a_step_that_writes_over_nothing_is_done_again_and_leaves_nothing_of_before(deaths):
    (deaths.folder / "late").touch()  # the survivor has long kept its result
    mesh = init_device_mesh("cpu", (2,))
    whole = distribute_tensor(np.ones((4, 2), "f4"), mesh)
    assert whole.sum().item() == 8
    deaths.arm("after", 1)
    twice = whole * 2
    np.testing.assert_array_equal(twice.numpy(), np.full((4, 2), 2, "f4"))
    assert count() == 1
    assert twice.sum().item() == 16
    (survivor,), (replacement,) = (
        functions.engine_figures.options(helpers=[number])() for number in range(2)
    )
    assert survivor["children"][0]["tensors"] == replacement["children"][0]["tensors"]


def test_no_member_of_a_step_that_writes_over_nothing_waits_for_the_others_at_its_end(deaths):
    whole = distribute_tensor(np.ones((4, 2), "f4"), init_device_mesh("cpu", (2,)))
    deaths.arm("at the commit", 1)
    twice = whole * 2
    assert twice.sum().item() == 16 and count() == 0
    twice += 1  # in place
    assert twice.sum().item() == 24 and count() == 1


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


# ---- where nobody waits --------------------------------------------------------------------------


def unseen(deaths, moments, steps=12):
    """Weights after steps of which nobody looks at any; before some a helper is to die."""
    mesh = init_device_mesh("cpu", (2,))
    weights = [distribute_tensor(one, mesh).requires_grad_() for one in WEIGHTS]
    opt = gt.optim.SGD(weights, lr=0.05, momentum=0.9)
    for step in range(steps):
        if step in moments:
            current.recorder().flush()
            deaths.arm(*moments[step])
        x, target = (distribute_tensor(one[step % 5], mesh, [Shard(0)]) for one in (X, TARGETS))
        y = (x @ weights[0]).relu() @ weights[1]
        opt.zero_grad()
        ((y - target) * (y - target)).mean().backward()
        opt.step()
    return [one.numpy().copy() for one in weights]


@pytest.mark.parametrize(
    ("moment", "is_late"), [*((one, False) for one in MOMENTS), ("in the middle", True)]
)
def test_a_death_over_steps_that_nobody_waits_for_costs_no_bit(deaths, moment, is_late):
    """Late: the survivor may answer first that it lacks what a step in flight should have made."""
    expected = unseen(deaths, {})
    if is_late:
        (deaths.folder / "late").touch()
    before = count()
    found = unseen(deaths, {3: (moment, 1), 8: (moment, 0)})
    assert count() == before + 2
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_member_that_lacks_what_an_earlier_message_should_have_made_is_not_dead(
    deaths, monkeypatch
):
    mesh = init_device_mesh("cpu", (2,))
    w = distribute_tensor(np.ones((4, 2), "f4"), mesh)
    placer, sent = current.recorder().placer, []
    heard = placer._heard
    monkeypatch.setattr(placer, "_heard", lambda message: (sent.append(message), heard(message)))
    assert w.sum().item() == 8
    [message] = sent[-1:]
    lacks = gt.RemoteError(remote_name(UnknownTensor), "this helper does not hold that tensor", "")
    lacks._helper = 1
    life = message.lives[1]
    assert not placer._failed(message, lacks, follows=True) and not life.is_over
    assert not placer._failed(message, lacks) and life.is_over  # it is another than it was
    assert (w * 3).sum().item() == 24  # what that one held is mended


def test_training_goes_on_from_a_saved_state_where_a_cut_weight_is_lost(deaths):
    """Tensor parallel: what a member has of a weight, nobody else has."""

    def run(dies):
        mesh = init_device_mesh("cpu", (2,))
        placements = [[Shard(1)], [Shard(0)]]
        weights = [
            distribute_tensor(one, mesh, how).requires_grad_()
            for one, how in zip(WEIGHTS, placements, strict=True)
        ]
        opt = gt.optim.SGD(weights, lr=0.05)
        saved, losses, step = [one.numpy().copy() for one in weights], [], 0
        while step < 6:
            if step == 3 and dies:
                dies = False
                deaths.arm("in the middle", 1)
            try:
                x, target = (distribute_tensor(one[step % 5], mesh) for one in (X, TARGETS))
                y = (x @ weights[0]).relu() @ weights[1]
                loss = ((y - target) * (y - target)).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
                saved = [one.numpy().copy() for one in weights]
                step += 1
            except gt.HelperDied as error:
                assert "its piece of a tensor" in str(error)
                weights = [
                    distribute_tensor(one, mesh, how).requires_grad_()
                    for one, how in zip(saved, placements, strict=True)
                ]
                opt = gt.optim.SGD(weights, lr=0.05)
        return losses, saved

    losses, weights = run(False)
    again, ended = run(True)
    assert count() == 1
    assert again == losses
    for got, want in zip(ended, weights, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_member_that_died_while_nothing_ran_is_mended_at_the_next_step(deaths):
    mesh = init_device_mesh("cpu", (2,))
    whole = distribute_tensor(np.full((6, 4), 2.0, "f4"), mesh)
    assert whole.sum().item() == 48
    row = gt.stats()["helpers"][1]
    os.kill(row["pid"], signal.SIGKILL)
    until(lambda: gt.stats()["helpers"][1]["generation"] > row["generation"], "it was replaced")
    for turn in range(3):
        assert (whole * (turn + 1)).sum().item() == 48 * (turn + 1)


def test_the_output_queue_is_sound_though_a_member_died(two):
    """What its replacement was given instead is known by its tensor's number."""
    mesh = two.mesh(2)
    gt.debug.enable()
    try:
        w = on(mesh, Replicate())(WEIGHTS[0])
        for step in range(3):
            if step == 1:
                os.kill(gt.stats()["helpers"][1]["pid"], signal.SIGKILL)
            w += 1
            y = on(mesh, Shard(0))(X[0]) @ w
            y.numpy()
        assert gt.debug.verify()
        rows = gt.debug.get_output_queue()
    finally:
        gt.debug.disable()
    np.testing.assert_allclose(y.numpy(), X[0] @ (WEIGHTS[0] + 3), rtol=1e-4, atol=1e-4)
    assert [row["helper"] for row in rows if row["kind"] == "DIED"] == [1]
    assert {row["source"] for row in rows if row["kind"] == "MOVE"} == {0}
