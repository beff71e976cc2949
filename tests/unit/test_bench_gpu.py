"""The workload `gpu`, as far as it can be tried without a GPU: its bodies run on the CPU."""

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import devices, harness, isolate  # noqa: E402
from benchmarks.measure.crowd import Crowd  # noqa: E402
from benchmarks.measure.figures import ProbeFailed, Unavailable  # noqa: E402
from benchmarks.workloads import gpu  # noqa: E402

pytest.importorskip("torch")

MPS_STAND_IN = """#!/bin/sh
# Remembers where it was started, and answers as the control program does.
if [ "$1" = -d ]; then
  echo "start $CUDA_MPS_PIPE_DIRECTORY" >> "$NOTES"
  [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] && [ -d "$CUDA_MPS_LOG_DIRECTORY" ] || exit 3
  [ -z "$REFUSES" ] || { echo "no device allows it" >&2; exit 1; }
  sleep 600 &
  echo $! > "$NOTES.daemon"
  exit 0
fi
read -r command
echo "$command" >> "$NOTES"
[ "$command" = get_server_list ] && echo 4711
[ "$command" = quit ] && kill "$(cat "$NOTES.daemon")"
exit 0
"""


def call(target, **arguments):
    return isolate.call(f"benchmarks.workloads.gpu:{target}", 90.0, device="cpu", **arguments)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine may have a device")
@pytest.mark.parametrize("group", gpu.WORKLOAD.groups, ids=lambda group: group.name)
def test_without_a_device_every_probe_is_skipped_with_a_sentence(group):
    samples = harness.measure(group, harness.Effort(0.1, 1))
    assert not samples.failed
    assert samples.skipped == {p.name: devices.NO_DEVICE for p in group.probes}


@pytest.mark.slow
def test_copies_go_every_way_and_are_told_in_bytes_a_second():
    found = call("copies", seconds=0.05, mebibytes=1)
    assert set(found) == set(gpu.WAYS)
    assert all(rate > 0 for rate in found.values())


def test_an_arena_that_is_not_registered_is_not_measured_as_if_it_were(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: False)
    with pytest.raises(ProbeFailed, match="not registered"):
        gpu.copy_rates(np.zeros(16, "float32"), 0.0, "cuda:0")


def test_a_copy_that_brings_nothing_is_no_fast_copy(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, source, non_blocking=False: self)
    with pytest.raises(ProbeFailed, match="do not bring"):
        gpu.copy_rates(np.zeros(16, "float32"), 0.0, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("graph", [True, False])
def test_a_lone_childs_calls_of_the_small_model_are_timed(graph):
    found = call("model_latency", seconds=0.05, graph=graph)
    assert 0 < found["median"] <= found["p99"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["through_helpers", "with_own_models"])
def test_a_crowd_asks_shared_models_or_its_own(target):
    found = call(target, seconds=0.1, clients=3, width=32)
    assert found["rate"] > 0 and found["p99"] > 0
    assert found["memory"] == 0.0  # of a CPU


@pytest.mark.slow
@pytest.mark.parametrize("target", ["train_through_helper", "train_eagerly"])
def test_steps_of_training_are_counted(target):
    assert call(target, seconds=0.05)["rate"] > 0


def test_a_client_that_fails_ends_the_run_at_once():
    crowd = Crowd(2, 60.0)
    with pytest.raises(ZeroDivisionError), crowd.ended_by_errors():
        crowd.drive(0, lambda: 1 / 0)
    with pytest.raises(ProbeFailed, match="reached the start"):
        crowd.watch()


def test_used_memory_is_read_as_nvidia_smi_writes_it():
    assert devices.mebibytes_of("40961\n") == 40961.0
    for text in ("[N/A]\n", ""):
        with pytest.raises(Unavailable, match="how much memory"):
            devices.mebibytes_of(text)


def test_the_server_list_of_mps_is_read():
    assert devices.pids_of("4711\n4712\n") == [4711, 4712]
    assert devices.pids_of("") == []


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A control program of MPS that only takes notes."""
    program = tmp_path / devices.MPS_CONTROL
    program.write_text(MPS_STAND_IN)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(notes))
    return lambda: notes.read_text().splitlines()


def test_mps_runs_in_a_folder_of_its_own_and_is_ended(stand_in, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/of/the/machine")
    monkeypatch.delenv("CUDA_MPS_LOG_DIRECTORY", raising=False)
    with devices.mps():
        pipe = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert pipe != "/of/the/machine"
        assert devices.mps_servers() == [4711]
    assert stand_in() == [f"start {pipe}", "get_server_list", "quit"]
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/of/the/machine"
    assert "CUDA_MPS_LOG_DIRECTORY" not in os.environ
    assert not Path(pipe).exists()


def test_mps_is_ended_when_what_used_it_fails(stand_in):
    with pytest.raises(ZeroDivisionError), devices.mps():
        raise ZeroDivisionError
    assert stand_in()[-1] == "quit"


def test_where_mps_does_not_start_the_probe_is_skipped_with_its_words(stand_in, monkeypatch):
    monkeypatch.setenv("REFUSES", "1")
    with pytest.raises(Unavailable, match="does not start: no device allows it"), devices.mps():
        pass
    assert "quit" not in stand_in()


def test_without_mps_the_probe_is_skipped(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="not installed"), devices.mps():
        pass
