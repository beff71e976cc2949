"""Every row of the table, cut in every way, on meshes of one to four members and of two axes."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from distributed.members import check, hold, lies, mesh_of, recorded
from tensors.samples import OURS, SAMPLES

import shmgpu.tensors.tensor as st
from shmgpu import ops
from shmgpu.codec import dtypes
from shmgpu.distributed.builder import neutral
from shmgpu.distributed.rules import LOWERED_OTHERWISE, RULES, WHOLE
from shmgpu.distributed.rules.base import options_of
from shmgpu.distributed.rules.moving import _local_slices
from shmgpu.ops import collective
from shmgpu.ops.graph import spec_of

MESHES = [
    mesh_of(1),
    mesh_of(2),
    mesh_of(3),
    mesh_of(4),
    mesh_of(2, 2),
    mesh_of(3, 2),
    mesh_of(2, 1, 2),
]

# Rows that round whole numbers: of others the outcome is the same to the last bit.
ROUND = set(
    "div pow exp log log1p sqrt rsqrt sin cos tanh sigmoid erf expm1 asin acos atan asinh acosh "
    "atanh atan2 hypot softmax softmax_backward log_softmax log_softmax_backward gelu "
    "gelu_backward silu silu_backward leaky_relu layer_norm layer_norm_moments layer_norm_input "
    "layer_norm_weight batch_norm batch_norm_moments batch_norm_sums batch_norm_input avg_pool2d "
    "avg_pool2d_backward binary_cross_entropy remainder linspace randn rand cumprod prod "
    "nll_loss nll_loss_backward checkpoint nextafter mse_loss mse_backward running_mean "
    "running_square adam_step inv det cofactors solve".split()
)


def test_every_row_has_a_rule_or_a_reason():
    lowered = {row.name for row in collective.LOWERED}
    ruled = {row.name for row in RULES}
    assert not ruled & (WHOLE.keys() | LOWERED_OTHERWISE.keys())
    missing = ops.TABLE.keys() - ruled - lowered - WHOLE.keys() - LOWERED_OTHERWISE.keys()
    assert not missing, (
        f"each member does these whole: {sorted(missing)}; write a rule in the room of rules "
        "(most are one line), or the reason why there is none into WHOLE"
    )


@pytest.mark.parametrize("name", ["float32", "float16", "int8", "int64", "uint8", "bool"])
def test_what_stands_for_nothing_in_a_reduction_changes_nothing(name):
    kind = np.dtype(name)
    limits = np.iinfo(kind) if kind.kind in "iu" else None
    values = [False, True] if limits is None else [limits.min, limits.max, 1]
    values = [-0.0, 0.0, -np.inf, np.inf, 2.5] if kind.kind == "f" else values
    for reduction, combined in {
        "sum": np.add, "avg": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    }.items():  # fmt: skip
        if name == "bool" and reduction in ("sum", "avg"):
            continue
        nothing = np.array(neutral(reduction, spec_of(dtypes.by_name(name), (2,))), kind)
        for value in np.array(values, kind):
            found = combined(nothing, value)
            assert (found.dtype, found.tobytes()) == (kind, value.tobytes())


def drawn_layout(rng, mesh, spec, is_resident):
    """Some layout of a tensor."""
    words = ["R", *[str(dim) for dim in range(len(spec.shape))] * 2]
    if is_resident and spec.dtype.name == "float64":
        words += [rng.choice("PPAMNX")] * 2  # one kind: a sum of maxima is no maximum of sums
    return lies(mesh, " ".join(rng.choice(words) for _ in mesh.shape))


def sampled(name, rng, is_whole=False):
    """The row's sample, with its gradients, as a program; of whole numbers if wanted."""
    sample = SAMPLES[name]
    arrays = [np.round(a * 3) if is_whole and a.dtype == "f8" else a for a in sample.arrays]
    tensors = [st.tensor(a, requires_grad=sample.grads and a.dtype == "f8") for a in arrays]
    for one in tensors:
        if rng.random() < 0.6:
            hold(one)
    out = sample.at(OURS, *tensors)
    kept = []
    if sample.grads:
        seed = np.random.default_rng(rng.getrandbits(30)).integers(-3, 4, out.shape)
        leaves = [one for one in tensors if one.requires_grad]
        kept = st.grad([out], leaves, [st.tensor(np.asarray(seed, "f8"))], allow_unused=True)
    return recorded(read=[out], kept=[one for one in kept if one is not None])


def check_any(name, seed, backend="numpy"):
    """A layout of everything, drawn by the seed."""
    rng = random.Random(f"{name} {seed}")
    is_whole = name not in ROUND and seed % 2
    case = sampled(name, rng, is_whole)
    mesh = rng.choice(MESHES)
    program = case.program
    leaves = [
        drawn_layout(rng, mesh, spec, resident and name != "signbit")  # parts have other signs
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
        leaves,
        wanted,
        exact=is_whole,
        backend=backend,
        bucket_bytes=rng.choice((0, 1 << 20)),
        overlap=rng.random() < 0.3,
    )


@pytest.mark.table
@pytest.mark.parametrize("name", SAMPLES)
def test_members_make_what_one_makes(name):
    check_any(name, 0)
    check_any(name, 1, "torch")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_members_make_what_one_makes_at_length(name, backend):
    for seed in range(2, 26):
        check_any(name, seed, backend)


@pytest.mark.table
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SAMPLES)
def test_each_way_that_a_rule_has_is_right(name, count):
    """Each leaf of the operation lies as the way wants it, so that it is taken."""
    rng = random.Random(name)
    case = sampled(name, rng)
    program = case.program
    first = len(program.arrays) + len(program.numbers)
    specs = program.specs
    tried = 0
    for step in program.steps:
        if step.op.name != name or step.op not in RULES:
            continue
        given = tuple([specs[one] for one in step.inputs])
        for option in options_of(RULES[step.op], given, step.params, step.spec):
            said = {}
            for one, code in zip(step.inputs, option.inputs, strict=True):
                said.setdefault(one, code)
            mesh = mesh_of(count)
            leaves = []
            for slot, resident in enumerate(program.resident):
                code = said.get(slot, 0)
                word = str(code - 1) if code > 0 else {0: "R", -1: "P"}.get(code, "R")
                leaves.append(lies(mesh, word if resident or code >= 0 else "R"))
            wanted = {
                slot: lies(mesh, str(code - 1))
                for slot, code in said.items()
                if slot >= first and code > 0 and slot in program.kept
            }
            check(case, mesh, leaves, wanted)
            tried += 1
    assert tried or name in LOWERED_OTHERWISE


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_member_takes_its_part_of_a_slice_out_of_its_part_of_the_whole(step):
    """Also none of it, wherever its own rows lie."""
    rows, ends = np.arange(6), range(7)
    for start, stop, low, high in itertools.product(ends, ends, ends, ends):
        taken = rows[start:stop:step]
        for first, last in itertools.combinations_with_replacement(range(len(taken) + 1), 2):
            part, own = taken[first:last], rows[low:high]
            if not np.isin(part, own).all() or low > high:
                continue
            slices = ((start,), (stop,), (step,)), ((low, high),), ((first, last),)
            ((begin,), (end,), (by,)) = _local_slices(*slices)
            assert own[begin:end:by].tolist() == part.tolist(), slices
