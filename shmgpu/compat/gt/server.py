"""``python -m shmgpu.compat.gt.server -p 12345``: a broker in the place of GT's dispatcher.

Owns the flags. The broker is that of ``shmgpu up``, for programs that only use tensors. Never
listens at the port: its number only names the broker.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Any

from shmgpu.attach import endpoint, hosts
from shmgpu.broker import daemon
from shmgpu.compat.gt import workers
from shmgpu.errors import ShmError


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m shmgpu.compat.gt.server",
        description="Start a broker whose helpers compute tensors, for programs that call "
        "connect('localhost:PORT'). Ctrl-C ends it in order.",
    )
    add = made.add_argument
    add("-p", "--port", type=int, default=12345, help="names the server (12345); no port is opened")
    add("-H", "--host", default="localhost", help="this machine; any other is refused")
    add("--workers", type=int, default=1, metavar="N", help="helpers that it starts with (1)")
    add(
        "--no-workers",
        action="store_true",
        help="have as many helpers as worker processes are started; one at least",
    )
    add("--gpu", metavar="0,1", help="GPUs that helpers use in turn; all of them unless given")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C."""
    options = parser().parse_args(arguments)
    try:
        hosts.refuse_others(options.host, options.port)
        path = endpoint.path_of_port(options.port)
        own = 0 if options.no_workers else options.workers
        settings: dict[str, Any] = {}
        if options.gpu:
            settings["devices"] = [f"cuda:{one.strip()}" for one in options.gpu.split(",")]

        def ready() -> None:
            workers.begin(path, own)
            print(f"serving at localhost:{options.port} ({path}): end it with Ctrl-C", flush=True)

        try:
            daemon.up(
                [],
                path=path,
                helpers=options.workers if own else 1,
                max_helpers=max(workers.MOST, own),
                on_ready=ready,
                **settings,
            )
        finally:
            workers.end(path)
    except ShmError as error:
        print(f"shmgpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0
    except SystemExit as ended:  # it was asked to, and has drained
        return 0 if ended.code == 128 + signal.SIGTERM else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
