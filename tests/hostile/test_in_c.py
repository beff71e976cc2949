"""Hostile children in C: each TEST of rows.c and hostile.c is a test here, under its own name."""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
from collections.abc import Callable

from c_programs import build

HERE = pathlib.Path(__file__).parent


@functools.cache
def program(name: str) -> pathlib.Path:
    return build(f"hostile/{name}")


def run_in_c(source: str, name: str) -> Callable[[], None]:
    def test() -> None:
        done = subprocess.run(
            [program(source), name], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "1 passed" in done.stdout

    return test


for source in ("rows", "hostile"):
    for found in re.findall(r"^TEST\w*\((test_\w+)", (HERE / f"{source}.c").read_text(), re.M):
        globals()[found] = run_in_c(source, found)
