"""Results that wait for room: bounded in bytes, in time and by number."""

from __future__ import annotations

import pytest

from shmgpu.helper import parked_results
from shmgpu.helper.parked_results import Parking


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(parked_results.time, "monotonic", lambda: now[0])
    return now


def put(place, sequence, size, slot=0):
    key = (sequence, slot, 1)
    if not place.make_place(key, size):
        return None
    place.put(key, bytes(size), 0)
    return key


def test_what_is_kept_is_taken_once():
    place = Parking(100, lambda slot: 0)
    key = put(place, 1, 60)
    assert place.bytes == 60
    assert len(place.take(key).blob) == 60
    assert place.take(key) is None
    assert (place.bytes, len(place)) == (0, 0)


def test_the_oldest_of_all_make_way_when_the_bytes_are_used_up():
    place = Parking(100, lambda slot: 0)
    keys = [put(place, i, 40, slot=i) for i in range(3)]
    assert [place.take(key) is not None for key in keys] == [False, True, True]
    assert put(place, 9, 101) is None
    assert place.bytes == 0


def test_a_slot_with_a_quota_loses_its_own_and_nobody_elses():
    place = Parking(1000, lambda slot: 100 if slot == 1 else 0)
    other = put(place, 0, 300)
    mine = [put(place, i, 40, slot=1) for i in range(4)]
    assert put(place, 9, 101, slot=1) is None
    assert [place.take(key) is not None for key in mine] == [False, False, True, True]
    assert place.take(other) is not None


def test_of_one_slot_no_more_are_kept_than_it_may_have_calls_open():
    place = Parking(1000, lambda slot: 0, most=4)
    other = put(place, 0, 1)
    mine = [put(place, i, 1, slot=1) for i in range(6)]
    assert len(place) == 5
    assert [place.take(key) is not None for key in mine] == [False, False, True, True, True, True]
    assert place.take(other) is not None
    assert Parking(1)._most >= 896  # the largest window


def test_what_nobody_has_asked_for_in_a_minute_makes_way(clock):
    place = Parking(1000, lambda slot: 0)
    old = put(place, 1, 10)
    clock[0] += parked_results.KEPT_SECONDS - 1
    young = put(place, 2, 10)
    clock[0] += 2
    put(place, 3, 10)
    assert place.take(old) is None
    assert place.take(young) is not None


def test_two_results_under_one_number_take_the_place_of_one():
    place = Parking(1000, lambda slot: 0)
    key = put(place, 1, 10)
    put(place, 1, 30)
    assert (place.bytes, len(place)) == (30, 1)
    assert len(place.take(key).blob) == 30
    assert place.bytes == 0
