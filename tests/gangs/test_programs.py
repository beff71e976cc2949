"""Programs of members, run by real helpers: what they meet for, and what comes of it."""

from __future__ import annotations

import random

import numpy as np
import pytest
from distributed.members import hold, lies, lower, mesh_of, recorded, run
from gangs.members import ask
from tensors.samples import OURS
from tensors.test_random_programs import drawn, play

import shmgpu
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import of_numpy
from shmgpu.tensors import current
from shmgpu.tensors import tensor as st

MESHES = [mesh_of(2), mesh_of(3), mesh_of(4), mesh_of(2, 2)]
BROKER = {"helpers": 4, "devices": "cpu", "arena": "64MiB"}


def spec_of(array):
    return ArraySpec(of_numpy(array.dtype), array.shape)


def arena_copies(arrays):
    found = []
    for array in arrays:
        copy = shmgpu.arena.zeros(array.shape, array.dtype)
        copy[...] = array
        found.append(copy)
    return found


def test_programs_meet_in_parts_of_several_arrays_and_end_later_what_they_began():
    with shmgpu.init(**BROKER):
        x = np.arange(44, dtype=np.float32).reshape(4, 11)
        given = [arena_copies([row]) for row in x]
        out = [np.empty(n, np.float32) for n in (11, 25, 11, 8)] + [np.empty(2, bool)]
        for _ in range(3):
            found = ask(range(4), {"step": "meetings"}, given, [spec_of(one) for one in out])
            for rank, (total, whole, scattered, got, either) in enumerate(found):
                row, column = rank // 2 * 2, rank % 2
                np.testing.assert_array_equal(total, x.mean(axis=0))
                pair = np.concatenate([x[row], x[row, :3], x[row + 1]])
                np.testing.assert_array_equal(whole, pair)
                most = x[row : row + 2].max(axis=0)
                mine = most[7:] if column else most[:7]
                np.testing.assert_array_equal(scattered, np.resize(mine, 11))
                first, second = x[column], x[column + 2]
                if rank < 2:
                    sent = np.concatenate([first[:3], second[:5]])
                else:
                    sent = np.concatenate([first[3:8], second[5:8]])
                np.testing.assert_array_equal(got, sent)
                assert either.tolist() == [True, False]


def lowered_cases(seeds):
    """(lowered program, what each member is given, its numbers, what one makes of it)."""
    for seed in seeds:
        rng = random.Random(seed)
        leaves = [st.tensor(drawn(rng), requires_grad=True) for _ in range(rng.randint(1, 4))]
        for one in leaves:
            if rng.random() < 0.7:
                hold(one)
        made = play(OURS, leaves, seed)[len(leaves) :]
        outs = [OURS.sum(one) for one in made if one.requires_grad]
        gradients = st.grad([sum(outs)], leaves, allow_unused=True) if outs else ()
        case = recorded(
            read=[one for one in [*made[:3], *gradients] if one is not None and one._node.op]
        )
        program, mesh = case.program, rng.choice(MESHES)
        lie = []
        for spec in program.arrays:
            words = ["R", *map(str, range(len(spec.shape)))]
            lie.append(lies(mesh, " ".join(rng.choice(words) for _ in mesh.shape)))
        lowered = lower(program, mesh, lie, bucket_bytes=200, overlap=rng.random() < 0.4)
        given = []
        for rank in range(mesh.size):
            own = [
                array[layout.piece(rank, spec.shape)] if resident else array
                for array, layout, spec, resident in zip(
                    case.given(lowered, rank),
                    lowered.leaves,
                    program.arrays,
                    program.resident,
                    strict=True,
                )
            ]
            own.append(np.frombuffer(lowered.programs[rank].encode(), np.uint8))
            given.append([np.array(one) for one in own])
        numbers = [*case.numbers, *lowered.constants]
        whole, _ = run(program, case.arrays, case.numbers)
        yield lowered, given, numbers, whole


@pytest.fixture
def cases(monkeypatch):
    """Recorded in this process, and sent nowhere."""
    monkeypatch.setattr(current, "_backend", "numpy")
    monkeypatch.setattr(current, "MAX_PENDING", 1 << 60)
    with shmgpu.init(inline=True, arena="16MiB", threads=1):
        made = list(lowered_cases(range(24)))
        current.recorder().pending.clear()
    return made


def test_members_programs_make_in_helpers_what_one_program_makes(cases):
    assert sum(len(lowered.collectives) for lowered, *_ in cases) > 20
    with shmgpu.init(**BROKER):
        for lowered, given, numbers, whole in cases:
            ranks = range(lowered.mesh.size)
            out = {}
            for rank in ranks:
                local = lowered.programs[rank]
                out[rank] = [
                    ArraySpec(
                        of_numpy(np.dtype(local.specs[slot].dtype.numpy)), local.specs[slot].shape
                    )
                    for slot in local.read
                ]
            task = {"step": "lowered", "numbers": numbers}
            found = ask(ranks, task, [arena_copies(own) for own in given], out)
            for place, (layout, want) in enumerate(zip(lowered.read, whole, strict=True)):
                got = np.full(want.shape, 77, want.dtype)
                for rank in ranks:
                    if place in lowered.readers[rank]:
                        own = found[rank][lowered.readers[rank].index(place)]
                        got[layout.piece(rank, want.shape)] = own
                np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
