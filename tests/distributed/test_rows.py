"""Every row of the table, cut in every way, on meshes of one to four members and of two axes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from distributed.members import check, hold, lies, mesh_of, recorded
from tensors.samples import OURS, SAMPLES

from shmgpu import ops
from shmgpu.distributed.rules import LOWERED_OTHERWISE, RULES, WHOLE
from shmgpu.ops import collective
from shmgpu.tensors import tensor as st

MESHES = [mesh_of(1), mesh_of(2), mesh_of(3), mesh_of(4), mesh_of(2, 2)]


def test_every_row_has_a_rule_or_a_reason():
    lowered = {row.name for row in collective.LOWERED}
    ruled = {row.name for row in RULES}
    assert not ruled & (WHOLE.keys() | LOWERED_OTHERWISE.keys())
    missing = ops.TABLE.keys() - ruled - lowered - WHOLE.keys() - LOWERED_OTHERWISE.keys()
    assert not missing, (
        f"each member does these whole: {sorted(missing)}; write a rule in the room of rules "
        "(most are one line), or the reason why there is none into WHOLE"
    )


def drawn_layout(rng, mesh, spec, is_resident):
    """Some layout of a tensor."""
    words = ["R", *[str(dim) for dim in range(len(spec.shape))] * 2]
    if is_resident and spec.dtype.name == "float64":
        words.append("P")
    return lies(mesh, " ".join(rng.choice(words) for _ in mesh.shape))


def sampled(name, rng):
    """The row's sample, with its gradients, as a program."""
    sample = SAMPLES[name]
    tensors = [st.tensor(a, requires_grad=sample.grads and a.dtype == "f8") for a in sample.arrays]
    for one in tensors:
        if rng.random() < 0.6:
            hold(one)
    out = sample.at(OURS, *tensors)
    kept = []
    if sample.grads:
        seed = st.tensor(np.random.default_rng(rng.getrandbits(30)).standard_normal(out.shape))
        leaves = [one for one in tensors if one.requires_grad]
        kept = [g for g in st.grad([out], leaves, [seed], allow_unused=True) if g is not None]
    return recorded(read=[out], kept=kept)


@pytest.mark.parametrize("name", SAMPLES)
def test_members_make_what_one_makes(name):
    for seed in range(3):
        rng = random.Random(f"{name} {seed}")
        case = sampled(name, rng)
        mesh = rng.choice(MESHES)
        program = case.program
        leaves = [
            drawn_layout(rng, mesh, spec, resident)
            for spec, resident in zip(program.arrays, program.resident, strict=True)
        ]
        wanted = {
            slot: drawn_layout(rng, mesh, program.specs[slot], False)
            for slot in program.kept
            if rng.random() < 0.5
        }
        bucket_bytes = rng.choice((0, 1 << 20))
        check(case, mesh, leaves, wanted, bucket_bytes=bucket_bytes, overlap=rng.random() < 0.3)
