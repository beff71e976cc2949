"""Random programs of up to 50 operations, and their gradients, cut at random."""

from __future__ import annotations

import random

import pytest
from distributed.members import check, hold, lies, mesh_of, recorded
from tensors.samples import OURS
from tensors.test_random_programs import drawn, play

import shmgpu.tensors.tensor as st
from shmgpu.engine.plan import Options

MESHES = [mesh_of(2), mesh_of(3), mesh_of(4), mesh_of(2, 2), mesh_of(2, 1, 2)]


def drawn_layout(rng, mesh, spec, is_resident):
    words = ["R", *map(str, range(len(spec.shape)))]
    if is_resident:
        words.append("P")
    return lies(mesh, " ".join(rng.choice(words) for _ in mesh.shape))


def check_any(seed, backend):
    rng = random.Random(seed)
    leaves = [st.tensor(drawn(rng), requires_grad=True) for _ in range(rng.randint(1, 4))]
    for one in leaves:
        if rng.random() < 0.7:
            hold(one)
    values = play(OURS, leaves, seed)
    made = values[len(leaves) :]
    outs = [OURS.sum(one) for one in made if one.requires_grad]
    gradients = st.grad([sum(outs)], leaves, allow_unused=True) if outs else ()
    case = recorded(
        read=[one for one in made[:3] if one._node.op],
        kept=[*made[3:], *[one for one in gradients if one is not None]],
    )
    program, mesh = case.program, rng.choice(MESHES)
    lie = [
        drawn_layout(rng, mesh, spec, resident)
        for spec, resident in zip(program.arrays, program.resident, strict=True)
    ]
    wanted = {
        slot: drawn_layout(rng, mesh, program.specs[slot], False)
        for slot in program.kept
        if rng.random() < 0.5
    }
    check(
        case,
        mesh,
        lie,
        wanted,
        tolerance=1e-6,
        backend=backend,
        options=rng.choice((Options(), Options(plan_memory=False), Options(answer_early=False))),
        bucket_bytes=rng.choice((0, 200, 1 << 20)),
        overlap=rng.random() < 0.3,
    )


@pytest.mark.table
@pytest.mark.parametrize("seed", range(12))
def test_members_make_what_one_makes(seed):
    check_any(seed, "torch" if seed % 2 else "numpy")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_members_make_what_one_makes_at_length(part):
    for seed in range(100 + 25 * part, 125 + 25 * part):
        check_any(seed, "torch" if seed % 2 else "numpy")
