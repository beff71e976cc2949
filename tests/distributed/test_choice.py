"""Which placements are chosen: the cheapest along a chain, and nothing moved ahead of need."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from distributed.members import check, hold, lies, lower, mesh_of, recorded
from tensors.samples import OURS

import shmgpu.tensors.tensor as st
from shmgpu.distributed import choice
from shmgpu.distributed.choice import FREE, choose, moved
from shmgpu.distributed.rules import RULES
from shmgpu.distributed.rules.base import options_of
from shmgpu.ops import redistribution

RNG = np.random.default_rng(11)
F = OURS


def whole(*shape):
    return RNG.integers(-3, 4, shape).astype("f4")


def resident(*shape):
    return hold(st.tensor(whole(*shape)))


def asked(tensor, layout):
    return st.Tensor(redistribution.redistribute(tensor._node, layout))


@pytest.fixture(params=[2, 3])
def mesh(request):
    return mesh_of(request.param)


# ---- chains ----------------------------------------------------------------------------------

LINKS = {
    "linear": lambda x, rng: x @ resident(x.shape[-1], rng.choice((4, 12, 40))),
    "relu": lambda x, rng: F.relu(x),
    "double": lambda x, rng: x * 2.0,
    "bias": lambda x, rng: x + resident(x.shape[-1]),
    "softmax": lambda x, rng: F.softmax(x, rng.choice((0, 1))),
    "turned": lambda x, rng: x.transpose(0, 1),
    "ordered": lambda x, rng: F.argsort(x, 1).float(),
    "sum": lambda x, rng: F.sum(x, rng.choice((0, 1)), True) + resident(*x.shape),
}


def chain(rng):
    """A tensor made of one other and weights, link by link."""
    x = resident(12, 8)
    for _ in range(rng.randint(2, 5)):
        x = LINKS[rng.choice(sorted(LINKS))](x, rng)
    return x


def cheapest(program, leaves, wanted, count):
    """The least cost of all ways that there are, tried one by one."""
    specs = program.specs
    first = len(program.arrays) + len(program.numbers)
    nbytes = [spec.nbytes for spec in specs]
    start = {slot: layout.codes[0] for slot, layout in enumerate(leaves)}
    start.update(dict.fromkeys(range(len(leaves), first), 0))
    options = []
    for step in program.steps:
        given = tuple([specs[one] for one in step.inputs])
        options.append(options_of(RULES[step.op], given, step.params, step.spec))
    best = [float("inf")]

    def follow(at, codes, spent):
        if at == len(program.steps):
            slot = first + at - 1
            spent += moved(codes[slot], wanted, nbytes[slot], count, True)
            best[0] = min(best[0], spent)
            return
        step = program.steps[at]
        costs = []
        for option in options[at]:
            cost = 0.0
            for one, want in set(zip(step.inputs, option.inputs, strict=True)):
                cost += moved(codes[one], want, nbytes[one], count)
            cost += sum(choice.MEETING_BYTES + 2 * n * (count - 1) / count for n in option.moves)
            costs.append(cost)
        least = min(costs)
        for option, cost in zip(options[at], costs, strict=True):
            if cost < (FREE if least < FREE else float("inf")):
                follow(at + 1, {**codes, first + at: option.output}, spent + cost)

    follow(0, start, 0.0)
    return best[0]


def cost_of(program, leaves, wanted, count, chosen):
    """What the choice costs."""
    specs = program.specs
    first = len(program.arrays) + len(program.numbers)
    spent = 0.0
    for slot, step in enumerate(program.steps, first):
        option = chosen.options[slot]
        for one, want in set(zip(step.inputs, option.inputs, strict=True)):
            spent += moved(chosen.codes[one], want, specs[one].nbytes, count)
        spent += sum(choice.MEETING_BYTES + 2 * n * (count - 1) / count for n in option.moves)
    last = len(specs) - 1
    return spent + moved(chosen.codes[last], wanted, specs[last].nbytes, count, True)


@pytest.mark.parametrize("seed", range(30))
def test_along_a_chain_no_other_way_is_cheaper(seed, monkeypatch):
    for name in ("WORK_PER_BYTE", "WORK_PER_PRODUCT"):
        monkeypatch.setattr(choice, name, 0.0)  # what is tried below knows bytes alone
    choice._known.clear()
    rng = random.Random(seed)
    mesh = mesh_of(rng.choice((2, 3, 4)))
    case = recorded(kept=[chain(rng)])
    program = case.program
    words = [["R", *map(str, range(len(spec.shape)))] for spec in program.arrays]
    leaves = [lies(mesh, rng.choice(one)) for one in words]
    end = rng.choice(("R", "0", "1"))
    wanted = {program.kept[0]: lies(mesh, end)}
    (chosen,) = choose(program, mesh, leaves, wanted)
    code = lies(mesh, end).codes[0]
    found = cost_of(program, leaves, code, mesh.size, chosen)
    best = cheapest(program, leaves, code, mesh.size)
    assert found == pytest.approx(best, abs=FREE)
    choice._known.clear()


# ---- what a user counts on -------------------------------------------------------------------


def test_what_nothing_cuts_is_done_as_it_stands(mesh):
    x, w = resident(8, 8), resident(8, 8)
    case = recorded(read=[F.softmax(x @ w, 1)], kept=[x.T + w])
    lowered = lower(case.program, mesh, [None, None])
    assert not lowered.collectives
    assert lowered.programs[0].steps == case.program.steps
    assert lowered.programs[1].steps == case.program.steps
    assert lowered.readers == ((0,), *[()] * (mesh.size - 1))


def test_an_outcome_that_is_asked_for_in_pieces_is_made_of_pieces(mesh):
    """The choice runs backward: each member takes its part at the start, and nobody meets."""
    x, w, v = resident(12, 8), resident(8, 8), resident(8, 4)
    y = F.relu(x @ w) @ v
    case = recorded(kept=[y])
    wanted = {case.slot(y): lies(mesh, "0")}
    lowered, _ = check(case, mesh, [None] * 3, wanted, exact=True)
    assert not lowered.collectives
    products = [step for step in lowered.programs[0].steps if step.op.name == "matmul"]
    assert {step.spec.shape[0] for step in products} == {12 // mesh.size}


def test_a_residual_s_placement_goes_both_ways(mesh):
    """Nothing but the sum's placement is said; the branch is done like that as well."""
    x, w = resident(12, 8), resident(8, 8)
    y = x + F.gelu(x @ w)
    case = recorded(kept=[y])
    for said, wanted in ((None, "0"), ("0", None)):
        lie = [None if said is None else lies(mesh, said), None]
        want = {} if wanted is None else {case.slot(y): lies(mesh, wanted)}
        lowered, _ = check(case, mesh, lie, want, tolerance=1e-4)
        assert not lowered.collectives
        assert lowered.kept == (lies(mesh, "0"),)


def test_what_is_cut_stays_cut_though_gathering_it_first_would_move_less(mesh):
    x, w = resident(12, 2), resident(2, 64)
    y = F.relu(x @ w)
    case = recorded(kept=[y])
    lowered, _ = check(case, mesh, [lies(mesh, "0"), None], {case.slot(y): lies(mesh, "R")})
    assert [one.kind for one in lowered.collectives] == ["all_gather"]
    assert lowered.collectives[0].shapes[0] == (12 // mesh.size, 64)


def test_weights_stay_where_they_are(mesh):
    x, w = resident(12, 8), resident(8, 12)
    case = recorded(kept=[x @ w])
    for said, want in (("R R", "R"), ("0 R", "0"), ("R 1", "1")):
        a, b = said.split()
        lowered, _ = check(case, mesh, [lies(mesh, a), lies(mesh, b)], exact=True)
        assert not lowered.collectives
        assert lowered.kept == (lies(mesh, want),)


def test_what_was_moved_for_one_is_there_for_others(mesh):
    x = resident(12, 8)
    outs = [F.argsort(x, 0), F.argmax(x, 0), F.argmin(x, 0), x * 2.0]
    case = recorded(kept=outs)
    lowered, _ = check(case, mesh, [lies(mesh, "0")], exact=True)
    assert len(lowered.collectives) == 1


def test_what_several_want_reduced_is_reduced_once(mesh):
    x, w = resident(8, 12), resident(12, 4)
    g = x @ w  # a gradient, and what an optimiser does with it
    case = recorded(kept=[resident(8, 4) + g * 0.5, resident(8, 4) + g * g, g.sum()])
    lie = [lies(mesh, "1"), lies(mesh, "0"), None, None]
    lowered, _ = check(case, mesh, lie, tolerance=1e-6)
    assert [one.kind for one in lowered.collectives] == ["all_reduce"]


def test_equal_operations_meet_once(mesh):
    x, w = resident(8, 12), resident(12, 4)
    case = recorded(kept=[F.relu(x @ w), F.exp((x @ w) * 0.1)])
    lie = [lies(mesh, "1"), lies(mesh, "0")]
    lowered, _ = check(case, mesh, lie, tolerance=1e-5)
    assert len(lowered.collectives) == 1


def test_what_the_arena_has_is_counted_by_each_instead_of_met_for(mesh):
    """The count of targets: data-parallel cross entropy meets nowhere on the way forward."""
    scores = hold(st.tensor(whole(12, 5), requires_grad=True))
    target = st.tensor(np.arange(12) % 5)
    loss = F.cross_entropy(scores, target)
    (g,) = st.grad([loss], [scores])
    case = recorded(kept=[g])
    lie = [lies(mesh, "0")] * len(case.program.arrays)
    lowered, _ = check(case, mesh, lie, tolerance=1e-6)
    assert not lowered.collectives
    assert lowered.kept == (lies(mesh, "0"),)


def test_placements_that_a_program_asks_for_are_had(mesh):
    x, w = resident(12, 12), resident(12, 12)
    for a, b in itertools.product("R01", repeat=2):
        y = asked(asked(x, lies(mesh, a)) @ w, lies(mesh, b))
        case = recorded(kept=[y])
        lowered, _ = check(case, mesh, [lies(mesh, "0"), None], exact=True)
        assert lowered.kept == (lies(mesh, b),)


def test_axes_of_a_mesh_are_chosen_one_after_the_other():
    mesh = mesh_of(2, 3)
    x, w = resident(12, 8), resident(8, 12)
    case = recorded(kept=[F.relu(x @ w).sum(0)])
    lowered, _ = check(case, mesh, [lies(mesh, "0 R"), lies(mesh, "R 1")], exact=True)
    assert [one.axes for one in lowered.collectives] == [(0,)]
    assert lowered.kept == (lies(mesh, "R 0"),)


@pytest.mark.parametrize(("cut", "gathered"), [("0", "1"), ("1", "0"), ("0", "0"), ("R", "1")])
def test_along_a_later_axis_of_the_mesh_a_piece_moves_and_not_the_whole(cut, gathered):
    mesh = mesh_of(2, 3)
    x = resident(12, 6)
    y = asked(x, lies(mesh, f"{cut} R"))
    case = recorded(kept=[y])
    _, along = choose(case.program, mesh, [lies(mesh, f"{cut} {gathered}")], {})
    piece = 12 * 6 * 4 / (1 if cut == "R" else 2)
    cost = choice.MEETING_BYTES + piece * 2 / 3
    assert along.tables[case.slot(y)] == {0: pytest.approx(cost, abs=choice.SHARE * 2)}
