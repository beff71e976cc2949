"""``shmgpu trace`` reads what debugging saved, and draws it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import shmgpu as gt
from shmgpu import debug
from shmgpu.cli import main as cli
from shmgpu.errors import ShmError
from shmgpu.tensors import current
from shmgpu.watch import timeline


@pytest.fixture
def saved(tmp_path):
    """A trace with a MOVE between two helpers."""
    with gt.init(helpers=2, arena="16MiB", debug=True):
        made = []
        for number in (2, 3):
            made.append(gt.ones(30, 30) * number)
            current.recorder().send()
        (made[0] @ made[1]).numpy()
        place = debug.save_debug_trace(tmp_path / "t.json")
        made.clear()
    return place


def test_the_summary_tells_operations_moves_and_what_is_held(saved, capsys):
    assert cli.main(["trace", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "child 0: 5 operations in 4 messages, 1 MOVE of 3,600 bytes" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["matmul", "1", "20.0", "%"] in lines
    assert sum(line[:1] in (["0"], ["1"]) for line in lines) == 2


def test_times_are_microseconds_since_the_tape_began(saved):
    spans = [one for one in json.loads(saved.read_text())["traceEvents"] if one["ph"] == "X"]
    assert spans
    for one in spans:
        nanoseconds = [one["ts"] * 1000, one["dur"] * 1000]
        assert nanoseconds == pytest.approx([round(value) for value in nanoseconds], abs=1e-3)


def test_messages_tell_how_many_milliseconds_they_took(saved):
    messages = json.loads(saved.read_text())["shmgpu_debug"]["messages"]
    took = [one["milliseconds"] for one in messages]  # 0 of one that nobody has waited for
    assert len(took) == 4 and max(took) > 1e-3 and all(0 <= one < 60_000 for one in took)


def test_what_was_dropped_and_what_failed_is_said(saved, capsys):
    held = json.loads(saved.read_text())
    held["shmgpu_debug"]["dropped"]["operations"] = 7
    held["shmgpu_debug"]["messages"][0]["error"] = "RemoteError: no"
    saved.write_text(json.dumps(held))
    assert cli.main(["trace", str(saved)]) == 0
    said = capsys.readouterr().out
    assert "dropped, because tapes are bounded: 7 operations" in said
    assert "failed messages: 1; the last: RemoteError: no" in said


def draw(path):
    """The command, in a process of its own: matplotlib keeps its fonts' files open."""
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-m", "shmgpu", "trace", str(path), "--png"],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    picture = path.with_suffix(".png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"{picture}: a timeline of" in done.stdout


def test_a_timeline_is_drawn(saved):
    draw(saved)


def test_a_timeline_has_every_run_and_every_move(saved):
    bars, arrows = timeline.parts(json.loads(saved.read_text())["traceEvents"])
    assert {bar.helper for bar in bars} == {0, 1} and len(bars) == 4
    moves = [event["args"] for event in json.loads(saved.read_text())["traceEvents"]
             if event.get("cat") == "move"]  # fmt: skip
    told = [(one["from"], one["to"], 3600) for one in moves]
    assert len(told) == 1 and told[0][0] != told[0][1]
    assert [(one.source, one.target, one.nbytes) for one in arrows] == told


def test_the_trace_of_a_launch_is_drawn_too(tmp_path):
    path = tmp_path / "launch.json"
    gt.launch(_use, children=1, helpers=1, arena="8MiB", trace_path=path)
    draw(path)


def _use(rank):
    return (gt.ones(2) + rank).sum().item()


def test_without_anything_to_draw_there_is_a_sentence(tmp_path):
    with pytest.raises(ShmError, match="no helper executed"):
        timeline.draw([], tmp_path / "none.png")


def test_without_matplotlib_there_is_a_sentence(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ShmError, match="pip install matplotlib"):
        timeline.draw(json.loads(saved.read_text())["traceEvents"], saved.with_suffix(".png"))


def test_a_damaged_debug_part_ends_in_a_sentence(saved, capsys):
    held = json.loads(saved.read_text())
    del held["shmgpu_debug"]["messages"]
    saved.write_text(json.dumps(held))
    assert cli.main(["trace", str(saved)]) == 1
    assert "is not a trace that shmgpu wrote" in capsys.readouterr().err
