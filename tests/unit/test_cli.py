"""The command line: what it accepts, how it ends, and what it makes of a saved trace."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys

import pytest

from shmgpu.cli import main as cli
from shmgpu.cli import trace as command
from shmgpu.watch import trace
from shmgpu.watch import trace_summary as summary


def events(records):
    return list(trace.events(records))


def record(
    number, slot, queued_us, handed_us, started_us, ended_us, *, batch=1, helper=0, status=0
):
    """One call's life in the trace ring; times in microseconds."""
    return {
        "sequence": number, "function": 0, "rows": 1, "slot": slot, "status": status,
        "batch": batch, "helper": helper, "priority": 0, "generation": 1,
        "queued_ns": queued_us * 1000, "handed_ns": handed_us * 1000,
        "answered_ns": ended_us * 1000,
        "started_units": (started_us - handed_us) * 1000 // 64,
        "finished_units": (ended_us - handed_us) * 1000 // 64,
    }  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    def save(records):
        path = tmp_path / "saved.trace.json"
        path.write_text(json.dumps({"traceEvents": events(records)}))
        return str(path)

    return save


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"shmgpu {importlib.metadata.version('shmgpu')}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["dance"],
        ["trace"],
        ["demo", "--children", "0"],
        ["demo", "--helpers", "65"],
        ["up", "none_such", "--helpers", "65"],
        ["up", "none_such", "--helpers", "small=1,large=65"],
        ["scale", "0"],
        ["demo", "--seconds", "soon"],
        ["demo", "--seconds", "0"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_end_with_usage_and_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: shmgpu" in capsys.readouterr().err


@pytest.mark.cold
def test_the_command_line_starts_without_torch():
    code = "import sys, shmgpu.cli.main; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"


def test_a_summary_tells_how_busy_helpers_were_and_how_long_calls_took():
    made = summary.summarise(
        events(
            [
                record(1, 0, 0, 640, 640, 1280),
                record(2, 1, 0, 1280, 1280, 6400, helper=1, status=-15),
            ]
        )
    )
    assert made.span_us == pytest.approx(6400)
    assert made.helpers[0].busy_us == pytest.approx(640)
    assert made.helpers[1].busy_us == pytest.approx(5120)
    [use] = made.functions.values()
    assert sorted(use.answered_us) == pytest.approx([1280, 6400])
    assert sorted(use.waited_us) == pytest.approx([640, 1280])
    assert use.failed == 1


def test_a_summary_begins_with_its_first_event():
    made = summary.summarise(
        [
            {"ph": "M", "name": "process_name"},
            {"ph": "X", "pid": 0, "ts": 1000.0, "dur": 50.0},
            {"ph": "X", "pid": 0, "ts": 1040.0, "dur": 60.0},
            {"ph": "C", "ts": 9000.0},
        ]
    )
    assert made.span_us == 100.0
    assert summary.summarise([]).span_us == 0.0


def test_a_batch_is_one_run_of_several_calls():
    batch = [record(number, number, 0, 64, 64, 640, batch=3) for number in range(3)]
    made = summary.summarise(events([*batch, record(3, 3, 0, 640, 640, 1280)]))
    assert made.helpers[0].batches == [3, 1]
    assert made.helpers[0].busy_us == pytest.approx(576 + 640)


def test_a_call_that_was_never_handed_over_counts_as_no_run():
    made = summary.summarise(events([record(1, 0, 0, 0, 0, 640, helper=255, status=-12)]))
    assert made.helpers == {}
    [use] = made.functions.values()
    assert (use.failed, use.waited_us, use.answered_us) == (1, [], [640.0])


def test_the_printed_summary_aligns_its_columns(saved, capsys):
    path = saved(
        [
            record(n, n % 4, at, at + 64, at + 64, at + 128)
            for n, at in ((n, 64 * n) for n in range(9))
        ]
    )
    assert cli.main(["trace", path]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(path)
    assert "9 calls in" in printed
    lines = printed.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("helper"))
    assert len(lines[head]) == len(lines[head + 1])
    assert " 128.0 us" in printed


def test_several_traces_are_summarised_one_after_the_other(saved, capsys):
    path = saved([record(1, 0, 0, 64, 64, 128)])
    assert cli.main(["trace", path, path]) == 0
    assert capsys.readouterr().out.count("1 calls in") == 2


def test_an_empty_trace_says_so(saved, capsys):
    assert cli.main(["trace", saved([])]) == 0
    assert "No call was traced" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "{}",
        '{"traceEvents": [{"ph": "X"}]}',
        '{"traceEvents": [{"ph": "e", "ts": 1, "id": 0, "name": "x"}]}',
        '{"traceEvents": [{"ph": "n", "ts": 1, "id": 0, "name": "x"}]}',
        '{"traceEvents": [7]}',
        '{"traceEvents": 7}',
    ],
)
def test_what_is_no_trace_ends_in_a_sentence(text, tmp_path, capsys):
    path = tmp_path / "other.json"
    path.write_text(text)
    assert cli.main(["trace", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"shmgpu: {path} is not a trace")
    assert said.count("\n") == 1


def test_a_trace_that_is_not_there_ends_in_a_sentence(tmp_path, capsys):
    assert cli.main(["trace", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_an_interrupted_command_ends_with_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(summary, "summarise", interrupted)
    monkeypatch.setattr(command.json, "load", lambda file: {"traceEvents": []})
    assert cli.main(["trace", __file__]) == 130


def test_a_reader_that_leaves_ends_the_command_without_a_traceback(saved):
    path = saved([record(1, 0, 0, 64, 64, 128)])
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "shmgpu.cli.main", "trace", path],
        stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(writing)
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_disk_that_is_full_is_a_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "shmgpu", "list"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "shmgpu: the output could not be written: No space left on device\n"


COMPLETE = """
source <("$0" -m shmgpu completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_shmgpu; echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["t"], ["top", "trace"]),
        (["scale", "--pa"], ["--path"]),
        (["trace", "{file}"], ["{file}.json"]),
    ],
)
def test_a_shell_completes_commands_options_and_files(tmp_path, words, found):
    pytest.importorskip("shtab", reason="shmgpu[completion] is not installed")
    (tmp_path / "saved.json").touch()
    words, found = ([one.format(file=tmp_path / "saved") for one in row] for row in (words, found))
    done = subprocess.run(
        ["bash", "-c", COMPLETE, sys.executable, "shmgpu", *words],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == found, done.stderr


def test_completion_without_its_extra_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "pip install '.[completion]' in a checkout of shmgpu" in capsys.readouterr().err
