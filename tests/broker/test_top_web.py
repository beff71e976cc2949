"""``shmgpu top --serve`` and ``--web``: a page for people, and metrics for Prometheus."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import types

import pytest
from broker.test_top import CALLS, CHILDREN, HELPERS, idle, wait_for  # noqa: F401
from prometheus_client.parser import text_string_to_metric_families

from shmgpu.cli import main as cli
from shmgpu.errors import ConfigError, LaunchError
from shmgpu.watch import follower, monitor, web


@pytest.fixture(scope="module")
def page(idle):  # noqa: F811
    """The command beside a broker: where it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shmgpu", "top", str(idle.pid), "--web", "--interval", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = process.stdout.readline()
        found = re.fullmatch(r"shmgpu top: http://(127\.0\.0\.1:\d+)/, and metrics at .*\n", said)
        assert found, said
        wait_for(lambda: json.loads(ask(found[1], "/view.json")[2])["points"], "a sample")
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        process.stdout.close()


def ask(address, path, method="GET", **headers):
    connection = http.client.HTTPConnection(address, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def test_the_page_has_figures_and_what_a_terminal_shows(page):
    status, headers, body = ask(page, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert (
        b"<title>shmgpu top</title>" in body and b"http" not in body
    )  # nothing comes from elsewhere
    view = json.loads(ask(page, "/view.json")[2])
    assert view["running"] and view["headline"][0].startswith("broker ")
    assert f"{CHILDREN} of {CHILDREN} children" in view["headline"][1]
    shown = {one["name"]: one for one in view["tables"]}
    assert len(shown["helpers"]["rows"]) == HELPERS
    assert len(shown["children"]["rows"]) == CHILDREN
    point = view["points"][-1]
    assert set(point["busy"]) == {f"helper {number}" for number in range(HELPERS)}
    assert point["calls"] >= 0 and 0 <= point["arenas"]["fullest"] <= 1


def test_later_points_alone_are_sent_to_who_has_the_earlier_ones(page):
    first = json.loads(ask(page, "/view.json")[2])["points"]

    def later():
        return json.loads(ask(page, f"/view.json?since={first[-1]['time']}")[2])["points"]

    points = wait_for(later, "a later sample")
    assert all(point["time"] > first[-1]["time"] for point in points)
    assert ask(page, "/view.json?since=never")[0] == 400


def test_what_prometheus_reads_are_the_brokers_counters(page):
    status, headers, body = ask(page, "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=")
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert found["shmgpu_calls_total",] == CHILDREN * CALLS
    assert found["shmgpu_calls_failed_total",] == CHILDREN
    assert found["shmgpu_children", "running"] == CHILDREN
    assert found["shmgpu_helpers", "ready"] == HELPERS
    assert found["shmgpu_bytes_total", "marshalled"] == 0
    assert found["shmgpu_queued",] == 0
    assert sum(name[0] == "shmgpu_helper_busy_seconds_total" for name in found) == HELPERS


def test_only_looking_is_answered_and_only_by_this_machines_name(page):
    assert ask(page, "/", "HEAD")[2] == b""
    assert ask(page, "/", "POST")[0] == 501
    assert ask(page, "/../secret")[0] == 404
    for host in ("evil.example", "evil.example:80", "[nonsense"):
        assert ask(page, "/view.json", Host=host)[0] == 403
    for host in ("localhost", "127.0.0.1:1", "[::1]:80"):
        assert ask(page, "/view.json", Host=host)[0] == 200


@pytest.mark.parametrize("path", ["/", "/view.json", "/absent"])
def test_a_browser_keeps_no_answer_and_lets_it_do_nothing_else(page, path):
    headers = ask(page, path)[1]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Content-Security-Policy"] == web.POLICY
    assert headers["Server"].strip() == "shmgpu-top"


def test_what_is_not_installed_or_not_there_yet_is_a_sentence():
    nothing = types.SimpleNamespace(
        metrics=None, drawing=None, figures=types.SimpleNamespace(sample=None)
    )
    for answer, package in ((web._metrics, "prometheus_client"), (web._drawing, "plotly")):
        status, kind, body = answer(nothing, "")
        assert (status, kind) == (501, "text/plain")
        assert body.startswith(f"This needs {package}: pip install".encode())
    nothing.metrics = object()
    assert web._metrics(nothing, "") == (503, "text/plain", b"No sample has been taken yet.\n")


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("localhost", True),
        ("LOCALHOST:80", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("[fe80::1]:80", True),
        ("::1:80", False),  # which may be either
        ("me.example", True),
        ("Me.Example:80", True),
        ("you.example", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_a_name_is_ours_where_it_is_this_machines(host, ours):
    server = types.SimpleNamespace(host="Me.example")
    assert web.PageServer.is_ours(server, host) == ours


def test_the_script_that_draws_comes_from_here(page):
    pytest.importorskip("plotly")
    status, headers, body = ask(page, "/plotly.js")
    assert (status, headers["Content-Type"]) == (200, "text/javascript")
    assert b"plotly.js v" in body[:200]


@pytest.mark.slow
def test_a_browser_draws_it(page, tmp_path):
    pytest.importorskip("plotly")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no Chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"]
    done = subprocess.run(
        [browser, *flags, "--virtual-time-budget=4000", "--dump-dom", f"http://{page}/"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert '<h1 id="first">broker ' in done.stdout, done.stderr
    assert done.stdout.count("<caption>") == 2  # helpers and children: nothing is called now
    assert done.stdout.count('class="main-svg"') >= 5
    assert done.stdout.count("legendtext") >= 2 + 2 + HELPERS + 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8000", ("127.0.0.1", 8000)),
        (":8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
        ("host:", None),
        ("host:65535", ("host", 65535)),
        ("host:65536", None),
        ("::1:80", None),
        ("", None),
    ],
)
def test_addresses(text, expected):
    if expected is not None:
        assert web.parse_address(text) == expected
        return
    with pytest.raises(ConfigError):
        web.parse_address(text)


def test_an_empty_address_is_none(idle, capsys):  # noqa: F811
    assert cli.main(["top", str(idle.pid), "--serve", ""]) == 1
    assert "'' is no address" in capsys.readouterr().err


def test_a_taken_address_is_a_sentence(page, idle):  # noqa: F811
    (found,) = [one for one in monitor.find() if one.pid == idle.pid]
    with pytest.raises(LaunchError, match="cannot be listened at: Address already in use"):
        web.PageServer(found, True, 1.0, page)


def test_connections_have_an_end(page, monkeypatch, idle):  # noqa: F811
    """A few who say nothing keep nobody else out for good."""
    (found,) = [one for one in monitor.find() if one.pid == idle.pid]
    monkeypatch.setattr(web, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(web.Handler, "timeout", 0.2)
    with web.PageServer(found, True, 1.0, "0") as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        address = server.server_address
        silent = [socket.create_connection(address[:2]) for _ in range(6)]
        host = f"{address[0]}:{address[1]}"

        def answered():
            try:
                return ask(host, "/view.json")[0] == 200
            except (OSError, http.client.HTTPException):
                return time.sleep(0.01)

        wait_for(answered, "an answer")
        for one in silent:
            one.close()
        server.shutdown()
        thread.join()


def test_another_broker_begins_the_figures_anew():
    figures = web.Figures()
    assert figures.view(0)["headline"] == [web.WAITING, ""]
    sample = {
        "time": 1.0,
        "rates": {"answered": 2.0, "failed": 0.0},
        "broker": {"queued": 1, "in_flight": 2, "arena_bytes": 100},
        "helpers": [],
        "children": [{"arena_used_bytes": 50}, {"arena_used_bytes": 0}],
        "functions": [
            {
                "name": "f",
                **{
                    f"{kind}_{which}_us": 1000.0
                    for kind in ("queued", "service")
                    for which in ("p50", "p99")
                },
            }
        ],
    }
    for time_s in (1.0, 2.0):
        figures.add({**sample, "time": time_s}, 1)
    assert [point["time"] for point in figures.points] == [1.0, 2.0]
    assert figures.points[0]["arenas"] == {"fullest": 0.5, "mean": 0.25}
    assert figures.points[0]["latency"] == {"f": [2.0, 2.0]}
    figures.add({**sample, "time": 3.0}, 2)
    assert [point["time"] for point in figures.points] == [3.0]


def test_a_follower_of_one_broker_waits_for_that_one(idle, monkeypatch):  # noqa: F811
    (found,) = [one for one in monitor.find() if one.pid == idle.pid]
    watching = follower.Follower(found, follow=False)
    assert watching.step()["pid"] == idle.pid and watching.brokers == 1
    watching.close()
    monkeypatch.setattr(monitor, "find", list)
    assert watching.step() is None and not watching.is_watching
    watching.close()
