"""Fairness: who floods waits longer, by count of calls handed over in between, not by the clock.

The dispatcher's own trace says when it had a call, and when it handed it over: how soon a child
came back for more, on a machine that may be busy, is no matter of fairness.
"""

from __future__ import annotations

import json
import time

import pytest

import shmgpu


@shmgpu.function(arrays="numpy")
def numbered(helper, seconds):
    time.sleep(seconds)
    helper.session["n"] += 1
    return helper.session["n"]


def start(helper):
    return {"n": 0}


@pytest.fixture
def launch(tmp_path):
    """Runs a broker of one helper: what its children returned, and its calls; see calls_of."""

    def run(mains):
        path = tmp_path / "trace.json"
        results = shmgpu.launch(
            mains, helpers=1, session=start, devices="cpu", arena="4MiB", window=64, trace_path=path
        )
        return results, calls_of(json.loads(path.read_text())["traceEvents"])

    return run


def calls_of(events):
    """For each call, in the order in which they were handed over: its child, when it came, when
    it was handed over."""
    came = {event["id"]: event for event in events if event["ph"] == "b"}
    handed = {event["id"]: event["ts"] for event in events if event["ph"] == "n"}
    calls = [(event["tid"], event["ts"], handed[number]) for number, event in came.items()]
    return sorted(calls, key=lambda call: call[2])


def passed_over(calls, rank):
    """For each call of a child: of how many others it had to watch the handing over, since it was
    there and its child's one before it had been handed over."""
    found, before = [], 0.0
    for child, came, handed in calls:
        if child == rank:
            since = max(came, before)
            found.append(sum(o != rank and since < at < handed for o, _, at in calls))
            before = handed
    return found


def flood(rank):
    futures = [numbered.submit(0.002) for _ in range(300)]
    return [future.result() for future in futures]


def light(rank):
    while shmgpu.stats()["children"][0]["answered"] == 0:
        time.sleep(0.001)  # the flood is on
    return [numbered(0.002) for _ in range(20)]


def test_a_flooding_child_does_not_keep_a_light_one_waiting(launch):
    [heavy, served], calls = launch([flood, light])
    waits = passed_over(calls, 1)
    assert max(waits) <= 2, waits  # the flood has 64 of them out
    assert sorted(heavy + served) == list(range(1, 321))


def test_children_that_all_flood_are_served_in_turn(launch):
    _, calls = launch([flood] * 4)
    for rank in range(4):
        waits = passed_over(calls, rank)
        assert len(waits) == 300 and max(waits) <= 4, waits


def urgent(rank):
    while shmgpu.stats()["children"][0]["answered"] == 0:
        time.sleep(0.001)
    return [numbered.options(priority=3)(0.002) for _ in range(10)]


def test_a_higher_priority_is_served_first(launch):
    _, calls = launch([flood, flood, flood, urgent])
    waits = passed_over(calls, 3)
    assert len(waits) == 10 and max(waits) <= 1, waits
