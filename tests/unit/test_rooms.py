"""Where results go: a room serves again when no result in it is alive, and not before."""

from __future__ import annotations

import types

import numpy as np

from shmgpu.child.rooms import MAX_ROOMS, TRIES, Room, Rooms


def promise_of(*lengths):
    """As of a result of so many arrays of float32."""
    specs = [
        types.SimpleNamespace(shape=(one,), dtype=types.SimpleNamespace(numpy=np.dtype("f4")))
        for one in lengths
    ]
    tree = types.SimpleNamespace(build=lambda views, values: tuple(views))
    hint = types.SimpleNamespace(
        specs=specs, offsets=[64 * n for n in range(len(specs))], tree=tree
    )
    return types.SimpleNamespace(hint=hint, make=None, is_one_array=len(lengths) == 1)


def room_of(promise, size=256):
    return Room(promise, bytearray(size), 0, size)


def test_a_room_is_free_when_no_result_in_it_is_alive():
    for lengths in ((4,), (4, 3, 2)):
        room = room_of(promise_of(*lengths))
        assert room.is_free()
        result = room.result()
        views = [result] if len(lengths) == 1 else [*result]
        assert [view.shape for view in views] == [(one,) for one in lengths]
        del result
        while views:
            assert not room.is_free()
            views.pop(0)
        assert room.is_free()


def test_a_room_serves_again_and_one_in_use_waits():
    promise, rooms = promise_of(4), Rooms()
    first, second = room_of(promise), room_of(promise)
    assert rooms.keep(first) and rooms.keep(second)
    held = first.result()
    assert rooms.take(promise, 256) is second
    assert rooms.take(promise, 256) is None
    del held
    assert rooms.take(promise, 256) is first and not rooms
    assert not rooms.keep(first)  # it was kept before


def test_rooms_of_another_result_and_small_ones_serve_no_more():
    promise, rooms = promise_of(4), Rooms()
    rooms.keep(room_of(promise_of(4)))
    rooms.keep(room_of(promise, 128))
    assert rooms.take(promise, 129) is None and not rooms
    assert rooms.take(promise, 1) is None


def test_so_many_rooms_are_kept_and_so_many_looked_at():
    promise, rooms = promise_of(4), Rooms()
    made = [room_of(promise) for _ in range(MAX_ROOMS + 1)]
    assert [rooms.keep(one) for one in made] == [True] * MAX_ROOMS + [False]
    held = [one.result() for one in made[:TRIES]]
    assert rooms.take(promise, 256) is None
    assert rooms.take(promise, 256) is made[TRIES]
    del held
