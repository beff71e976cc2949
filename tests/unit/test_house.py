"""Whoever looks for something finds its place: wings say what they are for, files what they own."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys

import house
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / "shmgpu").is_dir(), reason="the package's sources are not beside these tests"
)


def printed(*arguments: str) -> str:
    """What ``make house`` prints."""
    command = [sys.executable, str(ROOT / "tests" / "house.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_wing_says_what_it_is_for_and_what_it_never_does():
    for wing in house.wings():
        assert wing.purpose.endswith("."), f"{wing.path}: begin its __init__.py with one line"
        assert wing.never, f'{wing.path}: its __init__.py has no sentence that begins with "Never"'


# Heads that are written for users, and wings whose own heads say it for all of their files.
SILENT = ("shmgpu/__init__", "shmgpu/__main__", "shmgpu/tensors/message", "shmgpu/distributed/")


def c_and_python_files() -> list[pathlib.Path]:
    return [*(ROOT / "csrc").rglob("*.[ch]"), *(ROOT / "shmgpu").rglob("*.py")]


def test_every_file_begins_with_a_line_that_says_what_it_owns():
    wrong = []
    for path in c_and_python_files():
        if path.suffix == ".py":
            says = house.first_line(path).endswith((".", ":"))
        else:
            found = re.match(
                rf"/\* {path.stem} -- (see \w+\.h\.)?", path.read_text(encoding="utf-8")
            )
            speaks_elsewhere = path.suffix == ".c" and path.with_suffix(".h").exists()
            says = bool(found) and (not found[1] or speaks_elsewhere) and house.first_line(path)
        if not says:
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong, f"begin {wrong} with what they own, C files with their own name before it"


def test_every_file_says_what_it_never_does():
    """A part of a C module refers to the header that says it for all parts."""
    silent = []
    for path in c_and_python_files():
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        if name.startswith(SILENT):
            continue
        head = house.docstring(path) if path.suffix == ".py" else house.opening(path)
        elsewhere = path.suffix != ".py" and re.search(r"\bsee\s+\w+\.h\b", head, re.IGNORECASE)
        if not elsewhere and not re.search(r"\bnever\b", head, re.IGNORECASE):
            silent.append(name)
    assert not silent, f"the heads of {silent} must say what the files never do"


def test_every_wing_and_every_file_is_printed():
    text = "\n" + printed()
    for top in house.TOP:
        for path in sorted((ROOT / top).rglob("*.py" if top != "csrc" else "*.[ch]")):
            wing = text.partition(f"\n{path.parent.relative_to(ROOT)}/\n")[2].partition("\n\n")[0]
            shown = re.escape(path.stem) + r"[.](\[ch\]|py|[ch])"
            if path.name != "__init__.py":
                assert re.search(rf"(?m)^    {shown} .*\S", wing), f"{path} is not printed"


def test_the_table_of_wings_in_contributing_is_that_of_the_tree():
    page = ROOT / "CONTRIBUTING.md"
    if not page.exists():
        pytest.skip("the pages are not beside these tests")
    assert printed("--short") in page.read_text(encoding="utf-8"), (
        "put into CONTRIBUTING.md what `python tests/house.py --short` prints"
    )


def test_make_help_names_it():
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True)
    assert re.search(r"(?m)^make house +\S", done.stdout), done.stderr


# Public names that stand for two things, each in its own module.
TWICE = {"Tensor"}  # shmgpu.Tensor, and shmgpu.serve.Tensor: both public


def test_no_two_classes_have_one_name():
    """A notion has one name, and a name one meaning; examples are programs of their own."""
    found: dict[str, list[str]] = {}
    for top in ("shmgpu", "benchmarks", ".site"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.setdefault(node.name, []).append(where)
    twice = {name: where for name, where in found.items() if len(where) > 1}
    assert set(twice) == TWICE, twice
