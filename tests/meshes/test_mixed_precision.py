"""Fully sharded models that compute in one type, add gradients in another, and keep a third."""

from __future__ import annotations

import collections
from itertools import compress
from operator import not_

import numpy as np
import pytest
import torch
from meshes.conftest import broker_of
from meshes.test_forms import TARGET, WIDE, X, on
from meshes.test_forms import model as made

import shmgpu as gt
from shmgpu import nn
from shmgpu.distributed import (
    ColwiseParallel,
    CommDebugMode,
    MixedPrecisionPolicy,
    RowwiseParallel,
    Shard,
    distribute_tensor,
    fully_shard,
    parallelize_module,
)


@pytest.mark.parametrize(
    ("types", "want"),
    [
        ({}, 257),
        ({"param_dtype": "bfloat16"}, 256),  # which has no 257
        ({"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}, 257),
        ({"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}, 256),
        ({"reduce_dtype": "bfloat16"}, 256),
        ({"param_dtype": "float64", "reduce_dtype": "bfloat16"}, 256),
        ({"param_dtype": "bfloat16", "reduce_dtype": "float64"}, 257),
    ],
)
def test_parts_of_a_gradient_are_added_in_the_type_that_is_said(two, types, want):
    """Of one member's rows comes 256, of the other's 1, and both are numbers of each type."""
    layer = nn.Linear(1, 2, bias=False)
    fully_shard(layer, mesh=two.mesh(2), mp_policy=MixedPrecisionPolicy(**types))
    rows = np.zeros((128, 1), "f4")  # too many to be gathered instead
    rows[0], rows[-1] = 256, 1
    x = distribute_tensor(rows, two.mesh(2), [Shard(0)])
    layer(x).sum().backward()
    assert layer.weight.grad.numpy().tolist() == [[want], [want]]
    assert layer.weight.dtype is layer.weight.grad.dtype is gt.float32
    assert layer.weight.grad.placements == layer.weight.placements == (Shard(0),)


@pytest.mark.parametrize("again", [True, False])
def test_what_is_gathered_has_half_the_bytes_and_nothing_else_changes(two, again):
    mesh = two.mesh(2)
    took = []
    for policy in (MixedPrecisionPolicy(), MixedPrecisionPolicy("bfloat16", "float32", "float32")):
        net = made()
        for layer in net:
            fully_shard(layer, mesh=mesh, reshard_after_forward=again, mp_policy=policy)
        rows = on(mesh, Shard(0))
        with CommDebugMode() as met:
            y = net(rows(X)())
        assert met.get_comm_counts() == {"all_gather": 2} and y.dtype is gt.float32
        before = len(two.programs())
        trained(net, rows(X), rows(TARGET), 1)
        step = max((one.collectives for one in two.programs()[before:]), key=len)
        gathers = [one.kind == "all_gather_many" for one in step]
        took.append(
            (
                sum(met.nbytes),
                [one.kind for one in step],
                sum(sum(one.nbytes) for one in compress(step, gathers)),
                sum(sum(one.nbytes) for one in compress(step, map(not_, gathers))),
            )
        )
    (plain, kinds, gathered, reduced), (half, *lower) = took
    assert plain == 2 * half
    assert lower == [kinds, gathered / 2, reduced]
    assert kinds.count("reduce_scatter_many") == 1


def alone(steps, policy):
    """What PyTorch makes of it on one device: (losses, parameters); it gathers nothing."""
    with gt.init(inline=True, arena="16MiB", threads=1):
        state = nn.state_tensors(made().state_dict())

    class Twin(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDE)
            self.up, self.down = torch.nn.Linear(WIDE, 24), torch.nn.Linear(24, WIDE)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    net = torch.nn.Sequential(Twin(), Twin())
    net.load_state_dict(state)
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    low = torch.bfloat16 if policy else torch.float32
    losses = []
    for _ in range(steps):
        lower = {name: one.to(low) for name, one in net.named_parameters()}
        y = torch.func.functional_call(net, lower, torch.tensor(X).to(low)).float()
        loss = ((y - torch.tensor(TARGET)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, {name: one.detach().numpy() for name, one in net.named_parameters()}


def trained(net, x, target, steps):
    opt = gt.optim.SGD(net.parameters(), lr=0.2)
    losses = []
    for _ in range(steps):
        loss = ((net(x()) - target()) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, {name: one.numpy().copy() for name, one in net.named_parameters()}


POLICY = MixedPrecisionPolicy("bfloat16", reduce_dtype="float32", output_dtype="float32")


def expect(found, steps=6):
    """As near to PyTorch in mixed precision as that is to itself without, or nearly so."""
    losses, parameters = alone(steps, policy=True)
    exact, others = alone(steps, policy=False)
    assert losses != exact and exact[-1] < 0.9 * exact[0]
    np.testing.assert_allclose(found[0], losses, rtol=5e-3)
    off = max(np.abs(parameters[name] - others[name]).max() for name in parameters)
    for name, want in parameters.items():
        assert np.abs(found[1][name] - want).max() <= 3 * off, name


@pytest.mark.parametrize("helpers", [2, 3])
def test_training_in_mixed_precision_ends_where_one_device_s_does(helpers):
    with broker_of(helpers) as broker:
        mesh = broker.mesh(helpers)
        net = made()
        for layer in net:
            fully_shard(layer, mesh=mesh, mp_policy=POLICY)
        fully_shard(net, mesh=mesh, mp_policy=POLICY)
        rows = on(mesh, Shard(0))
        found = trained(net, rows(X), rows(TARGET), 6)
        assert all(one.placements == (Shard(0),) for one in net.parameters())
    expect(found)


def test_so_does_training_with_layers_that_are_cut_as_well():
    with broker_of(4) as broker:
        mesh = broker.mesh(2, 2, names=("data", "tensor"))
        plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
        net = parallelize_module(made(), mesh["tensor"], plan)
        for layer in net:
            fully_shard(layer, mesh=mesh["data"], mp_policy=POLICY)
        rows = on(mesh["data"], Shard(0))
        found = trained(net, rows(X), rows(TARGET), 6)
        assert net[0].down.weight.placements == (Shard(0), Shard(1))
    expect(found)


Pair = collections.namedtuple("Pair", "first second")


class Sees(nn.Module):
    """Notes the types that it is given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, places, *, more):
        self.seen = [one.dtype.name for one in (x, places, more["a"][0], more["b"].second)]
        self.seen.append(self.layer.weight.dtype.name)
        return Pair(self.layer(x.to(self.layer.weight.dtype)), [places, {"x": x}])


@pytest.mark.parametrize("casts", [True, False])
def test_arguments_and_what_comes_out_are_cast_wherever_they_stand(two, casts):
    net = Sees()
    policy = MixedPrecisionPolicy("bfloat16", None, "float64", cast_forward_inputs=casts)
    fully_shard(net, mesh=two.mesh(2), mp_policy=policy)
    x, places = gt.ones(4, 2), gt.arange(4)
    out = net(x, places, more={"a": [x], "b": Pair(1, x)})
    into = "bfloat16" if casts else "float32"
    assert net.seen == [into, "int64", into, into, "bfloat16"]
    assert type(out) is Pair and out.first.dtype is gt.float64
    assert out.second[0].dtype is gt.int64 and out.second[1]["x"].dtype is gt.float64
    assert net.layer.weight.dtype is gt.float32
    with pytest.raises(TypeError, match="reduce_dtype='int32' must be a type of floats"):
        MixedPrecisionPolicy(reduce_dtype="int32")
