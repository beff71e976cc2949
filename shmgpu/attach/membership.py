"""Joining a running broker: ``connect``, ``ensure``, ``claim``, ``disconnect``.

Owns this process's membership: the handshake, the functions' rows while it lasts, and its end. A
member is a child like any other, except that the broker did not fork it and never signals it.
"""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shmgpu import core, function_table
from shmgpu.attach import automatic, carry, endpoint, hosts, late, manifest, redefined, spawn
from shmgpu.child import runtime
from shmgpu.child.memory import SharedArena
from shmgpu.child.port import Port
from shmgpu.child.runtime import Runtime
from shmgpu.child.transport import BrokerTransport
from shmgpu.common import config, logs, parsers, seeding
from shmgpu.common.logs import logger
from shmgpu.common.parsers import parse_seconds
from shmgpu.errors import BrokerDied, LaunchError, NotRunning, ShmError

SETTLES_WITHIN_S = 30.0  # how long to wait for a broker that is ending, or silent
LOOK_AGAIN_S = 0.05
ALREADY = {  # by role: why this process cannot join
    core.ROLE_HELPER: "a helper serves one broker and cannot join another: call functions from "
    "the programs that use it",
    core.ROLE_PARENT: "this process is a broker: join it from the programs that call functions",
}
IN_ONE = (
    "this process is already in a broker: call disconnect() or shutdown() first, or, in a child of "
    "launch(), use that broker"
)
ENDED = (
    "the broker of the process that forked this one has ended: start another there, and call "
    "claim() in a process that is forked afterwards"
)
LOST = (
    "the broker that this process had joined is gone: call shmgpu.connect() to join the next one, "
    "or, in a program that joined with its first call, just call again"
)
NO_SLOTS = (
    "the broker of the process that forked this one has no slots for others: start it with some, "
    "as in launch(..., slots=4) or init(slots=4), or use a broker of shmgpu up"
)


MORE_SLOTS = (
    "shmgpu.ensure(wait=SECONDS) waits; and with SHMGPU_MAX_CHILDREN set to more, and SHMGPU_ARENA "
    "to less where memory is short, these programs share another broker"
)


class Membership:
    """This process's slot in a broker; leave it with :func:`disconnect`, or use it as a context."""

    def __init__(self, path: str, known: manifest.Manifest, unpickles: bool = True) -> None:
        self.path = path
        self.manifest = known
        self.unpickles = unpickles  # what this broker answers with
        self.pid = os.getpid()
        self.leaving: tuple[ShmError, Runtime | None] | None = None  # why, and what is given up
        self._told: set[str] = set()

    def caution(self, target: Any) -> None:
        """At the first call of a function: say where the broker runs other code than is here."""
        if not isinstance(target, function_table.DeclaredFunction):
            return
        if self.manifest.has_other_code(target):
            self._warn(f"runs other code for {manifest.name_of(target)} than this program has")
        session = carry.load_of(sys.modules.get(getattr(target.body, "__module__", "")))
        if session is not None and self.manifest.has_other_session(session):
            self._warn_of_session(session)

    def caution_asked(self, session: Any) -> None:
        """Say so where the broker, which somebody else has started, lacks the session asked for."""
        if callable(session) and not self.manifest.makes(session):
            self._warn_of_session(session)

    def _warn_of_session(self, session: Any) -> None:
        name = function_table.name_of_body(session)
        self._warn(f"made its sessions with other code than {name} has in this program")

    def _warn(self, what: str) -> None:
        if what in self._told:
            return
        self._told.add(what)
        way = "end it (shmgpu down) and start one with this program's"
        if self.manifest.key:
            way = "shmgpu.disconnect() and shmgpu.ensure() give it one that runs this code"
        logger.warning("the broker %s: %s", what, way)

    def resolve(self, target: function_table.DeclaredFunction) -> int:
        """The row of a function in the broker's table; 0 when it has none of that name."""
        row = self.manifest.row_of(target)
        if row and target.pickle:
            target.refused = self._why_not_unpickled(target, row)
        return 0 if target.refused else row

    def _why_not_unpickled(self, target: function_table.DeclaredFunction, row: int) -> str:
        """Why nothing that answers this function's calls is unpickled; "" when it is.

        Where the broker's own function makes no pickles, one that arrives is somebody else's.
        """
        if not self.unpickles:
            return (
                f"the broker at {self.path} is another user's, and {target.name} has pickle=True: "
                "its answers could run any code as you; pass plain values and arrays instead, or "
                "call connect(trust_broker=True) if you trust that user"
            )
        if row not in self.manifest.pickles:
            return (
                f"this program has {target.name} with pickle=True, but the broker at {self.path} "
                "serves it without: end that broker (shmgpu down), and start one with this "
                "program's function"
            )
        return ""

    def disconnect(self) -> None:
        """As :func:`disconnect`."""
        disconnect()

    def __repr__(self) -> str:
        if _membership is not self or runtime.current is None:
            return f"<shmgpu membership of {self.path}, left>"
        state = "its broker is gone" if runtime.current.port.is_lost() else "joined"
        return f"<shmgpu membership of {self.path}, {state}>"

    def __enter__(self) -> Membership:
        return self

    def __exit__(self, *exc: object) -> None:
        disconnect()


_membership: Membership | None = None
_is_entering = False  # the core has a slot, or is about to, that no membership stands for yet


@runtime.one_at_a_time
def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    wait: float | None = 0.0,
    host: str | None = None,
    port: int | None = None,
    trust_broker: bool = False,
) -> Membership:
    """Join the broker that listens at ``path``: this process becomes one of its children.

    Args:
        path: of the broker's socket; by default ``SHMGPU_SOCKET``, or the one in your runtime
            directory. ``"localhost:29500"`` and similar addresses mean the default, too.
        wait: seconds to wait for a free slot if all are taken; None waits for ever. One whose
            program has left is waited for in any case, up to two seconds, until it is cleared.
        host: accepted for this machine (``"localhost"``, its name, its addresses), else refused.
        port: accepted and ignored: there is no network between processes of one machine.
        trust_broker: also call functions with ``pickle=True`` in another user's broker; that user
            can then run any code as you.

    Returns:
        A context manager that calls :func:`disconnect`.

    Raises:
        NotRunning: no broker listens there.
        LaunchError: this process is already in a broker, or the broker refused: all slots are
            taken, or it is another user's or of another version.
        ConfigError: another host, or not a socket.
    """
    address = hosts.split(path)
    if address is not None:
        path, (host, port) = None, address
    hosts.refuse_others(host, port)
    _refuse_where_taken()
    socket_path = endpoint.path_of(path)
    if path is None:
        found = _find(socket_path, None if wait is None else parse_seconds(wait, "wait"))
        if found is not None:
            return _wait_in(*found, wait, trust_broker)
    return _join(socket_path, wait, trust_broker)


@runtime.one_at_a_time
def claim(*, wait: float | None = 0.0, trust_broker: bool = False) -> Membership:
    """Take a slot with an arena of its own, in a process that your program forked.

    It joins the broker of the process that forked it, which must have free ``slots``:
    ``launch(..., slots=N)``, ``init(slots=N)``, or a broker of ``shmgpu up`` that the forking
    process had joined. In any other process it does what :func:`connect` does. Inherited memory
    still belongs to the forking process, and its arrays stay readable here.

    Args:
        wait: see :func:`connect`.
        trust_broker: see :func:`connect`.

    Returns:
        A context manager that calls :func:`disconnect`; the process's end does the same.

    Raises:
        NotRunning: the broker has ended.
        LaunchError: there are no slots, all are taken, or this process is already in a broker.
    """
    _refuse_where_taken()
    if runtime.inherited_endpoint == "":
        raise LaunchError(NO_SLOTS)
    socket_path = endpoint.path_of(runtime.inherited_endpoint)
    return _join(
        socket_path,
        wait,
        trust_broker,
        endpoint.NOBODY if runtime.inherited_endpoint is None else ENDED,
    )


def joined() -> Membership | None:
    """This process's membership, where it is in a broker that it has joined."""
    return _membership if runtime.current is not None else None


def _refuse_where_taken() -> None:
    runtime.refuse_while_loading()
    _undo()
    _leave_lost()
    role = core.role()
    if role != core.ROLE_NONE or runtime.current is not None:
        raise LaunchError(ALREADY.get(role, IN_ONE))


def _join(
    socket_path: pathlib.Path, wait: float | None, trust_broker: bool, nobody: str = endpoint.NOBODY
) -> Membership:
    seconds = None if wait is None else parse_seconds(wait, "wait")
    return _wait_in(
        socket_path, endpoint.connect(socket_path, seconds), seconds, trust_broker, nobody
    )


def _find(base: pathlib.Path, wait: float | None) -> tuple[pathlib.Path, socket.socket] | None:
    """A connection to the broker that stands there, or to this program's own; None: none runs."""
    connection = endpoint.connect(base, wait)
    if connection is not None:
        return base, connection
    if str(base).startswith("@"):
        return None
    shared = automatic.SharedBroker(base, {})
    connection = endpoint.connect(shared.socket_path, wait) if shared.runs() else None
    return None if connection is None else (shared.socket_path, connection)


def _wait_in(
    socket_path: pathlib.Path,
    connection: socket.socket | None,
    wait: float | None,
    trust_broker: bool,
    nobody: str = endpoint.NOBODY,
) -> Membership:
    """Attach; connect again, while there is time, where as many wait as the broker watches."""
    until = None if wait is None else time.monotonic() + parse_seconds(wait, "wait")
    left = wait
    while True:
        if connection is None:
            raise NotRunning(nobody.format(path=socket_path))
        try:
            return _enter(socket_path, connection, left, trust_broker)
        except core.NoPlace:
            if until is not None and time.monotonic() >= until:
                raise
        time.sleep(LOOK_AGAIN_S)
        left = None if until is None else max(until - time.monotonic(), 0.0)
        connection = endpoint.connect(socket_path, left)


def _enter(
    socket_path: pathlib.Path,
    connection: socket.socket,
    wait: float | None,
    trust_broker: bool = False,
) -> Membership:
    global _membership, _is_entering
    try:
        with connection:
            trusts = parsers.parse_bool(trust_broker, "trust_broker")
            unpickles = trusts or endpoint.is_trusted(connection)
            _is_entering = True
            seed = config.resolve("seed")
            slot, link, known = enter(connection, wait)
        seeding.seed_joined(seed, slot)
        membership = Membership(str(socket_path), known, unpickles)
        membership.leaving = NotRunning(runtime.NOT_RUNNING), None  # what an interruption comes to
        _membership = membership
        _is_entering = False
        link.arguments.when_adopted = membership.caution
        link.arena.made_larger_by = automatic.larger_arena(socket_path, known)
        function_table.resolve_by(
            membership.resolve,
            None if known.is_own() else sorted(known.rows),
            functools.partial(automatic.advice, known),
            carry.obstacle if known.key else None,
        )
        atexit.register(disconnect)
        runtime.start(
            Runtime(
                slot, link, link.arena, dict(known.pools), if_lost=LOST, endpoint=str(socket_path)
            )
        )
        membership.leaving = None
    except BaseException:
        _undo()
        raise
    return membership


def _undo() -> None:
    """Leave a slot that was taken, or left, only in part, because an exception struck.

    Joining and leaving do this themselves; where they are interrupted in that, too, whoever joins
    or leaves next does it.
    """
    global _is_entering
    if _is_entering:
        if core.role() == core.ROLE_CHILD:
            core.leave()
        _is_entering = False
    left = _membership
    if left is not None and left.leaving is not None:
        _leave(left.leaving[0])


# By whether the broker is for this process alone, and whether that watches what is defined anew.
PORTS: dict[tuple[bool, bool], type[Port]] = {
    (False, False): Port,
    (False, True): redefined.WatchingPort,
    (True, False): late.LatePort,
    (True, True): redefined.OwnWatchingPort,
}


def enter(connection: socket.socket, wait: float | None) -> tuple[int, Port, manifest.Manifest]:
    """Take a slot in the broker at the other end: its number, and the means to use it.

    The connection is closed, whatever comes of it; raises what :func:`connect` does.
    """
    wait_ns = -1 if wait is None else int(parse_seconds(wait, "wait") * 1e9)
    config.warn_unknown()
    logs.configure()
    core.dump_arenas(config.resolve("dump_arenas"))
    core.allow_spinning(config.resolve("spin"))
    descriptor = core.new_descriptor()
    try:
        with connection:
            program = os.path.basename(sys.argv[0])
            core.join(connection.fileno(), program, wait_ns, descriptor)
        known = manifest.Manifest.read(descriptor[0])
        slot = core.child_id()
        watches = bool(known.key) and redefined.is_prompt()
        link = PORTS[known.is_own(), watches](
            BrokerTransport(), SharedArena(slot), dict(known.pools)
        )
        if isinstance(link, redefined.WatchingPort):
            link.watch = redefined.Watch(carry.session_here(), link.takes_functions)
    except BaseException:
        if core.role() == core.ROLE_CHILD:
            core.leave()
        raise
    finally:
        if descriptor[0] >= 0:
            os.close(descriptor[0])
    return slot, link, known


@runtime.one_at_a_time
def ensure(
    modules: Sequence[str] | None = None,
    *,
    path: str | os.PathLike[str] | None = None,
    wait: float | None = 0.0,
    timeout: float | None = None,
    trust_broker: bool = False,
    **settings: Any,
) -> Membership:
    """Join your broker, and start one first if none runs.

    A broker of ``shmgpu up`` is joined as it is. If there is none, programs that only use tensors
    share one, and programs with functions share one with those that have the same functions,
    session function and settings. If one of a broker's files has changed since, the next program
    gets a new broker, and the old one ends with its last program.

    If two programs start a broker at once, one broker results. It outlives this program, until
    ``shmgpu down``, or until its ``idle_timeout`` if one is given. What it prints goes to a file
    beside its socket that ends in ``.log``. If a broker is just ending, this waits for its end and
    then starts the next one.

    Args:
        modules: names or files of modules whose functions the broker serves; by default this
            program's own functions, and their function ``load`` as the session function. With
            modules the broker uses the socket of ``shmgpu up``; one that listens there already is
            used as it is.
        path: see :func:`connect`; a named path has the same effect as modules.
        wait: see :func:`connect`.
        timeout: seconds that its start may take, or that another program's start is waited for; a
            start that takes longer is ended. None waits until it is ready or has failed, and ten
            minutes for another program's.
        trust_broker: see :func:`connect`.
        settings: of a broker that must be started, as for ``shmgpu up``: helpers, devices, arena,
            session (a function, or its name), slots, idle_timeout, ... A running broker with
            fewer helpers is asked for more.

    Raises:
        SessionError, LaunchError, ConfigError: it could not be started, or refused this program.
    """
    _refuse_where_taken()
    timeout = None if timeout is None else parse_seconds(timeout, "timeout")
    socket_path = endpoint.path_of(path)
    if str(socket_path).startswith("@"):  # a private endpoint: its broker runs, or ran
        return _join(socket_path, wait, trust_broker)
    if modules is None and path is None:
        return _share(socket_path, wait, timeout, trust_broker, settings)
    connection = endpoint.connect(socket_path, SETTLES_WITHIN_S)
    until: float | None = None
    while True:
        if connection is not None:
            try:
                joined = _wait_in(socket_path, connection, wait, trust_broker)
            except (BrokerDied, core.NoAnswer):  # it is ending, or loading
                if until is not None and time.monotonic() > until:
                    raise
            else:
                joined.caution_asked(settings.get("session"))
                return joined
            time.sleep(LOOK_AGAIN_S)
        # Whoever starts one has this until it can be joined.
        with endpoint.locked(
            socket_path, ".starting", endpoint.STARTED_WITHIN_S if timeout is None else timeout
        ):
            connection = endpoint.connect(socket_path, SETTLES_WITHIN_S)
            if connection is None:
                settings["slots"] = automatic.slots_of(settings)
                spawn.start(modules, socket_path, timeout=timeout, **settings)
                connection = endpoint.connect(socket_path, SETTLES_WITHIN_S)
        if until is None:
            until = time.monotonic() + SETTLES_WITHIN_S
        elif connection is None and time.monotonic() > until:
            raise LaunchError(
                f"brokers at {socket_path} end before they can be joined: read their log"
            )


def _share(
    base: pathlib.Path,
    wait: float | None,
    timeout: float | None,
    trust_broker: bool,
    settings: Mapping[str, Any],
) -> Membership:
    """Join the broker that stands there, or the one that programs like this one share."""
    shared: automatic.SharedBroker | None = None
    until: float | None = None
    while True:
        socket_path = base
        connection = endpoint.connect(base, SETTLES_WITHIN_S)
        if connection is None:
            if shared is None:
                shared = automatic.SharedBroker(base, settings)
            runs = shared.runs()
            socket_path = shared.socket_path
            connection = endpoint.connect(socket_path, SETTLES_WITHIN_S) if runs else None
        if connection is not None:
            try:
                joined = _wait_in(socket_path, connection, wait, trust_broker)
            except (BrokerDied, core.NoAnswer):  # it is ending, or loading
                if until is not None and time.monotonic() > until:
                    raise
                time.sleep(LOOK_AGAIN_S)
            except core.NoPlace as error:
                if shared is None or socket_path != shared.socket_path:
                    raise
                raise core.NoPlace(f"{error}: {MORE_SLOTS}") from None
            else:
                if shared is not None and socket_path == shared.socket_path:
                    shared.grow(joined.manifest.pools)
                    redefined.watch_session(shared.settings["session"])
                else:
                    joined.caution_asked(settings.get("session"))
                return joined
        elif shared is not None:
            # Whoever starts one has this until it can be joined.
            within = endpoint.STARTED_WITHIN_S if timeout is None else timeout
            with endpoint.locked(socket_path, ".starting", within):
                if not shared.runs():
                    shared.start(timeout)
        if until is None:
            until = time.monotonic() + SETTLES_WITHIN_S
        elif connection is None and time.monotonic() > until:
            raise LaunchError(
                f"brokers at {socket_path} end before they can be joined: read their log"
            )


def _first_call() -> None:
    """What the first call of a program in no broker does, as ``SHMGPU_AUTO`` says."""
    _leave_lost()
    wanted = config.resolve("auto")
    if wanted == "never" or core.role() != core.ROLE_NONE:
        return
    if wanted == "start":
        ensure(idle_timeout=config.resolve("idle_timeout"))
        return
    found = _find(endpoint.path_of(None), 0.0)
    if found is not None:
        _enter(*found, 0.0)


runtime.first_call = _first_call


@runtime.one_at_a_time
def disconnect() -> None:
    """Leave the broker that :func:`connect` or :func:`claim` joined.

    Calls in flight are abandoned; arrays of the arena stay readable. Later calls raise
    NotRunning, until :func:`ensure`, :func:`connect` or :func:`init`. Does nothing if no broker
    was joined.
    """
    _undo()
    _leave(NotRunning(runtime.DISCONNECTED))


def _leave_lost() -> None:
    """A slot in a broker that is gone is none: leave it before the next."""
    current = runtime.current
    if _membership is None or current is None or not current.port.is_lost():
        return
    while current.port.poll():  # what was answered before its end
        pass
    _leave(BrokerDied(LOST))
    if current.port.rejoins:
        runtime.stop()  # as before the first call


def _leave(reason: ShmError) -> None:
    """Each of its steps may be done twice: where it is interrupted, it is begun again."""
    global _membership
    left = _membership
    if left is None:
        return
    if left.pid == os.getpid():
        if left.leaving is None:
            left.leaving = reason, runtime.current
        reason, current = left.leaving
        if runtime.current is not None:
            current = runtime.current
            runtime.end()
            runtime.stop(reason)
        if current is not None:
            current.close(reason)
        if core.role() == core.ROLE_CHILD:
            core.leave()
        # Only when nothing can be sent any more: a call of another thread would name a row of this
        # process, which the broker does not have, or has for another function.
        function_table.resolve_by(None, [])
    atexit.unregister(disconnect)
    _membership = None
