"""Functions that a program defined after its broker had started: kept here, and run.

Owns what is kept, by a key. Only the helpers of a broker that serves one program take any; in all
others nothing is read of what a child sends. Never decides which function is carried: the program
does (:mod:`shmgpu.attach.late`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from shmgpu.errors import BadFunction
from shmgpu.helper.decoded import Helper

Body = Callable[..., Any]

KEPT = 16  # broadcasts after the last that had a function: calls of it may still wait

bodies: dict[str, Body] | None = None  # None: this helper takes none
_last: dict[str, int] = {}  # by key: the last broadcast that had it
_broadcasts = 0


def take() -> None:
    """From now on this helper takes functions."""
    global bodies
    bodies = {}


def adopt(helper: Helper, carried: dict[str, bytes]) -> None:
    """Keep functions, pickled, by their keys, and forget those that are long gone.

    Raises:
        PermissionError: this broker's helpers take none.
    """
    global _broadcasts
    if bodies is None:
        raise PermissionError("helpers of a broker that programs share take no functions")
    _broadcasts += 1
    _last.update(dict.fromkeys(carried, _broadcasts))
    for key in [one for one, last in _last.items() if last < _broadcasts - KEPT]:
        del bodies[key], _last[key]
    for key, pickled in carried.items():
        if key not in bodies:
            try:
                bodies[key] = pickle.loads(pickled)
            except Exception as error:  # its own calls say so; a broadcast that fails ends a helper
                bodies[key] = _failing(error)


def _failing(error: Exception) -> Body:
    def body(*args: Any, **kwargs: Any) -> Any:
        raise error

    return body


def _run(helper: Helper, key: str, args: Any, kwargs: Any) -> Any:
    body = (bodies or {}).get(key)
    if body is None:
        name = key.partition("#")[0]
        raise BadFunction(f"{name} was forgotten by its program while this call waited")
    return body(helper, *args, **kwargs)


# What a helper must know of a function before it calls it, its row says: each kind has one.


def run_torch(helper: Helper, key: str, /, *args: Any, **kwargs: Any) -> Any:
    """Run the function of that key."""
    return _run(helper, key, args, kwargs)


def run_numpy(helper: Helper, key: str, /, *args: Any, **kwargs: Any) -> Any:
    """The same, on NumPy arrays."""
    return _run(helper, key, args, kwargs)


def run_torch_mutating(helper: Helper, key: str, /, *args: Any, **kwargs: Any) -> Any:
    """The same, of one that writes to its arguments."""
    return _run(helper, key, args, kwargs)


def run_numpy_mutating(helper: Helper, key: str, /, *args: Any, **kwargs: Any) -> Any:
    """The same, of one that writes to its arguments, which are NumPy arrays."""
    return _run(helper, key, args, kwargs)
