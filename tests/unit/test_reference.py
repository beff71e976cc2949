"""The package's pages name every public name, parameter and setting, as they are."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import pathlib
import re

import pytest

import shmgpu
from shmgpu import errors
from shmgpu.cli import main as cli
from shmgpu.common import settings, settings_page

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "shmgpu" / "README.md"  # the map of the package
WINGS = ("attach", "broker", "child", "common", "helper", "serve", "tensors", "watch")
RUN = "run python -m shmgpu.common.settings_page and commit what it writes"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the package's pages are not here")


def page_of(wing: str) -> str:
    return (PAGE.parent / wing / "README.md").read_text(encoding="utf-8")


def all_pages() -> str:
    """The pages for users: of each wing that has public names, and of errors."""
    errors_page = (PAGE.parent / "ERRORS.md").read_text(encoding="utf-8")
    return "\n".join([errors_page, *map(page_of, WINGS)])


def help_of(command: str) -> str:
    """What ``shmgpu COMMAND --help`` prints."""
    with pytest.raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
        cli.main([command, "--help"])
    return printed.getvalue()


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


def test_the_tables_of_settings_are_made_from_the_list():
    assert settings_page.table_of_variables() in page_of("common"), (
        "run python -m shmgpu.common.settings_page"
    )
    assert settings_page.table_of_parameters() in page_of("broker"), (
        "run python -m shmgpu.common.settings_page"
    )


@pytest.mark.parametrize("taker", ["launch", "init"])
def test_parameters_are_those_of_the_list_with_their_types(taker):
    taken = inspect.signature(getattr(shmgpu, taker)).parameters
    assert set(taken) - {"main"} == set(settings.names(taker))
    for name in settings.names(taker):
        annotation = taken[name].annotation.removesuffix(" | None")
        assert annotation == settings.BY_NAME[name].type, name


@pytest.mark.parametrize("command", ["up", "doctor", "serve"])
def test_commands_have_a_flag_for_each_setting_that_they_take(command):
    flags = {line.split()[0] for line in help_of(command).splitlines() if "--" in line[:8]}
    assert {"--" + name.replace("_", "-") for name in settings.names(command)} <= flags


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
