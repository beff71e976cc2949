"""A change in place of a view is seen in what it is a view of, and the other way round.

Every program here runs over torch's tensors and over ours, and both must end alike.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import shmgpu as gt


def start(f, grad=False):
    x = f.arange(12).to(f.float32).reshape(3, 4).clone()
    return x.requires_grad_() if grad else x


def of_numbers(f, grad=False):
    """As ``start`` makes it, of numbers that the program gives: nothing computes it."""
    return f.tensor([[float(4 * i + j) for j in range(4)] for i in range(3)], requires_grad=grad)


def rows(z):
    for row in z.unbind(0):
        row += 1


def index_of_index(z):
    z[0][1] = 5


def turned(z):
    z.T[0, 1] = 4


def flat(z):
    v = z.view(12)
    v[4] = 7
    z += 1
    v *= 2


def detached(z):
    z.detach().add_(1)


def seen_in_a_detached_one(z):
    seen = z.detach()
    again = seen.detach()
    z += 1
    again[1] *= 2
    return seen, again


def two_views(z):
    a, b = z[1:], z[:, ::2]
    a.mul_(3)
    b += a[0, 0]
    a.fill_(2)
    return a, b


def deep(z):
    z[0].view(2, 2)[1].fill_(9)


def chunks(z):
    a, b = z.chunk(2, 1)
    a.zero_()
    b.copy_(a + 1)
    return a, b


def squeezed(z):
    z.unsqueeze(1).transpose(0, 2)[3, 0] = -1
    z[:, :1].squeeze(1).add_(10)


def whole_changed(z):
    part = z[1]
    z.mul_(2)
    z[1] = 0
    return part


def augmented(z):
    z[1:, 1] += 5
    z[:, 0] -= z[:, 3]


def expanded_to_its_own_shape(z):
    z.expand(3, 4)[2] = 1


def moved(z):
    z.movedim(0, 1)[1] *= 4
    z.narrow(1, 1, 2).sub_(1)


def copied_where_elements_have_no_order(z):
    z.T.reshape(12)[3] = 100  # torch copies here


def gone(z):
    a, b = (z * 2).split(2, 1)
    a += 1
    return a, b


def of_what_nobody_has(z):
    x = (z * 2).view(4, 3)
    x[0] += 5
    for row in x:
        row.add_(1)
    turned_ = (z * 3).T
    turned_[0] += 1
    copied = turned_.reshape(12)
    copied[0] = 99
    part = (z * 4)[1:, ::2].detach()
    part[0, 1] = 7
    part.T[1] *= 2
    return x, turned_, copied, part


def along_the_diagonal(z):
    seen = z.diagonal(1)
    z.diagonal().fill_(9)
    z[:3, :3].diagonal().mul_(2)
    z += 1
    return seen, z.diagonal(-5), z.diagonal(-1)


def copied_where_elements_lie_apart(z):
    copies = z.T.contiguous(), z[:, 0].contiguous(), z[0].expand(2, 4).contiguous()
    same = z[1:].contiguous()
    for one in copies:
        one += 1
    same *= 3
    z.T.contiguous().view(12)[0] = 50
    return *copies, same


PROGRAMS = [
    rows, index_of_index, turned, flat, detached, seen_in_a_detached_one, two_views, deep, chunks,
    squeezed, whole_changed, augmented, expanded_to_its_own_shape, moved,
    copied_where_elements_have_no_order, copied_where_elements_lie_apart, along_the_diagonal,
    gone, of_what_nobody_has,
]  # fmt: skip


def shown(tensors):
    return [np.asarray(one.detach().numpy()).tolist() for one in tensors]


@pytest.mark.table
@pytest.mark.parametrize("made", [start, of_numbers], ids=lambda one: one.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_change_is_seen_by_all_that_share_the_elements(engine, program, made):
    ends = []
    for f in (torch, gt):
        z = made(f)
        others = program(z)
        ends.append(shown([z, *(others if isinstance(others, tuple) else ())]))
    assert ends[0] == ends[1]


# torch refuses gradients through what was changed as one of several parts, and those of
# ``detached`` are wrong there without a word.
WITHOUT_GRADIENTS = {rows, chunks, gone, of_what_nobody_has, detached, seen_in_a_detached_one}
WITH_GRADIENTS = [one for one in PROGRAMS if one not in WITHOUT_GRADIENTS]


@pytest.mark.parametrize("program", WITH_GRADIENTS, ids=lambda one: one.__name__)
def test_gradients_flow_as_in_torch(engine, program):
    ends = []
    for f in (torch, gt):
        x = start(f, grad=True)
        z = x * 2
        program(z)
        weights = f.arange(12).to(f.float32).reshape(3, 4)
        (z * z * weights).sum().backward()
        ends.append(shown([z, x.grad]))
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-6)


def test_weights_are_changed_through_views_without_gradients(engine):
    ends = []
    for f in (torch, gt):
        x = start(f, grad=True)
        with f.no_grad():
            x[1].mul_(3)
            x.T[0] += 1
        x.detach()[2] = 0
        (x * x).sum().backward()
        ends.append(shown([x, x.grad]))
        assert x.is_leaf and x.requires_grad
    assert ends[0] == ends[1]


@pytest.mark.parametrize("made", [start, of_numbers], ids=lambda one: one.__name__)
def test_a_weight_is_changed_through_what_is_detached_from_it(engine, made):
    ends = []
    for f in (torch, gt):
        w = made(f, grad=True)
        w.detach()[1].mul_(3)
        (w * w).sum().backward()
        ends.append(shown([w, w.grad]))
    assert ends[0] == ends[1]


def test_a_tensor_takes_another_shape_in_place(engine):
    ends = []
    for f in (torch, gt):
        x, weight = start(f), start(f, grad=True)
        part = x[1]
        part.unsqueeze_(0).add_(5)
        seen = part[0]
        alone = f.ones(1, 3)
        alone.squeeze_(0).mul_(2)
        alone.squeeze_()  # there is nothing to take away
        made = weight * 2
        made.unsqueeze_(-1)
        (made * made).sum().backward()
        ends.append(shown([x, part, seen, alone, made, weight.grad]))
        with pytest.raises(RuntimeError):
            weight.unsqueeze_(0)
    assert ends[0] == ends[1]
    x = start(gt)
    row = x[0]
    with pytest.raises(RuntimeError, match="while there are views of it"):
        x.unsqueeze_(0)
    assert row.shape == x.shape[1:]


def test_what_cannot_be_seen_where_it_should_is_refused(engine):
    x = start(gt, grad=True)
    with pytest.raises(RuntimeError, match="view of a tensor that collects gradients"):
        x[0].fill_(5)
    with pytest.raises(RuntimeError, match="expanded tensor are one"):
        gt.zeros(3, 1).expand(3, 4).add_(1)
    with pytest.raises(RuntimeError, match="detached view"):
        y = x * 2
        y.detach().add_(1)
    a, b = [(z := start(gt) * 2), z[1:], z[:2]][1:]
    del z
    with pytest.raises(RuntimeError, match="tensor that is gone"):
        a += 1
    assert b.tolist() == (start(gt) * 2)[:2].tolist()
    c = a.clone()
    c += 1
    assert (c.data - a.data).min() == 1


def test_a_snapshot_does_not_change(engine):
    layer = gt.nn.Linear(2, 2)
    saved = layer.state_dict()
    before = saved["weight"].data.copy()
    with gt.no_grad():
        layer.weight += 1
    assert (saved["weight"].data == before).all()
    assert (layer.weight.data == before + 1).all()


def test_a_part_that_fails_leaves_the_whole_as_it_was(engine):
    z = start(gt)
    part = z[1]
    part[gt.tensor([1, 9])] = 5.0
    with pytest.raises(gt.RemoteError, match="9 is out of bounds"):
        _ = part.data
    assert z.tolist() == start(torch).tolist() and part.tolist() == z[1].tolist()


STEPS = [
    lambda f, live, r: live.append(r.choice(live)[r.randrange(2) :]),
    lambda f, live, r: live.append(r.choice(live).transpose(0, -1)),
    lambda f, live, r: live.append(r.choice(live)[..., ::2]),
    lambda f, live, r: live.append(r.choice(live).unsqueeze(0)),
    lambda f, live, r: live.append(r.choice(live).detach()),
    lambda f, live, r: live.append(r.choice(live).reshape(-1)),
    lambda f, live, r: r.choice(live).add_(r.randrange(9)),
    lambda f, live, r: r.choice(live).mul_(2),
    lambda f, live, r: r.choice(live).fill_(r.randrange(9)),
    lambda f, live, r: r.choice(live).__setitem__(0, r.randrange(9)),
    lambda f, live, r: live.__getitem__(0).__iadd__(r.choice(live).sum()),
]


def ends_of(f, seed):
    choose = random.Random(seed)
    first = f.arange(24).to(f.float64).reshape(2, 3, 4).clone()
    starts = (
        lambda: first,
        lambda: f.tensor(first.tolist(), dtype=f.float64),
        lambda: (first + 1).reshape(4, 6).T,  # nobody has the sum
    )
    live = [starts[seed % 3]()]
    for _ in range(14):
        step = choose.choice(STEPS)
        if min(min(one.shape, default=0) for one in live) < 1:
            break
        step(f, live, choose)
    return shown(live)


@pytest.mark.table
@pytest.mark.parametrize("seed", range(40))
def test_random_programs_of_views_and_changes_end_alike(engine, seed):
    assert ends_of(torch, seed) == ends_of(gt, seed)
