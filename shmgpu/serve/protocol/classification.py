"""The classification extension: a tensor of scores as its best classes.

Owns that conversion. Never looks at a request. Source: Triton's "Classification Extension".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.types import OutputTensor
from shmgpu.serve.protocol.validation import UNORDERED

MOST_TEXTS = 1 << 20  # of one output: each costs far more than the score that it tells


def best_classes(output: OutputTensor, classes: int) -> np.ndarray[Any, Any]:
    """``score:index`` or ``score:index:label`` of each class, the best first.

    Args:
        output: scores of shape [classes], or [rows, ...] where all but the rows are classes.
        classes: how many of the best are wanted.

    Returns:
        An array of ``bytes`` of shape [classes] or [rows, classes].

    Raises:
        ValueError: the output's elements have no order, or too many classes are wanted.
    """
    datatype = DATATYPES[output.datatype]
    if datatype.name in UNORDERED or output.array is None:
        raise ValueError(
            f"is {datatype.name}, of which there are no best classes: omit 'classification'"
        )
    array = output.array
    if isinstance(array, memoryview):
        array = datatypes.decode(datatype, output.shape, array)
    if datatype.name == "BF16":
        array = datatypes.widen_bf16(np.ascontiguousarray(array).view(np.int16))
    batched = array.ndim > 1
    rows = array.reshape(array.shape[0] if batched else 1, -1) if array.size else array
    if not array.size:
        return np.empty((array.shape[0], 0) if batched else (0,), dtype=object)
    classes = min(classes, rows.shape[1])
    if rows.shape[0] * classes > MOST_TEXTS:
        raise ValueError(
            f"has {rows.shape[0] * classes} classes to tell, and this server tells {MOST_TEXTS}: "
            "ask for fewer with 'classification'"
        )
    write = "%d:%d" if datatype.kind == "int" else "%f:%d"
    found = np.empty((rows.shape[0], classes), dtype=object)
    for number, row in enumerate(rows):
        for rank, index in enumerate(_best(row, classes)):
            text = write % (row[index], index)
            if index < len(output.labels):
                text = f"{text}:{output.labels[index]}"
            found[number, rank] = text.encode()
    return found if batched else found[0]


def _best(row: np.ndarray[Any, Any], classes: int) -> list[int]:
    """Indices of the greatest scores, the lower first among equals; NaN is the least."""
    if row.dtype.kind == "f":
        row = np.where(np.isnan(row), -np.inf, row)
    ascending = np.argsort(row[::-1], kind="stable")
    return (len(row) - 1 - ascending[::-1][:classes]).tolist()  # type: ignore[no-any-return]
