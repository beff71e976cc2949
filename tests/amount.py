"""How much of what is drawn at random a run tries: `make test` a part of it, `make check` all."""

from __future__ import annotations

import os

VARIABLE = "TESTS_IN_A_HUNDRED"


def examples(most: int) -> int:
    """So many examples of a property, or as large a part of them as of the sampled tests."""
    return max(1, most * int(os.environ.get(VARIABLE, "100")) // 100)
