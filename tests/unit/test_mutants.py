"""The table of mutants fits the tree, so that `make mutants`, which takes minutes, can run."""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import pytest
from mutants.table import MUTANTS, NO_SWITCH, PENDING, THEMES

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = [f"F{number:02}" for number in range(1, 46)]
NAMES = [f"{mutant.row}-{mutant.test.rpartition('::')[2]}" for mutant in MUTANTS]


def slow_marks(tree: ast.AST) -> int:
    """How often ``pytest.mark.slow`` is written in it."""
    return sum(
        isinstance(node, ast.Attribute) and ast.unparse(node).endswith("mark.slow")
        for node in ast.walk(tree)
    )


@pytest.mark.skipif(
    not (ROOT / "shmgpu").is_dir(), reason="the package's sources are not beside these tests"
)
@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_what_a_mutant_switches_off_stands_there_once(mutant):
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.text) == 1
    changed = source.replace(mutant.text, mutant.off)
    assert changed != source
    if mutant.file.endswith(".py"):
        ast.parse(changed)


@functools.cache
def names_of_tests(file: str) -> set[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    names = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    for source in (ROOT / file).parent.glob("*.c"):  # whose tests have names of their own
        names.update(re.findall(r"^TEST\w*\((test_\w+)", source.read_text(), re.MULTILINE))
    for source in (ROOT / "tests/c").glob("*.c"):  # these are told apart by a prefix alone
        names.update(
            f"test_{one}" for one in re.findall(r"^TEST\w*\((\w+)", source.read_text(), re.M)
        )
    return names


@pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)
def test_a_mutants_test_is_its_rows(mutant):
    file, _, name = mutant.test.partition("::")
    assert name.partition("[")[0] in names_of_tests(file)
    assert name.startswith(f"test_{mutant.row.lower()}_") or mutant.row in THEMES


def test_no_rows_test_is_slow():
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        others = [one for one in functions if not re.match(r"test_f\d\d_", one.name)]
        if others != functions:
            # A mark for the module, or one that a helper gives away, would reach a row's test, too.
            elsewhere = slow_marks(tree) - sum(
                slow_marks(decorator) for one in others for decorator in one.decorator_list
            )
            assert elsewhere == 0, f"{file} marks a row's test as slow"


def test_every_row_has_a_mutant_or_a_reason_for_having_none():
    entered = {mutant.row for mutant in MUTANTS} - THEMES.keys()
    assert sorted({*entered, *NO_SWITCH, *PENDING}) == ROWS
    assert not entered & set(PENDING) and all(NO_SWITCH.values())
