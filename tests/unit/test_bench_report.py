"""The page and the plots of a kept run, curves in the table, and the plots of the figures' page."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))

from benchmarks import cli  # noqa: E402
from benchmarks.measure import environment  # noqa: E402
from benchmarks.measure.figures import Asked, Curve, Point, Row  # noqa: E402
from benchmarks.reporting import compare, highlights, plots, report, results, table  # noqa: E402
from benchmarks.reporting.charts import charts_of  # noqa: E402


def draws(test):
    """Mark a test that draws; matplotlib keeps the fonts open that it has read once."""
    needs_matplotlib = pytest.mark.skipif(not plots.available(), reason=plots.MISSING)
    return needs_matplotlib(pytest.mark.leaks_ok("matplotlib keeps its fonts open")(test))


SIZES = Curve("time by size", "bytes")
LOAD = Curve("p99 by load", "offered load")
RELAY = Curve("rate by children", "children")
SIMULATED = Curve("rate by service", "service time, us")


def row(name, value, unit="us", baseline=None, its=None, at=None, asked=None, notes=()):
    """A row whose spreads are a tenth to either side; ``at`` is (curve, x, series)."""
    ratio = value / its if value is not None and its else None
    numbers = {"value": value, "baseline_value": its, "ratio": ratio}
    spread = {key: (0.9 * n, 1.1 * n) for key, n in numbers.items() if n is not None}
    judged = value if baseline is None else ratio
    met = Asked.parse(asked).met_by(judged) if asked and judged is not None else None
    point = at and Point(*at)
    return Row(name, value, unit, baseline, its, ratio, spread, asked, met, 7, notes, point)


ROWS = [
    row("calls.rate", 48e3, "1/s", "ZeroMQ", 13e3, asked=">= 3.5"),
    row("calls.rate_fifo", 48e3, "1/s", "a | b", 60e3, asked=">= 1"),
    row("calls.rate_zeromq_copy", 48e3, "1/s", "ZeroMQ (copy)", 12e3),
    row("calls.rate_gone", None, "1/s", "Gone", notes=("Gone skipped: gone is not installed",)),
    *[
        row(f"payload.{n}_{peer}", 28.0, "us", peer, n / 100, (SIZES, n, "shmgpu"))
        for n in (64, 1 << 20, 256 << 20)
        for peer in ("ZeroMQ", "Queue")
    ],
    *[
        row(f"batching.{n}_{series}", 4.0 * n, "ms", at=(LOAD, n, series))
        for n in (0.5, 2.0)
        for series in ("batched", "one by one")
    ],
    *[
        row(f"messages.{n}_{w}", 9e4 * w, "1/s", "relay", 1e5 * w, (RELAY, n, f"window {w}"))
        for n in (1, 32)
        for w in (1, 16)
    ],
    row("simulate.fast", 93e3, "1/s", "measured", 100e3, (SIMULATED, 10, "predicted")),
    row("simulate.slow", 1020, "1/s", "measured", 1000, (SIMULATED, 1000, "predicted")),
    row("simulate.large", 5e5, "1/s", at=(Curve("large box", "children"), 1000, "predicted")),
    row("simulate.p99", 2.2, "ms", "measured", 2.0),
    row("simulate.cost", 3.0),
]


@pytest.fixture
def kept(tmp_path):
    file = tmp_path / "run.json"
    described = {**environment.describe(), "load_average": [0.0, 0.0, 0.0], "cpu": "Abacus 1"}
    file.write_text(results.as_json(ROWS, described, False, 1.0))
    return file


def chart(name):
    return next(chart for chart in charts_of(ROWS) if chart.curve.name == name)


def test_rows_of_one_curve_become_lines():
    payload = chart("time by size")
    assert [line.name for line in payload.lines] == ["shmgpu", "ZeroMQ", "Queue"]
    assert payload.xs == [64, 1 << 20, 256 << 20]
    mark = payload.line("ZeroMQ").marks[1 << 20]
    assert mark.value == (1 << 20) / 100
    assert mark.spread == (0.9 * mark.value, 1.1 * mark.value)


def test_a_baseline_that_each_series_has_of_its_own_is_a_line_for_each():
    lines = chart("rate by children").lines
    beside = {line.name: line.beside for line in lines if line.baseline}
    assert beside == {"relay (window 1)": "window 1", "relay (window 16)": "window 16"}


def test_a_baseline_that_is_a_series_too_is_one_line():
    rows = [
        row("w.a", 1.0, baseline="single", its=4.0, at=(LOAD, 1, "batched")),
        row("w.b", 4.0, at=(LOAD, 1, "single")),
        row("w.c", 2.0, baseline="single", its=8.0, at=(LOAD, 2, "batched")),
    ]
    (drawn,) = charts_of(rows)
    assert [line.name for line in drawn.lines] == ["batched", "single"]
    assert {x: mark.value for x, mark in drawn.line("single").marks.items()} == {1: 4, 2: 8}


def test_of_too_many_lines_the_best_configuration_of_each_is_drawn():
    settings = [("Ours, a", 1), ("Ours, b", 2), *((f"Theirs ({n})", 9 - n) for n in range(7))]
    rows = [row(f"w.{name}", cost, at=(SIZES, 64, name)) for name, cost in settings]
    # It is the best of the small sizes only, because it cannot carry the large ones.
    rows.append(row("w.large", 5.0, at=(SIZES, 1 << 20, "Theirs (6)")))
    (full,) = charts_of(rows)
    assert [line.name for line in report.drawable(full).lines] == ["Ours, a", "Theirs (6)"]
    (rates,) = charts_of([row(f"w.{n}", v, "1/s", at=(SIZES, 64, n)) for n, v in settings])
    assert [line.name for line in report.drawable(rates).lines] == ["Ours, b", "Theirs (0)"]


def test_few_lines_are_all_drawn():
    sizes = chart("time by size")
    assert report.drawable(sizes) is sizes


def test_one_curve_in_two_units_is_two_charts():
    rows = [row("w.a", 1.0, "us", at=(LOAD, 1, "s")), row("w.b", 1.0, "1/s", at=(LOAD, 1, "s"))]
    first, second = charts_of(rows)
    assert (first.unit, second.unit) == ("us", "1/s")
    assert len(set(report.file_names([first, second]))) == 2


def test_the_table_shows_a_curve_as_a_block_and_not_as_rows():
    text = table.curves_of(ROWS)
    assert "payload.64_ZeroMQ" not in text
    heading, rule, *lines = text[text.index("payload: time by size [us]") :].splitlines()[1:8]
    assert re.split(r"\s{2,}", heading.strip())[:2] == ["bytes", "64 B"]
    assert re.split(r"\s{2,}", heading.strip())[-1] == "256 MiB"
    assert set(rule) == {"-", " "}
    names = [re.split(r"\s{2,}", line)[:2] for line in lines]
    assert names[0] == ["shmgpu", "28"] and ["shmgpu / ZeroMQ", "43.750"] in names
    assert table.what_is_said(ROWS).count("Gone skipped: gone is not installed") == 1


def test_a_table_fits_the_width_whatever_its_rows_are_called():
    curve = Curve("time by size", "bytes")
    rows = [
        row(
            f"work.a_figure_with_a_long_name_{n}",
            n * 1e6,
            "us",
            baseline=who,
            its=2e6,
            asked="<= 1.2",
        )
        for n in (1, 2)
        for who in ("a peer with all that it was configured with (said in full)", "another")
    ]
    points = [
        row(f"work.{x}_{name}", float(x), "us", at=(curve, x, name), baseline="base", its=2.0)
        for x in (2**n for n in range(6, 40))
        for name in ("one", "another of a long name (its configuration)")
    ]
    text = f"{table.lines_of(rows)}\n\n{table.curves_of(points)}"
    assert max(map(len, text.splitlines())) <= table.WIDTH
    for wanted in (
        "against another 2,000,000:",
        "another of a long name (its configuration)",
        "512 GiB",
    ):
        assert wanted in text


def test_all_that_was_skipped_for_one_reason_is_one_line():
    rows = [row(f"w.{who}", None, notes=(f"{who} skipped: ray is not installed",)) for who in "abc"]
    assert table.what_is_said(rows) == "a, b, c skipped: ray is not installed"
    assert table.lines_of(rows) == table.curves_of(rows) == ""


def test_a_point_with_a_target_stands_among_the_figures_too():
    wanted = row("w.point", 1.0, baseline="B", its=2.0, at=(LOAD, 1, "s"), asked="<= 0.6")
    lines = table.lines_of([wanted]).splitlines()
    assert lines[2].startswith("w.point") and lines[2].endswith("yes")


@pytest.mark.parametrize(
    ("x", "quantity", "text"),
    [
        (64, "bytes", "64 B"),
        (256 << 20, "payload bytes", "256 MiB"),
        (1536, "bytes", "1.5 KiB"),
        (4096, "children", "4,096"),
    ],
)
def test_a_place_on_an_axis_is_said_in_its_quantity(x, quantity, text):
    assert table.place(x, quantity) == text


@draws
def test_the_report_is_a_page_with_a_picture_for_every_curve(kept, tmp_path, capsys):
    folder = tmp_path / "page"
    assert cli.main(["report", str(kept), "--to", str(folder)]) == 0
    assert "report.md" in capsys.readouterr().out
    page = (folder / "report.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page)
    assert sorted(shown) == sorted(f"plots/{p.name}" for p in (folder / "plots").iterdir())
    assert len(shown) == len(charts_of(ROWS)) == 5
    for name in shown:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.rglob("*.partial"))


def section(page, title):
    return page.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.fixture
def page(kept):
    result = results.load(kept)
    return report.page_of(result, charts_of(result.rows), {})


def test_the_page_says_what_was_measured_on(page):
    assert "| processor | Abacus 1 |" in section(page, "Environment")
    assert "quick" not in page


def test_the_page_shows_every_target_beside_what_was_measured(page):
    asked = section(page, "What was asked")
    assert "1 of 2 targets are met, 1 missed." in asked
    assert "| `calls.rate` | ZeroMQ | >= 3.5 | 3.692 | 3.323 .. 4.062 |" in asked
    assert "**0.800**" in asked


def test_a_name_with_a_bar_breaks_no_table(page):
    (line,) = [line for line in section(page, "calls").splitlines() if "rate_fifo" in line]
    assert len(re.findall(r"(?<!\\)\|", line)) == len(report.HEADINGS) + 1


def test_the_page_shows_prediction_beside_measurement(page):
    predicted = section(page, "Prediction beside measurement")
    assert "Off by 7 % at most, by 4 % on average of 2." in predicted
    assert "| 10: `simulate.fast` | 93,000 | 100,000 | -7.0 % |" in predicted
    assert "| `simulate.p99` | 2.2 | 2 | +10.0 % |" in predicted
    assert "| `simulate.cost` | 3 | us |" in predicted
    assert "| 1,000 | 500,000 |" in predicted  # a box that nobody has measured
    assert "\n## simulate" not in page


def test_predictions_that_are_rows_of_their_own_are_compared_too():
    rows = [
        row("simulate.p", 90.0, at=(SIMULATED, 10, "predicted")),
        row("simulate.m", 100.0, at=(SIMULATED, 10, "measured")),
    ]
    result = results.Result(tuple(rows), {}, False)
    page = report.page_of(result, charts_of(rows), {})
    assert "Off by 10 % at most" in page and "| 10 | 90 | 100 | -10.0 % |" in page


def test_the_page_says_what_is_missing_and_why(page):
    assert "- calls.rate_gone: Gone skipped: gone is not installed" in page


def test_a_quick_run_on_a_busy_machine_is_called_that():
    described = {"load_average": [9.0, 9.0, 9.0], "cores_allowed": 2}
    page = report.page_of(results.Result((), described, True), [], {})
    assert "**A quick run**" in page and "The machine is busy" in page


def test_without_matplotlib_the_page_has_its_tables(kept, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots, "available", lambda: False)
    assert cli.main(["report", str(kept), "--to", str(tmp_path / "page")]) == 0
    assert plots.MISSING in capsys.readouterr().err
    page = (tmp_path / "page" / "report.md").read_text()
    assert "![" not in page and "| 256 MiB | 28 |" in page
    assert cli.main(["plots", str(kept), "--to", str(tmp_path / "plots")]) == 2
    assert plots.MISSING in capsys.readouterr().err


def test_the_lines_of_a_chart_can_be_told_apart():
    looks = plots.looks(chart("rate by children").lines)
    assert len({(look["color"], look["linestyle"]) for look in looks}) == len(looks)
    # A baseline beside one series has its colour and is dashed.
    assert [look["color"] for look in looks[:2]] == [look["color"] for look in looks[2:]]
    assert [look["linestyle"] for look in looks] == ["-", "-", "--", "--"]


@pytest.mark.parametrize(
    ("places", "values", "log"),
    [((1, 2), (3, 4), "xy"), ((0, 2), (3, 4), "y"), ((1, 2), (0, 4), "x")],
)
def test_no_axis_with_a_zero_is_logarithmic_so_that_no_point_is_lost(places, values, log):
    points = zip(places, values, strict=True)
    (drawn,) = charts_of([row(f"w.{x}", y, at=(Curve("c", "x"), x, "s")) for x, y in points])
    assert plots.logarithmic(drawn) == log


@draws
@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_a_chart_is_drawn_whatever_its_axes_and_numbers(log, tmp_path):
    curve = Curve("odd", "x", log)
    rows = [row("w.lone", 5.0, at=(curve, 3, "lone")), row("w.gone", None, at=(curve, 9, "gone"))]
    rows += [row(f"w.{x}", 0.0, at=(curve, x, "zero")) for x in (0, 1, 2)]
    (odd,) = charts_of(rows)
    plots.draw(odd, tmp_path / "odd.png")
    assert (tmp_path / "odd.png").stat().st_size > 1000


def test_the_bars_are_ours_and_each_peer_s_the_fastest_first():
    bars = highlights.rate_bars(ROWS)
    named = [(bar.name, bar.value, bar.ours) for bar in bars]
    assert named == [("a | b", 60e3, False), ("shmgpu", 48e3, True), ("ZeroMQ", 13e3, False)]


def test_the_bars_were_taken_together_and_not_in_groups_minutes_apart():
    """A machine that was twice as fast meanwhile must not double what we are ahead."""
    quiet = [row("calls.rate", 180e3, "1/s", "ZeroMQ", 60e3, asked=">= 3.5")]
    peers = {"ZeroMQ (proxy)": 45e3, "ZeroMQ (direct)": 50e3, "Pipe (bare bytes)": 110e3}
    busy = [row(f"calls.rate_{n}", 120e3, "1/s", *peer) for n, peer in enumerate(peers.items())]
    bars = highlights.rate_bars([*quiet, *busy])
    assert [(bar.name, bar.value) for bar in bars] == [
        ("shmgpu", 120e3),
        ("Pipe", 110e3),
        ("ZeroMQ", 50e3),
    ]


@draws
def test_the_front_page_s_plots_are_small_pictures(kept, tmp_path, capsys):
    folder = tmp_path / "plots"
    assert cli.main(["plots", str(kept), "--to", str(folder)]) == 0
    files = {path.name: path for path in folder.iterdir()}
    assert set(files) == {picture.file for picture in highlights.PICTURES}
    assert max(path.stat().st_size for path in files.values()) < 80_000


@draws
def test_a_plot_without_rows_is_left_as_it_is(tmp_path, capsys):
    folder = tmp_path / "plots"
    folder.mkdir()
    (folder / "batching.png").write_bytes(b"from an earlier run")
    file = tmp_path / "calls.json"
    file.write_text(results.as_json(ROWS[:2], {}, False))
    assert cli.main(["plots", str(file), "--to", str(folder)]) == 0
    assert "batching.png is left as it is: calls.json lacks" in capsys.readouterr().out
    assert (folder / "batching.png").read_bytes() == b"from an earlier run"
    assert {path.name for path in folder.iterdir()} == {"calls.png", "batching.png"}


def test_the_latest_full_run_is_taken_before_a_later_quick_one(tmp_path):
    for name, day, quick in (("a", 1, False), ("b", 2, False), ("c", 3, True)):
        described = {"time": f"2026-01-0{day}"}
        (tmp_path / f"{name}.json").write_text(results.as_json([], described, quick))
    assert highlights.latest(tmp_path).path.name == "b.json"
    (tmp_path / "a.json").unlink()
    (tmp_path / "b.json").unlink()
    assert highlights.latest(tmp_path).path.name == "c.json"
    (tmp_path / "c.json").unlink()
    with pytest.raises(results.ResultError, match="holds no result"):
        highlights.latest(tmp_path)


def test_a_run_that_was_stopped_early_is_not_the_latest_and_is_called_that(tmp_path):
    for name, day, stopped in (("whole", 1, False), ("part", 2, True)):
        text = results.as_json(ROWS, {"time": f"2026-01-0{day}"}, False, stopped=stopped)
        (tmp_path / f"{name}.json").write_text(text)
    assert highlights.latest(tmp_path).path == tmp_path / "whole.json"
    part = results.load(tmp_path / "part.json")
    assert "stopped early" in report.page_of(part, [], {})
    whole = results.load(tmp_path / "whole.json")
    assert any("stopped early" in warning for warning in compare.differences(whole, part))


@draws
def test_labels_of_an_axis_do_not_touch():
    places = [10, 30, 100, 1000, 4000, 10_000, 20_000]
    labels = [table.number(place) for place in places]
    assert plots.apart(places, labels) == [10, 30, 100, 1000, 4000, 20_000]
    assert plots.apart([8], ["8"]) == [8]


def test_the_results_kept_in_the_tree_can_be_read():
    for path in highlights.RESULTS.glob("*.json"):
        assert results.load(path).rows


def test_the_environment_has_the_version_of_every_peer():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[^\w-]", text)[0] for text in extras["optional-dependencies"]["bench"]}
    assert wanted - {"matplotlib", "tqdm"} <= set(environment.PACKAGES)  # which measure nothing
