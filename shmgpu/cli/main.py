"""The command line: ``shmgpu demo``, ``doctor``, ``up``, ``list``, ``serve``, ``top`` and more.

Owns which commands there are, and exit statuses. A misuse, or a failure that shmgpu knows, ends in
one sentence on standard error, and in status 2 for bad arguments, else 1. Never prints a traceback
for either.
"""

from __future__ import annotations

import argparse
import errno
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Sequence

from shmgpu.cli import brokers, completion, demo, doctor, serve, top, trace
from shmgpu.errors import ShmError

INTERRUPTED = 130  # as a shell counts what SIGINT ended, and what SIGPIPE did
NOBODY_READS = 141
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
COMMANDS = (  # as --help lists them
    demo.add,
    doctor.add,
    brokers.add_up,
    serve.add,
    brokers.add_scale,
    brokers.add_pause,
    brokers.add_list,
    brokers.add_down,
    top.add,
    trace.add,
    completion.add,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command: its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        status = run(options)
        sys.stdout.flush()
        return status
    except ShmError as error:
        print(f"shmgpu: {_as_flags(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read has had enough
        _write_no_more()
        return NOBODY_READS
    except OSError as error:
        if error.filename is not None or error.errno not in CANNOT_WRITE:
            raise
        _write_no_more()
        print(f"shmgpu: the output could not be written: {error.strerror}", file=sys.stderr)
        return 1


def _write_no_more() -> None:
    """What is left is for nobody: the interpreter must not try to flush it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_flags(sentence: str) -> str:
    """What Python calls ``path=``, a shell does ``--path``."""
    return re.sub(
        r"(?<!\w)path=(['\"]?)", lambda found: "--path" + " " * bool(found[1]) + found[1], sentence
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shmgpu",
        description="Many CPU processes share a few deep-learning sessions, without copies.",
    )
    parser.add_argument(
        "--version", action="version", version=f"shmgpu {importlib.metadata.version('shmgpu')}"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    parser.set_defaults(parser=parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
