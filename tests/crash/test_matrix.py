"""The matrix {SEGV, KILL, ABRT, STOP, exit 0} x {helper, child, parent} x {five points}.

One table says what each cell must show: who hears of the fault, that every other result is right,
that the next broker works and nothing is left. cell.py runs a cell and reports what it saw.
"""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

CELL = pathlib.Path(__file__).parent / "cell.py"

SIGNALS = ("SEGV", "KILL", "ABRT")
DEATHS = (*SIGNALS, "exit0")
BETWEEN = ("before_read", "after_read", "before_reply", "after_reply")
EXECUTING = ("in_function",)
POINTS = (*BETWEEN, *EXECUTING)
SOME = "some"  # at least one; how many is a matter of speed
BY_ITS_ACTION = "by its action"  # the program's own exit: the signal, or 0

CHILDREN = 3


@dataclass(frozen=True)
class Seen:
    """What a cell must show; the defaults are those of a launch that ends well."""

    how: tuple[str, ...] = ()  # arguments of cell.py: how long the load lasts, and what is awaited
    heard: dict[str, object] = field(default_factory=dict)  # errors of calls: how many
    deaths: int = 0  # of helpers
    restarts: int = 0  # of children
    error: str | None = None  # what the launch raises; {why}: how the victim ended
    exit: object = 0  # of the program
    resumed: bool = False
    ended: int = CHILDREN  # children whose last calls worked
    unwound: int = 0  # children that were told to end, and ran their finally blocks


# Only a call that executes is lost with its helper; it is taken for hung only then, too.
REPLACED = ("--until", "a helper was replaced")
TIMES_OUT = ("--timeout", "0.4")
TABLE = [
    ("helper", DEATHS, EXECUTING, Seen(how=REPLACED, heard={"HelperDied": 1}, deaths=1)),
    ("helper", DEATHS, BETWEEN, Seen(how=REPLACED, deaths=1)),
    (
        "helper",
        ("STOP",),
        EXECUTING,
        Seen(how=(*REPLACED, *TIMES_OUT), heard={"CallTimeout": SOME}, deaths=1),
    ),
    (
        "helper",
        ("STOP",),
        BETWEEN,
        Seen(
            how=("--until", "a call timed out", "--resume", "a call timed out", *TIMES_OUT),
            heard={"CallTimeout": SOME},
            resumed=True,
        ),
    ),
    (
        "child",
        DEATHS,
        POINTS,
        Seen(
            how=("--until", "the victim ended", "--then-waits"),
            error="ChildError: child 1 failed: {why}",
            ended=0,
            unwound=CHILDREN - 1,
        ),
    ),
    # A child that is started anew does all its work: nobody but the log hears of its death.
    ("child", DEATHS, POINTS, Seen(how=("--restart", "on-failure"), restarts=1)),
    ("child", ("STOP",), POINTS, Seen(how=("--resume", "the others ended"), resumed=True)),
    ("parent", DEATHS, POINTS, Seen(how=("--until", "the end"), exit=BY_ITS_ACTION, ended=0)),
    (
        "parent",
        DEATHS,
        POINTS,
        Seen(how=("--way", "init"), heard={"BrokerDied": 1}, ended=0),
    ),
    (
        "parent",
        ("STOP",),
        POINTS,
        Seen(how=("--until", "it was resumed", "--resume", "nothing moves"), resumed=True),
    ),
]


def name_of(role, action, point, seen):
    way = "-in-an-init" * ("init" in seen.how) + "-restarted" * ("--restart" in seen.how)
    return f"{role}-{action}-{point}{way}"


CELLS = [
    pytest.param(role, action, point, seen, id=name_of(role, action, point, seen))
    for role, actions, points, seen in TABLE
    for action in actions
    for point in points
]


def test_every_cell_has_its_row():
    rows = {tuple(cell.values[:3]) for cell in CELLS}
    assert len(rows) == 5 * 3 * 5


@pytest.fixture(scope="module")
def run_cell(faults_build):
    """What was seen of a cell; what went wrong stands in the captured standard error."""
    cells = subprocess.Popen(
        [sys.executable, str(CELL), "--each"],
        **faults_build,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )

    def run(*words):
        cells.stdin.write(json.dumps(words) + "\n")
        return json.loads(cells.stdout.readline())

    yield run
    cells.communicate(timeout=60)


@pytest.mark.table
@pytest.mark.parametrize(("role", "action", "point", "expected"), CELLS)
def test_a_fault_is_heard_by_those_who_must_and_by_nobody_else(
    run_cell, role, action, point, expected
):
    seen = run_cell(role, action, point, *expected.how)
    assert seen, "the cell could not be run"
    number = 0 if action == "exit0" else getattr(signal, f"SIG{action}")
    exit_status = -number if expected.exit == BY_ITS_ACTION else expected.exit
    assert seen["exit"] == exit_status
    assert seen["gone"], "a process was left, two seconds after the program's end"
    assert seen["names"] == [], "a name was left in /dev/shm"
    assert seen["ended"] == expected.ended and seen["unwound"] == expected.unwound
    assert seen["resumed"] == expected.resumed
    if expected.exit == BY_ITS_ACTION:
        return  # the program itself is gone, and has nothing more to tell
    left = "it exited before its main had ended (os._exit?)"
    why = left if action == "exit0" else f"killed by SIG{action}"
    error = expected.error and expected.error.format(why=why)
    assert seen["error"] == error
    assert set(seen["heard"]) == set(expected.heard)
    for name, count in expected.heard.items():
        assert seen["heard"][name] == count or (count == SOME and seen["heard"][name] > 0)
    assert seen["wrong"] == 0, "a result was wrong, or a call ran more than once"
    assert seen["deaths"] == expected.deaths and seen["restarts"] == expected.restarts
    assert seen["next"], "the next broker does not work"
    assert seen["leaked"] == {}
