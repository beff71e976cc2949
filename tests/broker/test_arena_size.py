"""How large an arena must be: as the page says; what is kept for speed is bounded."""

from __future__ import annotations

import asyncio
import collections
import gc
import os
import random
import time

import amount
import numpy as np
import pytest

import shmgpu
from shmgpu.child import runtime
from shmgpu.child.arguments import KEPT_SHARE
from shmgpu.child.memory import LocalArena

ARENA = 8 << 20
BOUND = ARENA // KEPT_SHARE * 3 // 2  # what was set aside since the last look comes on top


@shmgpu.function(arrays="numpy")
def echo(helper, x, *more):
    return x + 1


@shmgpu.function(arrays="numpy")
def length(helper, thing):
    return len(thing)


@shmgpu.function(arrays="numpy")
def filled(helper, x, n):
    return np.full(n, x[0], np.uint8)


@pytest.fixture(params=["inline", "broker"])
def running(request):
    with shmgpu.init(helpers=1, devices="cpu", arena=ARENA, inline=request.param == "inline"):
        yield


def used():
    gc.collect()
    return shmgpu.arena.stats()["used_bytes"]


def test_copies_of_many_shapes_keep_no_more_than_their_share(running):
    for n in range(1, 120, 2):
        x = np.ones(n * 1000, np.uint8)
        assert len(echo(x)) == n * 1000
        assert used() <= BOUND
    for n in range(1, 40, 3):
        x = np.ones(n * 1000, np.uint8)
        calls = [echo.submit(x) for _ in range(10)]
        assert all(len(call.result(20)) == n * 1000 for call in calls)
        del calls
    assert used() <= BOUND + 10 * n * 1000  # of calls that were out when it was looked at


def test_large_plain_values_keep_no_more_than_their_share(running):
    for n in range(1, 60):
        assert length(bytes(n * 10_000)) == n * 10_000
        assert length({str(n): "text" * 10_000}) == 1
    assert used() <= BOUND


def test_calls_that_repeat_keep_no_more_than_their_share():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        for n in range(1, 60):
            x = shmgpu.arena.zeros(n * 16)
            for _ in range(4):
                assert echo(x)[0] == 1
        del x
        assert used() <= (1 << 20) // KEPT_SHARE * 3 // 2


@pytest.fixture
def in_python(monkeypatch):
    """No call is kept for C."""
    monkeypatch.setenv("SHMGPU_QUICK_CALLS", "0")


def test_what_was_not_used_for_longest_goes_first(in_python, running):
    arguments = runtime.require_port().arguments
    old, recent = np.ones(3000, np.uint8), np.ones(1000, np.uint8)
    for x in (recent, old, old, recent):
        echo(x, x)
    plans = {
        plan.nbytes[0]: plan
        for plan in echo.plans.values()
        if plan.nbytes in [(1000, 1000), (3000, 3000)]
    }

    def kept():
        return {n: (len(plan.idle), len(plan.rooms)) for n, plan in plans.items()}

    assert kept() == {1000: (1, 1), 3000: (1, 1)}
    arguments._may_keep = 2 * sum(
        one.kept_bytes for ready in (plans[1000].idle, plans[1000].rooms) for one in ready
    )
    arguments._trim()
    assert kept() == {1000: (1, 1), 3000: (0, 0)}
    assert echo(old, old)[0] == echo(recent, recent)[0] == 2


def test_a_full_arena_takes_back_all_that_is_kept(running):
    for n in range(1, 30):
        echo(np.ones(n * 1000, np.uint8))
        length(bytes(n * 1000))
    kept = used()
    assert kept > 0
    stats = shmgpu.arena.stats()
    whole = shmgpu.arena.empty(stats["capacity_bytes"] - 64 * 1024, "uint8")
    assert len(whole) == ARENA - 64 * 1024
    del whole
    assert used() == 0


@shmgpu.function(arrays="numpy")
def awaited(helper, name):
    while not os.path.exists(name):
        time.sleep(0.001)


def test_refused_submits_do_not_search_for_garbage_each_time(monkeypatch, tmp_path):
    searches = []
    collect = gc.collect
    monkeypatch.setattr("shmgpu.child.memory.gc.collect", lambda: searches.append(1) or collect())
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        x = shmgpu.arena.zeros(1000)
        assert len(echo(x)) == 1000
        all_are_out = tmp_path / "all-are-out"
        first = awaited.submit(str(all_are_out))  # so none of those behind it ends before
        out, refused = [], 0
        for _ in range(1000):
            try:
                out.append(echo.submit(x))
            except shmgpu.ArenaFull:
                refused += 1
        all_are_out.touch()
        first.result(20)
        ends = [type(call.exception(20)) for call in out]
        refused += ends.count(shmgpu.ArenaFull)
        assert refused > 500 and set(ends) == {type(None), shmgpu.ArenaFull}
        assert len(searches) < refused / 4
        del out
        assert len(echo(x)) == 1000


def leave(size_bytes):
    """Take the arena but for one piece of that size, until the result is dropped."""
    hole, kept, n = shmgpu.arena.empty(size_bytes, "u1"), [], 1 << 20
    while n >= 64:
        try:
            kept.append(shmgpu.arena.empty(n, "u1"))
        except shmgpu.ArenaFull:
            n //= 2
    del hole
    return kept


WAYS = ["answered", "answered in a loop", "cancelled", "late", "withdrawn from the queue"]


@pytest.mark.parametrize("way", WAYS)
def test_a_call_that_waits_for_memory_ends_when_nobody_is_left_to_bring_some(way, tmp_path):
    """Whatever was out has ended, and what it had is the program's: no reply will bring more."""
    gate = tmp_path / "gate"

    async def in_a_loop(x):
        first = asyncio.ensure_future(awaited.aio(str(gate)))
        await asyncio.sleep(0)
        kept = leave(3000)
        waits = asyncio.ensure_future(echo.aio(x))
        await asyncio.sleep(0)
        assert not waits.done()
        gate.touch()
        with pytest.raises(shmgpu.ArenaFull):
            await asyncio.wait_for(waits, 20)
        await first
        del kept

    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB", window=2):
        x = shmgpu.arena.zeros(1000)
        assert len(echo(x)) == 1000
        awaited(str(tmp_path))
        if way == "answered in a loop":
            asyncio.run(in_a_loop(x))
        else:
            call = awaited.options(timeout=0.2) if way == "late" else awaited
            first = call.submit(str(gate))
            others = [awaited.submit(str(gate)) for _ in range(3 if way == WAYS[4] else 0)]
            kept = leave(3000)
            waits = echo.submit(x)
            assert not waits.done()
            if way == "late":
                assert type(first.exception(20)) is shmgpu.CallTimeout
            elif way == "cancelled":
                assert first.cancel()
            for other in others:
                assert other.cancel()
            gate.touch()
            assert type(waits.exception(20)) is shmgpu.ArenaFull
            del kept
        assert len(echo(x)) == 1000


def test_a_call_for_which_there_is_no_memory_and_none_to_come_ends_where_it_is_submitted():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        x = shmgpu.arena.zeros(1000)
        assert len(echo(x)) == 1000
        kept = leave(3000)
        waits = echo.submit(x)
        assert type(waits.exception(0)) is shmgpu.ArenaFull
        del kept
        assert len(echo.submit(x).result(20)) == 1000


def test_garbage_that_refers_to_itself_makes_room(running):
    for _ in range(20):  # each takes more than half
        ring = [shmgpu.arena.empty(ARENA * 5 // 8, "uint8")]
        ring.append(ring)
        del ring


def test_garbage_that_the_interpreter_has_found_by_itself_makes_room_too(running, monkeypatch):
    """It may do so at any allocation of Python's, between the refusal and the search."""
    collect = gc.collect

    def found_just_before():
        collect()
        return collect()

    monkeypatch.setattr("shmgpu.child.memory.gc.collect", found_just_before)
    test_garbage_that_refers_to_itself_makes_room(running)


# ---- the page's promise ----------------------------------------------------------------------


class Load:
    """A program of one child that keeps to what it says it has alive at a time."""

    def __init__(self, seed, varies):
        self.random = random.Random(seed)
        self.varies = varies  # whether results of one signature differ in size
        self.largest = self.random.choice([300, 20_000, 200_000])
        self.arguments = self.random.randrange(1, 9)
        self.out = self.random.randrange(1, 17)
        self.kept = self.random.randrange(9)
        self.result = self.random.choice([200, 30_000, 150_000])

    def arena(self):
        """What the page says: arguments and results alive, and a quarter more, or twice that."""
        needed = (self.arguments + 1) * self.largest  # one comes before one goes
        needed += self.out * self.largest  # those from elsewhere are copied in
        needed += self.out * (self.result + 4096 + 500)
        needed += (self.kept + 1) * self.result
        return max(needed * 5 // 2 if self.varies else needed * 5 // 4, 64 << 10)

    def size(self, most):
        return self.random.randrange(most) + 1 if self.varies else most

    def run(self, rounds):
        chance = self.random
        inside = [shmgpu.arena.zeros(self.size(self.largest), "u1") for _ in range(self.arguments)]
        kept = collections.deque(maxlen=self.kept)
        for _ in range(rounds):
            inside[chance.randrange(self.arguments)] = shmgpu.arena.zeros(
                self.size(self.largest), "u1"
            )
            if chance.random() < 0.7:
                x = chance.choice(inside)
            else:
                x = np.zeros(self.size(self.largest), "u1")
            sizes = [self.size(self.result) for _ in range(chance.randrange(self.out) + 1)]
            way = chance.choice(["calls", "futures", "tasks"])
            if way == "calls":
                for size in sizes:
                    kept.append(filled(x, size))
                continue
            if way == "futures":
                calls = [filled.submit(x, size) for size in sizes]
                found = [call.result(30) for call in calls]
            else:
                found = asyncio.run(self.gather(x, sizes))
            assert [len(one) for one in found] == sizes
            kept.extend(found[: self.kept])
            calls = found = None

    async def gather(self, x, sizes):
        return await asyncio.gather(*[filled.aio(x, size) for size in sizes])


@pytest.mark.parametrize("varies", [False, True], ids=["one size", "sizes vary"])
@pytest.mark.parametrize("seed", range(amount.examples(6)))
def test_an_arena_as_large_as_the_page_says_is_never_full(seed, varies):
    load = Load(seed, varies)
    with shmgpu.init(helpers=1, devices="cpu", arena=load.arena()):
        load.run(100)


def test_a_local_arena_can_be_filled_to_its_last_byte_again_and_again():
    arena = LocalArena(1 << 16)
    for sizes in ((1 << 16,), (1 << 15, 1 << 15), (1 << 14,) * 4, (1 << 16,)):
        blocks = [arena.allocate(size) for size in sizes]
        assert arena.stats()["free_bytes"] == 0
        with pytest.raises(shmgpu.ArenaFull):
            arena.allocate(1)
        while blocks:  # the last one first: behind it there is nothing free to merge it with
            blocks.pop()
            arena.stats()
