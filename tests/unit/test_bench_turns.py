"""Work that clients do by turns."""

from __future__ import annotations

import os
import time

import pytest

from benchmarks.measure import stage
from benchmarks.measure import turns as measured
from benchmarks.measure.figures import ProbeFailed
from benchmarks.measure.turns import Turns


def driven(turns, works):
    """Start the clock and a client for each work; the clients' exit statuses."""
    turns.start_clock()
    pids = []
    for rank, work in enumerate(works):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                turns.drive(rank, work)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]


def test_all_clients_do_one_kind_at_a_time_and_each_is_counted(monkeypatch):
    monkeypatch.setattr(measured, "TURN_S", 0.02)
    turns = Turns(2, 3, seconds=0.12)
    assert turns.cycles == 2

    def work(kind):
        done = 0
        while turns.lasts(kind):
            time.sleep(0.001 * (kind + 1))
            done += 1
        return done

    assert driven(turns, [work, work]) == [0, 0]
    first, second, third = turns.rates()
    assert 2 / 0.001 > first > second > third > 0


def test_kinds_that_were_not_done_and_clients_that_never_came_are_said(monkeypatch):
    monkeypatch.setattr(measured, "TURN_S", 0.01)
    turns = Turns(1, 2, seconds=0.02)

    def work(kind):
        while turns.lasts(kind):
            time.sleep(0.001)
        return kind

    assert driven(turns, [work]) == [0]
    with pytest.raises(ProbeFailed, match="some kinds"):
        turns.rates()
    monkeypatch.setattr(stage, "START_LIMIT_S", 0.05)
    turns = Turns(2, 2, seconds=0.02)
    assert driven(turns, [work]) == [0]
    with pytest.raises(ProbeFailed, match="not every client"):
        turns.rates()
