"""The soak's slope test, on series that leak and series that do not."""

from __future__ import annotations

import numpy as np
import pytest
from crash.slope import trend
from crash.soak import GAUGES, judge

TIMES = np.arange(300) * 5.0
SPAN = float(TIMES[-1])


def noise(scale, seed=0):
    return np.random.default_rng(seed).normal(0.0, scale, len(TIMES))


@pytest.mark.parametrize("seed", range(10))
def test_a_leak_that_noise_hides_from_the_eye_is_found(seed):
    leak = 40 + 3.0 * TIMES / SPAN + noise(2.0, seed)
    found = trend(TIMES, leak, bound=1.0)
    assert not found.is_flat
    assert found.least <= found.growth <= found.most
    assert found.growth == pytest.approx(3.0, abs=1.5)


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_is_flat(seed):
    assert trend(TIMES, 40 + noise(2.0, seed), bound=0.1).is_flat


def test_a_rise_below_the_bound_is_flat_however_sure():
    found = trend(TIMES, 40 + 0.5 * TIMES / SPAN, bound=1.0)
    assert found.is_flat and found.least > 0


def test_one_descriptor_more_in_steps_is_no_noise():
    leak = np.floor(10 + 2.5 * TIMES / SPAN)
    assert not trend(TIMES, leak, bound=0.5).is_flat


def test_a_constant_and_a_fall_are_flat():
    assert trend(TIMES, np.full(len(TIMES), 9.0), bound=0.5).is_flat
    assert trend(TIMES, 40 - TIMES / SPAN, bound=0.5).is_flat


def test_a_few_wild_samples_neither_make_nor_hide_a_leak():
    wild = noise(0.1)
    wild[::25] += 500
    assert trend(TIMES, 40 + wild, bound=1.0).is_flat
    assert not trend(TIMES, 40 + 3.0 * TIMES / SPAN + wild, bound=1.0).is_flat


def test_what_saturates_early_is_flat_once_the_warm_up_is_cut_off():
    filling = 20 - 8 * np.exp(-TIMES / 60)
    assert not trend(TIMES[:40], filling[:40], bound=1.0).is_flat
    kept = TIMES >= SPAN / 6
    assert trend(TIMES[kept], filling[kept], bound=1.0).is_flat


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="10 or more"):
        trend([1.0, 2.0], [1.0, 2.0], bound=1.0)


# ---- a soak's verdict --------------------------------------------------------------------------


def soak_samples(leaking="", growth=0.0):
    """Half an hour of every gauge, noisy and level but for the leaking one."""
    times = np.arange(120) * 15.0
    random = np.random.default_rng(0)
    series = {name: 10 + random.normal(0.0, 0.02, len(times)) for name in GAUGES}
    if leaking:
        series[leaking] += growth * times / times[-1]
    return [
        (float(at), {name: float(values[index]) for name, values in series.items()})
        for index, at in enumerate(times)
    ]


@pytest.mark.parametrize("leaking", GAUGES)
def test_a_soak_names_the_gauge_that_rises(leaking):
    growth = 2 * GAUGES[leaking].bound(10.0)
    trends = judge(soak_samples(leaking, growth), seconds=1800)
    assert [name for name, one in trends.items() if not one.is_flat] == [leaking]


def test_a_soak_in_which_nothing_rises_is_flat():
    assert all(one.is_flat for one in judge(soak_samples(), seconds=1800).values())
