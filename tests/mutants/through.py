"""Which tests pass through a place in the source: marks that tell it, and how they are read.

Before each statement in question stands, in a copy of the tree, one that notes its number and the
test that runs; then the tests run once. What a fixture passes through, and the servers and helpers
that it started, counts for the file of tests; so does what a file does when it is imported, such as
to make the parameters of its tests.

Statements outside of functions have no mark of their own: whichever test imports their file first
passes through them, and that tells nothing of which test depends on what they made. Where they give
a value a name, the functions of the same file that speak of it have the mark instead.

In C it is the function around a place that is marked, at its beginning.

Runs nothing, and knows nothing of what is then done with the tests.
"""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterable
from typing import NamedTuple

NOTES = "shmgpu/_notes.py"  # in the copy
C_TESTS = pathlib.Path(__file__).resolve().parents[1] / "c"
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

C_NOTES = "csrc/base/notes.h"  # in the copy
C_MARK = "MUTANTS_NOTE({number});"
C_WRITER = """
#ifndef MUTANTS_NOTES_H
#define MUTANTS_NOTES_H
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUTANTS_NOTE(number) do {{ static char told_[512]; mutants_note(number, told_); }} while (0)

static inline __attribute__((unused)) void mutants_note(int number, char told[512]) {{
  const char *test = getenv("PYTEST_CURRENT_TEST"), *phase = NULL;
  char name[512];
  if (test != NULL && (phase = strrchr(test, ' ')) != NULL) {{
    snprintf(name, sizeof name, "%.*s", (int)(phase - test), test);
  }} else {{
    snprintf(name, sizeof name, "tests/c/%s.c", program_invocation_short_name);
  }}
  char line[600];
  int length = snprintf(line, sizeof line, "%d\\t%s\\t%s\\n", number,
                        phase ? phase + 1 : "(program)", name);
  if (strncmp(told, line, 511) == 0) return;
  int before = errno;
  int fd = open("{place}", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd >= 0) {{
    if (write(fd, line, (size_t)length) == length) snprintf(told, 512, "%s", line);
    close(fd);
  }}
  errno = before;
}}
#endif
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


def named_outside(tree: ast.Module, text: str, at: int) -> str:
    """The name that the statement around a position gives to a value, outside of functions."""
    line = text.count("\n", 0, at) + 1
    for node in tree.body:
        if first_line(node) <= line <= (node.end_lineno or 0):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            return names[0] if names else ""
    return ""


def who_speaks_of(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The first statement of each function of a file in which a name stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            body = node.body[ast.get_docstring(node, clean=False) is not None :]
            words = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            if name in words and body and body[0].lineno > node.lineno:
                found.append(body[0])
    return found


def marked(text: str, places: dict[int, int]) -> tuple[str, set[int]]:
    """The text with a note before each place, by number; the numbers that could be put in."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    before: dict[int, list[int]] = {}
    for number, at in places.items():
        inner = statement(tree, text, at)
        nodes = [inner] if inner is not None else []
        if not nodes and (name := named_outside(tree, text, at)):
            nodes = who_speaks_of(tree, name)
        for line in {first_line(node) for node in nodes}:
            before.setdefault(line, []).append(number)
    for line, numbers in sorted(before.items(), reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        notes = [f"{indent}{MARK.format(number=number)}\n" for number in numbers]
        lines[line - 1 : line - 1] = notes
    return "".join(lines), {number for numbers in before.values() for number in numbers}


def marked_c(text: str, places: dict[int, int]) -> tuple[str, set[int]]:
    """The same in C, at the beginning of the function around each place."""
    from mutants.mutations import C_FUNCTION, masked  # as nearest.py

    code = masked(text)
    bodies = []
    for found in C_FUNCTION.finditer(code):
        opens = re.compile(r"[{;]").search(code, found.end(1))
        if opens is not None and opens[0] == "{":
            end = code.find("\n}", opens.end())
            bodies.append((opens.end(), len(code) if end < 0 else end))
    put: dict[int, list[int]] = {}
    for number, at in places.items():
        for begin, end in bodies:
            if begin <= at < end:
                put.setdefault(begin, []).append(number)
    for begin, numbers in sorted(put.items(), reverse=True):
        notes = " ".join(C_MARK.format(number=number) for number in numbers)
        text = f"{text[:begin]} {notes}{text[begin:]}"
    include = f'#include "{C_NOTES.removeprefix("csrc/")}"\n' if put else ""
    return include + text, {number for numbers in put.values() for number in numbers}


def passing(notes: pathlib.Path, known: Iterable[str]) -> dict[int, Passing]:
    """What was noted, by the place's number, of tests that are known."""
    found: dict[int, tuple[set[str], set[str]]] = {}
    known = set(known)
    programs = {f"tests/c/{path.name}" for path in C_TESTS.glob("test_*.c")}
    files_known = {test.partition("::")[0] for test in known}
    for line in notes.read_text().splitlines() if notes.exists() else []:
        number, phase, test = line.split("\t")
        of_phase = {"(import)": files_known, "(program)": programs}
        if test not in of_phase.get(phase, known):
            continue
        tests, files = found.setdefault(int(number), (set(), set()))
        if phase in ("(call)", "(program)"):
            tests.add(test)
        else:
            files.add(test.partition("::")[0])
    return {number: Passing(*map(frozenset, sets)) for number, sets in found.items()}
