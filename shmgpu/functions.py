"""Functions that children call and helpers run: the decorator, and the ways of calling.

What is declared of a function, and its row, belong to :mod:`shmgpu.function_table`, which is all
that a helper needs. Never runs a body, but for :meth:`Function.local`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
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

from shmgpu import core
from shmgpu.child import quick, runtime
from shmgpu.child.arguments import NO_TIMEOUT, CallOptions, timeout_of
from shmgpu.child.futures import CallFuture, Started
from shmgpu.child.gang_calls import GangCall
from shmgpu.child.plans import PlanTable
from shmgpu.child.quick import QuickFunction
from shmgpu.child.raw_calls import RawCall
from shmgpu.common.parsers import parse_bool, parse_count, parse_seconds, shortened
from shmgpu.common.progress import ProgressBar
from shmgpu.errors import ArenaFull, BadParams, ConfigError
from shmgpu.function_table import Batch, DeclaredFunction

if TYPE_CHECKING:
    import torch

    from shmgpu.child.port import Port
    from shmgpu.typed_calls import Array, Calls
else:
    Calls = Generic

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Out = TypeVar("Out")

# Type checkers see in :class:`Calls` what ways to call take and give: a function of torch tensors
# may be called with arrays, and gives arrays then. So they do not look at the methods themselves.


class Function(DeclaredFunction, QuickFunction, Calls[P, R]):
    """A function that helpers run; what :func:`function` returns.

    Calling it sends a message and waits. Without a broker, :meth:`local` runs the original.
    """

    plans: PlanTable  # made for each port at its first call

    def _prepare(self) -> None:
        self.signatures = None if self.mutates else []
        self.plans_port = None

    def __repr__(self) -> str:
        told = super().__repr__()
        if self.row or runtime.current is None or runtime.current.port.takes_functions:
            return told
        return f"{told.removesuffix('>')}, which the broker does not have>"

    def use_row(self, row: int) -> None:
        """From now on it is called by this row, of another broker: no plan is of use any more."""
        self.row = row
        self.plans_port = None

    def call_in_python(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run in a helper and wait for the result.

        Raises:
            RemoteError: the function raised.
            CallTimeout, HelperDied, BrokerDied, ArenaFull, BadParams, BadFunction, NotRunning.
        """
        result: R = runtime.port_now().call(self, args, kwargs)
        return result

    def local(self, helper: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the original function here, with the given helper; for tests and in helpers."""
        result: R = self.body(helper, *args, **kwargs)
        return result

    if not TYPE_CHECKING:

        def submit(self, *args: P.args, **kwargs: P.kwargs) -> CallFuture[R]:
            """Send the call without waiting; never blocks.

            Array arguments that lie in the caller's arena are read-only until the call is done.
            """
            return quick.start(self, args, kwargs, CallFuture) or _submit(self, args, kwargs, None)

        def aio(self, *args: P.args, **kwargs: P.kwargs) -> Started[R]:
            """Send the call from a running event loop; returns an awaitable. Uses no thread."""
            sent = quick.start_awaited(self, args, kwargs, Started)
            return sent or _aio(self, args, kwargs, None)

        def map(
            self,
            *iterables: Iterable[Any],
            in_flight: int | None = None,
            progress: bool | None = None,
        ) -> Iterator[R]:
            """Call with each item (or tuple of items) and yield the results in order.

            Args:
                iterables: one for each positional argument, read as results are taken; the shortest
                    ends it, as with :func:`map`.
                in_flight: the most calls in flight; by default twice the window, and 16 at least,
                    but no more than the function's ``max_queue``.
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

        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> int:
            """As :func:`broadcast`."""
            return _broadcast(self, args, kwargs, None)

    @property
    def version(self) -> int:
        """How many broadcasts have taken effect in this function's pool.

        A call that is made after this was read runs on a helper that has had them all.
        """
        return runtime.require_port().version(self)

    @overload
    def options(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        priority: int = 0,
        out: None = None,
        helpers: Iterable[int] | None = None,
    ) -> Bound[P, R]: ...
    @overload
    def options(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        priority: int = 0,
        out: Out,
        helpers: Iterable[int] | None = None,
    ) -> Bound[P, Out]: ...
    def options(
        self,
        *,
        timeout: float | EllipsisType | None = ...,
        priority: int = 0,
        out: Any = None,
        helpers: Iterable[int] | None = None,
    ) -> Bound[P, Any]:
        """The same function with settings for its calls.

        Args:
            timeout: seconds until a call raises CallTimeout; None: it waits for as long as it
                takes. By default what the function was decorated with.
            priority: 0 to 3; higher is served first.
            out: an array, or a tree of arrays, that receives the result and that the call
                returns. A single C-contiguous array of the caller's arena is written in place.
            helpers: numbers of the helpers that may run it.
        """
        if not isinstance(priority, int) or not 0 <= priority <= 3:
            raise ConfigError(f"priority={priority!r} must be 0, 1, 2 or 3")
        placement = 0 if helpers is None else _placement(helpers)
        seconds = NO_TIMEOUT if timeout is None else None
        if timeout is not None and timeout is not ...:
            seconds = parse_seconds(timeout, "timeout")
        return Bound(self, CallOptions(seconds, priority, placement, out))


@overload
def broadcast(target: Calls[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> int: ...
@overload
def broadcast(
    target: Calls[Concatenate[torch.Tensor, Q], Any],
    array: Array,
    /,
    *args: Q.args,
    **kwargs: Q.kwargs,
) -> int: ...
def broadcast(target: Any, /, *args: Any, **kwargs: Any) -> int:
    """Run a function once in each helper of its pool, and in each that joins the pool later.

    A learner pushes new weights that way. All helpers get the same arguments, in one order with
    other broadcasts to the pool; from one instant on, calls run only on helpers that have had it.
    The last broadcast of each function is kept, whatever becomes of the program that sent it, and
    runs in each helper that replaces one or is added, before that serves. The function may keep its
    arguments: nobody else changes them. What it returns is dropped.

    Args:
        target: a decorated function, or one with options (``timeout`` and ``priority``).
        args: as for a call.
        kwargs: likewise.

    Returns:
        The pool's version: how many broadcasts it has had. A function that runs in a helper finds
        it in ``helper.version``.

    Raises:
        BroadcastError: the function raised in a helper, which is replaced.
        HelperDied: two helpers died over it, one after the other; nothing has changed.
        ArenaFull: the arena, or the machine, has no memory for the arguments.
        NotAllowed: the broker belongs to another user.
        CallTimeout, BrokerDied, BadParams, BadFunction, ConfigError, NotRunning.

    Example:
        >>> @shmgpu.function(arrays="numpy")
        ... def set_weights(helper, weights):
        ...     helper.weights = weights
        >>> with shmgpu.init(inline=True):
        ...     shmgpu.broadcast(set_weights, {"bias": np.zeros(3)})
        1
    """
    if not isinstance(target, (Function, Bound)):
        raise ConfigError(
            f"broadcast() takes a function decorated with @shmgpu.function and its arguments, "
            f"not {shortened(target)}"
        )
    return target.broadcast(*args, **kwargs)


class Bound(Calls[P, R]):
    """A function with settings for its calls; see :meth:`Function.options`."""

    def __init__(self, target: Function[P, R], settings: CallOptions) -> None:
        self.target = target
        self.settings = settings

    def __repr__(self) -> str:
        told = repr(self.target).removesuffix(">")
        return f"{told} with {self.settings!r}>"

    if not TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """As the function's own call."""
            result: R = runtime.require_port().call(self.target, args, kwargs, self.settings)
            return result

        def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> int:
            """As the function's own."""
            return _broadcast(self.target, args, kwargs, self.settings)

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


def _broadcast(
    target: Function[Any, Any], args: Any, kwargs: Any, settings: CallOptions | None
) -> int:
    """As :func:`broadcast`; a helper that got what its function does not take would be replaced."""
    port = runtime.require_port()
    if target.__signature__ is not None:
        try:
            target.__signature__.bind(*args, **kwargs)
        except TypeError as error:
            raise BadParams(f"{target.name}: {error}: it takes {target.parameters()}") from None
    return port.broadcast(target, args, kwargs, settings)


def _submit(
    target: Function[Any, Any], args: Any, kwargs: Any, settings: CallOptions | None
) -> CallFuture[Any]:
    port = runtime.port_now()
    future: CallFuture[Any] = CallFuture(port)
    future._ticket = port.submit(target, args, kwargs, settings, future, True)
    return future


def post(port: Port, call: RawCall | GangCall, keep: Any) -> CallFuture[Any]:
    """Send a raw call without waiting; ``keep`` is what has to live until it is answered."""
    future: CallFuture[Any] = CallFuture(port)
    future._ticket = port.post(call, future, keep)
    return future


_running_loop: Callable[[], Any] | None = None  # asyncio.get_running_loop, once it was asked for


def _find_running_loop() -> Callable[[], Any]:
    """Most programs do without asyncio, and start faster for it."""
    global _running_loop
    import asyncio

    _running_loop = asyncio.get_running_loop
    return _running_loop


def _aio(
    target: Function[Any, Any], args: Any, kwargs: Any, settings: CallOptions | None
) -> Started[Any]:
    try:
        loop = (_running_loop or _find_running_loop())()
    except RuntimeError:
        name = target.name
        raise RuntimeError(
            f"{name}.aio() needs a running event loop, and there is none: await it in an async "
            f"function, or use {name}.submit(), whose future any thread may ask"
        ) from None
    port = runtime.port_now()
    started: Started[Any] = Started(loop, port)
    ticket = started._ticket = port.submit(target, args, kwargs, settings, started, False)
    if port.transport.immediate:
        return started
    started.reader.look_after(loop, port)
    if ticket.ready is not None:
        return started  # C has sent it, and what has a timeout it does not send
    timeout = timeout_of(target, settings)
    if timeout is not None:
        started.expire_in(timeout)
    elif not ticket.sequence:
        started.future()
    return started


def _map(
    target: Function[Any, Any],
    iterables: tuple[Iterable[Any], ...],
    settings: CallOptions | None,
    in_flight: int | None,
    progress: bool | None,
) -> Iterator[Any]:
    if not iterables:
        raise ConfigError(f"{target.name}.map() needs arguments: pass an iterable")
    for items in iterables:
        if not hasattr(items, "__iter__"):
            raise ConfigError(
                f"{target.name}.map() takes an iterable for each argument, and {shortened(items)} "
                "is none: pass a list of what the calls get"
            )
    if in_flight is not None:
        in_flight = parse_count(in_flight, "in_flight")
    if progress is not None:
        progress = parse_bool(progress, "progress")
    port = runtime.require_port()
    if in_flight is None:
        in_flight = 2 * max(core.port_window(), 8)
        if target.max_queue:  # of one more call the function would raise QueueFull
            in_flight = min(in_flight, target.max_queue)
    return _map_lazily(target, iterables, settings, in_flight, progress, port)


def _map_lazily(
    target: Function[Any, Any],
    iterables: tuple[Iterable[Any], ...],
    settings: CallOptions | None,
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
    with ProgressBar(total, target.name, "calls", progress, delay=0.5) as bar:
        try:
            for args in source:
                while True:
                    try:
                        out.append(_submit(target, args, {}, settings))
                        break
                    except ArenaFull:  # calls in flight hold memory; their results free it
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
    out: None = None,
    idempotent: bool = False,
    timeout: float | None = None,
    hang_after: float | None = None,
    max_queue: int | None = None,
    when_full: Literal["refuse", "drop_oldest"] = "refuse",
    pool: str | None = None,
    arrays: Literal["torch", "numpy"] = "torch",
    pickle: bool = False,
    mutates: bool = False,
) -> Callable[[Callable[Concatenate[Any, P], R]], Function[P, R]]: ...
@overload
def function(  # what is declared is what a call gives, whatever the function returns
    *,
    batch: Batch | int | None = None,
    out: object,
    idempotent: bool = False,
    timeout: float | None = None,
    hang_after: float | None = None,
    max_queue: int | None = None,
    when_full: Literal["refuse", "drop_oldest"] = "refuse",
    pool: str | None = None,
    arrays: Literal["torch", "numpy"] = "torch",
    pickle: bool = False,
    mutates: bool = False,
) -> Callable[[Callable[Concatenate[Any, P], Any]], Function[P, Any]]: ...
def function(
    body: Any = None,
    /,
    *,
    batch: Batch | int | None = None,
    out: Any = None,
    idempotent: bool = False,
    timeout: float | None = None,
    hang_after: float | None = None,
    max_queue: int | None = None,
    when_full: str = "refuse",
    pool: str | None = None,
    arrays: str = "torch",
    pickle: bool = False,
    mutates: bool = False,
) -> Any:
    """Make a function that helpers run and children call.

    The function's first parameter is the helper (``.id``, ``.device``, ``.session``, ``.out``);
    callers omit it. The others are arrays (NumPy, torch, anything with DLPack or
    ``__array_interface__``), plain values, and tuples, lists and dicts of them; so is the
    result. Arrays in the caller's arena are not copied. The function must not write to its
    arguments: NumPy arrays are read-only, and ``debug=True`` detects writes to tensors. What the
    function prints goes to the broker's output; for a broker that the first call started, that is
    a log which ``shmgpu list`` names.

    Args:
        body: the function, when used without parentheses.
        batch: run calls together; see :class:`Batch`.
        out: what the function returns, as :class:`Declared` shapes, or a callable that takes
            the call's arguments and returns such shapes (it may use shapes, dtypes and plain
            values only). The function finds those arrays in ``helper.out``.
        idempotent: the call may run once more if its helper dies.
        timeout: seconds until a call raises CallTimeout.
        hang_after: seconds of execution after which the helper counts as hung and is replaced.
        max_queue: how many of its calls may wait for a helper, all programs' together. By default
            any number.
        when_full: which call raises QueueFull when one more comes: ``"refuse"``, that one;
            ``"drop_oldest"``, the one that has waited longest.
        pool: name of the helpers that run it; by default the first pool.
        arrays: ``"torch"``: arguments are tensors on ``helper.device``; ``"numpy"``: NumPy arrays.
        pickle: carry values of any type by pickling them; only for code you trust.
        mutates: the function may write to its arrays. An array in the caller's arena is then
            the caller's own memory, or, in a batch, its rows are copied back when the function
            returns. Of an array that was copied in, only the copy changes.

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
            max_queue=max_queue,
            when_full=when_full,
            pool=pool,
            arrays=arrays,
            pickle=pickle,
            mutates=mutates,
        )

    return decorate if body is None else decorate(body)


def _placement(helpers: Any) -> int:
    """The mask of some helpers' numbers."""
    try:
        numbers = [number.__index__() for number in helpers]
        if not all(0 <= number < core.MAX_HELPERS for number in numbers):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f"helpers={shortened(helpers)} must be a list of helper numbers, from 0"
        ) from None
    return sum(1 << number for number in set(numbers))
