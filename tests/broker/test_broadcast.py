"""Broadcasts: run once in each helper of a pool, in one order with the calls.

What becomes of them when processes die is in crash/test_broadcasts.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import time
from collections import OrderedDict

import numpy as np
import pytest
from crash.programs import until
from crash.weights import TWO, everywhere, raise_in, see, set_weights, versions_and_weights

import shmgpu
from shmgpu.attach.late import ADOPT


@shmgpu.function(arrays="numpy")
def times(helper):
    return getattr(helper, "times", 0)


@shmgpu.function(arrays="numpy")
def set_scale(helper, scale):
    helper.scale = scale


# ---- what it does ------------------------------------------------------------------------------


def test_it_runs_once_in_each_helper_and_gives_the_pools_version():
    with shmgpu.init(**TWO):
        assert see.version == 0 and see()[1] == 0
        for number in range(1, 4):
            assert shmgpu.broadcast(set_weights, np.full(3, number)) == number
            assert versions_and_weights() == [(number, number)] * 2
            assert set_weights.version == see.version == number
        assert everywhere(times) == [3, 3]
        stats = shmgpu.stats()
        assert stats["broker"]["broadcasts"] == 3
        assert [row["version"] for row in stats["helpers"]] == [3, 3]


@dataclasses.dataclass
class Weights:
    layers: OrderedDict
    step: int


@shmgpu.function
def load_weights(helper, weights):
    import torch

    assert type(weights.layers) is OrderedDict
    helper.net = torch.nn.Linear(3, 2)
    helper.net.load_state_dict(weights.layers)


@shmgpu.function
def infer(helper, x):
    return helper.net(x).detach(), helper.version


def test_a_state_dict_is_broadcast_as_it_stands():
    import torch

    net = torch.nn.Linear(3, 2)
    with shmgpu.init(**TWO):
        assert load_weights.broadcast(Weights(net.state_dict(), 7)) == 1
        x = torch.ones(1, 3)
        for number in range(2):
            found, version = infer.options(helpers=[number])(x)
            assert torch.equal(found, net(x)) and version == 1


def test_no_caller_is_ever_served_an_older_version_than_it_has_seen():
    def learner(rank):
        for number in range(1, 61):
            assert set_weights.broadcast(np.full(256, float(number))) == number
        return 60

    def actor(rank):
        seen = answers = 0
        while seen < 60:
            _, version, weights, _ = see()
            if weights is not None:
                assert weights.min() == weights.max() == version
            assert version >= seen
            known = see.version
            seen, answers = version, answers + 1
            calls = [see.submit() for _ in range(8)]
            assert min(call.result()[1] for call in calls) >= max(known, seen)
        return answers

    results = shmgpu.launch(
        [learner, *[actor] * 4], helpers=3, devices="cpu", arena="4MiB", threads=1
    )
    assert results[0] == 60 and min(results[1:]) > 0


def test_of_senders_at_once_each_has_a_version_of_its_own_and_all_helpers_end_alike():
    def sender(rank):
        mine = [set_weights.broadcast(np.array([rank, n])) for n in range(20)]
        assert mine == sorted(mine)
        return mine

    def looker(rank):
        while see.version < 60:
            time.sleep(0.002)
        found = everywhere(see, 3)
        assert [version for _, version, _, _ in found] == [60] * 3
        assert len({tuple(weights) for _, _, weights, _ in found}) == 1
        return everywhere(times, 3)

    *senders, seen = shmgpu.launch(
        [sender, sender, sender, looker],
        helpers=3,
        devices="cpu",
        arena="4MiB",
    )
    assert sorted(itertools.chain(*senders)) == list(range(1, 61))
    assert seen == [60] * 3


def test_what_a_function_keeps_of_its_arguments_nobody_changes():
    with shmgpu.init(**TWO):
        weights = shmgpu.arena.array(np.arange(4.0))
        set_weights.broadcast(weights)
        weights[:] = -1
        assert all(found[2].tolist() == [0, 1, 2, 3] for found in everywhere())
        with pytest.raises(shmgpu.RemoteError, match="read-only"):
            write_to_weights()


@shmgpu.function(arrays="numpy")
def write_to_weights(helper):
    helper.weights[0] = 1


@shmgpu.function
def change_weights(helper, weights):
    weights += helper.id  # torch knows no read-only tensors: these are the helper's own
    helper.weights = weights.numpy()


def test_a_tensor_that_is_written_to_is_the_helpers_own():
    with shmgpu.init(**TWO):
        change_weights.broadcast(np.zeros(4))
        assert versions_and_weights() == [(1, 0), (1, 1)]


def test_of_each_function_the_last_one_is_kept_and_those_before_are_freed():
    size = 1 << 20
    with shmgpu.init(helpers=2, devices="cpu", arena="16MiB"):
        for number in range(5):
            set_weights.broadcast(np.zeros(size, np.uint8))
            set_scale.broadcast(float(number))
        broker = shmgpu.stats()["broker"]
        assert broker["kept_files"] == 2 and size < broker["kept_bytes"] < size + 4096
        set_weights.broadcast(np.zeros(16, np.uint8))
        broker = shmgpu.stats()["broker"]
        assert broker["kept_files"] == 2 and broker["kept_bytes"] < 4096


@shmgpu.function(arrays="numpy", batch=8)
def batched(helper, rows, also=()):
    helper.weights = rows
    return rows


def test_a_batched_function_is_broadcast_alone_whatever_its_arrays_are():
    with shmgpu.init(**TWO):
        assert batched(np.ones((2, 3))).shape == (2, 3)
        assert batched.broadcast(np.full(5, 3.0), (np.zeros(()), np.zeros((9, 2)))) == 1
        assert versions_and_weights() == [(1, 3), (1, 3)]


def test_pools_have_versions_of_their_own():
    @dataclasses.dataclass
    class Holder:
        weights: float = 0.0

    def worker(rank):
        assert set_left.broadcast(1.0) == 1 and set_left.broadcast(2.0) == 2
        assert set_right.broadcast(5.0) == 1
        assert (set_left.version, set_right.version) == (2, 1)
        return get_left(), get_right()

    found = shmgpu.launch(
        worker,
        children=1,
        helpers={"left": 2, "right": 1},
        session=dict.fromkeys(("left", "right"), lambda helper: Holder()),
        devices="cpu",
        arena="4MiB",
    )
    assert found == [((2.0, 2), (5.0, 1))]


@shmgpu.function(arrays="numpy", pool="left")
def set_left(helper, weights):
    helper.session.weights = weights


@shmgpu.function(arrays="numpy", pool="right")
def set_right(helper, weights):
    helper.session.weights = weights


@shmgpu.function(arrays="numpy", pool="left")
def get_left(helper):
    return helper.session.weights, helper.version


@shmgpu.function(arrays="numpy", pool="right")
def get_right(helper):
    return helper.session.weights, helper.version


def test_inline_it_runs_here():
    with shmgpu.init(inline=True):
        assert set_weights.broadcast(np.ones(2)) == 1 == see.version
        assert see()[1:3] == (1, pytest.approx(np.ones(2)))
        with pytest.raises(shmgpu.BroadcastError, match="helper 0 does not want it") as caught:
            raise_in.broadcast(0, np.zeros(2))
        assert isinstance(caught.value.__cause__, ValueError)
        assert see.version == 1


# ---- nonsense ----------------------------------------------------------------------------------


def test_a_process_that_was_forked_has_no_right_to_broadcast():
    with shmgpu.init(**TWO):
        pid = os.fork()
        if pid == 0:
            try:
                set_weights.broadcast(np.zeros(1))
            except shmgpu.NotRunning:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert set_weights.broadcast(np.zeros(1)) == 1


@shmgpu.function(arrays="numpy", out=shmgpu.Declared(3))
def declared(helper, x):
    helper.out[...] = x


def test_what_cannot_be_broadcast_is_refused_in_a_sentence():
    with shmgpu.init(**TWO):
        with pytest.raises(shmgpu.ConfigError, match="takes a function decorated with"):
            shmgpu.broadcast(len, 1)
        with pytest.raises(shmgpu.ConfigError, match="declared with out="):
            declared.broadcast(np.zeros(3))
        with pytest.raises(shmgpu.ConfigError, match="omit helpers= and out="):
            see.options(helpers=[0]).broadcast()
        with pytest.raises(shmgpu.BadParams, match="cannot be carried"):
            set_weights.broadcast(object())
        with pytest.raises(shmgpu.ArenaFull):
            set_weights.broadcast(np.zeros(8 << 20, np.uint8))
        with pytest.raises(shmgpu.BadParams, match=r"it takes \(weights, also=None\)"):
            set_weights.options(timeout=60).broadcast()
        with pytest.raises(shmgpu.BadParams, match="unexpected keyword argument 'alos'"):
            shmgpu.broadcast(set_weights, np.zeros(1), alos=None)
        assert set_weights.broadcast(np.zeros(1)) == 1
        assert [found[3] for found in everywhere()] == [1, 1]  # no helper was replaced


@shmgpu.function
def keep_tensors(helper, tensors):
    helper.tensors = tensors


def test_an_array_that_torch_cannot_have_is_an_error_of_the_sender():
    with shmgpu.init(**TWO):
        assert keep_tensors.broadcast([np.zeros(3), np.zeros(0), np.zeros((), "f2")]) == 1
        with pytest.raises(shmgpu.BroadcastError, match="in helper"):
            keep_tensors.broadcast(np.zeros(4, "M8[s]"))
        assert keep_tensors.broadcast([]) == 2


def test_what_the_machine_has_no_memory_to_keep_is_refused_and_no_helper_is_replaced(monkeypatch):
    def refuse(size_bytes):
        raise MemoryError("3 MiB are asked for in all, but the machine has 2 MiB to give")

    monkeypatch.setattr("shmgpu.core.broadcast_make", refuse)
    with shmgpu.init(**TWO):
        with pytest.raises(shmgpu.ArenaFull, match=r"no memory to keep .* 2 MiB to give"):
            set_weights.broadcast(np.zeros(1))
        assert [found[3] for found in everywhere()] == [1, 1] and see.version == 0


# ---- functions that are defined late, which a broadcast carries (attach/test_late.py) ------------


def test_a_helper_that_replaces_one_has_them_too():
    with shmgpu.init(helpers=1, devices="cpu"):

        @shmgpu.function(arrays="numpy")
        def first(helper):
            return 1

        @shmgpu.function(arrays="numpy")
        def second(helper):
            return os.getpid()

        assert first() == 1
        before = second()
        os.kill(before, signal.SIGKILL)
        until(lambda: shmgpu.stats()["helpers"][0]["pid"] not in (0, before), "it is replaced")
        assert first() == 1 and second() != before


def test_helpers_of_a_broker_that_children_share_take_none():
    def child(rank):
        @shmgpu.function
        def late(helper):
            pass

        said = []
        for call, error in ((late, shmgpu.BadFunction), (adopt, shmgpu.BroadcastError)):
            with pytest.raises(error) as caught:
                call()
            said.append(str(caught.value))
        return said

    def adopt():
        ADOPT.broadcast({"key": b""})

    own, foreign = shmgpu.launch(child, children=1, devices="cpu")[0]
    assert "move its definition above launch() or init()" in own
    assert "take no functions" in foreign
