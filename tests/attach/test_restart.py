"""A broker ends and another takes its place: programs that were in the one come into the other."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import numpy as np
import pytest
from attach import brokers, served
from attach.brokers import until

import shmgpu
from shmgpu.child import runtime


@pytest.fixture
def path(tmp_path):
    return tmp_path / "b.sock"


@pytest.fixture
def by_itself(path, monkeypatch):
    """This process is as one that has never joined, and joins with its first call."""
    monkeypatch.setenv("SHMGPU_SOCKET", str(path))
    monkeypatch.setenv("SHMGPU_AUTO", "join")
    monkeypatch.setattr(runtime, "why_not", shmgpu.NotRunning(runtime.NOT_RUNNING))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_had_joined_hears_what_to_do_and_does_it(path, number):
    with brokers.up(path, helpers=1) as broker:
        shmgpu.connect(path)
        x = served.add_one(shmgpu.arena.zeros(3))
        assert shmgpu.is_running()
        broker.send_signal(number)
        until(lambda: not shmgpu.is_running(), "no call is needed to see it")
        broker.wait()
        for _ in range(2):
            with pytest.raises(shmgpu.BrokerDied, match=r"call shmgpu\.connect\(\) to join"):
                served.add_one(x)
    with pytest.raises(shmgpu.NotRunning, match="no broker listens"):
        shmgpu.connect(path)
    with pytest.raises(shmgpu.BrokerDied, match=r"call shmgpu\.connect\(\) to join"):
        served.add_one(x)
    with brokers.up(path, helpers=1), shmgpu.connect(path):
        assert shmgpu.is_running()
        assert served.add_one(x).tolist() == [2, 2, 2]  # what it kept, and what was the arena's


def test_who_joined_by_a_first_call_is_in_the_next_broker_with_the_next(path, by_itself):
    with brokers.up(path, helpers=1) as broker:
        x = served.add_one(np.zeros(3))
        kept = shmgpu.arena.array(x)
        flying = served.slow.submit(x, 60)
        blocked = []
        thread = threading.Thread(target=lambda: blocked.append(outcome_of(served.slow, x, 60)))
        thread.start()
        until(lambda: shmgpu.stats()["children"][shmgpu.rank()]["submitted"] == 3, "both are out")
        broker.kill()
        broker.wait()
        with pytest.raises(shmgpu.NotRunning, match="no broker is running"):
            served.add_one(x)
        with pytest.raises(shmgpu.BrokerDied):
            flying.result(timeout=brokers.DEADLINE_S)
        thread.join(brokers.DEADLINE_S)
        assert [type(one) for one in blocked] == [shmgpu.BrokerDied]
    for ask in (served.add_one, lambda x: served.add_one.submit(x).result(), aio):
        with brokers.up(path, helpers=1):
            assert ask(kept).tolist() == [2, 2, 2]
            assert ask(kept).tolist() == [2, 2, 2]
    shmgpu.disconnect()
    with brokers.up(path, helpers=1), pytest.raises(shmgpu.NotRunning, match="has left"):
        served.add_one(x)


def outcome_of(call, *arguments):
    try:
        return call(*arguments)
    except shmgpu.ShmError as error:
        return error


def aio(x):
    async def ask():
        return await served.add_one.aio(x)

    return asyncio.run(ask())


def test_an_event_loop_goes_on_through_brokers(path, by_itself):
    async def ask():
        for _ in range(3):
            with brokers.up(path, helpers=1) as broker:
                many = [served.add_one.aio(np.full(3, n)) for n in range(8)]
                assert [(await one).tolist() for one in many] == [[n + 1] * 3 for n in range(8)]
                flying = asyncio.ensure_future(served.slow.aio(np.zeros(1), 60))
                await asyncio.sleep(0)
                os.kill(broker.pid, signal.SIGKILL)
                broker.wait()
                with pytest.raises(shmgpu.BrokerDied):
                    await flying

    asyncio.run(ask())


def test_claim_makes_room_for_itself_as_connect_does(path, monkeypatch):
    monkeypatch.setenv("SHMGPU_SOCKET", str(path))
    for _ in range(2):
        with brokers.up(path, helpers=1):
            shmgpu.claim(wait=brokers.DEADLINE_S)
            assert served.add_one(np.zeros(1)).tolist() == [1]
