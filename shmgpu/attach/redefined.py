"""What is defined anew at a prompt, or in a notebook, after its program has joined its broker.

A broker's helpers run what was carried to them when it started: the functions, with the values that
they refer to, and the sessions that ``load`` made. Whoever edits a cell and runs it again would go
on with the old ones and not notice. So each call of such a program looks whether those names still
mean what they meant, and says once where one does not. Owns that comparison and the warning. Never
changes what helpers run, and costs programs in files nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from shmgpu import function_table
from shmgpu.attach import identity, late
from shmgpu.attach.preparing import Prepared, PreparingPort
from shmgpu.child import runtime
from shmgpu.child.arguments import CallTarget
from shmgpu.common.logs import logger
from shmgpu.common.module_names import is_interactive

NOT_LOOKED_INTO = (type(sys), function_table.DeclaredFunction)
COMPARED = (FunctionType, type, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
WAY = "call shmgpu.disconnect() and shmgpu.ensure(), which starts a broker with this one"
AGAIN = "define {reader} again, too (run its cell), or "  # where functions may come late


def is_prompt() -> bool:
    """Whether the program's text is typed as it runs, or comes from a pipe."""
    return is_interactive() or not hasattr(sys.modules.get("__main__"), "__file__")


class Watch:
    """The names of ``__main__`` that count, and what they meant when the program joined."""

    def __init__(self, session: Any, takes_functions: bool = False) -> None:
        self.takes_functions = takes_functions  # the broker, whenever they are defined
        self._names: Mapping[str, Any] = vars(sys.modules["__main__"])
        self._meant: dict[str, Any] = {}
        self._read_by: dict[str, str] = {}  # a name: the function that refers to it
        self._session = ""
        for target in function_table.of_users():
            self._look_into(target.body)
        name = getattr(session, "__name__", "")
        if name and self._names.get(name) is session:
            self._session = name
            self._meant[name] = session
            self._look_into(session)

    def _look_into(self, body: Any) -> None:
        """Note what a function of ``__main__`` refers to there, however deep."""
        if not isinstance(body, FunctionType) or body.__globals__ is not self._names:
            return
        for name in identity.globals_of(body.__code__):
            if name in self._names and name not in self._meant:
                value = self._names[name]
                if not isinstance(value, NOT_LOOKED_INTO):
                    self._meant[name] = _kept(value)
                    self._read_by[name] = body.__name__
                    self._look_into(value)

    def changed(self) -> Iterator[str]:
        """A sentence for each name that means something else; each is told once."""
        for name, before in list(self._meant.items()):
            is_weak = isinstance(before, weakref.ref)
            was = before() if is_weak else before
            now = self._names.get(name, was)  # whoever deletes a name wants its memory back
            if now is was:
                continue
            if not is_weak and identity.alike(was, now):
                self._meant[name] = now
                continue
            del self._meant[name]
            if name == self._session:
                yield (
                    f"{name} was defined anew after this program had joined its broker: helpers "
                    f"keep the sessions that the old one made: {WAY}"
                )
            else:
                reader = self._read_by[name]
                way = AGAIN.format(reader=reader) + WAY if self.takes_functions else WAY
                yield (
                    f"{name}, which {reader} refers to, is not what it was when this program "
                    f"joined its broker: helpers go on with the old one: {way}"
                )


def _kept(value: Any) -> Any:
    """What to compare with: code and plain values themselves; of others none is kept alive."""
    if isinstance(value, COMPARED):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return value


class WatchingPort(PreparingPort):
    """The port of a program whose text is typed as it runs."""

    watch: Watch

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.look = self._look

    def _look(self) -> None:
        for sentence in self.watch.changed():
            logger.warning("%s", sentence)

    def before_call(self, target: CallTarget, args: tuple[Any, ...]) -> Prepared:
        """As it is, after a look."""
        self._look()
        return super().before_call(target, args)


class OwnWatchingPort(WatchingPort, late.LatePort):
    """The port of such a program in a broker of its own."""


def watch_session(session: Any) -> None:
    """The session function of the broker that this program shares, where it is not ``load``."""
    if isinstance(runtime.port, WatchingPort):
        runtime.port.watch = Watch(session, runtime.port.watch.takes_functions)
