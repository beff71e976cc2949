"""Functions that children call and helpers run: the decorator and what it makes.

Owns the table from rows to functions, which is what a helper serves. A decorated function is
registered in the C table at once; that table is sealed when a broker starts.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    overload,
)

import numpy as np

from shmgpu import core
from shmgpu.child import runtime
from shmgpu.child.arguments import Options
from shmgpu.child.futures import CallFuture, LoopSink, Started, readers
from shmgpu.child.plans import PlanTable
from shmgpu.child.prepared import Repeats
from shmgpu.child.raw_calls import Letter
from shmgpu.common.config import parse_bool, parse_count, parse_seconds, shortened
from shmgpu.common.progress import Bar
from shmgpu.errors import ArenaFull, ConfigError

if TYPE_CHECKING:
    import asyncio

    from shmgpu.child.port import Port

P = ParamSpec("P")
R = TypeVar("R")

_ndarray = np.ndarray

MAIN = {"__main__", "__mp_main__"}  # the program itself; as multiprocessing runs it once more

by_row: dict[int, Function[Any, Any]] = {}
_late: list[Function[Any, Any]] = []  # decorated while a broker ran
_resolver: Callable[[Function[Any, Any]], int] | None = None  # in a process that joined one
_advice: Callable[[Function[Any, Any]], str] | None = None  # on how to come by one that has it
_obstacle: Callable[[Function[Any, Any]], str] | None = None  # why that one could not get it
_names: list[str] | None = None  # of what that broker has; None: what this process had
# While functions are carried to a broker that is started by exec: the modules that no fresh
# interpreter finds, so that theirs go by value; else None.
unfindable: set[str] | None = None


# How names of the package's own functions begin; brokers have the first whatever they serve.
OWN = ("shmgpu.engine.functions:", "shmgpu.serve.models.functions:")


def of_users() -> list[Function[Any, Any]]:
    """The functions that programs decorated, without the package's own."""
    return [one for one in list(by_row.values()) if not name_of(one).startswith(OWN)]


def register_late() -> None:
    """Before a broker starts: enter the functions that were decorated while the last one ran."""
    waiting = _late[:]
    _late.clear()
    for target in waiting:
        target._register()


def resolve_by(
    resolver: Callable[[Function[Any, Any]], int] | None,
    names: list[str] | None,
    advice: Callable[[Function[Any, Any]], str] | None = None,
    obstacle: Callable[[Function[Any, Any]], str] | None = None,
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
        target.row = resolver(target) if resolver is not None else own_row
        target.plans_port = None


@dataclass(frozen=True)
class Batch:
    """How calls of a function are run together.

    Calls whose arrays agree in all but the length of axis 0, and whose plain values are equal,
    are concatenated on axis 0, run as one, and the outputs cut apart again. Calls of 64 KiB and
    more on a CPU are run one after another instead, where the helper has measured that copying
    them together takes longer than it saves.

    Args:
        max_size: the most rows (not calls) that are run as one.
        max_delay: seconds a call may wait for company; None runs what is there.
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


def name_of(target: Function[Any, Any]) -> str:
    """``module:qualname``; a script that is run is called what it would be imported as."""
    return target.known_as or name_of_body(target.body)


def name_of_body(body: Callable[..., Any]) -> str:
    """The same of what is not decorated."""
    name = getattr(body, "__qualname__", type(body).__name__)
    return f"{module_of(body)}:{name}"


def module_of(body: Callable[..., Any]) -> str:
    """The name by which another program imports the module that a function stands in."""
    module = getattr(body, "__module__", "") or ""
    if module in MAIN:
        main = sys.modules.get(module) or sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        path = getattr(main, "__file__", None)
        if spec is not None and spec.name != "__main__":
            module = spec.name.removesuffix(".__main__")
        elif spec is not None and path:  # a folder, or an archive, that is run
            module = os.path.splitext(os.path.basename(os.path.dirname(path)))[0]
        elif path:
            module = os.path.splitext(os.path.basename(path))[0]
    return module


def found(module: str, name: str) -> Any:
    """What a module that is imported has under a dotted name; None when nothing."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _remake(name: str, body: Callable[..., Any], options: dict[str, Any]) -> Function[Any, Any]:
    """A carried function that comes with its body."""
    for known in by_row.values():
        if known.known_as == name:
            return known
    made: Function[Any, Any] = Function(body, **options)
    made.known_as = name
    return made


class Function(Generic[P, R]):
    """A function that helpers run; what :func:`function` makes of the one it decorates.

    Calling it sends a message and waits. Without a broker, :meth:`local` runs the original.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        batch: Any = None,
        out: Any = None,
        idempotent: bool = False,
        timeout: float | None = None,
        hang_after: float | None = None,
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
        self.name = getattr(body, "__qualname__", type(body).__name__)
        self.batch: Batch | None = batch
        self.batch_max_rows = batch.max_size if batch else 0
        self.units_per_row = 1
        self.out = out
        self.idempotent = parse_bool(idempotent, "idempotent")
        self.timeout = _seconds(timeout, "timeout")
        self.hang_after = _seconds(hang_after, "hang_after")
        self.pool: str | None = pool
        self.arrays_kind = arrays
        self.pickle = parse_bool(pickle, "pickle")
        self.mutates = parse_bool(mutates, "mutates")
        self.plans = PlanTable()
        self.repeats = Repeats()
        self.plans_port: Any = None
        self.__qualname__: str = self.name
        functools.update_wrapper(self, body)
        self.__signature__ = _without_helper(body)
        self.row = 0
        self.takes_letters = False  # it reads blocks itself; see :mod:`shmgpu.child.raw_calls`
        self.refused = ""  # why the broker's function of this name is not called, as a sentence
        self.known_as = ""  # what brokers call it, where that is not its module and name
        self._options: dict[str, Any] = {
            "batch": batch,
            "out": out,
            "idempotent": idempotent,
            "timeout": timeout,
            "hang_after": hang_after,
            "pool": pool,
            "arrays": arrays,
            "pickle": pickle,
            "mutates": mutates,
        }
        self._register()

    def _register(self) -> None:
        batch = self.batch
        delay = batch.max_delay if batch and batch.max_delay else 0.0
        status, row = core.register_function(
            self.name,
            batch_max_rows=self.batch_max_rows,
            batch_delay_ns=int(delay * 1e9),
            hang_after_ns=int((self.hang_after or 0.0) * 1e9),
            idempotent=self.idempotent,
        )
        if status == core.ESEALED:
            _late.append(self)  # calls say so, with what to do; the next broker will know it
        elif status < 0:
            core.fail(status, self.name)
        else:
            self.row = row
            by_row[row] = self
            if _resolver is not None:
                # A broker of this process alone has what there was, whatever that was called.
                self.row = _resolver(self) if _names is not None else 0

    def why_unknown(self) -> str:
        """Why helpers do not have this function, or it is not called, in a sentence."""
        if self.refused:
            return self.refused
        if _obstacle is not None and (reason := _obstacle(self)):
            return reason
        if _resolver is None or _names is None:
            return (
                f"{self.name} was decorated after the broker had started, so helpers do not "
                "know it: move its definition above launch() or init()"
            )
        there = ", ".join(name for name in _names if not name.startswith(OWN))
        advice = f"{_advice(self)}; " if _advice is not None else ""
        return (
            f"the broker that was joined has no {name_of(self)}: {advice}it has "
            f"{there or 'no functions'}"
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run in a helper and wait for the result.

        Raises:
            RemoteError: the function raised.
            CallTimeout, HelperDied, BrokerDied, ArenaFull, BadParams, BadFunction, NotRunning.
        """
        port = runtime.port
        if port is None or (port.rejoins and port.is_lost()):
            port = runtime.require_port()
        result: R
        if len(args) == 1 and not kwargs:
            array: Any = args[0]
            if type(array) is _ndarray:
                ready = self.repeats.get((array.dtype, array.shape))
                if ready and self.plans_port is port.arguments:
                    result = port.repeat(self, ready, args)
                    return result
        result = port.call(self, args, kwargs)
        return result

    def local(self, helper: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the original function here, with the helper given; for tests and in helpers."""
        result: R = self.body(helper, *args, **kwargs)
        return result

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> CallFuture[R]:
        """Send without waiting; never blocks.

        Arrays of the caller's arena that are given are read-only until the call is done.
        """
        return _submit(self, args, kwargs, None)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """Send from a running event loop: an awaitable for the result. Uses no thread."""
        return _aio(self, args, kwargs, None)

    def map(
        self,
        *iterables: Iterable[Any],
        in_flight: int | None = None,
        progress: bool | None = None,
    ) -> Iterator[R]:
        """Call with each item (or tuple of items) and yield the results in order.

        Args:
            iterables: one for each positional argument, read as results are taken.
            in_flight: calls that may be out at a time; twice the window unless given.
            progress: draw a bar; None means on a terminal only.

        Example:
            >>> @shmgpu.function(arrays="numpy")
            ... def total(helper, x):
            ...     return float(x.sum())
            >>> with shmgpu.init(inline=True):
            ...     list(total.map([np.ones(n) for n in (1, 2, 3)]))
            [1.0, 2.0, 3.0]
        """
        return _map(self, iterables, None, in_flight, progress)

    def options(
        self,
        *,
        timeout: float | None = None,
        priority: int = 0,
        out: Any = None,
        helpers: Iterable[int] | None = None,
    ) -> Bound[P, R]:
        """The same function with settings for its calls.

        Args:
            timeout: seconds until a call raises CallTimeout.
            priority: 0 to 3; higher is served first.
            out: an array, or a tree of arrays, that the result is written into and that the
                call returns. One C-contiguous array of the caller's arena is written in place.
            helpers: numbers of the helpers that may run it.
        """
        if not isinstance(priority, int) or not 0 <= priority <= 3:
            raise ConfigError(f"priority={priority!r} must be 0, 1, 2 or 3")
        placement = 0 if helpers is None else _placement(helpers)
        return Bound(self, Options(_seconds(timeout, "timeout"), priority, placement, out))

    def __repr__(self) -> str:
        return f"<shmgpu function {self.name}>"

    def __reduce__(self) -> Any:
        """By name, as functions are: the process that reads it imports its module.

        On its way to a broker started by exec, one that cannot be found by name goes with its body.
        """
        module = getattr(self.body, "__module__", "")
        if unfindable is None or (module not in unfindable and found(module, self.name) is self):
            return self.__qualname__
        return _remake, (name_of(self), self.body, self._options)


class Bound(Generic[P, R]):
    """A function with settings for its calls; see :meth:`Function.options`."""

    def __init__(self, target: Function[P, R], settings: Options) -> None:
        self.target = target
        self.settings = settings

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As the function's own call."""
        result: R = runtime.require_port().call(self.target, args, kwargs, self.settings)
        return result

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> CallFuture[R]:
        """As the function's own."""
        return _submit(self.target, args, kwargs, self.settings)

    def aio(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
        """As the function's own."""
        return _aio(self.target, args, kwargs, self.settings)

    def map(
        self,
        *iterables: Iterable[Any],
        in_flight: int | None = None,
        progress: bool | None = None,
    ) -> Iterator[R]:
        """As the function's own."""
        return _map(self.target, iterables, self.settings, in_flight, progress)


def _submit(
    target: Function[Any, Any], args: Any, kwargs: Any, settings: Options | None
) -> CallFuture[Any]:
    port = runtime.require_port()
    future: CallFuture[Any] = CallFuture(port)
    future._ticket = port.submit(target, args, kwargs, settings, future.sink, True)
    return future


def post(port: Port, letter: Letter, keep: Any) -> CallFuture[Any]:
    """Send a letter without waiting; ``keep`` is what has to live until it is answered."""
    future: CallFuture[Any] = CallFuture(port)
    future._ticket = port.post(letter, future.sink, keep)
    return future


def _aio(
    target: Function[Any, Any], args: Any, kwargs: Any, settings: Options | None
) -> Started[Any]:
    import asyncio  # here, because most programs do without and start faster for it

    loop = asyncio.get_running_loop()
    port = runtime.require_port()
    future = loop.create_future()
    sink = LoopSink(loop, future, port)
    try:
        if not port.wire.immediate:
            readers.enter(loop, port, sink)
        ticket = port.submit(target, args, kwargs, settings, sink, False)
    except BaseException:
        readers.leave(loop, sink)
        raise

    def ended(done: asyncio.Future[Any]) -> None:
        if done.cancelled() and port.cancel(ticket):
            sink._set(None, None)

    future.add_done_callback(ended)
    timeout = target.timeout
    if settings is not None and settings.timeout is not None:
        timeout = settings.timeout
    if timeout is not None and not future.done():
        sink.timer = loop.call_later(timeout, port.expire, ticket)
    return Started(future)


def _map(
    target: Function[Any, Any],
    iterables: tuple[Iterable[Any], ...],
    settings: Options | None,
    in_flight: int | None,
    progress: bool | None,
) -> Iterator[Any]:
    if not iterables:
        raise ConfigError(f"{target.name}.map() needs something to call with: pass an iterable")
    if in_flight is not None:
        in_flight = parse_count(in_flight, "in_flight")
    if progress is not None:
        progress = parse_bool(progress, "progress")
    port = runtime.require_port()
    if in_flight is None:
        in_flight = 2 * max(core.port_window(), 8)
    return _map_lazily(target, iterables, settings, in_flight, progress, port)


def _map_lazily(
    target: Function[Any, Any],
    iterables: tuple[Iterable[Any], ...],
    settings: Options | None,
    in_flight: int,
    progress: bool | None,
    port: Port,
) -> Iterator[Any]:
    try:
        total: int | None = min(len(items) for items in iterables)  # type: ignore[arg-type]
    except TypeError:
        total = None
    out: deque[CallFuture[Any]] = deque()
    source = zip(*iterables, strict=False)
    with Bar(total, target.name, "calls", progress, delay=0.5) as bar:
        try:
            for args in source:
                while True:
                    try:
                        out.append(_submit(target, args, {}, settings))
                        break
                    except ArenaFull:  # what is out holds memory that its results give back
                        if not out:
                            raise
                        result = out.popleft().result()
                        bar.update()
                        yield result
                if len(out) >= in_flight:
                    result = out.popleft().result()
                    bar.update()
                    yield result
            while out:
                result = out.popleft().result()
                bar.update()
                yield result
        finally:
            for future in out:
                future.cancel()


@overload
def function(body: Callable[Concatenate[Any, P], R], /) -> Function[P, R]: ...
@overload
def function(
    *,
    batch: Batch | int | None = None,
    out: Any = None,
    idempotent: bool = False,
    timeout: float | None = None,
    hang_after: float | None = None,
    pool: str | None = None,
    arrays: Literal["torch", "numpy"] = "torch",
    pickle: bool = False,
    mutates: bool = False,
) -> Callable[[Callable[Concatenate[Any, P], R]], Function[P, R]]: ...
def function(
    body: Any = None,
    /,
    *,
    batch: Batch | int | None = None,
    out: Any = None,
    idempotent: bool = False,
    timeout: float | None = None,
    hang_after: float | None = None,
    pool: str | None = None,
    arrays: str = "torch",
    pickle: bool = False,
    mutates: bool = False,
) -> Any:
    """Make a function that helpers run and children call.

    The function's first parameter is the helper (``.id``, ``.device``, ``.session``, ``.out``);
    callers leave it out. The others are arrays (NumPy, torch, anything with DLPack or
    ``__array_interface__``), plain values, and tuples, lists and dicts of them; so is the
    result. Arrays that lie in the caller's arena are not copied, and are there to be read: NumPy
    arrays are read-only, and writing to tensors in place is an error that ``debug=True`` finds.
    What it prints is the broker's output: of one that the first call started, a log that
    ``shmgpu list`` names.

    Args:
        body: the function, when used without parentheses.
        batch: run calls together; see :class:`Batch`.
        out: what the function returns, as :class:`Declared` shapes, or a callable that gets
            the call's arguments and returns them (it may look at shapes, dtypes and plain
            values only). The function then finds those arrays in ``helper.out``.
        idempotent: it may be run once more when its helper dies.
        timeout: seconds until a call raises CallTimeout.
        hang_after: seconds of execution after which its helper is taken for hung and replaced.
        pool: name of the helpers that run it; the first pool unless given.
        arrays: ``"torch"`` gets tensors on ``helper.device``, ``"numpy"`` gets NumPy arrays.
        pickle: carry values of any type by pickling them; only for code you trust.
        mutates: its arrays may be written to. One that lies in the caller's arena is then the
            caller's own memory, or, in a batch, gets its rows back when the function has returned;
            of one that was copied in, the copy is written to.

    Raises:
        ConfigError: a setting is out of range.
        BadFunction: the function table is full.

    Example:
        >>> @shmgpu.function(arrays="numpy")
        ... def double(helper, x):
        ...     return 2 * x
        >>> with shmgpu.init(inline=True):
        ...     double(np.ones(3))
        array([2., 2., 2.])
    """

    def decorate(body: Any) -> Function[Any, Any]:
        return Function(
            body,
            batch=batch,
            out=out,
            idempotent=idempotent,
            timeout=timeout,
            hang_after=hang_after,
            pool=pool,
            arrays=arrays,
            pickle=pickle,
            mutates=mutates,
        )

    return decorate if body is None else decorate(body)


def _refuse_kinds(body: Callable[..., Any]) -> None:
    """Raise ConfigError for a function whose call does not end with its result."""
    name = getattr(body, "__name__", "the function")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise ConfigError(
            f"{name} is a generator function, and a result travels as a whole: return a list or an "
            "array, or make one call for each part"
        )
    if inspect.iscoroutinefunction(body):
        raise ConfigError(
            f"{name} is an async function, and helpers have no event loop: write def {name}, "
            f"without async, and await {name}.aio(...) where it is called"
        )


def _without_helper(body: Callable[..., Any]) -> inspect.Signature | None:
    """The signature that callers see; raises ConfigError where the helper has no place."""
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


def _placement(helpers: Any) -> int:
    """The mask of some helpers' numbers."""
    try:
        numbers = [number.__index__() for number in helpers]
        if not all(0 <= number < core.MAX_HELPERS for number in numbers):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"helpers={shortened(helpers)} must be a list of numbers of helpers, from 0"
        ) from None
    return sum(1 << number for number in set(numbers))


def _seconds(value: Any, name: str) -> float | None:
    return None if value is None else parse_seconds(value, name)
