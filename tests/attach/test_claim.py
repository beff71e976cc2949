"""A process that the user's own program forked takes a place of its own in the same broker."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback

import numpy as np
import pytest
from attach import brokers, served
from attach.brokers import until

import shmgpu
from shmgpu import core
from shmgpu.attach import control


def in_fork(body, meanwhile=lambda: None) -> str:
    """What the function returns in a forked process, as text; here something is done meanwhile."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(int(brokers.DEADLINE_S))  # one that hangs outlives no test
        try:
            os.write(write, str(body()).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    meanwhile()
    with open(read) as pipe:
        text = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text
    return text


def claims_and_calls():
    with shmgpu.claim(wait=brokers.DEADLINE_S):
        x = shmgpu.arena.zeros(3)
        y = served.add_one(x)
        futures = [served.add_one.submit(y) for _ in range(5)]
        assert all(future.result().tolist() == [2, 2, 2] for future in futures)
        return shmgpu.rank(), core.arena_shift(), y.tolist()


def test_a_process_forked_from_a_child_of_a_launch_claims_a_place():
    def main(rank):
        x = shmgpu.arena.zeros(3)
        claimed = in_fork(claims_and_calls)
        return claimed, served.add_one(x).tolist()

    (found,) = shmgpu.launch(main, slots=2, devices="cpu", arena="1MiB")
    assert found == ("(1, 0, [1.0, 1.0, 1.0])", [1, 1, 1])  # at the broker's addresses


def test_a_process_forked_from_the_caller_of_an_init_claims_a_place():
    with shmgpu.init(slots=1, devices="cpu", arena="1MiB"):
        x = served.add_one(shmgpu.arena.zeros(3))
        for _ in range(3):  # one after the other: the place is given again
            assert in_fork(claims_and_calls).endswith("[1.0, 1.0, 1.0])")
        assert served.add_one(x).tolist() == [2, 2, 2]
    assert "SHMGPU_SOCKET" not in os.environ


def test_after_an_init_the_socket_of_the_user_s_own_broker_is_named_again(monkeypatch):
    monkeypatch.setenv("SHMGPU_SOCKET", "/none/mine.sock")
    with shmgpu.init(slots=1, devices="cpu", arena="1MiB"):
        assert os.environ["SHMGPU_SOCKET"] != "/none/mine.sock"
    assert os.environ["SHMGPU_SOCKET"] == "/none/mine.sock"


def test_beside_threads_where_the_broker_is_started_by_exec_a_forked_process_claims_too():
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    try:
        with shmgpu.init(slots=1, devices="cpu", arena="1MiB"):
            assert in_fork(claims_and_calls).endswith("[1.0, 1.0, 1.0])")
            assert served.add_one(np.zeros(1)).tolist() == [1]
    finally:
        ends.set()
        thread.join()
    assert "SHMGPU_SOCKET" not in os.environ


def test_a_process_forked_from_a_client_claims_a_place_in_the_same_broker(place):
    with shmgpu.connect(place, wait=brokers.DEADLINE_S):
        assert in_fork(claims_and_calls).endswith("[1.0, 1.0, 1.0])")
        assert served.add_one(np.zeros(1)).tolist() == [1]


def test_a_forked_process_that_works_elsewhere_finds_the_broker(place, monkeypatch):
    monkeypatch.chdir(place.parent)

    def body():
        os.chdir("/")
        return claims_and_calls()

    with shmgpu.connect(place.name, wait=brokers.DEADLINE_S):
        assert in_fork(body).endswith("[1.0, 1.0, 1.0])")


def test_a_process_that_was_forked_from_none_claims_in_the_users_broker(place, monkeypatch):
    monkeypatch.setenv("SHMGPU_SOCKET", str(place))
    assert in_fork(claims_and_calls).endswith("[1.0, 1.0, 1.0])")
    with shmgpu.claim(wait=brokers.DEADLINE_S):
        assert served.add_one(np.zeros(1)).tolist() == [1]


def test_many_claim_at_once_and_each_has_an_arena_of_its_own():
    def worker(number, results):
        with shmgpu.claim():
            x = shmgpu.arena.empty(50_000)
            for turn in range(20):
                x[:] = number * 100 + turn
                assert (served.add_one(x) == number * 100 + turn + 1).all()
            results.put((number, shmgpu.rank()))

    def main(rank):
        context = multiprocessing.get_context("fork")
        results = context.SimpleQueue()
        workers = [context.Process(target=worker, args=(n, results)) for n in range(4)]
        for one in workers:
            one.start()
        for one in workers:
            one.join()
        assert [one.exitcode for one in workers] == [0] * 4
        return sorted(results.get() for _ in workers)

    (found,) = shmgpu.launch(main, slots=4, helpers=2, devices="cpu", arena="1MiB")
    assert [number for number, _ in found] == [0, 1, 2, 3]
    assert all(1 <= rank <= 4 for _, rank in found)


def test_until_it_claims_a_forked_process_is_told_what_to_do(place):
    with shmgpu.connect(place, wait=brokers.DEADLINE_S):
        kept = served.add_one(shmgpu.arena.zeros(3))

        def body():
            with pytest.raises(shmgpu.NotRunning, match=r"was forked.*shmgpu.claim\(\)"):
                served.add_one(kept)
            with pytest.raises(shmgpu.NotRunning, match="was forked"):
                shmgpu.arena.empty(3)
            with pytest.raises(shmgpu.LaunchError, match="forked from a child"):
                shmgpu.launch(print)
            shmgpu.disconnect()  # not its own: nothing happens
            return kept.tolist()

        assert in_fork(body) == "[1.0, 1.0, 1.0]"
        assert served.add_one(kept).tolist() == [2, 2, 2]


def test_a_fork_whose_broker_has_ended_says_so():
    read, write = os.pipe()

    def body():
        os.close(write)
        os.read(read, 1)
        with pytest.raises(
            shmgpu.NotRunning, match="that forked this one has ended: start another there"
        ):
            shmgpu.claim()
        return "told"

    def ends():
        shmgpu.shutdown()
        os.close(write)

    shmgpu.init(helpers=1, devices="cpu", slots=1)
    assert in_fork(body, ends) == "told"
    os.close(read)


def test_a_launch_without_places_says_so():
    def body():
        with pytest.raises(shmgpu.LaunchError, match=r"has no slots for others.*slots=4"):
            shmgpu.claim()
        return True

    def main(rank):
        return in_fork(body)

    assert shmgpu.launch(main, devices="cpu", arena="1MiB") == ["True"]


def test_more_claims_than_places_are_refused_in_a_sentence_and_logged(caplog):
    def body():
        with shmgpu.claim():

            def another():
                with pytest.raises(shmgpu.LaunchError, match="all 1 slots"):
                    shmgpu.claim()
                return True

            return in_fork(another)

    with caplog.at_level(logging.WARNING, logger="shmgpu"):
        found = shmgpu.launch(lambda rank: in_fork(body), slots=1, devices="cpu", arena="1MiB")
    assert found == ["True"]
    (told,) = [event for r in caplog.records if (event := getattr(r, "event", None))]
    assert (told["kind"], told["action"]) == ("child_refused", "sent away")
    assert "slot" in told["cause"]
    with pytest.raises(shmgpu.ConfigError, match="slots must be a whole number"):
        shmgpu.init(slots="many")


def test_programs_that_a_child_starts_find_its_broker(place):
    code = """
import numpy, shmgpu
from attach import served
with shmgpu.connect():
    print(served.add_one(numpy.zeros(2)).tolist())
"""

    def main(rank):
        return subprocess.run(
            [sys.executable, "-c", code], env=brokers.environment(), capture_output=True, text=True
        ).stdout

    assert shmgpu.launch(main, slots=1, devices="cpu", arena="1MiB") == ["[1.0, 1.0]\n"]


def test_the_forking_process_leaves_though_a_forked_one_lives_on(place):
    """An inherited end of its pipe would hide its leaving from the broker."""
    shmgpu.connect(place, wait=brokers.DEADLINE_S)
    hold, let_go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(let_go)
        os.read(hold, 1)
        os._exit(0)
    try:
        rank = shmgpu.rank()
        shmgpu.disconnect()

        def same_place():
            with shmgpu.connect(place, wait=brokers.DEADLINE_S):
                return shmgpu.rank() == rank

        until(same_place, "the place is free again")
    finally:
        os.close(hold)
        os.close(let_go)
        os.waitpid(pid, 0)


def test_a_fork_while_other_threads_allocate_and_call_can_claim(place):
    ends = threading.Event()

    def works():
        while not ends.is_set():
            served.add_one(shmgpu.arena.zeros(100))

    with shmgpu.connect(place, wait=brokers.DEADLINE_S):
        threads = [threading.Thread(target=works) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                assert in_fork(claims_and_calls).endswith("[1.0, 1.0, 1.0])")
        finally:
            ends.set()
            for thread in threads:
                thread.join()


def test_f35_a_claimer_that_is_killed_is_cleaned_up_after_and_its_fork_goes_on():
    def body():
        shmgpu.claim(wait=brokers.DEADLINE_S)
        shmgpu.arena.empty(100_000)[:] = 42
        served.slow.submit(np.zeros(1), 0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    def main(rank):
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                body()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

        def clean():
            with shmgpu.claim(wait=brokers.DEADLINE_S):
                return shmgpu.arena.empty(100_000).any()

        return in_fork(clean), served.add_one(np.zeros(1)).tolist()

    results = shmgpu.launch(main, slots=1, helpers=2, devices="cpu", arena="1MiB")
    assert results == [("False", [1])]


def ask_for_more(rank):
    with pytest.raises(shmgpu.ConfigError) as told:
        control.scale(9, path=os.environ["SHMGPU_SOCKET"])
    return str(told.value)


def test_a_launch_that_cannot_have_more_helpers_says_so_in_its_own_words():
    (told,) = shmgpu.launch(ask_for_more, children=1, helpers=1, devices="cpu", slots=1)
    assert "from 1 to 1 helpers: to have more, start the broker with more helpers" in told
