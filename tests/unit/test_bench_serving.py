"""The servers answer rightly what they are measured at, and the load is counted as it was."""

import contextlib
import importlib.util
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import grpcload, harness, httpload, isolate  # noqa: E402
from benchmarks.measure.figures import ProbeFailed, Unavailable  # noqa: E402
from benchmarks.peers.servers import ECHO, KINDS, PEERS, SHMGPU, find  # noqa: E402
from benchmarks.peers.servers.wires import HEADER_LENGTH, binary, raw  # noqa: E402
from benchmarks.workloads import paths, servers, serving  # noqa: E402

LIMIT_S = 100.0
PEERS_PAGE = ROOT / "benchmarks" / "peers" / "README.md"


def runnable(server, configuration):
    """A parameter that is skipped where the server is missing."""
    missing = [name for name in server.needs if importlib.util.find_spec(name) is None]
    if server.program and shutil.which(server.program) is None:
        missing.append(server.program)
    mark = pytest.mark.skipif(bool(missing), reason=f"{missing} not installed")
    return pytest.param(server.name, configuration, marks=mark, id=server.label(configuration))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "configuration"),
    [runnable(server, each) for server in (ECHO, *PEERS) for each in server.configurations],
)
def test_a_server_answers_rightly_and_is_measured(name, configuration):
    loads = ["1KiB_8", "600KiB"]
    result = isolate.call(
        "benchmarks.workloads.serving:serve",
        LIMIT_S,
        name=name,
        configuration=configuration,
        loads=loads,
        seconds=0.1,
    )
    assert {key: value > 0 for key, value in result.items()} == {
        f"{load} {quantity}": True for load in loads for quantity in serving.UNITS
    }


@pytest.mark.slow  # a server each, with wrk or without; tests/serve asks the same of one
@pytest.mark.parametrize("configuration", SHMGPU.configurations)
def test_shmgpu_serves_what_the_peers_do_and_shared_memory(configuration):
    for module in ("shmgpu._core", *SHMGPU.needs):
        pytest.importorskip(module)
    loads = ["1KiB_8", "600KiB", "600KiB_shared"]
    result = isolate.call(
        "benchmarks.workloads.serving:serve",
        LIMIT_S,
        name=SHMGPU.name,
        configuration=configuration,
        loads=loads,
        seconds=0.1,
    )
    assert all(result[f"{load} rate"] > 0 for load in loads)
    assert 0 < result[serving.WORKER_MIB] < 1000


@contextlib.contextmanager
def running_echo():
    configuration = ECHO.configurations[ECHO.best["lone"]]
    port = servers.free_port()
    command = [sys.executable, *ECHO.command, "--port", str(port)]
    pytest.importorskip("uvloop")
    pytest.importorskip("httptools")
    with servers.running(command, port, configuration.wire, ECHO.factor) as pid:
        yield port, pid, configuration.wire


@pytest.fixture(scope="module")
def echo():
    with running_echo() as given:
        yield given


@pytest.mark.parametrize("has_wrk", [False, True])
def test_the_load_is_made_by_wrk_or_else_by_python(monkeypatch, echo, has_wrk):
    if has_wrk and shutil.which("wrk") is None:
        pytest.skip("there is no wrk")
    if not has_wrk:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    assert ("Load by wrk" in httpload.preface()) == has_wrk
    assert ("Python program" in httpload.preface()) != has_wrk
    port, _, wire = echo
    load = httpload.drive(port, wire.write(np.ones(256, "float32")), 4, 1.0)
    assert load.rate > 0
    assert 0 < load.median_us <= load.p99_us


# As pip writes scripts: an interpreter's path may have a space in it, and no first line may.
LATE_ONCE = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import pathlib, signal, sys, time

mark = pathlib.Path(__file__ + "-was-here")
is_first = not mark.exists()
mark.touch()

def end(*_):
    print('{{"answered": 9, "seconds": 3, "median_us": 1, "p99_us": 2, "refused": 0, "broken": 0}}')
    sys.exit()

signal.signal(signal.SIGINT, signal.SIG_IGN if is_first else end)
print("ready", file=sys.stderr, flush=True)
while True:
    time.sleep(1)
"""


def test_a_load_that_was_told_to_end_before_it_had_begun_is_made_again(tmp_path, monkeypatch):
    wrk = tmp_path / "wrk"
    wrk.write_text(LATE_ONCE.format(python=sys.executable))
    wrk.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(httpload, "END_LIMIT_S", 0.5)
    load = httpload.drive(1, httpload.HttpRequest("/", b""), 1, 0.01)
    assert load == httpload.LoadResult(3.0, 1, 2)


def test_a_server_that_refuses_does_not_look_fast(echo):
    request = httpload.HttpRequest("/", b"", {"Transfer-Encoding": "nonsense"})
    with pytest.raises((ProbeFailed, OSError)):
        httpload.ask(echo[0], request)


def test_a_server_that_errs_in_one_item_is_found(echo):
    port, _, wire = echo
    servers.check(port, wire, np.ones(4, "float32"), 1)
    with pytest.raises(ProbeFailed, match="wrong answer"):
        servers.check(port, wire, np.ones(4, "float32"), 2)


def test_a_server_that_ends_at_once_fails_its_probe_with_its_last_words():
    command = [sys.executable, "-c", "raise SystemExit('there is no such model')"]
    with pytest.raises(ProbeFailed, match="there is no such model"):
        with servers.running(command, servers.free_port(), binary(), 1):
            raise AssertionError("it runs")


def test_nothing_of_a_server_is_left():
    with running_echo() as (_, pid, _wire):
        processes = [pid, *servers.descendants(pid)]
        assert len(processes) == 2
    deadline = time.monotonic() + 10
    while any(servers.runs(one) for one in processes):
        assert time.monotonic() < deadline
        time.sleep(0.01)


STUBBORN = """
import http.server, multiprocessing, pathlib, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
lock = multiprocessing.get_context("spawn").Lock()
pathlib.Path(sys.argv[2]).write_text(lock._semlock.name)

class Echo(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""


def test_a_server_that_must_be_killed_leaves_no_semaphore(tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "END_LIMIT_S", 0.1)
    port, name = servers.free_port(), tmp_path / "name"
    command = [sys.executable, "-c", STUBBORN, str(port), str(name)]
    with servers.running(command, port, raw("/"), 1):
        semaphore = Path("/dev/shm") / f"sem.{name.read_text().removeprefix('/')}"
        assert semaphore.exists()
    assert not semaphore.exists()


def test_a_load_is_measured_warm_and_a_stall_spoils_one_span_only(monkeypatch):
    cold = httpload.LoadResult(10.0, 90.0, 900.0)
    stalled = httpload.LoadResult(60.0, 10.0, 5000.0)
    given = iter(
        [
            cold,
            httpload.LoadResult(100.0, 10.0, 20.0),
            stalled,
            httpload.LoadResult(110.0, 11.0, 21.0),
        ]
    )
    monkeypatch.setattr(httpload, "drive", lambda *_: next(given))
    load = serving.LOADS["1KiB_1"]
    found = serving.measure(0, httpload.HttpRequest("/", b""), load, 1.0)
    assert found == httpload.LoadResult(100.0, 10.0, 21.0)


def test_slow_answers_count_as_the_requests_they_kept_back():
    # One took ten times the interval: what was due meanwhile was not sent, and waited less.
    corrected = httpload.corrected([100.0] * 10 + [1000.0], 100.0)
    assert sorted(corrected)[10:] == [100.0 * n for n in range(2, 11)]


H2LOAD = """finished in 1.25s, 30.00 req/s, 2.72MB/s
requests: 33 total, 33 started, 33 done, 30 succeeded, {failed} failed, 0 errored, 0 timeout
traffic: 2.72MB (99) total, 9.74KB (9972) headers (space savings 96.06%), 3.16MB ({data}) data
"""


def test_calls_that_fail_are_not_taken_for_answers():
    """h2load counts a call that failed as answered; it has brought no message."""
    whole = H2LOAD.format(failed=0, data=30 * 105)
    assert grpcload._rate(whole, 105, 2.0) == 15.0
    with pytest.raises(ProbeFailed, match="without a message"):
        grpcload._rate(H2LOAD.format(failed=0, data=30 * 105 - 1), 105, 2.0)
    with pytest.raises(ProbeFailed, match="30 calls answered, 3 not"):
        grpcload._rate(H2LOAD.format(failed=3, data=30 * 105), 105, 2.0)
    with pytest.raises(ProbeFailed, match="ended with: no idea"):
        grpcload._rate("no idea", 105, 2.0)


@pytest.mark.slow  # starts a server; the wires' requests and answers are checked whole
def test_every_way_into_the_server_answers_rightly_and_is_measured():
    for module in ("shmgpu._core", "grpc", *SHMGPU.needs):
        pytest.importorskip(module)
    found = isolate.call("benchmarks.workloads.paths:rates", LIMIT_S, name="shmgpu", seconds=0.1)
    assert set(found) == set(paths.WAYS)
    for name, rate in found.items():
        assert rate == "there is no h2load (Debian's package nghttp2-client)" or rate > 0, name


def test_a_request_is_written_as_tritons_client_writes_it():
    client = pytest.importorskip("tritonclient.http")
    import json

    x = np.arange(4, dtype="float32")
    tensor = client.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(x.reshape(1, 4), binary_data=True)
    wanted = client.InferRequestedOutput("y", binary_data=True)
    body, length = client.InferenceServerClient.generate_request_body([tensor], outputs=[wanted])
    ours = binary().write(x)
    own_length = int(ours.headers[HEADER_LENGTH])
    assert json.loads(ours.body[:own_length]) == json.loads(body[:length])
    assert ours.body[own_length:] == body[length:]


def test_a_server_that_is_missing_is_skipped_and_its_rows_say_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (group,) = (group for group in serving.WORKLOAD.groups if group.name == "peers")
    (probe,) = (probe for probe in group.probes if probe.name.startswith("Triton"))
    with pytest.raises(Unavailable, match="no tritonserver on the path"):
        probe.run(0.1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    samples = harness.measure(group, harness.Effort(0.0, 1))  # runs nothing: all are missing
    for figure in group.figures:
        assert harness.row_of(group, figure, samples).notes


def figures_of(*names):
    groups = [group for group in serving.WORKLOAD.groups if group.name in names]
    return [figure for group in groups for figure in group.figures]


def test_every_configuration_has_rows_and_a_best_one_is_asked_for_each_load():
    figures = figures_of("peers", "tried")
    for peer in PEERS:
        labels = {peer.label(configuration) for configuration in peer.configurations}
        mine = [figure for figure in figures if figure.against[0] in labels]
        assert {figure.against[0] for figure in mine} == labels
        asked = [figure.of[1] for figure in mine if figure.asked]
        assert sorted(asked) == sorted(
            [f"{load} {quantity}" for load in serving.SMALL for quantity in ("rate", "p99")]
            + ["600KiB rate"]
        )


def test_shmgpu_stands_beside_each_server_with_its_best_configuration_for_the_load():
    figures = [each for each in figures_of("limits", "peers", "tried") if " " in each.of[1]]
    assert figures
    for figure in figures:
        load, _, _ = figure.of[1].partition(" ")
        best = SHMGPU.best[serving.LOADS[load].kind]
        assert figure.of[0] == SHMGPU.label(best)
    tried = {each.against[0]: each.asked for each in figures_of("tried")}
    assert set(map(SHMGPU.label, SHMGPU.configurations)) & set(tried)
    assert not any(tried.values())


def test_the_page_names_every_server_and_configuration():
    page = PEERS_PAGE.read_text()
    for server in (SHMGPU, *PEERS):
        section = page.split(f"### {server.name}\n")[1].split("\n### ")[0]
        for configuration in server.configurations:
            assert f"`{configuration}`" in section
        assert set(server.best) == set(KINDS)
        for kind, configuration in server.best.items():
            assert configuration in server.configurations
            assert f"{kind}: `{configuration}`" in " ".join(section.split())


def test_a_server_is_found_by_its_name():
    assert find("mosec").key == "mosec"
    assert find("shmgpu") is SHMGPU
