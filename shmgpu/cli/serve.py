"""``shmgpu serve``: the command; :mod:`shmgpu.serve.options` has its flags.

Owns the step from parsed flags to a running server. Never imports the server before it is run.
"""

from __future__ import annotations

import argparse
import os

from shmgpu.cli.arguments import Commands
from shmgpu.common.wording import with_extra
from shmgpu.errors import LaunchError
from shmgpu.serve import options as flags


def add(commands: Commands) -> None:
    """Its arguments."""
    served = commands.add_parser(
        "serve",
        help="serve models over HTTP to clients of the Open Inference Protocol",
        description="Start workers that speak the Open Inference Protocol, version 2, and helpers "
        "that run the models; requests and answers are passed between them without a copy. "
        "Needs the extra serve.",
    )
    flags.add_arguments(served)
    served.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        from shmgpu.serve import server
    except ImportError as error:
        raise LaunchError(
            f"the server needs a package that is missing ({error.name}): {with_extra('serve')}"
        ) from error
    resolved = flags.resolve(options)
    if resolved.log_level:  # helpers and workers inherit it
        os.environ["SHMGPU_LOG"] = resolved.log_level
    return server.run(resolved)
