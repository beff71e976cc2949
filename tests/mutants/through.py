"""Which tests pass through a place in the source: marks that tell it, and how they are read.

Before each statement in question stands, in a copy of the tree, one that notes its number and the
test that runs; then the tests run once. What a fixture passes through, and the servers and helpers
that it started, counts for the file of tests; so does what a file does when it is imported, such as
to make the parameters of its tests.

Statements outside of functions have no mark: whichever test imports their file first passes through
them, and that tells nothing of which test depends on what they made.

Python only. Runs nothing, and knows nothing of what is then done with the tests.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

NOTES = "shmgpu/_notes.py"  # in the copy
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MARK = '__import__("shmgpu._notes", None, None, ["note"]).note({number})'
WRITER = """
import os
import sys

PLACE = {place!r}
HERE = os.getcwd() + os.sep
known = set()


def file_of_tests():
    frame = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if os.path.basename(name).startswith("test_"):
            return name.removeprefix(HERE)
        frame = frame.f_back
    return ""


def note(number):
    test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    if not test:
        test, phase = file_of_tests(), "(import)"
    if (number, test, phase) in known:
        return
    known.add((number, test, phase))
    try:
        descriptor = os.open(PLACE, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.write(descriptor, f"{{number}}\\t{{phase}}\\t{{test}}\\n".encode())
        os.close(descriptor)
    except OSError:  # the test takes descriptors away, or rights
        pass
"""


class Passing(NamedTuple):
    """What passes through one place."""

    tests: frozenset[str]  # certainly
    files: frozenset[str]  # some test of each


def first_line(node: ast.stmt) -> int:
    """Of its decorators, where it has some."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def statement(tree: ast.Module, text: str, at: int) -> ast.stmt | None:
    """The innermost one of a function around a position, before which another can stand, if any.

    Of an argument's default it is the first one of its function: every call passes through that.
    """
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    offset = len(text[:at].encode())

    def begin(node: ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def has_own_line(node: ast.stmt) -> bool:
        line = lines[node.lineno - 1]
        return not line.lstrip().startswith("elif ") and not line[: node.col_offset].strip()

    found = None
    nodes: list[tuple[ast.AST, bool]] = [(tree, False)]  # whether it is within a function
    while nodes:
        node, is_within = nodes.pop()
        if isinstance(node, FUNCTIONS):
            body = node.body[ast.get_docstring(node, clean=False) is not None :]
            if begin(node) <= offset < begin(node.body[0]):
                return body[0] if body and has_own_line(body[0]) else None
            is_within = is_within or offset >= begin(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                end = starts[(child.end_lineno or 1) - 1] + (child.end_col_offset or 0)
                if not starts[first_line(child) - 1] <= offset <= end:
                    continue
                if is_within and has_own_line(child):
                    found = child
            nodes.append((child, is_within))
    return found


def marked(text: str, places: dict[int, int]) -> tuple[str, set[int]]:
    """The text with a note before each place, by number; the numbers that could be put in."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    before: dict[int, list[int]] = {}
    for number, at in places.items():
        node = statement(tree, text, at)
        if node is not None:
            before.setdefault(first_line(node), []).append(number)
    for line, numbers in sorted(before.items(), reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        notes = [f"{indent}{MARK.format(number=number)}\n" for number in numbers]
        lines[line - 1 : line - 1] = notes
    return "".join(lines), {number for numbers in before.values() for number in numbers}


def passing(notes: pathlib.Path, known: Iterable[str]) -> dict[int, Passing]:
    """What was noted, by the place's number, of tests that are known."""
    found: dict[int, tuple[set[str], set[str]]] = {}
    known = set(known)
    files_known = {test.partition("::")[0] for test in known}
    for line in notes.read_text().splitlines() if notes.exists() else []:
        number, phase, test = line.split("\t")
        if test not in (files_known if phase == "(import)" else known):
            continue
        tests, files = found.setdefault(int(number), (set(), set()))
        if phase == "(call)":
            tests.add(test)
        else:
            files.add(test.partition("::")[0])
    return {number: Passing(*map(frozenset, sets)) for number, sets in found.items()}
