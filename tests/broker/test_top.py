"""``shmgpu top`` beside a real broker: what it says is so, and the broker notices nothing."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import pty
import select
import subprocess
import sys
import time

import pytest

from shmgpu.watch import exposition, monitor, screen, tables

CHILDREN, HELPERS, CALLS = 4, 2, 30
LIMIT_S = 30
PAGE = pathlib.Path(__file__).resolve().parents[2] / "shmgpu" / "watch" / "README.md"

BROKER = f"""
import json, os, sys, time
import shmgpu

folder = sys.argv[1]

until = time.monotonic() + 600  # where nobody is left to say "stop"

def there(name):
    return os.path.exists(os.path.join(folder, name))

@shmgpu.function(arrays="numpy")
def double(helper, x):
    return 2 * x

@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8))
def together(helper, x):
    return x + 1

@shmgpu.function(arrays="numpy")
def fail(helper, x):
    raise ValueError("meant")

def worker(rank):
    x = shmgpu.arena.zeros((1, 1000))
    for _ in range({CALLS} - 1):
        double(x)
    try:
        fail(x)
    except shmgpu.RemoteError:
        pass
    open(os.path.join(folder, f"answered{{rank}}"), "w").close()
    if rank == 0:
        while not all(there(f"answered{{one}}") for one in range({CHILDREN})):
            time.sleep(0.01)
        with open(os.path.join(folder, "new"), "w") as file:
            json.dump(shmgpu.stats(), file)
        os.rename(os.path.join(folder, "new"), os.path.join(folder, "stats"))
    while not there("stop") and time.monotonic() < until:
        if there("load"):
            double(x)
            together(x)
            time.sleep(0.002)  # the screen needs its share of the cores
        else:
            time.sleep(0.005)

shmgpu.launch(worker, children={CHILDREN}, helpers={HELPERS}, arena="1MiB")
open(os.path.join(folder, "over"), "w").close()
input()
"""


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)
    return value


class Broker:
    """A program that runs a broker in a process of its own; its phases are files."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "broker.py").write_text(BROKER)
        self.process = subprocess.Popen(
            [sys.executable, folder / "broker.py", folder], stdin=subprocess.PIPE
        )
        self.pid = self.process.pid

    def begin(self, phase):
        (self.folder / phase).touch()

    def wait(self, phase):
        wait_for((self.folder / phase).exists, phase)

    def end(self):
        self.begin("stop")
        self.process.communicate(b"\n", timeout=LIMIT_S)


def run_broker(folder):
    running = Broker(folder)
    try:
        running.wait("stats")
        yield running
    finally:
        running.end()


@pytest.fixture
def broker(tmp_path):
    """One for this test: it may be put under load and ended."""
    yield from run_broker(tmp_path)


@pytest.fixture(scope="module")
def idle(tmp_path_factory):
    """One for all tests that only look on."""
    yield from run_broker(tmp_path_factory.mktemp("idle"))


def command(*arguments, **kind):
    return subprocess.run(
        [sys.executable, "-m", "shmgpu.cli.main", "top", *map(str, arguments)],
        capture_output=True, text=True, timeout=60, **kind,
    )  # fmt: skip


def watch(broker):
    [own] = [one for one in monitor.find() if one.pid == broker.pid]
    return monitor.Monitor(own.pid, own.descriptor)


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.cold  # its command line is shown
def test_counts_are_those_that_the_broker_gives_its_children(idle):
    done = command(idle.pid, "--once", "--json", "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    sample = json.loads(done.stdout)
    own = json.loads((idle.folder / "stats").read_text())
    assert sample["pid"] == idle.pid
    assert sample["running"]
    assert "broker.py" in sample["command"]
    assert own["broker"]["answered"] == CHILDREN * CALLS
    assert own["broker"]["failed"] == CHILDREN
    # It was written by a child in the middle of its own work: the wakes may still move.
    assert without(sample["broker"], "wakes") == without(own["broker"], "wakes")
    for kind in ("children", "helpers"):
        for seen, counted in zip(sample[kind], own[kind], strict=True):
            # A helper counts a frame when it has been written, which its child may be ahead of.
            known = without(counted, "state", "frames_sent", "went_on", "goes_on", "busy_ns")
            assert known.items() <= seen.items()
    assert [row["state"] for row in sample["children"]] == ["running"] * CHILDREN
    assert [row["state"] for row in sample["helpers"]] == ["ready"] * HELPERS
    assert [row["outstanding"] for row in sample["children"]] == [0] * CHILDREN
    assert [row["queued"] for row in sample["children"]] == [0] * CHILDREN
    assert sample["bytes"] == own["bytes"]
    assert sample["rates"]["answered"] == 0  # of the interval, in which nothing happened
    assert sample["functions"] == []


def test_under_load_there_are_rates_and_latencies_by_function(broker):
    with watch(broker) as seen:
        first = seen.sample()
        broker.begin("load")
        assert {row["name"] for row in first["functions"]} >= {"double", "fail"}
        [failing] = [row for row in first["functions"] if row["name"] == "fail"]
        assert (failing["calls"], failing["failed"]) == (CHILDREN, CHILDREN)

        def loaded():
            sample = seen.sample()
            names = {row["name"] for row in sample["functions"]}
            return sample if names == {"double", "together"} else None

        sample = wait_for(loaded, "a sample with both functions")
    assert sample["rates"]["answered"] > 0
    assert any(row["rates"]["answered"] > 0 for row in sample["children"])
    assert any(0 < row["busy"] <= 1 for row in sample["helpers"])
    for row in sample["functions"]:
        assert 0 <= row["queued_p50_us"] <= row["queued_p99_us"]
        assert 0 < row["service_p50_us"] <= row["service_p99_us"]
        assert row["calls_per_run"] >= 1
        assert row["calls_per_s"] * sample["interval_s"] == pytest.approx(row["calls"], abs=1)


def test_a_print_out_needs_no_textual(idle):
    code = (
        "import sys; sys.modules['textual'] = None; from shmgpu.cli import main as cli;"
        f"sys.exit(cli.main(['top', '{idle.pid}', '--once', '--interval', '0.05']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"broker {idle.pid}  up ")
    assert f"{CHILDREN} of {CHILDREN} children" in done.stdout
    assert "arena of 1 MiB" in done.stdout


def parent_of(pid):
    try:
        stat = pathlib.Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return None  # somebody else's, which has ended
    return int(stat[stat.rindex(")") + 2 :].split()[1])


def scoreboard_holders():
    return {pid for pid, _ in monitor._scoreboards()}


def test_only_the_parent_holds_the_scoreboard(idle):
    with watch(idle) as seen:
        sample = seen.sample()
    roles = {row["pid"] for row in (*sample["children"], *sample["helpers"])}
    assert len(roles) == CHILDREN + HELPERS
    holders = scoreboard_holders()
    assert idle.pid in holders
    assert not roles & holders


def test_of_an_init_the_forked_parent_is_the_broker(tmp_path):
    code = (
        "import shmgpu\nwith shmgpu.init(helpers=1, arena='1MiB'):\n"
        "    print('ready', flush=True)\n    input()\nprint('over', flush=True)\ninput()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path
    ) as caller:
        assert caller.stdout.readline() == b"ready\n"
        assert caller.pid not in scoreboard_holders()
        [own] = [one for one in monitor.find() if parent_of(one.pid) == caller.pid]
        with monitor.Monitor(own.pid, own.descriptor) as seen:
            [child] = seen.sample()["children"]
            assert (child["pid"], child["state"]) == (caller.pid, "running")
            caller.stdin.write(b"\n")
            caller.stdin.flush()
            assert caller.stdout.readline() == b"over\n"
            assert not seen.is_running()
        caller.stdin.write(b"\n")


@pytest.mark.skipif(not PAGE.exists(), reason="the package's page is not here")
def test_every_key_is_on_the_page(broker):
    with watch(broker) as seen:
        sample = seen.sample()
    own = json.loads((broker.folder / "stats").read_text())
    assert sample["functions"]
    text = PAGE.read_text(encoding="utf-8")
    keys = {*sample, *sample["functions"][0]} - {*own}
    for kind in ("children", "helpers"):
        keys |= {*sample[kind][0]} - {*own[kind][0]}
    assert len(keys) > 15
    assert not [key for key in keys if f"`{key}`" not in text]


def test_the_broker_notices_nothing(idle):
    def traces():
        with open(f"/proc/{idle.pid}/maps") as maps:
            return os.listdir(f"/proc/{idle.pid}/fd"), maps.read()

    with watch(idle) as seen:
        wakes = seen.sample()["broker"]["wakes"]
        before = traces()
        for _ in range(2):
            assert command(idle.pid, "--once", "--interval", "0.01").returncode == 0
        assert seen.sample()["broker"]["wakes"] == wakes
    assert traces() == before


def test_a_process_watches_one_broker_at_a_time(idle):
    with watch(idle), pytest.raises(monitor.ShmError, match="already running"):
        watch(idle)
    first = watch(idle)
    first.close()
    with watch(idle) as second:
        first.close()  # which it has let go of already
        assert second.sample()["running"]


def test_an_ended_broker_is_known_to_have_ended_while_its_process_lives(broker):
    with watch(broker) as seen:
        assert seen.is_running()
        broker.begin("stop")
        broker.wait("over")
        assert broker.process.poll() is None
        assert not seen.is_running()
        last = seen.sample()
    assert not last["running"]
    assert last["broker"]["answered"] == CHILDREN * CALLS
    assert broker.pid not in [one.pid for one in monitor.find()]


# ---- the screen ------------------------------------------------------------------------------


def on_screen(broker, body, size=(120, 40)):
    """Run ``body(app, pilot)`` beside a headless screen."""

    async def run():
        [own] = [one for one in monitor.find() if one.pid == broker.pid]
        app = screen.Top(own, follow=False, interval=0.2)
        async with app.run_test(size=size) as pilot:
            await body(app, pilot)

    asyncio.run(run())


async def until(pilot, condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        await pilot.pause(0.02)


def shown(app, name):
    rows = app.query_one(f"#{name}", screen.RowsView)
    return [rows.render_line(y).text.rstrip() for y in range(rows.size.height)]


def test_the_screen_shows_the_rows_and_answers_keys(broker):
    broker.begin("load")

    async def body(app, pilot):
        await until(pilot, lambda: len(app.rates) >= 3, "a third sample")
        assert f"broker {broker.pid}" in str(app.query_one("#headline").render())
        assert "arena of 1 MiB" in shown(app, "children")[0]
        assert len([line for line in shown(app, "children")[1:] if "running" in line]) == CHILDREN
        assert len([line for line in shown(app, "helpers")[1:] if "ready" in line]) == HELPERS

        def has_double():  # not where nobody called it between two samples
            return any(line.split()[:1] == ["double"] for line in shown(app, "functions")[1:])

        await until(pilot, has_double, "a row of the function")

        children = app.query_one("#children", screen.RowsView)
        assert app.focused is children
        assert "calls/s▼" in shown(app, "children")[0]
        while children.sorted_by != 0:
            await pilot.press("s")
        assert [row["child"] for row in children.rows] == [0, 1, 2, 3]
        assert "child▲" in shown(app, "children")[0]
        await pilot.press("r")
        assert [row["child"] for row in children.rows] == [3, 2, 1, 0]
        assert shown(app, "children")[1].split()[0] == "3"
        await until(pilot, lambda: len(app.rates) >= 8, "more samples")
        assert [row["child"] for row in children.rows] == [3, 2, 1, 0]  # as it was left

        await pilot.press("tab")
        assert app.focused is not children
        await pilot.press("p")
        assert "paused" in str(app.query_one("#headline").render())
        sample = app.sample  # counting them would end at the length of the history
        await pilot.pause(0.3)
        assert app.sample is sample
        await pilot.press("space")
        await until(pilot, lambda: app.sample is not sample, "a sample after the pause")
        await pilot.press("q")

    on_screen(broker, body)


def test_the_screen_outlives_the_broker(broker):
    async def body(app, pilot):
        await until(pilot, lambda: app.sample is not None, "a sample")
        broker.begin("stop")
        broker.wait("over")
        await until(pilot, lambda: not app.follower.is_watching, "the end")
        headline = str(app.query_one("#headline").render())
        assert "ended after" in headline and "waiting for the next" in headline
        assert shown(app, "helpers")[1:]  # its last counts stay
        await pilot.pause(0.2)
        assert app.is_running

    on_screen(broker, body)


def test_a_screen_that_follows_goes_over_to_the_next_broker(broker, tmp_path, monkeypatch):
    (tmp_path / "next").mkdir()
    other = Broker(tmp_path / "next")
    try:
        other.wait("stats")
        boards = monitor._scoreboards
        ours = (broker.pid, other.pid)
        monkeypatch.setattr(
            monitor, "_scoreboards", lambda: (one for one in boards() if one[0] in ours)
        )

        async def body(app, pilot):
            app.follower.follow = True
            broker.begin("stop")
            broker.wait("over")
            await until(pilot, lambda: app.follower.found.pid == other.pid, "the other broker")
            await until(pilot, lambda: app.sample["pid"] == other.pid, "a sample of it")

        on_screen(broker, body)
    finally:
        other.end()


def test_of_a_thousand_children_only_those_in_sight_are_drawn(idle, monkeypatch):
    with watch(idle) as seen:
        sample = seen.sample()
    child = sample["children"][0]
    many = [{**child, "child": number, "pid": 100_000 + number} for number in range(1000)]
    sample["children"] = many
    drawn = []
    original = screen.RowsView._row

    def count(self, table, row):
        drawn.append(row.get("child"))
        return original(self, table, row)

    async def body(app, pilot):
        app.is_paused = True
        monkeypatch.setattr(screen.RowsView, "_row", count)
        drawn.clear()
        app._show(sample)
        await pilot.pause()
        children = app.query_one("#children", screen.RowsView)
        seen_now = {number for number in drawn if number is not None}
        assert 0 < len(seen_now) <= children.size.height
        children.scroll_end(animate=False)
        await until(pilot, lambda: 999 in drawn, "the last row")
        assert shown(app, "children")[-1].split()[0] == "999"
        assert shown(app, "children")[0].split()[0] == "child"  # the heading stays
        assert len({number for number in drawn if number is not None}) < 500

    on_screen(idle, body)


def test_a_narrow_screen_scrolls_sideways(idle):
    async def body(app, pilot):
        await until(pilot, lambda: app.sample is not None, "a sample")
        assert "restarts" not in shown(app, "children")[0]

        def at_the_right():
            app.query_one("#children", screen.RowsView).scroll_to(x=500, animate=False)
            return "restarts" in shown(app, "children")[0]

        await until(pilot, at_the_right, "the last column")

    on_screen(idle, body, size=(60, 40))


@pytest.mark.parametrize("gone", ["*", "#headline", "#children"])  # parts go one by one
def test_a_tick_of_the_clock_while_the_screen_closes_is_nothing(idle, gone):
    async def body(app, pilot):
        await until(pilot, lambda: app.sample is not None, "a sample")
        await app.screen.query(gone).remove()
        app.step()

    on_screen(idle, body)


def test_on_a_terminal_it_starts_and_quits_with_q(idle):
    controlling, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "shmgpu.cli.main", "top", str(idle.pid), "--interval", "0.1"],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    told = b""
    deadline = time.monotonic() + LIMIT_S
    try:
        while True:
            assert time.monotonic() < deadline, told[-2000:]
            if select.select([controlling], [], [], 0.1)[0]:
                try:
                    told += os.read(controlling, 65536)
                except OSError:
                    break  # the other end is closed
            if b"running" in told and b"quit!" not in told and process.poll() is None:
                os.write(controlling, b"q")
                told += b"quit!"
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controlling)
    assert b"\x1b[?1049h" in told  # the other page of the terminal,
    assert told.rindex(b"\x1b[?1049l") > told.rindex(b"\x1b[?1049h")  # and back
    assert b"Traceback" not in told


def test_what_a_print_out_leaves_out_is_counted(idle):
    with watch(idle) as seen:
        sample = seen.sample()
    sample["children"] = sample["children"] * 10
    text = tables.plain(sample)
    assert f"... and {10 * CHILDREN - tables.PLAIN_CHILDREN} more" in text


def test_a_paused_pool_is_told_wherever_a_broker_is_shown(idle):
    with watch(idle) as seen:
        sample = seen.sample()
    assert "paused" not in tables.plain(sample)
    sample["broker"]["paused_pools"] = 1
    text = tables.plain(sample)
    assert f"{HELPERS} of {HELPERS} helpers  1 pool paused: default  " in text
    assert text.count(" paused ") == HELPERS and " ready " not in text
    assert b'shmgpu_pool_paused{pool="default"} 1.0' in exposition.SampleMetrics(sample).text()


def test_places_that_no_child_has_had_are_not_shown(idle):
    with watch(idle) as seen:
        sample = seen.sample()
    sample["children"] += [{**sample["children"][0], "child": 40, "state": "unused"}]
    assert "unused" not in tables.plain(sample)
