"""Each way that a request can take counts it once, and leaves nothing pending."""

from __future__ import annotations

import types
from dataclasses import asdict

import numpy as np
import pytest

from shmgpu import CallTimeout
from shmgpu.serve import QueuePolicy
from shmgpu.serve.scheduling import accounting as accountings
from shmgpu.serve.scheduling.accounting import Accounting, ModelQueueFull
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.queues import ModelQueue
from shmgpu.serve.state.counters import FIELDS, INDEX

MODEL = types.SimpleNamespace(base=len(FIELDS))
PENDING = len(FIELDS) + INDEX["pending_1"]
QUEUE = ModelQueue(PENDING, asdict(QueuePolicy()))
STARTED = 0  # of a monotonic clock: all durations are more


@pytest.fixture
def numbers():
    return np.zeros(2 * len(FIELDS), np.uint64)


@pytest.fixture
def accounting(numbers):
    return Accounting(memoryview(numbers), 2)


def counted(numbers):
    """The model's counters that are not 0, without the durations."""
    own = zip(FIELDS, map(int, numbers[len(FIELDS) :]), strict=True)
    return {name: value for name, value in own if value and not name.endswith(("_ns", "_ms"))}


def answered(accounting):
    accounting.begin(QUEUE)
    accounting.leave(QUEUE)
    accounting.succeed(MODEL, 3, 5)
    accounting.told(MODEL, STARTED)


def answered_at_once(accounting):
    accounting.begin(QUEUE)
    accounting.answered(MODEL, QUEUE, 1, 3, 5, STARTED)


def sent_again(accounting):
    accounting.begin(QUEUE)
    accounting.leave(QUEUE)
    answered(accounting)


def unwritable(accounting):
    accounting.begin(QUEUE)
    accounting.leave(QUEUE)
    accounting.succeed(MODEL, 3, 5)
    accounting.revoke(MODEL, 3, 5)
    accounting.failed(MODEL, STARTED, ValueError())


def expired(accounting):
    accounting.begin(QUEUE)
    accounting.leave(QUEUE)
    accounting.failed(MODEL, STARTED, CallTimeout())


def cancelled(accounting):
    accounting.begin(QUEUE)
    accounting.leave(QUEUE)
    accounting.cancelled(MODEL, STARTED)


def found(accounting):
    accounting.hit(MODEL, 7)


def found_and_unwritable(accounting):
    accounting.hit(MODEL, 7)
    accounting.revoke_hit(MODEL, 7)


WAYS = [
    (answered, {"success_count": 1, "inference_count": 3}),
    (answered_at_once, {"success_count": 1, "inference_count": 3}),
    (sent_again, {"success_count": 1, "inference_count": 3}),
    (unwritable, {"fail_count": 1}),
    (expired, {"fail_count": 1, "expired_count": 1}),
    (cancelled, {"cancel_count": 1}),
    (found, {"success_count": 1, "cache_hit_count": 1}),
    (found_and_unwritable, {"fail_count": 1}),
]


@pytest.mark.parametrize(("way", "expected"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_a_request_is_counted_once_whatever_becomes_of_it(accounting, numbers, way, expected):
    way(accounting)
    assert counted(numbers) == expected
    assert accounting.pending == QUEUE.pending == 0
    took = {name: int(numbers[MODEL.base + INDEX[f"{name}_ns"]]) for name in ("success", "fail")}
    assert (took["success"] > 0) == ("success_count" in expected)
    assert (took["fail"] > 0) == ("fail_count" in expected)
    assert not numbers[: len(FIELDS)].any(), "another model's"


def three_at_once(accounting):
    for _ in range(3):
        accounting.begin(QUEUE)
    accounting.answered(MODEL, QUEUE, 3, 5, 11, 240)


def taken_back(accounting):
    accounting.succeed(MODEL, 4, 9)
    accounting.revoke(MODEL, 3, 7)


# What each counts where the clock says 100, and has passed 7 milliseconds of 1970.
EXACTLY = [
    (lambda a: a.refused(MODEL, 30, ValueError()),
     {"fail_count": 1, "refused_count": 1, "fail_ns": 70}),
    (lambda a: a.refused(MODEL, 30, ModelQueueFull()),
     {"fail_count": 1, "refused_count": 1, "full_count": 1, "fail_ns": 70}),
    (lambda a: a.missed(MODEL, 60), {"cache_miss_count": 1, "cache_miss_ns": 40}),
    (lambda a: a.kept(MODEL, 90), {"cache_miss_ns": 10}),
    (lambda a: a.hit(MODEL, 8),
     {"cache_hit_count": 1, "cache_hit_ns": 8, "success_count": 1, "success_ns": 8, "last_ms": 7}),
    (found_and_unwritable, {"fail_count": 1, "fail_ns": 7, "last_ms": 7}),
    (three_at_once,
     {"call_ns": 11, "success_count": 3, "inference_count": 5, "success_ns": 60, "last_ms": 7}),
    (lambda a: a.succeed(MODEL, 4, 9), {"call_ns": 9, "success_count": 1, "inference_count": 4}),
    (taken_back, {"call_ns": 2, "inference_count": 1}),
    (lambda a: a.told(MODEL, 60), {"success_ns": 40, "last_ms": 7}),
    (lambda a: a.succeed(MODEL, 4, 9) or a.retract(MODEL),
     {"call_ns": 9, "inference_count": 4, "fail_count": 1}),
    (lambda a: a.failed(MODEL, 30, ValueError()), {"fail_count": 1, "fail_ns": 70}),
    (lambda a: a.failed(MODEL, 30, CallTimeout()),
     {"fail_count": 1, "fail_ns": 70, "expired_count": 1}),
    (lambda a: a.cancelled(MODEL, 40), {"cancel_count": 1, "cancel_ns": 60}),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), EXACTLY)
def test_each_step_counts_just_this_and_just_so_long(
    accounting, numbers, step, expected, monkeypatch
):
    monkeypatch.setattr(accountings, "_now", lambda: 100)
    monkeypatch.setattr(accountings, "_unix_ns", lambda: 7_999_999)
    step(accounting)
    own = zip(FIELDS, map(int, numbers[len(FIELDS) :]), strict=True)
    assert {name: value for name, value in own if value} == expected
    assert accounting.pending == QUEUE.pending == 0


def test_a_request_is_pending_until_it_leaves_and_one_too_many_is_refused(accounting, numbers):
    for _ in range(2):
        accounting.admit(QUEUE)
        accounting.begin(QUEUE)
    assert counted(numbers) == {"pending_1": 2}
    with pytest.raises(ModelQueueFull) as caught:
        accounting.admit(QUEUE)
    accounting.refused(MODEL, STARTED, caught.value)
    refused = {"fail_count": 1, "refused_count": 1, "full_count": 1}
    assert counted(numbers) == {"pending_1": 2, **refused}
    accounting.leave(QUEUE)
    accounting.leave(QUEUE)
    accounting.admit(QUEUE)
    assert counted(numbers) == refused


def test_each_queue_has_its_own_room_and_a_worker_its_part(numbers):
    two = Accounting(memoryview(numbers), 9, workers=2)
    first, second = (ModelQueue(PENDING, asdict(QueuePolicy(most))) for most in (2, 4))
    two.begin(first)
    two.begin(second)
    two.admit(second)
    with pytest.raises(ModelQueueFull):
        two.admit(first)
    two.admit(None)
    two.begin(second)
    with pytest.raises(ModelQueueFull):
        two.admit(second)
    assert counted(numbers) == {"pending_1": 3}


def test_a_client_that_leaves_before_it_is_told_what_the_cache_has_is_not_told():
    pending = types.SimpleNamespace(call=None, is_over=False)
    Calls.cancel(None, pending)
    Calls._found(None, pending, "a result")  # which needs nothing of what it would be told by
    assert pending.is_over
