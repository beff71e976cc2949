"""C programs that Python tests run: built by make, plain, whatever flavour the tests run in."""

from __future__ import annotations

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]


def build(name: str) -> pathlib.Path:
    """Build ``build/c-plain/NAME`` and return its path."""
    target = f"build/c-plain/{name}"
    # A make above this one (`make test FAULTS=1`) must not reach into this one.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    options = ["SAN=", "FAULTS=", "T=", f"-j{os.cpu_count()}"]
    done = subprocess.run(
        ["make", "-s", target, *options], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / target
