"""The model of the broker: the laws of queueing systems, its calibration, its command line."""

import json
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Last, so that an installed shmgpu is not hidden by the checkout's.
sys.path.append(str(ROOT))

pytest.importorskip("simpy")

from benchmarks.measure.figures import ProbeFailed, Unavailable  # noqa: E402
from benchmarks.simulation import calibration, simulate  # noqa: E402
from benchmarks.simulation.model import (  # noqa: E402
    Broker,
    ClosedLoad,
    Costs,
    Policy,
    SimulatedMachine,
    calls_of,
    predict,
)

COSTS = Costs()
FREE = Costs(*[1e-6] * 11, slice=100.0)  # all but nothing costs anything
TWO = SimulatedMachine(cores=2)
LOADS = {
    "lone": ClosedLoad(1, 1),
    "many": ClosedLoad(64, 2),
    "windows": ClosedLoad(16, 3, window=8),
    "device": ClosedLoad(16, 2, window=2, service_us=300),
    "core": ClosedLoad(8, 2, service_us=50, kind="core"),
}


def each_load(test):
    return pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)(test)


@each_load
def test_no_call_is_lost_or_made_up(load):
    broker = Broker(load, TWO, COSTS, seed=3)
    for _ in range(20_000):
        broker.env.step()
        out = broker.sent - broker.answered
        assert 0 <= out <= load.children * load.window
    held = sum(broker.policy.in_flight)
    assert 0 <= held + broker.policy.queued <= load.children * load.window
    assert broker.answered > 100


@each_load
def test_what_is_out_is_rate_times_latency(load):
    outcome = predict(load, TWO, COSTS)
    out = outcome.rate * outcome.mean_us / 1e6
    # A child is not out while it works: for a few microseconds between an answer and a call.
    assert 0.6 * load.children * load.window < out < 1.03 * load.children * load.window


@each_load
def test_no_resource_is_used_for_longer_than_there_is_time(load):
    shares = predict(load, TWO, COSTS).shares
    assert all(0 <= share <= 1.01 for share in shares.values())


@pytest.mark.parametrize("helpers", [1, 2, 5])
def test_helpers_that_never_wait_serve_one_call_a_service_time(helpers):
    outcome = predict(ClosedLoad(32, helpers, service_us=1000), SimulatedMachine(16), FREE)
    assert outcome.rate == pytest.approx(helpers * 1000, rel=0.01)
    assert outcome.saturated == "helpers"


@pytest.mark.parametrize(
    ("load", "machine", "limit"),
    [
        (ClosedLoad(256, 2), TWO, "cpu"),
        (ClosedLoad(1000, 8), SimulatedMachine(64), "dispatcher"),
        (ClosedLoad(1000, 8, service_us=1000), SimulatedMachine(64), "helpers"),
        (ClosedLoad(2, 8, service_us=1000), SimulatedMachine(64), "nothing"),
    ],
)
def test_what_is_used_up_is_what_a_reader_of_the_load_would_say(load, machine, limit):
    assert predict(load, machine, COSTS).saturated == limit


def test_computing_helpers_are_limited_by_the_cores():
    outcome = predict(ClosedLoad(16, 8, service_us=1000, kind="core"), TWO, FREE)
    assert outcome.rate == pytest.approx(2000, rel=0.05)
    assert outcome.shares["cpu"] == pytest.approx(1, rel=0.05)
    assert outcome.saturated == "cpu"


def test_helpers_that_share_a_gpu_take_turns():
    load = ClosedLoad(32, 4, service_us=1000)
    assert predict(load, SimulatedMachine(16, gpus=2), FREE).rate == pytest.approx(2000, rel=0.01)
    assert predict(load, SimulatedMachine(16, gpus=4), FREE).rate == pytest.approx(4000, rel=0.01)


def test_a_lone_call_takes_the_sum_of_what_happens_to_it():
    costs = replace(FREE, transfer=1.0)
    # Child to dispatcher, to helper, to dispatcher, to child: written and read each.
    assert predict(
        ClosedLoad(1, 1, service_us=50), SimulatedMachine(8), costs
    ).mean_us == pytest.approx(58, rel=0.02)


def test_more_of_what_limits_never_makes_it_slower_and_more_work_never_faster():
    def rate(**more):
        return predict(
            replace(ClosedLoad(32, 2, service_us=200), **more), SimulatedMachine(8), COSTS
        ).rate

    by_helpers = [rate(helpers=n) for n in (1, 2, 4, 8)]
    by_children = [rate(children=n) for n in (1, 2, 8, 32)]
    by_service = [rate(service_us=us) for us in (1000, 200, 50, 10)]
    for rates in (by_helpers, by_children, by_service):
        assert all(more > 0.99 * less for less, more in pairwise(rates))


def test_the_same_seed_gives_the_same_outcome_and_another_nearly_so():
    load = LOADS["many"]
    once = predict(load, TWO, COSTS, seed=5)
    assert predict(load, TWO, COSTS, seed=5) == once
    other = predict(load, TWO, COSTS, seed=6)
    assert other != once
    assert other.rate == pytest.approx(once.rate, rel=0.1)


@pytest.mark.parametrize("service_us", [10, 20_000])
def test_events_grow_with_the_calls_and_not_with_the_time(service_us):
    load = ClosedLoad(1000, 8, service_us=service_us)
    broker = Broker(load, SimulatedMachine(128, gpus=8), COSTS, seed=1)
    steps = 0
    step = broker.env.step

    def counted():
        nonlocal steps
        steps += 1
        step()

    broker.env.step = counted
    calls = sum(calls_of(load))
    broker.run_until(calls)
    assert steps < 30 * calls


def test_children_are_served_in_turn():
    policy = Policy(ClosedLoad(3, 1, window=4))
    for child in (0, 0, 0, 1, 2):
        policy.enqueue((child, 0.0))
    policy.estimate_us = 1.0  # short: the helper is handed all of them
    served = []
    while (given := policy.next()) is not None:
        served.append(given[1][0][0])
    assert served == [0, 1, 2, 0, 0]


def test_a_helper_gets_many_short_calls_ahead_but_one_of_a_length_not_known():
    policy = Policy(ClosedLoad(8, 1))
    for child in range(8):
        policy.enqueue((child, 0.0))
    assert policy.next() is not None
    assert policy.next() is None
    policy.finished(0, 1e6, 2.0)
    handed = 0
    while policy.next() is not None:
        handed += 1
    assert handed == 7


@pytest.mark.parametrize(
    "wrong", [{"children": 0}, {"helpers": 0}, {"window": 0}, {"service_us": -1}, {"kind": "gpu"}]
)
def test_a_load_that_nobody_runs_is_refused(wrong):
    with pytest.raises(ValueError):
        ClosedLoad(**{"children": 1, "helpers": 1, **wrong})


@pytest.mark.slow  # hundreds of predictions
def test_costs_are_found_again_from_three_runs_and_predict_a_fourth():
    # A machine half as fast, and dear to wake: not where the search begins.
    true = Costs(**{name: 2 * getattr(COSTS, name) for name in calibration.NAMES})
    true = replace(true, wake_idle=3 * COSTS.wake_idle, slice=COSTS.slice)
    runs = {name: predict(load, TWO, true, seed=2) for name, load in calibration.RUNS.items()}
    found = calibration.fit(runs)
    assert all(0.85 < ratio < 1.18 for ratio in found.rates.values())
    for load in (ClosedLoad(24, 2, service_us=50), ClosedLoad(12, 1, window=4)):
        wanted = predict(load, TWO, true, seed=2).rate
        untold = predict(load, TWO, COSTS).rate
        assert abs(predict(load, TWO, found.costs).rate / wanted - 1) < 0.2
        assert abs(untold / wanted - 1) > abs(predict(load, TWO, found.costs).rate / wanted - 1)


def test_ten_loads_are_judged_and_none_of_them_is_calibrated_on():
    judged = [*simulate.NEAR.values(), *simulate.FAR.values()]
    assert len(judged) == len(set(judged)) == 10
    assert len(calibration.RUNS) <= 3
    assert not set(judged) & set(calibration.RUNS.values())
    services = {load.service_us for load in judged}
    assert {10, 20_000} <= services


@pytest.mark.slow  # builds a program, and waits until it has run
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_measured_side_says_what_the_model_says():
    try:
        outcome = simulate.measure(ClosedLoad(3, 2, window=2, service_us=2000), 0.2)
    except Unavailable as reason:
        pytest.skip(str(reason))
    # However busy the machine is: a sleep takes no less than it was told to.
    assert 0 < outcome.rate <= 1050
    assert outcome.median_us > 1900
    assert 0 < outcome.dispatcher_us and 0 < outcome.children_us and 0 < outcome.helpers_us
    assert outcome.turns > 0.1
    assert 0 < outcome.busy <= 1.1


def test_a_prediction_without_a_measurement_or_a_calibration_says_so():
    group = simulate.WORKLOAD.groups[0]
    predicted = next(probe for probe in group.probes if probe.name == "8x1, predicted")
    with pytest.raises(ProbeFailed, match="no measurement"):
        predicted.run(0.1)
    with pytest.raises(ProbeFailed, match="calibration"):
        simulate.Judged({}).costs()


def ask(capsys, *words):
    code = simulate.main([*words])
    return code, capsys.readouterr()


def test_one_may_ask_about_a_box_of_ones_own(capsys):
    code, said = ask(
        capsys, "--cores", "128", "--gpus", "8", "--children", "100", "--service-us", "4000"
    )
    assert code == 0
    assert "limited by   the helpers" in said.out
    assert "128 cores, 8 GPUs: 100 children" in said.out
    assert said.err == ""  # no bar in a pipe


def test_a_prediction_as_json_holds_the_costs_and_they_can_be_given_back(capsys, tmp_path):
    words = ("--cores", "4", "--children", "8", "--service-us", "100", "--json")
    code, said = ask(capsys, *words)
    document = json.loads(said.out)
    assert code == 0
    assert document["load"]["helpers"] == 2
    assert document["outcome"]["saturated"] == "helpers"
    document["costs"]["late"] = 100.0
    kept = tmp_path / "costs.json"
    kept.write_text(json.dumps(document))
    _, again = ask(capsys, *words, "--costs", str(kept))
    slower = json.loads(again.out)["outcome"]["rate"]
    assert slower < 0.7 * document["outcome"]["rate"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--children", "0"), "1 to 4,096 children"),
        (("--children", "100000000"), "1 to 4,096 children"),
        (("--children", "1", "--helpers", "65"), "1 to 64 helpers"),
        (("--children", "1", "--window", "0"), "1 to 896 calls out"),
        (("--children", "1", "--service-us", "nan"), "0 us or more"),
        (("--children", "1", "--service-us", "inf"), "0 us or more"),
        (("--children", "1", "--cores", "0"), "1 core or more"),
        (("--children", "1", "--costs", "/nowhere"), "cannot be read"),
        (("--children", "1", "--costs", __file__), "holds no costs"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_sentence(capsys, words, why):
    code, said = ask(capsys, *words)
    assert code == 2
    assert why in said.err
    assert said.err.count("\n") == 1
