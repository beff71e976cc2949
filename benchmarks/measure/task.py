"""What a call is asked to do: which bytes go where, and who reads or writes them.

shmgpu and every peer do the same tasks. ``README.md`` says in words what the table here says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measure.figures import ProbeFailed

ITEM_BYTES = 4
LAST_STAMP = 1 << 20  # float32 counts exactly up to 2**24


@dataclass(frozen=True)
class Direction:
    """One kind of call: how much goes and comes back, and what the function does.

    ``answer(xp, x, items)`` makes a fresh answer, ``answer_into(xp, x, out)`` writes it where the
    peer has room for it. ``xp`` is ``numpy`` or ``torch``; both spell these the same.
    """

    carries_in: bool
    carries_out: bool
    answer: Callable[[Any, Any, int], Any]
    answer_into: Callable[[Any, Any, Any], Any]


def _fill(xp: Any, x: Any, out: Any) -> None:
    out[:] = x[0] + 1


DIRECTIONS: dict[str, Direction] = {
    "in": Direction(
        True,
        False,
        lambda xp, x, items: x[:1] + 1,
        lambda xp, x, out: xp.add(x[:1], 1, out=out),
    ),
    "out": Direction(
        False,
        True,
        lambda xp, x, items: xp.full((items,), float(x[0]) + 1, dtype=xp.float32),
        _fill,
    ),
    "both": Direction(
        True,
        True,
        lambda xp, x, items: x + 1,
        lambda xp, x, out: xp.add(x, 1, out=out),
    ),
}


@dataclass(frozen=True)
class Task:
    """A call of ``nbytes`` in ``direction``; arrays are float32 of one axis.

    With ``stamped`` the client writes a number into its array's first item before each call and
    finds it in the answer, so that no peer can answer from a copy it kept.
    """

    direction: str
    nbytes: int
    stamped: bool = False

    @property
    def request_items(self) -> int:
        """How many items the argument has."""
        return self.nbytes // ITEM_BYTES if DIRECTIONS[self.direction].carries_in else 1

    @property
    def answer_items(self) -> int:
        """How many items the result has."""
        return self.nbytes // ITEM_BYTES if DIRECTIONS[self.direction].carries_out else 1

    @property
    def largest_bytes(self) -> int:
        """Bytes of the larger of argument and result."""
        return ITEM_BYTES * max(self.request_items, self.answer_items)

    def request(self) -> Any:
        """Return an argument, each of its pages written."""
        return np.ones(self.request_items, "float32")

    def answer(self, xp: Any, x: Any) -> Any:
        """In a worker: return the answer as a fresh array."""
        return DIRECTIONS[self.direction].answer(xp, x, self.answer_items)

    def answer_into(self, xp: Any, x: Any, out: Any) -> None:
        """In a worker: write the answer into ``out``."""
        DIRECTIONS[self.direction].answer_into(xp, x, out)

    def check(self, x: Any, answer: Any) -> None:
        """Compare a whole answer; ProbeFailed when it is wrong."""
        if answer.dtype != np.float32 or not np.array_equal(answer, self.answer(np, x)):
            raise ProbeFailed("a peer gave a wrong answer")

    def step(self, x: Any, call: Callable[[], Any]) -> Callable[[], Any]:
        """Return what is timed: the call, with its stamp where the task has one."""
        if not self.stamped:
            return call
        stamp = 0.0

        def stamped_call() -> None:
            nonlocal stamp
            stamp = stamp + 1 if stamp < LAST_STAMP else 1.0
            x[0] = stamp
            if call()[0] != stamp + 1:
                raise ProbeFailed("a peer answered with what an earlier call was sent")

        return stamped_call
