"""What is public is named by a test: names, settings, flags, keywords.

That a test names something does not say that it looks at what it does; that none does says that
nobody would notice if it did nothing.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmgpu
from shmgpu.cli import main as cli
from shmgpu.common import config
from shmgpu.serve.models.declaration import model

TESTS = pathlib.Path(__file__).resolve().parents[1]
TOLD = "write a test that fails when it does nothing"


@functools.cache
def text_of_the_tests() -> str:
    """All but this file, and what the mutants break."""
    files = [path for path in TESTS.rglob("*.py") if path != pathlib.Path(__file__).resolve()]
    files = [path for path in files if "mutants" not in path.relative_to(TESTS).parts]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@functools.cache
def words_of_the_tests() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text_of_the_tests()))


@functools.cache
def given_in_the_tests() -> frozenset[str]:
    """What stands before ``=`` or is a key of a dictionary."""
    pairs = re.findall(r"""\b(\w+)(?==[^=])|["'](\w+)["']:""", text_of_the_tests())
    return frozenset(word for pair in pairs for word in pair)


@functools.cache
def flags_of_the_tests() -> frozenset[str]:
    return frozenset(re.findall(r"(?<![\w-])--?[\w-]+", text_of_the_tests()))


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    parser = cli._parser()
    yield "", parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def flags_of_commands() -> list[str]:
    found = []
    for command, parser in parsers():
        for action in parser._actions:
            longest = max(action.option_strings, key=len, default="")
            if longest and longest != "--help":
                found.append(f"{command} {longest}".strip())
    return found


def keywords() -> list[str]:
    """Of what starts, joins and declares; an argument of one is looked for by its name."""
    callables = {
        "launch": shmgpu.launch, "init": shmgpu.init, "function": shmgpu.function,
        "options": shmgpu.functions.Function.options, "map": shmgpu.functions.Function.map,
        "Batch": shmgpu.Batch, "connect": shmgpu.connect, "claim": shmgpu.claim,
        "ensure": shmgpu.ensure, "serve.model": model,
    }  # fmt: skip
    return [f"{name}({one}=)" for name, call in callables.items() for one in left_out(call)]


def left_out(call: Callable[..., Any]) -> list[str]:
    """The arguments that a call may leave out."""
    return [
        name
        for name, one in signature(call).items()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
        and one.default is not one.empty
    ]


def signature(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(call).parameters)
    except (TypeError, ValueError):  # written in C, or nothing to call
        return {}
    return {name: one for name, one in found.items() if name != "self"}


def public_calls(module: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions, classes and the methods that are theirs."""
    for name in public_names(module):
        one = getattr(importlib.import_module(module), name)
        if callable(one):
            yield name, one
        if inspect.isclass(one):
            own = {k: v for k, v in vars(one).items() if not k.startswith("_")}
            yield from (
                (f"{name}.{method}", call) for method, call in own.items() if callable(call)
            )


def public_names(module: str) -> list[str]:
    return public_names_of(importlib.import_module(module))


def public_names_of(one: Any) -> list[str]:
    return [name for name in dir(one) if not name.startswith("_")]


PUBLIC = (
    "shmgpu",
    *(f"shmgpu.{name}" for name in ("amp", "arena", "debug", "errors", "nn", "optim", "serve")),
    *(f"shmgpu.nn.{name}" for name in ("functional", "init", "utils")),
    "shmgpu.optim.lr_scheduler",
)
MADE_BY_US = {  # programs get them, and do not make them
    "Block", "Data", "Membership", "Model", "Instruction", "Optimizer",
    *(name for name in dir(shmgpu.errors) if name.endswith(("Error", "Full", "Died"))),
}  # fmt: skip
BY_PLACE = {"Tensor.random_(from_=)"}  # torch's is called as a word of the language


@pytest.mark.parametrize("module", PUBLIC)
def test_each_argument_of_a_public_call_is_given_by_a_test(module):
    missing = [
        f"{name}({one}=)"
        for name, call in public_calls(module)
        if name not in MADE_BY_US
        for one in left_out(call)
        if one not in given_in_the_tests()
    ]
    assert set(missing) - BY_PLACE == set(), TOLD


@pytest.mark.parametrize("module", PUBLIC)
def test_each_public_name_is_used_by_a_test(module):
    names = public_names(module) + (public_names_of(shmgpu.Tensor) if module == "shmgpu" else [])
    missing = [name for name in names if name not in words_of_the_tests()]
    assert missing == [], f"no test names them: {TOLD}"


@pytest.mark.parametrize("name", sorted([*config.SETTINGS, "socket"]))
def test_a_variable_is_set_by_a_test(name):
    variable = f"SHMGPU_{name.upper()}"
    assert variable in words_of_the_tests(), f"no test sets {variable}: {TOLD}"


@pytest.mark.skipif(
    not (TESTS.parent / "shmgpu").is_dir(),
    reason="the package's sources are not beside these tests",
)
def test_each_variable_that_the_source_reads_is_set_by_a_test():
    sources = [
        path
        for wing in ("shmgpu", "csrc")
        for path in (TESTS.parent / wing).rglob("*.*")
        if path.suffix in (".py", ".c", ".h")
    ]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    found = set(re.findall(r"""["'](SHMGPU_[A-Z][A-Z_]*[A-Z])["']""", text))
    missing = found - words_of_the_tests()
    assert len(found) > 3 and missing <= {"SHMGPU_BUILD_FAULTS"}, TOLD  # make sets that


@pytest.mark.parametrize("flag", flags_of_commands())
def test_a_flag_is_given_by_a_test(flag):
    command, _, name = flag.rpartition(" ")
    given = name in flags_of_the_tests()
    if command == "serve" and not given:  # servers of tests take flags as keywords
        given = name[2:].replace("-", "_") in given_in_the_tests()
    assert given, f"no test gives shmgpu {flag}: {TOLD}"


@pytest.mark.parametrize("one", keywords())
def test_a_keyword_is_given_by_a_test(one):
    keyword = one.partition("(")[2].removesuffix("=)")
    given = keyword in given_in_the_tests()
    if one == "ensure(modules=)":  # by its place
        given = "ensure([" in text_of_the_tests()
    if one.startswith("serve.model("):  # others have such keywords too
        inside = r"[^()]"
        for _ in range(3):  # parentheses in parentheses
            inside = rf"(?:[^()]|\({inside}*\))"
        given = re.search(rf"\bmodel\({inside}*?\b{keyword}=", text_of_the_tests())
    assert given, f"no test gives {one}: {TOLD}"


def functions_of(text: str) -> Iterator[tuple[str, bool, dict[str, str]]]:
    """(name, whether it is an overload, the defaults by argument) of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            places = [*node.args.posonlyargs, *node.args.args]
            given = [*zip(reversed(places), reversed(node.args.defaults), strict=False)]
            given += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            defaults = {one.arg: ast.unparse(value) for one, value in given if value is not None}
            is_overload = any("overload" in ast.unparse(one) for one in node.decorator_list)
            yield node.name, is_overload, defaults


def test_what_type_checkers_are_told_is_left_out_is_what_a_call_leaves_out():
    compared, overloads = 0, []
    for path in sorted(pathlib.Path(shmgpu.__file__).parent.rglob("*.py")):
        for name, is_overload, defaults in functions_of(path.read_text(encoding="utf-8")):
            if is_overload:
                overloads.append((name, defaults))
                continue
            while overloads:  # they stand right before what they are of
                other, told = overloads.pop()
                assert other == name
                for argument, value in told.items():
                    if value != "...":
                        compared += 1
                        assert defaults.get(argument, value) == value, f"{name} {argument}"
    assert compared >= 10
