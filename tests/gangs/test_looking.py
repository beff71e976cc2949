"""What is seen of calls on several helpers: counters, the trace, and what top makes of both."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gangs.members import ask, numpy_members

import shmgpu
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name
from shmgpu.watch import tables, trace

COUNT = 50_000


@pytest.fixture(autouse=True)
def broker():
    with shmgpu.init(helpers=3, devices="cpu", arena="16MiB"):
        yield


def all_reduce(helpers, times):
    given = [[shmgpu.arena.zeros(COUNT, np.float32)] for _ in helpers]
    task = {"step": "collective", "kind": "all_reduce", "times": times}
    ask(helpers, task, given, [ArraySpec(by_name("float32"), (COUNT,))])


def test_each_member_counts_what_it_moved_and_how_long_it_waited():
    all_reduce([0, 2], 5)
    rows = shmgpu.stats()["helpers"]
    assert [row["collectives"] for row in rows] == [5, 0, 5]
    assert [row["collective_bytes"] for row in rows] == [5 * 4 * COUNT, 0, 5 * 4 * COUNT]
    assert rows[0]["collective_wait_ns"] + rows[2]["collective_wait_ns"] > 0
    assert [row["finished"] for row in rows] == [1, 0, 1]


def test_the_trace_has_a_record_for_each_member(tmp_path):
    all_reduce([0, 1, 2], 3)
    records = [one for one in trace.read() if one["function"] == numpy_members.row]
    assert sorted(one["helper"] for one in records) == [0, 1, 2]
    assert {one["members"] for one in records} == {7}
    assert len({one["sequence"] for one in records}) == 1
    moved = [one["moved_bytes"] for one in records]
    assert sum(moved) == 3 * 4 * (3 - 1) * 2 * COUNT
    shmgpu.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    own = [one for one in events if one.get("name") == "numpy_members"]
    assert sum(one["ph"] == "X" for one in own) == 3 and sum(one["ph"] == "b" for one in own) == 1
    assert sum(one.get("cat") == "gang" for one in events) == 2 * 2


def test_top_shows_columns_of_exchange_only_where_helpers_exchange():
    def headings(rows):
        sample = {"helpers": rows, "children": [], "broker": {"arena_bytes": 1, "paused_pools": 0}}
        return [column.heading for column in tables.tables(sample)[0].columns]

    assert "waits" not in headings(shmgpu.stats()["helpers"])
    all_reduce([0, 1], 1)
    assert {"collectives/s", "moved/s", "waits"} <= set(headings(shmgpu.stats()["helpers"]))
