"""Work as a CUDA graph: warmed up, captured once, and replayed from then on.

Owns the order of these steps, and the words for why work cannot be captured. What is captured,
when, and what a replay must be given is decided by its owner: for programs that repeat
:mod:`shmgpu.engine.cuda_graphs`, for served models :mod:`shmgpu.serve.models.cuda_graphs`. How a
device does it is its driver's business (:mod:`shmgpu.engine.cuda`). Never knows a program or a
model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from shmgpu.engine.backends import Driver

T = TypeVar("T")

WARM_UPS = 2  # runs on the capturing stream, in which libraries set themselves up
FAILED = "capturing failed with {}: {}"


class NotCapturable(Exception):
    """The work cannot be captured; the exception's text is the reason."""


def reason_of(error: Exception) -> str:
    """Why work was not captured, in a sentence."""
    if isinstance(error, NotCapturable):
        return str(error)
    first_line = (str(error).splitlines() or [""])[0]
    return FAILED.format(type(error).__name__, first_line[:160])


class Capture(Generic[T]):
    """One piece of work on its way to a graph.

    Attributes:
        replay: launches the graph; None until the work is captured.
    """

    __slots__ = ("_driver", "_warm_ups", "replay")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._warm_ups = 0
        self.replay: Callable[[], None] | None = None

    @property
    def is_warm(self) -> bool:
        """Whether the work may be captured now."""
        return self._warm_ups >= WARM_UPS

    def warm_up(self, work: Callable[[], T]) -> T:
        """Do the work on the capturing stream, without capturing it; what it gave."""
        self._warm_ups += 1
        return self._driver.beside(work)

    def capture(self, work: Callable[[], T], generators: Sequence[object] = ()) -> T:
        """Capture the work, which is not done; what it gave, where replays will write it.

        ``generators``: what the work draws from.
        """
        self.replay, results = self._driver.capture(work, generators)
        return results
