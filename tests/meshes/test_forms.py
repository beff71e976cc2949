"""Models cut in the forms that people train in: what members meet for, and what comes of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu import nn
from shmgpu.distributed import (
    ColwiseParallel,
    CommDebugMode,
    ParallelStyle,
    Partial,
    PrepareModuleInput,
    PrepareModuleOutput,
    Replicate,
    RowwiseParallel,
    SequenceParallel,
    Shard,
    constrain,
    distribute_tensor,
    explain,
    from_local,
    fully_shard,
    init_device_mesh,
    local_map,
    loss_parallel,
    parallelize,
    parallelize_module,
)
from shmgpu.tensors import current, functions

RNG = np.random.default_rng(3)
BATCH, PLACES, WIDE, HIDDEN = 8, 6, 8, 24
X = RNG.standard_normal((BATCH, PLACES, WIDE)).astype("f4")
TARGET = RNG.standard_normal((BATCH, PLACES, WIDE)).astype("f4")


class Block(nn.Module):
    """A norm, two layers, and a way around them."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDE)
        self.up = nn.Linear(WIDE, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDE)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


def model():
    gt.manual_seed(7)
    return nn.Sequential(Block(), Block())


def trained(net, x, target, steps=5):
    """Losses, and the final parameters."""
    opt = gt.optim.AdamW(net.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        loss = ((net(x()) - target()) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, {name: one.numpy().copy() for name, one in net.named_parameters()}


@pytest.fixture(scope="module")
def alone():
    """What one helper makes of it."""
    with gt.init(inline=True, arena="16MiB", threads=1):
        net = model()
        y = net(gt.tensor(X)).numpy().copy()
        return y, *trained(net, lambda: gt.tensor(X), lambda: gt.tensor(TARGET))


def expect(found, alone):
    losses, parameters = found
    np.testing.assert_allclose(losses, alone[1], rtol=1e-4)
    for name, want in alone[2].items():
        np.testing.assert_allclose(parameters[name], want, rtol=1e-3, atol=2e-5, err_msg=name)


def on(mesh, *placements):
    return lambda array: lambda: distribute_tensor(array, mesh, placements)


TENSOR = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}


def test_a_network_cut_by_columns_and_rows_meets_once_forward(two, alone):
    mesh = two.mesh(2)
    net = parallelize_module(model()[0], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    assert net.up.weight.placements == (Shard(0),) and net.up.bias.placements == (Shard(0),)
    assert net.down.weight.placements == (Shard(1),)
    with CommDebugMode() as met:
        y = net(gt.tensor(X))
    assert met.get_comm_counts() == {"all_reduce": 1}
    assert met.get_total_counts() == 1
    assert met.nbytes == (y.nbytes,) * 2  # of 2 (k - 1) / k
    assert y.placements == (Replicate(),)


def test_tensor_parallel_training_ends_where_one_helper_s_does(two, alone):
    net = parallelize_module(model(), two.mesh(2), TENSOR)
    np.testing.assert_allclose(net(gt.tensor(X)).numpy(), alone[0], rtol=1e-4, atol=1e-5)
    expect(trained(net, lambda: gt.tensor(X), lambda: gt.tensor(TARGET)), alone)
    assert net[0].up.weight.placements == (Shard(0),)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda mesh: init_device_mesh("cpu", 2),
            r"is a tuple of lengths, as in \(2,\)",
        ),
        (lambda mesh: distribute_tensor(X, [Shard(0)]), "distribute_tensor: a mesh is wanted"),
        (lambda mesh: gt.ones(4).redistribute((2,)), "redistribute: a mesh .* this is a tuple"),
        (lambda mesh: constrain(gt.ones(4), "cpu", []), "constrain: a mesh is wanted"),
        (lambda mesh: parallelize(len, 2, [None]), "parallelize: a mesh is wanted"),
        (lambda mesh: local_map(len, [None], device_mesh=2), "local_map: a mesh is wanted"),
        (lambda mesh: from_local(gt.ones(4), 2), "from_local: a mesh is wanted"),
        (lambda mesh: fully_shard(model(), mesh=2), "fully_shard: a mesh is wanted"),
        (lambda mesh: parallelize_module(model(), 2, {}), "parallelize_module: a mesh is wanted"),
        (lambda mesh: parallelize_module(model(), mesh, {"0": "rows"}), "by a style, such as"),
    ],
)
def test_what_is_no_mesh_or_no_style_is_said_to_be_none(two, call, sentence):
    with pytest.raises(TypeError, match=sentence):
        call(two.mesh(2))


def test_a_parameter_that_nobody_put_anywhere_stays_whole(two):
    """Its gradient comes cut, beside layers that are: with its helper nothing of it may be lost."""
    net = model()[0]
    net.between = nn.LayerNorm(HIDDEN)
    net.forward = lambda x: net.down(net.between(net.up(x)))
    parallelize_module(net, two.mesh(2), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    opt = gt.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(2):
        loss = net(gt.tensor(X)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    loss.item()
    whole = (net.between.weight, net.between.bias, net.down.bias)
    assert [one.placements for one in whole] == [(Replicate(),)] * 3


def sequence_parallel():
    return {
        "*.norm": SequenceParallel(),
        "*.up": ColwiseParallel(input_layouts=Shard(1)),
        "*.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def test_sequence_parallel_gathers_once_and_scatters_once_for_each_block(two, alone):
    mesh = two.mesh(2)
    net = parallelize_module(model(), mesh, sequence_parallel())
    x = on(mesh, Shard(1))
    current.recorder().flush()
    with CommDebugMode() as met:
        y = net(x(X)())
    assert met.get_comm_counts() == {"all_gather": 2, "reduce_scatter": 2}  # of two blocks
    assert y.placements == (Shard(1),)
    np.testing.assert_allclose(y.numpy(), alone[0], rtol=1e-4, atol=1e-5)
    expect(trained(net, x(X), x(TARGET)), alone)


def test_data_parallel_meets_nowhere_forward_and_once_backward(two, alone):
    mesh = two.mesh(2)
    net = model()
    rows = on(mesh, Shard(0))
    with CommDebugMode() as met:
        loss = ((net(rows(X)()) - rows(TARGET)()) ** 2).mean(dim=(1, 2))
    assert met.get_comm_counts() == {}
    with CommDebugMode() as met:
        loss.mean().backward()
    assert met.get_comm_counts() == {"all_reduce": 1}
    expect(trained(model(), rows(X), rows(TARGET)), alone)


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("helpers", [2, 3])
def test_fully_sharded_training_gathers_each_layer_and_ends_where_one_helper_s_does(
    helpers, again, alone
):
    with broker_of(helpers) as broker:
        mesh = broker.mesh(helpers)
        net = model()
        parameters = list(net.parameters())
        for layer in net:
            fully_shard(layer, mesh=mesh, reshard_after_forward=again)
        fully_shard(net, mesh=mesh)
        assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
        assert all(one.placements == (Shard(0),) for one in parameters)
        rows = on(mesh, Shard(0))
        current.recorder().flush()
        with CommDebugMode() as met:
            y = net(rows(X)())
        assert met.get_comm_counts() == {"all_gather": 2}
        nbytes = sum(one.nbytes for one in parameters)
        assert sum(met.nbytes) == nbytes * (helpers - 1)
        np.testing.assert_allclose(y.numpy(), alone[0], rtol=1e-4, atol=1e-5)
        del y
        found = trained(net, rows(X), rows(TARGET))
        held = broker.held()
        assert all(one.placements == (Shard(0),) for one in parameters)
    expect(found, alone)
    assert len(held) == helpers


def test_each_member_holds_its_part_of_what_is_fully_sharded(two):
    mesh = two.mesh(2)
    net = fully_shard(nn.Linear(64, 128, bias=False), mesh=mesh)
    opt = gt.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(3):
        opt.zero_grad()
        x = distribute_tensor(np.ones((4, 64), "f4"), mesh, [Shard(0)])
        loss = (net(x) ** 2).sum()
        loss.backward()
        opt.step()
        loss.item()
    opt.zero_grad()
    assert net.weight.numpy().shape == (128, 64)
    whole = 4 * 64 * 128
    for number in range(2):
        (figures,) = functions.engine_figures.options(helpers=[number])()
        assert figures["children"][0]["bytes"] <= 4 * whole / 2 + 1024  # and two of state, grad


def test_what_is_fully_sharded_is_cut_where_it_is_told_to_and_what_is_ignored_is_not(two, alone):
    mesh = two.mesh(2)
    net = model()
    first, last = net[0], net[-1]
    for layer in (first, last):
        fully_shard(
            layer,
            mesh=mesh,
            shard_placement_fn=lambda one: Shard(-1) if one.ndim == 2 else None,
            ignored_params={last.up.weight},
        )
    fully_shard(net, mesh=mesh)
    assert first.up.weight.placements == (Shard(1),) and first.up.bias.placements == (Shard(0),)
    assert last.up.weight.placements == (Replicate(),)
    assert last.down.weight.placements == (Shard(1),)
    rows = on(mesh, Shard(0))
    expect(trained(net, rows(X), rows(TARGET)), alone)
    for wrong, why in ((Shard(2), "does not exist"), (Replicate(), "return Shard")):
        with pytest.raises((TypeError, ValueError), match=why):
            fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda one, w=wrong: w)


def test_a_layer_of_which_one_parameter_cannot_be_cut_is_not_cut_at_all(two):
    mesh, layer = two.mesh(2), nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"shape \(2,\), whose axis 1 does not exist: choose one"):
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda one: Shard(1))
    fully_shard(layer, mesh=mesh)
    assert layer.weight.placements == layer.bias.placements == (Shard(0),)


def test_two_forms_at_once_on_a_mesh_of_two_axes(four, alone):
    mesh = four.mesh(2, 2, names=("data", "tensor"))
    net = parallelize_module(model(), mesh["tensor"], TENSOR)
    for layer in net:
        fully_shard(layer, mesh=mesh["data"])
    assert net[0].up.weight.placements == (Shard(1), Shard(0))
    rows = on(mesh["data"], Shard(0))
    expect(trained(net, rows(X), rows(TARGET)), alone)
    assert net[0].down.weight.placements == (Shard(0), Shard(1))


def test_a_style_of_inputs_and_outputs_moves_them(two):
    mesh = two.mesh(2)

    class Adds(nn.Module):
        def forward(self, x, y=None, *, z):
            self.seen = x.placements, z.placements
            return x + z, x * 2

    layer = Adds()
    into = PrepareModuleInput(
        input_layouts=(Shard(0), None),
        desired_input_layouts=(Shard(1), None),
        input_kwarg_layouts={"z": Replicate()},
        desired_input_kwarg_layouts={"z": Shard(0)},
        use_local_output=False,
    )
    out = PrepareModuleOutput(
        output_layouts=(Shard(0), Shard(0)),
        desired_output_layouts=(Replicate(), None),
        use_local_output=True,
    )
    parallelize_module(layer, mesh, into)
    parallelize_module(layer, mesh, out)
    x = gt.tensor(X[0])
    total, twice = layer(x, None, z=x)
    assert layer.seen == ((Shard(1),), (Shard(0),))
    assert (total.placements, twice.placements) == ((Replicate(),), (Shard(1),))
    np.testing.assert_array_equal(total.numpy(), 2 * X[0])
    single = parallelize_module(
        nn.ReLU(), mesh, PrepareModuleOutput(desired_output_layouts=Shard(0))
    )
    assert single(x).placements == (Shard(0),)


def test_tables_are_cut_by_columns_or_rows(two):
    mesh = two.mesh(2)
    index = np.array([[0, 9, 3], [5, 5, 1]])
    for style, placement in (
        (ColwiseParallel(output_layouts=Replicate(), use_local_output=True), Shard(1)),
        (RowwiseParallel(input_layouts=Replicate(), use_local_output=True), Shard(0)),
    ):
        table = nn.Embedding(10, 4)
        want = table(gt.tensor(index)).numpy()
        parallelize_module(table, mesh, style)
        assert table.weight.placements == (placement,)
        np.testing.assert_array_equal(table(gt.tensor(index)).numpy(), want)


def test_scores_of_classes_that_are_cut_are_never_moved(two):
    mesh = two.mesh(2)
    classes, wide = 1000, 4
    head = nn.Linear(wide, classes, bias=False)
    x, target = RNG.standard_normal((16, wide)), RNG.integers(0, classes, 16)
    x = x.astype("f4")
    want = nn.functional.cross_entropy(head(gt.tensor(x)), gt.tensor(target)).item()
    parallelize_module(head, mesh, ColwiseParallel())
    with loss_parallel(), CommDebugMode() as met:
        loss = nn.functional.cross_entropy(head(gt.tensor(x)), gt.tensor(target))
        loss.backward()
    assert loss.item() == pytest.approx(want, rel=1e-5)
    assert set(met.get_comm_counts()) == {"all_reduce"}
    assert max(met.nbytes) < 16 * classes


def test_what_cannot_be_cut_says_so(two):
    mesh = two.mesh(2)
    with pytest.raises(TypeError, match="cuts Linear and Embedding, not ReLU"):
        parallelize_module(nn.ReLU(), mesh, ColwiseParallel())
    with pytest.raises(ValueError, match=r"no layer is called 'nothing'.* 0\.norm"):
        parallelize_module(model(), mesh, {"nothing": ColwiseParallel()})
    with pytest.raises(NotImplementedError, match="apply"):
        parallelize_module(nn.ReLU(), mesh, ParallelStyle())
    net = fully_shard(nn.Linear(2, 2), mesh=mesh)
    with pytest.raises(ValueError, match="cut before"):
        fully_shard(net, mesh=mesh)


# ---- functions -----------------------------------------------------------------------------------


def test_a_function_for_one_device_takes_inputs_of_any_shape_on_a_mesh(two):
    mesh = two.mesh(2)

    def scores(x, w, scale):
        return (x @ w).softmax(-1) * scale, x.sum()

    cut = parallelize(
        scores, mesh, [[Shard(0)], [Replicate()], None], out_placements=([Replicate()], None)
    )
    w = RNG.standard_normal((8, 4)).astype("f4")
    for count in (6, 7, 2):
        x = RNG.standard_normal((count, 8)).astype("f4")
        got, total = cut(gt.tensor(x), gt.tensor(w), 2.0)
        want, _ = scores(gt.tensor(x), gt.tensor(w), 2.0)
        assert got.placements == (Replicate(),)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5)
        assert total.item() == pytest.approx(x.sum(), abs=1e-4)
    with pytest.raises(ValueError, match="2 arguments are given, and placements of 3"):
        cut(gt.tensor(w), gt.tensor(w))
    with pytest.raises(ValueError, match="2 values are returned"):
        parallelize(scores, mesh, [None, None, None], [Shard(0)])(gt.ones(2, 2), gt.ones(2, 2), 1)


def test_a_constraint_moves_a_value_on_the_way(two):
    mesh = two.mesh(2)
    x = constrain(gt.tensor(X[0]), mesh, [Shard(0)])
    assert (x * 2).placements == (Shard(0),)
    y = constrain(x * 2, mesh, Shard(1)) + 1
    assert y.placements == (Shard(1),)
    np.testing.assert_array_equal(y.numpy(), X[0] * 2 + 1)


def test_a_constraint_on_one_axis_leaves_the_other_as_it_is(four):
    mesh = four.mesh(2, 2, names=("data", "tensor"))
    x = distribute_tensor(np.arange(35, dtype="f4").reshape(7, 5), mesh["data"], [Shard(0)])
    y = constrain(x[1:] * 2, mesh["tensor"], [Shard(1)])  # the slice is cut unevenly
    assert y.placements == (Shard(0), Shard(1))
    np.testing.assert_array_equal(y.numpy(), np.arange(35, dtype="f4").reshape(7, 5)[1:] * 2)


def test_a_function_of_pieces_sees_pieces(two):
    mesh = two.mesh(2)
    seen = []

    def centred(x, scale):
        seen.append(x.shape)
        return (x - x.mean()) * scale, x.sum()

    x = distribute_tensor(X[0], mesh, [Shard(0)]).requires_grad_()
    cut = local_map(centred, ([Shard(0)], [Partial()]), ([Shard(0)], None), device_mesh=mesh)
    y, total = cut(x, 3.0)
    assert seen == [(3, 8)]
    halves = X[0].reshape(2, 3, 8)
    want = (halves - halves.mean((1, 2), keepdims=True)) * 3
    np.testing.assert_allclose(y.numpy(), want.reshape(6, 8), rtol=1e-4, atol=1e-5)
    assert total.item() == pytest.approx(X[0].sum(), abs=1e-4)
    total.backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((6, 8)))
    with pytest.raises(ValueError, match="redistribute_inputs=True"):
        local_map(centred, ([Shard(0)], [Partial()]), ([Shard(1)], None))(x, 1.0)
    moved = local_map(
        lambda x: x * 2,
        [Shard(1)],
        ([Shard(1)],),
        in_grad_placements=([Shard(1)],),
        redistribute_inputs=True,
    )(x)
    np.testing.assert_array_equal(moved.numpy(), X[0] * 2)


# ---- looking -------------------------------------------------------------------------------------


def test_an_explanation_tells_what_will_be_met_for_and_sends_nothing(two):
    mesh = two.mesh(2)
    net = parallelize_module(model()[0], mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    current.recorder().flush()
    x = gt.tensor(X)
    with CommDebugMode() as met:
        y = net(x)
        told = explain(y)
        assert current.recorder().waiting()
    assert [one.kind for one in told.lowered.collectives] == ["all_reduce"]
    assert "all_reduce" in str(told) and "linear" in str(told)
    assert met.nbytes == told.nbytes
    with pytest.raises(ValueError, match="computed already"):
        explain(y)


def test_without_a_mesh_there_is_nothing_to_explain(two):
    with pytest.raises(ValueError, match="no mesh yet"):
        explain(gt.ones(3) + 1)


def test_a_model_s_state_is_whole_wherever_it_lies(two):
    mesh = two.mesh(2)
    net = parallelize_module(model(), mesh, TENSOR)
    state = {name: one.numpy() for name, one in net.state_dict().items()}
    other = model()
    other.load_state_dict(net.state_dict())
    for name, one in other.state_dict().items():
        np.testing.assert_array_equal(one.numpy(), state[name])
    net.load_state_dict(state)
    assert net[0].up.weight.placements == (Shard(0),)
    with gt.no_grad():
        net[0].up.weight.fill_(2.0).mul_(0.5)
        net[0].up.bias.zero_()
    net[0].down.weight.data = state["0.down.weight"]
    assert net[0].up.weight.placements == net[0].up.bias.placements == (Shard(0),)
    assert net[0].down.weight.placements == (Shard(1),)
    assert net[0].up.weight.numpy().mean() == 1
    net.load_state_dict(state)
    again = pickle.loads(pickle.dumps(net[0].up.weight.detach()))
    np.testing.assert_array_equal(again.numpy(), state["0.up.weight"])
