"""What a process hands to a broker that is started by exec: its functions, and its session.

Functions go by name where the broker's interpreter can import their module as this one did, and by
value where it cannot: from a script, a notebook or a prompt. Owns that choice and the pickling. The
package's own functions are never carried, because every broker has them. Never starts a process.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

from shmgpu import function_table
from shmgpu.attach import sources
from shmgpu.common.logs import logger
from shmgpu.common.module_names import MAIN
from shmgpu.errors import BadFunction, ConfigError

PACKAGE = __name__.partition(".")[0]


def pack(
    session: Mapping[str, Any], unfindable: Collection[str] = (), *, only_session: bool = False
) -> bytes:
    """This process's functions, and what goes with them, as bytes.

    One that cannot be carried is left out, with a warning.

    Args:
        session: what the broker is asked for, of any kind.
        unfindable: modules of which the broker's interpreter has said that it finds none.
        only_session: leave the functions out.

    Raises:
        ConfigError: what is asked for cannot be carried.
    """
    targets = [] if only_session else function_table.of_users()
    asked = [one for v in session.values() for one in (v.values() if _is_table(v) else [v])]
    told = dict(session)
    with _by_value(_found_here_only([*targets, *asked]) | set(unfindable)):
        try:
            return _dumps({"functions": targets, "settings": told})
        except Exception:
            pass  # which of them it is comes out one by one
        carried = []
        for target in targets:
            reason = _why_not(target)
            if reason:
                logger.warning("%s", reason)
            else:
                carried.append(target)
        try:
            return _dumps({"functions": carried, "settings": told})
        except Exception as error:
            raise ConfigError(
                "a broker has to be started as a process of its own, and the session cannot be "
                f"carried over to it ({type(error).__name__}: {error}): put it into a module that "
                "can be imported"
            ) from error


def obstacle(target: function_table.DeclaredFunction) -> str:
    """Why a broker that was started by exec lacks the function, in a sentence; "" where it can go.

    It is tried anew, for the program that asks may have joined what another one started.
    """
    with _by_value(_found_here_only([target])):
        return _why_not(target)


def body_of(target: function_table.DeclaredFunction) -> bytes:
    """A function's body, pickled so that a process without its module can run it.

    Raises:
        BadFunction: it cannot be carried.
    """
    with _by_value(_found_here_only([target])):
        try:
            return _dumps(target.body)
        except Exception:
            raise BadFunction(_why_not(target)) from None


def _found_here_only(values: Iterable[Any]) -> set[str]:
    """The modules of functions that the broker's interpreter cannot import."""
    here = {name for one in values if (name := _module_of(one))}
    return {name for name in here if name in sys.modules and not is_importable(name)}


def _why_not(target: function_table.DeclaredFunction) -> str:
    """Why it cannot be pickled as things stand; "" where it can."""
    error = _refusal_of(target)
    if error is None:
        return ""
    body, names = target.body, ""
    if isinstance(body, FunctionType):
        found = inspect.getclosurevars(body)
        refers = {**found.globals, **found.nonlocals}
        names = ", ".join(name for name, one in refers.items() if _refusal_of(one) is not None)
    told = f"{type(error).__name__}: {error}"
    return (
        f"{function_table.name_of(target)} is not in the broker, which is a process of its own: "
        f"{names or 'what it refers to'} cannot be carried there ({told}): make "
        f"{names or 'that'} in the function or in load(), or put both into a module that can be "
        "imported"
    )


def _refusal_of(value: Any) -> Exception | None:
    try:
        _dumps(value)
    except Exception as error:
        return error
    return None


def _dumps(value: Any) -> bytes:
    """By value what the broker's interpreter does not find, or raise what pickle does."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Also of what pickle and cloudpickle know by name alone, though it stands in a script."""

        def reducer_override(self, one: Any) -> Any:
            parts = NAMED_ONLY.get(type(one))
            if parts is not None and not _is_found(one):
                return parts(one)
            return super().reducer_override(one)

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def _is_found(value: Any) -> bool:
    """Whether another process finds it by its module's name and its own."""
    module = getattr(value, "__module__", None)
    if module is None or module in (function_table.unfindable or MAIN):
        return False
    return function_table.found(module, name_in_module(value)) is value


def name_in_module(value: Any) -> str:
    """The dotted name of a function, a class or a type of annotations; some have a plain one."""
    return str(getattr(value, "__qualname__", None) or value.__name__)


def _cached(function: Any, settings: Mapping[str, Any]) -> Any:
    return functools.lru_cache(**settings)(function)


def _alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:  # from 3.12 on
    return typing.TypeAliasType(name, value, type_params=parameters)  # type: ignore[attr-defined]


# How each of these is made again. Programs that differ in such a part share no broker
# (:mod:`shmgpu.attach.identity`).
NAMED_ONLY: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    functools._lru_cache_wrapper: lambda one: (_cached, (one.__wrapped__, one.cache_parameters())),
    typing.NewType: lambda one: (typing.NewType, (one.__name__, one.__supertype__)),
    typing.ParamSpec: lambda one: (typing.ParamSpec, (one.__name__,)),
}
if sys.version_info >= (3, 11):
    NAMED_ONLY[typing.TypeVarTuple] = lambda one: (typing.TypeVarTuple, (one.__name__,))
if sys.version_info >= (3, 12):
    NAMED_ONLY[typing.TypeAliasType] = lambda one: (
        (_alias, (one.__name__, one.__value__, one.__type_params__))
    )


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _module_of(value: Any) -> str:
    """The module of a function; "" for anything else."""
    body = getattr(value, "body", value)
    name = getattr(body, "__module__", None) if callable(body) else None
    return name if isinstance(name, str) else ""


def session_here() -> Any:
    """``load`` of the first module with decorated functions that has one; None where none has."""
    for name in dict.fromkeys(map(_module_of, function_table.of_users())):
        found = load_of(sys.modules.get(name))
        if found is not None:
            return found
    return None


def warn_of_unnamed_session() -> None:
    """Say so where a function uses the session, and the one that would make it has another name."""
    for target in function_table.of_users():
        name = function_table.session_maker_beside(target.body)
        if name and "session" in target.body.__code__.co_names:
            logger.warning(
                "%s uses helper.session, which is None in a broker that a first call starts unless "
                "a function called load makes it: rename %s, or start the broker with "
                "shmgpu.ensure(session=%s)",
                *(target.name, name, name),
            )
            return


def load_of(module: Any) -> Any:
    """A module's function ``load``, where it is a user's; ``from json import load`` is none."""
    found = getattr(module, "load", None)
    if not callable(found):
        return None
    home = str(getattr(found, "__module__", None) or type(found).__module__)
    path = getattr(sys.modules.get(home), "__file__", None) or ""
    is_own = home == getattr(module, "__name__", "") or not sources.is_installed(path)
    return found if is_own and home != "builtins" else None


def name_apart() -> None:
    """Two functions of one name (a cell run again, a module reloaded) get names of their own.

    They are the same in every process of the program. The one that its module has keeps the name,
    because that is what a broker gets that imports the module.
    """
    taken: dict[str, int] = {}
    targets = list(function_table.by_row.values())
    for target in targets:
        target.known_as = ""
    for target in sorted(targets, key=_is_replaced):
        name = function_table.name_of(target)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            target.known_as = f"{name}#{taken[name]}"


def _is_replaced(target: function_table.DeclaredFunction) -> bool:
    return function_table.found(_module_of(target), target.name) is not target


def is_importable(name: str) -> bool:
    """Whether an importer of this interpreter finds that module, whatever it was made of first.

    Every importer is asked, as ``import`` does: those of editable installs, of archives, a
    program's own. What a program has added by itself the broker's interpreter may lack: it says
    so, and is started again without (:mod:`shmgpu.attach.spawn`).
    """
    if name in ("", *MAIN):
        return False
    if name.partition(".")[0] == PACKAGE:
        return True
    path: Any = None
    for depth in range(1, name.count(".") + 2):
        spec = find_spec(".".join(name.split(".")[:depth]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True


def find_spec(name: str, path: Any) -> Any:
    """The module's spec as the first importer that knows it gives it; imports nothing."""
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        try:
            spec = find(name, path, None)
        except (ImportError, ValueError):
            return None
        if spec is not None:
            return spec
    return None


def found_alike(name: str) -> set[str]:
    """That module, and all that the same kind of importer has loaded; empty where none has."""
    module = sys.modules.get(name)
    if module is None:
        return set()
    loader = type(getattr(getattr(module, "__spec__", None), "loader", None))
    if loader.__module__.startswith(("importlib", "_frozen_importlib", "zipimport", "builtins")):
        return {name}
    return {
        other
        for other, one in list(sys.modules.items())
        if type(getattr(getattr(one, "__spec__", None), "loader", None)) is loader
    }


@contextlib.contextmanager
def _by_value(names: Collection[str]) -> Iterator[None]:
    """Meanwhile what those modules define is pickled by value."""
    import cloudpickle

    registered = []
    function_table.unfindable = set(names) | MAIN
    try:
        for name in names:
            module = sys.modules.get(name)
            if module is not None and name != "__main__":
                cloudpickle.register_pickle_by_value(module)
                registered.append(module)
        yield
    finally:
        function_table.unfindable = None
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)
