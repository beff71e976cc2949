"""Watching: a forgery is refused, absent brokers are said to be absent, numbers read well."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import numpy as np
import pytest

from shmgpu import core
from shmgpu.cli import main as cli
from shmgpu.errors import NotRunning, ShmError
from shmgpu.watch import monitor, server_counters, tables, top, trace

SEALED = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.fixture
def forge():
    """Makes a memory file that is named as a scoreboard."""
    made = []

    def make(content, seals):
        descriptor = os.memfd_create("shmgpu-scoreboard", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        made.append(descriptor)
        os.write(descriptor, content)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor

    yield make
    for descriptor in made:
        os.close(descriptor)


def found(pid, started_ns=1):
    return monitor.RunningBroker(pid, 9, f"python {pid}.py", 4, 2, started_ns)


@pytest.mark.parametrize(
    ("content", "seals", "why"),
    [
        (bytes(1 << 20), 0, "not sealed"),
        (bytes(1 << 20), fcntl.F_SEAL_SHRINK, "not sealed"),
        (b"", SEALED, "too short"),
        (b"shmgpuB\0", SEALED, "too short"),
        (bytes(1 << 20), SEALED, "does not begin"),
        (b"shmgpuB\0" + bytes(1 << 20), SEALED, "another version"),
        (b"shmgpuB\0" + b"\xff" * (1 << 20), SEALED, "another version"),
    ],
    ids=["unsealed", "may-grow", "empty", "only-magic", "zeros", "magic-zeros", "magic-ones"],
)
def test_a_forged_scoreboard_is_refused_with_the_reason(forge, content, seals, why):
    descriptor = forge(content, seals)
    with pytest.raises(ShmError, match=why):
        monitor.Monitor(os.getpid(), descriptor)


def test_what_is_no_memory_file_is_refused():
    reading, writing = os.pipe()
    try:
        with pytest.raises(ShmError, match="no memory file"):
            monitor.Monitor(os.getpid(), reading)
        with pytest.raises(NotRunning, match="cannot be read"):
            monitor.Monitor(os.getpid(), 1 << 20)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_process_that_holds_a_forgery_is_named_when_nothing_else_runs(monkeypatch):
    code = (
        "import os; os.write(os.memfd_create('shmgpu-scoreboard'), bytes(4096));"
        "print('made', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"made\n"
        everything = list(monitor._scoreboards())
        assert holder.pid in [pid for pid, _ in everything]
        own = [(pid, descriptor) for pid, descriptor in everything if pid == holder.pid]
        monkeypatch.setattr(monitor, "_scoreboards", lambda: iter(own))
        with pytest.raises(ShmError, match=rf"process {holder.pid}: .*not sealed"):
            monitor.find()
        holder.stdin.write(b"\n")


def test_only_the_process_that_the_scoreboard_names_is_its_parent():
    assert monitor._is_parent(os.getpid(), os.getpid())
    assert not monitor._is_parent(os.getpid(), os.getppid())
    assert not monitor._is_parent(os.getpid(), 0)  # a broker that has not begun yet


def test_without_a_broker_the_command_says_so_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(monitor, "find", list)
    assert cli.main(["top", "--once"]) == 1
    assert capsys.readouterr().err.startswith("shmgpu: you have no broker running: start one")
    assert cli.main(["top", "4711", "--once", "--json"]) == 1
    assert "process 4711 is not a broker's parent" in capsys.readouterr().err


def test_of_several_brokers_one_must_be_named(monkeypatch, capsys):
    monkeypatch.setattr(monitor, "find", lambda: [found(101), found(202)])
    assert cli.main(["top", "--once"]) == 1
    said = capsys.readouterr().err
    assert "2 brokers are running: name one, as in shmgpu top 101" in said
    assert "101.py" in said and "202.py" in said
    assert top.choose(202).pid == 202
    with pytest.raises(NotRunning, match="brokers run in 101, 202"):
        top.choose(303)


def test_the_only_broker_needs_no_name(monkeypatch):
    monkeypatch.setattr(monitor, "find", lambda: [found(101)])
    assert top.choose(None).pid == 101


def test_json_is_for_one_sample(capsys):
    assert cli.main(["top", "--json"]) == 1
    assert "add --once" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["top", "me"], ["top", "--interval", "0"], ["top", "1", "2"]]
)
def test_wrong_arguments_end_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


def test_the_screen_without_textual_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shmgpu.watch.screen", None)
    monkeypatch.delattr("shmgpu.watch.screen", raising=False)
    assert cli.main(["top"]) == 1
    assert "pip install '.[top]' in a checkout of shmgpu, or add --once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (tables.count(0), "0"),
        (tables.count(99_999), "99,999"),
        (tables.count(100_000), "100k"),
        (tables.count(12_345_678), "12.3M"),
        (tables.rate(None), "-"),
        (tables.rate(0), "0"),
        (tables.rate(3.21), "3.2"),
        (tables.rate(1234.5), "1,234"),
        (tables.duration(None), "-"),
        (tables.duration(0), "0 us"),
        (tables.duration(0.4), "0.4 us"),
        (tables.duration(85), "85 us"),
        (tables.duration(999.9), "1.0 ms"),
        (tables.duration(1234), "1.2 ms"),
        (tables.duration(3_500_000), "3.5 s"),
        (tables.size(0), "0 B"),
        (tables.size(1536), "1.5 KiB"),
        (tables.size(64 << 20), "64 MiB"),
        (tables.size(1 << 50), "1024 TiB"),
        (tables.clock(3725), "1:02:05"),
        (tables.clock(90061), "1d 1:01:01"),
        (tables.bar(0.5), "━━━━╌╌╌╌  50%"),
        (tables.bar(7), "━━━━━━━━ 100%"),
    ],
)
def test_numbers_read_well(shown, text):
    assert shown == text


def test_rows_without_a_value_sort_last_in_either_direction():
    column = tables.Column("x", lambda row: "", lambda row: row["x"])
    table = tables.TextTable("t", (column,), "x", lambda row: False)
    rows = [{"x": None}, {"x": 1}, {"x": 3}, {"x": 2}]
    assert [row["x"] for row in table.arrange(rows)] == [3, 2, 1, None]
    assert [row["x"] for row in table.arrange(rows, reverse=True)] == [1, 2, 3, None]


class Watched(monitor.Monitor):
    """A broker whose counters and whose clock are what a test says."""

    def __init__(self, monkeypatch):
        self.pid, self.command = os.getpid(), "python x.py"
        self._path, self._file, self._counters = "", (0, 0), None
        self._models, self._names, self._last, self._last_ns = {}, {7: "add"}, None, 0
        self._next_record = 0
        self.now_ns, self.records = 0, np.zeros(0, monitor.RECORD)
        self.counts = {"answered": 0, "busy_ns": 0}
        monkeypatch.setattr(monitor.time, "monotonic_ns", lambda: self.now_ns)
        monkeypatch.setattr(monitor, "stats", self._stats)
        monkeypatch.setattr(monitor.core, "read_trace_bytes", self._read)

    def _stats(self):
        answered = self.counts["answered"]
        child = {"state": 1, "submitted": answered + 3, "answered": answered, "dropped": 1}
        helper = {"state": 2, "busy_ns": self.counts["busy_ns"], "collective_wait_ns": 0}
        broker = {"started_ns": 10**9, "trace_written": self.written, "answered": answered}
        return {
            "broker": broker,
            "children": [child, {**child, "state": 0}],
            "helpers": [helper],
            "bytes": {},
            "mean_batch": 1.0,
        }

    def _read(self, first, limit):
        self.asked = first, limit
        return first + limit, self.records[len(self.records) - limit :].tobytes()

    @property
    def written(self):
        return self._next_record + len(self.records)


def test_rates_are_of_the_time_since_the_last_sample_and_at_first_since_the_start(monkeypatch):
    watched = Watched(monkeypatch)
    watched.now_ns, watched.counts = 5 * 10**9, {"answered": 8, "busy_ns": 10**9}
    first = watched.sample()
    assert (first["interval_s"], first["uptime_s"]) == (4.0, 4.0)
    assert first["rates"]["answered"] == first["children"][0]["rates"]["answered"] == 2.0
    assert first["helpers"][0]["busy"] == 0.25
    watched.now_ns, watched.counts = 7 * 10**9, {"answered": 9, "busy_ns": 4 * 10**9}
    second = watched.sample()
    assert (second["interval_s"], second["uptime_s"]) == (2.0, 6.0)
    assert second["rates"]["answered"] == second["children"][0]["rates"]["answered"] == 0.5
    assert second["helpers"][0]["busy"] == 1.0, "a long call counts when it ends"
    third = watched.sample()  # within the same nanosecond
    assert third["interval_s"] > 0 and third["rates"]["answered"] == 0.0


def test_what_is_out_is_counted_of_children_that_are_there(monkeypatch):
    children = Watched(monkeypatch).sample()["children"]
    assert [one["outstanding"] for one in children] == [2, 0]
    assert [one["child"] for one in children] == [0, 1]


def call(helper=0, function=7, batch=1, queued=1000, handed=3000, units=(0, 2), **more):
    one = np.zeros(1, monitor.RECORD)
    one["helper"], one["function"], one["batch"] = helper, function, batch
    one["queued_ns"], one["handed_ns"] = queued, handed
    one["started_units"], one["finished_units"] = units
    for name, value in more.items():
        one[name] = value
    return one


def test_calls_are_told_by_function_from_the_trace(monkeypatch):
    watched = Watched(monkeypatch)
    watched.now_ns = 3 * 10**9
    watched.records = np.concatenate([
        call(), call(batch=2, status=1), call(batch=2), call(function=9, helper=1),
        call(function=9, helper=core.NO_HELPER, handed=0),
        *(call(function=8, helper=h, members=6) for h in (1, 2)),  # one call of two helpers
    ])  # fmt: skip
    monkeypatch.setattr(monitor.core, "function_names", lambda: {7: "add", 8: "all"})
    told = {one["name"]: one for one in watched.sample()["functions"]}
    assert list(told) == ["add", "a function of C", "all"], "the most called first"
    assert (told["add"]["calls"], told["add"]["failed"], told["add"]["calls_per_s"]) == (3, 1, 1.5)
    assert told["add"]["calls_per_run"] == 1.5
    assert (told["add"]["queued_p50_us"], told["add"]["queued_p99_us"]) == (2.0, 2.0)
    assert told["add"]["service_p50_us"] == 2 * trace.UNIT_NS / 1e3
    assert told["a function of C"]["calls"] == 2
    assert told["all"]["calls"] == 1


def test_of_more_calls_than_are_read_each_stands_for_several(monkeypatch):
    watched = Watched(monkeypatch)
    watched.now_ns = 2 * 10**9
    monkeypatch.setattr(monitor, "MOST_RECORDS", 2)
    watched.records = np.concatenate([call()] * 6)
    (told,) = watched.sample()["functions"]
    assert watched.asked == (4, 2)
    assert (told["calls"], told["calls_per_s"]) == (6, 6.0)
    watched.records = np.concatenate([call()] * 2)
    watched.now_ns = 4 * 10**9
    (told,) = watched.sample()["functions"]
    assert watched.asked == (6, 2), "from where the last sample ended"
    assert (told["calls"], told["calls_per_s"]) == (2, 1.0)


def test_a_counter_that_begins_anew_has_no_negative_rate():
    assert monitor._rates({"answered": 3, "pid": 9}, {"answered": 9, "pid": 1}, 2.0) == {
        "answered": 0.0
    }


def test_a_parent_is_known_by_its_own_number_or_by_that_in_its_container(monkeypatch):
    status = f"Name:\tpython\nNSpid:\t{os.getpid()}\t7\n"
    monkeypatch.setattr(monitor.pathlib.Path, "read_text", lambda path: status)
    assert monitor._is_parent(5, 5)
    assert monitor._is_parent(5, 7) and not monitor._is_parent(5, 8)
    status = "Name:\tpython\n"
    assert not monitor._is_parent(5, 7)
    monkeypatch.undo()
    assert not monitor._is_parent(1 << 30, 7)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"python\0a.py\0", "python a.py"),
        (b"python\0a\nb\xff\0", "python a?b\ufffd"),
        (f"python\0-I\0{monitor.spawn.BOOTSTRAP}\0up\0m\0".encode(), "shmgpu up m"),
        (b"", ""),
    ],
)
def test_a_process_is_shown_by_its_command_line(monkeypatch, raw, shown):
    monkeypatch.setattr(monitor.pathlib.Path, "read_bytes", lambda path: raw)
    assert monitor._command(5) == shown


def test_a_process_that_is_gone_has_no_command_line():
    assert monitor._command(1 << 30) == ""


def test_of_no_times_there_are_no_quantiles_and_of_others_in_microseconds():
    assert monitor._quantiles("queued", np.array([])) == {
        "queued_p50_us": None,
        "queued_p99_us": None,
    }
    found = monitor._quantiles("queued", np.array([-1.0, 1000.0, 2000.0]))
    assert found["queued_p50_us"] == 1.0 and found["queued_p99_us"] == pytest.approx(1.98)


def test_calls_a_run_are_the_mean_over_runs():
    assert monitor._mean_run(np.array([], np.uint32)) is None
    assert monitor._mean_run(np.array([2, 2, 1], np.uint32)) == 1.5
    assert monitor._mean_run(np.array([0], np.uint32)) == 1


@pytest.mark.parametrize(("state", "name"), [(0, "a"), (1, "b"), (2, "2"), (-1, "-1")])
def test_a_state_that_has_no_name_is_a_number(state, name):
    assert monitor._name(("a", "b"), state) == name


# ---- what is scraped, and what is told of models ---------------------------------------------


def test_functions_are_scraped_in_seconds():
    pytest.importorskip("prometheus_client")
    from shmgpu.watch import exposition

    sample = {
        "functions": [
            {
                "name": "f",
                "calls_per_s": 12.5,
                "queued_p50_us": 3.0,
                "queued_p99_us": 2_500_000.0,
                "service_p50_us": None,
                "service_p99_us": None,
            }
        ]
    }
    found = {
        (one.name, *sorted(one.labels.items())): one.value
        for family in exposition.SampleMetrics(sample)._of_functions()
        for one in family.samples
    }
    name = ("function", "f")
    assert found == {
        ("shmgpu_function_calls_per_second", name): 12.5,
        ("shmgpu_function_queued_seconds", name, ("quantile", "0.5")): 3e-6,
        ("shmgpu_function_queued_seconds", name, ("quantile", "0.99")): 2.5,
    }  # and nothing of calls of which none has run


COUNTED = {
    "success_count": 10, "inference_count": 20, "fail_count": 2, "exec_count": 4,
    "exec_requests": 8, "success_ns": 10_000_000, "call_ns": 80_000_000, "input_ns": 1_000_000,
    "infer_ns": 12_000_000, "output_ns": 3_000_000, "pending_0": 3, "pending_1": 4,
}  # fmt: skip


def test_a_model_is_told_of_since_the_last_look():
    (row,) = server_counters.show({"m": COUNTED}, {}, 2.0)
    assert row == {
        "model": "m", "requests_per_s": 5, "inferences_per_s": 10, "failed_per_s": 1,
        "runs_per_s": 2, "requests": 10, "failed": 2, "pending": 7, "requests_per_run": 2,
        "request_us": 1000, "queue_us": 8000, "compute_us": 2000,
    }  # fmt: skip
    half = {name: value // 2 for name, value in COUNTED.items()}
    (later,) = server_counters.show({"m": COUNTED}, {"m": half}, 1.0)
    assert (later["requests_per_s"], later["requests"], later["pending"]) == (5, 10, 7)
    assert (later["request_us"], later["compute_us"]) == (1000, 2000)


def test_of_a_model_without_requests_no_time_is_told():
    (row,) = server_counters.show({"m": COUNTED}, {"m": COUNTED}, 2.0)
    assert {name for name, value in row.items() if value is None} == {
        "requests_per_run", "request_us", "queue_us", "compute_us",
    }  # fmt: skip
    less = {name: value - 1 for name, value in COUNTED.items()}  # read in the midst of counting
    (row,) = server_counters.show({"m": less}, {"m": COUNTED}, 2.0)
    assert row["requests_per_s"] == 0 and row["requests"] == 9
    assert server_counters.show({}, {"m": COUNTED}, 2.0) == []
