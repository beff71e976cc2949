"""Every counter of stats() counts what the page on watching says, and nothing else."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import shmgpu

COUNTED_BY_TIME = {"started_ns", "wakes", "parent_pid", "pid", "busy_ns", "arena_used_bytes"}
ZERO_BYTES = dict.fromkeys(
    ("marshalled", "gathered", "copied_in", "copied_out", "host_to_device", "device_to_host"), 0
)


@shmgpu.function(arrays="numpy")
def plus(helper, x):
    return x + 1


@shmgpu.function(arrays="numpy")
def fails(helper, x):
    raise ValueError("no")


@shmgpu.function(arrays="numpy")
def naps(helper, seconds):
    time.sleep(seconds)


@shmgpu.function(arrays="numpy", batch=shmgpu.Batch(max_size=8))
def in_rows(helper, rows):
    return rows * 2


@shmgpu.function(arrays="numpy", idempotent=True)
def dies_once(helper, path):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(3)
    return 1


@shmgpu.function(arrays="numpy", hang_after=0.3)
def hangs(helper):
    time.sleep(60)


def changed(before, after):
    """What counts something else now, of each part of the statistics."""

    def parts(stats):
        rows = {"broker": stats["broker"], "child": stats["children"][0]}
        return {**rows, "helper": stats["helpers"][0]}

    old, new = parts(before), parts(after)
    found = {
        (part, name): new[part][name] - value
        for part, row in old.items()
        for name, value in row.items()
        if name not in COUNTED_BY_TIME and isinstance(value, int) and new[part][name] != value
    }
    for part in ("child", "helper"):
        moved = {k: new[part]["bytes"][k] - v for k, v in old[part]["bytes"].items()}
        found.update({(part, k): v for k, v in moved.items() if v})
    return found


def settled(**wanted):
    """The statistics once the broker has counted so much, and each helper what it has written."""
    until = time.monotonic() + 20
    while True:
        stats = shmgpu.stats()
        has_told = all(row["frames_sent"] > row["finished"] for row in stats["helpers"])
        if has_told and all(stats["broker"][name] >= value for name, value in wanted.items()):
            return stats
        assert time.monotonic() < until, stats["broker"]
        time.sleep(0.005)


def calls(number, **others):
    """What each call counts, everywhere: one message there and one back."""
    each = {
        ("broker", "submitted"), ("broker", "answered"), ("broker", "trace_written"),
        ("child", "submitted"), ("child", "answered"), ("child", "frames_sent"),
        ("child", "frames_received"), ("helper", "frames_sent"), ("helper", "frames_received"),
        ("helper", "finished"),
    }  # fmt: skip
    found = dict.fromkeys(each, number)
    found.update({tuple(name.split("_", 1)): value for name, value in others.items()})
    return found


@pytest.fixture
def one_helper():
    with shmgpu.init(devices="cpu", arena="4MiB"):
        until = time.monotonic() + 20
        while not shmgpu.stats()["helpers"][0]["frames_sent"]:  # that it is ready, counted later
            assert time.monotonic() < until
            time.sleep(0.001)
        yield


def test_a_broker_that_has_done_nothing_has_counted_nothing(one_helper):
    stats = shmgpu.stats()
    launched = {"children": 1, "helpers": 1, "window": 64, "arena_bytes": 4 << 20}
    broker = {k: v for k, v in stats["broker"].items() if k not in COUNTED_BY_TIME}
    assert {k: v for k, v in broker.items() if v} == launched
    (child,), (helper,) = stats["children"], stats["helpers"]
    assert {k: v for k, v in child.items() if v and k not in COUNTED_BY_TIME} == {
        "state": 1, "generation": 1, "bytes": ZERO_BYTES,
    }  # fmt: skip
    assert {k: v for k, v in helper.items() if v and k not in COUNTED_BY_TIME} == {
        "state": 2, "generation": 1, "pool_name": "default", "bytes": ZERO_BYTES,
        "frames_sent": 1,
    }  # fmt: skip
    assert child["pid"] == os.getpid() and helper["pid"] not in (0, child["pid"])
    assert stats["broker"]["parent_pid"] not in (0, child["pid"], helper["pid"])
    assert stats["bytes"] == ZERO_BYTES and stats["mean_batch"] == 0


def test_plain_calls(one_helper):
    before = shmgpu.stats()
    for _ in range(5):
        plus(np.ones(3))  # 24 bytes into the arena; the results lie there anyway
    told = changed(before, settled(answered=5))
    assert told.pop(("helper", "copied_out")) >= 5 * 24
    assert told == calls(5, child_copied_in=5 * 24)
    mine = shmgpu.arena.zeros(3)
    before = shmgpu.stats()
    plus(mine)
    told = changed(before, settled(answered=6))
    told.pop(("helper", "copied_out"))
    assert told == calls(1)  # nothing is copied of what lies in the arena


def test_a_call_that_raises_is_answered_and_has_failed(one_helper):
    before = shmgpu.stats()
    with pytest.raises(shmgpu.RemoteError):
        fails(np.ones(3))
    told = changed(before, settled(answered=1))
    told.pop(("helper", "copied_out"), None)
    assert told == calls(1, broker_failed=1, child_failed=1, child_copied_in=24)


def test_batches_count_their_calls_and_what_was_put_together(one_helper):
    in_rows(np.ones((1, 2)))
    blocked = naps.submit(0.3)
    before = shmgpu.stats()
    futures = [in_rows.submit(np.ones((1, 2))) for _ in range(6)]
    for one in (blocked, *futures):
        one.result(20)
    stats = settled(answered=8)
    told = changed(before, stats)
    assert told[("helper", "batches")] == 1 and told[("helper", "batched")] == 6
    assert told[("helper", "gathered")] == 6 * 16
    assert stats["mean_batch"] == 6
    assert told[("helper", "finished")] == 7 and told[("child", "copied_in")] >= 6 * 16


def test_what_waits_and_what_runs_is_told_apart(one_helper):
    running = naps.submit(0.5)
    settled(in_flight=1)
    waiting = [naps.submit(0.0) for _ in range(3)]
    stats = settled(submitted=4)
    assert stats["broker"]["in_flight"] + stats["broker"]["queued"] == 4
    assert stats["children"][0]["queued"] == stats["broker"]["queued"]
    assert stats["helpers"][0]["in_flight"] == stats["broker"]["in_flight"] >= 1
    for one in (running, *waiting):
        one.result(20)
    stats = settled(answered=4)
    assert stats["broker"]["queued"] == stats["broker"]["in_flight"] == 0
    assert stats["helpers"][0]["busy_ns"] >= 500_000_000


def test_what_leaves_the_queue_unrun_is_cancelled_or_expired(one_helper):
    running = naps.submit(0.6)
    settled(in_flight=1)
    given_up = [naps.submit(0.0) for _ in range(8)]
    before = shmgpu.stats()
    late = naps.options(timeout=0.05).submit(0.0)
    settled(submitted=10)
    assert all(one.cancel() for one in given_up[4:])
    with pytest.raises(shmgpu.CallTimeout):
        late.result(20)
    settled(answered=5)
    assert not running.done()  # they did not wait for the helper
    for one in (running, *given_up[:4]):
        one.result(20)
    stats = settled(answered=10)
    told = changed(before, stats)
    assert told[("broker", "cancelled")] == 4 and told[("broker", "expired")] == 1
    assert ("broker", "dropped") not in told
    assert stats["broker"]["submitted"] == stats["broker"]["answered"] == 10
    assert stats["helpers"][0]["finished"] == 5


def test_a_helpers_death_and_what_is_done_about_it(one_helper, tmp_path):
    before = shmgpu.stats()
    assert dies_once(str(tmp_path / "died")) == 1
    stats = settled(helper_respawns=1, answered=1)
    told = changed(before, stats)
    for name in ("helper_deaths", "helper_respawns", "retried", "submitted", "answered"):
        assert told[("broker", name)] == 1, name
    assert told[("helper", "deaths")] == 1 and told[("helper", "generation")] == 1
    assert ("broker", "helper_hangs") not in told and ("broker", "failed") not in told
    with pytest.raises(shmgpu.HelperDied):
        hangs()
    told = changed(stats, settled(helper_respawns=2, answered=2))
    for name in ("helper_deaths", "helper_respawns", "helper_hangs", "failed"):
        assert told[("broker", name)] == 1, name
    assert ("broker", "retried") not in told


def test_calls_that_a_dead_helper_had_not_begun_are_taken_back():
    with shmgpu.init(devices="cpu", arena="4MiB"):
        for _ in range(200):
            plus(np.ones(3))  # so short that many are handed over at once
        dead = naps.submit(0.4)
        settled(in_flight=1)
        behind = [plus.submit(np.ones(3)) for _ in range(20)]
        before = settled(submitted=221)
        os.kill(before["helpers"][0]["pid"], 9)
        with pytest.raises(shmgpu.HelperDied):
            dead.result(20)
        assert all(one.result(20)[0] == 2 for one in behind)
        told = changed(before, settled(helper_respawns=1, answered=221))
        taken_back = told.get(("broker", "requeued"), 0)
        assert taken_back == max(0, before["helpers"][0]["in_flight"] - 1)
        assert told[("broker", "failed")] == 1


def test_a_child_that_dies_and_what_is_done_about_it(tmp_path):
    marker = tmp_path / "died"

    def main(rank):
        if rank == 1:
            if marker.exists():
                return "again"
            for _ in range(3):
                naps.submit(0.3)
            settled(submitted=3)
            marker.touch()
            os._exit(1)
        return settled(child_restarts=1, arenas_cleared=1, dropped=3)

    stats, again = shmgpu.launch(
        main, children=2, helpers=1, devices="cpu", arena="4MiB", restart="on-failure"
    )
    broker = stats["broker"]
    assert again == "again"
    assert broker["child_deaths"] == broker["child_restarts"] == broker["arenas_cleared"] == 1
    assert 0 < broker["cleared_bytes"] <= 4 << 20 and broker["cleared_bytes"] % 4096 == 0
    assert broker["dropped"] == 3 and broker["submitted"] == 3 and broker["answered"] == 0
    row = stats["children"][1]
    assert row["restarts"] == 1 and row["generation"] == 2
    assert stats["children"][0]["dropped"] == 0


def test_a_window_of_its_own_and_threads_count_once(one_helper):
    before = shmgpu.stats()
    threads = [threading.Thread(target=plus, args=(np.ones(1),)) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    told = changed(before, settled(answered=8))
    told.pop(("helper", "copied_out"))
    told.pop(("child", "copied_in"))
    assert told == calls(8)
