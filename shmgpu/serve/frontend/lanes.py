"""Which small requests go together: the lane of each kind of them.

Owns the lanes of one worker's front end, and the rules by which requests share one. Requests whose
tensors come with them share a lane with those of the same bytes; those that name clients' regions,
with all that look alike to their model. Never fills or sends a message:
:mod:`shmgpu.serve.frontend.coalescing` does.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from shmgpu.serve.frontend.coalescing import Lane, RowCoalescer
from shmgpu.serve.frontend.region_coalescing import (
    RegionCoalescer,
    most_bytes,
    places_of,
    shapes_of,
)

MOST_TOGETHER = 32  # requests
MOST_BYTES = 1 << 18  # of a coalescer's rows, inputs and outputs each


class Lanes:
    """Those of one front end; a lane is there as long as a prepared request has it."""

    def __init__(self) -> None:
        self._shared: WeakValueDictionary[tuple[Any, ...], Lane] = WeakValueDictionary()

    def join(self, prepared: Any) -> Lane | None:
        """The lane of a prepared request that has its first answer; None: each goes by itself."""
        lane = None
        in_regions = prepared.template.uses_regions
        if in_regions:
            prepared.places = places_of(prepared)
        capacity = requests_together(prepared)
        if capacity and in_regions:
            key = _kind_of(prepared, capacity)
            lane = self._shared.get(key)
            if lane is None:
                lane = self._shared[key] = Lane(capacity, RegionCoalescer)
        elif capacity:
            lane = Lane(capacity, RowCoalescer)
        if lane is not None:
            lane.users += 1
        return lane


def requests_together(prepared: Any) -> int:
    """How many such requests may go as one message; 0: each goes by itself."""
    served, rows, hint = prepared.served, prepared.template.rows, prepared.plan.hint
    if not served.batch_max_rows or not rows or served.description["max_delay_ms"]:
        return 0
    if prepared.template.request.for_model:  # which such a message does not carry
        return 0
    if prepared.template.uses_regions:
        if not prepared.places:
            return 0
        largest = most_bytes(prepared)
    elif all(spec.shape and spec.shape[0] == rows for spec in hint.specs):
        largest = max(sum(end - start for start, end in prepared.inputs), hint.nbytes)
    else:
        return 0
    most = min(MOST_TOGETHER, served.batch_max_rows // rows, MOST_BYTES // max(largest, 1))
    return most if most > 1 else 0


def _kind_of(prepared: Any, capacity: int) -> tuple[Any, ...]:
    """What requests in regions have in common that may go as one message."""
    wanted = [index for index, *_ in prepared.template.wanted]
    told = [said for *_, said in prepared.told]
    return (
        prepared.served,
        prepared.queue,
        prepared.timeout,
        prepared.call_priority,
        prepared.version,
        capacity,
        shapes_of(prepared.template),
        *zip(wanted, told, strict=True),
    )
