"""The child's side of programs: what is recorded becomes messages here, and nowhere else.

Owns what waits to be computed, which helper holds which tensor, and which programs helpers know.
One flush makes one program of all that a tensor still shows, and one message of that.
"""

from __future__ import annotations

import itertools
import struct
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu import residents, runtime
from shmgpu.engine.session import HEAD, UNKNOWN_PROGRAM, UNKNOWN_TENSOR, number_format
from shmgpu.errors import HelperDied, RemoteError
from shmgpu.graph import Node, Scalar
from shmgpu.program import Draft
from shmgpu.stats import stats

MAX_PENDING = 4096  # nodes that a tensor shows before they are sent unasked
MAX_PROGRAMS = 4096
IN_USE = (1, 2, 3)  # a shm_helper_state: starting, ready, dead and to be replaced


class Held:
    """A value that lies in this child's arena, and is not changed any more."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class Resident:
    """A value that a helper holds; let go of when nobody here knows it any more."""

    __slots__ = ("handle", "helper", "recorder")

    def __init__(self, helper: int, handle: int, recorder: Recorder) -> None:
        self.helper = helper
        self.handle = handle
        self.recorder: Recorder | None = recorder

    def __del__(self) -> None:
        recorder = self.recorder
        if recorder is not None:
            # A finalizer may run anywhere, in any thread: it only notes.
            recorder.unneeded[self.helper].append(self.handle)


class Known:
    """A program that was made: its number, its bytes, how its numbers are packed."""

    __slots__ = ("code", "number", "numbers", "told")

    def __init__(self, number: int, code: bytes, numbers: struct.Struct) -> None:
        self.number = number
        self.code = code
        self.numbers = numbers
        self.told: set[int] = set()


class Recorder:
    """One child's recorded work."""

    def __init__(self, backend: str, helpers: Sequence[int]) -> None:
        self.pending: list[Node] = []
        self.helpers = tuple(helpers)
        self.unneeded: dict[int, list[int]] = {number: [] for number in self.helpers}
        self.flags = 0
        self._calls = {
            number: residents.EXECUTE[backend].options(helpers=[number]) for number in self.helpers
        }
        self._programs: dict[tuple[Any, ...], Known] = {}
        self._numbers = itertools.count(1)
        self._handle = 1
        self._turn = 0
        self._lock = threading.RLock()

    # ---- from nodes to a message ---------------------------------------------------------------

    def flush(self, wanted: Sequence[Node] = ()) -> None:
        """Compute what is wanted, and all that a tensor shows.

        Raises:
            HelperDied: a helper is gone, and tensors that it held with it.
            RemoteError: an operation failed.
        """
        with self._lock:
            waiting, self.pending = self.pending, []
            read = [node for node in dict.fromkeys(wanted) if type(node.value) is not Held]
            roots = [node for node in waiting if node.is_owned and node.value is None]
            if roots or read:
                try:
                    self._compute(roots, read)
                except BaseException:
                    self.pending = [node for node in roots if node.value is None] + self.pending
                    raise

    def _compute(self, roots: list[Node], read: list[Node]) -> None:
        order = _needed([*roots, *read])
        alive, saved = _graph_alive(order)
        seen = set(read)
        kept = [node for node in order if (node.is_owned or node in saved) and node not in seen]
        fixed = self._pinned(order, alive)
        draft = Draft(order, kept, read, fixed, Resident)
        helper = self._place(draft)
        results = self._send(helper, draft, kept)
        for node, array in zip(read, results or (), strict=True):
            node.value = Held(array)
        for node in order:
            if node not in alive:
                node.inputs = ()

    def _pinned(self, order: list[Node], alive: set[Node]) -> set[Node]:
        """Leaves that something besides these operations still knows.

        CPython counts references exactly: those of a leaf that are not the inputs of operations
        that are over after this are somebody else's.
        """
        ours: dict[Node, int] = {}
        for node in order:
            if node not in alive:
                for one in node.inputs:
                    if type(one.value) is Resident:
                        ours[one] = ours.get(one, 0) + 1
        # Besides these: the key of ``ours``, the loop's name, and the argument of getrefcount.
        return {
            node
            for node in ours
            if sys.getrefcount(node) > ours[node] + 3 or sys.getrefcount(node.value) > 2
        }

    def _place(self, draft: Draft) -> int:
        """The helper that holds most of what is used; the next in turn where none holds any."""
        held: dict[int, int] = {}
        for node in draft.arrays:
            value = node.value
            if type(value) is Resident:
                held[value.helper] = held.get(value.helper, 0) + node.spec.nbytes
        if len(held) == 1:
            return next(iter(held))
        if not held:
            self._turn += 1
            return self.helpers[self._turn % len(self.helpers)]
        raise NotImplementedError("moves between helpers")

    def _send(self, helper: int, draft: Draft, kept: list[Node]) -> Any:
        known = self._programs.get(draft.key)
        if known is None:
            program = draft.program(Resident)
            if len(self._programs) >= MAX_PROGRAMS:
                self._programs.clear()
            known = self._programs[draft.key] = Known(
                next(self._numbers), program.encode(), struct.Struct("<" + number_format(program))
            )
        handles = []
        arrays = []
        for node in draft.arrays:
            value = node.value
            if type(value) is Resident:
                handles.append(value.handle)
            else:
                arrays.append(value.array)
        unneeded, self.unneeded[helper] = self.unneeded[helper], []
        first = self._handle
        self._handle += len(kept)
        head = b"".join(
            (
                HEAD.pack(known.number, self.flags, first, len(handles), len(unneeded)),
                struct.pack(f"<{len(handles) + len(unneeded)}q", *handles, *unneeded),
                known.numbers.pack(*draft.numbers),
            )
        )
        code = b"" if helper in known.told else known.code
        call = self._calls[helper]
        try:
            results = call(head, code, *arrays)
        except RemoteError as error:
            if UNKNOWN_PROGRAM in str(error) and not code:
                results = call(head, known.code, *arrays)
            elif UNKNOWN_TENSOR in str(error):
                raise HelperDied(_lost(draft, helper)) from error
            else:
                raise
        known.told.add(helper)
        for handle, node in enumerate(kept, first):
            node.value = Resident(helper, handle, self)
        for node in draft.donated_nodes:
            node.value.recorder = None
        return results


def _lost(draft: Draft, helper: int) -> str:
    shapes = ", ".join(
        f"{node.spec.dtype.name} {node.spec.shape}"
        for node in draft.arrays
        if type(node.value) is Resident
    )
    return (
        f"helper {helper} has died, and with it the tensors that it held ({shapes}): make them "
        "anew, or load the last state_dict that was saved"
    )


def _needed(roots: list[Node]) -> list[Node]:
    """What has to be computed for these, inputs first: numbers rise along the way."""
    seen: set[Node] = set()
    stack = roots[:]
    while stack:
        node = stack.pop()
        if node in seen or node.value is not None:
            continue
        seen.add(node)
        stack.extend(node.inputs)
    return sorted(seen, key=_number)


def _number(node: Node) -> int:
    return node.number


def _graph_alive(order: list[Node]) -> tuple[set[Node], set[Node]]:
    """Nodes whose gradient may still be asked for, and those of whom it will need the value."""
    alive: set[Node] = set()
    saved: set[Node] = set()
    stack = [node for node in order if node.is_owned and node.needs_grad and not node.is_released]
    while stack:
        node = stack.pop()
        if node in alive or node.leaf is not None or node.is_released or not node.needs_grad:
            continue
        alive.add(node)
        if "o" in node.op.saves:
            saved.add(node)
        for one in node.inputs:
            if "i" in node.op.saves:
                saved.add(one)
            stack.append(one)
    if saved:
        waiting = set(order)
        saved = {node for node in saved if node in waiting}
    return alive, saved


def current() -> Recorder:
    """This process's recorder; raises NotRunning outside a child."""
    means = runtime.current
    if means is None:
        runtime.require_port()
        means = runtime.require()
    recorder: Recorder | None = means.extra.get("recorder")
    if recorder is None:
        helpers = means.extra.get("tensor helpers") or _helpers(means)
        recorder = means.extra["recorder"] = Recorder(_backend, helpers)
    return recorder


_backend = "torch"


def use_backend(name: str) -> None:
    """Compute with that library from now on: ValueError for another name."""
    global _backend
    if name not in residents.EXECUTE:
        raise ValueError(f"backend {name!r}: there are {' and '.join(residents.EXECUTE)}")
    if runtime.current is not None and name != _backend:
        runtime.current.extra.pop("recorder", None)
    _backend = name


def use_helpers(numbers: Sequence[int]) -> None:
    """Have tensors that are made from now on live on these helpers."""
    means = runtime.require()
    means.extra["tensor helpers"] = tuple(numbers)


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
        current().flush([node])
        value = node.value
    array: np.ndarray[Any, Any] = value.array
    return array


def show(node: Node) -> None:
    """A tensor shows this node from now on."""
    node.is_owned = True
    if node.value is None:
        pending = current().pending
        pending.append(node)
        if len(pending) > MAX_PENDING:
            current().flush()
