"""Bounds of what is kept, read or taken at once: with one of nothing there would be none of it."""

from __future__ import annotations

import importlib
import pathlib
import re

import pytest

import shmgpu

PACKAGE = pathlib.Path(shmgpu.__file__).parent
WRITTEN = re.compile(r"(?m)^(_*[A-Z][A-Z0-9_]*)(?:: \w+)? = \(?\d+ (?:<<|>>) \d+")
FOUND = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): names
    for path in sorted(PACKAGE.rglob("*.py"))
    if "demo" not in path.parts  # which imports all of torch
    and (names := WRITTEN.findall(path.read_text(encoding="utf-8")))
}


@pytest.mark.parametrize("module", FOUND)
def test_a_bound_that_is_written_as_a_power_of_two_is_a_large_one(module):
    loaded = pytest.importorskip(module, exc_type=ImportError)
    small = {name: getattr(loaded, name) for name in FOUND[module] if getattr(loaded, name) < 64}
    assert not small


def test_there_are_some():
    assert len(FOUND) > 20 and importlib.import_module("shmgpu.codec.arrays").MAX_BYTES == 1 << 47
