"""Offered load and fairness: arrivals, and the accounts that are made of them."""

import math
import sys
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

from benchmarks.measure import isolate, models  # noqa: E402
from benchmarks.measure.arrivals import Log, MeasuredSpan, account, offer, poisson  # noqa: E402
from benchmarks.workloads import batching, fairness  # noqa: E402

SPAN = MeasuredSpan(first_s=1.0, last_s=3.0, given_up_s=4.0)


class Clock:
    """A clock that only sleeping and working move on."""

    def __init__(self):
        self.now_s = 0.0

    def now(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


def test_one_seed_gives_the_same_arrivals_and_another_others():
    first = poisson(100.0, 10.0, 7, 0)
    assert np.array_equal(first, poisson(100.0, 10.0, 7, 0))
    assert not np.array_equal(first[:50], poisson(100.0, 10.0, 7, 1)[:50])


def test_arrivals_are_in_order_and_within_their_time():
    times = poisson(500.0, 2.0, 1)
    assert times[0] >= 0 and times[-1] < 2.0
    assert (np.diff(times) >= 0).all()


def test_arrivals_have_the_rate_and_the_exponential_gaps_of_a_poisson_process():
    times = poisson(1000.0, 100.0, 3)
    assert len(times) == pytest.approx(100_000, rel=0.02)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(0.001, rel=0.02)
    assert gaps.std() == pytest.approx(0.001, rel=0.02)  # of an exponential: its mean
    assert (gaps > 0.001).mean() == pytest.approx(math.exp(-1), rel=0.02)
    counts = np.histogram(times, 1000, (0.0, 100.0))[0]
    assert counts.var() == pytest.approx(counts.mean(), rel=0.15)  # no burst, no clockwork


def test_clients_together_offer_the_sum_of_their_rates():
    times = np.concatenate([poisson(250.0, 20.0, 5, client) for client in range(4)])
    assert len(times) == pytest.approx(20_000, rel=0.03)


def test_each_arrival_is_sent_when_it_is_due():
    clock, sent = Clock(), []
    offer(
        np.array([0.5, 0.7, 2.0]), lambda n: sent.append((n, clock.now())), clock.now, clock.sleep
    )
    assert sent == [(0, 0.5), (1, pytest.approx(0.7)), (2, pytest.approx(2.0))]


def test_arrivals_that_are_overdue_are_sent_at_once_and_none_is_left_out():
    clock, sent = Clock(), []

    def send(number):
        sent.append((number, clock.now()))
        if number == 0:
            clock.sleep(1.0)  # the sender itself is held up

    offer(np.array([0.5, 0.6, 0.7, 2.0]), send, clock.now, clock.sleep)
    assert sent == [(0, 0.5), (1, 1.5), (2, 1.5), (3, 2.0)]


def test_a_stall_is_paid_for_by_every_arrival_that_was_due_in_it():
    # One arrival each 10 ms; all due in the second half second are answered only at its end.
    due = np.arange(1.0, 3.0, 0.01)
    answered = np.where((due >= 2.0) & (due < 2.5), 2.5, due + 0.001)
    settled = account(due, answered, SPAN, good_s=0.05)
    assert settled.p50_ms == pytest.approx(1.0)
    assert settled.p99_ms == pytest.approx(490, abs=10)
    assert settled.offered == pytest.approx(100)
    assert settled.goodput == pytest.approx((len(due) - 45) / 2.0, abs=1)


def test_only_arrivals_due_in_the_span_are_counted():
    due = np.array([0.5, 1.5, 3.5])
    settled = account(due, due + np.array([9.0, 0.02, 9.0]), SPAN, good_s=0.05)
    assert (settled.offered, settled.goodput) == (0.5, 0.5)
    assert settled.p99_ms == pytest.approx(20)


def test_an_answer_counts_for_the_rate_when_it_comes_and_for_goodput_when_it_was_due():
    due = np.array([0.2, 1.0])
    settled = account(due, np.array([2.0, 3.5]), SPAN, good_s=5.0)
    assert settled.rate == 0.5  # the first one's answer, late but in the span
    assert settled.goodput == 0.5  # the second one


def test_an_arrival_without_an_answer_counts_with_the_time_it_has_waited():
    settled = account(np.array([1.0, 2.0]), np.array([np.nan, np.nan]), SPAN, good_s=5.0)
    assert settled.p50_ms == pytest.approx(2500)
    assert (settled.rate, settled.goodput) == (0.0, 0.0)


def test_a_span_without_arrivals_gives_no_account():
    with pytest.raises(ValueError, match="no arrival was due"):
        account(np.array([0.5]), np.array([0.6]), SPAN, good_s=0.05)


def test_what_is_out_at_the_end_is_given_up_and_has_no_answer():
    clock = Clock()
    answered = np.full(3, np.nan)
    log = Log(answered, clock.now)
    futures = [Future() for _ in range(3)]
    for number, future in enumerate(futures):
        log.add(number, future)
    clock.sleep(0.25)
    futures[1].set_result(None)
    log.settle(given_up_s=0.2)
    assert answered[1] == 0.25
    assert np.isnan(answered[[0, 2]]).all()
    assert futures[0].cancelled() and futures[2].cancelled()


def test_a_call_that_failed_fails_the_run():
    log = Log(np.full(1, np.nan), Clock().now)
    future = Future()
    log.add(0, future)
    future.set_exception(ZeroDivisionError("in the model"))
    with pytest.raises(ZeroDivisionError):
        log.settle(0.0)


@pytest.mark.parametrize(
    ("service", "index"),
    [([5, 5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([1, 1, 0, 0], 0.5), ([1, 2, 3], 36 / 42)],
)
def test_jains_index_is_one_for_equals_and_a_share_for_one_winner(service, index):
    assert fairness.jain(service) == pytest.approx(index)
    assert fairness.jain([10 * x for x in service]) == pytest.approx(index)


def test_jains_index_of_nothing_is_refused():
    with pytest.raises(ValueError, match="nobody was served"):
        fairness.jain([0, 0])


def test_the_sleeping_model_answers_with_its_rows_plus_one_and_says_what_a_row_costs():
    model = models.Sleeping(fixed_s=1e-6, per_row_s=1e-7)
    assert np.array_equal(model.make()(np.zeros((3, 16))), np.ones((3, 16)))
    assert model.row_s() == pytest.approx(1.1e-6)


def test_the_network_answers_with_as_many_rows_as_it_got():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    try:
        model = models.Perceptron(layers=2)
        assert model.make()(torch.zeros(5, model.width)).shape == (5, model.width)
        assert model.row_s() > 0
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("batched", [True, False])
def test_a_tiny_run_accounts_for_the_load_that_it_offered(batched):
    result = isolate.call(
        "benchmarks.workloads.batching:offered",
        60,
        model="sleep",
        load=0.2,
        batched=batched,
        seconds=0.3,
    )
    assert set(result) == set(batching.UNITS)
    assert 0 < result["p50"] <= result["p99"]
    assert result["goodput"] <= 0.2 / models.Sleeping().row_s() * 3


def test_beyond_saturation_calls_are_given_up_and_the_run_ends():
    result = isolate.call(
        "benchmarks.workloads.batching:offered",
        60,
        model="sleep",
        load=8,
        batched=False,
        seconds=0.3,
    )
    assert 0 < result["rate"] < 4 / models.Sleeping().row_s()


@pytest.mark.slow
def test_a_tiny_contest_counts_everybodys_service():
    result = isolate.call(
        "benchmarks.workloads.fairness:shmgpu_contest",
        60,
        seconds=0.1,
        batch_rows=0,
        service_s=0.0005,
    )
    assert 1 / 32 < result["jain"] <= 1.0
    assert 0 < result["greedy_share"] < 1


def test_in_a_queue_that_serves_in_order_the_greedy_one_gets_most():
    result = isolate.call(
        "benchmarks.workloads.fairness:fifo_contest", 60, seconds=0.2, service_s=0.0005
    )
    assert result["greedy_share"] > 0.5
    assert result["jain"] < 0.2
