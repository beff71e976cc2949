"""Two kept runs compared: what counts as a change, which way, and what is read at all."""

import dataclasses
import json
import random
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks import cli  # noqa: E402
from benchmarks.measure.environment import describe  # noqa: E402
from benchmarks.measure.figures import Curve, Point, Row  # noqa: E402
from benchmarks.measure.harness import FULL, QUICK, spread_of  # noqa: E402
from benchmarks.measure.units import BETTER  # noqa: E402
from benchmarks.registry import WORKLOADS  # noqa: E402
from benchmarks.reporting import compare, results  # noqa: E402
from benchmarks.reporting.compare import Change  # noqa: E402


def measured(numbers, unit="us", name="work.cost", **more):
    spread = {"value": spread_of(numbers)}
    return Row(name, statistics.median(numbers), unit, spread=spread, rounds=len(numbers), **more)


def beside(value, ratio, width=0.02, baseline="relay", unit="1/s", **more):
    """A row with a baseline, whose ratio spreads by ``width`` to either side."""
    spread = {"value": (value, value), "ratio": (ratio - width, ratio + width)}
    return Row("work.rate", value, unit, baseline, value / ratio, ratio, spread, **more)


def verdict(old, new, **more):
    return compare.judge(old, new, **more).verdict


STEADY = [99.0, 100.0, 100.0, 101.0, 101.0]


@pytest.mark.parametrize(
    ("unit", "factor", "expected"),
    [
        ("us", 1.3, Change.WORSE),
        ("us", 0.7, Change.BETTER),
        ("1/s", 1.3, Change.BETTER),
        ("1/s", 0.7, Change.WORSE),
        ("share", 0.7, Change.WORSE),
        ("MiB", 1.3, Change.WORSE),
    ],
)
def test_the_unit_says_which_way_is_better(unit, factor, expected):
    later = [factor * number for number in STEADY]
    assert verdict(measured(STEADY, unit), measured(later, unit)) is expected


def test_a_target_says_it_where_it_differs_from_the_unit():
    wanted_less = {"asked": "<= 0.1"}
    later = [1.3 * number for number in STEADY]
    old, new = (measured(numbers, "share", **wanted_less) for numbers in (STEADY, later))
    assert verdict(old, new) is Change.WORSE


def test_a_figure_may_be_wanted_the_other_way():
    later = [1.3 * number for number in STEADY]
    rows = [measured(numbers, "share", "batching.greedy_share") for numbers in (STEADY, later)]
    assert verdict(*rows) is Change.WORSE


def test_a_unit_that_nobody_declared_is_a_change_and_no_judgement():
    later = [1.3 * number for number in STEADY]
    assert verdict(measured(STEADY, "bogs"), measured(later, "bogs")) is Change.CHANGED


def test_every_unit_of_the_suite_has_a_direction():
    units = {group.unit_of(f.of) for w in WORKLOADS for group in w.groups for f in group.figures}
    undeclared = units - set(BETTER)
    assert not undeclared, f"say in units.BETTER whether more or less of {undeclared} is better"


def test_a_small_change_is_none_however_surely_measured():
    old, new = measured([100.0] * 7), measured([104.0] * 7)
    assert verdict(old, new) is Change.SAME
    assert verdict(old, new, least_change=0.03) is Change.WORSE


def test_a_large_change_within_the_noise_is_none():
    old = measured([80.0, 90.0, 100.0, 130.0, 160.0])
    new = measured([110.0, 125.0, 140.0, 150.0, 190.0])
    assert verdict(old, new) is Change.SAME


def test_quartiles_that_lie_just_apart_are_not_enough():
    old = measured([96.0, 97.0, 100.0, 103.0, 104.0])
    new = measured([102.0, 104.0, 107.0, 110.0, 111.0])
    assert old.spread["value"][1] < new.spread["value"][0]
    assert verdict(old, new) is Change.SAME


@pytest.mark.parametrize(("rounds", "alarms"), [(FULL.rounds, 0.003), (QUICK.rounds, 0.008)])
@pytest.mark.parametrize("noise", [0.02, 0.05, 0.15])
def test_a_thing_compared_with_itself_is_hardly_ever_called_changed(rounds, alarms, noise):
    dice = random.Random(7)

    def run():
        # Now and then a round is disturbed, and then always for the worse.
        late = [abs(dice.gauss(0, 4 * noise)) * (dice.random() < 0.15) for _ in range(rounds)]
        return measured([100 * (1 + dice.gauss(0, noise) + more) for more in late])

    pairs = 2000
    changed = sum(verdict(run(), run()) is not Change.SAME for _ in range(pairs))
    assert changed <= alarms * pairs


@pytest.mark.parametrize(("rounds", "found"), [(FULL.rounds, 0.99), (QUICK.rounds, 0.9)])
def test_a_third_more_is_found_on_a_machine_that_is_quiet(rounds, found):
    dice = random.Random(8)

    def run(level):
        return measured([level * (1 + dice.gauss(0, 0.03)) for _ in range(rounds)])

    pairs = 500
    worse = sum(verdict(run(100), run(133)) is Change.WORSE for _ in range(pairs))
    assert worse >= found * pairs


def test_the_ratio_is_judged_where_both_have_it():
    # The machine is half as fast today, and so is the baseline.
    comparison = compare.judge(beside(1000, 0.95), beside(500, 0.96))
    assert (comparison.verdict, comparison.of, comparison.unit) == (Change.SAME, "ratio", "")
    assert verdict(beside(1000, 0.95), beside(1000, 0.7)) is Change.WORSE


def test_ratios_to_different_baselines_are_not_compared():
    old, new = beside(1000, 0.95), beside(1000, 3.6, baseline="ZeroMQ")
    comparison = compare.judge(old, new)
    assert (comparison.verdict, comparison.of) == (Change.SAME, "value")


def test_numbers_of_different_units_are_not_compared():
    assert verdict(measured([1.0] * 5, "ms"), measured([1000.0] * 5, "us")) is Change.NEW


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (measured(STEADY), None, Change.MISSING),
        (None, measured(STEADY), Change.NEW),
        (measured(STEADY), Row("work.cost", None, "us"), Change.MISSING),
        (Row("work.cost", None, "us"), measured(STEADY), Change.NEW),
        (Row("work.cost", None, "us"), Row("work.cost", None, "us"), Change.SAME),
    ],
)
def test_what_one_run_lacks_is_said(old, new, expected):
    comparison = compare.judge(old, new)
    assert comparison.verdict is expected
    assert comparison.change is None


def test_from_nothing_to_something_is_a_change():
    comparison = compare.judge(measured([0.0] * 5, "ticks"), measured([3.0] * 5, "ticks"))
    assert comparison.verdict is Change.WORSE
    assert verdict(measured([0.0] * 5, "ticks"), measured([0.0] * 5, "ticks")) is Change.SAME


def test_rows_of_both_runs_are_listed_once_the_worst_first():
    old = [measured(STEADY, name="w.same"), measured(STEADY, name="w.slow")]
    old.append(measured(STEADY, name="w.gone"))
    later = [2 * number for number in STEADY]
    new = [measured(STEADY, name="w.same"), measured(later, name="w.slow")]
    comparisons = compare.compare(old, new)
    assert [item.name for item in comparisons] == ["w.same", "w.slow", "w.gone"]
    lines = compare.text(comparisons).splitlines()
    assert lines[2].startswith("w.slow") and "+100.0 %" in lines[2]
    assert lines[3].startswith("w.gone")
    assert lines[-1] == "3 rows: 1 worse, 1 same, 1 missing"
    assert "w.same" not in "\n".join(lines)
    assert "w.same" in compare.text(comparisons, everything=True)


def kept(path, rows, quick=False, **environment):
    path.write_text(results.as_json(rows, {**describe(), **environment}, quick, 1.0))
    return path


def test_the_command_prints_keeps_and_fails_only_if_told_to(tmp_path, capsys):
    later = [2 * number for number in STEADY]
    old = kept(tmp_path / "old.json", [measured(STEADY)])
    new = kept(tmp_path / "new.json", [measured(later)])
    words = ["compare", str(old), str(new)]
    assert cli.main(words) == 0
    printed = capsys.readouterr()
    assert "worse" in printed.out and printed.err == ""
    verdicts = tmp_path / "verdicts.json"
    assert cli.main([*words, "--fail-on-worse", "--json", str(verdicts)]) == 1
    (row,) = json.loads(verdicts.read_text())["rows"]
    assert (row["verdict"], row["change"], row["old"], row["new"]) == ("worse", 1.0, 100.0, 200.0)
    assert cli.main(["compare", str(new), str(old), "--fail-on-worse"]) == 0
    assert cli.main([*words, "--fail-on-worse", "--percent", "150"]) == 0


def test_runs_under_different_conditions_are_warned_of(tmp_path, capsys):
    old = kept(tmp_path / "old.json", [], cpu="Abacus 1", packages={"pyzmq": "25", "ray": None})
    new = kept(
        tmp_path / "new.json", [], True, cpu="Abacus 2", cores=99, python="9.9",
        packages={"pyzmq": "26", "ray": "2"}, time="later", load_average=[9.0], commit="other",
    )  # fmt: skip
    assert cli.main(["compare", str(old), str(new)]) == 0
    warnings = capsys.readouterr().err.splitlines()
    said = [line.partition("code: ")[2].partition(":")[0] for line in warnings]
    beside_quick = "a full run beside a quick run"
    assert said == [beside_quick, "processor", "cores", "Python", "pyzmq", "ray"]
    assert "Abacus 1 and now Abacus 2" in warnings[1]


def test_a_result_reads_back_as_it_was_written(tmp_path):
    point = Point(Curve("cost over size", "bytes", "x"), 64.0, "shmgpu")
    rows = (measured(STEADY, point=point, notes=("B skipped: no B",)), beside(5.0, 0.5))
    result = results.load(kept(tmp_path / "kept.json", rows, True))
    assert result.rows == rows
    assert result.quick and result.environment["cores"] >= 1


def test_a_run_from_before_there_were_curves_is_still_read(tmp_path):
    item = dataclasses.asdict(measured(STEADY))
    del item["point"]
    document = {"schema": 1, "quick": True, "environment": {}, "rows": [item]}
    file = tmp_path / "older.json"
    file.write_text(json.dumps(document))
    assert results.load(file).rows[0].point is None


GOOD = {"schema": 1, "quick": True, "environment": {}, "rows": []}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("# a page", "is not JSON"),
        ("[1, 2]", "is no result of this suite"),
        ('{"traceEvents": []}', "is no result of this suite"),
        (json.dumps({**GOOD, "schema": 2}), "has schema 2 and this suite reads 1"),
        (json.dumps({"schema": 1}), "is damaged"),
        (json.dumps({**GOOD, "rows": [{"name": "w.x"}]}), "is damaged"),
        (json.dumps({**GOOD, "rows": [{"name": "w", "value": "1", "unit": "s"}]}), "is damaged"),
        (json.dumps({**GOOD, "rows": 3}), "is damaged"),
        (json.dumps({**GOOD, "environment": None}), "is damaged"),
    ],
)
def test_a_file_that_is_no_result_is_one_sentence(text, said, tmp_path, capsys):
    file = tmp_path / "foreign.json"
    if text is not None:
        file.write_text(text)
    for words in (["compare", str(file), str(file)], ["report", str(file)]):
        assert cli.main(words) == 2
        error = capsys.readouterr().err
        assert said in error and str(file) in error
        assert len(error.splitlines()) == 1


def test_no_workload_hides_behind_a_command():
    assert not {workload.name for workload in WORKLOADS} & set(cli.COMMANDS)
