"""Whatever a call looks like, its arguments arrive and its result is its own, call after call.

Calls of one kind share blocks, output buffers and what helpers remember of them; so each is made
many times, with other contents, while earlier results are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import shmgpu


@pytest.fixture(params=["inline", "broker", "broker, all in Python"])
def running(request, monkeypatch):
    monkeypatch.setenv("SHMGPU_QUICK_CALLS", str(int("Python" not in request.param)))
    with shmgpu.init(
        helpers=1, devices="cpu", arena="4MiB", inline=request.param == "inline"
    ) as made:
        yield made


@shmgpu.function(arrays="numpy")
def as_told(helper, make, *args, **kwargs):
    """One of the functions below, by its name."""
    return MAKERS[make](*args, **kwargs)


@shmgpu.function
def as_told_in_torch(helper, make, *args, **kwargs):
    return MAKERS[make](*args, **kwargs)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Both:
    left: Any
    right: Any


MAKERS = {
    "sum": lambda *xs: sum(xs[1:], xs[0] * 1),
    "number": lambda x: float(x[0]),
    "whole": lambda x: int(x[0]),
    "none": lambda x: None,
    "text": lambda x: str(x[0]),
    "long text": lambda x: str(x[0]) * 5000,
    "pair": lambda x: (x + 1, x + 2),
    "list": lambda x: [x + 1, [x + 2, (x + 3,)]],
    "named": lambda x: {"b": x + 1, "a": {"c": x + 2}},
    "pair of a value": lambda x: (x + 1, float(x[0])),
    "scaled": lambda x, k=2, *, bias=0: x * k + bias,
    "inside": lambda box: {"y": box["x"] + 1, "of": box["of"][0] * 2},
    "deep": lambda box: box["a"]["b"]["c"]["d"]["e"]["f"] + 1,
    "many": lambda xs: sum(xs[1:], xs[0] * 1),
    "first": lambda xs: xs[0] + 1,
    "empty": lambda x: x[:0],
    "no axes": lambda x: x[0] + 0,
    "bytes": lambda x: np.asarray(x).tobytes(),
    "ordered": lambda x: OrderedDict(b=x + 1, a=x + 2),
    "named tuple": lambda x: Pair(x + 1, [x + 2]),
    "dataclass": lambda x: Both(x + 1, {"c": Pair(x + 2, x + 3)}),
    "within": lambda box: {"x": box["x"].second + 1, "of": box["of"]},
    "kinds": lambda *values, **named: repr((values, named)),
}

# (what is made, its arguments but for the array x, named ones): x stands for it.
X = object()
CALLS = [
    ("sum", (X,), {}),
    ("sum", (X, X), {}),
    ("sum", (X, X, X), {}),
    ("number", (X,), {}),
    ("whole", (X,), {}),
    ("none", (X,), {}),
    ("text", (X,), {}),
    ("long text", (X,), {}),
    ("pair", (X,), {}),
    ("list", (X,), {}),
    ("named", (X,), {}),
    ("pair of a value", (X,), {}),
    ("scaled", (X, 3), {}),
    ("scaled", (X,), {"k": 3}),
    ("scaled", (X,), {"k": X, "bias": X}),
    ("scaled", (X,), {"bias": X, "k": X}),
    ("inside", ({"x": X, "of": [X, 3.5]},), {}),
    ("inside", ({"of": (X,), "x": X},), {}),
    ("deep", ({"a": {"b": {"c": {"d": {"e": {"f": X}}}}}},), {}),
    ("many", ([X] * 40,), {}),
    ("first", ([X, *range(40)],), {}),
    ("empty", (X,), {}),
    ("no axes", (X,), {}),
    ("bytes", (X,), {}),
    ("ordered", (X,), {}),
    ("named tuple", (X,), {}),
    ("dataclass", (X,), {}),
    ("within", (OrderedDict(x=Pair(1, X), of=X),), {}),
]
FORMS = ["in the arena", "outside", "strided", "read-only"]


def put_in(tree, x):
    if tree is X:
        return x
    if isinstance(tree, dict):
        return type(tree)((key, put_in(one, x)) for key, one in tree.items())
    if isinstance(tree, Pair):
        return Pair(*(put_in(one, x) for one in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(put_in(one, x) for one in tree)
    return tree


def plain(tree):
    """Without arrays, so that == says whether two are alike."""
    if isinstance(tree, Both):
        return Both, plain(vars(tree))
    if isinstance(tree, dict):
        return type(tree), {key: plain(one) for key, one in tree.items()}, list(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree), [plain(one) for one in tree]
    if isinstance(tree, (np.ndarray, np.generic, torch.Tensor)):
        array = np.asarray(tree)
        return array.dtype, array.shape, array.tobytes()
    return type(tree), tree


def made(form):
    if form == "in the arena":
        return shmgpu.arena.zeros(6)
    return np.zeros(12, "f4")[::2] if form == "strided" else np.zeros(6, "f4")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_kind_of_call_gives_its_own_result_each_time(running, kind, form):
    told = as_told if kind == "numpy" else as_told_in_torch
    for what, args, named in CALLS:
        x = made(form)
        kept = []
        for number in range(12):
            x.flags.writeable = True
            x[:] = np.arange(6) + number
            if form == "read-only":
                x.flags.writeable = False
            given = x
            if kind == "torch":
                given = (
                    torch.from_numpy(np.array(x)) if form == "read-only" else torch.from_numpy(x)
                )
            found = told(what, *put_in(args, given), **put_in(named, given))
            wanted = MAKERS[what](*put_in(args, given), **put_in(named, given))
            wanted = plain(wanted)
            assert plain(found) == wanted, (what, args, named, number)
            if number % 3:  # some results are let go of, so that what they lay in is used again
                kept.append((found, wanted))
            del found
        for found, wanted in kept:
            assert plain(found) == wanted, (what, args, named)


VALUES = [
    *(1, True, 1.0, None, "1", b"1", 1j, 0, False, 0.0, "", b"", -1, 2**70, "a" * 5000),
    *([1], (1,), {"1": 1}, {1: 1}, {True: 1}, {1.0: 1}, {None: 1}, [[]], [], (), {}, [1, 1.0]),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, [None], [(1, 2), 3], [1, (2, 3)], [(1, 2, 3)]),
]


def test_values_and_containers_that_look_alike_are_told_apart(running):
    for _ in range(3):
        for one in VALUES:
            assert as_told("kinds", one) == repr(((one,), {}))
            assert as_told("kinds", one, 1) == repr(((one, 1), {}))
            assert as_told("kinds", k=one) == repr(((), {"k": one}))
            assert as_told("kinds", "k", one) == repr((("k", one), {}))


@shmgpu.function(arrays="numpy")
def by_turns(helper, x):
    """Another kind of result in each call, as x says."""
    kinds = [
        *(x + 1, float(x[0]), (x, x), None, {"x": x}, {"y": x}, "text", x.astype("i8"), [x], 3),
        *((x, [x]), ([x], x), {"x": x, "y": x}, {"y": x, "x": x}),
    ]
    return kinds[int(x[0])]


KINDS = 14


def test_results_that_change_their_kind_arrive_as_what_they_are(running):
    x = shmgpu.arena.zeros(4)
    kept = []
    for number in [*range(KINDS), *np.random.default_rng(7).integers(0, KINDS, 200)]:
        x[:] = number
        found = by_turns(x)
        wanted = plain(by_turns.local(None, x))
        assert plain(found) == wanted
        kept.append((found, wanted))
    assert all(plain(found) == wanted for found, wanted in kept)


@pytest.mark.parametrize("first", range(KINDS))
def test_a_kind_of_result_follows_another(running, first):
    for second in range(KINDS):
        x = shmgpu.arena.zeros(4 + second)  # so none has been seen of this signature
        x[:] = first
        several = [by_turns(x) for _ in range(4)]  # each in a room of its own, all of them free now
        del several
        kept = []
        for number in (second, second, second, first, first):
            x[:] = number
            kept.append((by_turns(x), plain(by_turns.local(None, x))))
        assert all(plain(found) == wanted for found, wanted in kept)


def test_threads_that_call_alike_get_their_own_results(running):
    wrong = []

    def call(number):
        x, y = shmgpu.arena.zeros(4), np.full(4, number, "f4")
        last = None
        for turn in range(150):
            x[:] = turn
            first, second = as_told("pair", x), as_told("sum", x, y)
            if not (
                np.array_equal(first[1], x + 2)
                and np.array_equal(second, x + y)
                and as_told("number", x) == turn
                and (last is None or last[0][0] == turn)
            ):
                wrong.append((number, turn))
            last = first

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_calls_keep_goes_when_the_arena_is_needed(running):
    x = shmgpu.arena.zeros(6)
    for what, args, named in CALLS:
        for _ in range(3):
            as_told(what, *put_in(args, x), **put_in(named, x))
    free = shmgpu.arena.stats()["capacity_bytes"] - x.nbytes - 128
    assert len(shmgpu.arena.empty(free, "u1")) == free


def test_a_result_that_is_kept_does_not_cost_the_room_of_others(running):
    """The last result and the one before go by turns; what another is kept in is left to it."""
    x = shmgpu.arena.zeros(6)
    first = as_told("pair", x)
    for number in range(1, 50):
        x[:] = number
        second = as_told("pair", x)
        assert second[0][0] == number + 1
    assert first[0].tolist() == [1] * 6
    before = shmgpu.arena.stats()["allocations"]
    for _ in range(20):
        second = as_told("pair", x)
    assert shmgpu.arena.stats()["allocations"] == before
