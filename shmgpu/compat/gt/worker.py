"""``python -m shmgpu.compat.gt.worker -p 12345``: one more helper, for as long as this runs.

Owns the flags. The helper is a process of the broker's, which this process stands for. Never
computes anything itself.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from shmgpu.attach import endpoint, hosts
from shmgpu.compat.gt import workers
from shmgpu.errors import ShmError


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m shmgpu.compat.gt.worker",
        description="Have the server at that port make one more helper, and give it back at the "
        "end: Ctrl-C, or SIGTERM.",
    )
    add = made.add_argument
    add("-p", "--port", type=int, default=12345, help="the server's (12345)")
    add("--host", default="localhost", help="this machine; any other is refused")
    add("--gpu", metavar="N", help="accepted; which GPUs helpers use, the server's --gpu says")
    add("--worker-id", default=f"worker-{os.getpid()}", metavar="NAME", help="what this is called")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C."""
    options = parser().parse_args(arguments)
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        hosts.refuse_others(options.host, options.port)
        path = endpoint.path_of_port(options.port)
        count = workers.join(path, options.worker_id)
        print(f"{options.worker_id}: the server has {count} now; end it with Ctrl-C", flush=True)
        signal.sigwait(ends)
        workers.leave(path)
    except ShmError as error:
        print(f"shmgpu: {error}", file=sys.stderr)
        return 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
