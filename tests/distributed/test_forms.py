"""The forms of parallelism that people train with: what members meet for, and how often."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from distributed.members import check, hold, lies, lower, mesh_of, recorded
from tensors.samples import OURS

import shmgpu.tensors.tensor as st
from shmgpu.ops import redistribution

RNG = np.random.default_rng(5)
BATCH, WIDE, HIDDEN, OUT = 16, 8, 24, 4


def whole(*shape):
    """Whole numbers, of which sums are exact."""
    return RNG.integers(-3, 4, shape).astype("f4")


def drawn(*shape):
    """Numbers of which no sum is nearly zero by chance: where sums are rounded, a rectifier would
    take one that should be zero for either sign."""
    return (RNG.standard_normal(shape) / 4).astype("f4")


class Perceptron:
    """Two layers, a batch and its targets."""

    def __init__(self, numbers=whole):
        self.x = st.tensor(numbers(BATCH, WIDE))
        self.target = st.tensor(numbers(BATCH, OUT))
        self.w1 = hold(st.tensor(numbers(WIDE, HIDDEN), requires_grad=True))
        self.w2 = hold(st.tensor(numbers(HIDDEN, OUT), requires_grad=True))

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


# ---- weights that each has a part of ---------------------------------------------------------


def asked(tensor, layout, unit=None):
    return st.Tensor(redistribution.redistribute(tensor._node, layout, unit))


class Layers:
    """Layers of a weight and a bias each, whose units are gathered while they are used."""

    def __init__(self, mesh, count):
        widths = [8, 12, 6, 10, 4, 8][: count + 1]
        self.whole = lies(mesh, "R")
        self.x = st.tensor(whole(12, 8))
        self.layers = [
            (
                hold(st.tensor(whole(a, b), requires_grad=True)),
                hold(st.tensor(whole(b), requires_grad=True)),
            )
            for a, b in itertools.pairwise(widths)
        ]

    def forward(self):
        y = self.x
        for unit, (w, b) in enumerate(self.layers):
            y = (y @ asked(w, self.whole, unit) + asked(b, self.whole, unit)).relu()
        return y

    @property
    def nbytes(self):
        """Of each layer's weights."""
        return [4 * (w.numel() + b.numel()) for w, b in self.layers]


@pytest.mark.table
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_fully_sharded_gathers_each_layer_forward_and_again_backward(mesh, count, overlap):
    net = Layers(mesh, count)
    y = net.forward()
    case = recorded(read=[y])
    said = [lies(mesh, "0")] * len(case.program.arrays)
    lowered, outcome = check(case, mesh, said, exact=True, overlap=overlap)
    assert outcome.calls == counted(mesh, all_gather=count)
    if mesh.size > 1:
        for one, nbytes in zip(lowered.collectives, net.nbytes, strict=True):
            taken = [nbytes - own for own in one.nbytes]  # what a member has of its own
            assert sum(taken) == nbytes

    parameters = [one for layer in net.layers for one in layer]
    loss = (y * y).mean()
    gradients = st.grad([loss], parameters)
    case = recorded(read=[loss], kept=gradients)
    wanted = {case.slot(g): lies(mesh, "0") for g in gradients}
    said = [lies(mesh, "0")] * len(case.program.arrays)
    _, outcome = check(case, mesh, said, wanted, tolerance=1e-4, overlap=overlap)
    # The last layer's are still there, and nobody asks for the first one's input's gradient.
    again = count - 2
    expected = {"all_gather": count + again, "reduce_scatter": 1, "all_reduce": 1}
    assert outcome.calls == counted(mesh, **expected)


def test_fully_sharded_holds_one_layer_at_a_time():
    mesh = mesh_of(4)
    net = Layers(mesh, 5)
    case = recorded(read=[net.forward()])
    lowered = lower(case.program, mesh, [lies(mesh, "0")] * len(case.program.arrays))
    program = lowered.programs[0]
    first = len(program.arrays) + len(program.numbers)
    gathered = {
        first + at: step.spec.nbytes
        for at, step in enumerate(program.steps)
        if step.op.is_collective
    }
    assert len(gathered) == 5
    last = {}
    for at, step in enumerate(program.steps):
        for one in step.inputs:
            while one >= first and program.steps[one - first].op.is_view:
                (one,) = program.steps[one - first].inputs
            last[one] = first + at
    most = 0
    for at in range(first, first + len(program.steps)):
        held = [n for slot, n in gathered.items() if slot <= at <= last[slot]]
        most = max(most, len(held))
    assert most == 1


# ---- sequence parallel -----------------------------------------------------------------------


def test_sequence_parallel_gathers_once_and_scatters_once(mesh):
    """Norms on parts of the sequence, the layers between on parts of the weights."""
    batch, places, wide, hidden = 2, 12, 8, 24
    whole_, parts = lies(mesh, "R"), lies(mesh, "1")
    x = hold(st.tensor(whole(batch, places, wide) / 4, requires_grad=True))
    scale = hold(st.tensor(whole(wide), requires_grad=True))
    w1 = hold(st.tensor(drawn(wide, hidden), requires_grad=True))
    w2 = hold(st.tensor(drawn(hidden, wide), requires_grad=True))
    normal = OURS.nn.functional.rms_norm(x, (wide,), scale)
    y = asked(asked(normal, whole_) @ w1, lies(mesh, "2")).relu() @ w2
    y = asked(y, parts) + x
    case = recorded(kept=[y])
    said = [parts, whole_, lies(mesh, "1"), lies(mesh, "0")]
    lowered, outcome = check(case, mesh, said, tolerance=1e-4)
    assert outcome.calls == counted(mesh, all_gather=1, reduce_scatter=1)
    assert lowered.kept == (parts,) or mesh.size == 1
    each = batch * places * wide * 4 * (mesh.size - 1) // mesh.size
    assert lowered.nbytes == (2 * each,) * mesh.size

    gradients = st.grad([(y * y).sum()], [x, scale, w1, w2])
    case = recorded(kept=gradients)
    wanted = {case.slot(g): layout for g, layout in zip(gradients, said, strict=True)}
    _, outcome = check(case, mesh, said, wanted, tolerance=1e-3)
    assert outcome.calls == counted(mesh, all_gather=2, reduce_scatter=2, all_reduce=1)


# ---- attention, tables, losses -----------------------------------------------------------------


def test_attention_by_heads_meets_once(mesh):
    batch, places, heads, wide = 2, 6, 12, 24
    x = hold(st.tensor(whole(batch, places, wide) / 4))
    wq, wk, wv = (hold(st.tensor(whole(wide, wide) / 4)) for _ in range(3))
    out = hold(st.tensor(whole(wide, wide) / 4))

    def split(y):
        return y.reshape(batch, places, heads, wide // heads).transpose(1, 2)

    found = OURS.scaled_dot_product_attention(
        split(x @ wq), split(x @ wk), split(x @ wv), is_causal=True
    )
    y = found.transpose(1, 2).reshape(batch, places, wide) @ out
    case = recorded(read=[y])
    said = [lies(mesh, one) for one in ("R", "1", "1", "1", "0")]
    _, outcome = check(case, mesh, said, tolerance=1e-4)
    assert outcome.calls == counted(mesh, all_reduce=1)


@pytest.mark.parametrize("said", ["0", "1"])
def test_a_table_that_is_cut_is_looked_up_where_it_lies(mesh, said):
    table = hold(st.tensor(whole(11, 6), requires_grad=True))
    index = st.tensor(RNG.integers(0, 11, (3, 4)))
    rows = OURS.embedding(index, table)
    (g,) = st.grad([(rows * rows).sum()], [table])
    case = recorded(read=[rows], kept=[g])
    wanted = {case.slot(g): lies(mesh, said)}
    lie = [lies(mesh, said) if one else None for one in case.program.resident]
    _, outcome = check(case, mesh, lie, wanted, exact=True)
    meetings = {"all_reduce": 1} if said == "0" else {}
    assert outcome.calls == counted(mesh, **meetings)


def test_a_loss_of_classes_that_are_cut_moves_no_scores(mesh):
    """Of each example a maximum, a sum and the right class's score, and never the scores."""
    count, classes, wide = 64, 2000, 8
    x = hold(st.tensor(whole(count, wide) / 4, requires_grad=True))
    head = hold(st.tensor(whole(wide, classes) / 4, requires_grad=True))
    target = st.tensor(RNG.integers(0, classes, count))
    loss = OURS.cross_entropy(x @ head, target)
    gradients = st.grad([loss], [x, head])
    case = recorded(read=[loss], kept=gradients)
    wanted = {case.slot(gradients[0]): lies(mesh, "R"), case.slot(gradients[1]): lies(mesh, "1")}
    said = [lies(mesh, "R"), lies(mesh, "1")]
    lie = [said.pop(0) if one else None for one in case.program.resident]
    lowered, outcome = check(case, mesh, lie, wanted, tolerance=1e-4)
    assert set(outcome.calls) == ({"all_reduce"} if mesh.size > 1 else set())
    assert max(lowered.nbytes) <= 2 * (count * wide + 5 * count) * 4


def test_a_batch_s_norm_is_over_all_of_it(mesh):
    x = st.tensor(whole(7, 4, 3, 3))
    scale, shift = (hold(st.tensor(whole(4), requires_grad=True)) for _ in range(2))
    y = OURS.nn.functional.batch_norm(x, None, None, scale, shift, True)
    gradients = st.grad([(y * y * y).sum()], [scale, shift])
    case = recorded(read=[y], kept=gradients)
    wanted = {case.slot(g): lies(mesh, "R") for g in gradients}
    check(case, mesh, [lies(mesh, "0"), None, None], wanted, tolerance=1e-3)


# ---- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["data", "tensor", "both", "fully sharded"])
def test_steps_of_an_optimiser_end_where_one_helper_s_would(form):
    """Several steps in one program: what is updated lies as before, and is used as it lies."""
    mesh = mesh_of(2, 2) if form == "both" else mesh_of(3)
    words = {
        "data": ("0", "R", "R"),
        "tensor": ("R", "1", "0"),
        "both": ("0 R", "R 1", "R 0"),
        "fully sharded": ("0", "0", "0"),
    }[form]
    net = Perceptron(drawn)
    at, velocity, case_wanted = [net.w1, net.w2], [None, None], []
    for _ in range(3):
        y = (net.x @ at[0]).relu() @ at[1]
        difference = y - net.target
        gradients = st.grad([(difference * difference).mean()], at)
        for place, g in enumerate(gradients):
            v = g if velocity[place] is None else velocity[place] * 0.5 + g
            velocity[place] = v
            at[place] = (at[place] - v * 0.125).detach().requires_grad_()
            case_wanted += [(v, words[1 + place]), (at[place], words[1 + place])]
    case = recorded(kept=[*at, *velocity])
    wanted = {
        case.slot(tensor): lies(mesh, word)
        for tensor, word in case_wanted
        if tensor._node in case.slots
    }
    said = {net.x._node: words[0], net.target._node: words[0]}
    said |= {net.w1._node: words[1], net.w2._node: words[2]}
    lie = [None] * len(case.program.arrays)
    for node, word in said.items():
        lie[case.slots[node]] = lies(mesh, word)
    lowered, _ = check(case, mesh, lie, wanted, tolerance=2e-4)
    assert lowered.kept == tuple(lies(mesh, one) for one in (*words[1:], *words[1:]))
