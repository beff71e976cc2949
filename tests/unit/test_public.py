"""What is public is named by a test: names, settings, flags, keywords.

That a test names something does not say that it looks at what it does; that none does says that
nobody would notice if it did nothing.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import pathlib
import re
from collections.abc import Iterator

import pytest

import shmgpu
from shmgpu import nn
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
    callables = {
        "launch": shmgpu.launch, "init": shmgpu.init, "function": shmgpu.function,
        "options": shmgpu.functions.Function.options, "map": shmgpu.functions.Function.map,
        "Batch": shmgpu.Batch, "connect": shmgpu.connect, "claim": shmgpu.claim,
        "ensure": shmgpu.ensure, "serve.model": model,
    }  # fmt: skip
    return [
        f"{name}({keyword}=)"
        for name, target in callables.items()
        for keyword, one in inspect.signature(target).parameters.items()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD) and keyword != "self"
        and one.default is not one.empty
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(shmgpu.__all__))
def test_a_public_name_is_used_by_a_test(name):
    assert re.search(rf"\b{name}\b", text_of_the_tests()), f"no test names shmgpu.{name}: {TOLD}"


@pytest.mark.parametrize("name", sorted(nn.__all__))
def test_a_public_name_of_nn_is_used_by_a_test(name):
    assert re.search(rf"\b{name}\b", text_of_the_tests()), f"no test names nn.{name}: {TOLD}"


@pytest.mark.parametrize("name", sorted([*config.SETTINGS, "socket"]))
def test_a_variable_is_set_by_a_test(name):
    variable = f"SHMGPU_{name.upper()}"
    assert re.search(rf"\b{variable}\b", text_of_the_tests()), f"no test sets {variable}: {TOLD}"


@pytest.mark.parametrize("flag", flags_of_commands())
def test_a_flag_is_given_by_a_test(flag):
    command, _, name = flag.rpartition(" ")
    given = re.search(rf"(?<![\w-]){name}(?![\w-])", text_of_the_tests())
    if command == "serve" and not given:  # servers of tests take flags as keywords
        given = re.search(rf"\b{name[2:].replace('-', '_')}=", text_of_the_tests())
    assert given, f"no test gives shmgpu {flag}: {TOLD}"


@pytest.mark.parametrize("one", keywords())
def test_a_keyword_is_given_by_a_test(one):
    keyword = one.partition("(")[2].removesuffix("=)")
    by_place = {"ensure(modules=)": r"\bensure\(\["}.get(one, "(?!)")
    wanted = rf"""\b{keyword}=|["']{keyword}["']:|{by_place}"""
    if one.startswith("serve.model("):  # others have such keywords too
        inside = r"[^()]"
        for _ in range(3):  # parentheses in parentheses
            inside = rf"(?:[^()]|\({inside}*\))"
        wanted = rf"\bmodel\({inside}*?\b{keyword}="
    given = re.search(wanted, text_of_the_tests())
    assert given, f"no test gives {one}: {TOLD}"
