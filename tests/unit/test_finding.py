"""What people use to find their way shows the public names, and no more: dir, completion, pydoc."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import json
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap

import pytest

import shmgpu

# What is public and a module; every other module of the package is an inner one.
MODULES = {"amp", "arena", "array_api", "autograd", "cuda", "debug", "distributed", "errors"}
MODULES |= {"linalg", "nn", "optim", "serve"}
WITHIN = {"functional", "init", "utils", "lr_scheduler"}  # public modules of nn and optim
OPTIM = {"SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"}
SOME = {"launch", "init", "function", "Tensor", "tensor", "zeros_like", "relu", "float32", "Adam"}

USED = """
import shmgpu
with shmgpu.init(inline=True):
    (shmgpu.tensor([1.0], requires_grad=True) * 2).sum().backward()
    shmgpu.nn.Linear(2, 1)
import shmgpu.child.port, shmgpu.helper.process, shmgpu.serve.models, shmgpu.cli.main
import shmgpu.debug, shmgpu.nn.layers, shmgpu.optim, shmgpu.former, shmgpu.watch.stats
"""


@functools.cache
def fresh(program: str, cwd: pathlib.Path | None = None) -> dict[str, list[str]]:
    """What a program in a fresh interpreter prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", "import json\n" + program],
        cwd=cwd, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def listed(before: str) -> dict[str, list[str]]:
    """dir() of the package and of its public modules, after a program."""
    return fresh(
        before + "\nimport importlib, shmgpu\n"
        "found = {'': dir(shmgpu)}\n"
        f"for name in {sorted(MODULES)}:\n"
        "    found[name] = dir(importlib.import_module('shmgpu.' + name))\n"
        "print(json.dumps(found))"
    )


def inner_modules() -> set[str]:
    """All modules and packages within the package but the public ones, by their last names."""
    top = shmgpu.__path__[0]
    folders = [top, *(f"{top}/{one}" for one in ("nn", "optim", "serve", "tensors/debug"))]
    return (
        {found.name for found in pkgutil.iter_modules(folders)}
        - MODULES
        - WITHIN
        - {"lr_scheduler"}
    )


def not_public(names: list[str]) -> set[str]:
    """Names that no user should be shown."""
    hidden = {*inner_modules(), "Any", "annotations"}
    return {name for name in names if name in hidden or name[0] == "_"} - {"__version__"}


@pytest.mark.parametrize("before", ["", USED], ids=["at first", "after much was used"])
def test_dir_shows_the_public_names_and_no_inner_module(before):
    found = listed(before)
    for names in found.values():
        assert not not_public(names)
        assert len(names) == len(set(names))
    assert MODULES | SOME <= set(found[""])
    assert {"Linear", "Module", "ReLU", "functional", "init", "utils"} <= set(found["nn"])
    assert {"Optimizer", "lr_scheduler"} | OPTIM == set(found["optim"])
    if importlib.util.find_spec("orjson"):
        assert {*"model Model PreparedInputs QueuePolicy Tensor ensemble".split()} == set(
            found["serve"]
        )
    assert {"enable", "verify", "print_tape"} <= set(found["debug"])
    assert {"empty", "zeros", "array", "shm_malloc"} <= set(found["arena"])


def test_dir_is_the_same_whatever_was_imported_before():
    assert listed("") == listed(USED)


def test_every_name_that_dir_shows_is_there():
    missing = fresh(
        "import types, shmgpu\n"
        "wrong = [name for name in dir(shmgpu) if not hasattr(shmgpu, name)]\n"
        "modules = [name for name in dir(shmgpu)\n"
        "           if isinstance(getattr(shmgpu, name), types.ModuleType)]\n"
        "for name in modules:\n"
        "    module = getattr(shmgpu, name)\n"
        "    wrong += [f'{name}.{one}' for one in dir(module) if not hasattr(module, one)]\n"
        "print(json.dumps({'wrong': wrong, 'modules': sorted(modules)}))"
    )
    assert missing == {"wrong": [], "modules": sorted(MODULES)}


def test_whichever_name_is_used_first_tensors_have_their_methods():
    for first in sorted({"Generator", "arange", "checkpoint", "no_grad", "nn", "optim", "cuda"}):
        assert fresh(
            f"import shmgpu\nshmgpu.{first}\nfrom shmgpu.tensors import base\n"
            "print(json.dumps([hasattr(base.Tensor, one) for one in ('reshape', 'nonzero')]))"
        ) == [True, True], first


def test_without_what_the_server_needs_its_names_are_not_shown_and_pydoc_works():
    assert fresh(
        "import sys, pydoc\n"
        "sys.modules['orjson'] = None\n"
        "import shmgpu\n"
        "text = pydoc.plain(pydoc.render_doc(shmgpu.serve))\n"
        "print(json.dumps([dir(shmgpu.serve), 'Models served to other programs' in text]))"
    ) == [[], True]


def test_what_dir_does_not_show_can_be_imported_all_the_same():
    assert fresh(
        "import shmgpu.child.port, shmgpu\n"
        "from shmgpu import codec\n"
        "print(json.dumps([shmgpu.child.port.__name__, codec.__name__]))"
    ) == ["shmgpu.child.port", "shmgpu.codec"]


@pytest.mark.cold
def test_neither_importing_nor_listing_loads_torch():
    assert fresh(
        "import sys, shmgpu\n"
        "late = ('shmgpu.tensors.tensor', 'shmgpu.nn', 'shmgpu.optim', 'shmgpu.serve', 'torch')\n"
        "before = [name for name in late if name in sys.modules]\n"
        "dir(shmgpu)\n"
        "print(json.dumps([before, 'torch' in sys.modules]))"
    ) == [[], False]


COMPLETERS = {
    "rlcompleter": """
import rlcompleter
def complete(text):
    one = rlcompleter.Completer(globals())
    found = []
    while (name := one.complete(text, len(found))) is not None:
        found.append(name.rpartition(".")[2].rstrip("()"))
    return found
""",
    "jedi": """
import jedi
def complete(text):
    return [one.name for one in jedi.Interpreter(text, [globals()]).complete()]
""",
    "IPython": """
import os
os.environ["IPYTHONDIR"] = os.getcwd()
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
shell.user_ns["shmgpu"] = shmgpu
def complete(text):
    with provisionalcompleter():
        return [one.text.lstrip(".") for one in shell.Completer.completions(text, len(text))]
""",
}


@pytest.mark.parametrize("completer", COMPLETERS)
def test_completion_shows_the_public_names_and_no_inner_module(completer, tmp_path):
    if importlib.util.find_spec(completer) is None:
        pytest.skip(f"{completer} is not installed")
    found = fresh(
        USED + "import shmgpu\n" + COMPLETERS[completer] + "\n"
        "print(json.dumps({text: complete(text) for text in "
        "('shmgpu.', 'shmgpu.nn.', 'shmgpu.serve.', 'shmgpu.debug.', 'shmgpu.arena.')}))",
        cwd=tmp_path,
    )
    for text, names in found.items():
        shown = [name for name in names if not name.startswith("__")]  # what every object has
        assert not not_public(shown), text
    assert MODULES | SOME <= set(found["shmgpu."])
    assert {"Linear", "Sequential"} <= set(found["shmgpu.nn."])


@functools.cache
def description() -> list[str]:
    """What ``pydoc shmgpu`` says before its lists of modules, classes and functions."""
    done = subprocess.run(
        [sys.executable, "-m", "pydoc", "shmgpu"], capture_output=True, text=True, timeout=100
    )
    head, _, rest = done.stdout.partition("\nPACKAGE CONTENTS\n")
    assert rest, done.stderr
    return head.splitlines()


def test_pydoc_begins_with_what_it_is_a_start_and_the_names():
    lines = description()
    assert lines[3].startswith("    shmgpu - Many CPU processes share")
    text = "\n".join(lines)
    start, names, inner = (
        text.index(one) for one in ("import shmgpu", " launch  ", "internal: they")
    )
    assert start < names < inner
    assert lines[:40].index(next(line for line in lines if line.endswith("import shmgpu"))) < 20


def test_every_public_name_has_its_line_in_pydoc_and_no_other_has():
    listed = [re.match(r" {8}(\w+) {2,}\S", line) for line in description()]
    named = [found[1] for found in listed if found]
    assert len(named) == len(set(named))
    assert set(named) <= set(dir(shmgpu))
    from shmgpu.tensors.tensor import DTYPES, FUNCTIONS

    text = " ".join("\n".join(description()).split("The names, by purpose")[1].split())
    missing = {name for name in dir(shmgpu) if not re.search(rf"\b{name}\b", text)}
    assert missing == {"__version__"}
    short = {name for name in set(dir(shmgpu)) - set(named) if f"also {name}" not in text}
    also = {"nan", "pi", "e", "newaxis"}
    assert short - also == {"__version__", "SGD", "Adam", "AdamW", *FUNCTIONS, *DTYPES}


def test_the_start_that_pydoc_shows_runs(tmp_path):
    lines = inspect.getdoc(shmgpu).partition("A complete program::\n")[2].splitlines()
    block = itertools.takewhile(lambda line: line[:1] in ("", " "), lines)
    program = tmp_path / "start.py"
    program.write_text(textwrap.dedent("\n".join(block)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2560.0 * rank for rank in range(32)]
