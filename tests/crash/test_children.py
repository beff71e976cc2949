"""Children that die: quarantine, zeros, a new generation, a bound; who hears of it (F02, F33)."""

from __future__ import annotations

import errno
import logging
import os
import signal
import time

import numpy as np
import pytest

import shmgpu

ARENA = "1MiB"


def wait_for(path, seconds=20.0):
    """Until somebody has made that file."""
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"nobody made {path}"
        time.sleep(0.005)


def touch(path):
    open(path, "w").close()


@shmgpu.function(arrays="numpy")
def add_one(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy", mutates=True)
def write_late(helper, x, began, go, done):
    """Writes to the caller's arena once ``go`` is there."""
    touch(began)
    wait_for(go)
    x[...] = 77
    touch(done)
    return 1


@shmgpu.function(arrays="numpy", idempotent=True)
def note_runs(helper, began, go):
    with open(began, "a") as file:
        file.write("x")
    wait_for(go)


def all_of_the_arena():
    """As many bytes as one array may have, whatever they hold."""
    return shmgpu.arena.empty(shmgpu.arena.stats()["largest_free_bytes"], np.uint8)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero(
    tmp_path, number
):
    began, go, done, born = (str(tmp_path / name) for name in ("began", "go", "done", "born"))

    def victim(rank):
        if os.path.exists(began):
            touch(born)
            finished_before = os.path.exists(done)
            is_zero = not all_of_the_arena().any()
            add_one(np.zeros(1))  # from here on the dispatcher has counted this child
            return finished_before, is_zero, shmgpu.stats()["children"][0]["generation"]
        block = all_of_the_arena()
        block[...] = 9
        del block
        x = shmgpu.arena.zeros(1000)
        write_late.submit(x, began, go, done)
        wait_for(began)
        os.kill(os.getpid(), number)

    def witness(rank):
        wait_for(began)
        for value in range(200):  # served by the other helper, and never another's result
            assert add_one(np.full(50, value)).tolist() == [value + 1] * 50
        while (state := shmgpu.stats()["children"][0]["state"]) == 1:
            time.sleep(0.005)
        assert not os.path.exists(born), "a new child got an arena that a helper may write to"
        touch(go)
        wait_for(born)
        return state

    found, state = shmgpu.launch(
        [victim, witness], helpers=2, devices="cpu", arena=ARENA, restart="on-failure"
    )
    assert found == (True, True, 2)
    assert state == 3  # quarantined


def test_f02_what_a_dead_child_had_queued_is_dropped(tmp_path):
    began, go = str(tmp_path / "began"), str(tmp_path / "go")

    def victim(rank):
        if os.path.exists(began):
            return
        for _ in range(20):
            note_runs.submit(began, go)
        wait_for(began)
        while shmgpu.stats()["children"][0]["submitted"] < 20:
            time.sleep(0.005)  # the dispatcher has not read them all
        os.kill(os.getpid(), signal.SIGKILL)

    def witness(rank):
        wait_for(began)
        while shmgpu.stats()["children"][0]["state"] == 1:
            time.sleep(0.005)
        touch(go)

    counted: dict = {}
    shmgpu.launch(
        [victim, witness],
        helpers=1,
        devices="cpu",
        arena=ARENA,
        restart="on-failure",
        stats_into=counted,
    )
    # Those that the helper held when the child died were finished; the queue was not begun.
    assert len(open(began).read()) < 20
    row = counted["children"][0]
    assert row["submitted"] == 20 and row["answered"] == 0
    assert counted["broker"]["queued"] == 0


def test_f33_a_reply_of_an_old_generation_is_dropped_and_counted(tmp_path):
    began, go, done = (str(tmp_path / name) for name in ("began", "go", "done"))

    def victim(rank):
        if not os.path.exists(began):
            write_late.submit(shmgpu.arena.zeros(10), began, go, done)
            wait_for(began)
            os.kill(os.getpid(), signal.SIGKILL)
        # The first call of this generation has the number that the lost one had.
        return add_one(np.arange(4)).tolist()

    def witness(rank):
        wait_for(began)
        while shmgpu.stats()["children"][0]["state"] == 1:
            time.sleep(0.005)
        touch(go)

    counted: dict = {}
    result, _ = shmgpu.launch(
        [victim, witness],
        helpers=1,
        devices="cpu",
        arena=ARENA,
        restart="on-failure",
        stats_into=counted,
    )
    assert result == [1, 2, 3, 4]
    assert counted["children"][0]["dropped"] == 1
    assert counted["broker"]["dropped"] == 1
    assert counted["children"][0]["answered"] == 1


def test_f02_a_dead_helper_does_not_run_calls_of_a_dead_child_again(tmp_path):
    """Else they would write into the next one's arena."""
    began, go = str(tmp_path / "began"), str(tmp_path / "go")

    def victim(rank):
        if os.path.exists(began):
            return all_of_the_arena().any()
        note_runs.submit(began, go)
        wait_for(began)
        os.kill(os.getpid(), signal.SIGKILL)

    def killer(rank):
        wait_for(began)
        while shmgpu.stats()["children"][0]["state"] == 1:
            time.sleep(0.005)
        os.kill(shmgpu.stats()["helpers"][0]["pid"], signal.SIGKILL)
        return add_one(np.zeros(1)).tolist()

    dirty, served = shmgpu.launch(
        [victim, killer], helpers=1, devices="cpu", arena=ARENA, restart="on-failure"
    )
    assert not dirty and served == [1.0]
    assert open(began).read() == "x"


def test_a_child_that_fails_again_and_again_ends_the_launch_at_the_bound(tmp_path):
    lives = tmp_path / "lives"

    def main(rank):
        if rank == 0:
            with open(lives, "a") as file:
                file.write("x")
            raise ValueError("once more")
        while True:
            add_one(np.zeros(1))

    with pytest.raises(shmgpu.ChildError, match="once more") as raised:
        shmgpu.launch(
            main,
            children=2,
            devices="cpu",
            arena=ARENA,
            restart="on-failure",
            max_restarts=3,
        )
    assert lives.read_text() == "xxxx"
    assert raised.value.rank == 0 and "ValueError" in raised.value.traceback_text


def test_a_restarted_childs_result_is_its_last_life_s(tmp_path):
    def main(rank):
        mark = tmp_path / f"{rank}"
        if not mark.exists():
            mark.touch()
            if rank % 2:
                raise ValueError("first life")
        return rank, np.random.random()

    results = shmgpu.launch(
        main, children=4, devices="cpu", arena=ARENA, restart="on-failure", seed=7
    )
    for mark in tmp_path.iterdir():
        mark.unlink()
    assert [rank for rank, _ in results] == [0, 1, 2, 3]
    # The same seed in every life of a rank.
    again = shmgpu.launch(
        lambda rank: (rank, np.random.random()), children=4, devices="cpu", seed=7
    )
    assert results == again


def test_a_child_that_leaves_without_its_result_has_failed(tmp_path):
    def main(rank):
        if rank == 0:
            os._exit(0)
        while True:
            add_one(np.zeros(1))

    with pytest.raises(shmgpu.ChildError, match="before its main had ended"):
        shmgpu.launch(main, children=2, devices="cpu", arena=ARENA)

    def twice(rank):
        if not (tmp_path / "lived").exists():
            (tmp_path / "lived").touch()
            os._exit(0)
        return "second life"

    assert shmgpu.launch(twice, children=1, devices="cpu", arena=ARENA, restart="on-failure") == [
        "second life"
    ]


def test_an_exception_whose_text_cannot_be_made_is_told_by_its_type():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    def main(rank):
        raise Mute

    with pytest.raises(shmgpu.ChildError, match=r"Mute: \(its text could not be made"):
        shmgpu.launch(main, children=1, devices="cpu", arena=ARENA)


def test_a_replacement_that_cannot_be_forked_is_told_as_delayed(monkeypatch, caplog):
    real, calls = os.fork, []

    def fork():
        calls.append(1)
        if len(calls) in (3, 4):  # after the helper and the child
            raise OSError(errno.EAGAIN, "no more")
        return real()

    def main(rank):
        with pytest.raises(shmgpu.HelperDied):
            crash(int(signal.SIGKILL))
        return add_one(np.zeros(1)).tolist()

    monkeypatch.setattr(os, "fork", fork)
    with caplog.at_level(logging.WARNING, logger="shmgpu"):
        assert shmgpu.launch(main, children=1, helpers=1, devices="cpu", arena=ARENA) == [[1.0]]
    first, second = events_of(caplog, "helper_delayed")
    assert "ulimit -u" in first["cause"] and first["action"] == "tried again in 1 s"
    assert (first["attempts"], second["attempts"]) == (1, 2)


@pytest.mark.parametrize("settings", [{"restart": "always"}, {"max_restarts": 0}])
def test_settings_of_restart_out_of_range_are_refused(settings):
    with pytest.raises(shmgpu.errors.ConfigError, match=next(iter(settings))):
        shmgpu.launch(print, children=1, **settings)


# ---- what the log says ---------------------------------------------------------------------


def events_of(caplog, kind):
    return [r.event for r in caplog.records if getattr(r, "event", {}).get("kind") == kind]


@shmgpu.function(arrays="numpy")
def crash(helper, number):
    os.kill(os.getpid(), number)
    time.sleep(60)


@shmgpu.function(arrays="numpy", hang_after=0.2)
def hang(helper):
    time.sleep(60)


def test_every_death_is_one_line_with_cause_action_and_where_the_stack_is(caplog, tmp_path):
    def main(rank):
        mark = tmp_path / "mark"
        for number in (signal.SIGSEGV, signal.SIGKILL):
            with pytest.raises(shmgpu.HelperDied):
                crash(int(number))
        with pytest.raises(shmgpu.HelperDied):
            hang()
        if not mark.exists():
            mark.touch()
            os.abort()

    with caplog.at_level(logging.DEBUG, logger="shmgpu"):
        shmgpu.launch(main, children=1, helpers=4, devices="cpu", arena=ARENA, restart="on-failure")
    deaths = events_of(caplog, "helper_died")
    assert {death["cause"] for death in deaths} == {
        "killed by SIGSEGV",
        "killed by SIGKILL",
        "a call exceeded its function's hang_after: killed by SIGABRT",
    }
    for death in deaths:
        assert death["role"].startswith("helper ") and death["action"].startswith("replaced")
        name = "hang" if "hang_after" in death["cause"] else "crash"
        assert death["function"].endswith(name)
        killed = death["cause"] == "killed by SIGKILL"
        assert death["stack"] == ("none was left" if killed else "next record")
    stacks = [event["stack"] for event in events_of(caplog, "stack")]
    assert any("in crash" in stack for stack in stacks)
    assert any("in hang" in stack for stack in stacks)
    assert len(events_of(caplog, "helper_hung")) == 2
    (failed,) = events_of(caplog, "child_failed")
    assert failed["cause"] == "killed by SIGABRT" and "restarted" in failed["action"]
    assert any("in main" in stack for stack in stacks)
    lines = [
        r.getMessage() for r in caplog.records if getattr(r, "event", {}).get("kind") != "stack"
    ]
    assert all("\n" not in line for line in lines)


def test_a_kill_while_the_kernel_counts_one_for_want_of_memory_is_called_that(
    monkeypatch, tmp_path, caplog
):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("pgfault 5\noom_kill 3\n")
    monkeypatch.setattr(shmgpu.broker.events, "VMSTAT", str(vmstat))

    def main(rank):
        vmstat.write_text("pgfault 5\noom_kill 4\n")
        with pytest.raises(shmgpu.HelperDied):
            crash(int(signal.SIGKILL))
        with pytest.raises(shmgpu.HelperDied):
            crash(int(signal.SIGKILL))

    with caplog.at_level(logging.ERROR, logger="shmgpu"):
        shmgpu.launch(main, children=1, helpers=1, devices="cpu", arena=ARENA)
    causes = [event["cause"] for event in events_of(caplog, "helper_died")]
    assert causes == ["killed by SIGKILL, likely out of memory", "killed by SIGKILL"]


def test_the_native_stack_of_a_child_is_told_with_its_error():
    def main(rank):
        def deep_inside():
            os.abort()

        deep_inside()

    with pytest.raises(shmgpu.ChildError, match="SIGABRT") as raised:
        shmgpu.launch(main, children=1, devices="cpu", arena=ARENA)
    assert "in deep_inside" in raised.value.traceback_text
