"""The page on trust: each of its sentences names a test that there is."""

from __future__ import annotations

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "shmgpu" / "TRUST.md"
NAMED = re.compile(r"`([\w/]+\.(?:py|c))::(\w+)`")


@pytest.fixture(scope="module")
def text():
    if not PAGE.exists():
        pytest.skip("the package's sources are not beside these tests")
    return PAGE.read_text(encoding="utf-8")


def test_each_test_that_the_page_names_exists(text):
    named = NAMED.findall(text)
    assert named
    for file, name in named:
        source = (TESTS / file).read_text(encoding="utf-8")
        kind = r"(?m)^def " if file.endswith(".py") else r"(?m)^TEST\w*\("
        assert re.search(rf"{kind}{name}\b", source), f"{file} has no {name}: name one that it has"


def test_each_sentence_about_a_neighbour_has_a_test(text):
    rows = [line for line in text.splitlines() if re.match(r"\| (?!it \|)", line)]
    assert len(rows) > 20
    for row in rows:
        sentence, shown = row.strip("| ").rsplit(" | ", 1)
        assert sentence and NAMED.sub("", shown).strip(", ") == "", row


def test_every_kind_of_neighbour_has_its_table(text):
    for head in ("A child", "A process that a child forked", "Another process of the same user",
                 "An attached program of the same user", "An attached program of the group",
                 "A client of the server"):  # fmt: skip
        part = text.split(f"\n## {head}\n")[1].split("\n## ")[0]
        assert "\n| it | shown by |\n" in part, head
