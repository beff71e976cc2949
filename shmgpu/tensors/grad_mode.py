"""Grad mode: whether what a thread does with tensors is recorded for gradients.

Owns the ways to say so, in PyTorch's spelling. Each thread has a mode of its own, and a new one
records. Never looks at a tensor.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar, overload

from shmgpu.ops.graph import grad_mode

F = TypeVar("F", bound=Callable[..., Any])


class GradContext:
    """A mode for a ``with`` block, or for each call of a function that it decorates.

    One may be entered again within itself, and by several threads at once.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._before: dict[int, list[bool]] = {}  # what each thread's blocks return to

    def __enter__(self) -> None:
        self._before.setdefault(threading.get_ident(), []).append(grad_mode.enabled)
        grad_mode.enabled = self._wanted

    def __exit__(self, *error: object) -> None:
        me = threading.get_ident()
        before = self._before[me]
        grad_mode.enabled = before.pop()
        if not before:
            del self._before[me]

    def __call__(self, function: F) -> F:
        """The function, whose every call runs in this mode; of a generator, its every step."""
        wanted = self._wanted
        if inspect.isgeneratorfunction(function):
            made: Any = functools.wraps(function)(
                lambda *args, **kwargs: _in_steps(wanted, function(*args, **kwargs))
            )
            return made  # type: ignore[no-any-return]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with GradContext(wanted):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


def _in_steps(wanted: bool, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The generator, with the mode for its own code and never for who asks it for the next item."""
    mode = GradContext(wanted)
    try:
        with mode:
            item = next(steps)
        while True:
            try:
                answer = yield item
            except GeneratorExit:
                with mode:
                    steps.close()
                raise
            except BaseException as error:
                with mode:
                    item = steps.throw(error)
            else:
                with mode:
                    item = steps.send(answer)
    except StopIteration as end:
        return end.value


@overload
def no_grad(function: None = None) -> GradContext: ...
@overload
def no_grad(function: F) -> F: ...
def no_grad(function: Any = None) -> Any:
    """A context in which nothing is recorded for gradients; also a decorator, with or without ().

    It applies to the thread that enters it. Other threads keep their own mode, and a new thread
    records.

    Example:
        >>> with shmgpu.init(inline=True):
        ...     x = shmgpu.ones(2, requires_grad=True)
        ...     with shmgpu.no_grad():
        ...         y = 2 * x
        ...     y.requires_grad
        False
    """
    return GradContext(False) if function is None else GradContext(False)(function)


@overload
def enable_grad(function: None = None) -> GradContext: ...
@overload
def enable_grad(function: F) -> F: ...
def enable_grad(function: Any = None) -> Any:
    """A context that records for gradients, also within :func:`no_grad`; also a decorator."""
    return GradContext(True) if function is None else GradContext(True)(function)


@overload
def inference_mode(mode: bool = True) -> GradContext: ...
@overload
def inference_mode(mode: F) -> F: ...
def inference_mode(mode: Any = True) -> Any:
    """As :func:`no_grad`: nothing is recorded for gradients; also a decorator, with or without ().

    Args:
        mode: False changes nothing.
    """
    if callable(mode):
        return GradContext(False)(mode)
    return GradContext(False if mode else grad_mode.enabled)


class set_grad_enabled(GradContext):
    """Record for gradients from now on, in this thread, or not; as a context, until its end.

    Args:
        mode: whether to record.
    """

    def __init__(self, mode: bool) -> None:
        super().__init__(bool(mode))
        self._found = grad_mode.enabled
        grad_mode.enabled = self._wanted

    def __enter__(self) -> None:
        self._before.setdefault(threading.get_ident(), []).append(self._found)
        grad_mode.enabled = self._wanted

    def __call__(self, function: F) -> F:
        """As a decorator it holds for the function's calls alone."""
        grad_mode.enabled = self._found
        return super().__call__(function)


def is_grad_enabled() -> bool:
    """Whether what this thread does now is recorded for gradients."""
    return grad_mode.enabled
