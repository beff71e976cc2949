"""Small requests of numbers in JSON like earlier ones: nothing but the numbers is parsed.

A client that asks again sends the same head, but for its length, and the same JSON around the
numbers of its only input, which are flat or nested as the shape is. Those are written where the
prepared request (:mod:`shmgpu.serve.frontend.fast_path`) has its memory, and the answer's
are put between the bytes that stood around them in an earlier answer.

Owns what is known of such requests. Never refuses one: anything else in the place of the numbers,
or more of them than the shape has, is for the general path to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
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
MOST_HEADS = 1024  # that are found at once: they differ in the length of what follows

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)
_BEGINS = re.compile(rb'"data"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}\[')

_HEAD = head_of(200, 0, b"application/json").replace(b"Length: 0", b"Length: %d")

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
        # A prepared request's first piece is empty; then each output has two.
        self._writers = [(2 * at + 1, datatypes.writer(kind)) for at, kind in enumerate(kinds)]
        self._last = last

    def __call__(self, pieces: Sequence[Any]) -> bytes:
        written = []
        for at, write in self._writers:
            written.append(pieces[at])
            written.append(write(pieces[at + 1]))
        written.append(self._last)
        body = b"".join(written)
        return _HEAD % len(body) + body


def _are(
    numbers: bytearray, datatype: Datatype, shape: Sequence[int], given: np.ndarray[Any, Any]
) -> bool:
    """Whether that text alone is the array that was given."""
    try:
        found = datatypes.from_json(datatype, shape, orjson.loads(numbers))
    except ValueError:  # orjson's are
        return False
    return found.tobytes() == given.tobytes()


def _depth_of(before: bytes) -> int:
    """How many arrays begin where that ends."""
    return len(before) - len(before.rstrip(b"["))


class _Known:
    """A prepared request, what its numbers are, and the JSON around them, with outer brackets."""

    __slots__ = (
        "_depth", "_into", "_nested", "_reader", "after", "before", "datatype", "prepared", "shape",
    )  # fmt: skip

    def __init__(
        self,
        prepared: PreparedRequest,
        datatype: Datatype,
        shape: Sequence[int],
        before: bytes,
        after: bytes,
    ) -> None:
        self.prepared = prepared
        self.datatype = datatype
        self.shape = shape
        self.before = before
        self.after = after
        self._depth = _depth_of(before)
        elements = datatypes.count(shape)
        self._nested = tuple(shape) if self._depth > 1 else (elements,)
        self._into = memoryview(bytearray(elements * datatype.itemsize))
        self._reader = datatypes.reader(datatype)

    def is_around(self, text: bytearray, start: int, stop: int) -> bool:
        """Whether that JSON begins and ends a part of the text, with anything in between."""
        before, after = self.before, self.after
        return (
            text.startswith(before, start)
            and text.startswith(after, stop - len(after))
            and stop - start >= len(before) + len(after)
        )

    def read(self, text: bytearray, start: int, stop: int) -> memoryview | None:
        """The bytes of its numbers, until others are read; None: that is no array of them."""
        start += len(self.before) - self._depth
        stop -= len(self.after) - self._depth
        if self._reader is not None:
            is_read = self._reader(text, start, stop, self._into, self._nested)
            return self._into if is_read else None
        try:
            array = datatypes.from_text(self.datatype, self.shape, text, start, stop)
        except ValueError:  # orjson's are
            return None
        return memoryview(array.reshape(-1).view("u1").data)


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
        self._text: bytearray = scratch.obj  # type: ignore[assignment]
        self._known: dict[Key, _Known] = {}
        # By a whole head: bytes of the body, and what was known of it the last time.
        self._lately: dict[bytes, tuple[int, _Known]] = {}

    def take(self, connection: Connection, count: int, head: bytes) -> bool:
        """Start the request that is the scratch buffer's first ``count`` bytes; its head is given.

        False: it takes the general path.
        """
        known = self._find(head, count) if self._known else None
        if known is None:
            return False
        if self._begin(known, connection, len(head), count):
            begin = head + known.before
            connection.lately = begin, count, partial(self._again, known, len(head))
            return True
        if not known.prepared.is_current():
            known.prepared.close()
            self._known = {key: one for key, one in self._known.items() if one is not known}
            self._lately.clear()
        return False

    def _again(self, known: _Known, end: int, connection: Connection, count: int) -> bool:
        """The same, for one that begins as its connection's last one, whose head ended there."""
        after = known.after
        return (
            known.prepared.is_open
            and self._text.startswith(after, count - len(after))
            and self._begin(known, connection, end, count)
        )

    def _begin(self, known: _Known, connection: Connection, end: int, count: int) -> bool:
        if not self._may_start(known.prepared):
            return False
        data = known.read(self._text, end, count)
        return data is not None and self._start(known.prepared, connection, data, 0)

    def _find(self, head: bytes, count: int) -> _Known | None:
        """What is known of the request in the buffer, but for its numbers."""
        lately = self._lately.get(head)
        if lately is not None:
            length, known = lately
            if length != count - len(head):
                return None
            if known.is_around(self._text, len(head), count):
                return known
        key = self._key(head, count)
        found = None if key is None else self._known.get(key)
        if found is not None:
            if len(self._lately) >= MOST_HEADS:
                self._lately.clear()
            self._lately[head] = count - len(head), found
        return found

    def _key(self, head: bytes, count: int) -> Key | None:
        """What the request in the buffer is known by; None: by nothing."""
        text, end = self._text, len(head)
        start = text.find(b"[", text.find(DATA, end, count) + len(DATA), count) + 1
        depth = 1
        while text.startswith(b"[", start, min(count, end + MOST_AROUND)):
            start += 1
            depth += 1
        stop = text.find(b"]" * depth, start, count)
        if start <= end or stop < 0 or start - end + count - stop > MOST_AROUND or end > MOST_HEAD:
            return None
        length = _LENGTH.search(head)
        if length is None or int(length[1]) != count - end:
            return None
        before, after = head[: length.start(1)], head[length.end(1) :]
        return before, after, bytes(text[end:start]), bytes(text[stop:count])

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
        head = bytes(self._text[: self._text.find(END, 0, count) + 4])
        key = self._key(head, count)
        if key is None or not given.data.size:
            return None
        *_, before, after = key
        depth = _depth_of(before)
        numbers = self._text[len(head) + len(before) - depth : count - len(after) + depth]
        # The only key of that name, however it might be written, is that of the input's numbers.
        around = before + after
        if not _BEGINS.search(before) or around.count(DATA) != 1 or b"\\" in around:
            return None
        if not _are(numbers, datatype, given.shape, given.data):
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
        known = _Known(prepared, datatype, given.shape, before, after)

        def answered(body: bytes, response: InferResponse) -> None:
            if not response.parameters and self._learn(prepared, body, response):
                self._open(key, known)

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
            known.prepared.close()
            return
        if self._version != version or len(self._known) >= MOST_PREPARED:
            self.forget()
            self._version = version
        before = self._known.get(key)  # of one that came meanwhile, or looks otherwise now
        if before is not None:
            before.prepared.close()
        self._known[key] = known
        self._lately.clear()

    def forget(self) -> bool:
        """Forget all, and free their arena memory; whether there were any."""
        had = bool(self._known)
        for known in self._known.values():
            known.prepared.close()
        self._known.clear()
        self._lately.clear()
        return had
