"""An import or include only ever points down, and every file has its row in the table.

The tables are in tests/house.py, which says how to read them. There are no exceptions.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re

import house
import pytest
from house import C_ROWS, PYTHON_ROWS

ROOT = pathlib.Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
PACKAGE = ROOT / "shmgpu"

USES = {
    "any": {"any"},
    "child": {"any", "child"},
    "helper": {"any", "helper"},
    "parent": {"any", "child", "helper", "parent"},
}

# Who imports by a name that is not written out where it is imported, and what.
BY_NAME = {
    "function_table": "bodies that only helpers import, whose names are looked at here",
    "common/module_loader": "users' modules",
    "serve/models/preprocessing": "users' modules",
    "former": "where pickles of earlier releases find what they name",
    "__init__": "public names, when they are first used",
    "distributed/__init__": "public names, when they are first used",
}

needs_sources = pytest.mark.skipif(
    not PACKAGE.is_dir(), reason="the package's sources are not beside these tests"
)


def c_files() -> list[pathlib.Path]:
    return sorted(CSRC.rglob("*.[ch]"))


def python_files() -> list[pathlib.Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def nodes_of(path: pathlib.Path) -> list[ast.AST]:
    """All that a file has, of the kinds that are asked for here: it is read by several tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Constant)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def is_import(call: ast.Call) -> bool:
    """Whether a function that imports is called there."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def python_module(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix()


def c_module(path: pathlib.Path) -> str:
    return house.c_module(path.relative_to(CSRC).with_suffix("").as_posix())


def c_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and module of every ``#include "wing/module.h"``."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+["<]([\w./-]+)[">]', line)
        if include and (CSRC / include.group(1)).exists():
            found.append((number, c_module(CSRC / include.group(1))))
    return found


@functools.cache
def python_uses(path: pathlib.Path) -> list[tuple[int, str]]:
    """Line and file of every import of this package, lazily and by ``importlib``, too."""
    found = []
    inside = path.relative_to(PACKAGE).parts[:-1]
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = ("shmgpu", *inside)[: len(inside) + 2 - node.level]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and is_import(node):
            first = node.args[0] if node.args else None
            names = [str(first.value)] if isinstance(first, ast.Constant) else []
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "shmgpu":
                found.append((node.lineno, _file_of(PACKAGE, name)))
    return found


@functools.cache
def named_bodies(path: pathlib.Path) -> list[tuple[int, str, str]]:
    """Line, file and name of every body that helpers find by its name, ``"shmgpu.module:body"``."""
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named = re.fullmatch(r"(shmgpu(?:\.\w+)+):(\w+)", node.value)
            if named:
                found.append((node.lineno, _file_of(PACKAGE, named[1]), named[2]))
    return found


@functools.cache
def imports_by_name(path: pathlib.Path) -> bool:
    """Whether it imports what is not written out there."""
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call) and is_import(node)]
    return any(not call.args or not isinstance(call.args[0], ast.Constant) for call in calls)


@functools.cache
def _file_of(package: pathlib.Path, name: str) -> str:
    """What a dotted name is asked of: a module, or the package that has it as a name."""
    parts = name.split(".")[1:]
    if parts[:1] in (["_core"], ["_graph"], ["_draws"], ["_json"], ["_quick"], ["_http2"]):
        return parts[0]
    while parts:
        place = package.joinpath(*parts)
        if place.with_suffix(".py").exists():
            return "/".join(parts)
        if place.with_suffix(".pyi").exists():
            return STUB
        if (place / "__init__.py").exists():
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "__init__"  # `from shmgpu import launch` asks the package itself


# What is there for type checkers only: it is never imported, and knows what it describes.
STUB = "stub"


def needs_no_row(path: pathlib.Path) -> bool:
    """A package's first file that says what the package is, and nothing else."""
    return path.name == "__init__.py" and not python_uses(path)


Use = tuple[pathlib.Path, int, str, str]  # file and line, who uses, what is used


def all_uses() -> list[Use]:
    found = []
    for files, module_of, uses, rows in (
        (c_files, c_module, c_uses, C_ROWS),
        (python_files, python_module, python_uses, PYTHON_ROWS),
    ):
        for path in files():
            here = module_of(path)
            for line, used in uses(path):
                if here in rows and used in rows and used != here:
                    found.append((path.relative_to(ROOT), line, here, used))
    return found


def points_up(use: Use) -> bool:
    path, _, here, used = use
    rows = list(C_ROWS if path.parts[0] == "csrc" else PYTHON_ROWS)
    return rows.index(used) > rows.index(here)


def goes_across(use: Use) -> bool:
    path, _, here, used = use
    rows = C_ROWS if path.parts[0] == "csrc" else PYTHON_ROWS
    if path.name == "__init__.py" and rows[here] == "any":  # what a package offers, to whomever
        return False
    return rows[used] not in USES[rows[here]]


@needs_sources
@pytest.mark.parametrize(
    ("files", "module_of", "rows"),
    [(c_files, c_module, C_ROWS), (python_files, python_module, PYTHON_ROWS)],
    ids=["c", "python"],
)
def test_every_file_has_a_row_in_the_table_and_every_row_a_file(files, module_of, rows):
    strangers = [
        str(path.relative_to(ROOT))
        for path in files()
        if module_of(path) not in rows and not needs_no_row(path)
    ]
    assert not strangers, (
        f"{strangers} stand on no floor: add a row to the table in tests/house.py."
    )
    assert not rows.keys() - {module_of(path) for path in files()}


@pytest.mark.parametrize("rows", [C_ROWS, PYTHON_ROWS], ids=["c", "python"])
def test_the_files_of_a_wing_stand_together(rows):
    """With no use that points up, there is then no circle of wings."""
    for depth in (1, 2, 3):
        seen: list[str] = []
        for name in rows:
            wing = "/".join(name.split("/")[:-1][:depth])
            if wing.count("/") == depth - 1 and wing and wing not in seen[-1:]:
                assert wing not in seen, f"{name} stands apart from the other files of {wing}/"
                seen.append(wing)
            elif not wing or wing.count("/") != depth - 1:
                seen.append("")


@needs_sources
def test_nothing_points_up():
    wrong = [use for use in all_uses() if points_up(use)]
    told = [f"{path}:{line}: {here} is below {used}" for path, line, here, used in wrong]
    assert not wrong, "\n".join(["These point up:", *told])


@needs_sources
def test_nothing_uses_what_runs_elsewhere():
    wrong = [use for use in all_uses() if goes_across(use)]
    both = {**C_ROWS, **PYTHON_ROWS}
    told = [
        f"{path}:{line}: {here} runs in {both[here]}, {used} in {both[used]}"
        for path, line, here, used in wrong
    ]
    assert not wrong, "\n".join(["These use what runs elsewhere:", *told])


@needs_sources
def test_a_body_that_is_named_runs_in_helpers_and_stands_on_a_lower_floor():
    rows = list(PYTHON_ROWS)
    found = [(path, *body) for path in python_files() for body in named_bodies(path)]
    assert found, "nothing is found by name any more: take out this test"
    for path, line, module, name in found:
        where = f"{path.relative_to(ROOT)}:{line}"
        assert PYTHON_ROWS[module] == "helper", f"{where}: {module} does not run in helpers alone"
        assert rows.index(module) < rows.index(python_module(path)), (
            f"{where}: {module} stands above"
        )
        tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
        defined = [one.name for one in tree.body if isinstance(one, ast.FunctionDef)]
        assert name in defined, f"{where}: {module} has no {name}"


@needs_sources
def test_nobody_else_imports_by_a_name_that_is_not_written_out():
    assert {python_module(path) for path in python_files() if imports_by_name(path)} == set(BY_NAME)


@needs_sources
@pytest.mark.parametrize(
    ("module", "user"),
    [
        ("_core", "core/binding"),
        ("_graph", "ops/graph"),
        ("_draws", "ops/drawing"),
        ("_json", "serve/protocol/json_numbers"),
        ("_quick", "child/quick"),
    ],
)
def test_a_compiled_module_is_known_to_one_file(module, user):
    users = {
        python_module(path)
        for path in python_files()
        for _, used in python_uses(path)
        if used == module
    }
    assert users <= {user}, f"Only {user} imports shmgpu.{module}, not {sorted(users)}."


def test_nobody_outside_knows_the_binding():
    for folder in ("benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "shmgpu._core" not in path.read_text(encoding="utf-8"), path


def test_the_guard_sees_an_upward_import(tmp_path, monkeypatch):
    """The reader of imports finds each spelling; else the tests above prove nothing."""
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "__init__.py").write_text("")
    (tmp_path / "broker" / "launch.py").write_text("")
    (tmp_path / "debug.py").write_text("")
    low = tmp_path / "broker" / "errors.py"
    low.write_text(
        "import shmgpu.broker.launch\n"
        "from shmgpu.broker import launch\n"
        "from shmgpu.broker.launch import run\n"
        "from . import launch\n"
        "from .launch import run\n"
        "importlib.import_module('shmgpu.broker.launch')\n"
        "def later():\n"
        "    from .. import debug\n"
        "    from ..debug import enable\n"
        "    from shmgpu import _core, run\n"
    )
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    assert sorted(python_uses(low)) == [
        *((line, "broker/launch") for line in range(1, 7)),
        (8, "debug"),
        (9, "debug"),
        (10, "__init__"),
        (10, "_core"),
    ]
