"""The benchmark harness: what it measures is checked by its logic, never by the clock."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks import cli  # noqa: E402
from benchmarks.measure import environment, harness, isolate, native  # noqa: E402
from benchmarks.measure.figures import (  # noqa: E402
    Asked,
    Figure,
    Group,
    Probe,
    ProbeFailed,
    Unavailable,
    Workload,
)
from benchmarks.measure.stage import Stage  # noqa: E402
from benchmarks.registry import WORKLOADS  # noqa: E402
from benchmarks.reporting import results, table  # noqa: E402
from benchmarks.workloads import allocator, load  # noqa: E402

ROW_KEYS = {"name", "value", "unit", "baseline", "baseline_value", "ratio", "spread"}


def scripted(name, numbers, unit="us", **more):
    """A probe that yields the given numbers one after the other."""
    left = iter(numbers)
    return Probe(name, lambda _amount: {"cost": next(left)}, {"cost": unit}, **more)


def pair(ours, theirs, asked=None, **more):
    figure = Figure("cost", ("A", "cost"), ("B", "cost"), asked)
    return Group("group", (scripted("A", ours), scripted("B", theirs)), (figure,), **more)


def only_row(group, rounds):
    samples = harness.measure(group, harness.Effort(0.0, rounds))
    return harness.row_of(group, group.figures[0], samples, "work.")


def test_the_ratio_is_the_median_of_the_rounds_own_ratios():
    # The machine doubles its speed between rounds: medians of values would give 20/40, 30/30...
    row = only_row(pair([10, 20, 300], [20, 40, 300]), 3)
    assert row.value == 20
    assert row.baseline_value == 40
    assert row.ratio == 0.5
    assert row.spread["ratio"] == (0.5, 1.0)


def test_the_probes_of_a_group_are_run_in_turn():
    order = []

    def probe(name):
        return Probe(name, lambda _amount: order.append(name) or {"cost": 1.0}, {"cost": "us"})

    figure = Figure("cost", ("A", "cost"))
    harness.measure(Group("g", (probe("A"), probe("B")), (figure,)), harness.Effort(0.0, 3))
    assert order == ["A", "B"] * 3


def test_the_spread_is_the_range_of_few_rounds_and_the_quartiles_of_five():
    assert harness.spread_of([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert harness.spread_of([5.0, 1.0, 2.0, 3.0, 4.0]) == (2.0, 4.0)


def test_a_ratio_to_zero_is_infinite_unless_both_are_zero():
    assert harness.ratios_of([0.0, 1.0], [0.0, 0.0]) == [1.0, math.inf]


@pytest.mark.parametrize(
    ("asked", "met"), [(">= 0.5", True), (">= 0.51", False), ("<= 0.5", True), ("< 0.5", False)]
)
def test_with_a_baseline_the_ratio_is_judged(asked, met):
    row = only_row(pair([1.0], [2.0], asked), 1)
    assert (row.asked, row.met) == (asked, met)


def test_without_a_baseline_the_value_is_judged():
    figure = Figure("cost", ("A", "cost"), asked="<= 60")
    group = Group("g", (scripted("A", [61.0]),), (figure,))
    assert only_row(group, 1).met is False


def test_nothing_measured_is_neither_met_nor_missed():
    group = pair([], [1.0], ">= 0.5")
    broken = Probe("A", lambda _amount: raise_(Unavailable("no such thing")), {"cost": "us"})
    row = only_row(Group("g", (broken, group.probes[1]), group.figures), 1)
    assert (row.value, row.baseline_value, row.ratio, row.met) == (None, 1.0, None, None)
    assert row.notes == ("A skipped: no such thing",)


def raise_(error):
    raise error


@pytest.mark.parametrize("asked", ["0.85", "=> 1", "about 3", ">= fast"])
def test_a_target_that_cannot_be_read_is_refused(asked):
    with pytest.raises(ValueError):
        pair([1.0], [1.0], asked)


def test_a_target_reads_back_as_it_was_written():
    assert str(Asked.parse(">=0.850")) == ">= 0.85"
    assert not Asked.parse("<= 1").met_by(math.nan)


def test_figures_of_different_units_are_not_compared():
    figure = Figure("cost", ("A", "cost"), ("B", "cost"))
    with pytest.raises(ValueError, match="compares us with ms"):
        Group("g", (scripted("A", []), scripted("B", [], unit="ms")), (figure,))


def test_a_figure_of_an_unknown_quantity_is_refused():
    with pytest.raises(ValueError, match="no quantity 'speed'"):
        Group("g", (scripted("A", []),), (Figure("speed", ("A", "speed")),))


def test_a_probe_whose_module_is_not_installed_is_skipped_with_a_word():
    group = pair([1.0], [])
    absent = scripted("B", [], needs=("no_such_module_anywhere",))
    row = only_row(Group("g", (group.probes[0], absent), group.figures), 1)
    assert row.value == 1.0
    assert row.notes == ("B skipped: no_such_module_anywhere is not installed",)


def test_a_probe_that_fails_late_gives_no_half_figure():
    numbers = iter([1.0])

    def run(_amount):
        try:
            return {"cost": next(numbers)}
        except StopIteration:
            raise ProbeFailed("it broke") from None

    figure = Figure("cost", ("A", "cost"))
    row = only_row(Group("g", (Probe("A", run, {"cost": "us"}),), (figure,)), 3)
    assert row.value is None
    assert row.notes == ("A failed: it broke",)


def test_a_probe_must_give_what_it_declares():
    probe = Probe("A", lambda _amount: {"other": 1.0}, {"cost": "us"})
    row = only_row(Group("g", (probe,), (Figure("cost", ("A", "cost")),)), 1)
    assert "declared" in row.notes[0]


def test_a_probe_that_is_told_its_seconds_gets_them():
    assert harness.calibrate(scripted("A", []), 1.5) == 1.5


def test_a_counted_probe_is_given_repetitions_that_fill_the_round():
    clock = [0.0]

    def run(count):
        clock[0] += 0.001 * count
        return {"cost": 1.0}

    probe = Probe("A", run, {"cost": "us"}, counted=True)
    count = harness.calibrate(probe, 1.0, lambda: clock[0])
    assert 1000 <= count <= 1300


def test_a_group_may_need_fewer_rounds_and_longer_ones():
    given = []
    probe = Probe("A", lambda seconds: given.append(seconds) or {"cost": 1.0}, {"cost": "us"})
    group = Group("g", (probe,), (Figure("cost", ("A", "cost")),), seconds=2.0, rounds=2)
    harness.measure(group, harness.Effort(0.1, 7))
    assert given == [2.0, 2.0]


def workload(group):
    return Workload("work", "something to do", (group,))


def test_the_json_has_the_environment_and_one_row_a_figure(tmp_path, capsys):
    file = tmp_path / "rows.json"
    group = pair([1.0, 2.0], [2.0, 4.0], "<= 0.6")
    options = ["work", "--rounds", "2", "--json", str(file)]
    assert cli.main(options, (workload(group),)) == 0
    document = json.loads(file.read_text())
    (row,) = document["rows"]
    assert row.keys() >= ROW_KEYS
    assert (row["name"], row["unit"], row["baseline"]) == ("work.cost", "us", "B")
    assert (row["value"], row["baseline_value"], row["ratio"]) == (1.5, 3.0, 0.5)
    assert row["spread"] == {"value": [1, 2], "baseline_value": [2, 4], "ratio": [0.5, 0.5]}
    assert (row["asked"], row["met"], row["rounds"]) == ("<= 0.6", True, 2)
    assert document["environment"]["cores"] >= 1
    assert not list(tmp_path.glob("*.partial"))
    printed = capsys.readouterr().out
    assert "work.cost" in printed and "yes" in printed


def test_an_infinite_ratio_still_makes_valid_json():
    row = only_row(pair([1.0], [0.0]), 1)
    assert row.ratio == math.inf
    assert json.loads(results.as_json([row], {}, quick=True))["rows"][0]["ratio"] is None


def test_the_command_fails_when_a_probe_failed(capsys):
    probe = Probe("A", lambda _amount: raise_(ProbeFailed("it broke")), {"cost": "us"})
    group = Group("g", (probe,), (Figure("cost", ("A", "cost")),))
    assert cli.main(["--rounds", "1"], (workload(group),)) == 1
    assert "A failed: it broke" in capsys.readouterr().out


def test_a_quick_run_begins_no_round_once_its_seconds_are_over_and_has_one_of_each_group():
    now = [0.0]

    def run(_amount):
        now[0] += 10
        return {"cost": 1.0}

    group = Group("g", (Probe("A", run, {"cost": "us"}),), (Figure("cost", ("A", "cost")),))
    for until, rounds in ((0.0, 1), (25.0, 3), (math.inf, 7)):
        now[0] = 0.0
        samples = harness.measure(group, harness.FULL, until=until, clock=lambda: now[0])
        assert len(samples.numbers["A", "cost"]) == rounds


def test_how_long_a_run_takes_is_said_from_one_that_was_kept_or_reckoned():
    group = pair([1.0], [2.0])
    work = workload(group)
    effort = harness.Effort(seconds=2.0, rounds=3)
    reckoned = 3 * len(group.probes) * (2.0 + cli.STARTING_S)
    kept = {"work.group": 500.0}
    assert cli.expected_s([work], effort, False, {}) == pytest.approx(reckoned)
    longer = replace(group, probes=(replace(group.probes[0], times=4.0), *group.probes[1:]))
    assert cli.expected_s([workload(longer)], effort, False, {}) == pytest.approx(reckoned + 18.0)
    assert cli.expected_s([work], effort, False, kept) == 500.0
    assert cli.expected_s([work], effort, True, kept) == work.quick_seconds
    assert (cli.in_words(40), cli.in_words(600)) == ("40 s", "10 min")


def test_rows_are_printed_when_their_group_is_done(capsys):
    shown = []

    def run(_amount):
        shown.append(capsys.readouterr().out)
        return {"cost": 1.0}

    groups = [
        Group(name, (Probe("A", run, {"cost": "us"}),), (Figure(name, ("A", "cost")),))
        for name in ("first", "second")
    ]
    work = Workload("work", "something to do", tuple(groups))
    assert cli.main(["--rounds", "1", "--seconds", "0.001"], (work,)) == 0
    before, after = "".join(shown), capsys.readouterr().out
    assert "It takes about" in shown[0]
    assert "work.first" in before and "work.second" not in before
    assert "work.second" in after and "work.first" not in after


def test_the_columns_of_the_table_are_aligned():
    rows = [only_row(pair([1.0], [2.0], asked), 1) for asked in ("<= 0.6", None)]
    heading, rule, *lines = table.lines_of(rows).splitlines()
    assert len({line.index("0.500") for line in lines}) == 1
    assert heading.index("baseline") == lines[0].index("B")
    assert set(rule) == {"-", " "}


def test_what_was_not_measured_is_a_note_and_not_a_line_of_dashes():
    probe = Probe("A", lambda _amount: raise_(Unavailable("no such thing here")), {"cost": "us"})
    group = Group("g", (probe,), (Figure("cost", ("A", "cost")), Figure("more", ("A", "cost"))))
    samples = harness.measure(group, harness.Effort(0.0, 1))
    rows = [harness.row_of(group, figure, samples, "work.") for figure in group.figures]
    rows = [*rows, only_row(pair([1.0], [2.0]), 1)]
    _heading, _rule, line = table.lines_of(rows).splitlines()
    (note,) = table.what_is_said(rows).splitlines()
    assert line.startswith("work.cost")
    assert note == "A skipped: no such thing here"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.12345, "0.1235"), (26.04, "26.04"), (1040000.4, "1,040,000")],
)
def test_numbers_are_printed_with_the_digits_that_matter(value, text):
    assert table.number(value) == text


def test_list_names_every_workload_and_measures_nothing(capsys):
    assert cli.main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name in ("messages", "calls", "attach", "payload", "load", "allocator", "launch"):
        assert f"{name}: " in printed


def test_list_of_a_name_has_every_figure_and_list_of_all_fits_a_few_screens(capsys):
    assert cli.main(["--list"]) == 0
    overview = capsys.readouterr().out
    assert "rate_window1 >= 0.85" in overview
    assert all(group.name in overview for work in WORKLOADS for group in work.groups)
    assert len(overview.splitlines()) < 120
    assert cli.main(["--list", "messages"]) == 0
    assert "rate_window1 [1/s], against relay, asked >= 0.85" in capsys.readouterr().out


def test_no_two_figures_have_one_name():
    names = [f"{w.name}.{f.name}" for w in WORKLOADS for g in w.groups for f in g.figures]
    assert len(names) == len(set(names))


def test_a_name_may_choose_one_group_of_a_workload():
    (chosen,) = cli.select(["messages.window16"], WORKLOADS)
    assert [group.name for group in chosen.groups] == ["window16"]
    assert cli.select(["load", "load.4ms"], WORKLOADS) == cli.select(["load"], WORKLOADS)


def test_a_row_of_the_table_names_its_group():
    (chosen,) = cli.select(["messages.rate_over_window_2"], WORKLOADS)
    assert [group.name for group in chosen.groups] == ["window_2"]


def test_all_is_everything():
    assert cli.select(["all"], WORKLOADS) == list(WORKLOADS)


@pytest.mark.parametrize("name", ["mesages", "messages.window3"])
def test_an_unknown_name_is_answered_with_those_there_are(name, capsys):
    assert cli.main([name]) == 2
    assert "there is: " in capsys.readouterr().err


def test_a_command_that_was_mistyped_is_answered_with_the_commands(capsys):
    assert cli.main(["comapre", "a", "b"]) == 2
    assert "Commands are: compare, report, plots" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", "0"),
        ("--rounds", "-1"),
        ("--rounds", "many"),
        ("--seconds", "0"),
        ("--seconds", "nan"),
        ("compare", "a", "b", "--percent", "-1"),
    ],
)
def test_a_number_that_measures_nothing_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(list(words))
    assert ended.value.code == 2
    assert " is no " in capsys.readouterr().err


def test_a_run_that_could_not_be_kept_is_refused_before_it_is_measured(tmp_path, capsys):
    probe = Probe("A", lambda _amount: pytest.fail("it was measured"), {"cost": "us"})
    group = Group("g", (probe,), (Figure("cost", ("A", "cost")),))
    nowhere = tmp_path / "nowhere" / "rows.json"
    assert cli.main(["--json", str(nowhere)], (workload(group),)) == 2
    error = capsys.readouterr().err
    assert f"{nowhere} cannot be written: No such file" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_older_run_is_whole_while_the_next_one_is_measured(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("older")
    results.check_writable(file)
    assert file.read_text() == "older"
    results.save(file, "newer")
    assert file.read_text() == "newer"
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        results.check_writable(pipe)
        results.save(pipe, "rows")
        assert os.read(reader, 100) == b"rows"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_goes_on_naming_what_it_named(tmp_path):
    (tmp_path / "here").mkdir()
    link = tmp_path / "latest.json"
    link.symlink_to(tmp_path / "here" / "rows.json")
    results.save(link, "rows")
    assert link.is_symlink()
    assert (tmp_path / "here" / "rows.json").read_text() == "rows"


@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_what_was_measured_before_an_end_is_shown_and_kept(end, code, tmp_path, capsys):
    file = tmp_path / "rows.json"
    broken = Probe("C", lambda _amount: raise_(end), {"cost": "us"})
    after = Group("h", (broken,), (Figure("late", ("C", "cost")),))
    groups = (pair([1.0], [2.0]), after)
    works = (Workload("work", "something to do", groups),)
    assert cli.main(["--rounds", "1", "--json", str(file)], works) == code
    printed = capsys.readouterr()
    assert "work.cost" in printed.out
    assert "Stopped early, with 1 rows" in printed.err
    kept = results.load(file)
    assert kept.stopped
    assert [row.name for row in kept.rows] == ["work.cost"]


def test_an_end_before_the_first_group_keeps_an_older_file(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("older")
    broken = Probe("C", lambda _amount: raise_(KeyboardInterrupt()), {"cost": "us"})
    works = workload(Group("h", (broken,), (Figure("late", ("C", "cost")),)))
    assert cli.main(["--json", str(file)], (works,)) == 130
    assert file.read_text() == "older"


def test_a_reader_that_leaves_ends_the_command_without_a_traceback():
    listing = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "--list", "payload"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    listing.stdout.close()
    assert listing.stderr.read() == ""
    listing.stderr.close()
    assert listing.wait() == 128 + signal.SIGPIPE


def test_a_signal_ends_the_command_without_a_traceback():
    script = "import os, signal\nfrom benchmarks.measure import endings\n"
    script += "raise SystemExit(endings.run(lambda: os.kill(os.getpid(), signal.SIGINT)))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")


def test_the_environment_says_what_was_measured_on():
    described = environment.describe()
    assert {"cpu", "cores", "kernel", "python", "load_average", "commit", "container"} <= set(
        described
    )
    json.dumps(described)
    assert str(described["cores"]) in environment.summary(described)


def test_service_outside_the_measured_span_does_not_count_as_busy():
    intervals = [(0.0, 1.5), (1.5, 2.0), (2.5, 9.0), (9.0, 10.0)]
    assert load.busy_share(intervals, 1.0, 3.0, helpers=1) == pytest.approx(0.75)


def test_a_fresh_interpreter_returns_what_the_function_returned():
    value = isolate.call(
        "benchmarks.workloads.load:busy_share",
        30.0,
        intervals=[[0, 1]],
        began=0,
        ended=2,
        helpers=1,
    )
    assert value == 0.5


def test_a_function_that_raises_in_a_fresh_interpreter_is_a_failed_probe():
    with pytest.raises(ProbeFailed, match="ZeroDivisionError"):
        isolate.call(
            "benchmarks.workloads.load:busy_share", 30.0, intervals=[], began=0, ended=0, helpers=1
        )


def test_a_program_that_overruns_is_ended_with_all_it_forked():
    began = time.monotonic()
    with pytest.raises(ProbeFailed, match="did not end within"):
        native.run_text(["sh", "-c", "sleep 600 & wait"], 0.2)
    assert time.monotonic() - began < 60  # it hung neither on the program nor on its child


def test_a_lone_client_is_counted_and_timed():
    stage = Stage(clients=1, seconds=0.05)
    stage.start_clock()
    calls = []
    stage.drive(0, lambda: calls.append(1))
    result = stage.result()
    assert 0 < result["rate"] * 0.05 <= len(calls)
    assert result["median_us"] <= result["p99_us"]


def test_the_traces_sizes_can_be_told():
    for trace in allocator.traces():
        assert "allocations, p10" in allocator.distribution(trace)


needs_compiler = pytest.mark.skipif(
    shutil.which(native.compiler()) is None, reason="needs a C compiler"
)


@needs_compiler
@pytest.mark.parametrize("window", [1, 16])
def test_the_raw_relay_answers_every_child(window):
    relay = native.build("relay")
    sizes = ["--children", "4", "--helpers", "2", "--window", str(window)]
    result = native.run_json([relay, *sizes, "--seconds", "0.2"], 60.0)
    assert result["round_trips"] > 0
    assert 0 < result["least"] <= result["most"]
    assert result["rate"] == pytest.approx(result["round_trips"] / result["seconds"], rel=1e-3)
    assert "median_ns" not in result


@needs_compiler
def test_the_raw_relay_times_a_child_that_is_alone_among_idle_ones():
    sizes = ["--children", "8", "--active", "1", "--helpers", "1"]
    result = native.run_json([native.build("relay"), *sizes, "--seconds", "0.2"], 60.0)
    assert result["samples"] > 0
    assert 0 < result["median_ns"] <= result["p99_ns"]


@needs_compiler
def test_the_raw_relay_refuses_what_it_cannot_do():
    with pytest.raises(ProbeFailed, match="ended with 2"):
        native.run_json([native.build("relay"), "--window", "65"], 60.0)
