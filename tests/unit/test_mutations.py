"""`make mutants SAMPLE=...`: what is changed, what is left alone, which tests are nearest."""

from __future__ import annotations

import ast
import json
import pathlib
import pickle
import textwrap
import zlib

import pytest
from mutants import mutations, nearest, through, trees

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
    assert [one.what for one in mutations.of("a.py", "x = mul(y, z)")] == []
    assert [one.what for one in mutations.of("a.py", "x = pow(y, z)")] == ["arguments swapped"]
    assert [one.what for one in mutations.of("a.py", "x = ROWS['pow'](y, z)")] == [
        "arguments swapped"
    ]


@pytest.mark.parametrize(
    ("old", "new", "is_measured"),
    [
        ("MAX_KNOWN = 4096", "MAX_KNOWN = 4097", False),
        ("_MOST_LINES: int = 1_000  # kept", "_MOST_LINES: int = 1001  # kept", False),
        ("MAX_KEPT = 8 << 20", "MAX_KEPT = 9 << 20", False),
        ("MAX_KEPT = 8 << 20", "MAX_KEPT = 8 << 21", False),
        ("MAX_BATCH = 64,", "MAX_BATCH = 65,", False),
        ("@lru_cache(maxsize=1024, typed=True)", "@lru_cache(maxsize=1025, typed=True)", False),
        ("@functools.lru_cache(maxsize=256)", "@functools.lru_cache(maxsize=257)", False),
        ("@lru_cache(maxsize=1 << 14)", "@lru_cache(maxsize=1 << 15)", False),
        ("@lru_cache(maxsize=1)", "@lru_cache(maxsize=2)", True),
        ("@lru_cache(maxsize=256, typed=True)", "@lru_cache(maxsize=256, typed=False)", True),
        ("MAX_AXES = 3", "MAX_AXES = 4", True),
        ("MAX_KEPT = 1 << 20", "MAX_KEPT = 1 << 22", True),
        ("HEADER = 64", "HEADER = 65", True),
        ("LOOK_S = 0.2", "LOOK_S = 1.4", False),
        ("WITHIN = timedelta(seconds=20)", "WITHIN = timedelta(seconds=21)", False),
        ("within = timedelta(seconds=20)", "within = timedelta(seconds=21)", True),
        ("enum { LOOK_NS = 7, REST_MS = 9 };", "enum { LOOK_NS = 7, REST_MS = 10 };", False),
        ("enum { LOOK_NS = 7, ROUNDS = 9 };", "enum { LOOK_NS = 7, ROUNDS = 10 };", True),
    ],
)
def test_a_round_bound_that_is_a_bit_higher_and_a_time_are_nobodys_matter(old, new, is_measured):
    assert (not mutations.why_nobody_measures("constant", old, new)) == is_measured
    assert not mutations.why_nobody_measures("arithmetic", old, new)


@pytest.mark.parametrize(
    ("line", "is_measured"),
    [
        ("SHMI_FAULT(AFTER_READ);", False),
        ("if (got > 0) SHMI_FAULT(AFTER_READ);", False),
        ("SHMI_FAULT_ROLE(SHM_ROLE_PARENT, 0, 1);", False),
        ("if (got > 0) { SHMI_FAULT(AFTER_READ); got = 0; }", True),
        ("got = 0; SHMI_FAULT(AFTER_READ);", True),
        ("if (got > 0) return 1;", True),
    ],
)
def test_where_tests_have_a_fault_strike_is_nobodys_matter(line, is_measured):
    for what in ("constant", "operator", "statement left out"):
        assert (not mutations.why_nobody_measures(what, line, ";")) == is_measured


def test_where_in_a_table_something_lies_is_nobodys_matter():
    line = "mixed = (mixed * 0x9E3779B97F4A7C15u) {} 40;"
    assert mutations.why_nobody_measures("operator", line.format(">>"), line.format("<<"))


@pytest.mark.parametrize(
    ("statement", "is_same"),
    [
        ("return a->n > b ? a->n - b : 0;", True),
        ("return a < b ? a : b;", True),
        ("return a <= b ? a : b;", True),
        ("return c || a > b ? a : b;", True),
        ("c -= a > (int)b ? (int)b : a;", True),
        ("take(c, a < b ? b : a);", True),
        ("if (a->n > (int)b) a->n = (int)b;", True),
        ("if (*a > b) *a = b;", True),
        ("return a > b ? a : 0;", False),
        ("return a > b ? a - b : 1;", False),
        ("return a > b ? a - b : 0 - c;", False),
        ("return c + a < b ? a : b;", False),  # what is compared is the sum
        ("return c *a < b ? *a : b;", False),
        ("return a < b ? a : b + 1;", False),
        ("return a < b ? a : b(c);", False),
        ("return c == a < b ? a : b;", False),
        ("if (a > b) a = b + 1;", False),
        ("if (a > b) b = a + 1;", False),
        ("if (c && a > b) a = b;", False),
        ("if (a > b) a = b; else c();", False),  # which is done where they are equal
        ("if (a > b) a = b;\n  else c();", False),
        ("double d = a < b ? a : b;", False),  # of 0.0 and -0.0 one is negative
    ],
)
def test_of_two_equal_numbers_it_is_no_matter_which_is_taken(statement, is_same):
    text = f"static int f(int a, int b) {{\n  {statement}\n}}\n"
    found = {one.new for one in mutations.of("a.c", text)} & {"<", "<=", ">", ">="}
    assert bool(found) != is_same


@pytest.mark.parametrize(
    ("text", "is_left_out"),
    [
        ("static int f(void) {\n  int a[2], c;\n  take(a);\n}\n", True),
        ("static int f(int x,\n             int y) {\n  char a[20];\n  take(a);\n}\n", True),
        ("static int f(void) {\n  char a[20];\n  take(a, sizeof a);\n}\n", False),
        ("static int f(void) {\n  char a[20];\n  take(a, sizeof(a));\n}\n", False),
        ("static int f(void) {\n  char a[20];\n  take(a, LENGTH(a));\n}\n", False),
        ("static int f(void) {\n  int a[2][3];\n  take(a);\n}\n", False),
        ("static int f(void) {\n  int a[2] = {0};\n  take(a);\n}\n", False),
        ("static int f(int x,\n             int y) {\n  return a[2];\n}\n", False),
        ("static int f(void) {\n  struct {\n    int a[2];\n  } s;\n  take(&s);\n}\n", False),
        ("static int f(void) {\n  struct s {\n    int a[2];\n  } s;\n  take(&s);\n}\n", False),
        ("struct s {\n  int a[2];\n};\n", False),
        ("static int f(void) {\n  take(a[2]);\n}\n", False),
        ("int a[2];\n", False),
    ],
)
def test_an_array_of_a_function_may_be_longer_where_nobody_asks_how_long(text, is_left_out):
    found = {one.lines(text)[1] for one in mutations.of("a.c", text) if one.what == "constant"}
    assert any("a[3]" in line or "a[21]" in line for line in found) != is_left_out


def test_another_word_for_no_and_for_none_is_no_change():
    found = mutations.of("a.py", "def f():\n    return False\n")
    assert [one.new for one in found] == ["True"]
    assert [one.new for one in mutations.of("a.py", "x = -1")] == ["(1)"]
    assert {one.new for one in mutations.of("a.py", "x = -2")} == {"(2)", "3"}


def test_words_for_readers_are_not_changed():
    assert mutations.of("a.py", "f.__doc__ = about(f, 2)\n") == []


def test_a_method_that_others_define_is_not_changed():
    text = "class A:\n    def f(self):\n        raise NotImplementedError\n"
    assert mutations.of("a.py", text) == []
    assert len(mutations.of("a.py", text.replace("NotImplementedError", "ValueError"))) == 1


def test_an_assertion_is_not_changed_nor_made_weaker():
    found = mutations.of("a.py", "rows = zip(a, b, strict=True)\nsum(c, start=1)\n")
    assert {one.new for one in found} == {"zip(b, a, strict=True)", "2", "pass"}
    found = mutations.of("a.py", "assert a is None and (b or c) and d < 2, f(3)\n")
    assert {one.new for one in found} == {
        "(a is not None)", "(b and c)", "(d <= 2)", "(d >= 2)", "3",
    }  # fmt: skip
    assert mutations.of("a.py", "raise AssertionError\n") == []
    assert len(mutations.of("a.py", "raise AssertionError(2)\n")) == 1


def test_what_is_left_out_of_a_call_is_a_kind_that_readers_of_signatures_see():
    found = mutations.of("a.py", "def f(a, b=-2, *, c=True):\n    return g(a, 3)\n")
    kinds = {one.new: one.what for one in found}
    assert {kinds.pop(new) for new in ("(2)", "3", "False")} == {mutations.DEFAULT}
    assert mutations.DEFAULT not in kinds.values()
    assert "tests/tensors/test_defaults.py" in nearest.reading_signatures()


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


BLOCKS = {  # of a function's text, at a word of which a place is: the line its block begins with
    "x = 1\ny = 2": "x = 1",
    "def f(\n    a=2,\n):\n    'Says.'\n    return a": "    return a",
    "x = 1\n@cache(2)\n@other\ndef f():\n    return 1": "x = 1",
    "if x:\n    a()\nelif 2:\n    b()": "if x:",
    "if x:\n    a()\nelse:\n    if y:\n        c()\n        b(2)": "        c()",
    "if x:\n    return 1\na()\nb(2)": "a()",
    "a()\nfor x in y:\n    b()\nc(\n    2\n)": "c(",
    "try:\n    a()\nexcept (A, b(2)):\n    pass": "try:",
    "try:\n    a()\nexcept A:\n    b()\n    c(2)": "    b()",
    "match x:\n    case 1:\n        b()\n        c(2)": "        b()",
    "class A:\n    x = 2": "    x = 2",
    "with a(\n    2\n) as b:\n    c()": "with a(",
    "é = [one for one in 'é' if 2]": "é = [one for one in 'é' if 2]",
}


def as_in_python(text: str, place: int) -> int:
    line = text.count("\n", 0, place) + 1
    return through.block_of(text, line, place - text.rfind("\n", 0, place) - 1)


@pytest.mark.parametrize("inner", BLOCKS)
def test_a_place_counts_for_the_block_around_it_which_has_a_mark(inner):
    text = "def outer():\n" + textwrap.indent(inner, "    ")
    lines = text.splitlines()
    line = as_in_python(text, text.index("2"))
    assert lines[line - 1] == "    " + BLOCKS[inner]
    assert line in through.begins(text)
    changed = through.marked(text, {line: 7})
    ast.parse(changed)
    added = [one for one in changed.splitlines() if one not in lines]
    assert [one.strip() for one in added] == [
        through.IMPORT.strip(),
        through.MARK.format(number=7),
    ]
    after = changed.splitlines()
    assert after[after.index(added[1]) + 1] == lines[line - 1]


def test_the_map_is_opened_behind_what_must_come_first():
    text = (
        '"""Says."""\n\nfrom __future__ import annotations\n\nimport os\n\ndef f():\n    return 2\n'
    )
    wanted = text.replace("import os\n", through.IMPORT + "import os\n")
    wanted = wanted.replace("    return 2", "    _mutants_seen[3] = 1\n    return 2")
    assert through.marked(text, {8: 3}) == wanted


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
    assert as_in_python(text, text.index("2")) == 0


def test_functions_that_speak_of_what_a_file_defines_count_for_it(tmp_path):
    text = (
        "LONG: float = 2\n\ndef one():\n    'Says.'\n    return LONG\n\ndef two():\n    return 3\n"
    )
    told = kept(tmp_path, {"a.py": text}, {})
    assert told.number("a.py", text, text.index("2")) == [told.numbers["a.py", 5]]


def test_in_c_the_braces_around_a_place_have_the_mark():
    text = (
        "static int LONG = 1;\nint told(void);\nint one(int a,\n        int b) {\n"
        "  if (a) {\n    b = 2;\n  }\n  struct s c = {\n    3};\n  return b;\n}\n"
    )
    assert through.c_block_of(text, text.index("1")) == 0
    assert through.c_block_of(text, text.index("2")) == 5
    assert through.c_block_of(text, text.index("3")) == 4
    changed = through.marked_c(text, {4: 7, 5: 8}).splitlines()
    assert changed[0] == '#include "base/notes.h"'
    assert changed[4] == f"        int b) {{ {through.C_MARK.format(number=7)}"
    assert changed[5] == f"  if (a) {{ {through.C_MARK.format(number=8)}"


def kept(folder, texts, records):
    """What a run told: of (phase, test) the marks that were passed."""
    (folder / "texts.json").write_text(json.dumps(texts))
    tests = {test: 0.1 for phase, test in records if phase == "call"}
    (folder / "times.json").write_text(json.dumps(tests))
    with (folder / "one.told").open("wb") as file:
        for (phase, test), numbers in records.items():
            seen = bytes(number in numbers for number in range(20))
            pickle.dump((phase, test, zlib.compress(seen)), file)
    return through.Told(folder)


def test_what_was_told_is_of_a_test_or_of_a_file(tmp_path):
    told = kept(
        tmp_path,
        {},
        {
            ("call", "a.py::one"): {1},
            ("setup", "b.py::two"): {1},
            ("call", "b.py::two"): {2},
            ("import", "b.py"): {3},
            ("import", "gone.py"): {3},
            ("program", "tests/c/test_tlsf.c"): {2, 4},
        },
    )
    assert told.passing([[1], [2], [3], [1, 4], [5], []]) == [
        ({"a.py::one"}, {"b.py"}),
        ({"b.py::two", "tests/c/test_tlsf.c"}, set()),
        (set(), {"b.py"}),
        ({"a.py::one", "tests/c/test_tlsf.c"}, {"b.py"}),
        (set(), set()),
        (set(), set()),
    ]


def test_what_was_told_holds_for_a_text_that_was_changed_since(tmp_path):
    old = "def f(x):\n    if x:\n        return 2\n    return 3\n"
    told = kept(tmp_path, {"a.py": old}, {})
    new = "import os\n\n\ndef f(x):\n    if x:\n        y = 9\n        return 2\n    return 3\n"
    at = {line: told.numbers["a.py", line] for line in (2, 3, 4)}
    assert [told.number("a.py", new, new.index(one)) for one in ("if x", "2", "3", "9")] == [
        [at[2]], [at[3]], [at[4]], [at[3]],
    ]  # fmt: skip
    assert told.number("new.py", new, 0) == []
    assert told.above("a.py", new, new.index("3")) == [at[3], at[2]]
    assert told.above("a.py", new, new.index("3"), 1) == [at[3]]
    assert told.above("a.py", new, new.index("if x")) == told.above("new.py", new, 0) == []


def test_after_a_change_the_copy_is_as_before_with_all_that_was_built(tmp_path):
    copy = trees.Copy(tmp_path, names=(), builds=())
    modules = [
        tmp_path / where / "shmgpu" / f"{name}.abi3.so"
        for where in (trees.NORMAL, trees.FAULTS)
        for name in ("_core", "_graph", "_draws", "_json", "_quick", "_http2")
    ]
    files = [tmp_path / "shmgpu/a.py", *modules]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"good {path.name}")
    with copy.changed("shmgpu/a.py", "changed"):
        assert files[0].read_text() == "changed"
        for path in modules:
            path.write_text("built of what was changed")
    assert [path.read_text() for path in files] == [f"good {path.name}" for path in files]
