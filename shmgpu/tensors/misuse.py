"""Why an operation could not be recorded of what it was given: which argument is of another kind.

Looked at after it has failed, so what is right costs nothing. Owns what each kind of parameter
takes, by its annotation. Never refuses what an operation takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from numbers import Integral, Number, Real
from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.common.wording import kind_of
from shmgpu.tensors.operands import Shown

# What an operation that met the wrong kind of argument raises somewhere within.
FAILURES = (AttributeError, IndexError, KeyError, OverflowError, TypeError)


def _is_array(value: Any) -> bool:
    return isinstance(value, (Shown, np.generic)) or arrays.is_array(value)


def _are(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str) and all(map(one, value))
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral)


# By a part of an annotation: what it takes, and how that is called.
TAKEN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Node": (_is_array, "a tensor"),
    "None": (lambda value: value is None, "None"),
    "Sequence[Node]": (_are(_is_array), "a list of tensors"),
    "Sequence[int]": (_are(_is_whole), "a list of whole numbers"),
    "bool": (lambda value: isinstance(value, (bool, np.bool_)), "True or False"),
    "complex": (lambda value: isinstance(value, Number), "a number"),
    "float": (lambda value: isinstance(value, Real), "a number"),
    "int": (_is_whole, "a whole number"),
    "str": (lambda value: isinstance(value, str), "text"),
}
MEANT = {
    "Dim": "int | Sequence[int] | None",
    "Operand": "Node | complex",
    "Shape": "Sequence[int]",
}


def refuse(
    record: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> None:
    """Raise TypeError for the first argument of the wrong kind; return where all are right."""
    name = record.__name__
    if str(error).startswith(f"{name}:"):
        return  # it has said so itself
    signature = inspect.signature(record)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return  # which Python's own sentence tells
    for key, value in given.items():
        parameter = signature.parameters[key]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kinds = _kinds(str(parameter.annotation))
        if kinds and not any(takes(value) for takes, _ in kinds):
            words = " or ".join(dict.fromkeys(called for _, called in kinds))
            raise TypeError(f"{name}: {key} must be {words}, not {kind_of(value)}") from None


def _kinds(annotation: str) -> list[tuple[Callable[[Any], bool], str]]:
    """What a parameter takes; nothing where that is not known."""
    parts = [
        inner for part in annotation.split(" | ") for inner in MEANT.get(part, part).split(" | ")
    ]
    return [TAKEN[part] for part in parts] if all(part in TAKEN for part in parts) else []
