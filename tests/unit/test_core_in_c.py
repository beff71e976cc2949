"""Tests of the core in C that hold a promise by themselves, each under its own name.

All of them are run by ``make ctest``, plain and under the sanitizers; these are those that a
protection of the core is tried with (``make mutants``).
"""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
from collections.abc import Callable

from c_programs import build

HERE = pathlib.Path(__file__).resolve().parents[1] / "c"

# By program; None: all that it has.
ROOMS: dict[str, list[str] | None] = {
    "dispatch": None,
    "desk": None,
    "port": [
        "calls_that_a_child_left_behind_are_not_out_for_ever",
        "who_waits_for_a_place_reads_when_the_one_that_read_leaves",
        "who_waits_for_a_place_serves_a_call_that_asks_for_room_while_others_wait_for_answers",
    ],
    "door": [
        "a_crowd_that_waits_locks_nobody_out_who_only_asks",
        "without_descriptors_a_knock_waits_and_the_parent_sleeps",
    ],
}


@functools.cache
def program(room: str) -> pathlib.Path:
    return build(f"tests/test_{room}")


def run_in_c(room: str, name: str) -> Callable[[], None]:
    def test() -> None:
        done = subprocess.run(
            [program(room), name], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return test


for room, names in ROOMS.items():
    text = (HERE / f"test_{room}.c").read_text()
    for found in names or re.findall(r"^TEST\w*\((\w+)", text, re.M):
        globals()[f"test_{found}"] = run_in_c(room, found)
