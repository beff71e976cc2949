"""A broker started, joined, asked and left: what Python lends to the C supervisor.

Owns the callbacks, and the one host that gets them. Never decides anything: the host does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shmgpu import errors
from shmgpu.core.binding import as_dict, ffi, kept, lib
from shmgpu.core.statuses import (
    EBAD_CONFIG,
    EINTR,
    ENO_CHILD_SLOT,
    ETIMEOUT,
    check,
    error_detail,
    error_of,
    fail,
)


class Host:
    """What Python lends the supervisor: override the methods; see shm_host_t in the header.

    One host is in use at a time. An exception in a callback must not cross C: :meth:`failed`
    is told of it, and the callback's value is then the one that stops the broker.
    """

    def fork(self) -> int:
        """As ``os.fork``."""
        raise NotImplementedError

    def run_helper(self, helper: int, generation: int) -> int:
        """In the helper: its exit status."""
        raise NotImplementedError

    def run_child(self, child: int, generation: int) -> int:
        """In the child: its exit status."""
        raise NotImplementedError

    def on_event(self, event: dict[str, int]) -> None:
        """In the parent: something happened."""

    def on_signal(self) -> int:
        """In the parent: Python's handlers have run; non-zero stops the broker."""
        return 0

    def is_done(self, child: int) -> bool:
        """In the parent: whether a child that exited with 0 has left what it owes."""
        return True

    def exit(self, status: int) -> None:
        """In a role: end the process."""
        raise NotImplementedError

    def failed(self, error: BaseException) -> None:
        """A callback raised."""


_host: Host | None = None


def _on_error(kind: Any, error: BaseException | None, traceback: Any) -> None:
    if _host is not None and error is not None:
        _host.failed(error.with_traceback(traceback))


def _current() -> Host:
    assert _host is not None
    return _host


@ffi.def_extern(error=-1, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_fork() -> int:
    try:
        return _current().fork()
    except OSError as error:  # not a failure of the host: the core may try again later
        ffi.errno = error.errno
        return -1


@ffi.def_extern(error=70, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_run_helper(helper: int, generation: int) -> int:
    return _current().run_helper(helper, generation)


@ffi.def_extern(error=70, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_run_child(child: int, generation: int) -> int:
    return _current().run_child(child, generation)


@ffi.def_extern(onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_on_event(event: Any) -> None:
    _current().on_event(as_dict(event, "shm_event_t"))


@ffi.def_extern(error=1, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_on_signal() -> int:
    return _current().on_signal()


@ffi.def_extern(error=0, onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_is_done(child: int) -> int:
    return int(_current().is_done(child))


@ffi.def_extern(onerror=_on_error)  # type: ignore[untyped-decorator,unused-ignore]
def shmpy_exit(status: int) -> None:
    _current().exit(status)


EVENT_NAMES = {
    int(getattr(lib, "SHM_EVENT_" + name)): name.lower()
    for name in (
        "HELPER_STARTED",
        "HELPER_READY",
        "HELPER_FAILED",
        "HELPER_DIED",
        "CHILD_STARTED",
        "CHILD_ENDED",
        "READY",
        "DRAINING",
        "HELPER_HUNG",
        "CHILD_PROTOCOL",
        "OVER",
        "CHILD_CLEARED",
        "HELPER_DELAYED",
        "CHILD_DELAYED",
        "CHILD_JOINED",
        "CHILD_LEFT",
        "CHILD_REFUSED",
        "HELPER_RETIRED",
        "SCALED",
        "IDLE",
        "SCALE_REFUSED",
        "PAUSED",
        "RESUMED",
        "HELPER_UNLOADED",
    )
}
REASON_HUNG = int(lib.SHM_REASON_HUNG)
REASON_PROTOCOL = int(lib.SHM_REASON_PROTOCOL)
REASON_ENDING = int(lib.SHM_REASON_ENDING)
REASON_BROADCAST = int(lib.SHM_REASON_BROADCAST)
RESTARTS = {
    "never": int(lib.SHM_RESTART_NEVER),
    "on-failure": int(lib.SHM_RESTART_ON_FAILURE),
}


POOL_NAME_BYTES: int = ffi.sizeof(ffi.new("shm_helper_stats_t *").pool_name)
UNTIL_TOLD = int(lib.SHM_UNTIL_TOLD)
UNTIL_FIRST_LEFT = int(lib.SHM_UNTIL_FIRST_LEFT)
MAX_QUOTAS = int(lib.SHM_MAX_QUOTAS)
MAX_WEIGHT = int(lib.SHM_MAX_WEIGHT)
MAX_RATE = int(lib.SHM_MAX_RATE)


def run(
    host: Host,
    *,
    helper_pool: list[int],
    min_credit: list[int],
    helper_absent: Sequence[bool],
    pool_names: Sequence[str],
    **settings: int,
) -> int:
    """shm_run: become the parent, or (``caller_is_child=1``) fork one. Returns the status."""
    global _host
    config = ffi.new("shm_config_t *")
    for name, value in settings.items():
        try:
            setattr(config, name, value)
        except OverflowError:
            fail(EBAD_CONFIG, f"{name}={value}")
    for index, pool in enumerate(helper_pool):
        config.helper_pool[index] = pool
    for index, credit in enumerate(min_credit):
        config.min_credit[index] = credit
    for index, absent in enumerate(helper_absent):
        config.helper_absent[index] = absent
    for index, pool_name in enumerate(pool_names):
        config.pool_name[index] = pool_name.encode()[: POOL_NAME_BYTES - 1]
    table = ffi.new("shm_host_t *")
    table.fork = lib.shmpy_fork
    table.run_helper = lib.shmpy_run_helper
    table.run_child = lib.shmpy_run_child
    table.on_event = lib.shmpy_on_event
    table.on_signal = lib.shmpy_on_signal
    table.is_done = lib.shmpy_is_done
    table.exit = lib.shmpy_exit
    _host = host
    keep_for_the_broker = (config, table)
    kept.append(keep_for_the_broker)
    try:
        return int(lib.shm_run(config, table))
    finally:
        if not settings.get("caller_is_child"):
            _host = None
            kept.remove(keep_for_the_broker)


class NoAnswer(errors.LaunchError):
    """Somebody listens there and says nothing."""


class NoPlace(errors.LaunchError):
    """All places are taken, or as many wait for one as can."""


def dump_arenas(wanted: bool) -> None:
    """shm_dump_arenas: whether core dumps hold the arenas that are mapped from here on."""
    lib.shm_dump_arenas(int(wanted))


def allow_spinning(allowed: bool) -> None:
    """shm_allow_spinning: whether lone callers may watch for answers instead of sleeping."""
    lib.shm_allow_spinning(int(allowed))


def new_descriptor() -> Any:
    """Room for a descriptor, at index 0; -1 until there is one."""
    return ffi.new("int *", -1)


def join(connection_fd: int, program: str, wait_ns: int, manifest: Any) -> None:
    """shm_join: become a child of the broker behind that socket, and be given its manifest."""
    while True:  # Python's signal handlers run between
        status = int(lib.shm_join(connection_fd, program.encode(), wait_ns, 1, manifest))
        if status != EINTR:
            break
    if status == ETIMEOUT:
        raise NoAnswer(
            "the broker was not joined: it does not answer (is it still loading, or stopped?)"
        )
    if status < 0:
        error = error_of(status, "the broker was not joined", error_detail())
        raise NoPlace(str(error)) if status == ENO_CHILD_SLOT else error


def disown() -> None:
    """shm_disown: in a forked process, let go of the place that was the forking one's."""
    check(int(lib.shm_disown()), "what was inherited could not be let go")


def ask(connection_fd: int, pool: int = 0) -> tuple[int, int]:
    """shm_ask: how many helpers the pool is to have, and the manifest's descriptor."""
    before, manifest = ffi.new("int *"), ffi.new("int *")
    status = int(lib.shm_ask(connection_fd, pool, before, manifest))
    if status < 0:
        raise error_of(status, "the broker did not answer", error_detail())
    return int(before[0]), int(manifest[0])


def ask_scale(connection_fd: int, pool: int, helpers: int) -> int:
    """shm_ask_scale: how many helpers the pool was to have before."""
    before = ffi.new("int *")
    status = int(lib.shm_ask_scale(connection_fd, pool, helpers, before))
    if status < 0:
        raise error_of(status, "the broker was not scaled", error_detail())
    return int(before[0])


def ask_pause(connection_fd: int, pool: int, is_paused: bool) -> None:
    """shm_ask_pause: have the pool's helpers get nothing, or go on."""
    status = int(lib.shm_ask_pause(connection_fd, pool, is_paused))
    if status < 0:
        raise error_of(status, "the pool was not paused or resumed", error_detail())


def ask_retire(connection_fd: int) -> None:
    """shm_ask_retire: have the broker end when nobody is joined."""
    status = int(lib.shm_ask_retire(connection_fd))
    if status < 0:
        raise error_of(status, "the broker was not told to end", error_detail())


def set_quotas(rows: Sequence[Mapping[str, Any]]) -> None:
    """shm_set_quotas: the whole table anew, of members of shm_quota_t."""
    table = ffi.new("shm_quota_t[]", max(1, len(rows)))
    for index, row in enumerate(rows):
        for name, value in row.items():
            setattr(table[index], name, value.encode() if isinstance(value, str) else value)
    check(lib.shm_set_quotas(table, len(rows)), "the quotas were not taken")


def parked_limit(child: int) -> int:
    """Bytes of that child's results that a helper keeps; 0: as of anybody."""
    stats = ffi.new("shm_child_stats_t *")
    return int(stats.parked_limit) if lib.shm_get_child_stats(child, stats) == 0 else 0


def maps_old_arena(child: int) -> bool:
    """Whether that slot has changed hands, and this helper maps the memory of who was there."""
    stats = ffi.new("shm_child_stats_t *")
    known = lib.shm_get_child_stats(child, stats) == 0
    return known and int(stats.arenas) != int(lib.shm_arena_version(child))


def arena_shift() -> int:
    """What an address here lacks to be the broker's; 0 but in a process that joined elsewhere."""
    return int(lib.shm_arena_shift())


def leave() -> int:
    """shm_leave: a status."""
    status = int(lib.shm_leave())
    forget_host()
    return status


def forget_host() -> None:
    """No callback will come any more."""
    global _host
    _host = None


def stop_signal() -> int:
    """After ESIGNALLED: which signal."""
    return int(lib.shm_stop_signal())
