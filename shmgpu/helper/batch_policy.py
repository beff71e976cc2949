"""Whether the large calls of a batch are joined, or run one after another.

Joining copies all arguments into one array, and all results out of one. Compared with what a model
computes, these copies usually cost nothing; but where a model does little to much data, they cost
more than the model itself, and running the calls one after another, where their arrays lie, is
faster. So both ways are timed. Owns these measurements, by kind and number of calls;
:class:`shmgpu.helper.batch_executor.BatchExecutor` asks before it runs calls, and reports
afterwards. Never runs a call, and forms no batch: see `gather()` in
csrc/broker/schedule.c.
"""

from __future__ import annotations

LARGE_BYTES = 64 << 10  # of a call's arguments; to copy less takes less than to run one more call
MOST_KINDS = 256
MOST_KIND = 1024  # bytes of a kind that is remembered
IN_QUESTION = 0.2  # share of a joined run that copies take; a smaller one never matters
FIRST_INTERVAL, LAST_INTERVAL = 8, 1024  # runs until the other way is tried again
WEIGHT = 0.25  # of the last run among those before it


class Strategy:
    """What is known of the calls of one kind, about so many at once.

    Attributes:
        joined, apart: nanoseconds a call took; 0 where that was never tried.
        copied: the part of a joined run that was spent on copies.
    """

    __slots__ = ("_interval", "_left", "_trial", "apart", "copied", "joined")

    def __init__(self) -> None:
        self.joined = self.apart = self.copied = 0.0
        self._interval = FIRST_INTERVAL
        self._left = FIRST_INTERVAL
        self._trial = False  # the other way is being tried, because its time is old

    def is_joined(self) -> bool:
        """Whether the next run is to be joined."""
        if not self.joined or self.copied < IN_QUESTION:
            return True
        if not self.apart:
            return False
        is_better = self.joined <= self.apart
        self._trial = self._left == 0
        if self._trial:
            return not is_better
        self._left -= 1
        return is_better

    def was_joined(self, calls: int, took_ns: int, copies_ns: int) -> None:
        """A joined run of so many calls took so long, and its copies so much of it."""
        was_better = self.joined <= self.apart
        self.copied = _mean(self.copied, copies_ns / took_ns if took_ns else 0.0)
        self.joined = _mean(self.joined, took_ns / calls)
        self._ended(was_better)

    def was_apart(self, calls: int, took_ns: int) -> None:
        """So many calls took so long, one after another."""
        was_better = self.joined <= self.apart
        self.apart = _mean(self.apart, took_ns / calls)
        self._ended(was_better)

    def _ended(self, was_better: bool) -> None:
        """After a trial that changed nothing, the next one is later."""
        if self._trial:
            self._trial = False
            is_same = was_better == (self.joined <= self.apart)
            self._interval = min(2 * self._interval, LAST_INTERVAL) if is_same else FIRST_INTERVAL
            self._left = self._interval


def _mean(before: float, now: float) -> float:
    return before + WEIGHT * (now - before) if before else now


class BatchPolicy:
    """The strategies of one helper's batches."""

    def __init__(self) -> None:
        self._strategies: dict[tuple[int, bytes, int], Strategy] = {}

    def strategy(self, function: int, kind: bytes, calls: int) -> Strategy | None:
        """That of so many calls of a kind, or nearly so many; None: there is no question."""
        if len(kind) > MOST_KIND:
            return None
        key = function, kind, calls.bit_length()
        found = self._strategies.get(key)
        if found is None:
            if len(self._strategies) >= MOST_KINDS:
                self._strategies.clear()
            found = self._strategies[key] = Strategy()
        return found
