"""Functions that a program defines after ``init()``: carried to its helpers at their first call.

The table of functions is sealed when a broker starts, so such a function has no row. Its body is
broadcast by value to the helpers of its pool, those that come later among them, and its calls go to
a row that runs what was carried. A prompt and a notebook live by that. Owns what was carried, and
the stand-in that is called for each function. Never for a broker that programs share: it runs the
code that it was started with.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from shmgpu.attach import carry
from shmgpu.child.arguments import CallOptions, CallTarget
from shmgpu.child.port import Port
from shmgpu.child.tickets import Ticket
from shmgpu.child.transport import CompletionHandler
from shmgpu.common.logs import logger
from shmgpu.errors import BadFunction
from shmgpu.function_table import DeclaredFunction, NamedBody
from shmgpu.functions import Function

ADOPT: Function[..., None] = Function(NamedBody("shmgpu.helper.late:adopt"), arrays="numpy")
# Rows that run what was carried, by what helpers must know of a function before they call it.
RUN: dict[tuple[str, bool], Function[..., Any]] = {
    (arrays, mutates): Function(NamedBody(name), arrays=arrays, mutates=mutates)
    for arrays, mutates, name in (
        ("torch", False, "shmgpu.helper.late:run_torch"),
        ("numpy", False, "shmgpu.helper.late:run_numpy"),
        ("torch", True, "shmgpu.helper.late:run_torch_mutating"),
        ("numpy", True, "shmgpu.helper.late:run_numpy_mutating"),
    )
}
# What is said of a function in the sealed table, and so of none that is carried.
SEALED = ("batch", "hang_after", "idempotent", "max_queue")


class LatePort(Port):
    """The port of a program that has a broker to itself."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._carried: dict[str, bytes] = {}
        self._stand_ins: weakref.WeakKeyDictionary[Any, tuple[Function[..., Any], str]] = (
            weakref.WeakKeyDictionary()
        )
        self._carrying = threading.Lock()

    def call(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None = None,
    ) -> Any:
        """As every port's."""
        if not target.row:
            target, args = self._in_place_of(target, args)
        return super().call(target, args, kwargs, options)

    def submit(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None,
        handler: CompletionHandler,
        use_reader: bool,
        lends: bool = True,
    ) -> Ticket:
        """As every port's."""
        if not target.row:
            target, args = self._in_place_of(target, args)
        return super().submit(target, args, kwargs, options, handler, use_reader, lends)

    def broadcast(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None = None,
    ) -> int:
        """As every port's; helpers keep the last broadcast of each row, so one without has none."""
        if not target.row and isinstance(target, DeclaredFunction):
            raise BadFunction(
                f"{target.name} was defined after the broker had started, and cannot be "
                "broadcast: move its definition above init()"
            )
        return super().broadcast(target, args, kwargs, options)

    def _in_place_of(
        self, target: CallTarget, args: tuple[Any, ...]
    ) -> tuple[CallTarget, tuple[Any, ...]]:
        """What is called for a function without a row, and with which arguments."""
        if not isinstance(target, DeclaredFunction) or target.is_own:
            return target, args
        with self._carrying:
            found = self._stand_ins.get(target)
            if found is None:
                found = self._stand_ins[target] = self._carry(target)
        stand_in, key = found
        return stand_in, (key, *args)

    def _carry(self, target: DeclaredFunction) -> tuple[Function[..., Any], str]:
        if target.pickle:
            raise BadFunction(
                f"{target.name} has pickle=True and was defined after the broker had started, "
                "whose helpers unpickle nothing: move its definition above init()"
            )
        key = f"{target.name}#{len(self._carried) + 1}"
        self._carried[key] = carry.body_of(target)
        try:
            # All of them, because the last broadcast is what a helper that comes later runs.
            super().broadcast(_like(ADOPT, target), (dict(self._carried),), {})
        except BaseException:
            del self._carried[key]
            raise
        lost = [name for name in SEALED if target.declared.get(name)]
        if lost:
            logger.warning(
                "%s was defined after the broker had started: its calls run one by one, without "
                "%s; above init() it would have that",
                target.name,
                " and ".join(lost),
            )
        made = _like(RUN[target.arrays_kind, target.mutates], target)
        made.name, made.timeout, made.out = target.name, target.timeout, target.out
        if callable(target.out):
            made.out = lambda key, *args, **kwargs: target.out(*args, **kwargs)
        return made, key


def _like(own: Function[..., Any], target: DeclaredFunction) -> Function[..., Any]:
    """One of the rows above, as a function of the target's pool."""
    made: Function[..., Any] = Function.__new__(Function)
    made.__dict__.update(own.__dict__)
    made._prepare()
    made.pool = target.pool
    return made
