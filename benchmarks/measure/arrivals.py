"""Load that is offered whether or not answers come, and the account of what became of it.

The loop is open: a client sends when an arrival is due, however many answers are still out, and an
answer's latency is counted from when its call was *due*, not from when it was sent. A system that
stalls then pays for every arrival of the stall, as its users would. (A loop that waits for each
answer sends less while the system is slow, and so leaves out the very calls that would have been
slow: coordinated omission, see Gil Tene, "How NOT to Measure Latency".)

This file knows nothing of what is being called.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MeasuredSpan:
    """What part of the offered load is counted: arrivals due from ``first_s`` to ``last_s``.

    Both are seconds since the common start. What comes before fills the queues; nothing is offered
    after. At ``given_up_s`` no more answers are waited for.
    """

    first_s: float
    last_s: float
    given_up_s: float

    @property
    def seconds(self) -> float:
        """How long the counted part is."""
        return self.last_s - self.first_s


@dataclass(frozen=True)
class Account:
    """What became of the load.

    ``rate`` counts all answers that came in the span, per second; ``goodput`` those arrivals of the
    span that were answered in good time. ``p50_ms`` and ``p99_ms`` are of all arrivals of the span,
    from when they were due; one without its answer counts with the time it has waited so far, so
    that beyond saturation they are lower bounds, set by how long the load was offered.
    """

    offered: float
    rate: float
    goodput: float
    p50_ms: float
    p99_ms: float


def poisson(rate: float, seconds: float, *seed: int) -> NDArray[np.float64]:
    """Return when a Poisson process of ``rate`` per second has arrivals: seconds, in order, from 0.

    The same ``seed`` gives the same times. Given how many there are, the arrivals of a Poisson
    process are independent and uniform (Kingman, Poisson Processes, 1993, section 2.4). Processes
    of several clients add up to one of the sum of their rates.
    """
    random = np.random.default_rng(seed)
    return np.sort(random.uniform(0.0, seconds, random.poisson(rate * seconds)))


def offer(
    due_s: NDArray[np.float64],
    send: Callable[[int], object],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Call ``send(number)`` for each arrival as soon as the clock ``now`` shows that it is due.

    ``send`` must not wait for an answer. Arrivals that are overdue are sent at once, one after the
    other; none is left out or put off.
    """
    for number, due in enumerate(due_s.tolist()):
        early = due - now()
        if early > 0:
            sleep(early)
        send(number)


def account(
    due_s: NDArray[np.float64], answered_s: NDArray[np.float64], span: MeasuredSpan, good_s: float
) -> Account:
    """Settle the load: when each call was due, and when it was answered (NaN: it was not).

    An answer is in good time when it came at most ``good_s`` after the call was due. ValueError
    when nothing was due in the span.
    """
    counted = (due_s >= span.first_s) & (due_s < span.last_s)
    if not counted.any():
        raise ValueError("no arrival was due in the span: offer more load, or for longer")
    known = np.where(np.isnan(answered_s), span.given_up_s, answered_s)
    waited = (known - due_s)[counted]
    good = ~np.isnan(answered_s[counted]) & (waited <= good_s)
    came = (answered_s >= span.first_s) & (answered_s < span.last_s)
    p50, p99 = np.quantile(waited, (0.5, 0.99))
    return Account(
        offered=float(counted.sum()) / span.seconds,
        rate=float(came.sum()) / span.seconds,
        goodput=float(good.sum()) / span.seconds,
        p50_ms=1000 * float(p50),
        p99_ms=1000 * float(p99),
    )


class Log:
    """In a client: what is out, and when each answer came.

    ``answered_s`` gets the time of each answer on the clock ``now``. Answers may come in another
    thread than the one that sends.
    """

    def __init__(self, answered_s: NDArray[np.float64], now: Callable[[], float]) -> None:
        self.answered_s = answered_s
        self.now = now
        self.out: dict[int, Any] = {}
        self.error: BaseException | None = None

    def add(self, number: int, future: Any) -> None:
        """Watch the future of a call that was sent. It is let go when it ends, with its result."""
        self.out[number] = future
        future.add_done_callback(lambda ended: self._ended(number, ended))

    def _ended(self, number: int, future: Any) -> None:
        came = self.now()
        self.out.pop(number, None)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.answered_s[number] = came
        else:
            self.error = error

    def settle(self, given_up_s: float) -> None:
        """Wait for what is out until ``given_up_s`` on the clock, then give the rest up.

        Raises the error that a call ended with.
        """
        while self.out and self.now() < given_up_s:
            time.sleep(0.002)
        for future in list(self.out.values()):
            future.cancel()
        if self.error is not None:
            raise self.error
