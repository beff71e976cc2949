"""A step is answered when what is read is there; the rest is done beside the child's next one."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import time

import numpy as np
import pytest

import shmgpu as gt
from shmgpu.helper.decoded import Helper
from shmgpu.tensors import current

SIZE = 700  # of matrices whose products take milliseconds


class Gate:
    """What a helper does after an answer, it does while the gate is open."""

    def __init__(self, folder):
        self.bar = folder / "bar"

    def session(self, helper):
        afterwards = Helper.afterwards

        def waits_first(self_, work, *failed):
            def waits():
                until = time.monotonic() + 20
                while self.bar.exists() and time.monotonic() < until:
                    time.sleep(0.001)
                work()

            afterwards(self_, waits, *failed)

        Helper.afterwards = waits_first

    def shut(self):
        self.bar.touch()

    def open(self):
        self.bar.unlink()


@pytest.fixture
def gate(tmp_path):
    return Gate(tmp_path)


@pytest.fixture
def helper(gate):
    with gt.init(helpers=1, devices=["cpu"], threads=1, arena="24MiB", session=gate.session):
        yield


def slow(start):
    """What takes so long that it is made after the answer."""
    x = start
    for _ in range(6):
        x = (x @ x) * (1 / SIZE)
    return x


def row():
    return gt.stats()["helpers"][0]


def test_who_reads_a_loss_does_not_wait_for_the_rest(helper, gate):
    gate.shut()
    ones = gt.ones(SIZE, SIZE)
    x = gt.tensor(np.full(1000, 2.0, np.float32))
    product = slow(ones)
    assert (x * 3).sum().item() == 6000
    assert row()["goes_on"] == 1
    gate.open()
    np.testing.assert_allclose(product[0].data, 1.0, rtol=1e-4)
    assert row()["went_on"] >= 1


def test_what_reads_much_and_makes_little_is_worth_an_early_answer(helper, gate):
    gate.shut()
    total = gt.tensor(np.ones((SIZE, SIZE), np.float32)).sum()
    x = gt.tensor(np.full(1000, 2.0, np.float32))
    assert (x * 3).sum().item() == 6000
    assert row()["goes_on"] == 1
    gate.open()
    assert total.item() == SIZE * SIZE


def test_inputs_that_are_let_go_of_are_not_written_over_while_they_are_read(helper, gate):
    """The rest reads its input last, and the child is quick to use the memory again."""
    ones = gt.ones(SIZE, SIZE)
    for number in range(5):
        gate.shut()
        x = gt.tensor(np.full(1000, number, np.float32))
        rest = x * 2 + slow(ones)[0, 0]
        assert x.sum().item() == 1000 * number
        del x
        others = [gt.tensor(np.full(1000, -1, np.float32)) for _ in range(20)]
        assert row()["goes_on"] == 1  # it has not read it yet
        gate.open()
        np.testing.assert_allclose(rest.data, 2 * number + 1, rtol=1e-4)
        del others


def test_an_array_on_loan_stays_there_until_the_rest_is_done(helper, gate):
    array = gt.arena.zeros(1000)
    x = gt.from_numpy(array)
    assert (x * 3).sum().item() == 0
    del x
    assert array.flags.writeable  # there was no rest
    gate.shut()
    x = gt.from_numpy(array)
    rest = x + slow(gt.ones(SIZE, SIZE))[0, 0]
    assert (x * 3).sum().item() == 0
    del x
    assert not array.flags.writeable
    gate.open()
    np.testing.assert_allclose(rest.data, 1, rtol=1e-4)
    assert array.flags.writeable


def test_an_arena_without_room_waits_for_what_is_still_read(helper, gate):
    gate.shut()
    values = [np.full(4 << 20, number, np.float32) for number in (1, 2)]  # two do not fit
    x = gt.tensor(values[0])
    rest = x[:10] + slow(gt.ones(SIZE, SIZE))[0, 0]
    assert x[:4].sum().item() == 4
    assert row()["goes_on"] == 1
    del x
    with concurrent.futures.ThreadPoolExecutor() as pool:
        second = pool.submit(gt.arena.array, values[1])
        with pytest.raises(concurrent.futures.TimeoutError):
            second.result(timeout=0.5)
        gate.open()
        assert second.result(timeout=20).sum() == 2 * (4 << 20)
    np.testing.assert_allclose(rest.data, 2, rtol=1e-4)


def test_what_may_fail_is_done_before_the_answer_and_costs_the_rest_nothing(helper):
    where = gt.tensor([3, 99])
    table = gt.zeros(4, 70_000)
    fine = gt.ones(70_000) * 2
    wrong = table[where]
    x = gt.ones(1000)
    assert x.sum().item() == 1000
    for _ in range(2):
        with pytest.raises(gt.RemoteError, match=r"index 99 is out of bounds.*\(in index\)"):
            _ = (wrong + 1).data
    assert (fine.data == 2).all()


def test_a_death_after_the_answer_loses_what_was_to_be_made(helper):
    made = slow(gt.ones(SIZE, SIZE))
    x = gt.ones(1000)
    assert x.sum().item() == 1000
    os.kill(row()["pid"], signal.SIGKILL)
    until = time.monotonic() + 20
    while row()["generation"] == 1:
        assert time.monotonic() < until
        time.sleep(0.001)
    with pytest.raises(gt.HelperDied):
        _ = made.data
    assert gt.ones(1000).sum().item() == 1000


def test_training_with_early_answers_is_training_without(helper):
    def losses(flags):
        current.recorder().flags = flags
        gt.manual_seed(3)
        model = gt.nn.Sequential(gt.nn.Linear(64, 64), gt.nn.ReLU(), gt.nn.Linear(64, 8))
        optimiser = gt.optim.Adam(model.parameters(), lr=1e-2)
        rng = np.random.default_rng(0)
        found = []
        for _ in range(30):
            x = gt.tensor(rng.standard_normal((32, 64), dtype=np.float32))
            y = gt.tensor(rng.standard_normal((32, 8), dtype=np.float32))
            loss = gt.nn.mse_loss(model(x), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            found.append(loss.item())
        return found

    before = row()["went_on"]
    early = losses(0)
    assert row()["went_on"] - before >= 29
    assert early == losses(16)
