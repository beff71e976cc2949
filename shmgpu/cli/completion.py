"""``shmgpu completion``: what a shell needs to complete the commands and their options.

Owns the command, and which arguments are completed as files. Never asks a broker.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from shmgpu.cli.arguments import Commands
from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError

SHELLS = ("bash", "zsh", "tcsh")
FILES = frozenset(["FILE", "MODEL", "PATH"])  # what placeholders of files begin with


def add(commands: Commands) -> None:
    """Its arguments."""
    parser = commands.add_parser(
        "completion",
        help="print what has a shell complete commands and options",
        description="Print a script for a shell. For bash, put "
        'eval "$(shmgpu completion bash)" into ~/.bashrc. Needs the extra completion.',
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(f"completion needs shtab ({error}): {with_extra('completion')}") from None
    for action in _actions(options.parser):
        if str(action.metavar).split(".")[0].strip("[]") in FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(options.parser, shell=options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
