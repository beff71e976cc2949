"""Words of sentences: what a value is, how many there are of a thing, how to install what lacks.

Owns them. Never says what is wrong: whoever raises does.
"""

from __future__ import annotations

from typing import Any


def with_article(name: str) -> str:
    """``a set``, ``an OrderedDict``, ``an ndarray``."""
    return f"{'an' if name[:1] in 'aeioAEIO' or name.startswith('nd') else 'a'} {name}"


def kind_of(value: Any) -> str:
    """What a value is, by its type's name."""
    return with_article(type(value).__name__)


def with_extra(name: str) -> str:
    """How to have what an extra of the package brings."""
    return f"pip install '.[{name}]' in a checkout of shmgpu"


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 model``, ``2 models``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
