"""What is defined anew at a prompt, or in a notebook, after its program has joined its broker.

A broker's helpers run what was carried to them when it started: the functions, with the values that
they refer to, and the sessions that ``load`` made. Whoever edits a cell and runs it again would go
on with the old ones and not notice. So each call of such a program looks whether those names still
mean what they meant. In a broker of its own, functions that refer to one which does not go there
anew; elsewhere, and of sessions, it is said once. Owns that comparison and the warning. Never costs
programs in files anything.
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


def is_prompt() -> bool:
    """Whether the program's text is typed as it runs, or comes from a pipe."""
    return is_interactive() or not hasattr(sys.modules.get("__main__"), "__file__")


class Watch:
    """The names of ``__main__`` that count, and what they meant when they were sent to helpers.

    Args:
        session: the session function.
        takes_functions: whether the broker takes functions when they are called, whenever they are
            defined: those that refer to what has changed go there anew.
    """

    def __init__(self, session: Any, takes_functions: bool = False) -> None:
        self.takes_functions = takes_functions
        self._names: Mapping[str, Any] = vars(sys.modules["__main__"])
        self._meant: dict[str, Any] = {}
        self._read_by: dict[str, str] = {}  # a name: the function that refers to it
        self._readers: dict[str, weakref.WeakSet[Any]] = {}  # functions that go anew if it changes
        self._followed: weakref.WeakSet[Any] = weakref.WeakSet()
        self._of_session: set[str] = set()
        for target in function_table.of_users():
            self.follow(target)
        self._session = ""
        name = getattr(session, "__name__", "")
        if name and self._names.get(name) is session:
            self._session = name
            self._meant[name] = session
            self._of_session = self._read_from(session) | {name}

    def follow(self, target: function_table.DeclaredFunction) -> None:
        """Note what a function that helpers have refers to."""
        if target not in self._followed:
            self._followed.add(target)
            for name in self._read_from(target.body):
                self._readers.setdefault(name, weakref.WeakSet()).add(target)

    def _read_from(self, body: Any) -> set[str]:
        """The names of ``__main__`` that a function refers to there, however deep."""
        found: set[str] = set()
        waiting = [body]
        while waiting:
            one = waiting.pop()
            if not isinstance(one, FunctionType) or one.__globals__ is not self._names:
                continue
            for name in identity.globals_of(one.__code__):
                value = self._names.get(name, NOT_LOOKED_INTO)
                if name in found or value is NOT_LOOKED_INTO or isinstance(value, NOT_LOOKED_INTO):
                    continue
                found.add(name)
                waiting.append(value)
                if name not in self._meant:
                    self._meant[name] = _kept(value)
                    self._read_by[name] = one.__name__
        return found

    def changed(self) -> Iterator[tuple[str, list[Any]]]:
        """Of each name that means something else: a sentence, or functions that go anew.

        What helpers go on with is told once.
        """
        for name, before in list(self._meant.items()):
            is_weak = isinstance(before, weakref.ref)
            was = before() if is_weak else before
            now = self._names.get(name, was)  # whoever deletes a name wants its memory back
            if now is was:
                continue
            if not is_weak and identity.alike(was, now):
                self._meant[name] = now
                continue
            self._meant.pop(name, None)  # threads look at once
            readers = list(self._readers.pop(name, ()))
            self._followed.difference_update(readers)
            if not self.takes_functions:
                readers = []
            said = ""
            if name == self._session:
                said = (
                    f"{name} was defined anew after this program had joined its broker: helpers "
                    f"keep the sessions that the old one made: {WAY}"
                )
            elif not self.takes_functions or name in self._of_session:
                said = (
                    f"{name}, which {self._read_by[name]} refers to, is not what it was when this "
                    f"program joined its broker: helpers go on with the old one: {WAY}"
                )
            yield said, readers


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
        for sentence, readers in self.watch.changed():
            if sentence:
                logger.warning("%s", sentence)
            for target in readers:
                self.send_anew(target)

    def before_call(self, target: CallTarget, args: tuple[Any, ...]) -> Prepared:
        """As it is, after a look; what goes to the broker now is watched from now on."""
        self._look()
        if self.takes_functions and isinstance(target, function_table.DeclaredFunction):
            if not target.is_own:
                self.watch.follow(target)
        return super().before_call(target, args)


class OwnWatchingPort(WatchingPort, late.LatePort):
    """The port of such a program in a broker of its own."""


def watch_session(session: Any) -> None:
    """The session function of the broker that this program shares, where it is not ``load``."""
    if isinstance(runtime.port, WatchingPort):
        runtime.port.watch = Watch(session, runtime.port.takes_functions)
