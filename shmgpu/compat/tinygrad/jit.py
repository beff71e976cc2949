"""tinygrad's ``TinyJit``: the function itself, for programs are compiled anyway.

A step that repeats is recognised by what it records, and is planned and compiled when it is first
seen: nothing has to be captured, shapes may change from call to call, and what a function does in
Python it does in every call. Owns the name. Never compiles anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class TinyJit:
    """Calls the function that it is made of.

    Args:
        fxn: any function, or a method.
        **options: tinygrad's, accepted.
    """

    def __init__(self, fxn: Callable[..., Any], **options: Any) -> None:
        self.fxn = fxn
        functools.update_wrapper(self, fxn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns."""
        return self.fxn(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def reset(self) -> None:
        """Does nothing: nothing was captured."""
