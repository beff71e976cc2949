"""The function table: which function has which row, by what name, and with which settings.

Owns the rows, the names by which brokers know functions, and what was declared of each. A function
that is decorated is entered in the C table at once; that table is sealed when a broker starts.
Never calls or runs a function: children call what is entered here (:mod:`shmgpu.functions`), and
helpers run its body.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from shmgpu import core
from shmgpu.common.module_names import module_of
from shmgpu.common.parsers import one_of, parse_bool, parse_seconds, shortened, whole
from shmgpu.errors import ConfigError

_parse_max_queue = whole(1, core.MAX_CHILDREN * core.MAX_WINDOW)
_parse_when_full = one_of("refuse", "drop_oldest")

by_row: dict[int, DeclaredFunction] = {}
_late: list[weakref.ref[DeclaredFunction]] = []  # decorated while a broker ran
_resolver: Callable[[DeclaredFunction], int] | None = None  # in a process that joined one
_advice: Callable[[DeclaredFunction], str] | None = None  # on how to come by one that has it
_obstacle: Callable[[DeclaredFunction], str] | None = None  # why that one could not get it
_names: list[str] | None = None  # of what that broker has; None: what this process had
# While functions are carried to a broker that is started by exec: the modules that a fresh
# interpreter cannot find. Functions of those go by value. Otherwise None.
unfindable: set[str] | None = None


def of_users() -> list[DeclaredFunction]:
    """The functions that programs decorated, without the package's own."""
    return [one for one in list(by_row.values()) if not one.is_own]


def register_late() -> None:
    """Before a broker starts: enter the functions that were decorated while the last one ran."""
    waiting = [target for one in _late if (target := one()) is not None]
    _late.clear()
    for target in waiting:
        target._register()


def resolve_by(
    resolver: Callable[[DeclaredFunction], int] | None,
    names: list[str] | None,
    advice: Callable[[DeclaredFunction], str] | None = None,
    obstacle: Callable[[DeclaredFunction], str] | None = None,
) -> None:
    """From now on functions have the rows that ``resolver`` says; None: this process's own.

    ``names`` are what the broker has; None where it has all that this process had decorated.
    ``advice`` says how to come by a broker that has one it lacks; ``obstacle`` why one could not go
    there, where it could not.
    """
    global _resolver, _names, _advice, _obstacle
    _advice = advice
    _obstacle = obstacle
    _resolver = resolver
    _names = names
    for own_row, target in by_row.items():
        target.refused = ""
        target.use_row(resolver(target) if resolver is not None else own_row)


@dataclass(frozen=True)
class Batch:
    """How calls of a function run together.

    Calls whose arrays agree in dtype and in all axes but the first, and whose plain values are
    equal, are concatenated along axis 0 and run as one; the outputs are split again. Calls of 64
    KiB and more on a CPU run one after another instead, if the helper has measured that copying
    them together takes longer than it saves.

    Args:
        max_size: the most rows (not calls) that run as one.
        max_delay: seconds a call may wait for others, half of its timeout at most; None: no call
            waits.
    """

    max_size: int = 32
    max_delay: float | None = None

    def __post_init__(self) -> None:
        size, delay = self.max_size, self.max_delay
        if type(size) is not int or not 1 <= size < 1 << 31:
            raise ConfigError(f"max_size={shortened(size)} must be a number of rows, 1 or more")
        is_number = isinstance(delay, (int, float)) and not isinstance(delay, bool)
        if delay is not None and not (is_number and 0 <= delay <= 60):
            raise ConfigError(f"max_delay={shortened(delay)} must be seconds, 0 to 60, or None")


def name_of(target: DeclaredFunction) -> str:
    """``module:qualname``; a script that is run is called what it would be imported as."""
    return target.known_as or name_of_body(target.body)


def name_of_body(body: Callable[..., Any]) -> str:
    """The same of what is not decorated."""
    name = getattr(body, "__qualname__", type(body).__name__)
    return f"{module_of(body)}:{name}"


def found(module: str, name: str) -> Any:
    """What a module that is imported has under a dotted name; None when nothing."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def session_maker_beside(body: Any) -> str:
    """The name of a function beside a decorated one that takes a helper alone; "" for none.

    ``load``, if that is one of several.
    """
    if not isinstance(body, FunctionType):
        return ""
    found = [
        name
        for name, one in body.__globals__.items()
        if isinstance(one, FunctionType)
        and one.__module__ == body.__module__
        and one.__code__.co_varnames[: one.__code__.co_argcount] == ("helper",)
    ]
    return "load" if "load" in found else found[0] if found else ""


class NamedBody:
    """A body that stands in a module that only helpers import: found there by its name.

    The package's own functions have one, so that a child that calls them imports nothing of what
    helpers run.

    Args:
        name: ``"module:name"``.
    """

    def __init__(self, name: str) -> None:
        self.__module__, _, self.__qualname__ = name.partition(":")

    def find(self) -> Callable[..., Any]:
        """The function."""
        found: Callable[..., Any] = getattr(
            importlib.import_module(self.__module__), self.__qualname__
        )
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it; see :func:`find_bodies` for those that run often."""
        return self.find()(*args, **kwargs)

    def __reduce__(self) -> Any:
        return NamedBody, (f"{self.__module__}:{self.__qualname__}",)


def find_bodies() -> None:
    """In a helper, before it serves: import what it will run."""
    for target in list(by_row.values()):
        if isinstance(target.body, NamedBody):
            target.body = target.body.find()


class DeclaredFunction:
    """A function as it was declared: its body, its settings and its row."""

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        batch: Any = None,
        out: Any = None,
        idempotent: bool = False,
        timeout: float | None = None,
        hang_after: float | None = None,
        max_queue: int | None = None,
        when_full: str = "refuse",
        pool: Any = None,
        arrays: str = "torch",
        pickle: bool = False,
        mutates: bool = False,
    ) -> None:
        if not callable(body):
            raise ConfigError(f"function() decorates functions, not {body!r}")
        _refuse_kinds(body)
        if not isinstance(arrays, str) or arrays not in ("torch", "numpy"):
            raise ConfigError(f'arrays={arrays!r} must be "torch" or "numpy"')
        if isinstance(batch, int) and not isinstance(batch, bool):
            batch = Batch(max_size=batch)
        if batch is not None and not isinstance(batch, Batch):
            raise ConfigError(f"batch={batch!r} must be a shmgpu.Batch, or a number of rows")
        if pool is not None and not isinstance(pool, str):
            raise ConfigError(f"pool={pool!r} must be a pool's name")
        self.body = body
        self.is_own = isinstance(body, NamedBody)  # the package's: every broker has it
        self.name = getattr(body, "__qualname__", type(body).__name__)
        self.batch: Batch | None = batch
        self.batch_max_rows = batch.max_size if batch else 0
        self.units_per_row = 1
        self.out = out
        self.idempotent = parse_bool(idempotent, "idempotent")
        self.timeout = seconds_or_none(timeout, "timeout")
        self.hang_after = seconds_or_none(hang_after, "hang_after")
        self.max_queue = 0 if max_queue is None else _parse_max_queue(max_queue, "max_queue")
        self.drops_oldest = _parse_when_full(when_full, "when_full") == "drop_oldest"
        if self.drops_oldest and not self.max_queue:
            raise ConfigError(
                f"when_full={when_full!r} says what happens beyond max_queue: give that, too"
            )
        self.pool: str | None = pool
        self.arrays_kind = arrays
        self.pickle = parse_bool(pickle, "pickle")
        self.mutates = parse_bool(mutates, "mutates")
        self.__qualname__: str = self.name
        functools.update_wrapper(cast("Callable[..., Any]", self), body)
        self.__signature__ = _without_helper(body)
        self.row = 0
        self.takes_raw_calls = False  # it reads blocks itself, and is sent no arguments
        self.refused = ""  # why the broker's function of this name is not called, as a sentence
        self.known_as = ""  # what brokers call it, where that is not its module and name
        self.declared: dict[str, Any] = {
            "batch": batch,
            "out": out,
            "idempotent": idempotent,
            "timeout": timeout,
            "hang_after": hang_after,
            "max_queue": max_queue,
            "when_full": when_full,
            "pool": pool,
            "arrays": arrays,
            "pickle": pickle,
            "mutates": mutates,
        }
        self._prepare()
        self._register()

    def _prepare(self) -> None:
        """Make what a subclass keeps beside; before the function is entered."""

    def _register(self) -> None:
        batch = self.batch
        delay = batch.max_delay if batch and batch.max_delay else 0.0
        status, row = core.register_function(
            self.name,
            batch_max_rows=self.batch_max_rows,
            batch_delay_ns=int(delay * 1e9),
            hang_after_ns=int((self.hang_after or 0.0) * 1e9),
            idempotent=self.idempotent,
            max_queue=self.max_queue,
            drops_oldest=self.drops_oldest,
        )
        if status == core.ESEALED:
            # Calls say so, with what to do; the next broker will know it.
            _late.append(weakref.ref(self, _late.remove))
        elif status < 0:
            core.fail(status, self.name)
        else:
            self.row = row
            by_row[row] = self
            if _resolver is not None:
                # A broker of this process alone has the earlier function, whatever its name was.
                self.row = _resolver(self) if _names is not None else 0

    def use_row(self, row: int) -> None:
        """From now on it is called by this row."""
        self.row = row

    def why_unknown(self) -> str:
        """A sentence: why helpers do not have this function, or why it must not be called."""
        if self.refused:
            return self.refused
        if _obstacle is not None and (reason := _obstacle(self)):
            return reason
        if _resolver is None or _names is None:
            return (
                f"{self.name} was decorated after the broker had started, so helpers do not "
                "have it: move its definition above launch() or init()"
            )
        own = {name_of(one) for one in by_row.values() if one.is_own}
        there = ", ".join(name for name in _names if name not in own)
        advice = f"{_advice(self)}; " if _advice is not None else ""
        return (
            f"the broker that this program joined has no {name_of(self)}: {advice}it has "
            f"{there or 'no functions'}"
        )

    def __repr__(self) -> str:
        pool = f" of pool {self.pool!r}" if self.pool else ""
        return f"<shmgpu function {self.name}{self.parameters()}{pool}>"

    def parameters(self) -> str:
        """Those of a caller, without their types: ``"(x, scale=1.0)"``."""
        signature = self.__signature__
        if signature is None:
            return ""
        bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        return str(signature.replace(parameters=bare, return_annotation=signature.empty))

    def __reduce__(self) -> Any:
        """By name, as functions are: the process that reads it imports its module.

        On its way to a broker started by exec, one that cannot be found by name goes with its body.
        """
        module = getattr(self.body, "__module__", "")
        if unfindable is None or (module not in unfindable and found(module, self.name) is self):
            return self.__qualname__
        return _remake, (type(self), name_of(self), self.body, self.declared)


def _remake(
    kind: type[DeclaredFunction], name: str, body: Callable[..., Any], declared: dict[str, Any]
) -> DeclaredFunction:
    """A carried function that comes with its body."""
    for known in by_row.values():
        if known.known_as == name:
            return known
    made = kind(body, **declared)
    made.known_as = name
    return made


def _refuse_kinds(body: Callable[..., Any]) -> None:
    """Raise ConfigError for a function whose call does not end with its result."""
    name = getattr(body, "__name__", "the function")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise ConfigError(
            f"{name} is a generator function, but a call has a single result: return a list or an "
            "array, or make one call for each part"
        )
    if inspect.iscoroutinefunction(body):
        raise ConfigError(
            f"{name} is an async function, and helpers have no event loop: write def {name}, "
            f"without async, and await {name}.aio(...) in the caller"
        )


def _without_helper(body: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that callers see; raises ConfigError where the function takes no helper."""
    try:
        signature = inspect.signature(body)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if (
        not parameters
        or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY
        or (parameters[0].kind is inspect.Parameter.VAR_KEYWORD)
    ):
        name = getattr(body, "__qualname__", "the function")
        raise ConfigError(f"{name} has no parameter for the helper: write def {name}(helper, ...)")
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    return signature.replace(parameters=parameters)


def seconds_or_none(value: Any, name: str) -> float | None:
    """Seconds, where any are given."""
    return None if value is None else parse_seconds(value, name)
