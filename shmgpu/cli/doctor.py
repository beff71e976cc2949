"""``shmgpu doctor``: its arguments, and how its findings are printed.

Owns both. Never checks anything: :mod:`shmgpu.doctor` does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict

from shmgpu import doctor
from shmgpu.cli.arguments import Commands, add_settings

COLOURS = {doctor.OK: "32", doctor.WARNING: "33", doctor.FAILURE: "31;1"}


def add(commands: Commands) -> None:
    """Its arguments."""
    examined = commands.add_parser(
        "doctor",
        help="say whether a launch would do well on this machine",
        description="Check kernel, limits, memory, processors, GPUs and this environment for a "
        "launch of the given size, and say how to fix what is not fine. Defaults come from the "
        "SHMGPU_ variables. The exit status is 1 if something would fail.",
    )
    add = examined.add_argument
    add_settings(examined, "doctor", {"devices": "the GPUs, else cpu"})
    add("--quiet", "-q", action="store_true", help="print only what is not fine")
    add("--json", action="store_true", help="print the findings as JSON")
    examined.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    names = doctor.Plan.__dataclass_fields__
    plan = doctor.Plan.resolve(**{name: getattr(options, name) for name in names})
    findings = doctor.examine(plan)
    failures = sum(finding.status == doctor.FAILURE for finding in findings)
    if options.json:
        told = {
            "shmgpu": importlib.metadata.version("shmgpu"),
            "plan": asdict(plan),
            "failures": failures,
            "warnings": sum(finding.status == doctor.WARNING for finding in findings),
            "findings": [asdict(finding) for finding in findings],
        }
        print(json.dumps(told, indent=2))
    elif sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        width = shutil.get_terminal_size().columns
        colour = not os.environ.get("NO_COLOR")
        print(show(plan, findings, quiet=options.quiet, width=width, colour=colour))
    else:
        print(show(plan, findings, quiet=options.quiet))
    return int(failures > 0)


def show(
    plan: doctor.Plan,
    findings: Sequence[doctor.Finding],
    *,
    quiet: bool = False,
    width: int = 0,
    colour: bool = False,
) -> str:
    """Findings as text: a line for each, and one for its remedy, folded at ``width`` if given."""
    shown = [one for one in findings if not quiet or one.status != doctor.OK]
    status_width = max(len(status) for status in COLOURS)
    margin = 2 + status_width + 2 + max((len(one.name) for one in shown), default=0) + 2
    lines = [f"{plan.describe()}:"]
    group = ""
    for finding in shown:
        if finding.group != group:
            group = finding.group
            lines += ["", group]
        texts = [finding.sentence, *([f"fix: {finding.fix}"] if finding.fix else [])]
        if width > margin + 20:
            texts = [
                part
                for text in texts
                for part in textwrap.wrap(
                    text, width - margin, break_long_words=False, break_on_hyphens=False
                )
            ]
        status = finding.status.ljust(status_width)
        if colour:
            status = f"\x1b[{COLOURS[finding.status]}m{status}\x1b[0m"
        name = finding.name.ljust(margin - status_width - 4)
        lines.append(f"  {status}  {name}{texts[0]}")
        lines += [" " * margin + text for text in texts[1:]]
    counts = [sum(one.status == status for one in findings) for status in COLOURS]
    fine, warnings, failures = counts
    lines += [
        "",
        f"{len(findings)} checks: {fine} fine, {warnings} warning{'s' * (warnings != 1)}, "
        f"{failures} failure{'s' * (failures != 1)}.",
    ]
    return "\n".join(lines)
