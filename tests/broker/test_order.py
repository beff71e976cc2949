"""Which waiting call is next, and how many may wait."""

from __future__ import annotations

import concurrent.futures
import time

import numpy as np
import pytest

import shmgpu

LIMIT = 3


def held(helper, gate):
    """It takes until its caller opens the gate."""
    while not gate[0]:
        time.sleep(0.001)


# Each is called once: behind a function that was never measured no call is handed ahead.
holders = iter([shmgpu.function(arrays="numpy")(held) for _ in range(5)])


@shmgpu.function(arrays="numpy", max_queue=LIMIT)
def refusing(helper, x):
    return x


@shmgpu.function(arrays="numpy", max_queue=LIMIT, when_full="drop_oldest")
def dropping(helper, x):
    return x


@shmgpu.function(arrays="numpy")
def record(helper, name):
    helper.session.append(name)
    return list(helper.session)


def busy():
    """A call that the only helper executes: whatever comes now waits. And its gate."""
    gate = shmgpu.arena.zeros(1, "uint8")
    call = next(holders).submit(gate[:])
    while shmgpu.stats()["helpers"][0]["in_flight"] == 0:
        time.sleep(0.001)
    return call, gate


def what_came_of(function):
    call, gate = busy()
    futures = [function.submit(np.full(1, number)) for number in range(LIMIT + 2)]
    while shmgpu.stats()["broker"]["queued"] < LIMIT:
        time.sleep(0.001)
    gate[0] = 1
    call.result()
    answers = []
    for one in futures:
        try:
            answers.append(int(one.result()[0]))
        except shmgpu.QueueFull as error:
            answers.append(str(error))
    return answers


def repeated():
    """Calls that are made in C, as many as make them so, and one too many of them."""
    x = np.ones(1)
    for _ in range(4):
        refusing(x)
    call, gate = busy()
    with concurrent.futures.ThreadPoolExecutor(LIMIT) as threads:
        waiting = [threads.submit(refusing, x) for _ in range(LIMIT)]
        while shmgpu.stats()["broker"]["queued"] < LIMIT:
            time.sleep(0.001)
        with pytest.raises(shmgpu.QueueFull):
            refusing(x)
        gate[0] = 1
        call.result()
        return [one.result().tolist() for one in waiting]


def whose_time_is_over():
    """As many as may wait do until their deadlines; then others do."""
    call, gate = busy()
    late = [refusing.options(timeout=0.01) for _ in range(LIMIT)]
    raised = [type(one.submit(np.ones(1)).exception()) for one in late[1:]]
    with pytest.raises(shmgpu.CallTimeout):
        late[0](np.ones(1))
    futures = [refusing.submit(np.ones(1)) for _ in range(LIMIT)]
    gate[0] = 1
    call.result()
    return raised, [one.exception() for one in futures]


def in_what_order():
    call, gate = busy()
    timeouts = {"none": None, "later": 60, "first": 20, "second": 40, "none either": None}
    futures = [
        record.options(timeout=seconds, priority=1).submit(name)
        for name, seconds in timeouts.items()
    ]
    futures.append(record.options(priority=2).submit("urgent"))
    while shmgpu.stats()["broker"]["queued"] < len(futures):
        time.sleep(0.001)
    gate[0] = 1
    call.result()
    return max((one.result() for one in futures), key=len)


def child(rank):
    return {
        "refusing": what_came_of(refusing),
        "dropping": what_came_of(dropping),
        "refused": shmgpu.stats()["broker"]["refused"],
        "repeated": repeated(),
        "late": whose_time_is_over(),
        "order": in_what_order(),
    }


@pytest.fixture(scope="module")
def seen():
    (one,) = shmgpu.launch(
        child, children=1, order="deadline", session=lambda helper: [], devices="cpu"
    )
    return one


FULL = (
    "more calls of the function would wait than its max_queue says: call again later, or less often"
)


def test_one_call_more_than_may_wait_is_refused(seen):
    full = f"{refusing.name}: {FULL}"
    assert seen["refusing"] == [0, 1, 2, full, full]


def test_or_the_one_that_has_waited_longest_is_dropped(seen):
    full = f"{dropping.name}: {FULL}"
    assert seen["dropping"] == [full, full, 2, 3, 4]
    assert seen["refused"] == 4


def test_calls_that_are_made_in_c_are_refused_as_well(seen):
    assert seen["repeated"] == [[1.0]] * LIMIT


def test_calls_whose_time_is_over_keep_no_place(seen):
    raised, errors = seen["late"]
    assert raised == [shmgpu.CallTimeout] * (LIMIT - 1) and errors == [None] * LIMIT


def test_by_deadline_the_call_whose_timeout_ends_first_is_next(seen):
    assert seen["order"] == ["urgent", "first", "second", "later", "none", "none either"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_queue": 0}, "max_queue=0 is out of range: use 1 to"),
        ({"max_queue": "few"}, "max_queue must be a whole number from 1 to"),
        ({"max_queue": 1, "when_full": "wait"}, "when_full must be 'refuse' or 'drop_oldest'"),
        ({"when_full": "drop_oldest"}, "says what happens beyond max_queue: give that, too"),
    ],
)
def test_a_limit_that_is_none_is_refused(settings, sentence):
    with pytest.raises(shmgpu.ConfigError, match=sentence):
        shmgpu.function(**settings)(lambda helper: None)
