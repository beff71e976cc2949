"""What a timeline draws, and where: seen by a stand-in for matplotlib, which may be missing."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from shmgpu.watch import timeline, trace


class Axes:
    """Notes what is drawn."""

    def __init__(self):
        self.bars, self.arrows, self.said = {}, [], {}

    def broken_barh(self, spans, lane, facecolors):
        for span in spans:
            self.bars[span] = lane, facecolors

    def annotate(self, text, xy, xytext, arrowprops):
        assert text == "" and arrowprops["arrowstyle"] == "-|>"
        self.arrows.append((xytext, xy))

    def set_yticks(self, places, labels):
        self.said["lanes"] = dict(zip(places, labels, strict=True))

    def set_xlabel(self, text):
        self.said["x"] = text

    def set_title(self, text):
        self.said["title"] = text

    def margins(self, y):
        assert 0 < y < 1


class Figure:
    """The one that is made."""

    last: Figure

    def __init__(self, figsize, layout):
        self.size, self.axes, self.canvas = figsize, Axes(), None
        Figure.last = self

    def add_subplot(self):
        return self.axes

    def legend(self, handles, **how):
        self.handles = [(one.label, one.color) for one in handles]

    def savefig(self, path, format, dpi):
        assert self.canvas == "there"
        self.saved = path, format


def there(figure):
    figure.canvas = "there"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    for name, holds in {
        "matplotlib": {},
        "matplotlib.backends": {},
        "matplotlib.backends.backend_agg": {"FigureCanvasAgg": there},
        "matplotlib.figure": {"Figure": Figure},
        "matplotlib.patches": {"Patch": SimpleNamespace},
    }.items():
        module = ModuleType(name)
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)


def ran(helper, name, start_ms, length_ms, **more):
    return {"ph": "X", "pid": trace.HELPERS_PID, "tid": helper, "name": name,
            "ts": 1000 * start_ms, "dur": 1000 * length_ms, **more}  # fmt: skip


def test_each_helper_has_a_lane_and_each_run_a_bar_in_it(tmp_path):
    events = [
        ran(1, "seldom", 1.0, 0.5),
        ran(0, "often", 0.0, 3.0),
        ran(1, "often", 2.0, 3.5),
        ran(7, "MOVE", 4.0, 1.0, cat="move", args={"from": 1, "to": 2, "bytes": 12}),
    ]
    path = tmp_path / "a.png"
    assert timeline.draw(events, path, "a title") == 3
    figure, axes = Figure.last, Figure.last.axes
    assert figure.saved == (path, "png")
    assert axes.said["title"] == "a title" and axes.said["x"] == "milliseconds"
    lanes = axes.said["lanes"]
    assert [lanes[place] for place in sorted(lanes, reverse=True)] == [
        "helper 0", "helper 1", "helper 2",
    ]  # fmt: skip
    place = {label: at for at, label in lanes.items()}
    wanted = {(0.0, 3.0): ("helper 0", "C0"), (2.0, 3.5): ("helper 1", "C0"),
              (1.0, 0.5): ("helper 1", "C1")}  # fmt: skip
    assert axes.bars.keys() == wanted.keys()
    for span, (helper, colour) in wanted.items():
        (low, height), drawn = axes.bars[span]
        assert low + height / 2 == pytest.approx(place[helper]) and 0.5 < height < 1
        assert drawn == colour
    assert axes.arrows == [((4.0, place["helper 1"]), (5.0, place["helper 2"]))]
    assert figure.handles == [("often", "C0"), ("seldom", "C1"), ("MOVE (1)", "black")]
    assert 0.5 < timeline.LANE_INCHES < 1


def test_more_lanes_are_a_higher_picture(tmp_path):
    heights = []
    for helpers in (1, 2, 3):
        timeline.draw([ran(one, "f", 0.0, 1.0) for one in range(helpers)], tmp_path / "a.png")
        width, height = Figure.last.size
        heights.append(height)
        assert width == timeline.WIDTH_INCHES
    assert heights[1] - heights[0] == pytest.approx(timeline.LANE_INCHES)
    assert heights[2] - heights[1] == pytest.approx(timeline.LANE_INCHES)
    assert timeline.LANE_INCHES < heights[0] < 4 * timeline.LANE_INCHES


def test_of_many_names_the_busiest_have_a_colour_and_the_others_a_grey(tmp_path):
    count = timeline.MAX_NAMES + 2
    events = [ran(0, f"f{one}", 100.0 * one, 1.0 + one) for one in range(count)]
    timeline.draw(events, tmp_path / "a.png")
    figure = Figure.last
    busiest = [f"f{count - 1 - one}" for one in range(timeline.MAX_NAMES)]
    assert figure.handles == [
        *((name, f"C{place}") for place, name in enumerate(busiest)), ("2 others", "0.7"),
    ]  # fmt: skip
    colours = {start: colour for (start, _), (_, colour) in figure.axes.bars.items()}
    assert colours[0.0] == colours[100.0] == "0.7"
    assert colours[200.0] == f"C{timeline.MAX_NAMES - 1}"


def test_of_a_long_trace_the_last_runs_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MAX_BARS", 3)
    events = [ran(0, "f", float(one), 0.5) for one in range(5)]
    assert timeline.draw(events, tmp_path / "a.png") == 3
    assert sorted(start for start, _ in Figure.last.axes.bars) == [2.0, 3.0, 4.0]
