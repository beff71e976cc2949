"""The modules that a broker serves: loading them, and explaining why one cannot be loaded.

Owns the error's sentence (which module, which line, which exception) and the part of the traceback
that is the user's own. Decorated functions register themselves as their module runs. Never decides
what is served.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import traceback
from collections.abc import Callable, Iterator
from types import CodeType, ModuleType, TracebackType
from typing import Any, cast

from shmgpu.errors import ConfigError, LaunchError

OURS = str(pathlib.Path(__file__).parents[1]) + os.sep
# Files whose frames lead to the user's code; a dataclass's own methods are of "<string>".
_LEADING = (OURS, "<frozen importlib", importlib.__file__, contextlib.__file__, "<string>")


class NotLoaded(LaunchError):
    """A module raised while it was imported.

    Attributes:
        traceback_text: from the module on, as text.
    """

    def __init__(self, message: str, traceback_text: str) -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class _UncachedSource(importlib.machinery.SourceFileLoader):
    """Reads the source at each load: kept bytecode is matched by length and whole seconds."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def anew(name: str, path: str, *, is_listed: bool = False) -> ModuleType:
    """A module made of what a file says now; in ``sys.modules``, too, where that is wanted."""
    loader = _UncachedSource(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if is_listed:
        sys.modules[name] = module
    loader.exec_module(module)
    return module


def working_directory() -> str:
    """Where this process is; raises LaunchError where that is nowhere any more."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise LaunchError(
            "the directory in which this program runs has been deleted, and a broker that is "
            "started here would find none of its files: change into one that exists (cd), and "
            "start the program there"
        ) from None


def absolute(path: str) -> str:
    """The path from the root; raises as :func:`working_directory`."""
    return os.path.normpath(path if os.path.isabs(path) else f"{working_directory()}/{path}")


def load(name: str) -> ModuleType:
    """Import a module by its dotted name, or a file by its path.

    A file is imported under its stem, as a program that is run is called by those who join.

    Raises:
        ConfigError: there is none of that name.
        NotLoaded: it raised, or asked the interpreter to end.
    """
    path = pathlib.Path(name)
    return _file(name, path) if path.suffix == ".py" else _module(name)


def named(name: str) -> Callable[..., Any]:
    """The session function that ``module:name`` names; raises as :func:`load`."""
    module, _, attribute = name.rpartition(":")
    if not module:
        raise ConfigError(f"session={name!r} must be MODULE:NAME")
    loaded = sys.modules.get(pathlib.Path(module).stem) if module.endswith(".py") else None
    found = getattr(loaded or load(module), attribute, None)
    if not callable(found):
        raise ConfigError(f"session={name!r}: {module} has no function {attribute}")
    return cast("Callable[..., Any]", found)


def _file(name: str, path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{name} is not a file: name a module, or a file ending in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    with _told(name):
        spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    if not all(name.split(".")):
        raise ConfigError(
            f"{name!r} is not a module's name: name a module, or a file ending in .py"
        )
    here = working_directory()
    sys.path.insert(0, here)
    try:
        with _told(name):
            return importlib.import_module(name)
    except NotLoaded as error:
        missing = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and f"{name}.".startswith(
            f"{missing}."
        ):
            raise ConfigError(
                f"{name} cannot be imported ({error.__cause__}): name a module, or a file ending "
                "in .py"
            ) from error
        raise
    finally:
        with contextlib.suppress(ValueError):  # the module may have done it
            sys.path.remove(here)


@contextlib.contextmanager
def _told(name: str) -> Iterator[None]:
    """Meanwhile what the module raises becomes :class:`NotLoaded`."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        own = _own(error.__traceback__)
        said = type(error).__name__ + (f": {text}" if (text := _text(error)) else "")
        where = _line(error, own)
        raise NotLoaded(
            f"{name} cannot be loaded: {f'{where} raises ' if where else ''}{said}",
            "".join(traceback.format_exception(type(error), error, own)),
        ) from error


def _text(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}, line {error.lineno})"
    return " ".join(str(error).split())


def own_traceback(error: BaseException) -> str:
    """An error's traceback from the user's own code on, as text.

    Empty for a configuration that is refused without any of that code: the sentence says it all.
    """
    told = error
    while (own := _own(told.__traceback__)) is None and told.__cause__ is not None:
        told = told.__cause__
    if own is None and isinstance(error, ConfigError):
        return ""
    return "".join(traceback.format_exception(type(told), told, own or told.__traceback__))


def _own(frames: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames that led to the module's first line."""
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if not file.startswith(_LEADING):
            break
        frames = frames.tb_next
    return frames


def _line(error: BaseException, own: TracebackType | None) -> str:
    """Where the module itself was; "" when it had not begun."""
    if own is None:
        return ""
    file = own.tb_frame.f_code.co_filename
    lines = [n for frame, n in traceback.walk_tb(own) if frame.f_code.co_filename == file]
    return f"line {lines[-1]} of {file}"
