"""``shmgpu up``, ``scale``, ``pause``, ``resume``, ``list``, ``down``: brokers that programs join.

Owns their flags and what they print. Never speaks to a broker itself: the wings do.
"""

from __future__ import annotations

import argparse
import grp
import os
import signal
import sys

from shmgpu.attach import control, endpoint, spawn
from shmgpu.broker import daemon
from shmgpu.cli.arguments import Commands, add_settings, pools, seconds
from shmgpu.common import config, logs, module_loader
from shmgpu.common.settings import taken
from shmgpu.errors import ConfigError, NotRunning, ShmError

# Of `up`, as its help shows them.
DEFAULTS = {
    "helpers": "1",
    "max_helpers": "as many as --helpers",
    "max_children": "64",
    "session": "load in a MODULE",
}
NO_GROUP = (1 << 32) - 1  # gid_t's "leave it as it is"


def add_up(commands: Commands) -> None:
    """The arguments of ``up``."""
    standing = commands.add_parser(
        "up",
        help="run a broker that programs join",
        description="Run a broker with the decorated functions of some modules, for programs that "
        "are started later and call shmgpu.connect(). A function named load in the first module "
        "that has one makes the sessions. SIGTERM and Ctrl-C end it in order, SIGHUP makes it read "
        "the quotas again. Defaults come from the SHMGPU_ variables.",
    )
    add = standing.add_argument
    add("modules", nargs="+", metavar="MODULE", help="a module's name, or a file ending in .py")
    add_settings(standing, "up", DEFAULTS)
    add("--path", metavar="PATH", help="path of the socket (default: in your runtime directory)")
    add("--group", metavar="NAME", help="a group whose members may join, too")
    add(
        "--trust-group",
        action="store_true",
        help="let its members call functions with pickle=True, and so run code as you; and "
        "broadcast",
    )
    add("--quotas", metavar="FILE", help="a TOML file that limits what users and programs may use")
    add(
        "--idle-timeout",
        type=seconds,
        default=0.0,
        metavar="S",
        help="seconds without a joined program after which the broker ends (never)",
    )
    add(
        "--detach",
        action="store_true",
        help="return when the broker is ready, and leave it running",
    )
    standing.set_defaults(run=_up)


def add_scale(commands: Commands) -> None:
    """The arguments of ``scale``."""
    changed = commands.add_parser(
        "scale",
        help="change the number of a running broker's helpers",
        description="Change the number of helpers in a pool of your running broker to N. Missing "
        "helpers are started; helpers no longer needed finish what they hold, and end.",
    )
    add = changed.add_argument
    add(
        "helpers",
        type=pools,
        metavar="N",
        help="how many; POOL=N,POOL=N if there are several pools",
    )
    add("--path", metavar="PATH", help="path of the broker's socket")
    changed.set_defaults(run=_scale)


def add_pause(commands: Commands) -> None:
    """The arguments of ``pause`` and ``resume``."""
    for name, is_paused, what, more in (
        (
            *("pause", True, "let a running broker's helpers start no more calls"),
            "finish the calls that they have begun and start no more, until shmgpu resume. Calls "
            "wait meanwhile, as long as their timeouts allow.",
        ),
        ("resume", False, "let paused helpers go on", "go on after shmgpu pause."),
    ):
        one = commands.add_parser(
            name, help=what, description=f"Have the helpers of your running broker {more}"
        )
        one.add_argument("pools", nargs="*", metavar="POOL", help="of these pools (all)")
        one.add_argument("--path", metavar="PATH", help="path of the broker's socket")
        one.set_defaults(run=_pause, is_paused=is_paused)


def add_list(commands: Commands) -> None:
    """The arguments of ``list``."""
    listed = commands.add_parser(
        "list",
        help="list running brokers, with their logs",
        description="List your running brokers: the one of shmgpu up, and those that programs have "
        "started, each with its socket, and the log with what it and its helpers print.",
    )
    listed.add_argument("--path", metavar="PATH", help="list only the broker with this socket")
    listed.set_defaults(run=_list)


def add_down(commands: Commands) -> None:
    """The arguments of ``down``."""
    ended = commands.add_parser(
        "down",
        help="end a running broker in order",
        description="End your running broker, after its helpers have finished what they hold.",
    )
    add = ended.add_argument
    add("--path", metavar="PATH", help="path of the broker's socket")
    add(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds to wait for its end (60)",
    )
    add("--all", action="store_true", help="end all brokers that programs have started, too")
    ended.set_defaults(run=_down)


def _up(options: argparse.Namespace) -> int:
    settings = {
        "slots": config.resolve("max_children", options.max_children) or 64,
        "idle_timeout": options.idle_timeout,
        "group": _group(options.group),
        "trust_group": options.trust_group,
        "quotas_file": options.quotas and os.path.abspath(options.quotas),
        **taken("ensure", vars(options)),
    }
    if options.detach:
        path = endpoint.path_of(options.path)
        try:
            spawn.start(options.modules, path, **settings)
        except KeyboardInterrupt:
            print("shmgpu: interrupted: the broker was told to end", file=sys.stderr)
            raise
        print(f"a broker serves at {path}; its log is {endpoint.beside(path, '.log')}")
        return 0

    def ready() -> None:
        path = endpoint.path_of(options.path)
        print(f"a broker serves at {path}: end it with Ctrl-C, or with shmgpu down", flush=True)

    logs.write_by_line()
    try:
        daemon.up(options.modules, path=options.path, on_ready=ready, **settings)
    except module_loader.NotLoaded as error:
        print(f"shmgpu: {error}\n\n{error.traceback_text}", end="", file=sys.stderr)
        return 1
    except SystemExit as ended:  # it was asked to, and has drained
        return 0 if ended.code == 128 + signal.SIGTERM else 1
    return 0


def _group(name: str | None) -> int | None:
    if name is None:
        return None
    try:
        number = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigError(f"--group {name}: there is no such group here") from None
    if number >= NO_GROUP:
        raise ConfigError(f"--group {name}: no group has a number from {NO_GROUP} on")
    if number == 0:
        raise ConfigError("--group root admits nobody who could not join anyway: omit it")
    return number


def _scale(options: argparse.Namespace) -> int:
    for scaled in control.scale(options.helpers, path=options.path):
        print(scaled)
    return 0


def _pause(options: argparse.Namespace) -> int:
    state = "paused: its calls wait" if options.is_paused else "goes on"
    for name in control.pause(options.pools, is_paused=options.is_paused, path=options.path):
        print(f"pool {name}: {state}")
    return 0


OTHERS = " (those of launch() and init() end with their programs; shmgpu top shows them)"


def _list(options: argparse.Namespace) -> int:
    found = control.listed(options.path)
    print("\n".join(map(str, found)) or f"you have no broker running{OTHERS}")
    return 0


def _down(options: argparse.Namespace) -> int:
    many = control.all_running(options.path) if options.all else []
    if options.all and not many:
        print(f"there is no broker to end{OTHERS}")
        return 0
    status = 0
    for path in many or [options.path]:
        try:
            pid = control.down(path=path, timeout=options.timeout)
        except ShmError as error:  # the others are ended, too
            if len(many) < 2:
                raise
            if not isinstance(error, NotRunning):  # it has just ended
                print(f"shmgpu: {error}", file=sys.stderr)
                status = 1
        else:
            print(f"the broker, process {pid}, has ended")
    return status
