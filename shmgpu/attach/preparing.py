"""A port that does something with each call before it is made.

Owns where that is done, for all ways of calling. Never decides what is done: ports of programs
whose text is typed as they run do (:mod:`shmgpu.attach.late`, :mod:`shmgpu.attach.redefined`).
"""

from __future__ import annotations

from typing import Any

from shmgpu.child.arguments import CallOptions, CallTarget
from shmgpu.child.port import Port
from shmgpu.child.tickets import Ticket
from shmgpu.child.transport import CompletionHandler
from shmgpu.function_table import DeclaredFunction

Prepared = tuple[CallTarget, tuple[Any, ...]]


class PreparingPort(Port):
    """A port whose calls go through :meth:`before_call`."""

    def before_call(self, target: CallTarget, args: tuple[Any, ...]) -> Prepared:
        """What is called for a target, and with which arguments."""
        return target, args

    def send_anew(self, target: DeclaredFunction) -> None:
        """Have a function sent once more, with what it refers to; nothing where none are sent."""

    def call(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None = None,
    ) -> Any:
        """As every port's."""
        target, args = self.before_call(target, args)
        return super().call(target, args, kwargs, options)

    def submit(
        self,
        target: CallTarget,
        args: tuple[Any, ...],
        kwargs: Any,
        options: CallOptions | None,
        handler: CompletionHandler,
        use_reader: bool,
        lends: bool = True,
    ) -> Ticket:
        """As every port's."""
        target, args = self.before_call(target, args)
        return super().submit(target, args, kwargs, options, handler, use_reader, lends)
