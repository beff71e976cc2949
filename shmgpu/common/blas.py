"""Threads of the linear algebra library that NumPy brings along.

Owns the calls into OpenBLAS that set how many threads it uses, and end them. A forked process
inherits the number, and makes a pool only once it asks for more than one thread. So the parent sets
one before it forks, children never make a pool, and helpers ask for what they may have.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from shmgpu.common import wait_policy


def end_threads() -> None:
    """End the threads of each pool, as OpenBLAS itself does before a fork; its next use makes them.

    Only for a process in which nobody computes with them: a fork could as well come now.
    """
    for path in wait_policy.loaded("openblas"):
        wait_policy.call(path, "blas_thread_shutdown_")


_POOL_OF_ITS_OWN = 1  # what openblas_get_parallel() says: neither none nor OpenMP's


class _OpenBlas:
    """One OpenBLAS that is loaded, and how many threads it uses."""

    def __init__(self, library: Any, prefix: str, suffix: str):
        def function(name: str) -> Callable[..., int]:
            found: Callable[..., int] = getattr(library, f"{prefix}openblas_{name}{suffix}")
            return found

        self._getter, self._setter = function("get_num_threads"), function("set_num_threads")
        self.before = int(self._getter())
        self._most = 0  # threads that may be asked for without the library's own function
        try:
            if function("get_parallel")() == _POOL_OF_ITS_OWN:
                # What the getter reads, and how many the pool has or would be made with.
                self._count = ctypes.c_int.in_dll(library, "blas_cpu_number")
                self._most = ctypes.c_int.in_dll(library, "blas_num_threads").value
        except (AttributeError, ValueError):
            pass

    def get(self) -> int:
        """How many threads it uses."""
        return int(self._getter())

    def set(self, wanted: int) -> None:
        """Use so many; a pool that a fork has ended is not made for that.

        The library's own function makes it at once, and each new thread spins for 25 ms before it
        sleeps: twice that for each broker in whoever starts it, once in each helper.
        """
        if self.get() == wanted:
            return
        if wanted <= self._most:
            self._count.value = wanted
        if self.get() != wanted:
            self._setter(wanted)


def _find() -> list[_OpenBlas]:
    """Each OpenBLAS that is loaded."""
    found = []
    for path in sorted(wait_policy.loaded("openblas")):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for prefix in ("", "scipy_"):
            for suffix in ("", "64_", "_64"):
                with contextlib.suppress(AttributeError):
                    found.append(_OpenBlas(library, prefix, suffix))
    return found


class BlasThreads:
    """The number of threads before a broker started, to be put back when it has ended."""

    def __init__(self) -> None:
        self._libraries = _find()

    def set(self, count: int) -> None:
        """Use that many threads, or as many as before where that is fewer."""
        for one in self._libraries:
            one.set(min(count, one.before))

    def restore(self) -> None:
        """Use as many threads as before."""
        for one in self._libraries:
            one.set(one.before)

    def counts(self) -> list[int]:
        """How many threads each library uses now."""
        return [one.get() for one in self._libraries]
