"""The forms of parallelism that people train with: what members meet for, and how often."""

from __future__ import annotations

import numpy as np
import pytest
from distributed.members import check, hold, lies, mesh_of, recorded

from shmgpu.tensors import tensor as st

RNG = np.random.default_rng(5)
BATCH, WIDE, HIDDEN, OUT = 16, 8, 24, 4


def whole(*shape):
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-3, 4, shape).astype("f4")


class Perceptron:
    """Two layers, a batch and its targets."""

    def __init__(self):
        self.x = st.tensor(whole(BATCH, WIDE))
        self.target = st.tensor(whole(BATCH, OUT))
        self.w1 = hold(st.tensor(whole(WIDE, HIDDEN), requires_grad=True))
        self.w2 = hold(st.tensor(whole(HIDDEN, OUT), requires_grad=True))

    def forward(self):
        return (self.x @ self.w1).relu() @ self.w2

    def leaves(self, mesh, x, w1, w2, target=None):
        said = [lies(mesh, one) for one in (x, w1, w2)]
        return said if target is None else [*said, lies(mesh, target)]

    def step(self):
        """The loss and the gradients of a step."""
        difference = self.forward() - self.target
        loss = (difference * difference).mean()
        return loss, st.grad([loss], [self.w1, self.w2])


@pytest.fixture(params=[1, 2, 3, 4])
def mesh(request):
    return mesh_of(request.param)


def counted(mesh, **calls):
    """So many meetings; none in a mesh of one."""
    return calls if mesh.size > 1 else {}


def test_data_parallel_meets_nowhere_forward_and_once_backward(mesh):
    net = Perceptron()
    case = recorded(read=[net.forward()])
    _, outcome = check(case, mesh, net.leaves(mesh, "0", "R", "R"), exact=True)
    assert outcome.calls == {}

    loss, gradients = net.step()
    case = recorded(read=[loss], kept=gradients)
    wanted = {case.slot(g): lies(mesh, "R") for g in gradients}
    lowered, outcome = check(case, mesh, net.leaves(mesh, "0", "R", "R", "0"), wanted, exact=True)
    assert outcome.calls == counted(mesh, all_reduce=1)
    elements = WIDE * HIDDEN + HIDDEN * OUT + 1  # the loss goes with the gradients
    assert lowered.nbytes == (2 * 4 * elements * (mesh.size - 1) // mesh.size,) * mesh.size


def test_tensor_parallel_meets_once_forward(mesh):
    net = Perceptron()
    case = recorded(read=[net.forward()])
    lowered, outcome = check(case, mesh, net.leaves(mesh, "R", "1", "0"), exact=True)
    assert outcome.calls == counted(mesh, all_reduce=1)
    assert lowered.nbytes == (2 * 4 * BATCH * OUT * (mesh.size - 1) // mesh.size,) * mesh.size

    loss, gradients = net.step()
    case = recorded(read=[loss], kept=gradients)
    wanted = {case.slot(gradients[0]): lies(mesh, "1"), case.slot(gradients[1]): lies(mesh, "0")}
    _, outcome = check(case, mesh, net.leaves(mesh, "R", "1", "0", "R"), wanted, exact=True)
    assert outcome.calls == counted(mesh, all_reduce=1)


def test_a_cut_over_two_axes_meets_along_each():
    mesh, net = mesh_of(2, 2, names=("data", "tensor")), Perceptron()
    loss, gradients = net.step()
    case = recorded(read=[loss], kept=gradients)
    wanted = {
        case.slot(gradients[0]): lies(mesh, "R 1"),
        case.slot(gradients[1]): lies(mesh, "R 0"),
    }
    lowered, outcome = check(
        case, mesh, net.leaves(mesh, "0 R", "R 1", "R 0", "0 R"), wanted, exact=True
    )
    along = sorted(one.axes for one in lowered.collectives)
    assert along == [(0,), (1,)]
    assert outcome.calls == {"all_reduce": 4}  # each by two groups
