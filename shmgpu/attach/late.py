"""Functions that a program defines after its broker has started: carried at their first call.

The table of functions is sealed when a broker starts, so such a function has no row. Its body is
broadcast by value to the helpers of its pool, those that come later among them, and its calls go to
a row that runs what was carried. A prompt and a notebook live by that. Owns what was carried, and
the stand-in that is called for each function. Never for a broker that programs share: it runs the
code that it was started with.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from shmgpu.attach import carry
from shmgpu.attach.preparing import Prepared, PreparingPort
from shmgpu.child.arguments import CallOptions, CallTarget
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
SOONER = (
    "define it above init(), or before the first call; or have a new broker, which has it: "
    "shmgpu.disconnect() and shmgpu.ensure(), or after init() shmgpu.shutdown() and init()"
)
MOST_ALIKE = 8  # functions of one name that are carried at a time
# Never given twice in a process: what a helper was given under one it keeps, whatever became of
# the broadcast here.
_numbers = itertools.count(1)


@dataclass(eq=False)
class Late:
    """A function that is carried.

    Attributes:
        key: by which helpers know it.
        body: pickled.
        stand_in: what is called in its place.
        is_there: whether every helper has had it.
    """

    key: str
    body: bytes
    stand_in: Function[..., Any]
    is_there: bool = False


class LateFunctions:
    """Those of one pool, each as long as the program has it.

    A helper that comes later runs the pool's last broadcast, so that must have them all. Threads,
    and signal handlers, may send at once, each what it knew of; whoever finds more when its own has
    returned sends once more. A broadcast that was given up may be the last, or not have been sent:
    then there is a doubt, and the next call sends again.

    Attributes:
        doubts: broadcasts that were given up.
        settled: how many of them one that had all was sent after.
    """

    def __init__(self) -> None:
        self.live: weakref.WeakKeyDictionary[Any, Late] = weakref.WeakKeyDictionary()
        self.doubts = self.settled = 0

    def add(self, target: DeclaredFunction) -> Late:
        """Carry one more; of many that were defined under one name the oldest goes.

        A cell that is run again defines its function anew, and something may hold the old one. If
        that is called after all, it is carried once more.
        """
        name = (target.__module__, target.__qualname__)
        alike = [one for one in self.live if (one.__module__, one.__qualname__) == name]
        for oldest in alike[: 1 - MOST_ALIKE]:
            del self.live[oldest]
        made = self.live[target] = _made(target)
        return made

    def bodies(self) -> dict[str, bytes]:
        """Of all that are alive, by key."""
        return {one.key: one.body for one in self.live.values()}


class LatePort(PreparingPort):
    """The port of a program that has a broker to itself."""

    takes_functions = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._late: dict[str | None, LateFunctions] = {}  # by pool
        self._changing = threading.RLock()  # of these; never held while a broadcast is awaited

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
                f"broadcast: {SOONER}"
            )
        return super().broadcast(target, args, kwargs, options)

    def send_anew(self, target: DeclaredFunction) -> None:
        """What helpers have of a function is not what it is: its next call carries it anew."""
        target.use_row(0)
        with self._changing:
            for own in self._late.values():
                own.live.pop(target, None)

    def before_call(self, target: CallTarget, args: tuple[Any, ...]) -> Prepared:
        """A function without a row has a stand-in, which is called with its key."""
        if target.row or not isinstance(target, DeclaredFunction) or target.is_own:
            return super().before_call(target, args)
        with self._changing:
            own = self._late.setdefault(target.pool, LateFunctions())
            found = own.live.get(target)
            if found is None:
                found = own.add(target)
        if not found.is_there or own.settled != own.doubts:
            self._carry(own, target, found)
        return found.stand_in, (found.key, *args)

    def _carry(self, own: LateFunctions, target: DeclaredFunction, found: Late) -> None:
        sent: dict[str, bytes] = {}
        try:
            while True:
                with self._changing:
                    own.live[target] = found  # others of its name may have pushed it out meanwhile
                    wanted, doubts = own.bodies(), own.doubts
                    if found.key in sent and wanted.keys() <= sent.keys():
                        break
                super().broadcast(_like(ADOPT, target), (wanted,), {})
                own.settled, sent = doubts, wanted
        except BaseException:
            with self._changing:
                own.doubts += 1
                if not found.is_there and own.live.get(target) is found:
                    del own.live[target]  # too large, say: it must not keep others from going
            raise
        found.is_there = True


def _made(target: DeclaredFunction) -> Late:
    if target.pickle:
        raise BadFunction(
            f"{target.name} has pickle=True and was defined after the broker had started, "
            f"whose helpers unpickle nothing: {SOONER}"
        )
    body = carry.body_of(target)
    lost = [name for name in SEALED if target.declared.get(name)]
    if lost:
        logger.warning(
            "%s was defined after the broker had started: its calls run one by one, without %s: %s",
            target.name,
            " and ".join(lost),
            SOONER,
        )
    made = _like(RUN[target.arrays_kind, target.mutates], target)
    made.timeout, made.out = target.timeout, target.out
    if callable(out := target.out):
        made.out = lambda key, *args, **kwargs: out(*args, **kwargs)
    return Late(f"{target.name}#{next(_numbers)}", body, made)


def _like(own: Function[..., Any], target: DeclaredFunction) -> Function[..., Any]:
    """One of the rows above, as a function of the target's pool."""
    made: Function[..., Any] = Function.__new__(Function)
    made.__dict__.update(own.__dict__)
    made._prepare()
    made.pool = target.pool
    made.name = target.name  # in sentences
    return made
