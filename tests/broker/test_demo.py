"""What the demo promises: accuracy, a proof that can fail, quiet pipes, a trace, one sentence.

The demo runs in processes of its own: it trains, and tensor operations in the process that runs
the tests would spoil the forks of tests that come later.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import replace

import numpy as np
import pytest

if importlib.util.find_spec("sklearn") is None:  # imported in its own processes only: it is large
    pytest.skip("the demo's data comes with scikit-learn", allow_module_level=True)
pytest.importorskip("torch")

from shmgpu.cli import main as cli
from shmgpu.demo import digits, report
from shmgpu.demo import stage as stages
from shmgpu.demo.audit import Audit, ProcessTraffic, audit
from shmgpu.demo.digits import Split
from shmgpu.demo.queues import RequestQueue
from shmgpu.demo.report import measured
from shmgpu.demo.run import failures
from shmgpu.demo.serve import Served
from shmgpu.demo.stage import ClientStage, Measured, StageFailed, Traffic, traffic_of

CHILDREN, HELPERS = 2, 2
COMMAND = (sys.executable, "-m", "shmgpu.cli.main")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """One run of the whole demo in an empty folder: (folder, finished process, figures)."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [*COMMAND, "demo", "--children", str(CHILDREN), "--helpers", str(HELPERS),
         "--seconds", "0.5", "--device", "cpu", "--json", "figures.json"],
        cwd=folder, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done, json.loads((folder / "figures.json").read_text())


@pytest.mark.slow
def test_the_demo_classifies_real_digits_well_and_both_ways_alike(demo):
    _, _, figures = demo
    assert figures["shmgpu"]["accuracy"] >= 0.97
    # Batches of other sizes round differently: a digit on the edge may fall either way.
    assert abs(figures["shmgpu"]["accuracy"] - figures["multiprocessing"]["accuracy"]) < 0.005
    assert figures["failures"] == []


def test_the_demo_proves_the_zero_for_every_process(demo):
    _, done, figures = demo
    proof = figures["proof"]
    assert proof["confirmed"]
    kinds = [process["kind"] for process in proof["processes"]]
    assert kinds == ["child"] * CHILDREN + ["helper"] * HELPERS + ["parent"]
    for process in proof["processes"]:
        assert process["written"] == 64 * process["frames_out"] > 0
        assert process["read"] == 64 * process["frames_in"] > 0
    assert f"pipe bytes = frames x 64 in each of {CHILDREN + HELPERS + 1} processes" in done.stdout


def test_the_demo_counts_copies_where_they_happen(demo):
    _, _, figures = demo
    counted = figures["bytes"]
    calls = sum(p["frames_out"] for p in figures["proof"]["processes"] if p["kind"] == "child")
    assert counted["marshalled"] == 0
    assert counted["copied_in"] == 0, "the images lie in the arena before the first call"
    assert counted["copied_out"] == 40 * calls, "ten scores, float32"
    gathered, rest = divmod(counted["gathered"], 256)
    assert gathered <= calls and not rest, "images, and none of a call that ran alone"
    assert figures["shmgpu"]["payload_in_pipes_bytes_per_call"] == 0


def test_its_network_scores_each_digit():
    code = "import torch; from shmgpu.demo.network import Network; "
    code += "print(tuple(Network()(torch.zeros(3, 1, 8, 8)).shape))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "(3, 10)\n", done.stderr


def test_the_demo_prints_every_figure_with_its_unit(demo):
    _, done, _ = demo
    for words in (
        "accuracy on held-out images", " %", "calls per second", " /s", "latency p50",
        "latency p99", " ms", "mean batch size", "marshalled", "gathered into batches",
        "copied in", "copied out", "host to device", "device to host", "multiprocessing", "ratio",
    ):  # fmt: skip
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 100


def test_the_demo_draws_nothing_into_a_pipe(demo):
    _, done, _ = demo
    assert done.stderr == ""
    assert "\r" not in done.stdout


def test_the_demo_leaves_multiprocessing_out_where_it_is_told_to(monkeypatch):
    asked = []
    monkeypatch.setattr("shmgpu.demo.run.run", lambda options: asked.append(options) or 0)
    assert cli.main(["demo"]) == cli.main(["demo", "--no-baseline"]) == 0
    assert [options.baseline for options in asked] == [True, False]


@pytest.mark.slow  # another training, to see what is drawn meanwhile
def test_the_demo_draws_progress_on_a_terminal(tmp_path):
    master, terminal = pty.openpty()
    # A terminal without a size, as openpty makes it, has no room for a bar.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    options = "'trace', children=2, helpers=1, seconds=0.3, device='cpu', baseline=False, epochs=1"
    process = subprocess.Popen(
        [sys.executable, "-c", f"from shmgpu.demo.run import *; run(DemoOptions({options}))"],
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    drawn = b""
    while True:
        try:
            piece = os.read(master, 4096)
        except OSError:  # how Linux says that nobody holds the other end
            break
        if not piece:
            break
        drawn += piece
    os.close(master)
    assert process.wait(60) == 0
    assert b"training" in drawn and b"shmgpu" in drawn and b"100" in drawn


def test_the_demo_writes_a_trace_and_says_where(demo):
    folder, done, _ = demo
    path = folder / "shmgpu-demo.trace.json"
    assert str(path) in done.stdout
    events = json.loads(path.read_text())["traceEvents"]
    assert all({"ph", "pid", "name"} <= set(event) for event in events)
    executed = [event for event in events if event["ph"] == "X"]
    assert {event["tid"] for event in executed} == set(range(HELPERS))
    assert all("classify" in event["name"] for event in executed)
    assert {event["tid"] for event in events if event["ph"] == "b"} == set(range(CHILDREN))


def test_the_saved_trace_can_be_summarised(demo):
    folder, _, _ = demo
    done = subprocess.run(
        [*COMMAND, "trace", "shmgpu-demo.trace.json"],
        cwd=folder, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "classify" in done.stdout and "mean batch" in done.stdout


def test_without_scikit_learn_the_demo_ends_in_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert "pip install '.[demo]'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("option", ["--trace", "--json"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    option, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", option, str(tmp_path / "none" / "file.json")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "cannot be written (No such file or directory)" in said.err


# ---- the parts ------------------------------------------------------------------------------


def test_the_split_holds_out_the_same_share_of_each_digit_and_can_be_repeated():
    train, held_out = digits.load(3)
    assert len(train) + len(held_out) == 1797
    assert train.images.shape[1:] == (1, 8, 8) and train.images.dtype == np.float32
    assert 0 <= train.images.min() and train.images.max() <= 1
    for digit in range(10):
        out, stayed = (held_out.labels == digit).sum(), (train.labels == digit).sum()
        assert abs(out / (out + stayed) - 0.3) < 0.01
    again = digits.load(3)[1]
    assert np.array_equal(again.images, held_out.images)
    assert not np.array_equal(digits.load(4)[1].labels, held_out.labels)


def test_no_image_is_both_trained_on_and_held_out():
    everything = Split(np.arange(1000, dtype=np.float32).reshape(-1, 1, 1, 1), np.arange(1000) % 10)
    train, held_out = digits.split(everything, 0)
    assert not set(train.images.ravel()) & set(held_out.images.ravel())
    assert len(train) + len(held_out) == 1000


def drive_clients(stage: ClientStage, asks) -> None:
    """Fork a client for each ``ask`` and wait for them."""
    pids = []
    for rank, ask in enumerate(asks):
        pid = os.fork()
        if pid == 0:
            try:
                stage.drive(rank, ask, np.array([7, 7, 1]))
            except BaseException:
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)


def test_a_stage_counts_calls_and_judges_each_image_once():
    with ClientStage(2, 0, 0.3, "test", show=False) as stage:
        drive_clients(stage, [lambda index: 7] * 2)
    outcome = stage.outcome()
    assert (outcome.images, outcome.correct) == (6, 4)
    assert outcome.all_calls >= outcome.calls > 6
    assert 0 < outcome.latency_us(0.5) <= outcome.latency_us(0.99)


def test_a_stage_sees_from_outside_what_a_client_writes_and_reads():
    if traffic_of(os.getpid()) is None:
        pytest.skip("this kernel keeps no count of what processes move")
    reading, writing = os.pipe()

    def ask(index: int) -> int:
        os.write(writing, b"12345678")
        os.read(reading, 8)
        return 7

    with ClientStage(2, 0, 0.05, "test", show=False) as stage:
        drive_clients(stage, [ask, lambda index: 7])
    os.close(reading)
    os.close(writing)
    chatty, silent = stage.outcome().traffic
    assert chatty.written == chatty.read and chatty.read % 8 == 0 and chatty.read > 0
    assert (silent.written, silent.read) == (0, 0)


def test_a_stage_that_is_left_early_ends_its_watcher_and_says_so():
    with pytest.raises(ZeroDivisionError), ClientStage(1, 0, 60.0, "test", show=False) as stage:
        1 / 0
    with pytest.raises(StageFailed, match="did not get through"):
        stage.outcome()


def served(traffic: tuple[Traffic, ...], marshalled: int = 0) -> Served:
    def counted(frames: int, byte_count: int) -> dict:
        row = {"frames_sent": frames, "frames_received": frames}
        return {"children": [row], "helpers": [row], "bytes": {"marshalled": byte_count}}

    outcome = Measured(9, 10, 10, 10, 1.0, np.ones(10), traffic)
    return Served(outcome, counted(5, 0), counted(15, marshalled))


HONEST = (Traffic("c", 640, 640), Traffic("h", 640, 640), Traffic("p", 1280, 1280))


def test_bytes_a_call_are_told_only_where_all_are_known_and_a_call_was_made():
    def told(traffic: tuple[Traffic, ...], calls: int) -> float | None:
        outcome = Measured(9, 10, calls, calls, 1.0, np.ones(10), traffic)
        return measured(outcome, 1.0, True).get("pipe_bytes_per_call")

    unknown = (*HONEST, Traffic("x", None, None))
    assert told(HONEST, 10) == 256
    assert [told(unknown, 10), told(HONEST, 0), told(unknown, 0)] == [None] * 3


def test_the_audit_agrees_when_bytes_are_frames_times_64():
    proof = audit(served(HONEST))
    assert proof.confirmed and proof.differences == []


@pytest.mark.parametrize("number", range(3))
def test_the_audit_finds_one_byte_too_many_and_names_the_process(number):
    traffic = list(HONEST)
    traffic[number] = replace(HONEST[number], written=HONEST[number].written + 1)
    [difference] = audit(served(tuple(traffic))).differences
    assert difference.startswith(("child 0 wrote", "helper 0 wrote", "parent wrote")[number])
    assert "+1 bytes" in difference


def test_the_audit_believes_a_copy_site_that_marshalled():
    [difference] = audit(served(HONEST, marshalled=7)).differences
    assert "7 marshalled" in difference


def test_where_the_kernel_does_not_tell_nothing_is_claimed():
    proof = audit(served((Traffic("c", None, None), *HONEST[1:])))
    assert not proof.confirmed
    assert proof.differences == []


def test_low_accuracy_and_a_failed_proof_fail_the_demo():
    good = Audit((ProcessTraffic("parent", 0, 1, 1, 64, 64),), 0)
    bad = Audit((ProcessTraffic("parent", 0, 1, 1, 65, 64),), 0)
    assert failures(0.98, good) == []
    assert "96.90 %" in failures(0.969, good)[0]
    assert failures(float("nan"), good)
    assert len(failures(0.5, bad)) == 2


def test_the_queue_it_is_compared_with_gives_all_that_is_there_in_order_and_no_more_than_asked():
    queue = RequestQueue()
    for item in range(5):
        queue.put(item)
    assert queue.get_many(3) == [0, 1, 2]
    assert queue.get_many(9) == [3, 4]
    queue.close()


# ---- what it prints ---------------------------------------------------------------------------


def played(known: bool = True, marshalled: int = 0) -> Served:
    """Two children, a helper and the parent: 64 bytes a frame, unless the kernel does not tell."""

    def counted(frames: int, nbytes: int) -> dict:
        row = {
            "frames_sent": frames, "frames_received": 2 * frames,
            "finished": 10 * frames, "batches": frames, "batched": 4 * frames,
        }  # fmt: skip
        sites = ("marshalled", "gathered", "copied_in", "copied_out", "host_to_device")
        counts = {name: nbytes * place for place, name in enumerate(sites)}
        counts["device_to_host"] = 5 * nbytes
        counts["marshalled"] = marshalled if nbytes > 100 else 0
        return {"children": [row, row], "helpers": [row], "bytes": counts}

    each = Traffic("c", 640, 1280) if known else Traffic("c", None, 1280)
    traffic = (each, Traffic("c", 640, 1280), Traffic("h", 640, 1280), Traffic("p", 3840, 1920))
    outcome = Measured(97, 100, 2000, 4000, 2.0, np.arange(1.0, 101.0) * 10, traffic)
    return Served(outcome, counted(5, 100), counted(15, 4100))


def test_what_both_sides_measured_is_a_table_with_units():
    one = played()
    ours = measured(one.outcome, one.mean_batch, False)
    theirs = {**measured(one.outcome, 1.0, True), "latency_p50_us": 1010.0, "mean_batch": 1.0}
    del theirs["pipe_bytes_per_call"]
    assert ours["payload_in_pipes_bytes_per_call"] == 0 and ours["calls"] == 2000
    assert report.comparison(ours, theirs) == (
        "                                  shmgpu  multiprocessing   ratio\n"
        "accuracy on held-out images      97.00 %          97.00 %\n"
        "calls per second                1,000 /s         1,000 /s  1.00 x\n"
        "latency p50                      0.51 ms          1.01 ms  0.50 x\n"
        "latency p99                      0.99 ms          0.99 ms  1.00 x\n"
        "mean batch size                1.4 calls        1.0 calls\n"
        "payload served                 0.30 MB/s        0.30 MB/s  1.00 x\n"
        "payload through pipes, a call        0 B            296 B\n"
        "all through pipes, a call            1 B     not measured"
    )
    alone = report.comparison(ours, None)
    assert alone.splitlines()[0].split() == ["shmgpu"] and "ratio" not in alone


def test_copies_are_told_in_all_and_a_call():
    assert report.copies(played()) == (
        "bytes at every copy site    in all  a call\n"
        "  marshalled                   0 B     0 B\n"
        "  gathered into batches    4,000 B     1 B\n"
        "  copied in by children    8,000 B     2 B\n"
        "  copied out by helpers   12,000 B     3 B\n"
        "  host to device          16,000 B     4 B\n"
        "  device to host          20,000 B     5 B"
    )
    none = replace(played(), outcome=replace(played().outcome, all_calls=0))
    assert report.copies(none).splitlines()[-1] == "  device to host          20,000 B"


def test_the_proof_sets_frames_beside_bytes():
    rows = (
        "            frames out   x 64    /proc  frames in    x 64    /proc\n"
        "2 children          20  1,280 B  1,280 B         40  2,560 B  2,560 B\n"
        "helper              10    640 B    640 B         20  1,280 B  1,280 B\n"
        "parent              60  3,840 B  3,840 B         30  1,920 B  1,920 B\n"
    )
    told = report.proof(audit(played()))
    assert [line.split() for line in told.splitlines()[:4]] == [
        line.split() for line in rows.splitlines()
    ]
    assert told.endswith("frames x 64 in each of 4 processes: no payload byte passed between them")
    told = report.proof(audit(played(known=False)))
    assert "not measured" in told.splitlines()[1] and "counted but not confirmed" in told
    told = report.proof(audit(played(marshalled=7)))
    assert told.endswith("pipe bytes are NOT frames x 64:\n  copy sites counted 7 marshalled bytes")


def test_a_proof_as_data_says_what_was_confirmed():
    data = report.as_data(audit(played()))
    assert data["confirmed"] and data["differences"] == []
    assert [row["kind"] for row in data["processes"]] == ["child", "child", "helper", "parent"]
    assert data["processes"][2] == {
        "kind": "helper", "number": 0, "frames_out": 10, "frames_in": 20, "written": 640,
        "read": 1280,
    }  # fmt: skip
    assert not report.as_data(audit(played(known=False)))["confirmed"]
    assert not report.as_data(audit(played(marshalled=7)))["confirmed"]


def test_a_run_of_one_message_is_a_batch_of_one():
    assert played().mean_batch == 100 / (10 + 100 - 40)
    still = replace(played(), after=played().before)
    assert still.mean_batch == 0.0 and still.bytes["gathered"] == 0


def test_without_calls_there_is_no_latency():
    outcome = Measured(9, 10, 0, 0, 2.0, np.array([]), ())
    assert np.isnan(outcome.latency_us(0.5)) and outcome.rate == 0 and outcome.accuracy == 0.9


# ---- clients of a stage, without a watcher -------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """A stage whose clients serve here, by a clock that goes on by 10 ns a look."""
    found = ClientStage(2, 1, 1.0, "test", show=False)
    ticks = iter(range(0, 10**6, 10))
    monkeypatch.setattr(stages.time, "monotonic_ns", lambda: next(ticks))
    return found


@pytest.mark.parametrize(
    ("deadline", "in_time", "calls"),
    [(1000, 50, 51), (70, 4, 5), (69, 3, 4), (9, 0, 4), (90, 5, 6), (89, 4, 5)],
)
def test_calls_in_time_are_counted_and_the_first_pass_is_always_done(
    alone, deadline, in_time, calls
):
    alone._words[1] = deadline
    asked = []
    alone._serve(1, lambda index: asked.append(index) or index, [0, 1, 9, 9])
    assert alone._counts.tolist() == [[0] * 4, [in_time, calls, 4, 2]]
    assert asked == [index % 4 for index in range(calls)]
    assert alone._latencies_ns[1, : in_time + 1].tolist() == [10] * in_time + [0]


def test_a_client_without_images_serves_nothing(alone):
    alone._serve(0, print, [])
    assert tuple(map(int, alone._counts[0])) == (0, 0, 0, 0)


def test_what_clients_saw_is_put_together(alone):
    alone._words[0] = 4
    alone._counts[:] = [[3, 5, 10, 9], [1, 1, 10, 8]]
    alone._latencies_ns[0, :4] = [1000, 2000, 3000, 9000]
    alone._latencies_ns[1, :2] = [5000, 9000]
    alone._traffic[0] = [[1, 2], [3, 4], [5, 6]]
    alone._traffic[1] = [[11, 22], [33, 44], [-1, -1]]
    found = alone.outcome()
    assert (found.correct, found.images, found.calls, found.all_calls) == (17, 20, 4, 6)
    assert found.latencies_us.tolist() == [1, 2, 3, 5] and found.seconds == 1.0
    assert found.traffic == (
        Traffic("client 0", 10, 20), Traffic("client 1", 30, 40), Traffic("server 0", None, None),
    )  # fmt: skip


def test_a_stage_knows_its_processes():
    found = ClientStage(2, 1, 1.0, "test", show=False, watch_parent=True)
    found.enter_server(0)
    assert found._pids.tolist() == [0, 0, os.getpid(), os.getpid()]
    assert found._names == ["client 0", "client 1", "server 0", "parent"]
    assert found._alive()
    found._home = 1 << 30
    assert not found._alive() and not found._all_at(1)
    with pytest.raises(StageFailed, match="the demo was ended"):
        found._enter(0, 1)
    assert found._reached.tolist() == [1, 0]


def test_what_a_process_that_is_gone_has_moved_is_not_known():
    assert traffic_of(1 << 30) is None
