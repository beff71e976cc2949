"""``shmgpu demo``: the numbers that it takes.

Must never import torch before the demo is run: every command's ``--help`` passes here.
"""

from __future__ import annotations

import argparse

from shmgpu.cli.arguments import Commands, seconds, whole

MOST_CHILDREN = 512  # so that each has a held-out image to classify
DEMO_TRACE = "shmgpu-demo.trace.json"


def add(commands: Commands) -> None:
    """Its arguments."""
    demo = commands.add_parser(
        "demo",
        help="train and serve on real data, compared with multiprocessing",
        description="Train a small network on handwritten digits in a helper, let child "
        "processes classify held-out ones through helpers, prove from outside that no payload "
        "passes between processes, and do the same through multiprocessing. "
        "Needs the extra demo.",
    )
    add = demo.add_argument
    add(
        "--children",
        type=whole(1, MOST_CHILDREN),
        default=32,
        metavar="N",
        help="child processes (32)",
    )
    add("--helpers", type=whole(1, 64), default=2, metavar="N", help="helper processes (2)")
    add("--seconds", type=seconds, default=5.0, metavar="S", help="how long each side serves (5)")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:0 (the machine's GPUs, else cpu)")
    add(
        "--trace",
        metavar="PATH",
        default=DEMO_TRACE,
        help=f"where to write the trace ({DEMO_TRACE})",
    )
    add("--no-baseline", action="store_true", help="skip multiprocessing")
    add("--json", metavar="FILE", help="also write the results to this file")
    demo.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    # Here, because it imports torch, which the other commands do without.
    from shmgpu.demo import run as demo

    return demo.run(
        demo.DemoOptions(
            children=options.children,
            helpers=options.helpers,
            seconds=options.seconds,
            device=options.device,
            trace=options.trace,
            baseline=not options.no_baseline,
            json=options.json,
        )
    )
