"""Tensors on a mesh of real helpers: where they lie, what they are, what is let go of."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytest
from attach.brokers import until
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu import optim
from shmgpu.distributed import (
    CommDebugMode,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    from_local,
    init_device_mesh,
)
from shmgpu.parallel.device_mesh import mesh_of_helpers
from shmgpu.parallel.message import MeshMessage
from shmgpu.parallel.placer import MeshPlacer
from shmgpu.tensors import current, functions


def whole(*shape):
    return np.arange(np.prod(shape), dtype="f4").reshape(shape)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("helpers", [1, 2, 3])
def test_a_tensor_that_is_cut_is_the_same_tensor(helpers, dim):
    with broker_of(helpers) as broker:
        mesh = broker.mesh(helpers)
        array = whole(7, 5, 4)  # which is cut unevenly
        x = distribute_tensor(array, mesh, [Shard(dim)])
        assert x.placements == (Shard(dim % 3),)
        assert x.shape == (7, 5, 4)
        np.testing.assert_array_equal(x.numpy(), array)
        np.testing.assert_array_equal((x * 2 + 1).numpy(), array * 2 + 1)
        np.testing.assert_array_equal(x.sum(1).numpy(), array.sum(1))
        assert x.placements == (Shard(dim % 3),)  # looking at it changes nothing
        assert x.sum().item() == array.sum()


def test_it_lies_as_asked_again_and_gradients_flow_through_that(two):
    mesh = two.mesh(2)
    x = distribute_tensor(whole(6, 4), mesh, [Shard(0)]).requires_grad_()
    y = x.redistribute(device_mesh=mesh, placements=[Shard(1)])
    assert y.placements == (Shard(1),)
    (y.full_tensor() * y).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * whole(6, 4))
    assert x.grad.placements == (Shard(0),)  # as its leaf does
    assert y.full_tensor().placements == (Replicate(),)
    partial = x.detach().redistribute(placements=[Partial()])
    assert partial.placements == (Partial(),)
    np.testing.assert_array_equal(partial.numpy(), whole(6, 4))


OF_NUMBERS = {
    "a sum": (lambda w: w.sum(), 1),
    "a mean": (lambda w: w.mean(), 1 / 24),
    "a part": (lambda w: (w * 3).sum(1)[2], None),
    "a sum, weighed": (lambda w: w.sum() * gt.tensor(2.0), 2),
    "what is flat": (lambda w: w.sign().sum(), 0),
}


@pytest.mark.table
@pytest.mark.parametrize("name", OF_NUMBERS)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
def test_a_gradient_that_is_made_of_numbers_alone_lies_as_its_leaf(two, placement, name):
    """It is computed by all members, and no step that uses it has to bring it from one of them."""
    of, want = OF_NUMBERS[name]
    if want is None:
        want = np.where(np.arange(6)[:, None] == 2, 3, 0)
    mesh = two.mesh(2)
    w = distribute_tensor(whole(6, 4), mesh, [placement]).requires_grad_()
    opt = gt.optim.SGD([w], lr=0.5, momentum=0.9)
    before = two.held()
    with CommDebugMode() as met:
        of(w).backward()
        (again,) = gt.grad(of(w), w)
    assert w.grad.placements == again.placements == (placement,)
    assert met.get_comm_counts() == {}  # nobody asks for the sum itself
    opt.step()
    assert w.placements == (placement,)
    np.testing.assert_allclose(again.numpy(), np.broadcast_to(want, (6, 4)), rtol=1e-6)
    np.testing.assert_allclose(w.numpy(), whole(6, 4) - 0.5 * np.asarray(want), rtol=1e-6)
    ran = [now - then for (_, now), (_, then) in zip(two.held(), before, strict=True)]
    assert ran[0] == ran[1] > 0


def test_what_is_made_of_tensors_on_a_mesh_is_on_it(two):
    mesh = two.mesh(2)
    x = distribute_tensor(whole(6, 4), mesh, [Shard(0)])
    plain = gt.tensor(whole(6, 4))
    assert isinstance(x, DTensor) and isinstance(x + 1, DTensor) and isinstance(plain + x, DTensor)
    assert not isinstance(plain, DTensor)
    assert (x + plain).placements == (Shard(0),)
    assert (x + plain).device_mesh == mesh
    with pytest.raises(AttributeError, match="distribute_tensor"):
        _ = plain.placements
    with pytest.raises(AttributeError, match="distribute_tensor"):
        plain.redistribute(placements=[Shard(0)])
    assert plain.full_tensor() is plain


def test_what_one_helper_holds_alone_is_used_on_a_mesh(two):
    alone = gt.tensor(whole(6, 4)) * 2
    current.recorder().send()
    x = distribute_tensor(whole(6, 4), two.mesh(2), [Shard(1)])
    np.testing.assert_array_equal((x + alone).numpy(), whole(6, 4) * 3)
    np.testing.assert_array_equal((alone + 1).numpy(), whole(6, 4) * 2 + 1)


def test_what_is_recorded_beside_a_mesh_and_never_meets_it_stays_off_it(two):
    mesh = two.mesh(2)
    x = distribute_tensor(whole(4, 2), mesh, [Shard(0)])
    fed, beside = gt.ones(4, 2) * 2, gt.ones(3) * 2
    fed_and_beside = fed + 1
    assert (x * fed).sum().item() == 56
    assert fed_and_beside.placements == fed.placements == (Replicate(),)
    with pytest.raises(AttributeError, match="on no mesh"):
        beside.placements
    assert beside.tolist() == [2, 2, 2] and fed_and_beside.sum().item() == 24


def test_tensors_of_two_meshes_are_computed_each_on_its_own(two):
    one, other = two.mesh(2), two.mesh(1)
    x, y = distribute_tensor(whole(4), one, [Shard(0)]), distribute_tensor(whole(4), other)
    a, b = x * 2, y * 3
    assert (a.sum().item(), b.sum().item()) == (12, 18)
    assert a.device_mesh == one and b.device_mesh == other


def test_the_same_program_is_done_where_its_tensors_lie_each_time(two):
    """What was found out of a structure holds for tensors that lie so, and for no others."""
    meshes = [two.mesh(2), mesh_of_helpers([1, 0]), two.mesh(1)]
    lying = [distribute_tensor(whole(4, 2), mesh, [Shard(0)]) for mesh in meshes]
    current.recorder().flush()
    for _ in range(2):
        for x, mesh in zip(lying, meshes, strict=True):
            doubled = x * 2
            assert doubled.tolist() == (whole(4, 2) * 2).tolist()
            assert doubled.device_mesh == mesh
    assert (gt.tensor(whole(4, 2)) * 2).tolist() == (whole(4, 2) * 2).tolist()


def bytes_of_helpers(count):
    found = []
    for number in range(count):
        (figures,) = functions.engine_figures.options(helpers=[number])()
        found.append(sum(row["bytes"] for row in figures["children"]))
    return found


def test_members_in_another_order_than_their_numbers_have_what_is_said():
    """Who has a piece is who is told to let go of it, and who may give it to a replacement."""
    with broker_of(3):
        mesh, array = mesh_of_helpers([2, 0, 1]), whole(4, 1000) % 7
        x = distribute_tensor(array, mesh, [Shard(0)])
        np.testing.assert_array_equal(x.numpy(), array)
        assert bytes_of_helpers(3) == [4000, 4000, 8000]
        turned = x.redistribute(mesh, [Shard(1)])
        np.testing.assert_array_equal(turned.numpy(), array)
        np.testing.assert_array_equal(x.full_tensor().numpy(), array)
        np.testing.assert_array_equal((turned @ turned.T).numpy(), array @ array.T)
        parts = (turned @ turned.T).redistribute(mesh, [Shard(0)])
        np.testing.assert_array_equal(parts.numpy(), array @ array.T)


def test_pieces_are_each_members_own_until_they_make_a_tensor(two):
    mesh = two.mesh(2)
    x = distribute_tensor(whole(6, 4), mesh, [Shard(0)]).requires_grad_()
    local = x.to_local()
    assert local.shape == (3, 4)
    with pytest.raises(ValueError, match="each helper's own"):
        local.numpy()
    totals = from_local(local.sum(0, keepdim=True), mesh, [Shard(0)])
    np.testing.assert_array_equal(totals.numpy(), whole(2, 3, 4).sum(1))
    summed = from_local(local.sum(0), mesh, [Partial()])
    np.testing.assert_array_equal(summed.numpy(), whole(6, 4).sum(0))
    summed.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.ones((6, 4)))
    w = distribute_tensor(whole(3, 2), mesh).requires_grad_()  # of which each uses a part
    own = w.to_local(grad_placements=[Partial()]) * local.detach()[:, :2]
    from_local(own, mesh, [Shard(0)]).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), whole(2, 3, 4)[:, :, :2].sum(0))
    with pytest.raises(ValueError, match="of each member's own"):
        from_local(gt.tensor(whole(3, 4)), mesh, [Shard(0)])
    doubled = gt.zeros(3)
    for _ in range(100):  # 2 ** 100 ways lead back from the end
        doubled = doubled + doubled
    with pytest.raises(ValueError, match="in pieces"):
        from_local(doubled, mesh, [Shard(0)])
    with pytest.raises(ValueError, match="several shapes"):
        distribute_tensor(whole(5, 4), mesh, [Shard(0)]).to_local()


def test_changes_in_place_stay_where_they_lie(two):
    x = distribute_tensor(whole(6, 4), two.mesh(2), [Shard(1)])
    x += distribute_tensor(whole(6, 4), two.mesh(2), [Shard(0)])
    x.mul_(2.0)
    assert x.placements == (Shard(1),)
    x[1] = 0.0
    want = whole(6, 4) * 4
    want[1] = 0
    np.testing.assert_array_equal(x.numpy(), want)
    assert x.placements == (Shard(1),)


def test_pieces_are_let_go_of_everywhere(two):
    mesh = two.mesh(2)
    kept = distribute_tensor(whole(8, 4), mesh, [Shard(0)])
    for turn in range(20):
        _ = distribute_tensor(whole(8, 4), mesh, [Shard(0)]) + turn
        current.recorder().send()
    assert kept.sum().item() == whole(8, 4).sum()
    del _
    gc.collect()

    def is_the_only_one():
        nonlocal kept
        kept = kept * 1.0
        kept.numpy()
        return [tensors for tensors, _ in two.held()] == [1, 1]

    until(is_the_only_one, "the ends of earlier messages are read, and helpers told")


def test_a_step_is_one_message_and_lowered_once(two):
    mesh = two.mesh(2)
    w = distribute_tensor(whole(8, 4), mesh, [Shard(1)])
    for turn in range(5):
        x = gt.tensor(whole(3, 8) + turn)
        before = two.held()
        got = (x @ w).sum().item()
        assert [after[1] - then[1] for after, then in zip(two.held(), before, strict=True)] == [
            1,
            1,
        ]
        assert got == ((whole(3, 8) + turn) @ whole(8, 4)).sum()
        known = len(two.programs())
        assert turn == 0 or known == len(two.programs())
    assert len(two.programs()) <= 2  # the first has the weight in the arena


def test_a_mesh_has_axes_with_names_and_parts(four):
    mesh = four.mesh(2, 2, names=("data", "tensor"))
    assert mesh.mesh_dim_names == ("data", "tensor")
    assert (mesh.shape, mesh.ndim, mesh.size(), mesh.size("tensor")) == ((2, 2), 2, 4, 2)
    assert mesh.mesh.tolist() == [[0, 1], [2, 3]]
    part = mesh["tensor"]
    assert (part.shape, part.ndim, part.mesh_dim_names) == ((2,), 1, ("tensor",))
    x = distribute_tensor(whole(8, 6), part, [Shard(1)])
    assert x.placements == (Replicate(), Shard(1))
    y = distribute_tensor(x, mesh["data"], [Shard(0)])  # as it lay along the other axis
    assert y.placements == (Shard(0), Shard(1))
    np.testing.assert_array_equal((y @ y.T).numpy(), whole(8, 6) @ whole(8, 6).T)
    with pytest.raises(KeyError, match="no axis 'rows'"):
        mesh["rows"]
    with pytest.raises(KeyError, match="no axis 'data'"):
        part.size("data")


def test_what_cannot_be_is_refused_where_it_is_written(two):
    mesh = two.mesh(2)
    with pytest.raises(ValueError, match="2 placements are given"):
        distribute_tensor(whole(4, 4), mesh, [Shard(0), Shard(1)])
    with pytest.raises(ValueError, match="not of a tensor of 2 axes"):
        distribute_tensor(whole(4, 4), mesh, [Shard(2)])
    with pytest.raises(ValueError, match="not partial"):
        distribute_tensor(whole(4, 4), mesh, [Partial()])
    for wrong in (0, [Shard(0)]):
        with pytest.raises(TypeError, match="no placement"):
            distribute_tensor(whole(4, 4), mesh, [wrong])
    with pytest.raises(gt.ConfigError, match="needs 3 helpers"):
        init_device_mesh("cpu", (3,))
    with pytest.raises(gt.ConfigError, match="the helpers have cpu"):
        init_device_mesh("cuda", (2,))
    assert init_device_mesh("helper", (2,)).device_type == "cpu"


def test_a_mesh_needs_helpers_that_are_processes():
    with gt.init(inline=True, arena="8MiB"), pytest.raises(gt.ConfigError, match="inline"):
        init_device_mesh("cpu", (1,))


def test_nothing_is_there_before_the_first_mesh(two):
    (gt.ones(3) * 2).sum().item()
    recorder = current.recorder()
    assert recorder.placer is None
    two.mesh(2)
    assert recorder.placer is not None


def test_random_numbers_are_those_of_one_helper_cut_or_not(two):
    mesh = two.mesh(2)
    found = []
    for placement in (None, Replicate(), Shard(0), Shard(1)):
        gt.manual_seed(11)
        x = gt.ones(6, 4)
        if placement is not None:
            x = distribute_tensor(x, mesh, placement)
        y = gt.nn.functional.dropout(x, 0.5) + gt.randn(6, 4) * x
        found.append(y.numpy().copy())
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


def test_a_hook_reads_a_gradient_while_others_are_on_their_way(two):
    mesh, seen = two.mesh(2), []
    x, w = (distribute_tensor(whole(4), mesh, [Shard(0)]).requires_grad_() for _ in range(2))
    first = x * x
    second = first * w
    for one in (second, first, x):
        one.register_hook(lambda g: seen.append(g.sum().item()))
    (second * w).sum().backward()
    assert seen == [6, 14, 72]
    assert x.grad.tolist() == w.grad.tolist() == [0, 2, 16, 54]


def test_gradients_that_were_taken_before_a_failure_is_heard_of_are_computed_after_it(two):
    mesh = two.mesh(2)
    x, w = (distribute_tensor(whole(4), mesh, [Shard(0)]).requires_grad_() for _ in range(2))
    assert x.sum().item() == w.sum().item() == 6
    squares = x * x
    total = (squares * w * w).sum()
    wrong = gt.take(x.detach(), gt.tensor([1, 9]))
    current.recorder().send()  # and nobody waits for it
    del squares
    total.backward()
    assert x.grad.tolist() == w.grad.tolist() == [0, 2, 16, 54]
    assert total.item() == 98
    with pytest.raises(gt.RemoteError, match="9 is out of bounds"):
        wrong.tolist()


@pytest.mark.parametrize("kind", ["two meshes", "a mesh and helpers"])
def test_a_step_is_given_the_weights_that_it_changes_where_several_messages_make_it(
    two, monkeypatch, kind
):
    """What no tensor shows any more, as the first loss, makes none of them somebody's."""
    given, both = [], two.mesh(2)
    delivered, compute = MeshMessage.delivered, MeshPlacer.compute

    def seen(self, recorder):
        given.append(len(self.donated))
        delivered(self, recorder)

    def answered(self, read, wait):
        self.settle(0)
        return compute(self, read, wait)

    monkeypatch.setattr(MeshMessage, "delivered", seen)
    monkeypatch.setattr(MeshPlacer, "compute", answered)
    meshes = [mesh_of_helpers([n]) for n in range(2)] if kind == "two meshes" else [both, None]
    trained = []
    for mesh in meshes:
        w = whole(4, 4) / 16
        w = gt.tensor(w) if mesh is None else distribute_tensor(w, mesh, [Replicate()])
        trained.append((w.requires_grad_(), optim.SGD([w], lr=0.01)))
    for _ in range(10):
        for w, steps in trained:
            loss = ((w @ w) ** 2).mean()
            steps.zero_grad()
            loss.backward()
            steps.step()
    assert set(given[-6:]) == {1}


def test_a_tensor_of_another_broker_says_so():
    with broker_of(2) as broker:
        old = distribute_tensor(whole(4, 4), broker.mesh(2), [Shard(0)]) + 1
        current.recorder().send()
    with broker_of(2) as broker:
        with pytest.raises(gt.NotRunning, match="create it again"):
            old.numpy()
        mesh = broker.mesh(2)
        with pytest.raises(gt.NotRunning, match="create it again"):
            (old + distribute_tensor(whole(4, 4), mesh)).numpy()


def test_a_tensor_is_saved_and_copied_whole(two, tmp_path):
    x = distribute_tensor(whole(6, 4), two.mesh(2), [Shard(0)])
    gt.save({"x": x}, tmp_path / "x.safetensors")
    np.testing.assert_array_equal(gt.load(tmp_path / "x.safetensors")["x"].numpy(), whole(6, 4))
    y = copy.deepcopy(x)
    assert y.placements == (Shard(0),)
    np.testing.assert_array_equal(y.numpy(), whole(6, 4))
    np.testing.assert_array_equal(gt.tensor(x).numpy(), whole(6, 4))
    assert str(x) == str(gt.tensor(whole(6, 4)))


def test_another_thread_and_a_crowded_arena_make_the_same():
    with broker_of(2, arena="4MiB") as broker:
        mesh = broker.mesh(2)
        array = whole(512, 300)  # 600 KiB
        found = []

        def work():
            x = distribute_tensor(array, mesh, [Shard(1)])
            for turn in range(8):
                found.append(np.array_equal((x + turn).numpy(), array + turn))

        threads = [threading.Thread(target=work) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert found == [True] * 16


def test_values_that_are_kept_go_to_ordinary_memory_once_half_the_arena_is_full():
    array = whole(512, 300)  # 600 KiB
    with broker_of(2, arena="4MiB") as broker:
        for placement in (Replicate(), Shard(0)):
            x = distribute_tensor(array, broker.mesh(2), [placement])
            kept = [(x + turn).numpy() for turn in range(9)]
            for turn, one in enumerate(kept):
                np.testing.assert_array_equal(one, array + turn)
            del kept, one
