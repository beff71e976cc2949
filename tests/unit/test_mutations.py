"""`make mutants SAMPLE=...`: what is changed, what is left alone, which tests are nearest."""

from __future__ import annotations

import ast
import pathlib
import textwrap

import pytest
from mutants import mutations, nearest, through

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "shmgpu").is_dir(), reason="the package's sources are not beside these tests"
)

PYTHON = '''
"""A text with 1 < 2."""
from __future__ import annotations

LIMIT: int = 3
__all__ = ["one"]


def one(x: int | None, y: float = 2.5, flag=True) -> int:
    """Says 4 + 4."""
    if x is None and y < LIMIT:
        raise ValueError(f"{x + 1} is none")
    while not flag:
        x += 1
        work(x, y)
    return x << 2
'''
# Each as it stands, and what becomes of it.
OF_PYTHON = {
    ("LIMIT: int = 3", "LIMIT: int = 4"),
    ("def one(x: int | None, y: float = 2.5, flag=True) -> int:",
     "def one(x: int | None, y: float = 6.0, flag=True) -> int:"),
    ("def one(x: int | None, y: float = 2.5, flag=True) -> int:",
     "def one(x: int | None, y: float = 2.5, flag=False) -> int:"),
    ("if x is None and y < LIMIT:", "return None"),
    ("if x is None and y < LIMIT:", "if (not (x is None and y < LIMIT)):"),
    ("if x is None and y < LIMIT:", "if (x is None or y < LIMIT):"),
    ("if x is None and y < LIMIT:", "if (x is not None) and y < LIMIT:"),
    ("if x is None and y < LIMIT:", "if x is None and (y <= LIMIT):"),
    ("if x is None and y < LIMIT:", "if x is None and (y >= LIMIT):"),
    ('raise ValueError(f"{x + 1} is none")', "pass"),
    ("while not flag:", "while (not (not flag)):"),
    ("while not flag:", "while (flag):"),
    ("x += 1", "pass"),
    ("x += 1", "x += 2"),
    ("work(x, y)", "work(y, x)"),
    ("work(x, y)", "pass"),
    ("return x << 2", "return None"),
    ("return x << 2", "return (x >> 2)"),
    ("return x << 2", "return x << 3"),
}  # fmt: skip

C = """
/* a comment with 1 < 2 */
#define SIZE 3
static int room_take(int count) {
  if (count < 4 && is_open("5 == 5")) return 0;
  taken += count;
  room_tell(count);
  return 1;
}
"""
OF_C = {
    ('if (count < 4 && is_open("5 == 5")) return 0;',
     'if (!(count < 4 && is_open("5 == 5"))) return 0;'),
    ('if (count < 4 && is_open("5 == 5")) return 0;',
     'if (count <= 4 && is_open("5 == 5")) return 0;'),
    ('if (count < 4 && is_open("5 == 5")) return 0;',
     'if (count < 5 && is_open("5 == 5")) return 0;'),
    ('if (count < 4 && is_open("5 == 5")) return 0;',
     'if (count < 4 || is_open("5 == 5")) return 0;'),
    ('if (count < 4 && is_open("5 == 5")) return 0;',
     'if (count < 4 && is_open("5 == 5")) return 1;'),
    ("taken += count;", "taken -= count;"),
    ("taken += count;", ";"),
    ("room_tell(count);", ";"),
    ("return 1;", "return 0;"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "wanted"), [("a.py", PYTHON, OF_PYTHON), ("a.c", C, OF_C)]
)
def test_code_is_changed_and_words_are_not(file, text, wanted):
    found = mutations.of(file, text)
    assert {one.lines(text) for one in found} == wanted
    assert len(found) == len(wanted)
    for one in found:
        assert (
            one.apply(text).splitlines()[: one.line(text) - 1]
            == (text.splitlines()[: one.line(text) - 1])
        )
        assert one.inside in ("one", "room_take", "")


def test_what_python_becomes_is_still_python():
    path = ROOT / "shmgpu" / "child" / "arguments.py"
    text = path.read_text()
    found = mutations.of("shmgpu/child/arguments.py", text)
    assert len(found) > 100
    for one in found[::7]:
        ast.parse(one.apply(text))


def test_what_is_the_same_in_any_order_is_not_swapped():
    assert [one.what for one in mutations.of("a.py", "x = max(y, z)")] == []
    assert [one.what for one in mutations.of("a.py", "x = ROWS['eq'](y, z)")] == []
    assert [one.what for one in mutations.of("a.py", "x = pow(y, z)")] == ["arguments swapped"]
    assert [one.what for one in mutations.of("a.py", "x = ROWS['pow'](y, z)")] == [
        "arguments swapped"
    ]


def test_another_word_for_no_and_for_none_is_no_change():
    found = mutations.of("a.py", "def f():\n    return False\n")
    assert [one.new for one in found] == ["True"]
    assert [one.new for one in mutations.of("a.py", "x = -1")] == ["(1)"]
    assert {one.new for one in mutations.of("a.py", "x = -2")} == {"(2)", "3"}


def test_an_assertion_is_not_changed():
    found = mutations.of("a.py", "rows = zip(a, b, strict=True)\nsum(c, start=1)\n")
    assert {one.new for one in found} == {"zip(b, a, strict=True)", "2", "pass"}


@pytest.mark.parametrize(
    ("file", "inside", "test"),
    [
        ("shmgpu/doctor/machine.py", "memory_room_of_cgroup", "tests/unit/test_doctor.py"),
        ("shmgpu/serve/telemetry/spans.py", "exporting", "tests/serve/test_spans.py"),
        ("csrc/memory/tlsf.c", "shmi_tlsf_free", "tests/c/test_tlsf.c"),
    ],
)
def test_the_nearest_tests_are_those_of_the_room(file, inside, test):
    assert test in nearest.nearest(file, inside)[:2]
    assert not any("test_layering" in name for name in nearest.nearest(file, inside))


MARKED = {  # of a function's text, at a word of which a place is: the line after the mark
    "x = 1\ny = 2": "y = 2",
    "def f(\n    a=2,\n):\n    'Says.'\n    return a": "    return a",
    "@cache(2)\n@other\ndef f():\n    return 1": "@cache(2)",
    "if x:\n    a()\nelif 2:\n    b()": "if x:",
    "if x:\n    a()\nelse:\n    if y:\n        b(2)": "        b(2)",
    "try:\n    a()\nexcept (A, b(2)):\n    pass": "try:",
    "class A:\n    x = 2": "    x = 2",
    "with a(\n    2\n) as b:\n    c()": "with a(",
    "é = [one for one in 'é' if 2]": "é = [one for one in 'é' if 2]",
}


@pytest.mark.parametrize("inner", MARKED)
def test_a_mark_stands_before_the_statement_around_a_place(inner):
    text = "def outer():\n" + textwrap.indent(inner, "    ")
    changed, numbers = through.marked(text, {7: text.index("2")})
    added = [line for line in changed.splitlines() if line not in text.splitlines()]
    assert numbers == {7} and [line.strip() for line in added] == [through.MARK.format(number=7)]
    ast.parse(changed)
    lines = changed.splitlines()
    assert lines[lines.index(added[0]) + 1] == "    " + MARKED[inner]


@pytest.mark.parametrize(
    "text",
    [
        "x = 2",
        "x = 2\ndef f():\n    return y",
        "class A:\n    x = 2",
        "@cache(2)\ndef f():\n    return 1",
        "def f(a=2): ...",
        "def f(a=2):\n    'Says.'",
        "f = lambda: 2",
    ],
)
def test_what_is_done_when_a_file_is_imported_has_no_mark(text):
    assert through.marked(text, {7: text.index("2")}) == (text, set())


def test_functions_that_speak_of_what_a_file_defines_have_its_mark():
    text = (
        "LONG: float = 2\n\ndef one():\n    'Says.'\n    return LONG\n\ndef two():\n    return 3\n"
    )
    changed, numbers = through.marked(text, {7: text.index("2")})
    assert numbers == {7}
    mark = "    " + through.MARK.format(number=7)
    assert changed == text.replace("    return LONG", f"{mark}\n    return LONG")


def test_in_c_the_function_around_a_place_has_the_mark():
    text = (
        "static int LONG = 1;\nint told(void);\nint one(int a,\n        int b) {\n  return 2;\n}\n"
    )
    changed, numbers = through.marked_c(text, {7: text.index("2"), 8: text.index("1")})
    assert numbers == {7}
    assert changed.splitlines()[4] == f"        int b) {{ {through.C_MARK.format(number=7)}"
    assert changed.splitlines()[0] == '#include "base/notes.h"'


def test_what_was_noted_is_of_a_test_or_of_a_file(tmp_path):
    notes = tmp_path / "notes"
    assert through.passing(notes, ["a.py::one"]) == {}
    notes.write_text(
        "1\t(call)\ta.py::one\n1\t(setup)\tb.py::two\n1\t\t\n2\t(call)\tb.py::two\n"
        "1\t(call)\tgone.py::three\n2\t(program)\ttests/c/test_tlsf.c\n"
        "2\t(program)\ttests/c/gone.c\n"
    )
    known = ["a.py::one", "b.py::two"]
    assert through.passing(notes, known) == {
        1: ({"a.py::one"}, {"b.py"}),
        2: ({"b.py::two", "tests/c/test_tlsf.c"}, set()),
    }
