"""The pages of the package, for tests that hold something against them.

A wheel brings none: ``make dist`` runs the tests beside one, and such a test is skipped there.
"""

from __future__ import annotations

import pathlib

import pytest


def text_of(page: pathlib.Path) -> str:
    """What it says; where there is none the test is skipped."""
    if not page.exists():
        pytest.skip("the package's pages are not here")
    return page.read_text(encoding="utf-8")
