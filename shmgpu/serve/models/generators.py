"""In a helper: the running generators of streaming models.

Owns them, by caller and by the caller's number for each. A part is computed when the caller asks
for it, so a slow client holds up nobody, and the helper serves others between two parts. Never
drops one of a caller that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shmgpu import core
from shmgpu.serve.models.errors import StreamLost

Caller = tuple[int, int]  # slot and generation


class Generators:
    """All that one helper has begun."""

    def __init__(self) -> None:
        self._running: dict[Caller, dict[int, Iterator[Any]]] = {}

    def open(self, caller: Caller, token: int, parts: Iterator[Any]) -> None:
        """Begin a stream, which its caller calls ``token``."""
        self._running.setdefault(caller, {})[token] = parts

    def next(self, caller: Caller, token: int) -> tuple[Any, ...]:
        """One part more, as a tuple of one; empty, when that was all.

        Raises:
            StreamLost: it is not here.
            Exception: whatever the generator raises, which ends it.
        """
        parts = self._running.get(caller, {}).get(token)
        if parts is None:
            raise StreamLost("the process that made this stream has died: send the request again")
        try:
            return (next(parts),)
        except StopIteration:
            self.close(caller, token)
            return ()
        except BaseException:
            self.close(caller, token)
            raise

    def close(self, caller: Caller, token: int) -> None:
        """Nobody wants the rest."""
        own = self._running.get(caller, {})
        parts = own.pop(token, None)
        if not own:
            self._running.pop(caller, None)
        close = getattr(parts, "close", None)
        if close is not None:
            close()

    def forget_those_who_left(self) -> None:
        """Close the streams of children that are gone."""
        for caller in list(self._running):
            row = core.child_stats(caller[0])
            if row["generation"] != caller[1] or row["state"] != core.CHILD_RUNNING:
                for token in list(self._running[caller]):
                    self.close(caller, token)

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))
