"""Words of sentences: what a value is, with its article, and how many there are of a thing.

Owns both. Never says what is wrong: whoever raises does.
"""

from __future__ import annotations

from typing import Any


def with_article(name: str) -> str:
    """``a set``, ``an OrderedDict``, ``an ndarray``."""
    return f"{'an' if name[:1] in 'aeioAEIO' or name.startswith('nd') else 'a'} {name}"


def kind_of(value: Any) -> str:
    """What a value is, by its type's name."""
    return with_article(type(value).__name__)


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 model``, ``2 models``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
