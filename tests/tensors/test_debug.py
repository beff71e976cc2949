"""Debugging says what tensors did: what was recorded, where it ran, what moved, who was busy."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

import shmgpu as gt
from shmgpu.common import config
from shmgpu.errors import ConfigError
from shmgpu.tensors import current, debug, recorder
from shmgpu.tensors.debug import ledger


@pytest.fixture(autouse=True)
def off_at_the_end():
    yield
    debug.disable()


@pytest.fixture
def pair():
    """Two helpers, and a tensor on each."""
    with gt.init(helpers=2, arena="16MiB", debug=True, tick_rate_ms=1):
        made = []
        for number in (2, 3):
            made.append(gt.ones(30, 30) * number)
            current.recorder().send()
        yield made
        made.clear()  # whoever keeps an array keeps its arena


def kinds(queue):
    return [row["kind"] for row in queue]


def test_what_waits_is_on_the_tape_without_debugging(engine):
    a = gt.tensor([1.0, 2.0], requires_grad=True)
    total = (a * 2.0).sum()
    tape = debug.get_tape()
    assert [row["op"] for row in tape] == ["mul", "sum"]
    assert tape[0]["call"] == f"mul(#{a.id}, 2.0)" and tape[0]["inputs"] == (a.id,)
    assert tape[1]["tensor"] == total.id and tape[1]["message"] == 0
    assert all(row["requires_grad"] for row in tape)
    assert total.item() == 6
    assert debug.get_tape() == []


def test_the_rest_needs_debugging_and_says_so(engine):
    for ask in (debug.get_output_queue, debug.get_handles, debug.get_tick_trace, debug.verify):
        with pytest.raises(debug.NotDebugging, match="enable"):
            ask()


def test_the_tape_keeps_what_was_sent_with_its_message(engine):
    debug.enable()
    assert (gt.ones(3) + 1).data[0] == 2
    assert ((gt.ones(3) + 1) * 2).data[0] == 4
    assert [row["message"] for row in debug.get_tape()] == [1, 1, 2, 2, 2]
    assert {row["shape"] for row in debug.get_tape()} == {(3,)}


def test_operations_run_where_the_bytes_lie_and_a_move_comes_first(pair):
    left, right = pair
    assert (left @ right).data[0, 0] == 180
    queue = debug.get_output_queue()
    [move] = [row for row in queue if row["kind"] == "MOVE"]
    assert move["source"] != move["helper"] and move["nbytes"] == 3600
    ran = next(row for row in queue if row["call"].startswith("matmul"))
    assert {row["source"] for row in queue if row["kind"] != "MOVE"} == {-1}
    assert all(row["handle"] > 0 for row in queue if row["kind"] == "KEEP")
    assert {row["handle"] for row in queue if row["kind"] in ("RUN", "READ")} == {0}, "none yet"
    assert {row["inputs"] for row in queue if row["kind"] != "RUN"} == {()}
    assert ran["helper"] == move["helper"] and set(ran["inputs"]) == {left.id, right.id}
    assert queue.index(move) < queue.index(ran)
    assert debug.verify() == 5  # two made, two multiplied, one product


def test_an_operation_whose_input_was_not_moved_is_found(pair):
    left, right = pair
    (left @ right).data
    tape = debug._on()
    rows = [row for row in tape.instructions if row.kind != "MOVE"]
    with pytest.raises(ledger.Unsound, match="no MOVE or READ brought it"):
        ledger.check(tape.before, rows)
    rows = [row for row in tape.instructions if row.kind != "KEEP"]
    with pytest.raises(ledger.Unsound, match=r"nowhere|does not hold"):
        ledger.check(tape.before, rows)
    rows = [row for row in tape.instructions if row.kind not in ("LOAD", "USE")]
    with pytest.raises(ledger.Unsound, match="which is not there"):
        ledger.check(tape.before, rows)


def test_handles_are_those_of_tensors_that_somebody_knows(pair):
    left, right = pair
    held = {row["tensor"]: row for row in debug.get_handles()}
    names = {one.name for one in dataclasses.fields(gt.debug.Handle)}
    assert all(row.keys() == names for row in held.values())
    assert {left.id, right.id} <= set(held)
    assert held[left.id]["helper"] != held[right.id]["helper"]
    assert held[left.id]["shape"] == (30, 30) and held[left.id]["nbytes"] == 3600


def test_freed_handles_are_gone_from_the_list(engine):
    debug.enable()
    kept = gt.ones(4) + 1
    current.recorder().send()
    assert [row["tensor"] for row in debug.get_handles()].count(kept.id) == 1
    number = kept.id
    del kept
    assert (gt.ones(2) + 1).data[0] == 2
    assert number not in [row["tensor"] for row in debug.get_handles()]
    assert "FREE" in kinds(debug.get_output_queue())
    assert debug.verify()


def test_training_reuses_memory_and_stays_sound(engine):
    debug.enable()
    gt.manual_seed(0)
    w = gt.randn(8, 8, requires_grad=True)
    for _ in range(5):
        loss = (w * w).mean()
        loss.backward()
        w -= 0.5 * w.grad
        w.grad = None
        loss.item()
    assert "REUSE" in kinds(debug.get_output_queue())
    assert debug.verify() == len(debug.get_tape())


def test_tapes_are_bounded_count_what_they_drop_and_are_still_verified(engine):
    debug.enable(limit=10)
    one = gt.ones(3)
    for _ in range(20):
        one = one + 1
        assert one.data.shape == (3,)
        current.recorder().send()
    assert len(debug.get_tape()) == len(debug.get_output_queue()) == 10
    dropped = debug.get_dropped()
    assert dropped["operations"] == 11 and dropped["instructions"] > 0
    assert debug.verify() > 0


def test_ticks_say_who_was_busy_and_who_was_idle(pair):
    left, right = pair
    for _ in range(5):
        (left @ right).data
    ticks = debug.get_tick_trace()
    assert ticks[0].keys() == {one.name for one in dataclasses.fields(gt.debug.Tick)}
    spans = gt.debug.get_spans()
    assert all(isinstance(one, gt.debug.Span) for one in spans)
    assert {one.helper for one in spans} <= {0, 1} and any("matmul" in one.label for one in spans)
    assert all(0 < one.start_ns <= one.end_ns for one in spans)
    assert ticks[0]["number"] == 0 and set(ticks[-1]["busy"]) == {0, 1}
    shares = [share for tick in ticks for share in tick["busy"].values()]
    assert 0 <= min(shares) and 0 < max(shares) <= 1
    assert any(not share for share in shares)
    running = {what for tick in ticks for one in tick["running"].values() for what in one}
    assert any("matmul" in what for what in running)


def test_helpers_are_counted_with_what_they_ran(pair):
    left, right = pair
    (left @ right).data
    before = gt.stats()["helpers"]
    rows = debug.get_worker_stats()
    assert set(rows) == {0, 1}
    assert sum(row["operations"].get("matmul", 0) for row in rows.values()) == 1
    assert all(row["state"] == "ready" and row["messages"] >= 1 for row in rows.values())
    for row, least, most in zip(rows.values(), before, gt.stats()["helpers"], strict=True):
        assert least["busy_ns"] / 1e6 <= row["busy_ms"] <= most["busy_ns"] / 1e6
    assert sum(row["handles"] for row in rows.values()) == len(debug.get_handles())


def test_what_helpers_did_has_the_keys_that_the_page_promises(pair):
    left, right = pair
    (left @ right).data
    rows = debug.get_output_queue()
    names = {one.name for one in dataclasses.fields(gt.debug.Instruction)}
    assert all(row.keys() == names for row in rows) and "MOVE" in {row["kind"] for row in rows}


def test_ticks_in_which_nobody_was_busy_are_one_line(monkeypatch, capsys):
    idle = {0: 0.0, 1: 0.0}
    told = [
        debug.Tick(0, 0.0, idle, {0: [], 1: []}),
        debug.Tick(1, 2.5, {1: 0.0, 0: 0.254}, {0: ["matmul", "add"], 1: []}),
        *(debug.Tick(number, 2.5 * number, idle, {0: [], 1: []}) for number in (2, 3, 4)),
        debug.Tick(5, 12.5, {0: 0.0, 1: 1.0}, {0: [], 1: ["MOVE"]}),
        debug.Tick(6, 15.0, idle, {0: [], 1: []}),
    ]
    monkeypatch.setattr(debug, "_ticks", lambda: (told, 1200))
    debug.print_tick_trace()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("Ticks of ") and head.endswith(" ms (1,200 older rows were dropped)")
    assert [line.split() for line in lines[1:]] == [
        ["all", "idle", "for", "1", "tick"],
        ["1", "2.5", "ms", "0", "busy", "25", "%", "matmul;", "add"],
        ["1", "2.5", "ms", "1", "idle"],
        ["all", "idle", "for", "3", "ticks"],
        ["5", "12.5", "ms", "0", "idle"],
        ["5", "12.5", "ms", "1", "busy", "100", "%", "MOVE"],
    ]


def test_each_instruction_says_what_it_is_about():
    for kind, more, said in (
        ("RUN", {"call": "matmul"}, "matmul"),
        ("MEET", {"call": "all_reduce", "nbytes": 4096}, "all_reduce, 4,096 bytes"),
        ("DIED", {}, "what it held is gone"),
        ("MOVE", {"source": 2, "nbytes": 3600}, "helper 2 -> helper 1, 3,600 bytes"),
        ("KEEP", {"handle": 7, "nbytes": 3600}, "handle 7, 3,600 bytes"),
        ("LOAD", {"nbytes": 8}, "in the arena, 8 bytes"),
        ("FREE", {"handle": 7}, "handle 7"),
    ):
        assert debug._details(debug.Instruction(1, kind, 1, 5, **more)) == said


def test_everything_prints(engine, capsys):
    debug.enable()
    (gt.ones(2, 2) @ gt.ones(2, 2)).data
    for show, said in (
        (debug.print_tape, "matmul"),
        (debug.print_input_tape, "Input tape"),
        (debug.print_output_queue, "RUN"),
        (debug.print_handles, "Handles"),
        (debug.print_tick_trace, "busy"),
        (debug.print_worker_stats, "1 matmul"),
    ):
        show()
        assert said in capsys.readouterr().out


def test_a_failed_operation_leaves_a_tape_that_can_be_read(engine):
    debug.enable()
    message = gt.ones(2) + 1
    observer = recorder.observer
    observer.failed(type("Message", (), {"seen": None})(), RuntimeError("x"))
    assert message.data[0] == 2
    assert debug.verify() == 2


def test_a_helper_s_death_is_on_the_tape_and_its_handles_are_gone():
    with gt.init(helpers=1, arena="8MiB", debug=True):
        kept = gt.ones(4) + 1
        kept.sum().item()
        assert kept.id in [row["tensor"] for row in debug.get_handles()]
        os.kill(gt.stats()["helpers"][0]["pid"], signal.SIGKILL)
        with pytest.raises(gt.HelperDied):
            kept.data
        assert debug.get_handles() == []
        assert kinds(debug.get_output_queue())[-1] == "DIED"
        assert (gt.ones(2) + 1).data.tolist() == [2, 2]  # its replacement goes on
        assert debug.verify() == 5


def test_debugging_keeps_no_tensor_alive(engine):
    debug.enable()
    w = gt.ones(4, requires_grad=True)
    for _ in range(3):
        loss = (w * w).sum()
        loss.backward()
        w -= 0.1 * w.grad
        w.grad = None
        loss.item()
    rows = [row for row in debug.get_output_queue() if row["kind"] == "REUSE"]
    assert rows  # a weight that something still knew could not be overwritten


def test_a_trace_is_saved_with_all_the_data(pair, tmp_path):
    left, right = pair
    (left @ right).data
    place = debug.save_debug_trace(tmp_path / "t.json")
    saved = json.loads(place.read_text())
    part = saved["shmgpu_debug"]
    assert [row["op"] for row in part["tape"]].count("matmul") == 1
    assert set(part) >= {"output_queue", "handles", "tick_trace", "worker_stats", "dropped"}
    [move] = [event for event in saved["traceEvents"] if event.get("cat") == "move"]
    assert move["args"]["bytes"] == 3600
    assert {event["tid"] for event in saved["traceEvents"] if event["ph"] == "X"} == {0, 1}


PROGRAM = """
import shmgpu as gt
def main(rank):
    return (gt.ones(2) + rank).data.tolist()
print(gt.launch(main, children=2, helpers=1, arena="8MiB", **{settings!r}))
"""


@pytest.mark.parametrize("how", ["arguments", "variables"])
def test_each_child_leaves_a_file_at_its_end(how, tmp_path):
    folder = str(tmp_path / "traces")
    settings = {"debug_dir": folder, "tick_rate_ms": 5}
    given = {name: text for name, text in os.environ.items() if "SHMGPU_" not in name}
    if how == "variables":
        given |= {f"SHMGPU_{name.upper()}": str(value) for name, value in settings.items()}
        settings = {}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(settings=settings)],
        env=given, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout.strip() == "[[1.0, 1.0], [2.0, 2.0]]", done.stderr
    files = sorted(os.listdir(folder))
    assert [name.split("-")[2] for name in files] == ["0", "1"]
    with open(os.path.join(folder, files[1])) as file:
        part = json.load(file)["shmgpu_debug"]
    assert part["rank"] == 1 and part["tick_rate_ms"] == 5
    assert [row["op"] for row in part["tape"]] == ["full", "add"]


def test_settings_end_with_the_broker(tmp_path):
    with gt.init(inline=True, debug=True, debug_dir=tmp_path):
        gt.ones(2).data
        assert debug.is_enabled()
    assert not debug.is_enabled() and not config.given
    assert len(list(tmp_path.iterdir())) == 1
    with gt.init(inline=True):
        gt.ones(2).data
        assert not debug.is_enabled()


@pytest.mark.parametrize("wrong", [{"tick_rate_ms": 0}, {"limit": 0}, {"debug_dir": "/proc/none"}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError):
        debug.enable(**wrong)
    assert not debug.is_enabled()


def _where(rank):
    gt.ones(2).sum().item()
    kept = gt.ones(4) + 1
    current.recorder().send()
    return debug.get_handles()[0]["helper"], kept.data.shape


def test_children_do_not_all_begin_with_the_same_helper():
    found = gt.launch(_where, children=2, helpers=2, arena="8MiB", debug=True)
    assert {helper for helper, _ in found} == {0, 1}
