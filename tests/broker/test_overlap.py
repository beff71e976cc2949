"""A device that computes on its own: two batches at a time, answered when they are complete.

The device is a pretence, so that this runs everywhere: copies happen when their event is waited
for, and not before.
"""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import torch
from crash.programs import until

import shmgpu
from shmgpu import core
from shmgpu.common import devices


class Event:
    def __init__(self, pretence, copies):
        self.pretence = pretence
        self.copies = copies

    def synchronize(self):
        self.pretence.events -= 1
        for destination, tensor in self.copies:
            if torch.isnan(tensor.float()).any():
                raise RuntimeError("CUDA error: pretended")
            destination.copy_(tensor)


class Pretence(devices.CpuDevice):
    is_cuda = True

    def __init__(self):
        self.copies = []
        self.events = 0
        self.most_events = 0

    def to_device(self, tensor):
        return tensor.clone()

    def new_like(self, tensor):
        return torch.empty_like(tensor)

    def copy_out(self, destination, tensor):
        self.copies.append((destination, tensor.clone()))

    def take_event(self):
        if not self.copies:
            return None
        self.events += 1
        self.most_events = max(self.most_events, self.events)
        event, self.copies = Event(self, self.copies), []
        return event

    def finish(self):
        event = self.take_event()
        if event is not None:
            event.synchronize()


PRETENCE = Pretence()


@shmgpu.function
def double(helper, x):
    time.sleep(0.001)  # so that the next call is there before this one is complete
    return x * 2


@shmgpu.function(batch=shmgpu.Batch(max_size=8))
def double_rows(helper, x):
    return x * 2


@shmgpu.function(out=lambda x: (shmgpu.Declared(x.shape), shmgpu.Declared(x.shape)))
def declared(helper, x):
    helper.out[0].copy_(x + 1)
    helper.out[1].copy_(x + 2)
    return helper.out


@shmgpu.function(mutates=True)
def doubles_in_place(helper, x):
    x.mul_(2)


@shmgpu.function(mutates=True, batch=8)
def doubles_rows_in_place(helper, x):
    x.mul_(2)
    return x + 1


@shmgpu.function(arrays="numpy")
def on_cpu(helper, x):
    return x + 1


@shmgpu.function
def most_in_flight(helper):
    return PRETENCE.most_events


@shmgpu.function
def grows(helper, n):
    return torch.full((n,), 5.0)


@pytest.fixture
def overlapping(monkeypatch):
    run = core.run
    monkeypatch.setattr(devices, "make", lambda *_: PRETENCE)
    # A GPU's helper always holds two messages; the broker takes this one for a CPU's.
    monkeypatch.setattr(core, "run", lambda host, **s: run(host, **{**s, "min_credit": [2]}))


@pytest.fixture
def broker(overlapping):
    with shmgpu.init(helpers=1, devices="cpu"):
        yield


def test_the_end_of_a_broker_is_nothing_that_its_helper_complains_of(overlapping, tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    handler.setLevel(logging.WARNING)
    logging.getLogger("shmgpu").addHandler(handler)  # forked with the helper
    try:
        with shmgpu.init(helpers=1, devices="cpu"):
            assert double(np.ones(2, "f4")).tolist() == [2, 2]
    finally:
        logging.getLogger("shmgpu").removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == ""


def test_answers_come_when_the_device_is_done(broker):
    inputs = [np.full((2, 3), n, "f4") for n in range(200)]
    futures = [double.submit(x) for x in inputs]
    rows = [double_rows.submit(x) for x in inputs]
    numpy = [on_cpu.submit(x) for x in inputs]
    for n in range(200):
        assert (futures[n].result(10) == 2 * n).all()
        assert (rows[n].result(10) == 2 * n).all()
        assert (numpy[n].result(10) == n + 1).all()
    assert most_in_flight() == 2


def test_a_lone_call_is_answered_at_once(broker):
    for n in range(20):
        assert double(np.full(3, n, "f4")).tolist() == [2 * n] * 3
    first, second = declared(np.ones(2, "f4"))
    assert first.tolist() == [2, 2] and second.tolist() == [3, 3]
    for n in (10, 100_000, 20):
        assert grows(n).tolist() == [5.0] * n


def test_it_is_loaded_at_the_first_call_and_unloaded_when_it_has_been_idle(overlapping):
    with shmgpu.init(helpers=1, devices="cpu", lazy=True, idle=0.5):
        for generation in (1, 2):
            futures = [double.submit(np.full(2, n, "f4")) for n in range(20)]
            assert [one.result(10).tolist() for one in futures] == [[2 * n] * 2 for n in range(20)]
            assert shmgpu.stats()["helpers"][0]["generation"] == generation
            until(lambda: is_unloaded(shmgpu.stats()["helpers"][0]), "it has been idle")


def is_unloaded(row):
    return row["state"] == core.HELPER_UNLOADED and row["deaths"] == 0


def test_what_a_function_that_mutates_writes_on_the_device_comes_back(broker):
    arrays = [shmgpu.arena.zeros((2, 3)) + 0 for _ in range(12)]
    arrays = [shmgpu.arena.array(x + n) for n, x in enumerate(arrays)]
    for function in (doubles_in_place, doubles_rows_in_place):
        doubled = [2 * x for x in arrays]
        for future in [function.submit(x) for x in arrays]:
            future.result(10)
        assert all((x == y).all() for x, y in zip(arrays, doubled, strict=True))
    doubled = 2 * arrays[5]
    doubles_rows_in_place(arrays[5])  # alone
    assert (arrays[5] == doubled).all()


def test_a_failure_that_shows_later_reaches_its_caller_only(broker):
    good = [double.submit(np.ones(3, "f4")) for _ in range(5)]
    bad = double.submit(np.full(3, np.nan, "f4"))
    more = [double.submit(np.ones(3, "f4")) for _ in range(5)]
    with pytest.raises(shmgpu.RemoteError, match="pretended"):
        bad.result(10)
    assert all(f.result(10).tolist() == [2] * 3 for f in good + more)
