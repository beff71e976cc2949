"""What this process is at the moment: the one piece of global state in the package.

Owns ``current``, which a child's start sets and its end clears. A process that the user's code
forked from a child inherits the memory but not the right to speak: its ``current`` is replaced
by a reason, and every call raises it, until it claims a place of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shmgpu import core
from shmgpu.errors import BrokerDied, NotRunning, ShmError

if TYPE_CHECKING:
    from shmgpu.memory import Arena
    from shmgpu.port import Port

NOT_RUNNING = (
    "no broker is running in this process: call this inside a child's main of "
    "shmgpu.launch(), or call shmgpu.init() first"
)
FORKED = (
    "this process was forked from a process that uses shmgpu, and only that one may use its "
    "arena and its calls: pass data to it, call shmgpu.claim() in this one to give it an arena "
    "and calls of its own, or start it with shmgpu.launch(children=...)"
)
IN_HELPER = (
    "a helper cannot call functions or own arrays of an arena: only children do; "
    "call the Python function itself with .local(helper, ...)"
)
SHUT_DOWN = (
    "shmgpu was shut down in this process: call shmgpu.init() or shmgpu.launch() again first"
)
DISCONNECTED = "this process has left its broker: call shmgpu.connect() again first"


@dataclass
class Runtime:
    """A child's means: its port, its arena, and how pools are numbered."""

    rank: int
    port: Port
    arena: Arena
    pools: dict[str, int]
    inline: bool = False
    door: str = ""  # where processes that this one forks may join; empty: nowhere
    extra: dict[str, Any] = field(default_factory=dict)


current: Runtime | None = None
port: Port | None = None
why_not: ShmError = NotRunning(NOT_RUNNING)
first_call: Callable[[], None] | None = None  # joins or starts a broker where that is wanted
inherited_door: str | None = None  # of the child that this process was forked from; None: of none


def start(runtime: Runtime) -> None:
    """This process is a child from now on."""
    global current, port
    current = runtime
    port = runtime.port


def stop(reason: ShmError | None = None) -> None:
    """This process is no child any more; ``reason`` is what calls raise from now on."""
    global current, port, why_not
    current = None
    port = None
    why_not = NotRunning(NOT_RUNNING) if reason is None else reason


def require() -> Runtime:
    """The child's means; raises NotRunning, in the words that fit."""
    if current is None:
        raise _fresh(why_not)
    return current


def require_port() -> Port:
    """The child's port; raises NotRunning, in the words that fit.

    The first call of a program that is in no broker joins or starts one: see :mod:`shmgpu.attach`.
    """
    if current is None and first_call is not None and str(why_not) == NOT_RUNNING:
        first_call()
    return require().port


def _fresh(reason: ShmError) -> ShmError:
    return type(reason)(str(reason))


def shut_down(broker_died: bool = False) -> None:
    """The broker of this process has ended."""
    stop(BrokerDied("the broker is gone: launch again") if broker_died else NotRunning(SHUT_DOWN))


def _after_fork_in_child() -> None:
    global inherited_door
    if current is not None:
        inherited_door = current.door
        stop(NotRunning(FORKED))
        core.disown()  # an end of a pipe kept here would hide the other process's end


os.register_at_fork(after_in_child=_after_fork_in_child)
