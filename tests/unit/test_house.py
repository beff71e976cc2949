"""Whoever looks for something finds its place: wings say what they are for, files what they own."""

from __future__ import annotations

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


@pytest.mark.parametrize("wing", house.wings(), ids=lambda wing: wing.path)
def test_a_wing_says_what_it_is_for_and_what_it_never_does(wing):
    assert wing.purpose.endswith("."), f"{wing.path}: begin its __init__.py with one line"
    assert wing.never, f'{wing.path}: its __init__.py has no sentence that begins with "Never"'


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
