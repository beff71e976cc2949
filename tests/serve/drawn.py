"""Arrays of every datatype as hypothesis draws them, and whether two are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shmgpu.serve.protocol import datatypes

NUMBERS = [name for name in datatypes.DATATYPES if name not in ("BYTES", "BF16")]


def arrays(name: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    """What a client gives of a datatype: of BF16, numbers of twice the width."""
    shapes = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
    if name == "BYTES":
        return hnp.arrays(
            np.dtype(object), shapes, elements=st.binary(max_size=9), fill=st.nothing()
        )
    if name == "BF16":
        return hnp.arrays(np.float32, shapes, elements=st.floats(width=16))
    return hnp.arrays(datatypes.DATATYPES[name].storage, shapes)


def same(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> bool:
    """Whether shapes and elements are equal, those that are no number too."""
    if left.dtype == object:
        return left.shape == right.shape and left.tolist() == right.tolist()
    return left.shape == right.shape and np.array_equal(
        left, right, equal_nan=left.dtype.kind == "f"
    )
