"""The newcomer's tour names files and functions as they are."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOUR = ROOT / "csrc" / "README.md"


def quoted() -> set[str]:
    """What stands in backticks, outside of blocks."""
    prose = re.sub(r"(?s)```.*?```", "", TOUR.read_text(encoding="utf-8"))
    return set(re.findall(r"`([^`\n]+)`", prose))


def test_functions_of_the_tour_exist():
    core = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc").rglob("*.[ch]"))
    named = {text[:-2] for text in quoted() if re.fullmatch(r"\w+\(\)", text)}
    assert len(named) > 30
    missing = {name for name in named if not re.search(rf"(?m)\b{name}\([^;]*\)\s*[{{;]", core)}
    assert missing <= {"init"}, missing


def test_rooms_of_the_core_stand_in_the_tours_table():
    table = set(re.findall(r"\]\(([\w/]+)\.[ch]\)", TOUR.read_text(encoding="utf-8")))
    csrc = ROOT / "csrc"
    files = {path.relative_to(csrc).with_suffix("") for path in csrc.rglob("*.[ch]")}
    parts = {path for path in files if path.with_name(path.name.split("_")[0]) in files}
    inside = {path for path in files if path.name.endswith("_internal")}  # of the room of that name
    whole = {path for path in parts if "_" not in path.name} | (files - parts - inside)
    modules = {path.as_posix() for path in whole} - {"callbacks"}
    assert modules == table


@pytest.mark.skipif(not (ROOT / "shmgpu").is_dir(), reason="the package's sources are not here")
def test_python_of_the_tour_exists():
    for class_name, method, path in re.findall(
        r"`(\w+)\.(\w+)`\s+\((shmgpu/[\w/]+\.py)\)", TOUR.read_text(encoding="utf-8")
    ):
        source = (ROOT / path).read_text(encoding="utf-8")
        body = source.partition(f"class {class_name}")[2]
        assert f"def {method}(" in body, f"{class_name}.{method} is not in {path}"
