"""``shmgpu trace``: saved traces, each read and handed to the code that knows its kind.

Owns its flags and which kind a file is. Never draws or sums up a trace itself.
"""

from __future__ import annotations

import argparse
import json
import os

from shmgpu.cli.arguments import Commands
from shmgpu.watch import trace_summary
from shmgpu.watch.trace_summary import BadTrace


def add(commands: Commands) -> None:
    """Its arguments."""
    summary = commands.add_parser(
        "trace",
        help="summarise saved traces",
        description="Summarise traces of launch(trace_path=...), write_trace() or the demo: how "
        "busy each helper was, how long each function's calls took, batch sizes; and traces of "
        "shmgpu.debug: operations, moves, what helpers hold.",
    )
    summary.add_argument("files", metavar="FILE", nargs="+", help="a saved trace")
    summary.add_argument(
        "--png", action="store_true", help="also draw each trace's timeline, as FILE.png"
    )
    summary.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Here, because the other commands do without.
    from shmgpu.tensors.debug import saved as debug_trace
    from shmgpu.watch import timeline

    for index, path in enumerate(options.files):
        try:
            with open(path, encoding="utf-8") as file:
                saved = json.load(file)
            summary = trace_summary.summarise(saved["traceEvents"])
            tensors = debug_trace.describe(saved)
        except OSError as error:
            raise BadTrace(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, BadTrace) as error:
            raise BadTrace(
                f"{path} is not a trace that shmgpu wrote: give a file from launch(trace_path=...)"
            ) from error
        print("\n" * (index > 0) + f"{path}\n\n{tensors or trace_summary.describe(summary)}")
        if options.png:
            picture = f"{os.path.splitext(path)[0]}.png"
            count = timeline.draw(saved["traceEvents"], picture, os.path.basename(path))
            print(f"\n{picture}: a timeline of {count:,} runs")
    return 0
