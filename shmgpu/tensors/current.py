"""This process's recorder: made with the first tensor, for the chosen library and helpers.

Owns that choice. It is on a higher floor than the recorder and the debugger, so that the debugger
can watch the recorder from its first message on (``SHMGPU_DEBUG``). Never makes a recorder before
the first tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.child import runtime
from shmgpu.common import config
from shmgpu.ops.graph import Node, Scalar
from shmgpu.tensors import functions
from shmgpu.tensors.message import Held, Spread
from shmgpu.tensors.recorder import IN_USE, Recorder
from shmgpu.watch.stats import stats

MAX_PENDING = 4096  # nodes that a tensor shows before they are sent unasked

_backend = "torch"
_in_turn = False
runtime.computes_with_torch = True


def check_backend(name: str) -> None:
    """ValueError for a library that there is not."""
    if not isinstance(name, str) or name not in functions.EXECUTE:
        raise ValueError(f"backend {name!r}: there are {' and '.join(functions.EXECUTE)}")


def backend() -> str:
    """The library that computes, unless a broker was started for another one."""
    return _backend


def use_backend(name: str) -> None:
    """Compute with that library from now on: ValueError for another name."""
    global _backend
    check_backend(name)
    if runtime.current is not None and name != runtime.current.extra.pop("backend", _backend):
        runtime.current.extra.pop("recorder", None)
    _backend = name
    runtime.computes_with_torch = name == "torch"


def use_helpers(numbers: Sequence[int]) -> None:
    """Have tensors that are made from now on live on these helpers."""
    means = runtime.require()
    means.extra["tensor helpers"] = tuple(numbers)


def put_leaves_in_turn() -> None:
    """From now on each tensor that is made of no other is the next helper's, as in GT."""
    global _in_turn
    _in_turn = True
    if runtime.current is not None and "recorder" in runtime.current.extra:
        runtime.current.extra["recorder"].puts_leaves_in_turn = True


def recorder() -> Recorder:
    """This process's recorder; the first one joins a broker, or starts one.

    Raises:
        NotRunning: this process is no child, and cannot become one.
    """
    means = runtime.current
    if means is None:
        runtime.require_port()
        means = runtime.require()
    found: Recorder | None = means.extra.get("recorder")
    return _made(means) if found is None else found


def _made(means: runtime.Runtime) -> Recorder:
    """The first one; threads that make their first tensors at once have one between them."""
    with means.extra.setdefault("makes the recorder", threading.RLock()):
        found: Recorder | None = means.extra.get("recorder")
        if found is not None:
            return found
        if config.resolve("debug") or config.resolve("debug_dir"):
            from shmgpu.tensors import debug  # here, because most programs do without

            if not debug.is_enabled():
                debug.enable()
        helpers = means.extra.get("tensor helpers") or _helpers(means)
        found = Recorder(means.extra.get("backend", _backend), helpers)
        found.puts_leaves_in_turn = _in_turn
        means.extra["recorder"] = found
        return found


def _helpers(means: runtime.Runtime) -> list[int]:
    """The numbers of the helpers of the first pool, without places that wait for a scaling."""
    if means.inline:
        return [0]
    rows = stats()["helpers"]
    return [n for n, row in enumerate(rows) if row["pool"] == 0 and row["state"] in IN_USE]


def elements(node: Node) -> np.ndarray[Any, Any]:
    """The node's elements, computed if need be: an array that must not be written to."""
    value = node.value
    if type(value) is not Held:
        if type(value) is Scalar:
            return np.asarray(value.number, node.spec.dtype.numpy)
        if type(value) is not Spread or value.whole is None:
            recorder().flush([node])
            value = node.value
        if type(value) is Spread:
            value = value.whole
    array: np.ndarray[Any, Any] = value.array
    return array


def show(node: Node) -> None:
    """A tensor shows this node from now on."""
    node.owners += 1
    if node.value is None:
        here = recorder()
        pending = here.pending
        if here.placer is None:
            pending.append(node)
        else:  # tensors on meshes are told from others once, so nothing may come in between
            with here.lock:
                here.pending.append(node)
        if len(pending) > MAX_PENDING and not together.depth:
            here.send()


class _Together(threading.local):
    """While a thread is within, nothing is sent unasked: it holds nodes that no tensor shows yet.

    These would get no value, and be computed once more with what is sent next. So whoever shows
    several nodes that are made of the same ones shows them all within this. What has become too
    much meanwhile is sent at its end.
    """

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1
        if not self.depth:
            here = recorder()
            if len(here.pending) > MAX_PENDING:
                here.send()


together = _Together()
