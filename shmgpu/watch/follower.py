"""Which broker is watched as time goes on: one, and after its end the next.

Owns the monitor of whoever looks on for long: the screen of ``shmgpu top``, and its page. Never
decides what becomes of a sample.
"""

from __future__ import annotations

from typing import Any

from shmgpu.errors import ShmError
from shmgpu.watch import monitor


class Follower:
    """A sequence of samples.

    Args:
        found: the broker to begin with.
        follow: after its end, go over to the next broker that runs.

    Attributes:
        found: the broker that is watched, or was.
        brokers: how many have been watched so far.
    """

    def __init__(self, found: monitor.RunningBroker, follow: bool = True) -> None:
        self.found = found
        self.follow = follow
        self.brokers = 0
        self._watching: monitor.Monitor | None = None
        self._wanted: monitor.RunningBroker | None = found

    @property
    def is_watching(self) -> bool:
        """Whether a broker runs that is watched."""
        return self._watching is not None

    def step(self) -> dict[str, Any] | None:
        """A sample, the last of its broker with ``running`` False; None: nobody is there yet.

        Raises:
            ShmError: the broker cannot be read; the next step looks for another.
        """
        if self._watching is None:
            self._watch()
        if self._watching is None:
            return None
        try:
            sample = self._watching.sample()
        except ShmError:
            self.close()
            raise
        if not sample["running"]:
            self.close()
        return sample

    def close(self) -> None:
        """Let go of the broker."""
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    def _watch(self) -> None:
        wanted, self._wanted = self._wanted or self._another(), None
        if wanted is not None:
            self._watching = monitor.Monitor(wanted.pid, wanted.descriptor)
            self.found = wanted
            self.brokers += 1

    def _another(self) -> monitor.RunningBroker | None:
        try:
            found = [one for one in monitor.find() if self.follow or one.pid == self.found.pid]
        except ShmError:
            return None  # a broker of another version cannot be the one
        return found[-1] if found else None
