"""Programs over several meshes: stages with workers of their own, and what passes between them."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from meshes.conftest import broker_of
from meshes.dying import Deaths, count

import shmgpu as gt
from shmgpu import signal
from shmgpu.distributed import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from shmgpu.parallel import signals
from shmgpu.parallel.device_mesh import mesh_of_helpers
from shmgpu.signal import ShardConfig, SignalConfig
from shmgpu.tensors import current

RNG = np.random.default_rng(4)
X = RNG.standard_normal((9, 4)).astype("f4")
WEIGHTS = [(RNG.standard_normal(shape) / 2).astype("f4") for shape in ((4, 6), (6, 5), (5, 3))]
TARGET = RNG.standard_normal((9, 3)).astype("f4")


@pytest.fixture
def stages():
    """Three stages, each with its workers; the first two have replicated weights."""
    for number, (workers, replicated) in enumerate((([0, 1], True), ([2], True), ([3, 1], False))):
        shard = ShardConfig(axis=0, workers=workers, replicated=replicated)
        signal.register_config(f"stage {number}", SignalConfig(shard))
    yield [lambda number=number: signal.context(f"stage {number}") for number in range(3)]
    signals.configs.clear()


def trained(stages, steps=5, reads_first=False, each=None):
    """Losses and final weights of layers, each made and used in its stage; and the weights."""
    weights = []
    for stage, array in zip(stages, WEIGHTS, strict=True):
        with stage():
            weights.append(gt.tensor(array, requires_grad=True))
    opt = gt.optim.SGD(weights, lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        if each is not None:
            current.recorder().flush()
            each(step)
        h = gt.tensor(X)
        for number, (stage, w) in enumerate(zip(stages, weights, strict=True)):
            with stage():
                h = h @ w
                h = (h.relu(), h.tanh(), h.sigmoid())[number]
        loss = ((h - gt.tensor(TARGET)) ** 2).mean()
        if reads_first:
            losses.append(loss.item())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if not reads_first:
            losses.append(loss.item())
    return losses, [one.numpy().copy() for one in weights], weights


@pytest.fixture(scope="module")
def alone():
    with gt.init(inline=True, arena="16MiB", threads=1):
        return trained([contextlib.nullcontext] * 3)[:2]


def expect(found, wanted):
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for mine, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reads_first", [False, True])
def test_stages_with_workers_of_their_own_train_as_one_device(stages, reads_first, alone):
    with broker_of(4) as broker:
        gt.debug.enable()
        found = trained(stages, reads_first=reads_first)
        assert gt.debug.verify()
        rows = gt.debug.get_output_queue()
        gt.debug.disable()
        for one, workers in zip(found[2], ([0, 1], [2], [3, 1]), strict=True):
            assert one.device_mesh.mesh.tolist() == workers
            assert one.grad.device_mesh.mesh.tolist() == workers
            assert one.grad.placements == one.placements
        found[2].clear()
        before, held = len(broker.programs()), []
        for _ in range(2):
            trained(stages, reads_first=reads_first)
            held.append([tensors for tensors, _ in broker.held()])
        assert len(broker.programs()) == before  # the same structure, so the same programs
        assert held[0] == held[1]  # all else was let go of
    expect(found, alone)
    ran = {}
    for row in rows:
        if row["kind"] == "RUN":
            ran.setdefault(row["call"].partition("(")[0], set()).add(row["helper"])
    assert (ran["relu"], ran["tanh"], ran["sigmoid"]) == ({0, 1}, {2}, {1, 3})
    assert ran["relu_backward"] == {0, 1}  # its other input is there, and is older
    assert ran["matmul"] == {0, 1, 2, 3}


def test_a_member_of_a_stage_that_dies_costs_no_bit(stages, tmp_path):
    deaths = Deaths(tmp_path)
    settings = {"devices": "cpu", "arena": "32MiB", "threads": 1}
    with gt.init(helpers=4, session=deaths.session, **settings):
        mended = [stages[0], stages[0], stages[1]]  # each piece is with two, or its death is none
        want = trained(mended)
        moments = {2: ("in the middle", 0), 3: ("at the commit", 1)}
        found = trained(
            mended,
            each=lambda step: deaths.arm(*moments[step]) if step in moments else None,
        )
        assert count() >= 1
        assert found[0] == want[0]
        for mine, other in zip(found[1], want[1], strict=True):
            np.testing.assert_array_equal(mine, other)


def test_a_tensor_is_put_on_another_mesh_and_gradients_come_back():
    with broker_of(3):
        other, one = mesh_of_helpers([2]), init_device_mesh("cpu", (2,))
        x = distribute_tensor(X, one, [Shard(0)]).requires_grad_()
        y = (x * 2).redistribute(other, [Replicate()])
        assert y.device_mesh == other and y.placements == (Replicate(),)
        z = y * 3
        assert z.device_mesh == other and isinstance(z, DTensor)
        (z * z).sum().backward()
        assert x.grad.device_mesh == one and x.grad.placements == (Shard(0),)
        np.testing.assert_allclose(x.grad.numpy(), 72 * X, rtol=1e-6)
        again = distribute_tensor(y, one, [Shard(1)])
        assert again.placements == (Shard(1),) and again.device_mesh == one
        np.testing.assert_array_equal(again.numpy(), 2 * X)


def test_tensors_of_several_meshes_meet_where_most_of_them_lies():
    with broker_of(3):
        meshes = [mesh_of_helpers([number]) for number in (2, 1, 0)]
        small, large, third = (
            distribute_tensor(np.full(shape, number + 1.0, "f4"), mesh)
            for number, (mesh, shape) in enumerate(zip(meshes, ((3,), (5, 3), (1,)), strict=True))
        )
        common = gt.arange(3) * 1.0  # of no mesh, and used on each
        total = (small + common) * large + third * common
        assert total.device_mesh == meshes[1]
        np.testing.assert_array_equal(
            total.numpy(), np.tile((1 + np.arange(3)) * 2 + 3 * np.arange(3), (5, 1))
        )
        assert (small * 2).device_mesh == meshes[0] and common.sum().item() == 3
        small += large.sum(0)  # what is changed in place stays where it lies
        assert small.device_mesh == meshes[0]
        assert small.tolist() == [11, 11, 11]


def test_what_fails_in_one_stage_is_lost_with_what_follows_and_nothing_else():
    with broker_of(2):
        other, one = (mesh_of_helpers([number]) for number in (1, 0))
        table = distribute_tensor(np.ones((4, 2), "f4"), one)
        w = distribute_tensor(np.full((2, 2), 2.0, "f4"), other)
        good = gt.nn.functional.embedding(gt.tensor([0, 3]), table) @ w
        bad = gt.nn.functional.embedding(gt.tensor([0, 9]), table) @ w
        with pytest.raises(gt.RemoteError, match="embedding"):
            bad.numpy()
        assert good.tolist() == [[4, 4], [4, 4]]
        assert (w + 1).tolist() == [[3, 3], [3, 3]] and table.sum().item() == 8
