"""The package's pages name every public name, parameter and setting, as they are."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re

import pytest

import shmgpu
from shmgpu import errors
from shmgpu.common import config

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "shmgpu" / "README.md"  # the map of the package
WINGS = ("attach", "broker", "child", "common", "helper", "serve", "tensors", "watch")

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the package's pages are not here")


def page_of(wing: str) -> str:
    return (PAGE.parent / wing / "README.md").read_text(encoding="utf-8")


def all_pages() -> str:
    """The pages for users: of each wing that has public names, and of errors."""
    errors_page = (PAGE.parent / "ERRORS.md").read_text(encoding="utf-8")
    return "\n".join([errors_page, *map(page_of, WINGS)])


def rows(wing: str, heading: str) -> list[list[str]]:
    """Cells of the tables under a heading of a wing's page."""
    text = page_of(wing)
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_public_name_is_on_a_page():
    text = all_pages()
    missing = [name for name in shmgpu.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing in ([], ["__version__"])
    assert not [name for name in shmgpu.arena.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not [name for name in errors.__all__ if name not in text]


def test_the_map_says_on_which_page_each_public_name_is():
    index = PAGE.read_text(encoding="utf-8").partition("\n## The public names\n")[2]
    index = index.partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", index)) - {"shmgpu", "SHMGPU_"}
    assert not {*shmgpu.__all__} - {*errors.__all__} - listed - {"__version__"}
    assert all(hasattr(shmgpu, name) or hasattr(shmgpu.serve, name) for name in listed)


def test_the_table_of_settings_is_that_of_the_code():
    variables = [cells for cells in rows("common", "Variables") if "SHMGPU_" in cells[0]]
    table = {cells[0].strip("`"): cells[2] for cells in variables}
    expected = {}
    for name, setting in config.SETTINGS.items():
        default = setting.default
        if isinstance(default, bool):
            default = int(default)
        expected[config.PREFIX + name.upper()] = "none" if default in (None, "") else str(default)
    assert table == expected


@pytest.mark.parametrize("entry", ["launch", "init"])
def test_the_parameters_of_launch_and_init_are_on_the_page(entry):
    described = {
        cells[0].strip("`")
        for cells in rows("broker", "Starting and ending")
        if len(cells) == 3 and cells[1] in (entry, "both")
    }
    actual = set(inspect.signature(getattr(shmgpu, entry)).parameters) - {"main"}
    assert described == actual


def test_the_parameters_of_a_function_are_on_the_page():
    table = rows("helper", "Functions")[2:]
    described = {cells[0].strip("`") for cells in table if len(cells) == 3}
    actual = set(inspect.signature(shmgpu.Function.__init__).parameters) - {"self", "body"}
    assert described == actual


def test_what_model_files_import_is_on_the_page():
    models = pytest.importorskip(
        "shmgpu.serve.models.declaration", reason="shmgpu[serve] is not installed"
    )
    from shmgpu import serve

    table = rows("serve", "Model files")
    named = {re.match(r"`(\w+)", cells[0]).group(1) for cells in table if cells[0][0] == "`"}
    assert set(serve.__all__) <= named
    tensor = next(cells[0] for cells in table if cells[0].startswith("`Tensor("))
    fields = [one.name for one in dataclasses.fields(models.Tensor)]
    assert [name for name in re.findall(r"\w+", tensor) if name in fields] == fields
    described = {cells[0].strip("`") for cells in table if len(cells) == 3} - {"---"}
    actual = set(inspect.signature(models.model).parameters)
    assert described - {"parameter of `model"} == actual


def test_every_file_is_in_the_table_or_in_a_folder_that_is():
    text = PAGE.read_text(encoding="utf-8").partition("\n## The files\n")[2]
    named = set(re.findall(r"\]\(([\w/]+)\.py\)", text))
    folders = re.findall(r"\]\((\w[\w/]*)\)", text)
    files = {
        path.relative_to(PAGE.parent).with_suffix("").as_posix()
        for path in PAGE.parent.rglob("*.py")
        if path.stem not in ("__init__", "__main__")
    }
    assert named <= files
    inside = {name for name in files for folder in folders if name.startswith(f"{folder}/")}
    assert files - inside <= named
