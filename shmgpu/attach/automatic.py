"""Brokers that start by themselves: which one a program shares, and whether it is still current.

Each listens beside the socket of ``shmgpu up``, under a name of its own: a digest of what its
programs have in common (:mod:`shmgpu.attach.identity`). When a file that a broker loaded changes,
the broker is told to end with its last program, and the next one takes over its name. Owns these
names, that decision, and the removal of what ended brokers left. Never ends a broker in use.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import pathlib
import re
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from shmgpu import core, function_table
from shmgpu.attach import carry, endpoint, identity, manifest, sources, spawn
from shmgpu.common import config
from shmgpu.common import devices as device
from shmgpu.common.logs import logger
from shmgpu.common.module_names import MAIN, is_interactive
from shmgpu.errors import LaunchError, SessionError, ShmError

DIGITS = 10  # of the key, in a socket's name; the manifest has all of it
KEPT_LOGS = 16  # of brokers that have ended
KEPT_BROKERS = 3  # that outlive their programs, each with its helpers' memory
# The most helpers that gpu_workers() and shmgpu scale may ask for, unless it starts with more.
MAX_HELPERS = 16
MOST_SLOTS = 64  # of a broker whose slots were not set
DRIVER = "/dev/nvidiactl"  # there where a GPU can be used; asking torch would take a second
_APART = secrets.token_hex(16)  # of a process, and those that it forks
LEFT = (".log", ".sources", ".lock", ".starting")


class SharedBroker:
    """The broker that this program shares with those that are like it.

    Attributes:
        socket_path: of its broker.
        key: the digest.
        owner: the process that it is for, whose text is typed as it runs; "" where it is for all.
        reason: the file for which the one that runs will not do; "" where it does.
    """

    def __init__(self, base: pathlib.Path, settings: Mapping[str, Any]) -> None:
        wanted = {name: value for name, value in settings.items() if value is not None}
        if wanted.get("session") is None:
            wanted["session"] = carry.session_here()
        self.settings = wanted
        carry.name_apart()  # as the program did that started the one which this one may join
        session = wanted["session"]
        shaping = {name: value for name, value in wanted.items() if name != "session"}
        self._helpers = _counts(wanted.get("helpers"))
        if isinstance(self._helpers, Mapping):  # pools are what it is, their sizes are not
            shaping["pools"] = sorted(self._helpers)
        self.base = base
        self.reason = ""
        self._devices = _named_devices(shaping.pop("devices", None))
        self.owner = ""
        if is_interactive() and (session is not None or function_table.of_users()):
            # More is defined later, so no two of these are alike for long: it has its own.
            self.owner = str(os.getpid())
            shaping["owner"] = _APART
        self.key = self._general = identity.of_program(session, shaping)
        if self._devices:
            self.key = identity.of_program(session, {**shaping, "devices": self._devices})
        self._particular = self.key
        self.socket_path = self._place_of(self.key)
        endpoint.check_length(self.socket_path)

    def _place_of(self, key: str) -> pathlib.Path:
        return endpoint.beside(self.base, "." + key[:DIGITS])

    def fits(self, known: manifest.Manifest) -> bool:
        """Whether a broker is the one, and every file of it is what it was."""
        self.reason = ""
        if known.key == self.key:
            self.reason = sources.changed(
                endpoint.beside(self.socket_path, ".sources"), known.instance
            )
        return known.key == self.key and not self.reason

    def runs(self) -> bool:
        """Whether one that fits listens; one that has the devices anyway will do."""
        for key in dict.fromkeys((self._general, self._particular)):
            self.key, self.socket_path = key, self._place_of(key)
            known = ask(self.socket_path)
            has_all = known is not None and {*self._devices} <= {*known.devices.split(",")}
            if known is not None and (has_all or key == self._particular) and self.fits(known):
                return True
        return False

    def start(self, timeout: float | None) -> None:
        """Start it, in place of one that does not fit; the caller holds the lock.

        Raises:
            SessionError, LaunchError, ConfigError: as the broker did.
        """
        self._retire()
        _sweep(self.base)
        _end_idle(self.base)
        settings = dict(self.settings)
        settings.setdefault("max_helpers", _most_of(self._helpers))
        settings["slots"] = slots_of(settings)
        try:
            spawn.start(
                None, self.socket_path, timeout=timeout, key=self.key, owner=self.owner, **settings
            )
        except SessionError as error:
            others = running(self.base) if "out of memory" in str(error).lower() else []
            if not others:
                raise
            raise SessionError(
                f"{error}; you have other brokers running, whose helpers also take memory: "
                f"{', '.join(map(described, others))}: end their programs, or end them all with "
                "shmgpu down --all",
                error.helper,
                error.traceback_text,
            ) from None

    def grow(self, pools: Mapping[str, int]) -> None:
        """Have the broker that was joined make the helpers that it lacks."""
        wanted = self._helpers
        if wanted is None:
            return
        if not isinstance(wanted, Mapping):
            wanted = {name: wanted for name, pool in pools.items() if pool == 0}
        try:
            for name, count in wanted.items():
                if _asked(self.socket_path, pools[name]) < count:
                    _asked(self.socket_path, pools[name], count)
        except ShmError as error:
            logger.warning("the broker makes no more helpers: %s", error)

    def _retire(self) -> None:
        if not _retire(self.socket_path):
            return
        if self.reason:
            logger.info(
                "%s has changed since the broker loaded it: another one is started, and that one "
                "ends with its last program",
                self.reason,
            )
        endpoint.remove(self.socket_path)


def slots_of(settings: Mapping[str, Any]) -> Any:
    """How many slots a broker has that is started with these: as was said, or as many as fit."""
    said = settings.get("slots")
    if said is None:
        said = config.resolve("max_children")
    return slots_that_fit(settings.get("arena")) if said is None else said


def slots_that_fit(arena: Any = None) -> int:
    """How many programs' arenas half of what this machine has to give can hold; one at least.

    Raises:
        LaunchError: there is no memory for one.
    """
    each = config.resolve("arena", arena)
    count = bisect.bisect_left(
        range(MOST_SLOTS), True, key=lambda fewer: not _has_memory_for(2 * (fewer + 1) * each)
    )
    if count == 0:
        try:
            core.check_memory(each)
        except LaunchError as error:
            raise LaunchError(
                f"there is no memory for the arena of one program: {error}: set SHMGPU_ARENA to "
                "less, such as 16MiB, or end what else has memory"
            ) from None
    return max(1, count)


def _has_memory_for(size_bytes: int) -> bool:
    try:
        core.check_memory(size_bytes)
    except LaunchError:
        return False
    return True


def _retire(socket_path: pathlib.Path) -> bool:
    """Have a broker end with its last program; whether one listened there."""
    connection = endpoint.connect(socket_path)
    if connection is None:
        return False
    with connection, contextlib.suppress(ShmError):  # it is ending
        core.ask_retire(connection.fileno())
    return True


def _end_idle(base: pathlib.Path) -> None:
    """Have the oldest brokers end with their programs, and those without any at once.

    Each that waits for a next program has its helpers' memory, of a device, too. Those that were
    asked to stay until they are told to end do.
    """
    found = []
    for socket_path in _named(base, ""):
        with contextlib.suppress(OSError, ShmError):
            known = ask(socket_path)
            if known is not None and known.idle_timeout:
                found.append((socket_path.stat().st_mtime_ns, socket_path))
    for _, socket_path in sorted(found)[: max(0, len(found) + 1 - KEPT_BROKERS)]:
        with contextlib.suppress(ShmError):
            _retire(socket_path)


def described(socket_path: pathlib.Path) -> str:
    """A broker's socket, and the program that started it."""
    known = ask(socket_path)
    return f"{socket_path} ({(known is not None and known.program) or 'it does not answer'})"


def ask(socket_path: pathlib.Path) -> manifest.Manifest | None:
    """What the broker there tells of itself; None where none answers."""
    connection = endpoint.connect(socket_path)
    if connection is None:
        return None
    try:
        with connection:
            _, descriptor = core.ask(connection.fileno())
    except ShmError:
        return None
    try:
        return manifest.Manifest.read(descriptor)
    except ShmError:
        return None
    finally:
        os.close(descriptor)


def _named_devices(devices: Any) -> list[str]:
    """The devices that a program names; none where they are what it would be given anyway."""
    if devices is None:
        return []
    if isinstance(devices, Mapping):
        return sorted(f"{pool}: {_named_devices(one)}" for pool, one in devices.items())
    many = [devices] if isinstance(devices, str) or not hasattr(devices, "__iter__") else devices
    names = sorted({device.name_of(one) for one in many})
    return [] if names == ["cpu"] and not os.path.exists(DRIVER) else names


def _asked(socket_path: pathlib.Path, pool: int, helpers: int = 0) -> int:
    """How many helpers the pool was to have; give it so many, where a number is given."""
    connection = endpoint.connect(socket_path)
    if connection is None:
        return helpers
    with connection:
        if helpers:
            return core.ask_scale(connection.fileno(), pool, helpers)
        before, descriptor = core.ask(connection.fileno(), pool)
        os.close(descriptor)
        return before


def advice(known: manifest.Manifest, target: function_table.DeclaredFunction) -> str:
    """What to do for a function that this broker does not have."""
    if known.key:
        return (
            "it was decorated after this program had joined; call shmgpu.disconnect() and "
            "shmgpu.ensure(), which starts one that has it"
        )
    module = getattr(target.body, "__module__", "MODULE")
    if module in MAIN:
        module = os.path.basename(getattr(sys.modules.get("__main__"), "__file__", None) or "FILE")
    return (
        "a broker of shmgpu up serves the modules that it was started with, as they were then: "
        f"restart it with this one, too (shmgpu down, then shmgpu up ... {module}), or have a "
        "broker of this program's own: call shmgpu.init() before anything else, or set "
        "SHMGPU_SOCKET to a path where none listens, and the first call starts one there"
    )


def larger_arena(socket_path: pathlib.Path, known: manifest.Manifest) -> str:
    """How a program that has joined that broker comes by a larger arena, of ``{size}``."""
    if known.key:
        return (
            'run it with SHMGPU_ARENA={size} in its environment, or call ensure(arena="{size}") '
            "before anything else"
        )
    if str(socket_path).startswith("@"):
        return 'launch(..., arena="{size}") or init(arena="{size}"), whichever started the broker'
    return "end the broker (shmgpu down), and start it with shmgpu up --arena {size}"


def running(base: pathlib.Path) -> list[pathlib.Path]:
    """The sockets of those that run beside that path."""
    return [socket_path for socket_path in _named(base, "") if _answers(socket_path)]


def _answers(socket_path: pathlib.Path) -> bool:
    try:
        connection = endpoint.connect(socket_path)
    except ShmError:
        return False
    if connection is not None:
        connection.close()
    return connection is not None


def _named(base: pathlib.Path, suffix: str) -> list[pathlib.Path]:
    pattern = re.compile(re.escape(base.name) + rf"\.[0-9a-f]{{{DIGITS}}}" + re.escape(suffix))
    try:
        names = sorted(name for name in os.listdir(base.parent) if pattern.fullmatch(name))
    except OSError:
        return []
    return [base.with_name(name) for name in names]


def _counts(helpers: Any) -> int | dict[str, int] | None:
    """How many helpers a program asks for, of each pool where it names some; None: it does not."""
    if isinstance(helpers, Mapping):
        return {
            str(name): config.read("helpers", count, f"helpers[{name!r}]")
            for name, count in helpers.items()
        }
    if helpers is None and not os.environ.get(config.SETTINGS["helpers"].variable):
        return None
    return int(config.resolve("helpers", helpers))


def _most_of(helpers: int | dict[str, int] | None) -> int | dict[str, int]:
    if isinstance(helpers, dict):
        most = max(1, min(MAX_HELPERS, core.MAX_HELPERS // max(1, len(helpers))))
        return {name: max(most, count) for name, count in helpers.items()}
    return max(MAX_HELPERS, helpers or 0)


def _sweep(base: pathlib.Path) -> None:
    """Remove what brokers left that have ended, or were killed, but for the newest logs."""
    with contextlib.suppress(OSError):
        logs = sorted(_named(base, ".log"), key=lambda path: path.stat().st_mtime_ns)
        for log in logs[:-KEPT_LOGS]:
            with contextlib.suppress(ShmError):  # one is being started there, or does not answer
                endpoint.clear(log.with_name(log.name.removesuffix(".log")), LEFT)
