"""Joining and leaving that are interrupted, at every point where CPython runs signal handlers."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from attach import brokers, served
from interrupts import Interrupts

import shmgpu
from shmgpu import core
from shmgpu.child import runtime

LATELY = brokers.DEADLINE_S


@pytest.fixture(scope="module")
def handler(tmp_path_factory):
    return Interrupts(tmp_path_factory.mktemp("interrupts"))


def join_and_leave(place):
    shmgpu.connect(place, wait=LATELY)
    assert served.add_one(np.ones(2)).tolist() == [2, 2]
    shmgpu.disconnect()


def test_f30_a_process_is_in_its_broker_or_out_of_it_and_never_between(place, handler):
    join_and_leave_at_every_point(place, handler, 9)


@pytest.mark.slow
def test_a_process_is_never_between_at_all_points(place, handler):
    join_and_leave_at_every_point(place, handler, 1)


def join_and_leave_at_every_point(place, handler, every):
    def check():
        if runtime.current is not None:  # it is in, wholly
            assert served.add_one(np.ones(2)).tolist() == [2, 2]
            shmgpu.disconnect()
        join_and_leave(place)
        assert core.role() == core.ROLE_NONE
        with pytest.raises(shmgpu.NotRunning):
            served.add_one(np.ones(2))

    join_and_leave(place)
    with handler.installed():
        points = handler.at_every_point(lambda: join_and_leave(place), check, every=every)
    assert points > 100


def test_leaving_that_was_interrupted_is_ended_by_whoever_joins_or_leaves_next(place, handler):
    def leave_slowly():
        shmgpu.connect(place, wait=LATELY)
        future = served.add_one.submit(np.ones(2))
        future.add_done_callback(lambda future: gate.wait(LATELY))
        threading.Timer(0.05, handler.interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            shmgpu.disconnect()  # it waits for the callback
        gate.set()

    with handler.installed():
        gate = threading.Event()
        leave_slowly()
        join_and_leave(place)
        gate = threading.Event()
        leave_slowly()
        shmgpu.disconnect()
        assert core.role() == core.ROLE_NONE
