"""Whether a series of samples is flat: the test that a soak applies to each of its figures.

The slope is Theil's and Sen's, the median of the slopes between all pairs of samples, which a few
odd samples do not move; its confidence interval comes from the distribution of Kendall's tau (Sen,
"Estimates of the regression coefficient based on Kendall's tau", 1968), so that it lies above zero
exactly when the Mann-Kendall test finds a rising trend. A series is not flat when both hold: it
rises beyond doubt, and by more over the whole run than a bound that somebody thought about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.99
FEWEST = 10  # samples; fewer say nothing


@dataclass(frozen=True)
class Trend:
    """What a series does over its whole length, in its own unit.

    Attributes:
        growth: the slope times the length.
        least, most: ends of the growth's confidence interval.
        bound: the growth that is taken for none.
    """

    growth: float
    least: float
    most: float
    bound: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.bound or self.least <= 0


def trend(times: Sequence[float], values: Sequence[float], bound: float) -> Trend:
    """The trend of samples taken at those times; raises ValueError for fewer than ten."""
    if len(times) < FEWEST:
        raise ValueError(f"{len(times)} samples show no slope: take {FEWEST} or more")
    from scipy import stats  # large: not in every process that tests fork

    slope, _, low, high = stats.theilslopes(values, times, CONFIDENCE)
    length = max(times) - min(times)
    return Trend(float(slope) * length, float(low) * length, float(high) * length, bound)
