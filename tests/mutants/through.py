"""Which tests pass through a place in the source: marks that tell it, and how they are read.

In a copy of the tree each block of statements begins with a mark; a block ends where statements may
have been left out by the one before. A mark sets a byte of a map that a worker of pytest shares
with all the processes it starts; marks.py empties the map before each phase of each test, and
writes what it holds afterwards. So the tests run once for whatever is changed later. What fixtures
pass through counts for the file of tests; so does what a file does when it is imported, such as to
make the parameters of its tests.

Statements outside of functions have no mark: whichever test imports their file first passes through
them, and that tells nothing of which test depends on what they made. Where they give a value a
name, the functions of the same file that speak of it count instead.

In C a block is a function, or what stands in the braces of an ``if`` or a loop.

What was told is kept beside the texts of that time, and holds for later ones: lines that still
stand are found again, and those that were changed count as the ones around them.

Runs nothing, and knows nothing of what is then done with the tests.
"""

from __future__ import annotations

import ast
import bisect
import difflib
import functools
import json
import pathlib
import pickle
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

NOTES = "shmgpu/_notes.py"  # in the copy
C_NOTES = "csrc/base/notes.h"
C_TESTS = pathlib.Path(__file__).resolve().parents[1] / "c"
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPOUND = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.AsyncFor, ast.AsyncWith)
IMPORT = "from shmgpu._notes import seen as _mutants_seen\n"
MARK = "_mutants_seen[{number}] = 1"
WRITER = '''
"""The map: bytes of a file that MUTANTS_MAP names, or of nobody."""
import ctypes
import os


def opened():
    try:
        place = os.open(os.environ["MUTANTS_MAP"], os.O_RDWR | os.O_CLOEXEC)
    except (KeyError, OSError):  # a program that was told nothing, or of another user
        return bytearray({size})
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    address = libc.mmap(None, {size}, 3, 1, place, 0)  # read and write, shared
    os.close(place)
    return memoryview((ctypes.c_ubyte * {size}).from_address(address)).cast("B")


seen = opened()
'''
C_MARK = "mutants_seen[{number}] = 1;"
C_WRITER = """
#ifndef MUTANTS_NOTES_H
#define MUTANTS_NOTES_H
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char mutants_none[{size}];
static __attribute__((unused)) unsigned char *mutants_seen = mutants_none;

static __attribute__((constructor)) void mutants_begin(void) {{
  const char *name = getenv("MUTANTS_MAP");
  int before = errno, fd = name == NULL ? -1 : open(name, O_RDWR | O_CLOEXEC);
  if (fd >= 0) {{
    void *map = mmap(NULL, sizeof mutants_none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) mutants_seen = map;
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


# ---- Python ------------------------------------------------------------------------------------


def first_line(node: ast.stmt) -> int:
    """Of its decorators, where it has some."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])


def has_own_line(node: ast.stmt, lines: list[str]) -> bool:
    line = lines[node.lineno - 1]
    return not line.lstrip().startswith("elif ") and not line.encode()[: node.col_offset].strip()


def bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements within it, without a docstring."""
    for name in ("body", "orelse", "finalbody"):
        found = getattr(node, name, [])
        if found and isinstance(found, list):
            has_words = isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) and name == "body"
            yield found[has_words and ast.get_docstring(node, clean=False) is not None :]  # type: ignore[arg-type]
    for one in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
        yield one.body


def blocks(text: str) -> dict[ast.stmt, int]:
    """The statements within functions: the line at which the block of each begins, 0 for none."""
    lines = text.splitlines()
    found: dict[ast.stmt, int] = {}
    tree = ast.parse(text)
    nodes: list[tuple[ast.AST, int, bool]] = [(tree, 0, False)]  # whether it is within a function
    while nodes:
        node, around, is_within = nodes.pop()
        is_within = is_within or isinstance(node, FUNCTIONS)
        around = 0 if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else around
        for body in bodies(node):
            block, begins = around, True
            for one in body:
                if begins and is_within and has_own_line(one, lines):
                    block, begins = first_line(one), False
                begins = begins or isinstance(one, COMPOUND)
                found[one] = block if is_within else 0
                nodes.append((one, block, is_within))
    return found


def where(node: ast.stmt) -> tuple[int, int, int, int]:
    """Lines and columns of its beginning and its end."""
    return first_line(node), 0, node.end_lineno or 0, node.end_col_offset or 0


def block_of(text: str, line: int, column: int) -> int:
    """The line at which the block of what stands there begins; 0 outside of functions.

    Of an argument's default it is the first one of its function: every call passes through that.
    """
    found, inner = 0, (0, 0)
    for node, block in blocks(text).items():
        first, _, last, end = where(node)
        if not (first <= line and (line, column) <= (last, end) and (first, -last) >= inner):
            continue
        found, inner = block, (first, -last)
        body = next(bodies(node), []) if isinstance(node, FUNCTIONS) else []
        if body and (node.lineno, node.col_offset) <= (line, column) < (
            node.body[0].lineno,  # type: ignore[attr-defined]
            node.body[0].col_offset,  # type: ignore[attr-defined]
        ):
            is_marked = has_own_line(body[0], text.splitlines())
            found = first_line(body[0]) if is_marked else 0
    return found


def named_outside(tree: ast.Module, line: int) -> str:
    """The name that the statement around a line gives to a value, outside of functions."""
    for node in tree.body:
        if first_line(node) <= line <= (node.end_lineno or 0):
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            names = [one.id for one in targets if isinstance(one, ast.Name)]
            return names[0] if names else ""
    return ""


def who_speaks_of(tree: ast.Module, name: str) -> list[int]:
    """The first block of each function of a file in which a name stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, FUNCTIONS):
            body = next(bodies(node), [])
            words = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            if name in words and body and body[0].lineno > node.lineno:
                found.append(first_line(body[0]))
    return found


def begins(text: str) -> list[int]:
    """The lines before which a mark stands."""
    return sorted(set(blocks(text).values()) - {0})


def marked(text: str, numbers: dict[int, int]) -> str:
    """The text with a mark before those lines: the number of each."""
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    top = [*tree.body, None]
    if ast.get_docstring(tree, clean=False) is not None:
        del top[0]
    while isinstance(top[0], ast.ImportFrom) and top[0].module == "__future__":
        del top[0]
    for line, number in sorted(numbers.items(), reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        lines.insert(line - 1, f"{indent}{MARK.format(number=number)}\n")
    if numbers and top[0] is not None:
        lines.insert(first_line(top[0]) - 1, IMPORT)
    return "".join(lines)


# ---- C -----------------------------------------------------------------------------------------


def c_blocks(text: str) -> list[tuple[int, int]]:
    """Where the text of each begins, after its brace, and where it ends."""
    from mutants.mutations import C_FUNCTION, masked  # as nearest.py

    code = masked(text)
    found = []
    for one in C_FUNCTION.finditer(code):
        opens = re.compile(r"[{;]").search(code, one.end(1))
        if opens is not None and opens[0] == "{":
            end = code.find("\n}", opens.end())
            found.append((opens.end(), len(code) if end < 0 else end))
    functions = list(found)
    for one in re.finditer(r"(?m)^ +(?:\} )?(?:if|while|for|else)\b.*\{ *$", code):
        begin = end = one.start() + one[0].rindex("{") + 1
        depth = 1
        while depth and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        if any(first <= begin < last for first, last in functions):
            found.append((begin, end))
    return sorted(set(found))


def c_block_of(text: str, at: int) -> int:
    """The line on which the innermost one around a position begins; 0 for none."""
    around = [begin for begin, end in c_blocks(text) if begin <= at < end]
    return text.count("\n", 0, max(around)) + 1 if around else 0


def c_begins(text: str) -> list[int]:
    """The lines behind which a mark stands."""
    return sorted({text.count("\n", 0, begin) + 1 for begin, _ in c_blocks(text)})


def marked_c(text: str, numbers: dict[int, int]) -> str:
    """The text with marks in the blocks that begin on those lines."""
    for begin, _ in reversed(c_blocks(text)):
        line = text.count("\n", 0, begin) + 1
        if line in numbers:
            mark = C_MARK.format(number=numbers[line])
            text = f"{text[:begin]} {mark}{text[begin:]}"
    return f'#include "{C_NOTES.removeprefix("csrc/")}"\n' + text if numbers else text


# ---- what was told -----------------------------------------------------------------------------


class Told:
    """What the tests of one run passed through, kept in a folder.

    texts.json: the marked files as they were. times.json: the seconds of each test. NAME.told: what
    each worker wrote, a phase, a test and the bytes of its map for each.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.texts: dict[str, str] = json.loads((folder / "texts.json").read_text())
        self.seconds: dict[str, float] = json.loads((folder / "times.json").read_text())
        self.numbers = numbered(self.texts)
        self.records = list(records(folder))

    def number(self, file: str, text: str, at: int) -> list[int]:
        """The marks that a position in a file, as it is now, counts for."""
        if (old := self.texts.get(file)) is None:
            return []
        line = text.count("\n", 0, at) + 1
        column = len(text[text.rfind("\n", 0, at) + 1 : at].encode())
        if text != old:
            line = older_line(old, text, line)
            column = min(column, len(old.splitlines()[line - 1].encode()))
        if file.endswith(".py"):
            begin = block_of(old, line, column)
            lines = [begin] if begin else []
            if not begin and (name := named_outside(tree := ast.parse(old), line)):
                lines = who_speaks_of(tree, name)
        else:
            before = sum(map(len, old.splitlines(keepends=True)[: line - 1]))
            lines = [begin] if (begin := c_block_of(old, before + column)) else []
        return [self.numbers[file, one] for one in lines if (file, one) in self.numbers]

    def above(self, file: str, text: str, at: int, most: int = 8) -> list[int]:
        """So many marks before a position in a file, the nearest first."""
        if (old := self.texts.get(file)) is None:
            return []
        line = older_line(old, text, text.count("\n", 0, at) + 1)
        lines = sorted(one for name, one in self.numbers if name == file and one < line)
        return [self.numbers[file, one] for one in reversed(lines[-most:])]

    def passing(self, wanted: list[list[int]]) -> list[Passing]:
        """What passed through any of each list of marks."""
        found: list[tuple[set[str], set[str]]] = [(set(), set()) for _ in wanted]
        files = {test.partition("::")[0] for test in self.seconds}
        for phase, test, packed in self.records:
            seen = zlib.decompress(packed)
            for (tests, of_files), numbers in zip(found, wanted, strict=True):
                if not any(seen[number] for number in numbers):
                    continue
                if phase in ("call", "program") and (phase == "program" or test in self.seconds):
                    tests.add(test)
                elif test.partition("::")[0] in files:
                    of_files.add(test.partition("::")[0])
        return [Passing(*map(frozenset, sets)) for sets in found]


def numbered(texts: dict[str, str]) -> dict[tuple[str, int], int]:
    """A number for each line of each file at which a block begins."""
    places = [
        (file, line)
        for file, text in sorted(texts.items())
        for line in (begins(text) if file.endswith(".py") else c_begins(text))
    ]
    return {place: number for number, place in enumerate(places)}


def records(folder: pathlib.Path) -> Iterator[tuple[str, str, bytes]]:
    for path in sorted(folder.glob("*.told")):
        with path.open("rb") as file:
            while True:
                try:
                    yield pickle.load(file)
                except EOFError:
                    break


def older_line(old: str, new: str, line: int) -> int:
    """The line of an older text that a line counts for: the same, or one that stood there."""
    steps = opcodes(old, new)
    at = bisect.bisect_right([step[3] for step in steps], line - 1) - 1
    kind, first, last, begin, _ = steps[at]
    inside = first + line - 1 - begin
    if kind != "equal":
        inside = min(inside, max(last - 1, first))
    return min(inside + 1, len(old.splitlines()))


@functools.cache
def opcodes(old: str, new: str) -> list[tuple[str, int, int, int, int]]:
    pair = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
    return [step for step in pair.get_opcodes() if step[3] < step[4]]
