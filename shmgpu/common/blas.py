"""Threads of the linear algebra library that NumPy brings along.

Owns the calls into OpenBLAS that set how many threads it uses, and end them. A forked process
inherits the number, and makes a pool only once it asks for more than one thread. So the parent sets
one before it forks, children never make a pool, and helpers ask for what they may have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.common import wait_policy


def end_threads() -> None:
    """End the threads of each pool, as OpenBLAS itself does before a fork; its next use makes them.

    Only for a process in which nobody computes with them: a fork could as well come now.
    """
    for path in wait_policy.loaded("openblas"):
        wait_policy.call(path, "blas_thread_shutdown_")


def _find() -> list[tuple[Callable[[], int], Callable[[int], Any]]]:
    """(get, set) of each OpenBLAS that is loaded."""
    paths = wait_policy.loaded("openblas")
    if not paths:
        return []
    import ctypes

    found = []
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                getter = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                setter = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if getter is not None and setter is not None:
                    found.append((getter, setter))
    return found


class BlasThreads:
    """The number of threads before a broker started, to be put back when it has ended."""

    def __init__(self) -> None:
        self._libraries = [(getter, setter, int(getter())) for getter, setter in _find()]

    def set(self, count: int) -> None:
        """Use that many threads, or as many as before where that is fewer."""
        for getter, setter, before in self._libraries:
            wanted = min(count, before)
            if int(getter()) != wanted:
                setter(wanted)

    def restore(self) -> None:
        """Use as many threads as before."""
        for getter, setter, before in self._libraries:
            if int(getter()) != before:
                setter(before)

    def counts(self) -> list[int]:
        """How many threads each library uses now."""
        return [int(getter()) for getter, _, _ in self._libraries]
