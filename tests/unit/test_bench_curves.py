"""The curves of messages, load, launch, respawn, attach and memory: their points, and tiny runs."""

import mmap
import os
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.cli import quick_part  # noqa: E402
from benchmarks.measure import isolate, native, processes  # noqa: E402
from benchmarks.measure.figures import ProbeFailed  # noqa: E402
from benchmarks.measure.harness import QUICK, rounds_of  # noqa: E402
from benchmarks.registry import WORKLOADS  # noqa: E402
from benchmarks.workloads import joining, launch, load, memory, messages, serving  # noqa: E402

STATES = ("idle", "called")

needs_compiler = pytest.mark.skipif(
    shutil.which(native.compiler()) is None, reason="needs a C compiler"
)


def points(workload):
    """(curve, series) -> the sorted places of its points."""
    found = {}
    for group in workload.groups:
        for figure in group.figures:
            if figure.point is not None:
                at = figure.point
                found.setdefault((at.curve.name, at.series), []).append(at.x)
    return {curve: sorted(places) for curve, places in found.items()}


def test_messages_are_measured_over_children_helpers_and_the_window():
    assert points(messages.WORKLOAD) == {
        ("messages over children", "shmgpu"): [1, 2, 4, 8, 16, 32, 64, 128, 256],
        ("messages over helpers", "shmgpu"): [1, 2, 4, 8],
        ("messages over the window", "shmgpu"): [1, 2, 4, 8, 16, 32, 64],
        ("messages over the window, on one core", "shmgpu"): [1, 2, 4, 16, 64],
    }


def test_the_one_core_is_for_what_is_started_and_given_back():
    allowed = os.sched_getaffinity(0)
    show = "import os; print(len(os.sched_getaffinity(0)))"
    with messages.on_one_core():
        assert native.run_text([sys.executable, "-c", show], 60.0).strip() == "1"
    assert os.sched_getaffinity(0) == allowed


def test_every_point_of_messages_has_the_relay_beside_it():
    for group in messages.WORKLOAD.groups:
        for figure in group.figures:
            assert figure.point is None or figure.against == ("relay", "rate")


def test_load_goes_from_ten_microseconds_to_twenty_milliseconds():
    curve = points(load.WORKLOAD)[("busy share over service time", "shmgpu")]
    assert curve[0] == 10 and curve[-1] == 20_000 and len(curve) == 8
    asked = [f.name for g in load.WORKLOAD.groups for f in g.figures if f.asked]
    assert asked == ["busy_4ms", "busy_10ms", "busy_20ms"]


def test_what_no_curve_needs_many_points_of_is_not_in_a_quick_run():
    (quick,) = quick_part([messages.WORKLOAD])
    for places in points(quick).values():
        assert 2 <= len(places) <= 3
    for name in ("launch", "respawn", "memory", "load", "allocator"):
        (workload,) = [w for w in WORKLOADS if w.name == name]
        assert 0 < len(quick_part([workload])[0].groups) < len(workload.groups)


def test_what_is_slow_to_start_has_one_round_in_a_quick_run_that_does_not_name_it():
    (quick,) = quick_part([serving.WORKLOAD])
    assert [rounds_of(group, QUICK) for group in quick.groups] == [1]
    assert rounds_of(serving.WORKLOAD.groups[0], QUICK) == QUICK.rounds
    (quick,) = quick_part([messages.WORKLOAD])
    assert max(rounds_of(group, QUICK) for group in quick.groups) == QUICK.rounds


@needs_compiler
@pytest.mark.parametrize("spins", [0, 1])
def test_the_relays_helpers_take_the_service_they_are_given(spins):
    result = messages.carried("relay", 0.3, children=4, helpers=1, service_us=2_000, spins=spins)
    assert 0 < result["busy"] <= 1.01
    # What they were busy with is at least the service, as often as there were answers.
    assert result["busy"] * result["seconds"] >= 0.002 * (result["round_trips"] - 8)


@needs_compiler
def test_without_a_service_no_busy_share_is_claimed():
    assert "busy" not in messages.carried("relay", 0.1, children=2, helpers=1)


@needs_compiler
def test_a_negative_service_is_refused():
    with pytest.raises(ProbeFailed, match="ended with 2"):
        messages.carried("relay", 0.1, children=1, helpers=1, service_us=-1)


def test_a_bare_worker_answers_and_is_gone_when_it_was_ended():
    worker = processes.BareWorker(lambda request: request[::-1])
    assert worker.ask(b"abc") == b"cba"
    worker.end()
    with pytest.raises(ChildProcessError):
        os.waitpid(worker.pid, 0)


def test_a_bare_worker_that_dies_does_not_leave_its_caller_waiting():
    worker = processes.BareWorker(lambda request: os._exit(3))
    with pytest.raises(ProbeFailed, match="died"):
        worker.ask(b"anything")
    worker.end()


def test_a_process_knows_what_it_holds():
    dirty, pss = processes.memory_mib()
    block = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # no old pages
    block.write(os.urandom(8 << 20))
    after_dirty, after_pss = processes.memory_mib()
    assert after_dirty - dirty > 7 and after_pss - pss > 7
    assert len(block) == 8 << 20


def test_a_meeting_that_someone_misses_is_a_failed_probe(monkeypatch):
    monkeypatch.setattr(memory, "MEET_LIMIT_S", 0.05)
    meeting = memory.Meeting(2, 1)
    with pytest.raises(ProbeFailed, match="not every process came"):
        meeting.wait(0, 0)


@pytest.mark.parametrize("way", ["connection", "fork"])
def test_the_ways_beside_joining_give_right_answers(way):
    took = isolate.call(f"benchmarks.workloads.joining:{way}", 60.0, seconds=0.05, payload_bytes=64)
    assert took["answer"] > 0 and took["leave"] > 0


def test_a_way_that_answers_wrongly_is_not_measured():
    way = (lambda: (None, [1.0, 2.0]), lambda handle: None)
    with pytest.raises(ProbeFailed, match="wrong answer"):
        joining._medians(way, [1.0, 3.0], 0.01)


def test_joining_a_broker_is_measured_to_the_first_answer():
    took = isolate.call(
        "benchmarks.workloads.attached_programs:joins", 60.0, seconds=0.1, payload_bytes=64
    )
    assert took["answer"] > 0 and took["leave"] > 0


@pytest.mark.parametrize("who", ["shmgpu_respawn", "bare_respawn"])
def test_a_replacement_answers_after_a_death(who):
    took = isolate.call(f"benchmarks.workloads.respawn:{who}", 60.0, with_torch=False, deaths=2)
    assert took > 0


def test_memory_is_told_for_children_and_helpers_before_and_after_their_calls():
    told = isolate.call(
        "benchmarks.workloads.memory:shmgpu_memory", 60.0, children=8, with_torch=False, calls=10
    )
    # All are there whenever one is measured: else its share of the pages would grow by itself.
    shared = [told[f"helper {state} pss"] - told[f"helper {state} dirty"] for state in STATES]
    assert shared[1] < shared[0] + 1.5
    wanted = {f"{role} {state} {measure}" for role, state, measure in memory.FIGURES}
    assert wanted <= told.keys()
    assert all(told[name] > 0.1 for name in wanted)


@pytest.mark.parametrize("who", ["bare_memory", "spawned_memory"])
def test_memory_is_told_for_what_stands_beside(who):
    told = isolate.call(
        f"benchmarks.workloads.memory:{who}", 60.0, children=2, with_torch=False, calls=10
    )
    assert told["worker called dirty"] > 0.1
    assert told["worker called pss"] >= 0.9 * told["worker called dirty"]


def test_a_launch_is_measured_with_as_many_children_as_asked_for():
    for who in ("shmgpu_wall", "bare_wall"):
        took = isolate.call(
            f"benchmarks.workloads.launch:{who}", 60.0, with_torch=False, children=2
        )
        assert took > 0
    assert points(launch.WORKLOAD) == {
        ("launch over children", "without torch"): [1, 8, 32, 128],
        ("launch over children", "with torch"): [8, 128],
    }


def test_the_load_of_short_services_is_logged_in_the_helpers():
    result = isolate.call(
        "benchmarks.workloads.load:shmgpu_load", 60.0, seconds=0.2, service_s=0.001
    )
    assert 0 < result["busy"] <= 1.01 and result["rate"] > 0
