"""Named tuples and dataclasses as trees: what they hold, and how they are put together again.

They travel by the name of their class, as functions do, and with the names of their fields. Owns
what counts as one. Never runs a class's code: whoever sends one may err or lie, so only a class
that is there already, and that has those fields, is filled, without its constructor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shmgpu.common.module_names import class_of, module_of
from shmgpu.common.wording import kind_of
from shmgpu.errors import BadParams


def fields_of(node: Any) -> tuple[tuple[str, ...], Sequence[Any]] | None:
    """Names and values of what a named tuple or a dataclass's instance holds; None: it is neither.

    Raises:
        BadParams: it holds more than its class says, which would be lost.
    """
    kind = type(node)
    names = _names_of(kind)
    if names is None:
        return None
    if issubclass(kind, tuple):
        return names, tuple(node)
    more = getattr(node, "__dict__", {}).keys() - set(names)
    if more:
        raise BadParams(
            f"{kind_of(node)} has {sorted(more)[0]!r} beside the fields of its dataclass, and "
            "would lose it on the way: make it a field, or pass a dict"
        )
    try:
        return names, [getattr(node, name) for name in names]
    except AttributeError as error:
        raise BadParams(f"{kind_of(node)} has not all of its fields: {error}") from None


def name_of(node: Any) -> str:
    """The name of its class, as :func:`make` finds it.

    Raises:
        BadParams: it was defined within a function, where nobody else finds it.
    """
    kind = type(node)
    module, name = module_of(kind), kind.__qualname__
    if class_of(module, name) is not kind:
        raise BadParams(
            f"the class {name} cannot be found by its name, so a helper would not know it: define "
            "it at the top of a module, or pass a tuple or a dict"
        )
    return f"{module}:{name}"


def make(name: str, names: Sequence[str], values: Sequence[Any]) -> Any:
    """An instance of the class of that name.

    Raises:
        BadParams: there is no such class here, or it has other fields.
    """
    module, _, qualname = name.partition(":")
    kind = class_of(module, qualname)
    if kind is None:
        raise BadParams(
            f"the class {qualname} of the module {module} is not known here: import it in the "
            "module in which the function stands, or pass a tuple or a dict"
        )
    if _names_of(kind) != tuple(names):
        raise BadParams(
            f"the class {qualname} of the module {module} has other fields here than where it "
            "comes from: restart the broker, so that both have the same code"
        )
    if issubclass(kind, tuple):
        return tuple.__new__(kind, values)
    made = object.__new__(kind)
    for field, value in zip(names, values, strict=True):
        object.__setattr__(made, field, value)
    return made


def _names_of(kind: type) -> tuple[str, ...] | None:
    if issubclass(kind, tuple):
        names = kind.__dict__.get("_fields")
        return names if kind.__bases__ == (tuple,) and type(names) is tuple else None
    if dataclasses.is_dataclass(kind) and "__dataclass_fields__" in kind.__dict__:
        return tuple(field.name for field in dataclasses.fields(kind))
    return None
