"""netcl's names: values are one device's, and replicas meet no oftener than they must."""

from __future__ import annotations

import numpy as np
import pytest
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu.compat import netcl
from shmgpu.compat.netcl.replicas import on_mesh
from shmgpu.distributed import CommDebugMode, DTensor, Replicate
from shmgpu.parallel.tensors import mesh_of
from shmgpu.tensors import current

RNG = np.random.default_rng(3)
ROWS = 13  # for two replicas, whose parts are of 7 and 6
X = RNG.standard_normal((ROWS, 6)).astype("f4")
Y = RNG.standard_normal((ROWS, 2)).astype("f4")


@pytest.fixture(scope="module")
def broker():
    with broker_of(2) as one:
        given = [gt.ones(2), gt.ones(2)]  # what the first messages open stays open
        netcl.all_reduce(given, overlap=True)
        given[0].numpy()
        yield one


@pytest.fixture
def sent(broker):
    """The programs that members of a mesh are sent from here on."""
    broker.mesh(2)
    found: list = []
    current.recorder().send()
    broker.placer.watchers.append(found.append)
    yield found
    broker.placer.watchers.remove(found.append)


def model():
    gt.manual_seed(1)
    return gt.nn.Sequential(gt.nn.Linear(6, 8), gt.nn.ReLU(), gt.nn.Linear(8, 2))


def alone(steps=4):
    """Losses and parameters of one device."""
    net = model()
    adam = gt.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        loss = gt.nn.mse_loss(net(gt.tensor(X)), gt.tensor(Y))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    return losses, [one.numpy() for one in net.parameters()]


OUTCOMES = {"sum": 6, "mean": 2, "max": 3, "min": 1, "prod": 6}


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16"])
@pytest.mark.parametrize("op", OUTCOMES)
def test_tensors_are_reduced_in_place_in_their_own_type(broker, op, dtype):
    given = [gt.full((2, 3), one, dtype=getattr(gt, dtype)) for one in (1, 2, 3)]
    if (op, dtype) == ("mean", "int32"):
        with pytest.raises(ValueError, match="the mean of int32"):
            netcl.all_reduce(given, op)
        return
    before = list(given)
    assert netcl.all_reduce(given, op.upper()) is given
    for one, other in zip(given, before, strict=True):
        assert one is other and one.dtype is getattr(gt, dtype)
        assert one.tolist() == [[OUTCOMES[op]] * 3] * 2


def test_a_reduction_of_short_floats_adds_up_in_float32(broker):
    given = [gt.tensor([one]).to(gt.bfloat16) for one in (256.0, 1.0, 1.0)]  # 257 is none of them
    netcl.all_reduce_p2p(given)
    assert given[2].item() == 258


def test_what_lies_in_memory_is_reduced_by_parts_where_it_lies(broker, sent):
    """Each member reduces half of the elements, and nobody takes any from another."""
    given = [gt.tensor(np.arange(8, dtype="f4")), gt.ones(8)]
    netcl.all_reduce(given)
    assert [(len(one.collectives), one.nbytes) for one in sent] == [(0, (0, 0))]
    assert not isinstance(given[0], DTensor)
    np.testing.assert_array_equal(given[1].numpy(), np.arange(8) + 1)
    with CommDebugMode() as met:
        netcl.all_reduce(given, overlap=True)  # ... but they do if it shall stay with them
    assert met.get_comm_counts() == {"all_gather": 1} and met.nbytes == (16, 16)
    assert given[0].placements == (Replicate(),)
    np.testing.assert_array_equal(given[0].numpy(), 2 * np.arange(8) + 2)


def test_a_list_without_tensors_has_no_result_and_mistakes_have_a_sentence(broker):
    assert netcl.all_reduce([]) is None
    one, other = gt.zeros(2), gt.zeros(3)
    net = model()
    replicas = netcl.prepare_replicas(net, gt.optim.SGD(net.parameters(), lr=0.1), 2)

    def cut(x, y):
        netcl.data_parallel_step(replicas, (x, y), loss_fn=gt.nn.mse_loss)

    for call, match in (
        (lambda: netcl.all_reduce([one, one], "median"), "no op 'median'"),
        (lambda: netcl.all_reduce([one, other]), "have shapes"),
        (lambda: netcl.broadcast([one, one], root=2), "no root 2"),
        (lambda: netcl.broadcast([one, other]), "have shapes"),
        (lambda: netcl.scatter(one, 0), "cannot be cut into 0"),
        (lambda: netcl.gather([]), "no tensor to join"),
        (lambda: netcl.sync_grads([[one], [one]], weights=[0, 0]), "no weights of 2"),
        (lambda: netcl.sync_grads([[one], [other]]), "no gradient"),
        (lambda: netcl.broadcast_params(None, [[one], []]), "as many parameters"),
        (lambda: netcl.broadcast_params(None, [[one]], 1), "no root 1"),
        (lambda: netcl.broadcast_params(None, [[one]], 0, []), "0 optimisers"),
        (lambda: netcl.prepare_replicas([one], n_replicas=0), "one replica at least"),
        (lambda: netcl.prepare_replicas([one], None, 2, ["cpu"]), "a device for each"),
        (lambda: netcl.prepare_replicas([one], None, None, ["cpu", "cuda"]), "one kind"),
        (lambda: netcl.prepare_replicas([one], "adam", 2), "no optimiser"),
        (lambda: netcl.data_parallel_step([], ([], []), loss_fn=max), "of no model"),
        (lambda: cut(X, Y[:1]), "x has 13 rows, and y 1: cut them alike"),
        (lambda: cut(X[:1], Y), "x has 1 row, and y 13: cut them alike"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
    with pytest.raises(TypeError, match="arguments of one form"):
        netcl.data_parallel_step([[one]], (X, Y))


def test_tensors_are_cut_joined_and_copied(broker):
    x = gt.tensor(X)
    pieces = netcl.scatter(x, 4)
    assert [len(one) for one in pieces] == [4, 3, 3, 3]
    np.testing.assert_array_equal(netcl.gather(pieces).numpy(), X)
    assert [type(one) for one in netcl.shard_batch(X, 2)] == [np.ndarray] * 2
    given = [gt.zeros(3), gt.tensor([1, 2, 3])]
    assert netcl.broadcast(given, root=1) is given
    assert given[0].tolist() == [1, 2, 3] and given[0].dtype is gt.float32
    assert netcl.broadcast(x) is x


def test_a_step_of_all_replicas_is_one_message_and_one_meeting(broker, sent):
    hooks: list = []
    net = model()
    adam = gt.optim.Adam(net.parameters(), lr=0.05)
    replicas = netcl.prepare_replicas(net, adam, n_replicas=2, devices=["cpu:0", "cpu:1"])
    current.recorder().send()
    sent.clear()
    losses = [
        netcl.data_parallel_step(
            replicas,
            (X, Y),
            loss_fn=gt.nn.mse_loss,
            pre_shard_hook=lambda x, y: hooks.append(len(x)),
            post_sync_hook=lambda each: hooks.append(each[1][0].grad.shape),
            post_step_hook=hooks.append,
        ).item()
        for _ in range(4)
    ]
    assert [[one.kind for one in each.collectives] for each in sent] == [["all_reduce_many"]] * 4
    assert hooks == [ROWS, (8, 6), 0, 1] * 4
    expected, final = alone()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for one, other in zip(replicas[1], final, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-6)


def test_gradients_are_sent_in_a_shorter_type_if_that_is_asked_for(broker, sent):
    losses, moved = {}, {}
    for compress in (None, "bfloat16"):
        net = model()
        replicas = netcl.prepare_replicas(net, gt.optim.SGD(net.parameters(), lr=0.1), 2)
        current.recorder().send()
        sent.clear()
        losses[compress] = [
            netcl.data_parallel_step(
                replicas, (X, Y), loss_fn=gt.nn.mse_loss, compress=compress, overlap=False
            ).item()
            for _ in range(3)
        ]
        moved[compress] = sent[0].nbytes[0] - 4  # without the loss
    assert moved["bfloat16"] * 2 == moved[None]
    assert losses["bfloat16"] != losses[None]
    np.testing.assert_allclose(losses["bfloat16"], losses[None], rtol=0.02)
    with pytest.raises(ValueError, match="compress='int8'"):
        netcl.data_parallel_step(replicas, (X, Y), loss_fn=gt.nn.mse_loss, compress="int8")


def test_the_release_s_form_takes_parameters_optimisers_and_a_tape(broker, sent):
    class Backward:
        def backward(self, loss):
            loss.backward()

    def forward(queue, x, y, params):
        assert queue.size() == 2 and x.shape == X.shape
        up, up_bias, down, down_bias = params
        hidden = (x @ up.T + up_bias).relu()
        return gt.nn.mse_loss(hidden @ down.T + down_bias, y), Backward()

    net = model()
    queues = netcl.DeviceManager().get_queues()
    assert len(queues) == netcl.DeviceManager().num_devices() == 2
    replicas = netcl.prepare_replicas([one.detach() for one in net.parameters()], queues)
    optimizers = [gt.optim.Adam(params, lr=0.05) for params in replicas]
    current.recorder().send()
    sent.clear()
    grads: list = []
    losses = [
        netcl.data_parallel_step(
            forward,
            replicas,
            optimizers=optimizers,
            batch=(X, Y),
            tape_factory=Backward,
            post_sync_hook=lambda each: grads.append([one[0].grad for one in each]),
        ).item()
        for _ in range(4)
    ]
    assert [[one.kind for one in each.collectives] for each in sent] == [["all_reduce_many"]] * 4
    np.testing.assert_array_equal(grads[0][0].numpy(), grads[0][1].numpy())
    expected, final = alone()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for params in replicas:
        for one, other in zip(params, final, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="none of the first replica's"):
        others = [gt.optim.SGD([gt.zeros(1, requires_grad=True)], lr=1)]
        netcl.data_parallel_step(forward, replicas, others, (X, Y))


def test_a_loop_over_replicas_weighs_their_means_by_their_rows(broker):
    """And what is computed of one replica alone is one helper's work."""
    wide = RNG.standard_normal((ROWS, 512)).astype("f4")
    start = gt.zeros(512, 256, requires_grad=True)
    replicas = netcl.replicate_params([start], ["helper:0", "helper:1"])
    momentum = [gt.optim.SGD(params, lr=1.0, momentum=0.5) for params in replicas]
    gt.debug.enable()
    try:
        shards = netcl.shard_batch(wide, 2)
        for (weight,), shard in zip(replicas, shards, strict=True):
            (gt.tensor(shard) @ weight).mean().backward()
        netcl.sync_grads(replicas, weights=[len(one) for one in shards])
        ran = {row["helper"] for row in gt.debug.get_output_queue() if row["kind"] == "RUN"}
    finally:
        gt.debug.disable()
    assert ran == {0, 1}
    expected = np.repeat(wide.mean(0)[:, None] / 256, 256, axis=1)
    for (weight,), one in zip(replicas, momentum, strict=True):
        np.testing.assert_allclose(weight.grad.numpy(), expected, rtol=1e-4, atol=1e-7)
        one.step()
    netcl.sync_grads(replicas)  # they are equal, and stay so
    np.testing.assert_allclose(replicas[0][0].numpy(), -expected, rtol=1e-4, atol=1e-7)


def test_parameters_and_the_state_of_their_optimiser_travel(broker):
    ones, zeros = ([gt.full((2,), one, requires_grad=True)] for one in (1.0, 0.0))
    optimizers = [gt.optim.SGD(params, lr=1.0, momentum=0.5) for params in (ones, zeros)]
    ones[0].sum().backward()
    optimizers[0].step()
    netcl.broadcast_params(None, [ones, zeros], optimizers=optimizers)
    assert zeros[0].tolist() == [0.0, 0.0] and zeros[0].requires_grad
    zeros[0].grad = gt.ones(2)
    optimizers[1].step()  # 1.5: with the momentum that the first one had
    assert zeros[0].tolist() == [-1.5, -1.5] and ones[0].tolist() == [0.0, 0.0]
    netcl.broadcast_params([gt.full((2,), 7.0)], [ones, zeros])
    assert ones[0].tolist() == zeros[0].tolist() == [7.0, 7.0]


def test_replicas_of_ones_own_are_put_on_a_mesh_once(broker):
    given = [[gt.ones(2), gt.ones(3)] for _ in range(2)]
    mesh = on_mesh(given)
    assert mesh.size() == 2 and all(mesh_of(one) is not None for one in given[0])
    assert all(mesh_of(one) is None for one in given[1])
    assert on_mesh(given) == mesh == given[0][0].device_mesh
    assert on_mesh([[gt.ones(2), given[0][1]], given[1]]) == mesh  # one that lies there says so
