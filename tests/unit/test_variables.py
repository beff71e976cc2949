"""What the environment and the command line say arrives where it is meant to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import shmgpu
from shmgpu import core, doctor
from shmgpu.attach import spawn
from shmgpu.broker import daemon
from shmgpu.broker.launch_config import LaunchConfig
from shmgpu.cli import main as cli
from shmgpu.common.progress import ProgressBar


@shmgpu.function(arrays="numpy")
def echo(helper, value):
    return value


# Variable, its text; what the core is told of it, and that it is not told so unless asked.
IN_THE_CORE = [
    ("SHMGPU_ARENA", "3MiB", "arena_bytes", 3 << 20),
    ("SHMGPU_WINDOW", "7", "window", 7),
    ("SHMGPU_ORDER", "deadline", "by_deadline", 1),
    ("SHMGPU_HELPERS", "3", "helper_count", 3),
    ("SHMGPU_TRACE_RECORDS", "12", "trace_records", 12),
    ("SHMGPU_PREFAULT", "1", "prefault", 1),
    ("SHMGPU_HUGE_PAGES", "yes", "huge_pages", 1),
    ("SHMGPU_GRACE", "2.5", "grace_ns", 2_500_000_000),
    ("SHMGPU_SCRATCH", "64KiB", "scratch_bytes", 64 << 10),
    ("SHMGPU_RESTART", "on-failure", "restart", 1),
    ("SHMGPU_MAX_RESTARTS", "9", "max_restarts", 9),
]


def planned(**given):
    return LaunchConfig(children=1, **{"devices": "cpu", **given})


@pytest.mark.parametrize(("variable", "text", "member", "value"), IN_THE_CORE)
def test_a_variable_reaches_the_core_and_an_argument_beats_it(
    monkeypatch, variable, text, member, value
):
    monkeypatch.delenv(variable, raising=False)
    plain = planned().for_core()[member]
    assert plain != value
    monkeypatch.setenv(variable, text)
    assert planned().for_core()[member] == value
    given = {"helpers": 1, "arena": "64MiB", "window": 64, "trace_records": 65536}
    given |= {"prefault": False, "huge_pages": False, "grace": 5.0, "scratch": "4MiB"}
    given |= {"restart": "never", "max_restarts": 5, "order": "turns"}
    assert planned(**given).for_core()[member] == plain


def test_the_cap_of_device_memory_reaches_the_helpers(monkeypatch):
    monkeypatch.setenv("SHMGPU_GPU_MEMORY", "2GiB")
    assert [one.gpu_memory for one in planned(helpers=2).setups] == [2 << 30] * 2
    assert planned(gpu_memory="1GiB").setups[0].gpu_memory == 1 << 30


class Terminal:
    def isatty(self):
        return True

    def write(self, text):
        return len(text)

    def flush(self):
        pass


@pytest.mark.parametrize(("text", "shown"), [("0", False), ("1", True)])
def test_bars_are_drawn_on_a_terminal_unless_the_variable_says_no(monkeypatch, text, shown):
    monkeypatch.setenv("SHMGPU_PROGRESS", text)
    monkeypatch.setenv("TERM", "xterm")
    bar = ProgressBar(3, "steps", file=Terminal())
    assert bar.shown is shown
    bar.close()
    assert ProgressBar(3, "steps", show=False, file=Terminal()).shown is False


TRACED = """
import shmgpu as gt
from shmgpu.tensors import recorder
if __name__ == "__main__":
    with gt.init(inline=True):
        (gt.ones(2) + 1).data
        print(recorder.observer is not None)
"""


@pytest.mark.parametrize("variable", ["SHMGPU_DEBUG", "SHMGPU_DEBUG_DIR"])
def test_what_tensors_do_is_written_down_if_a_variable_says_so(monkeypatch, tmp_path, variable):
    folder = tmp_path / "traces"
    for name in ("SHMGPU_DEBUG", "SHMGPU_DEBUG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1" if variable == "SHMGPU_DEBUG" else str(folder))
    monkeypatch.setenv("SHMGPU_TICK_RATE_MS", "25")
    done = subprocess.run(
        [sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"
    left = list(folder.iterdir()) if folder.exists() else []
    assert len(left) == (variable == "SHMGPU_DEBUG_DIR")
    for file in left:
        assert json.loads(file.read_text())["shmgpu_debug"]["tick_rate_ms"] == 25


PLANNED = [
    (["--children", "6"], "children", 6),
    (["--helpers", "3"], "helpers", 3),
    (["--arena", "3MiB"], "arena", 3 << 20),
    (["--scratch", "5KiB"], "scratch", 5 << 10),
    (["--window", "9"], "window", 9),
    (["--threads", "2"], "threads", 2),
    (["--devices", "cpu"], "devices", ["cpu"]),
    (["--gpu-memory", "1GiB"], "gpu_memory", 1 << 30),
    (["--huge-pages"], "huge_pages", True),
    (["--prefault"], "prefault", True),
]


def test_the_doctor_examines_the_launch_that_its_flags_describe(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(doctor, "examine", lambda plan: seen.append(plan) or [])
    for words, name, value in PLANNED:
        assert cli.main(["doctor", "--json"]) == 0
        plain = json.loads(capsys.readouterr().out)["plan"][name]
        assert cli.main(["doctor", "--json", *words]) == 0
        told = json.loads(capsys.readouterr().out)["plan"][name]
        assert told == value, words
        assert told != plain or name == "devices", words
        assert getattr(seen[-1], name) in (value, tuple(value) if name == "devices" else value)


def test_a_quiet_doctor_prints_only_what_is_not_fine(monkeypatch, capsys):
    findings = [
        doctor.Finding(group="g", name=status, status=status, sentence="so", fix="")
        for status in (doctor.OK, doctor.WARNING)
    ]
    monkeypatch.setattr(doctor, "examine", lambda plan: findings)
    for words, lines in [([], 2), (["--quiet"], 1), (["-q"], 1)]:
        assert cli.main(["doctor", *words]) == 0
        assert capsys.readouterr().out.count("  so") == lines


UP = [
    (["--helpers", "3"], "helpers", 3),
    (["--helpers", "a=1,b=2"], "helpers", {"a": 1, "b": 2}),
    (["--max-helpers", "4"], "max_helpers", 4),
    (["--devices", "cpu"], "devices", ["cpu"]),
    (["--arena", "3MiB"], "arena", 3 << 20),
    (["--max-children", "5"], "slots", 5),
    (["--window", "9"], "window", 9),
    (["--threads", "2"], "threads", 2),
    (["--gpu-memory", "1GiB"], "gpu_memory", 1 << 30),
    (["--session", "m:f"], "session", "m:f"),
    (["--path", "/p/b.sock"], "path", "/p/b.sock"),
    (["--group", "4711"], "group", 4711),
    (["--trust-group"], "trust_group", True),
    (["--quotas", "/q.toml"], "quotas_file", "/q.toml"),
    (["--idle-timeout", "2.5"], "idle_timeout", 2.5),
]


@pytest.mark.parametrize(("words", "name", "value"), UP)
def test_a_broker_is_started_as_the_flags_say(monkeypatch, capsys, words, name, value):
    started = []
    monkeypatch.setattr(daemon, "up", lambda modules, **given: started.append((modules, given)))
    assert cli.main(["up", "one.py", "two"]) == 0
    assert cli.main(["up", *words, "one.py", "two"]) == 0
    (_, plain), (modules, given) = started
    assert modules == ["one.py", "two"] and plain[name] != value and given[name] == value
    monkeypatch.setattr(
        spawn, "start", lambda modules, path, **given: started.append((path, given))
    )
    assert cli.main(["up", "--detach", *words, "one.py"]) == 0
    path, given = started[-1]
    assert (str(path) if name == "path" else given[name]) == value
    assert "a broker serves at" in capsys.readouterr().out


def test_what_programs_are_given_is_of_the_public_types():
    with shmgpu.init(inline=True, arena="1MiB") as session:
        assert type(session) is shmgpu.Session
        assert type(echo.submit(1)) is shmgpu.CallFuture
    assert issubclass(shmgpu.CallCancelled, shmgpu.ShmError)
    assert type(core.error_of(core.ECANCELLED, "echo")) is shmgpu.CallCancelled


def test_a_status_has_a_name_and_a_sentence():
    for status in range(-40, 1):
        name, text = shmgpu.status_name(status), shmgpu.status_text(status)
        assert name and text and name != text
    assert shmgpu.status_name(0) == "SHM_OK" and "no such status" not in shmgpu.status_text(0)
