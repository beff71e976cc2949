"""In a helper: small tensors of several requests in clients' regions, as rows of one array.

Owns how they are gathered and how the rows of outputs are scattered back. A request whose tensors
are not there any more is left out, and told so by ``LOST`` in its row: it is for its worker to send
it by itself, and for the client to hear why. Bytes are read from the file, not through a
mapping, so that a client that shrinks its file ends no helper that others' requests are in. Never
runs a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shmgpu.serve.models import conversion
from shmgpu.serve.models.declaration import Model
from shmgpu.serve.models.region_maps import RegionMaps
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.state.regions import ALONE, LOST, PLACE, RegionLost

Array = np.ndarray[Any, Any]
Places = list[list[int]]  # of each request: of each input, then of each output


def gather(
    maps: RegionMaps, model: Model, shapes: Sequence[tuple[int, ...]], requests: Places
) -> tuple[list[Array], list[int]]:
    """Copy the inputs of all requests side by side.

    Args:
        maps: of the helper.
        model: whose inputs they are.
        shapes: of each input of one request.
        requests: where their tensors lie.

    Returns:
        The inputs, and which requests have rows in them.
    """
    arrays: list[Array] = []
    parts = []
    for number, (declared, shape) in enumerate(zip(model.taken, shapes, strict=True)):
        dtype = datatypes.DATATYPES[declared.datatype].storage
        array: Array = np.empty((len(requests) * shape[0], *shape[1:]), dtype)
        arrays.append(array)
        rows = array.reshape(-1).view("u1").data
        parts.append((number * PLACE, rows, array.nbytes // len(requests)))
    there: list[int] = []
    for index, places in enumerate(requests):
        begin = len(there)
        try:
            for at, rows, size in parts:
                maps.copy(places[at], places[at + 1], rows[begin * size : (begin + 1) * size])
        except RegionLost:
            continue
        there.append(index)
    if len(there) < len(requests):
        arrays = [
            array[: len(there) * shape[0]] for array, shape in zip(arrays, shapes, strict=True)
        ]
    for array in arrays:
        array.flags.writeable = False  # as what lies in a region is
    return arrays, there


def scatter(
    maps: RegionMaps, model: Model, outputs: Sequence[Any], requests: Places, there: Sequence[int]
) -> list[Array]:
    """Copy each request's rows of the outputs to where it wants them; what requests are told.

    Args:
        maps: of the helper.
        model: whose outputs they are.
        outputs: in order; of the rows of the requests that are ``there``.
        requests: where their tensors lie.
        there: which requests the rows are of.

    Returns:
        Of each output int64, a row for each request: its bytes, and its shape. See ``LOST``.
    """
    begin = PLACE * len(model.taken)
    lost = [index for index in range(len(requests)) if index not in there]
    told = []
    for which, (declared, output) in enumerate(zip(model.outputs, outputs, strict=True)):
        shape, data = conversion.encoded(model, declared, output)
        if len(shape) != len(declared.shape):  # which is for the worker to refuse
            return unlike(model, len(requests), ALONE)
        size, at = data.nbytes // len(there), begin + which * PLACE
        for number, index in enumerate(there):
            where = requests[index][at : at + PLACE]
            try:
                maps.write(where, data[number * size : (number + 1) * size])
            except RegionLost:
                lost.append(index)
        rows: Array = np.empty((len(requests), 1 + len(shape)), np.int64)
        rows[...] = (size, shape[0] // len(there), *shape[1:])
        if lost:
            rows[lost] = LOST
        told.append(rows)
    return told


def unlike(model: Model, count: int, why: int) -> list[Array]:
    """What so many requests are told that must all be sent by themselves."""
    return [np.full((count, 1 + len(one.shape)), why, np.int64) for one in model.outputs]
