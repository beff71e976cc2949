"""Small requests over gRPC like earlier ones: their messages are not parsed again.

A client that asks again sends the same message but for the tensors' bytes, which stand behind
everything else. What is known of such a message is found by its length and its first bytes; the
tensors lie where they lay. The first of its kind is read in full, the second makes a template
(:mod:`shmgpu.serve.scheduling.templates`), and from then on those whose tensors lie in the message
take what :mod:`shmgpu.serve.frontend.fast_path` keeps ready.

Owns what is known of messages. Never reads one in full, never sends an answer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmgpu.serve.frontend.fast_path import PreparedRequest, PreparedRequests
from shmgpu.serve.frontend.request import Request
from shmgpu.serve.protocol import grpc_codec
from shmgpu.serve.protocol.types import InferRequest, InferResponse
from shmgpu.serve.scheduling.catalog import Catalog, ServedModel
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Outcome, Pending
from shmgpu.serve.scheduling.templates import Answer, RequestTemplate, in_body, template_of

MOST_BYTES = 65536  # of a message that is looked at
MOST_FIRST = 2048  # of its bytes before the tensors'
MOST_MESSAGES = 512  # that are known; all are forgotten when there are more


class MessageTemplate(RequestTemplate):
    """As of HTTP; each output's bytes have a few before them that say how many they are."""

    __slots__ = ()

    def emptied(self, buffers: list[Any]) -> list[bytes]:
        """The answer without the bytes of outputs that it carries; of those in regions, all."""
        return [one for one in buffers if isinstance(one, bytes)]

    def filled(self, kept: list[bytes], tail: list[Any]) -> list[Any]:
        """The bytes of an answer, in order."""
        buffers: list[Any] = [kept[0]]
        waiting, frames = iter(tail), iter(kept[1:])
        for *_, is_in_region in self.wanted:
            buffers.append(next(frames))
            buffers.append(next(frames) if is_in_region else next(waiting))
        return buffers

    def _general(self, served: ServedModel, response: InferResponse) -> Answer:
        buffers = grpc_codec.build_infer(
            served.name, served.version, self.request, response.outputs, response.parameters
        )
        return list(buffers), None


class KnownMessage:
    """What is known of messages that begin alike and are equally long.

    Attributes:
        served: the model.
        template: of its inferences.
        begin: where the tensors begin.
        frames: what stands before each tensor but the first, and where.
        prepared: what is kept ready for it; None: nothing.
    """

    __slots__ = ("begin", "frames", "prepared", "served", "template")

    def __init__(
        self,
        served: ServedModel,
        template: MessageTemplate,
        begin: int,
        frames: list[tuple[int, bytes]],
    ) -> None:
        self.served = served
        self.template = template
        self.begin = begin
        self.frames = frames
        self.prepared: PreparedRequest | None = None

    def use(self, prepared: PreparedRequest | None) -> None:
        """Keep that ready in place of what is."""
        if self.prepared is not None:
            self.prepared.close()
        self.prepared = prepared


class FastCall:
    """One call on its way; to the fast path, the connection that its request came on.

    Attributes:
        answered: the answer's bytes, or the error.
        waiting: the request, until it is answered.
    """

    __slots__ = ("answered", "waiting")

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.waiting: deque[Request] = deque()

    def reply_whole(self, turn: Request, data: bytes) -> None:
        """As of a connection."""
        turn.is_answered = True
        turn.on_disconnect = None
        self.waiting.clear()
        if not self.answered.done():
            self.answered.set_result(data)

    def fail(self, turn: Request, error: BaseException) -> None:
        """It ended with an error."""
        turn.is_answered = True
        turn.on_disconnect = None
        self.waiting.clear()
        if not self.answered.done():
            self.answered.set_exception(error)

    async def answer(self) -> bytes:
        """The answer's bytes; the call is given up when nobody waits for them any more."""
        try:
            return await self.answered
        except asyncio.CancelledError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """The client is gone."""
        for turn in self.waiting:
            turn.is_answered = True
            if turn.on_disconnect is not None:
                turn.on_disconnect()
        self.waiting.clear()


def _answering(turn: Request) -> Outcome:
    """Takes an outcome that was not as expected."""

    def told(buffers: Sequence[Any] | None, error: BaseException | None) -> None:
        call: FastCall = turn.connection
        if error is not None:
            call.fail(turn, error)
        else:
            assert buffers is not None
            call.reply_whole(turn, b"".join(buffers[0]))

    return told


class GrpcFastPath(PreparedRequests):
    """What one worker knows of messages over gRPC."""

    def __init__(self, calls: Calls, catalog: Catalog) -> None:
        super().__init__(calls, catalog, _answering)
        # By a message's length: how many of its bytes come before the tensors' bytes. By those.
        self._begins: dict[int, list[int]] = {}
        self._known: dict[tuple[int, bytes], KnownMessage] = {}

    def find(self, data: bytes) -> KnownMessage | None:
        """What is known of a message; None: it must be read."""
        if self._version != self._table.version:
            self.forget()
            return None
        for begin in self._begins.get(len(data), ()):
            known = self._known.get((len(data), data[:begin]))
            if known is None:
                continue
            if not known.frames or all(data.startswith(one, at) for at, one in known.frames):
                return known
        return None

    def take(self, data: bytes) -> FastCall | None:
        """Start a call as others of its kind were; None: it takes the general path."""
        known = self.find(data)
        if known is None or known.prepared is None:
            return None
        call = FastCall()
        return call if self._begin(known, known.prepared, call, data) else None

    def start(self, data: bytes, call: Any) -> bool:
        """The same for a call that is to be told itself, as a :class:`FastCall` is."""
        known = self.find(data)
        if known is None or known.prepared is None:
            return False
        return self._begin(known, known.prepared, call, data)

    def _begin(
        self, known: KnownMessage, prepared: PreparedRequest, call: Any, data: bytes
    ) -> bool:
        if not self._may_start(prepared):
            return False
        if self._start(prepared, call, memoryview(data), known.begin):
            return True
        if not prepared.is_current():
            known.use(None)
        return False

    def remember(
        self, served: ServedModel, request: InferRequest, pending: Pending, data: bytes
    ) -> None:
        """Keep what a message that was read in full says, where the next may go by it."""
        version = self._catalog.version
        if len(data) > MOST_BYTES or not _all_raw(served, request) or not pending.args:
            return
        places: list[int] = []
        frames: list[tuple[int, bytes]] = []
        end = len(data)
        for one in in_body(request):
            if one is None:
                return
            place = _address(one) - _address(data)
            if places:
                frames.append((end, data[end:place]))
            places.append(place)
            end = place + one.nbytes
        begin = places[0] if places else len(data)
        if end != len(data) or begin > MOST_FIRST:  # something stands behind the tensors
            return
        made = template_of(
            MessageTemplate, served, request, pending.args, places, len(data), version
        )
        if made is None:
            return
        if self._version != version or len(self._known) >= MOST_MESSAGES:
            self.forget()
            self._version = version
        begins = self._begins.setdefault(len(data), [])
        if begin not in begins:
            begins.append(begin)
        self._known[len(data), data[:begin]] = KnownMessage(served, made, begin, frames)

    def candidate(
        self, known: KnownMessage, pending: Pending
    ) -> Callable[[list[Any]], None] | None:
        """What takes the answer of a known message that may have others of its kind prepared."""
        if known.prepared is not None:
            return None
        prepared = self._prepared(pending, pending.template)
        if prepared is None:
            return None

        def answered(buffers: list[Any]) -> None:
            first, *rest = buffers
            frames, outputs = rest[::2], rest[1::2]
            places = {is_in_region for *_, is_in_region in known.template.wanted}
            if places == {True}:  # their bytes are not in the answer, which says that they are none
                first, frames, outputs = b"".join(buffers), [], []
            is_current = prepared.version == self._version == self._table.version
            if len(places) > 1 or not is_current:
                return
            if prepared.learn(first, frames, outputs):
                known.use(prepared)

        return answered

    def forget(self) -> bool:
        """Forget all, and free their arena memory; whether there were any."""
        had = bool(self._known)
        for known in self._known.values():
            known.use(None)
        self._known.clear()
        self._begins.clear()
        self._version = self._catalog.version
        return had


def _address(data: bytes | memoryview) -> int:
    address: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return address


def _all_raw(served: ServedModel, request: InferRequest) -> bool:
    """Whether each output that is wanted is nothing but its bytes, or in a region."""
    asked = request.outputs
    names = [one.name for one in asked] or list(served.output_index)
    indices = [served.output_index[name] for name in names]
    return all(served.outputs[index].itemsize for index in indices) and not any(
        one.classification for one in asked
    )
