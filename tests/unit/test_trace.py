"""The trace file: what Perfetto needs, from records of any kind."""

from __future__ import annotations

import json

import pytest

from shmgpu.errors import BadParams, ConfigError, NotRunning
from shmgpu.watch import trace


def record(**changes):
    base = {
        "sequence": 1, "function": 7, "queued_ns": 1_000_000, "handed_ns": 1_002_000,
        "answered_ns": 1_010_000, "started_units": 10, "finished_units": 100, "rows": 1,
        "slot": 3, "status": 0, "batch": 1, "helper": 0, "priority": 0, "generation": 1,
    }  # fmt: skip
    return {**base, **changes}


def of(records, phase):
    return [e for e in trace.events(records, {7: "f"}) if e["ph"] == phase]


def test_a_call_is_a_slice_of_its_helper_and_a_span_of_its_child():
    [piece] = of([record()], "X")
    assert piece["name"] == "f" and piece["tid"] == 0
    assert piece["ts"] == 2.64 and piece["dur"] == 5.76  # microseconds
    [begin], [end] = of([record()], "b"), of([record()], "e")
    assert begin["tid"] == end["tid"] == 3 and end["ts"] - begin["ts"] == 10


def test_a_call_that_no_helper_got_is_a_span_only():
    rows = [record(handed_ns=0, helper=255, status=-12)]
    assert of(rows, "X") == []
    assert of(rows, "b")[0]["args"]["status"] == "SHM_ECANCELLED"


def test_the_messages_of_a_batch_are_one_slice():
    rows = [record(sequence=n, slot=n, batch=4) for n in range(4)]
    [piece] = of(rows, "X")
    assert piece["args"]["messages"] == 4
    assert len(of(rows, "b")) == 4


def test_calls_of_a_helper_that_follow_at_once_do_not_overlap_by_how_their_times_are_rounded():
    unit = trace.UNIT_NS
    first = record(handed_ns=10_000, started_units=1, finished_units=10)
    second = record(handed_ns=10_000 + 9 * unit + 5, started_units=0, finished_units=9)
    one, other = of([first, second], "X")
    assert other["ts"] == pytest.approx(one["ts"] + one["dur"])
    assert other["dur"] == pytest.approx((9 * unit - (unit - 5)) / 1000)


def test_the_queue_depth_is_counted():
    rows = [record(queued_ns=1000 + n, handed_ns=2000 + n) for n in range(5)]
    depths = [e["args"]["calls"] for e in of(rows, "C")]
    assert max(depths) == 5 and depths[-1] == 0


def members(*helpers, **changes):
    """The records of one call that these helpers ran at once, in the order in which they ended."""
    mask = sum(1 << helper for helper in helpers)
    made = {"members": mask, "moved_bytes": 4096, "waited_units": 1000, **changes}
    return [
        record(helper=helper, answered_ns=1_010_000 + 1000 * n, started_units=10 + n, **made)
        for n, helper in enumerate(helpers)
    ]


def test_a_call_on_several_helpers_is_a_slice_of_each_and_one_span_of_its_child():
    rows = members(2, 0, 1)
    pieces = of(rows, "X")
    assert [piece["tid"] for piece in pieces] == [2, 0, 1]
    assert {piece["args"]["moved_bytes"] for piece in pieces} == {4096}
    assert {piece["args"]["waited_us"] for piece in pieces} == {64.0}
    [begin], [end] = of(rows, "b"), of(rows, "e")
    assert end["ts"] - begin["ts"] == 12  # until the last of them has ended
    assert max(e["args"]["calls"] for e in of(rows, "C")) == 1


def test_arrows_go_from_the_member_that_began_first_to_the_others():
    rows = members(2, 0, 1)
    out, into = of(rows, "s"), of(rows, "f")
    assert [e["tid"] for e in out] == [2, 2] and [e["tid"] for e in into] == [0, 1]
    assert [e["id"] for e in out] == [e["id"] for e in into] and out[0]["id"] != out[1]["id"]
    assert all(a["ts"] < b["ts"] for a, b in zip(out, into, strict=True))
    assert of([record()], "s") == []


def test_a_call_on_several_helpers_has_the_status_of_the_member_that_failed(tmp_path):
    rows = members(0, 1, 2)
    for row, status in zip(rows, (-40, -15, -40), strict=True):
        row["status"] = status
    [begin] = of(rows, "b")
    assert begin["args"]["status"] == "SHM_EREMOTE"
    statuses = [piece["args"]["status"] for piece in of(rows, "X")]
    assert statuses == ["SHM_EABORTED", "SHM_EREMOTE", "SHM_EABORTED"]
    assert trace.write(tmp_path / "t.json", [*rows, record()]) == 2


def test_tracks_are_named_and_the_file_is_json(tmp_path):
    path = tmp_path / "t.json"
    assert trace.write(path, [record(), record(slot=4, helper=1)]) == 2
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"helpers", "children", "helper 0", "helper 1", "child 3", "child 4"} <= names


def test_an_empty_trace_is_a_file_too(tmp_path):
    path = tmp_path / "t.json"
    assert trace.write(path, []) == 0
    json.loads(path.read_text())


def test_without_a_broker_there_is_no_trace_and_no_file(tmp_path):
    with pytest.raises(NotRunning):
        trace.write(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written \\(Is a directory\\)"):
        trace.write(tmp_path, [record()])
    with pytest.raises(BadParams, match=r"are rows of shmgpu\.watch\.trace\.read"):
        trace.write(tmp_path / "trace.json", [{"sequence": 1}])
