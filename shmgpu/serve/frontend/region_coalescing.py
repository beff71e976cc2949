"""Small requests whose tensors lie in clients' regions: one message for several of them.

Each client has regions of its own, so such requests differ in where their tensors lie, and in
nothing else that a model sees. A message of several carries these places, a row for each request,
and a helper gathers the tensors (:mod:`shmgpu.serve.models.gathering`). Owns the rows of places,
and which requests are alike but for them. Never opens a region.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shmgpu.codec import arrays
from shmgpu.codec.arrays import ArraySpec
from shmgpu.codec.layout import TreeLayout
from shmgpu.serve.frontend.coalescing import Coalescer
from shmgpu.serve.scheduling.rows import ServerFunction
from shmgpu.serve.scheduling.templates import RequestTemplate
from shmgpu.serve.state.regions import ALONE, LOST, PLACE

_TELLING = np.dtype(np.int64)


class RegionCoalescer(Coalescer):
    """Of requests with all of their tensors in regions; a result says how large outputs are."""

    __slots__ = ("_answers", "_expected", "_places", "_rows", "_whose")

    def _make_room(self, capacity: int) -> None:
        size = len(self._prepared.places)
        buffer, _ = self._calls.port.arena.allocate(size * capacity)
        view = memoryview(buffer)
        self._rows = [view[at : at + size] for at in range(0, size * capacity, size)]
        self._places = np.ndarray((capacity, size // _TELLING.itemsize), _TELLING, buffer)
        self._whose: list[Any] = [None] * capacity
        self._answers: list[list[Any]] = [[] for _ in range(capacity)]
        # By the number of requests: where results lie, and what is expected there.
        self._expected: dict[int, list[tuple[memoryview, bytes]]] = {}

    def _fill(self, index: int, prepared: Any, view: memoryview, middle: int) -> None:
        self._rows[index][:] = prepared.places
        self._whose[index] = prepared
        self._answers[index] = [prepared.first]

    def _target(self, count: int) -> tuple[ServerFunction, tuple[Any, ...]]:
        served, template = self.served, self._prepared.template
        args = served.number, shapes_of(template), self._places[:count]
        return served.gathered(template.rows), args

    def _layout(self, count: int) -> TreeLayout:
        hint = self._prepared.hint
        specs = [ArraySpec(one.dtype, (count, *one.shape)) for one in hint.specs]
        return TreeLayout(hint.tree.structure, specs)

    def _pieces(self, layout: TreeLayout, count: int) -> list[list[Any]]:
        prepared, view = self._prepared, memoryview(self._output[0])
        expected = []
        for (index, *_), (*_, said) in zip(prepared.template.wanted, prepared.told, strict=True):
            start = layout.offsets[index]
            expected.append((view[start : start + count * len(said)], said * count))
        self._expected[count] = expected
        return self._answers

    def arrived(self) -> None:
        """As of any, where each request is told what those before it were."""
        if all(memory == said for memory, said in self._expected[self.taken]):
            super().arrived()
            return
        layout = self._layout(self.taken)
        result = [
            arrays.numpy_view(self._output[0], offset, spec).copy()
            for spec, offset in zip(layout.specs, layout.offsets, strict=True)
        ]
        self.ended(None, result, None)

    def _one(self, index: int) -> tuple[Any, tuple[Any, ...]]:
        prepared = self._whose[index]
        return prepared, tuple(prepared.template.args)

    def _part(self, index: int, result: Any) -> Any:
        rows = [one[index] for one in result] if isinstance(result, list) else None
        if rows is None or any(row[0] == ALONE for row in rows):
            self._lane.capacity = 0
            return None
        if any(row[0] == LOST for row in rows):
            return None
        return rows[0] if len(rows) == 1 else tuple(rows)


def shapes_of(template: RequestTemplate) -> tuple[tuple[int, ...], ...]:
    """The shape of each input of a request with all of its tensors in regions."""
    return tuple(tuple(one["shape"]) for one in template.args[2:])


def places_of(prepared: Any) -> bytes:
    """Where a request's tensors lie, as a row of places; nothing where not all are in regions.

    Args:
        prepared: a :class:`shmgpu.serve.frontend.fast_path.PreparedRequest`.
    """
    template: RequestTemplate = prepared.template
    served = prepared.served
    if template.omits or template.pieces or len(template.wanted) != len(served.outputs):
        return b""
    if any(one.kind in ("bool", "bytes") for one in served.inputs) or served.has_bytes:
        return b""  # whose elements are looked at one by one
    _, outputs, *inputs = template.args
    by_output = {which: place for which, *place in outputs}
    if len(by_output) < len(served.outputs):
        return b""
    where = [one["in"] for one in inputs] + [by_output[at] for at in sorted(by_output)]
    row = np.array(where, _TELLING)
    assert row.shape == (len(served.inputs) + len(served.outputs), PLACE)
    return row.tobytes()


def most_bytes(prepared: Any) -> int:
    """Bytes of a request's inputs or of its outputs, whichever are more."""
    inputs: int = sum(one["in"][2] for one in prepared.template.args[2:])
    outputs = sum(int(np.frombuffer(said, _TELLING)[0]) for *_, said in prepared.told)
    return max(inputs, outputs)
