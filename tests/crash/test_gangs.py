"""One call on several helpers: what befalls its members, its caller, its broker (F38 to F42)."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from attach import brokers
from crash import programs
from crash.programs import is_alive, say, until
from gangs import members
from gangs.members import ask, submit

import shmgpu
from shmgpu.attach import control
from shmgpu.child.gang_calls import outcome_of
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.dtypes import by_name

ARENA = {"devices": "cpu", "arena": "16MiB"}
ALL_REDUCE = {"step": "collective", "kind": "all_reduce"}
COUNT = 20_000
FLOATS = [ArraySpec(by_name("float32"), (COUNT,))]


def given(size, count=COUNT):
    found = []
    for rank in range(size):
        array = shmgpu.arena.zeros(count, np.float32)
        array[...] = rank + 1
        found.append([array])
    return found


def expect_gangs_work(helpers):
    arrays = given(len(helpers))
    for own in ask(helpers, {**ALL_REDUCE, "commits": True}, arrays, FLOATS):
        assert (own[0] == sum(range(1, len(helpers) + 1))).all()


def helpers_now():
    return shmgpu.stats()["helpers"]


# ---- members ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(set(members.COLLECTIVES) - {"none"}))
def test_f38_a_member_killed_in_a_collective_ends_the_call_and_survivors_live_on(kind):
    with shmgpu.init(helpers=3, **ARENA):
        for what, victim in (("SIGKILL", 0), ("SIGSEGV", 2), ("exit", 1)):
            befall = {"times": 4, "at": 2, "victim": victim, "what": what}
            before = [row["generation"] for row in helpers_now()]
            with pytest.raises(shmgpu.HelperDied) as raised:
                ask([0, 1, 2], {"step": "collective", "kind": kind, **befall}, given(3), FLOATS)
            assert outcome_of(raised.value) == (victim, False)
            expect_gangs_work([0, 1, 2])
            expected = [count + (helper == victim) for helper, count in enumerate(before)]
            assert [row["generation"] for row in helpers_now()] == expected


def test_f38_a_call_that_no_member_had_begun_runs_with_the_replacement():
    with shmgpu.init(helpers=2, **ARENA):
        for _ in range(20):
            expect_gangs_work([0, 1])  # known to be short: the next ones are handed ahead
        stops = {"at": 0, "victim": 1, "what": "SIGSTOP"}
        first, _ = submit([0, 1], {**ALL_REDUCE, **stops}, given(2), FLOATS)
        behind = [submit([0, 1], ALL_REDUCE, given(2), FLOATS)[0] for _ in range(3)]
        until(lambda: helpers_now()[1]["in_flight"] > 1, "others wait behind it")
        os.kill(helpers_now()[1]["pid"], signal.SIGKILL)
        with pytest.raises(shmgpu.HelperDied):
            first.result(20)
        for future in behind:
            future.result(20)
        assert shmgpu.stats()["broker"]["requeued"] >= 1


def test_f38_an_idempotent_call_is_made_once_more_and_never_a_third_time():
    with shmgpu.init(helpers=2, **ARENA):
        befall = {"at": 0, "victim": 1, "what": "SIGKILL"}
        with pytest.raises(shmgpu.HelperDied):
            ask([0, 1], {**ALL_REDUCE, **befall}, given(2), FLOATS, members.idempotent_members)
        until(lambda: helpers_now()[1]["deaths"] == 2, "the second member died as the first did")
        assert shmgpu.stats()["broker"]["retried"] == 1
        expect_gangs_work([0, 1])


def test_f39_a_call_that_stands_is_said_to_stand_whoever_dies_after_it():
    with shmgpu.init(helpers=3, **ARENA):
        befall = {"commits": True, "victim": 1, "what": "SIGKILL"}
        for at, stands in ((0, False), ("committed", True)):
            with pytest.raises(shmgpu.HelperDied) as raised:
                ask([0, 1, 2], {**ALL_REDUCE, **befall, "at": at}, given(3), FLOATS)
            assert outcome_of(raised.value) == (1, stands)
        expect_gangs_work([0, 1, 2])


def test_f39_nothing_stands_while_one_member_has_not_arrived():
    """Who waits in the commit has done all its part, and still changes nothing."""
    with shmgpu.init(helpers=3, **ARENA):
        befall = {"commits": True, "victim": 1, "at": "arriving", "what": "dies late"}
        with pytest.raises(shmgpu.HelperDied) as raised:
            ask([0, 1, 2], {**ALL_REDUCE, **befall}, given(3), FLOATS)
        assert outcome_of(raised.value) == (1, False)
        expect_gangs_work([0, 1, 2])


def test_f39_a_member_that_raises_ends_the_call_with_its_own_error():
    with shmgpu.init(helpers=3, **ARENA):
        befall = {"times": 3, "at": 1, "victim": 2, "what": "raise"}
        with pytest.raises(shmgpu.RemoteError, match="this member cannot") as raised:
            ask([0, 1, 2], {**ALL_REDUCE, **befall}, given(3), FLOATS)
        assert raised.value.matches(ValueError)
        assert outcome_of(raised.value) == (2, False)
        assert sum(row["deaths"] for row in helpers_now()) == 0
        expect_gangs_work([0, 1, 2])


def test_f40_of_a_call_that_hangs_the_stopped_member_is_ended_and_no_other():
    with shmgpu.init(helpers=3, **ARENA):
        for victim in (0, 2):
            befall = {"times": 3, "at": 1, "victim": victim, "what": "SIGSTOP"}
            before = [row["generation"] for row in helpers_now()]
            with pytest.raises(shmgpu.HelperDied) as raised:
                ask(
                    [0, 1, 2], {**ALL_REDUCE, **befall}, given(3), FLOATS, members.impatient_members
                )
            assert outcome_of(raised.value) == (victim, False)
            expect_gangs_work([0, 1, 2])
            expected = [count + (helper == victim) for helper, count in enumerate(before)]
            assert [row["generation"] for row in helpers_now()] == expected
        assert shmgpu.stats()["broker"]["helper_hangs"] == 2


def test_f40_members_that_disagree_or_wait_for_each_other_are_told_and_do_not_hang():
    with shmgpu.init(helpers=2, **ARENA):
        arrays = given(2)
        with pytest.raises(
            shmgpu.RemoteError, match=r"all_reduce.*all_gather|all_gather.*all_reduce"
        ):
            kinds = [{"step": "collective", "kind": kind} for kind in ("all_reduce", "all_gather")]
            ask([0, 1], kinds, arrays, FLOATS)
        with pytest.raises(shmgpu.RemoteError, match="went on without it"):
            times = [{**ALL_REDUCE, "times": 2}, {**ALL_REDUCE, "times": 1}]
            ask([0, 1], times, arrays, FLOATS)
        with pytest.raises(shmgpu.GangAborted, match="waited for each other"):
            ask([0, 1], {"step": "both receive"}, arrays, FLOATS)
        assert sum(row["deaths"] for row in helpers_now()) == 0
        expect_gangs_work([0, 1])


# ---- callers -----------------------------------------------------------------------------------


def used():
    return shmgpu.arena.stats()["used_bytes"]


def test_f41_ctrl_c_releases_the_caller_and_the_call_goes_on_with_its_memory():
    with shmgpu.init(helpers=2, **ARENA):
        expect_gangs_work([0, 1])
        nothing = used()
        sleeps = {"at": 0, "victim": 1, "what": "sleep", "seconds": 1.0}
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            ask([0, 1], {**ALL_REDUCE, **sleeps}, given(2), FLOATS)
        timer.join()
        assert used() >= nothing + 2 * 4 * COUNT  # helpers may still write to it
        until(lambda: expect_gangs_work([0, 1]) or used() <= nothing + 65536, "it comes back")
        assert sum(row["deaths"] for row in helpers_now()) == 0


def test_f41_the_death_of_the_caller_is_nobody_elses_business(tmp_path):
    began = tmp_path / "began"

    def victim(rank):
        sleeps = {"at": 0, "victim": 1, "what": "sleep", "seconds": 0.5}
        submit([0, 1], {**ALL_REDUCE, **sleeps}, given(2), FLOATS)
        until(lambda: helpers_now()[1]["in_flight"], "its call runs")
        began.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def witness(rank):
        until(began.exists, "the other one has called")
        for _ in range(20):
            expect_gangs_work([0, 1])
        until(lambda: shmgpu.stats()["children"][0]["state"] not in (1, 3), "its arena is free")
        return sum(row["deaths"] for row in helpers_now())

    with pytest.raises(shmgpu.ChildError, match="SIGKILL"):
        shmgpu.launch([victim, witness], helpers=2, **ARENA)
    counted: dict = {}
    shmgpu.launch(
        [victim_once(tmp_path / "once", victim, began), witness],
        helpers=2,
        restart="on-failure",
        stats_into=counted,
        **ARENA,
    )
    assert counted["broker"]["helper_deaths"] == 0
    assert counted["children"][0]["dropped"] == 1


def victim_once(marker, victim, began):
    """The same, which ends well when it is started anew."""

    def main(rank):
        if marker.exists():
            return
        marker.touch()
        began.unlink(missing_ok=True)
        victim(rank)

    return main


def waits_in_a_gang():
    def main(rank):
        say("child", os.getpid())
        for row in helpers_now():
            say("helper", row["pid"])
        submit([0, 1], {**ALL_REDUCE, "at": 0, "victim": 0, "what": "SIGSTOP"}, given(2), FLOATS)
        until(lambda: helpers_now()[1]["in_flight"], "its call runs")
        say("runs", 0)
        time.sleep(60)

    shmgpu.launch(main, children=1, helpers=2, **ARENA)


def test_f41_when_the_parent_is_killed_members_that_wait_are_gone_as_well():
    with programs.start(waits_in_a_gang) as program:
        lines = [line.split() for line in program.lines(4)]
        pids = {int(pid) for word, pid in lines if word != "runs"}
        assert len(pids) == 3 and all(map(is_alive, pids))
        os.kill(program.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, pids)), "every role is gone", 4.0)


# ---- helpers that come and go ------------------------------------------------------------------


def test_f42_a_pool_is_scaled_while_its_helpers_run_a_call(tmp_path):
    path = tmp_path / "broker.sock"
    with brokers.up(path, "gangs.members", helpers=3, arena="16MiB"):
        shmgpu.connect(path)
        try:
            expect_gangs_work([0, 1, 2])
            sleeps = {"at": 0, "victim": 2, "what": "sleep", "seconds": 0.5}
            runs, _ = submit([0, 1, 2], {**ALL_REDUCE, **sleeps}, given(3), FLOATS)
            until(lambda: helpers_now()[2]["in_flight"], "it runs")
            waits, _ = submit([1, 2], ALL_REDUCE, given(2), FLOATS)
            beside, _ = submit([0, 1], ALL_REDUCE, given(2), FLOATS)
            control.scale(2, path=path)
            runs.result(20)  # what helpers hold is finished
            with pytest.raises(shmgpu.NoHelpers):
                waits.result(20)
            beside.result(20)
            with pytest.raises(shmgpu.NoHelpers):
                ask([0, 2], ALL_REDUCE, given(2), FLOATS)
            expect_gangs_work([0, 1])
            control.scale(3, path=path)
            until(lambda: helpers_now()[2]["state"] == 2, "it is there again")
            expect_gangs_work([0, 1, 2])
            assert sum(row["deaths"] for row in helpers_now()) == 0
        finally:
            shmgpu.disconnect()


programs.main(globals())
