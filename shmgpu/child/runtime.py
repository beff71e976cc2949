"""What this process is at the moment: the one piece of global state in the package.

Owns ``current``, which a child's start sets and its end clears. A process that user code forks from
a child inherits the memory but not the right to send: its ``current`` is replaced by a reason that
every call raises, until the process claims a slot of its own. Never sends a call.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shmgpu import core
from shmgpu.child import quick
from shmgpu.child.futures import readers
from shmgpu.errors import BrokerDied, LaunchError, NotRunning, ShmError

if TYPE_CHECKING:
    from shmgpu.child.memory import Arena
    from shmgpu.child.port import Port

P = ParamSpec("P")
R = TypeVar("R")

NOT_RUNNING = (
    "no broker is running in this process: call this inside a child's main of "
    "shmgpu.launch(), or call shmgpu.init(), or shmgpu.ensure(), first"
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
    "shmgpu was shut down in this process, and calls start no broker again by themselves: call "
    "shmgpu.ensure() first, which joins the one that programs share and starts it where none runs, "
    "or shmgpu.init() again, which starts one for this program alone"
)
NO_BROKER_INLINE = "no broker is running, and none counts: init(inline=True) starts no process"
LOADING = (
    "a broker is loading this module for its functions, and can neither join nor start another "
    'meanwhile: put what the program does, this call too, under if __name__ == "__main__":'
)
DISCONNECTED = (
    "this process has left its broker, and calls join none again by themselves: call "
    "shmgpu.ensure() first, which joins one and starts it where none runs, or shmgpu.connect(), "
    "which joins one that runs"
)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Meanwhile modules are imported whose functions a broker is to serve."""
    global _is_loading
    _is_loading = True
    try:
        yield
    finally:
        _is_loading = False


def refuse_while_loading() -> None:
    """Raise LaunchError in a module that does at its import what only the program is to do."""
    if _is_loading:
        raise LaunchError(LOADING)


@dataclass
class Runtime:
    """A child's means: its port, its arena, and how pools are numbered."""

    rank: int
    port: Port
    arena: Arena
    pools: dict[str, int]
    inline: bool = False
    if_lost: str = ""  # what its calls say when the broker is gone; empty: as a child's
    endpoint: str = ""  # where processes that this one forks may join; empty: nowhere
    extra: dict[str, Any] = field(default_factory=dict)

    def close(self, reason: ShmError) -> None:
        """Before its descriptors are closed: nothing waits any more. May be called again."""
        self.port.close(reason)
        readers.leave(self.port)
        self.port.join()
        self.port.forget()


computes_with_torch = False  # tensors were named here, and torch is to compute them
current: Runtime | None = None
port: Port | None = None
why_not: ShmError = NotRunning(NOT_RUNNING)
ending: list[Callable[[], None]] = []  # what this child does before it leaves its broker
first_call: Callable[[], None] | None = None  # joins or starts a broker where that is wanted
inherited_endpoint: str | None = None  # of the child that forked this process; None: of none
_is_loading = False  # this process will be a broker, and is importing what it will serve
_gate = threading.RLock()  # held by the one thread that has this process join a broker, or leave


def one_at_a_time(change: Callable[P, R]) -> Callable[P, R]:
    """Decorates what makes this process a child, or ends that: no two threads are in any of it."""

    @functools.wraps(change)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _gate:
            return change(*args, **kwargs)

    return alone


def start(runtime: Runtime) -> None:
    """This process is a child from now on."""
    global current, port
    current = runtime
    port = runtime.port
    quick.use(port)
    core.reworded.clear()
    if runtime.inline:
        core.reworded[core.ENOT_RUNNING] = NO_BROKER_INLINE
    if runtime.if_lost:
        core.reworded.update(dict.fromkeys((core.EBROKER_DIED, core.ESTOPPED), runtime.if_lost))


def stop(reason: ShmError | None = None) -> None:
    """This process is no child any more; ``reason`` is what calls raise from now on."""
    global current, port, why_not
    current = None
    port = None
    quick.use(None)
    why_not = NotRunning(NOT_RUNNING) if reason is None else reason


def end() -> None:
    """This child has done its work: what wanted to be called then is."""
    while ending:
        ending.pop()()


def require() -> Runtime:
    """The child's means; raises NotRunning, in the words that fit."""
    if current is None:
        raise _fresh(why_not)
    return current


def require_port() -> Port:
    """The child's port; raises NotRunning, in the words that fit.

    The first call of a program that is in no broker joins or starts one, and then any call that
    finds it gone does the like: see :mod:`shmgpu.attach.membership`.
    """
    if current is None:
        refuse_while_loading()
    if _may_join():
        _join_once()
    return require().port


def port_now() -> Port:
    """As :func:`require_port`, in the quickest way."""
    if port is None or (port.rejoins and port.is_lost()):
        return require_port()
    return port


def joined() -> Runtime:
    """The child's means, as :func:`require_port` has this process become one."""
    if current is None:
        require_port()
    return require()


def _may_join() -> bool:
    if current is not None:
        return current.port.rejoins and current.port.is_lost()
    return first_call is not None and not _is_loading and str(why_not) == NOT_RUNNING


@one_at_a_time
def _join_once() -> None:
    if _may_join() and first_call is not None:  # no other thread's call was the first
        first_call()
        if current is not None:
            current.port.rejoins = True


def _fresh(reason: ShmError) -> ShmError:
    return type(reason)(str(reason))


def shut_down(broker_died: bool = False) -> None:
    """The broker of this process has ended."""
    stop(BrokerDied("the broker is gone: launch again") if broker_died else NotRunning(SHUT_DOWN))


def _after_fork_in_child() -> None:
    global inherited_endpoint, _gate
    _gate = threading.RLock()  # whoever held it was not forked
    if current is not None:
        inherited_endpoint = current.endpoint
        stop(NotRunning(FORKED))
        ending.clear()
        core.disown()  # an end of a pipe kept here would hide the other process's end


os.register_at_fork(after_in_child=_after_fork_in_child)
