"""Networks trained on a mesh end where one helper's do, and members meet as often as they must."""

from __future__ import annotations

import numpy as np
import pytest
from meshes.conftest import broker_of
from meshes.networks import on, train, train_alone

import shmgpu as gt
from shmgpu.distributed import Replicate, Shard, distribute_tensor

OPTIMISERS = {
    "momentum": None,
    "adam": lambda params: gt.optim.AdamW(params, lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("helpers", [2, 3])
@pytest.mark.parametrize("form", ["data", "tensor", "fully sharded"])
def test_training_ends_where_one_helper_s_does(form, helpers, optimiser):
    with broker_of(helpers) as broker:
        mesh = broker.mesh(helpers)
        whole, rows, columns = on(mesh, Replicate()), on(mesh, Shard(0)), on(mesh, Shard(1))
        put, batch = {
            "data": ((whole, whole), rows),
            "tensor": ((columns, rows), whole),
            "fully sharded": ((rows, rows), rows),
        }[form]
        losses, weights = train(put=put, batch=batch, optimiser=OPTIMISERS[optimiser])
        found = [one.numpy().copy() for one in weights]
        lies = [one.placements for one in weights]
        collectives = broker.collectives()
        held = {tensors for tensors, _ in broker.held()}
    assert (
        lies
        == {
            "data": [(Replicate(),), (Replicate(),)],
            "tensor": [(Shard(1),), (Shard(0),)],
            "fully sharded": [(Shard(0),), (Shard(0),)],
        }[form]
    )
    if form != "fully sharded":  # the loss goes with the gradients; or it is all of it
        kind = "all_reduce_many" if form == "data" else "all_reduce"
        assert all(one == [kind] for one in collectives if one)
    assert max(held) <= 2 * (3 if optimiser == "adam" else 2) + 1
    expected, final = train_alone(optimiser=OPTIMISERS[optimiser])
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for got, want in zip(found, final, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_a_batch_alone_may_be_on_the_mesh(two):
    """Weights that nobody put anywhere are whole with each member, and stay so."""
    batch = on(two.mesh(2), Shard(0))
    losses, weights = train(batch=batch)
    assert [one.placements for one in weights] == [(Replicate(),)] * 2
    np.testing.assert_allclose(losses, train_losses(), rtol=1e-4)


def train_losses():
    gt.shutdown()
    return train_alone()[0]


def test_steps_that_nobody_looks_at_are_sent_and_end_alike(two):
    mesh = two.mesh(2)
    weight = distribute_tensor(np.ones((4, 3), "f4"), mesh, [Shard(0)]).requires_grad_()
    opt = gt.optim.SGD([weight], lr=0.125)
    for _ in range(20):
        opt.zero_grad()
        (weight * weight).sum().backward()
        opt.step()
    np.testing.assert_allclose(weight.numpy(), np.full((4, 3), 0.75**20, "f4"), rtol=1e-5)
    assert weight.placements == (Shard(0),)
