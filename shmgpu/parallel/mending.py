"""Pieces that a dead member held, restored from members that hold them, too.

If a survivor has the same piece, it is copied through the arena to the replacement, where it gets
the handle that it had. Owns which survivor has which piece. Never restores a piece that nobody else
has, such as a part of a sum: it is lost.
"""

from __future__ import annotations

from shmgpu.distributed.layout import Layout
from shmgpu.distributed.placements import REPLICATE
from shmgpu.ops.casting import ALIAS
from shmgpu.ops.graph import Node, Spec, apply, leaf
from shmgpu.tensors.message import HelperIncarnation, RemoteValue, Spread
from shmgpu.tensors.recorder import DraftAgain, Recorder


def twins(layout: Layout, rank: int) -> list[int]:
    """The other members that have exactly what this one has."""
    where = layout.mesh.coordinates
    return [
        other
        for other in range(layout.mesh.size)
        if other != rank
        and all(
            code == REPLICATE or here == there
            for code, here, there in zip(layout.codes, where[rank], where[other], strict=True)
        )
    ]


def mend(recorder: Recorder, value: Spread, spec: Spec) -> bool:
    """Have replacements hold what the dead held of a value; whether that can be.

    Args:
        recorder: whose value it is.
        value: some of whose members are dead.
        spec: type and shape of all of it.
    """
    lives = list(value.lives)
    while True:
        dead = [rank for rank, life in enumerate(lives) if life.is_over]
        if not dead:
            value.lives = lives
            return True
        rank = dead[0]
        number = lives[rank].number
        source = next((one for one in twins(value.layout, rank) if not lives[one].is_over), None)
        if source is None or number not in recorder.lives:
            return False
        replacement = recorder.lives[number]
        local = value.layout.local_spec(rank, spec)
        if _copy(recorder, lives[source], replacement, value.handle, local):
            lives[rank] = replacement


def _copy(
    recorder: Recorder,
    source: HelperIncarnation,
    target: HelperIncarnation,
    handle: int,
    spec: Spec,
) -> bool:
    """From one helper to another, through the arena; False where one of them died over it."""
    held = RemoteValue(recorder, source, handle, spec.nbytes)
    held.is_ours = False  # it stays where it is
    one = leaf(spec, held)
    try:
        recorder.move(one)
    except DraftAgain:
        return False
    copy: Node = apply(ALIAS, (one,))
    if not recorder.put(copy, target, handle):
        return False
    copy.value.is_ours = False  # it is a piece now
    return True
