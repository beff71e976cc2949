"""Every row of the list of faults has its test, and every such test its row."""

from __future__ import annotations

import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parents[1]


def rows() -> set[str]:
    page = (TESTS / "crash" / "README.md").read_text(encoding="utf-8")
    return set(re.findall(r"^\| (F\d\d) \|", page, re.MULTILINE))


def covered() -> set[str]:
    found = set()
    for room in ("crash", "hostile"):
        for path in (TESTS / room).rglob("test_*.py"):
            names = re.findall(r"^\s*(?:async )?def test_(f\d\d)_", path.read_text(), re.MULTILINE)
            found.update(name.upper() for name in names)
    return found


def test_rows_are_numbered_without_a_gap():
    assert rows() == {f"F{number:02}" for number in range(1, 46)}


def test_every_row_has_a_test_and_every_test_a_row():
    assert covered() == rows()
