"""Fairness: who floods waits longer, by count of calls served in between, not by the clock."""

from __future__ import annotations

import itertools
import time

import shmgpu


@shmgpu.function(arrays="numpy")
def numbered(helper, seconds):
    time.sleep(seconds)
    helper.session["n"] += 1
    return helper.session["n"]


def start(helper):
    return {"n": 0}


def launch(mains):
    return shmgpu.launch(mains, helpers=1, session=start, devices="cpu", arena="4MiB", window=64)


def flood(rank):
    futures = [numbered.submit(0.002) for _ in range(300)]
    return [future.result() for future in futures]


def light(rank):
    time.sleep(0.05)  # the flood is on
    return [numbered(0.002) for _ in range(20)]


def test_a_flooding_child_does_not_keep_a_light_one_waiting():
    [heavy, served] = launch([flood, light])
    gaps = [b - a for a, b in itertools.pairwise(served)]
    # Calls of the flood between two of the light child's: each may find the helper with some ahead,
    # and a busy machine lets it come late; the flood has 64 of them out.
    assert max(gaps) <= 8, gaps
    assert sorted(heavy + served) == list(range(1, 321))


def test_children_that_all_flood_are_served_in_turn():
    results = launch([flood] * 4)
    owner = {number: rank for rank, served in enumerate(results) for number in served}
    middle = [owner[n] for n in range(200, 1000)]
    for begin in range(0, len(middle), 40):
        piece = middle[begin : begin + 40]
        assert all(piece.count(rank) >= 5 for rank in range(4)), piece


def urgent(rank):
    time.sleep(0.05)
    return [numbered.options(priority=3)(0.002) for _ in range(10)]


def test_a_higher_priority_is_served_first():
    *_, served = launch([flood, flood, flood, urgent])
    gaps = [b - a for a, b in itertools.pairwise(served)]
    assert max(gaps) <= 3, gaps
