"""``shmgpu top``: the state of a running broker, live, in a terminal or a browser.

Owns its flags. Never writes to the broker that it shows.
"""

from __future__ import annotations

import argparse

from shmgpu.attach import control
from shmgpu.cli.arguments import Commands, seconds, whole
from shmgpu.watch import top

ANY_PORT = "127.0.0.1:0"


def add(commands: Commands) -> None:
    """Its arguments."""
    live = commands.add_parser(
        "top",
        help="watch a running broker",
        description="Show your running broker live: helpers, functions, children, queues, rates, "
        "latencies, arenas, restarts. Needs the extra top, except with --once. With --web or "
        "--serve it is a page, and metrics for Prometheus.",
    )
    add = live.add_argument
    which = live.add_mutually_exclusive_group()
    which.add_argument(
        "pid",
        type=whole(1, 1 << 30),
        nargs="?",
        metavar="PID",
        help="process number of the broker's parent",
    )
    which.add_argument("--path", metavar="PATH", help="path of the broker's socket")
    add("--once", action="store_true", help="print one sample and end")
    add("--json", action="store_true", help="with --once: as one JSON object")
    add("--interval", type=seconds, default=1.0, metavar="S", help="seconds between samples (1)")
    add(
        "--web",
        action="store_true",
        help="show it as a page for a browser, at an address of this machine that is printed",
    )
    add(
        "--serve",
        metavar="ADDRESS",
        help="serve that page, and metrics for Prometheus, at HOST:PORT or PORT",
    )
    live.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    pid = options.pid if options.path is None else control.process_at(options.path)
    return top.run(
        top.TopOptions(
            pid=pid,
            once=options.once,
            json=options.json,
            interval=options.interval,
            serve=ANY_PORT if options.web and options.serve is None else options.serve,
        )
    )
