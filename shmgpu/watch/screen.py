"""The screen of ``shmgpu top``, in textual.

Owns the terminal: widgets, keys, and when a sample is taken. :mod:`shmgpu.watch.tables` says what
is shown of a sample. A table draws only the lines in sight, so a thousand children cost no more
than a screenful. Never touches a broker except through a monitor.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Sparkline, Static

from shmgpu.errors import ShmError
from shmgpu.watch import monitor, tables
from shmgpu.watch.follower import Follower

HISTORY = 120  # samples in a sparkline
GAP = 2  # cells between columns


def run(found: monitor.RunningBroker, pid: int | None, interval: float) -> None:
    """Show that broker until q is pressed; after its end the next one, unless ``pid`` was named."""
    Top(found, follow=pid is None, interval=interval).run()


class RowsView(ScrollView, can_focus=True):
    """One table: a heading that stays, and the rows in sight."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"rows--heading", "rows--sorted", "rows--bad"}
    DEFAULT_CSS = """
    RowsView { height: 1fr; scrollbar-size-horizontal: 0; padding: 0 1; }
    RowsView > .rows--heading { color: $text-muted; text-style: bold; }
    RowsView > .rows--sorted { color: $primary; text-style: bold; }
    RowsView > .rows--bad { color: $error; }
    RowsView:focus { background: $boost; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort(1)", "sort by the next column"),
        Binding("S", "sort(-1)", "by the one before", show=False),
        Binding("r", "reverse", "reverse"),
        Binding("tab", "app.focus_next", "next table"),
    ]

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self.table: tables.TextTable | None = None
        self.rows: list[tables.Row] = []
        self.sorted_by = -1
        self.is_reversed = False
        self._widths: dict[str, int] = {}  # by heading

    def show(self, table: tables.TextTable, rows: list[tables.Row]) -> None:
        """Show those rows, sorted as before."""
        if self.sorted_by < 0:
            self.sorted_by = table.column(table.sorted_by)
        self.table = table
        self.rows = table.arrange(rows, self.sorted_by, self.is_reversed)
        for column in table.columns:
            self._widths.setdefault(column.heading, len(column.heading))
        width = sum(self._widths[column.heading] + GAP for column in table.columns)
        self.virtual_size = Size(width, len(rows) + 1)
        self.refresh()

    def action_sort(self, step: int) -> None:
        """Sort by another column."""
        if self.table is not None:
            self.sorted_by = (self.sorted_by + step) % len(self.table.columns)
            self.is_reversed = False
            self.show(self.table, self.rows)

    def action_reverse(self) -> None:
        """Turn the order round."""
        if self.table is not None:
            self.is_reversed = not self.is_reversed
            self.show(self.table, self.rows)

    def render_line(self, y: int) -> Strip:
        """The heading, or the row that is in sight there."""
        width, index = self.size.width, self.scroll_offset.y + y - 1
        if self.table is None or (y > 0 and index >= len(self.rows)):
            return Strip.blank(width, self.rich_style)
        segments = self._heading(self.table) if y == 0 else self._row(self.table, self.rows[index])
        left = self.scroll_offset.x
        return Strip(segments).crop_extend(left, left + width, self.rich_style).simplify()

    def _heading(self, table: tables.TextTable) -> list[Segment]:
        falls = table.columns[self.sorted_by].falls != self.is_reversed
        segments = []
        for index, column in enumerate(table.columns):
            is_sorted = index == self.sorted_by
            arrow = ("▼" if falls else "▲") if is_sorted else ""
            name = "rows--sorted" if is_sorted else "rows--heading"
            style = self.rich_style + self.get_component_rich_style(name, partial=True)
            segments.append(self._cell(column, column.heading, style, arrow))
        return segments

    def _row(self, table: tables.TextTable, row: tables.Row) -> list[Segment]:
        style = self.rich_style
        if table.is_bad(row):
            style += self.get_component_rich_style("rows--bad", partial=True)
        return [self._cell(column, column.text(row), style) for column in table.columns]

    def _cell(self, column: tables.Column, text: str, style: Style, mark: str = "") -> Segment:
        # A column grows with what it has shown, and does not shrink: nothing jumps about.
        self._widths[column.heading] = width = max(self._widths[column.heading], len(text))
        cell = text.ljust(width) if column.left else text.rjust(width)
        return Segment(cell + mark.ljust(GAP), style)


class Top(App[None]):
    """The whole screen.

    Args:
        found: the broker to begin with.
        follow: after its end, go over to the next broker that runs.
        interval: seconds between samples.
    """

    ENABLE_COMMAND_PALETTE = False
    TITLE = "shmgpu top"
    CSS = """
    #headline { height: auto; max-height: 4; padding: 0 1; text-style: bold; }
    #history { height: 3; padding: 0 1; }
    #history Vertical { width: 1fr; margin-right: 2; }
    #history Sparkline { height: 2; }
    #history Sparkline > .sparkline--min-color { color: $primary; }
    #history Static { color: $text-muted; height: 1; }
    #models { height: auto; max-height: 10; margin-top: 1; }
    #helpers { height: auto; max-height: 10; margin-top: 1; }
    #functions { height: auto; max-height: 10; margin-top: 1; }
    #children { margin-top: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p,space", "pause", "pause"),
    ]

    def __init__(
        self, found: monitor.RunningBroker, follow: bool = True, interval: float = 1.0
    ) -> None:
        super().__init__()
        self.follower = Follower(found, follow)
        self.interval = interval
        self.sample: dict[str, Any] | None = None
        self.is_paused = False
        self.shown = 0  # brokers so far
        self.rates: deque[float] = deque(maxlen=HISTORY)
        self.queues: deque[float] = deque(maxlen=HISTORY)

    def compose(self) -> ComposeResult:
        """Headline, sparklines, tables, keys."""
        yield Static("", id="headline", markup=False)
        with Horizontal(id="history"):
            with Vertical():
                yield Static("calls/s", id="rates-label", markup=False)
                yield Sparkline([], id="rates")
            with Vertical():
                yield Static("queued", id="queues-label", markup=False)
                yield Sparkline([], id="queues")
        yield RowsView("models")
        yield RowsView("helpers")
        yield RowsView("functions")
        yield RowsView("children")
        yield Footer()

    def on_mount(self) -> None:
        """Take the first sample, and set the pace."""
        self.query_one("#children", RowsView).focus()
        self.step()
        self.set_interval(self.interval, self.step)

    def on_unmount(self) -> None:
        """Let go of the broker."""
        self.follower.close()

    def action_pause(self) -> None:
        """Pause or continue."""
        self.is_paused = not self.is_paused
        self._head()

    def step(self) -> None:
        """Take a sample and show it; after a broker's end, look for the next."""
        if self.is_paused:
            return
        try:
            sample = self.follower.step()
        except ShmError as error:
            self.notify(f"{error}", severity="error", markup=False)
            return
        if sample is None:
            return
        if self.shown != self.follower.brokers:
            self.shown = self.follower.brokers
            self.rates.clear()
            self.queues.clear()
        self.sample = sample
        with suppress(NoMatches):  # it is closing: parts of the screen end before the timer does
            self._show(sample)

    def _show(self, sample: dict[str, Any]) -> None:
        self.rates.append(sample["rates"]["answered"])
        self.queues.append(tables.queue(sample))
        self._head()
        for name, history in (("rates", self.rates), ("queues", self.queues)):
            # The zero is the foot of the scale; without it a steady load would look like a storm.
            self.query_one(f"#{name}", Sparkline).data = [0.0, *history]
        label = f"calls/s, at most {tables.rate(max(self.rates))}"
        self.query_one("#rates-label", Static).update(label)
        label = f"queued, at most {tables.count(max(self.queues))}"
        self.query_one("#queues-label", Static).update(label)
        self.query_one("#models", RowsView).display = bool(sample["models"])
        for table in tables.tables(sample):
            self.query_one(f"#{table.name}", RowsView).show(table, tables.rows_of(sample, table))

    def _head(self) -> None:
        if self.sample is None:
            return
        first, second = tables.headline(self.sample)
        if not self.sample["running"]:
            second = "it has ended: these are its last counts; waiting for the next"
        if self.is_paused:
            second = f"paused  {second}"
        self.query_one("#headline", Static).update(f"{first}\n{second}")
