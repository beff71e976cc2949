"""The peers do the work they are measured at, and leave nothing behind."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import harness, isolate, native, sizes  # noqa: E402
from benchmarks.measure.figures import Figure, Group, Probe, ProbeFailed  # noqa: E402
from benchmarks.measure.processes import group_runs  # noqa: E402
from benchmarks.measure.task import DIRECTIONS, Task  # noqa: E402
from benchmarks.peers import PEERS, find, work  # noqa: E402
from benchmarks.workloads import calls, payload  # noqa: E402

LIMIT_S = 100.0
SLOW_TO_START = {"torch.multiprocessing", "Ray", "TorchRL"}  # seconds, by imports
PEERS_PAGE = ROOT / "benchmarks" / "peers" / "README.md"


def installed(peer, configuration):
    """A parameter that is skipped where the peer is missing."""
    missing = [name for name in peer.needs if importlib.util.find_spec(name) is None]
    mark = pytest.mark.skipif(bool(missing), reason=f"{missing} not installed")
    return pytest.param(peer.name, configuration, marks=mark, id=peer.label(configuration))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "configuration"),
    [installed(peer, configuration) for peer in PEERS for configuration in peer.configurations],
)
def test_a_peer_answers_every_kind_of_call_rightly(name, configuration):
    most_bytes = 64 if name in SLOW_TO_START else 4096
    points = isolate.call(
        "benchmarks.peers:run_sizes",
        LIMIT_S,
        name=name,
        configuration=configuration,
        seconds=0.01,
        most_bytes=most_bytes,
    )
    assert list(points) == list(sizes.QUANTITIES)
    for direction in DIRECTIONS:
        for size, nbytes in sizes.SIZES.items():
            point = points[sizes.quantity(direction, size)]
            assert (point > 0) if nbytes <= most_bytes else "more than was asked for" in point


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        pytest.param(*given.values, marks=[*given.marks, *late], id=given.id)
        for peer in PEERS
        for given in [installed(peer, peer.best["rate"])]
        for late in [[pytest.mark.slow] if peer.name in SLOW_TO_START else []]
    ],
)
def test_a_peer_serves_several_clients_by_several_workers(name, configuration):
    result = isolate.call(
        "benchmarks.peers:run",
        LIMIT_S,
        name=name,
        configuration=configuration,
        clients=3,
        workers=2,
        payload_bytes=64,
        seconds=0.1,
    )
    assert result["rate"] > 0


@pytest.mark.parametrize("arrays", ["numpy", pytest.param("torch", marks=pytest.mark.slow)])
def test_shmgpu_does_the_tasks_that_the_peers_do(arrays):
    pytest.importorskip("shmgpu._core")
    target = "benchmarks.workloads.payload:shmgpu_sizes"
    points = isolate.call(target, LIMIT_S, arrays=arrays, seconds=0.01, most_bytes=4096)
    assert all(points[f"{direction}_4KiB"] > 0 for direction in DIRECTIONS)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_tried_in_two_configurations_and_held_against_the_best(peer):
    assert len(peer.configurations) >= 2
    assert set(peer.best) == {"rate", "latency", "payload"}
    assert set(peer.best.values()) <= set(peer.configurations)


def test_every_configuration_has_rows_in_both_workloads():
    for workload, count in ((calls.WORKLOAD, 2), (payload.WORKLOAD, len(sizes.QUANTITIES))):
        read = [
            probe
            for group in workload.groups
            for figure in group.figures
            for probe, _ in (figure.of, figure.against or figure.of)
        ]
        for peer in PEERS:
            for configuration in peer.configurations:
                assert read.count(peer.label(configuration)) >= count


def test_a_peer_that_is_not_installed_is_skipped_and_its_rows_say_so(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for workload, group_name in (
        (calls.WORKLOAD, "rate_configurations"),
        (payload.WORKLOAD, "peers"),
    ):
        (group,) = (group for group in workload.groups if group.name == group_name)
        samples = harness.measure(group, harness.Effort(0.0, 1))  # runs nothing: all are missing
        for figure in group.figures:
            notes = harness.row_of(group, figure, samples).notes
            assert any(
                "ZeroMQ (direct) skipped: zmq is not installed" in note for note in notes
            ) == ("zeromq_direct" in figure.name)
            assert all(note.endswith("is not installed") for note in notes)


def test_the_page_names_every_peer_and_configuration():
    page = PEERS_PAGE.read_text()
    for peer in PEERS:
        assert f"### {peer.name}" in page
        section = page.split(f"### {peer.name}\n")[1].split("\n### ")[0]
        for configuration in peer.configurations:
            assert f"`{configuration}`" in section
        for kind, configuration in peer.best.items():
            assert f"{kind}: `{configuration}`" in section


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_both_ways_to_answer_give_the_same(direction):
    task = Task(direction, 64)
    x = task.request() * 3
    out = np.zeros(task.answer_items, "float32")
    task.answer_into(np, x, out)
    task.check(x, out)
    assert x.nbytes == (4 if direction == "out" else 64)
    assert out.nbytes == (4 if direction == "in" else 64)
    assert (out == 4).all()


def test_a_peer_that_errs_in_one_item_is_found():
    task = Task("both", 64)
    x = task.request()
    wrong = x + 1
    wrong[-1] = 0
    with pytest.raises(ProbeFailed, match="wrong answer"):
        task.check(x, wrong)


def test_a_peer_that_answers_from_a_kept_copy_is_found():
    task = Task("in", 64, stamped=True)
    x = task.request()
    kept = x.copy()
    with pytest.raises(ProbeFailed, match="earlier call"):
        step = task.step(x, lambda: kept[:1] + 1)
        for _ in range(2):
            step()
    honest = task.step(x, lambda: x[:1] + 1)
    honest()
    honest()


def test_a_worker_that_dies_fails_the_probe_instead_of_hanging_it():
    def wait_for_ever():
        work.fork.Event().wait()

    clients = [work.start(wait_for_ever)]
    with pytest.raises(ProbeFailed, match="ended with 3"):
        work.see_out(clients, [work.start(os._exit, 3)])
    assert not clients[0].is_alive()


def test_sizes_whose_calls_would_take_too_long_are_not_measured():
    asked = []

    def slow(task):
        asked.append(task)
        return task.nbytes / 16.0  # microseconds: 16 MiB take a second

    points = sizes.along(slow)
    assert points["in_16MiB"] == pytest.approx(1e6, rel=0.05)
    assert points["in_256MiB"] == "a call of 256MiB would take over 2 s"
    assert len(asked) == len(DIRECTIONS) * (len(sizes.SIZES) - 1)


def test_sizes_for_which_memory_is_short_are_not_measured(monkeypatch):
    monkeypatch.setattr(sizes, "memory_bytes", lambda: 1 << 20)
    points = sizes.along(lambda task: 1.0)
    assert points["both_64KiB"] == 1.0
    assert "free memory" in points["both_1MiB"]


def test_words_instead_of_a_number_become_a_note_and_no_failure():
    rounds = iter([{"small": 1.0, "large": 2.0}, {"small": 3.0, "large": "it would take too long"}])
    probe = Probe("A", lambda _amount: next(rounds), {"small": "us", "large": "us"})
    figures = (Figure("small", ("A", "small")), Figure("large", ("A", "large")))
    group = Group("g", (probe,), figures)
    samples = harness.measure(group, harness.Effort(0.0, 2))
    small, large = (harness.row_of(group, figure, samples) for figure in figures)
    assert (small.value, small.notes) == (2.0, ())
    assert large.value is None
    assert large.notes == ("A skipped: it would take too long",)


SHARED = "/dev/shm/$(basename $TMPDIR)"


def left_behind():
    return [
        path
        for folder in ("/dev/shm", "/tmp")
        for path in Path(folder).glob("shmgpu-bench-*")
        if path.name.endswith("_left") or (path / "left").exists()
    ]


def test_what_a_probe_leaves_in_temporary_places_is_removed():
    command = f"touch {SHARED}_left $TMPDIR/left && test -e {SHARED}_left"
    assert isolate.call("os:system", 60.0, command=command) == 0
    assert not left_behind()


def test_what_a_probe_that_hangs_leaves_is_removed():
    command = f"touch {SHARED}_left $TMPDIR/left; sleep 600"
    with pytest.raises(ProbeFailed, match="did not end within"):
        isolate.call("os:system", 2.0, command=command)
    assert not left_behind()


def is_named(words):
    """Whether a process has these words in its command line: a probe has the path of its answer."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words.encode() in path.read_bytes():
                return True
    return False


def test_a_run_that_is_told_to_end_ends_its_probes_and_removes_their_files(tmp_path):
    command = [sys.executable, "-m", "benchmarks", "payload.sizes", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        until = time.monotonic() + 60
        while not is_named(str(tmp_path / "shmgpu-bench-")):
            assert time.monotonic() < until
            time.sleep(0.01)
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("*")) and not is_named(str(tmp_path))


def test_a_run_that_is_told_to_end_as_a_probe_starts_knows_the_probe(monkeypatch):
    """Told between the fork and the return of its number, where nobody could end it."""
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGTERM)

    def leave(number, frame):
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with monkeypatch.context() as patched, pytest.raises(SystemExit):
            patched.setattr(native.subprocess, "Popen", Interrupted)
            native.run_text(["sh", "-c", "sleep 600 & sleep 600"], 60.0)
        assert signal.getsignal(signal.SIGTERM) is leave
        (probe,) = started
        assert probe.returncode == -signal.SIGKILL and not group_runs(probe.pid)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_killed_program_forked_has_ended_too():
    """Much memory takes its time: what is measured next must not run beside that."""
    program = "import os, time; held = os.fork() or b'x' * (1 << 29); print(flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}; time.sleep(600)"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert [process.stdout.readline(), process.stdout.readline()] == ["\n", "\n"]
    native.end_group(process)
    assert not group_runs(process.pid)


def test_a_peer_is_found_by_its_name():
    assert find("ZeroMQ").key == "zeromq"
    assert find("faster-fifo").key == "fasterfifo"
