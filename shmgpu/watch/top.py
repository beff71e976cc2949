"""The command ``shmgpu top``: which broker, shown how, and with what exit status.

Owns the choice of the broker and what goes to standard output. The screen is in
:mod:`shmgpu.watch.screen`, which alone needs textual; the page in :mod:`shmgpu.watch.web`. Never
writes to a broker.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass

from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError, LaunchError, NotRunning
from shmgpu.watch import monitor, tables


@dataclass(frozen=True)
class TopOptions:
    """What was asked for.

    Attributes:
        pid: the broker's; None: the only one.
        once: print one sample and end.
        json: print it as one JSON object.
        interval: seconds between samples, and over which rates are taken.
        serve: the address at which a page and metrics are served; None: a terminal shows it.
    """

    pid: int | None = None
    once: bool = False
    json: bool = False
    interval: float = 1.0
    serve: str | None = None


def run(options: TopOptions) -> int:
    """Run the command: its exit status.

    Raises:
        NotRunning: there is no broker, or not that one.
        ConfigError: there are several, and none was named; options that do not go together, or no
            terminal.
        LaunchError: textual is not installed.
    """
    if options.json and not options.once:
        raise ConfigError("--json prints one sample: add --once")
    if options.once and options.serve is not None:
        raise ConfigError("--once prints one sample, and --web and --serve answer: use one of them")
    if options.serve is not None:
        from shmgpu.watch import web

        web.run(choose(options.pid), options.pid, options.interval, options.serve)
        return 0
    if options.once:
        print_once(choose(options.pid), options)
        return 0
    try:
        from shmgpu.watch import screen
    except ImportError as error:
        raise LaunchError(
            f"the screen needs textual ({error}): {with_extra('top')}, or add --once"
        ) from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("the screen needs a terminal: add --once to print one sample instead")
    screen.run(choose(options.pid), options.pid, options.interval)
    return 0


def choose(pid: int | None) -> monitor.RunningBroker:
    """The broker of that process, or the only one.

    Raises:
        NotRunning: there is none.
        ConfigError: there are several.
    """
    found = monitor.find()
    if pid is not None:
        for one in found:
            if one.pid == pid:
                return one
        others = ", ".join(str(one.pid) for one in found)
        advice = f"brokers run in {others}" if found else "you have no broker running"
        raise NotRunning(f"process {pid} is not a broker's parent: {advice}")
    if not found:
        raise NotRunning(
            "you have no broker running: start one with shmgpu.launch() or shmgpu.init()"
        )
    if len(found) > 1:
        raise ConfigError(
            f"{len(found)} brokers are running: name one, as in shmgpu top {found[0].pid}\n"
            + listing(found)
        )
    return found[0]


def listing(found: list[monitor.RunningBroker]) -> str:
    """Brokers as a table."""
    now_ns = time.monotonic_ns()
    lines = [["pid", "up", "children", "helpers", "command"]]
    for one in found:
        up = tables.clock((now_ns - one.started_ns) / 1e9)
        lines.append([str(one.pid), up, str(one.children), str(one.helpers), one.command])
    return tables.align(lines, left=(4,))


def print_once(found: monitor.RunningBroker, options: TopOptions) -> None:
    """Print what one interval brought."""
    with monitor.Monitor(found.pid, found.descriptor) as watch:
        watch.sample()
        time.sleep(options.interval)
        sample = watch.sample()
    print(json.dumps(sample) if options.json else tables.plain(sample))
