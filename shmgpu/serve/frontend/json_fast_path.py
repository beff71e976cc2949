"""Small requests of numbers in JSON like earlier ones: nothing but the numbers is parsed.

A client that asks again sends the same head, but for its length, and the same JSON around the
numbers of its only input. Those are written where the prepared request
(:mod:`shmgpu.serve.frontend.fast_path`) has its memory, and the answer's are put between the bytes
that stood around them in an earlier answer.

Owns what is known of such requests. Never refuses one: anything else in the place of the numbers,
or more of them than the shape has, is for the general path to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson

from shmgpu.serve.frontend.connection import Connection
from shmgpu.serve.frontend.fast_path import (
    MOST_HEAD,
    MOST_PREPARED,
    PreparedRequest,
    PreparedRequests,
    may_be_kept,
)
from shmgpu.serve.frontend.request import Request, head_of
from shmgpu.serve.protocol import datatypes
from shmgpu.serve.protocol.datatypes import Datatype
from shmgpu.serve.protocol.types import InferRequest, InferResponse
from shmgpu.serve.scheduling.catalog import Catalog, ServedModel
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Outcome, Pending
from shmgpu.serve.scheduling.templates import Answer, RequestTemplate, template_of

END = b"\r\n\r\n"
DATA = b'"data"'
MOST_AROUND = 2048  # bytes of JSON around the numbers

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_BEGINS = re.compile(rb'"data"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\[')

Key = tuple[bytes, bytes, bytes, bytes]  # the head around its length, the JSON around the numbers


class _NumbersTemplate(RequestTemplate):
    """Of such a request; answers that are not as expected are written anew."""

    __slots__ = ()

    def answer(
        self, served: ServedModel, result: Any, response: Callable[[], InferResponse]
    ) -> Answer:
        """As of a template."""
        return self._general(served, response())


class _NumbersAnswer:
    """Writes an answer from the pieces of one, as a prepared request has them."""

    def __init__(self, kinds: list[Datatype], last: bytes) -> None:
        self._kinds = kinds
        self._last = last

    def __call__(self, pieces: Sequence[Any]) -> bytes:
        first, *rest = pieces
        written = [first]
        for frame, memory, kind in zip(rest[::2], rest[1::2], self._kinds, strict=True):
            written += [frame, datatypes.to_json(kind, np.frombuffer(memory, kind.storage))]
        written.append(self._last)
        body = b"".join(written)
        return head_of(200, len(body), b"application/json") + body


def _is_flat(numbers: bytes, count: int) -> bool:
    """Whether that is a list of so many numbers; of nested ones it is where the first ends."""
    try:
        return len(orjson.loads(numbers)) == count
    except ValueError:  # orjson's are
        return False


class _Known:
    """A prepared request, and what its numbers are."""

    __slots__ = ("datatype", "prepared", "shape")

    def __init__(self, prepared: PreparedRequest, datatype: Datatype, shape: Sequence[int]) -> None:
        self.prepared = prepared
        self.datatype = datatype
        self.shape = shape


class JsonFastPath(PreparedRequests):
    """What one worker knows of requests of numbers.

    Args:
        calls, catalog, answering: of :class:`PreparedRequests`.
        scratch: what the worker's connections receive into.
    """

    def __init__(
        self,
        calls: Calls,
        catalog: Catalog,
        scratch: memoryview,
        answering: Callable[[Request], Outcome],
    ) -> None:
        super().__init__(calls, catalog, answering)
        self._view = scratch
        self._find = scratch.obj.find  # type: ignore[attr-defined]
        self._known: dict[Key, _Known] = {}

    def take(self, connection: Connection, count: int, end: int) -> bool:
        """Start the request that begins the scratch buffer, whose body begins at ``end``.

        False: it takes the general path.
        """
        if not self._known:
            return False
        found = self._key(count, end)
        if found is None:
            return False
        key, numbers = found
        known = self._known.get(key)
        if known is None or not self._may_start(known.prepared):
            return False
        try:
            array = datatypes.from_text(known.datatype, known.shape, numbers)
        except ValueError:  # orjson's are
            return False
        data = memoryview(array.reshape(-1).view("u1").data)
        if self._start(known.prepared, connection, data, 0):
            return True
        if not known.prepared.is_current():
            self._known.pop(key).prepared.close()
        return False

    def _key(self, count: int, end: int) -> tuple[Key, bytes] | None:
        """What the request in the buffer is known by, and its numbers; None: it has none."""
        view = self._view
        start = self._find(b"[", self._find(DATA, end, count) + len(DATA), count) + 1
        stop = self._find(b"]", start, count)
        if start <= end or stop < 0 or start - end + count - stop > MOST_AROUND or end > MOST_HEAD:
            return None
        head = view[:end].tobytes()
        length = _LENGTH.search(head)
        if length is None or int(length[1]) != count - end:
            return None
        before, after = head[: length.start(1)], head[length.end(1) :]
        key = before, after, view[end:start].tobytes(), view[stop:count].tobytes()
        return key, view[start - 1 : stop + 1].tobytes()

    def candidate(
        self, request: Request, served: ServedModel, pending: Pending, asked: InferRequest
    ) -> Callable[[bytes, InferResponse], None] | None:
        """What takes the answer of a request that was read in full, and may have others like it."""
        count = request.connection.came
        if served.prepare is not None or served.steps is not None:
            return None
        if len(asked.inputs) != 1 or len(served.inputs) != 1 or not may_be_kept(request):
            return None
        (given,) = asked.inputs
        datatype = served.inputs[0]
        if datatype.kind not in ("int", "float") or not isinstance(given.data, np.ndarray):
            return None
        if any(one.binary or one.classification or one.shm for one in asked.outputs):
            return None
        if asked.binary_output or any(one.kind not in ("int", "float") for one in served.outputs):
            return None
        found = self._key(count, self._find(END, 0, count) + 4)
        if found is None or not given.data.size or not _is_flat(found[1], given.data.size):
            return None
        *_, prefix, suffix = found[0]
        # The only key of that name, however it might be written, is that of the input's numbers.
        around = prefix + suffix
        if not _BEGINS.search(prefix) or around.count(DATA) != 1 or b"\\" in around:
            return None
        data = given.data.reshape(-1).view("u1").data
        plain = InferRequest(
            **{name: getattr(asked, name) for name in asked.__slots__ if name != "inputs"},
            inputs=[type(given)(given.name, given.datatype, given.shape, data)],
        )
        template = template_of(
            _NumbersTemplate, served, plain, pending.args, [0], data.nbytes, self._catalog.version
        )
        prepared = None if template is None else self._prepared(pending, template)
        if prepared is None:
            return None
        known = _Known(prepared, datatype, given.shape)

        def answered(body: bytes, response: InferResponse) -> None:
            if not response.parameters and self._learn(prepared, body, response):
                self._open(found[0], known)

        return answered

    def _learn(self, prepared: PreparedRequest, body: bytes, response: InferResponse) -> bool:
        """Take apart the first answer."""
        frames, outputs, kinds, at = [], [], [], 0
        for one in response.outputs:
            kind, array = datatypes.DATATYPES[one.datatype], one.array
            assert isinstance(array, np.ndarray)
            text = datatypes.to_json(kind, array)
            place = body.find(b'"data":' + text, at)
            if place < 0:
                return False
            place += len(b'"data":')
            frames.append(body[at:place])
            outputs.append(array.reshape(-1).view("u1").data)
            kinds.append(kind)
            at = place + len(text)
        prepared.join = _NumbersAnswer(kinds, body[at:])
        return prepared.learn(b"", frames, outputs)

    def _open(self, key: Key, known: _Known) -> None:
        """From now on, requests of that kind are known."""
        version = known.prepared.version
        if version != self._table.version:  # the model may be another by now
            return
        if self._version != version or len(self._known) >= MOST_PREPARED:
            self.forget()
            self._version = version
        before = self._known.get(key)  # of one that came meanwhile, or looks otherwise now
        if before is not None:
            before.prepared.close()
        self._known[key] = known

    def forget(self) -> bool:
        """Forget all, and free their arena memory; whether there were any."""
        had = bool(self._known)
        for known in self._known.values():
            known.prepared.close()
        self._known.clear()
        return had
