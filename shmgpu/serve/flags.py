"""The flags of ``shmgpu serve``: one table, which is the configuration file's keys too.

Owns what can be asked of a server; it needs nothing that only a server needs, so that the command
line can always say what there is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shmgpu import config
from shmgpu.errors import LaunchError


def _whole(least: int) -> Callable[[Any], int]:
    def number(text: Any) -> int:
        value = int(text)
        if value < least:
            raise ValueError
        return value

    return number


def _seconds(text: Any) -> float:
    return config.parse_seconds(float(text), "seconds")


def _size(text: Any) -> int:
    return config.parse_bytes(text, "size")


def _pools(text: Any) -> int | dict[str, int]:
    """``2``, or ``fast=2,large=1``."""
    text = str(text)
    if "=" not in text:
        return int(text)
    return {
        name: int(count) for name, _, count in (part.partition("=") for part in text.split(","))
    }


@dataclass(frozen=True)
class Flag:
    """One row: ``--name`` on the command line, ``name`` in the configuration file.

    One without a metavar is a switch, off unless it is given.
    """

    name: str
    parse: Callable[[Any], Any]
    default: Any
    metavar: str
    help: str


FLAGS = (
    Flag("host", str, "127.0.0.1", "ADDRESS", "where to listen; 0.0.0.0 is every network"),
    Flag("port", _whole(0), 8000, "N", "of HTTP; 0 takes a free one"),
    Flag("uds", str, None, "PATH", "listen at a Unix socket instead"),
    Flag("workers", _whole(1), 2, "N", "processes that speak to clients"),
    Flag("helpers", _pools, 1, "N", "processes that compute; or pools, as in fast=2,large=1"),
    Flag("devices", str, None, "NAMES", "of helpers: cpu, or cuda:0,cuda:1"),
    Flag("threads", _whole(1), None, "N", "compute threads of each CPU helper"),
    Flag("arena", _size, 256 << 20, "SIZE", "memory of each worker for requests and answers"),
    Flag("max-body", _size, 64 << 20, "SIZE", "of one request; 413 beyond"),
    Flag("max-header", _size, 64 << 10, "SIZE", "of one request's head; 431 beyond"),
    Flag("max-queue", _whole(1), 1024, "N", "requests that may wait or run at once; 503 beyond"),
    Flag("timeout", _seconds, None, "S", "seconds until a request fails with 503"),
    Flag("allow-repository", bool, False, "", "let clients load and unload models; 503 without"),
    Flag("hang-after", _seconds, None, "S", "seconds of one execution until a helper is replaced"),
    Flag("drain-delay", _seconds, 0.0, "S", "seconds of not being ready before closing the door"),
    Flag("drain-timeout", _seconds, 30.0, "S", "seconds that the last answers may take"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "models", nargs="+", metavar="MODEL[@POOL]", help="model files, or folders of models"
    )
    for flag in FLAGS:
        if not flag.metavar:
            parser.add_argument(f"--{flag.name}", action="store_true", help=flag.help)
            continue
        default = "" if flag.default is None else f" ({_shown(flag.default)})"
        parser.add_argument(
            f"--{flag.name}",
            type=flag.parse,
            default=flag.default,
            metavar=flag.metavar,
            help=flag.help + default,
        )
    parser.set_defaults(run=_run)


def _shown(default: Any) -> str:
    if isinstance(default, int) and default >= 1 << 20 and default % (1 << 20) == 0:
        return f"{default >> 20}MiB"
    return str(default)


def _run(options: argparse.Namespace) -> int:
    try:
        from shmgpu.serve import command
    except ImportError as error:
        raise LaunchError(
            f"the server needs a package that is missing ({error.name}): "
            'pip install "shmgpu[serve]"'
        ) from error
    return command.run(options)
