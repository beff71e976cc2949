"""Broadcasts: run once in each helper of a pool, in one order with the calls, and again later."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import threading
import time
from collections import OrderedDict

import numpy as np
import pytest
from crash.programs import until

import shmgpu

TWO = {"helpers": 2, "devices": "cpu", "arena": "4MiB"}


@shmgpu.function(arrays="numpy")
def set_weights(helper, weights, also=None):
    helper.weights = weights
    helper.times = getattr(helper, "times", 0) + 1


@shmgpu.function(arrays="numpy")
def see(helper):
    weights = getattr(helper, "weights", None)
    return helper.id, helper.version, None if weights is None else weights.copy(), helper.generation


@shmgpu.function(arrays="numpy")
def times(helper):
    return getattr(helper, "times", 0)


@shmgpu.function(arrays="numpy")
def set_scale(helper, scale):
    helper.scale = scale
    helper.order = [*getattr(helper, "order", []), "scale"]


@shmgpu.function(arrays="numpy")
def set_offset(helper, offset):
    helper.offset = offset
    helper.order = [*getattr(helper, "order", []), "offset"]


@shmgpu.function(arrays="numpy")
def settings(helper):
    return helper.scale, helper.offset, helper.order, helper.version


@shmgpu.function(arrays="numpy")
def die(helper):
    os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def raise_in(helper, number, weights):
    """Raises in the helper of that number, in its first life."""
    helper.weights = weights
    if helper.id == number and helper.generation == 1:
        raise ValueError(f"helper {number} does not want it")


@shmgpu.function(arrays="numpy")
def raise_unless_first(helper, weights, gate):
    """Raises in whichever helper is not the first that runs it."""
    helper.weights = weights
    try:
        os.close(os.open(gate, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        if helper.generation == 1:
            raise ValueError("the first was another") from None


@shmgpu.function(arrays="numpy")
def die_at_first(helper, weights, folder, lives):
    """Ends as many helpers as it is to, one after the other."""
    helper.weights = weights
    for number in range(lives):
        try:
            os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)


@shmgpu.function(arrays="numpy")
def wait_for(helper, folder, gate, weights=None):
    """Says that it runs, and waits for a file."""
    if weights is not None:
        helper.weights = weights
    with open(f"{folder}/{helper.id}.runs", "w"):
        pass
    while not os.path.exists(gate):
        time.sleep(0.002)
    return helper.version


def everywhere(function=see, helpers=2):
    """What the function returns in each helper."""
    return [function.options(helpers=[number])() for number in range(helpers)]


def versions_and_weights(helpers=2):
    return [(version, float(weights[0])) for _, version, weights, _ in everywhere(see, helpers)]


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


# ---- helpers that come later -------------------------------------------------------------------


def test_a_helper_that_replaces_one_has_the_last_broadcasts_before_it_serves():
    with shmgpu.init(**TWO):
        set_scale.broadcast(1.0)
        set_offset.broadcast(2.0)
        assert set_scale.broadcast(3.0) == 3
        for number in range(2):
            with pytest.raises(shmgpu.HelperDied):
                die.options(helpers=[number])()
            found = settings.options(helpers=[number])()
            assert found == (3.0, 2.0, ["offset", "scale"], 3)
        assert shmgpu.stats()["broker"]["helper_respawns"] == 2


def test_a_broadcast_while_a_helper_starts_reaches_it_too(tmp_path):
    slow = tmp_path / "slow"

    def load(helper):
        while helper.generation > 1 and not slow.exists():
            time.sleep(0.002)

    with shmgpu.init(session=load, **TWO):
        set_weights.broadcast(np.zeros(1))
        with pytest.raises(shmgpu.HelperDied):
            die.options(helpers=[0])()
        for number in range(2, 5):  # it does not wait for one that makes its session
            assert set_weights.broadcast(np.full(1, number)) == number
        call = see.options(helpers=[0]).submit()
        slow.touch()
        assert call.result(20)[1:3] == (4, np.full(1, 4))


def test_deaths_at_random_leave_no_helper_with_other_weights():
    with shmgpu.init(helpers=3, devices="cpu", arena="4MiB"):
        for number in range(1, 10):
            dying = die.options(helpers=[number % 3]).submit()
            assert set_weights.broadcast(np.full(64, float(number))) == number
            with pytest.raises(shmgpu.HelperDied):
                dying.result(20)
            assert versions_and_weights(3) == [(number, number)] * 3


# ---- helpers that fail -------------------------------------------------------------------------


def test_the_first_helper_raises_and_nothing_has_changed():
    with shmgpu.init(**TWO):
        set_weights.broadcast(np.ones(1))
        for _ in range(2):  # whichever is the first
            try:
                raise_in.broadcast(0, np.zeros(1))
            except shmgpu.BroadcastError as error:
                first = error
        assert (first.helper, first.type_name) == (0, "ValueError")
        assert "the function raised ValueError in helper 0: helper 0 does not want it" in str(first)
        until(lambda: shmgpu.stats()["helpers"][0]["generation"] == 2, "it is replaced")
        generation = everywhere()[0][3]
        assert generation == 2


def test_another_helper_raises_the_broadcast_stands_and_that_one_is_replaced(tmp_path):
    with shmgpu.init(**TWO):
        with pytest.raises(shmgpu.BroadcastError, match="the broadcast stands") as caught:
            raise_unless_first.broadcast(np.full(1, 5.0), str(tmp_path / "gate"))
        assert caught.value.has_effect and "the first was another" in caught.value.message
        assert "raise_unless_first" in caught.value.traceback_text
        assert versions_and_weights() == [(1, 5), (1, 5)]
        found = everywhere()
        assert found[caught.value.helper][3] == 2 and found[1 - caught.value.helper][3] == 1
        row = shmgpu.stats()["helpers"][caught.value.helper]
        assert row["deaths"] == 1


def test_the_first_helper_dies_and_another_is_the_first(tmp_path):
    with shmgpu.init(**TWO):
        assert die_at_first.broadcast(np.full(1, 3.0), str(tmp_path), 1) == 1
        assert versions_and_weights() == [(1, 3), (1, 3)]


def test_two_die_one_after_the_other_and_nothing_has_changed(tmp_path):
    with shmgpu.init(**TWO):
        set_weights.broadcast(np.ones(1))
        with pytest.raises(shmgpu.HelperDied, match="die_at_first"):
            die_at_first.broadcast(np.full(1, 3.0), str(tmp_path), 2)
        assert versions_and_weights() == [(1, 1), (1, 1)]


def test_a_helper_dies_while_it_runs_one_that_stands_and_its_successor_has_it(tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.init(**TWO):
        busy = wait_for.options(helpers=[1]).submit(str(tmp_path), str(gate))
        until((tmp_path / "1.runs").exists, "helper 1 is busy, and helper 0 will be the first")
        done = threading.Event()
        found = []

        def send():
            found.append(set_weights.broadcast(np.full(1, 7.0)))
            done.set()

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: see.version == 1, "it has taken effect")
        assert not done.is_set()
        os.kill(shmgpu.stats()["helpers"][1]["pid"], signal.SIGKILL)
        with pytest.raises(shmgpu.HelperDied):
            busy.result(20)
        sender.join(20)
        assert found == [1]
        assert versions_and_weights() == [(1, 7), (1, 7)]


def test_failed_broadcasts_end_no_launch():
    with shmgpu.init(helpers=1, devices="cpu", arena="4MiB"):
        for number in range(8):
            with pytest.raises(shmgpu.BroadcastError):
                raise_always.broadcast(number)
        assert see()[1] == 0


@shmgpu.function(arrays="numpy")
def raise_always(helper, number):
    raise ValueError(number)


def kill_first_child():
    row = shmgpu.stats()["children"][0]
    assert row["pid"] > 0 and row["generation"] == 1
    os.kill(row["pid"], signal.SIGKILL)
    until(lambda: shmgpu.stats()["children"][0]["pid"] != row["pid"], "it is dead")


# ---- senders -----------------------------------------------------------------------------------


def test_a_deadline_releases_its_sender_and_nothing_else(tmp_path):
    gate = tmp_path / "gate"
    with shmgpu.init(**TWO):
        busy = wait_for.options(helpers=[1]).submit(str(tmp_path), str(gate))
        until((tmp_path / "1.runs").exists, "helper 1 is busy")
        with pytest.raises(shmgpu.CallTimeout):
            set_weights.options(timeout=0.1).broadcast(np.full(1, 2.0))
        gate.touch()
        assert busy.result(20) == 0
        assert versions_and_weights() == [(1, 2), (1, 2)]


def test_the_sender_is_killed_when_it_has_sent_and_all_helpers_have_it(tmp_path):
    gate = tmp_path / "gate"

    def sender():
        wait_for.broadcast(str(tmp_path), str(gate), np.full(1, 9.0))

    def looker(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "it runs in its first helper")
        kill_first_child()
        gate.touch()
        until(lambda: see.version >= 1, "it has taken effect")
        return versions_and_weights()

    def first(rank):
        if shmgpu.stats()["children"][0]["generation"] == 1:
            sender()

    _, found = shmgpu.launch(
        [first, looker],
        helpers=2,
        devices="cpu",
        arena="4MiB",
        restart="on-failure",
    )
    assert found == [(1, 9), (1, 9)]


def test_what_waits_for_its_turn_when_its_sender_dies_is_dropped(tmp_path):
    gate = tmp_path / "gate"

    def sender():
        if shmgpu.stats()["children"][0]["generation"] == 1:
            threading.Thread(target=set_weights.broadcast, args=(np.zeros(1),), daemon=True).start()
            until((tmp_path / "over").exists, "it is killed")

    def looker(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "another broadcast runs")
        (tmp_path / "send").touch()
        until(lambda: shmgpu.stats()["children"][0]["submitted"] == 1, "one waits")
        kill_first_child()
        until(lambda: shmgpu.stats()["children"][0]["dropped"] == 1, "it is dropped")
        gate.touch()
        until(lambda: see.version == 1, "the other has taken effect")
        return set_weights.broadcast(np.ones(1)), versions_and_weights()

    def other(rank):
        return wait_for.broadcast(str(tmp_path), str(gate), np.full(1, 9.0))

    def first(rank):
        until(lambda: list(tmp_path.glob("*.runs")), "another broadcast runs")
        sender()

    _, found, version = shmgpu.launch(
        [first, looker, other], helpers=2, devices="cpu", arena="4MiB", restart="on-failure"
    )
    assert version == 1 and found == (2, [(2, 1), (2, 1)])


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


# ---- nonsense ----------------------------------------------------------------------------------


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
        with pytest.raises(shmgpu.BroadcastError, match="TypeError"):
            set_weights.broadcast()
        until(lambda: shmgpu.stats()["broker"]["helper_respawns"] == 1, "that one is replaced")
        assert set_weights.broadcast(np.zeros(1)) == 1


def test_what_the_machine_has_no_memory_to_keep_is_refused_and_no_helper_is_replaced(monkeypatch):
    def refuse(size_bytes):
        raise MemoryError("3 MiB are asked for in all, but the machine has 2 MiB to give")

    monkeypatch.setattr("shmgpu.core.broadcast_make", refuse)
    with shmgpu.init(**TWO):
        with pytest.raises(shmgpu.ArenaFull, match=r"no memory to keep .* 2 MiB to give"):
            set_weights.broadcast(np.zeros(1))
        assert [found[3] for found in everywhere()] == [1, 1] and see.version == 0
