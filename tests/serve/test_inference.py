"""A request from its arguments to its outcome: without a server, step by step."""

from __future__ import annotations

import asyncio
import re
import types
from dataclasses import asdict
from unittest import mock

import numpy as np
import pytest

from shmgpu.errors import CallCancelled, CallTimeout, RemoteError, ShmError, remote_name
from shmgpu.serve import QueuePolicy
from shmgpu.serve.models.errors import Unloaded
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.protocol.types import (
    InferRequest,
    InputTensor,
    OutputTensor,
    ProtocolError,
    RequestedOutput,
    SharedMemoryRef,
)
from shmgpu.serve.scheduling import ensembles, inference
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Pending
from shmgpu.serve.scheduling.queues import ModelQueue

NOW = 7_000_000_000
X = InputTensor("x", "FP32", (2,), np.ones(2, "f4"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(inference, "_now", lambda: NOW)


def model(policy=None, **said):
    """A served model; ``policy``: of its queue."""
    queue = ModelQueue(0, asdict(policy or QueuePolicy()))
    plain = {
        "name": "m", "version": "1", "number": 5, "pool": "", "max_batch_size": 0,
        "streams": False, "sequence": False, "cache": False, "steps": None, "prepare": None,
        "prepared": (), "inputs": [DATATYPES["FP32"]], "input_index": {"x": 0},
        "outputs": [DATATYPES["FP32"]], "output_index": {"y": 0}, "queue_of": lambda asked: queue,
        "in_regions": "in regions", "in_sequence": "in sequence",
        "metadata": types.SimpleNamespace(outputs=[TensorMetadata("y", "FP32", (-1,))]),
    }  # fmt: skip
    return types.SimpleNamespace(**{**plain, **said})


def calls_of(timeout=None, cache=None):
    """Those of a worker whose port, loop and books are played."""
    return Calls(
        mock.Mock(), mock.Mock(), mock.Mock(), timeout, mock.Mock(), mock.Mock(), {"p": [0, 1]},
        cache,
    )  # fmt: skip


def pending_of(calls, served=None, request=None, **said):
    """A request that is on its way, and what its outcome is told."""
    told = []
    one = Pending(
        calls, served or model(), request or InferRequest(inputs=[X]), (5, "x"), 3, 0,
        lambda *what: told.append(what),
    )  # fmt: skip
    for name, value in said.items():
        setattr(one, name, value)
    return one, told


# ---- handing over -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "policy", "request_", "wanted"),
    [
        (None, QueuePolicy(), {}, None),
        (2.0, QueuePolicy(), {}, (2.0, 0)),
        (2.0, QueuePolicy(default_timeout_ms=500), {}, (0.5, 0)),
        (2.0, QueuePolicy(default_timeout_ms=5000), {}, (2.0, 0)),
        (None, QueuePolicy(default_timeout_ms=500), {}, (0.5, 0)),
        (None, QueuePolicy(default_timeout_ms=500), {"timeout_us": 250_000}, (0.25, 0)),
        (
            None,
            QueuePolicy(default_timeout_ms=500, allow_timeout_override=False),
            {"timeout_us": 250_000},
            (0.5, 0),
        ),
        (2.0, QueuePolicy(default_timeout_ms=500, timeout_action="DELAY"), {}, (2.0, 0)),
        (None, QueuePolicy(), {"priority": 1}, (None, 3)),
        (None, QueuePolicy(), {"priority": 3}, (None, 1)),
        (None, QueuePolicy(), {"priority": 4}, None),
        (None, QueuePolicy(), {"priority": 9}, None),
        (2.0, QueuePolicy(), {"priority": 9}, (2.0, 0)),
    ],
)
def test_a_request_has_the_least_of_its_times_and_its_priority(timeout, policy, request_, wanted):
    found = calls_of(timeout).options(model(policy), InferRequest(inputs=[X], **request_))
    assert (found and (found.timeout, found.priority)) == wanted


def test_a_request_that_cannot_be_sent_is_not_pending():
    calls = calls_of()
    calls.port.submit.side_effect = ShmError("no")
    one, told = pending_of(calls)
    with pytest.raises(ShmError, match="no"):
        calls._send(one)
    calls.accounting.begin.assert_called_once_with(one.queue)
    calls.accounting.leave.assert_called_once_with(one.queue)
    assert told == [] and one.call is None


@pytest.mark.parametrize(
    ("served", "request_", "target"),
    [
        ({}, {}, None),
        ({}, {"outputs": [RequestedOutput("y", shm=SharedMemoryRef("r", 0, 8))]}, "in regions"),
        ({"sequence": True}, {"sequence_id": 3}, "in sequence"),
    ],
)
def test_a_request_goes_to_the_row_that_serves_its_kind(monkeypatch, served, request_, target):
    monkeypatch.setattr(inference, "standing", lambda pool: pool)
    calls = calls_of()
    one, _ = pending_of(calls, model(**served), InferRequest(inputs=[X], **request_))
    calls._send(one)
    asked, args, _, options, handler, *_ = calls.port.submit.call_args.args
    assert asked == (target or one.served) and args == (5, "x") and handler is one
    assert one.call is calls.port.submit.return_value and one.sent_ns == NOW
    assert (options is not None and options.placement in (1, 2)) == (target == "in sequence")
    calls.loop.call_later.assert_not_called()


@pytest.mark.parametrize(
    ("timeout", "delay_ms", "started_ns", "is_late", "timer"),
    [
        (2.0, 0, 0, False, (2.0, "expire")),
        (None, 500, NOW, False, (0.5, "_delay")),
        (None, 500, NOW - 200_000_000, False, (0.3, "_delay")),
        (None, 500, NOW - 600_000_000, False, (0.0, "_delay")),
        (0.5, 500, NOW, False, (0.5, "expire")),
        (0.4, 500, NOW, False, (0.4, "expire")),
        (2.0, 500, NOW - 500_000_000, True, (1.5, "expire")),
        (None, 500, NOW, True, None),
    ],
)
def test_a_request_has_one_timer(timeout, delay_ms, started_ns, is_late, timer):
    calls = calls_of(timeout)
    policy = QueuePolicy(default_timeout_ms=delay_ms, timeout_action="DELAY")
    one, _ = pending_of(calls, model(policy), started_ns=started_ns, is_late=is_late)
    calls._send(one)
    if timer is None:
        calls.loop.call_later.assert_not_called()
        return
    seconds, what, whose = calls.loop.call_later.call_args.args
    assert seconds == pytest.approx(timer[0]) and whose is one
    assert what == getattr(calls, timer[1])


def test_a_request_that_was_told_as_it_was_sent_has_no_timer():
    calls = calls_of(2.0)
    one, _ = pending_of(calls, is_over=True)
    calls._send(one)
    assert one.call is None
    calls.loop.call_later.assert_not_called()


def test_who_waits_behind_others_has_what_is_left_of_the_servers_time():
    calls = calls_of(2.0)
    one, _ = pending_of(calls, started_ns=NOW - 500_000_000)
    calls._delay(one)  # it is over by now
    calls.port.recall.assert_not_called()
    one.call = call = object()
    calls._delay(one)
    assert one.is_late and one.timer is calls.loop.call_later.return_value
    assert calls.loop.call_later.call_args.args == (1.5, calls.expire, one)
    calls.port.recall.assert_called_once_with(call)
    one.started_ns = NOW - 5_000_000_000
    assert calls._options_of_late(one, NOW).timeout == 1e-3
    forever, _ = pending_of(calls_of(), call=call)
    forever.calls._delay(forever)
    assert forever.timer is None
    forever.calls.loop.call_later.assert_not_called()


def test_a_model_that_answers_in_parts_is_not_asked_for_a_whole_answer():
    calls = calls_of()
    with pytest.raises(ProtocolError, match="answers in parts: use generate_stream") as caught:
        calls.start(model(streams=True), InferRequest(inputs=[X]), 0, print)
    assert caught.value.status == 400
    calls.accounting.admit.assert_called_once()


# ---- the cache ----------------------------------------------------------------------------------


def test_what_is_kept_is_told_soon_and_what_is_not_is_asked_for():
    calls = calls_of(cache=mock.Mock())
    calls.cache.get.return_value = None
    one, _ = pending_of(calls, model(cache=True), args=(5, np.ones(2)))
    assert calls._begin(one) is one
    calls.accounting.missed.assert_called_once_with(one.served, NOW)
    calls.port.submit.assert_called_once()
    assert one.digest
    other, _ = pending_of(calls, model(cache=True), args=(5, np.ones(2)))
    calls.cache.get.return_value = "a result"
    calls._begin(other)
    calls.port.submit.assert_called_once()
    calls.loop.call_soon.assert_called_once_with(calls._found, other, "a result")
    assert other.digest == one.digest


def test_of_a_request_with_regions_nothing_is_kept():
    calls = calls_of(cache=mock.Mock())
    asked = InferRequest(inputs=[X], outputs=[RequestedOutput("y", shm=SharedMemoryRef("r", 0, 8))])
    one, _ = pending_of(calls, model(cache=True), asked)
    assert not calls._is_cached(one) and one.digest == b""
    calls.cache.get.assert_not_called()


def test_a_kept_result_that_cannot_be_told_is_an_error_and_no_hit():
    calls = calls_of()
    calls.spans = mock.Mock()
    one, told = pending_of(calls, started_ns=NOW - 30)
    calls._found(one, np.zeros(3, "f8"))
    ((answer, error),) = told
    assert answer is None and isinstance(error, ProtocolError)
    calls.accounting.hit.assert_called_once_with(one.served, 30)
    calls.accounting.revoke_hit.assert_called_once_with(one.served, 30)
    calls.spans.ended.assert_called_once()
    good, told = pending_of(calls)
    calls._found(good, np.zeros(3, "f4"))
    assert told[0][1] is None and good.is_over
    calls.accounting.revoke_hit.assert_called_once()


# ---- the end ------------------------------------------------------------------------------------


def sent(calls, **said):
    one, told = pending_of(calls, **said)
    one.call, one.timer, one.sent_ns = object(), mock.Mock(), NOW - 20
    return one, told, one.timer


@pytest.mark.parametrize(
    ("result", "error", "wanted"),
    [
        (np.zeros(3, "f4"), None, None),
        (np.zeros(3, "f8"), None, "returned float64 for output 'y'"),
        (np.zeros((3, 1), "f4"), None, "returned the shape"),
        (None, CallTimeout("too late"), "too late"),
    ],
)
def test_a_call_that_has_ended_is_told_once_and_counted(result, error, wanted):
    calls = calls_of(cache=mock.Mock())
    one, told, timer = sent(calls, digest=b"d")
    calls.ended(one, result, error)
    ((answer, failed),) = told
    books = calls.accounting
    books.leave.assert_called_once_with(one.queue)
    timer.cancel.assert_called_once()
    assert one.is_over and one.call is None and one.timer is None
    if wanted is None:
        assert failed is None and answer.outputs[0].array is result
        books.succeed.assert_called_once_with(one.served, 3, 20)
        books.told.assert_called_once_with(one.served, one.started_ns)
        calls.cache.put.assert_called_once_with(5, b"d", result)
        books.kept.assert_called_once_with(one.served, NOW)
    else:
        assert answer is None and wanted in str(failed)
        books.failed.assert_called_once_with(one.served, one.started_ns, failed)
        books.succeed.assert_not_called()
        books.told.assert_not_called()
        calls.cache.put.assert_not_called()


def test_an_answer_that_cannot_be_written_is_taken_back():
    calls = calls_of()
    one, _, _ = sent(calls)
    wrong, told = ValueError("no text"), []

    def outcome(answer, error):
        told.append(error)
        if error is None:
            raise wrong

    one.outcome = outcome
    calls.ended(one, np.zeros(3, "f4"), None)
    assert told == [None, wrong]
    calls.accounting.succeed.assert_called_once_with(one.served, 3, 20)
    calls.accounting.revoke.assert_called_once_with(one.served, 3, 20)
    calls.accounting.failed.assert_called_once_with(one.served, one.started_ns, wrong)
    calls.accounting.told.assert_not_called()


GONE = RemoteError(remote_name(Unloaded), "it was unloaded")


@pytest.mark.parametrize(
    "found",
    [
        "the same",
        {"metadata": "other tensors"},
        {"prepared": ("another",)},
        ProtocolError(404, "there is no such model"),
        ShmError("it cannot be sent"),
        {},
    ],
    ids=str,
)
def test_a_call_whose_model_was_replaced_is_sent_again_where_the_next_is_like_it(found):
    calls = calls_of()
    old = model()
    one, told, _ = sent(calls, served=old)
    anew = model(**{"number": 9, "metadata": old.metadata, **found}) if found == {} else None
    if isinstance(found, dict) and found:
        anew = model(**{"metadata": old.metadata, **found})
    calls.catalog.find.return_value = old if found == "the same" else anew
    if isinstance(found, ProtocolError):
        calls.catalog.find.side_effect = found
    if isinstance(found, ShmError) and not isinstance(found, ProtocolError):
        calls.catalog.find.return_value = model(metadata=old.metadata)
        calls.port.submit.side_effect = found
    calls.ended(one, None, GONE)
    if found == {}:
        assert told == [] and one.served is anew and one.args == (9, "x")
        calls.port.submit.assert_called_once()
        assert not one.is_over
    else:
        assert told == [(None, GONE)] and one.is_over


@pytest.mark.parametrize("is_sent", [True, False])
def test_a_late_request_that_was_called_back_waits_behind_others(is_sent):
    calls = calls_of()
    one, told, _ = sent(calls, is_late=True)
    error = None if is_sent else ShmError("no")
    calls.port.submit.side_effect = error
    calls.ended(one, None, CallCancelled("called back"))
    calls.port.submit.assert_called_once()
    assert told == ([] if is_sent else [(None, error)])
    calls = calls_of()
    one, told, _ = sent(calls)  # one that is not late was cancelled by somebody else
    calls.ended(one, None, CallCancelled("called back"))
    calls.port.submit.assert_not_called()
    assert isinstance(told[0][1], CallCancelled)


def test_who_leaves_is_not_told():
    calls = calls_of()
    calls.spans = mock.Mock()
    one, told, timer = sent(calls)
    call = one.call
    one.cancel()
    calls.port.cancel.assert_called_once_with(call)
    calls.accounting.cancelled.assert_called_once_with(one.served, one.started_ns)
    calls.accounting.leave.assert_called_once_with(one.queue)
    timer.cancel.assert_called_once()
    assert calls.spans.ended.call_args.args[-1] is inference.LEFT and told == []
    other, _, _ = sent(calls)
    calls.port.cancel.return_value = False  # its reply is here
    other.cancel()
    calls.accounting.cancelled.assert_called_once()
    assert other.call is not None and not other.is_over
    kept, _ = pending_of(calls)
    kept.cancel()
    assert kept.is_over
    calls.expire(kept)
    calls.port.expire.assert_not_called()
    calls.expire(other)
    calls.port.expire.assert_called_once_with(other.call)


def test_a_request_that_was_refused_is_traced_by_what_is_known_of_it():
    calls = calls_of()
    calls.refused(None, 3, b"t", ("asked", "", "id"), ValueError())
    calls.accounting.refused.assert_not_called()
    calls.spans = mock.Mock()
    error = ValueError("no")
    calls.refused(model(), 3, b"t", ("asked", "", "id"), error)
    calls.accounting.refused.assert_called_once()
    told = {"model.name": "m", "model.version": "1", "request.id": "id"}
    calls.spans.ended.assert_called_once_with(0, 3, b"t", told, error)
    calls.refused(None, 3, b"t", ("asked", "", ""), error)
    assert calls.spans.ended.call_args.args[3] == {"model.name": "asked"}


# ---- arguments -----------------------------------------------------------------------------------


def test_inputs_go_in_the_models_order_and_those_left_out_are_none():
    served = model(inputs=[DATATYPES["FP32"]] * 3, input_index={"x": 2, "z": 0})
    z = InputTensor("z", "FP32", (1,), np.zeros(1, "f4"))
    number, *args = calls_of().arguments(served, InferRequest(inputs=[X, z]))
    assert number == 5 and args[1] is None
    assert args[0].tolist() == [0] and args[2].tolist() == [1, 1]


def test_inputs_of_a_batch_have_equally_many_rows():
    served = model(max_batch_size=4, inputs=[DATATYPES["FP32"]] * 2, input_index={"x": 0, "z": 1})
    z = InputTensor("z", "FP32", (3,), np.zeros(3, "f4"))
    with pytest.raises(ProtocolError, match=r"must have equally many rows, not \[2, 3\]") as caught:
        calls_of().arguments(served, InferRequest(inputs=[X, z]))
    assert caught.value.status == 400
    served.max_batch_size = 0
    assert len(calls_of().arguments(served, InferRequest(inputs=[X, z]))) == 3


def test_bytes_go_as_their_shape_and_their_encoding():
    served = model(inputs=[DATATYPES["BYTES"]])
    texts = np.array(["a", "bc"], object)
    encoded = b"\1\0\0\0a\2\0\0\0bc"
    for data in (texts, memoryview(encoded)):
        one = InputTensor("x", "BYTES", (2,), data)
        _, (shape, found) = calls_of().arguments(served, InferRequest(inputs=[one]))
        assert shape == (2,) and found.tobytes() == encoded


def test_what_begins_at_any_byte_is_copied_to_where_it_is_aligned():
    calls = calls_of()
    calls.port.arena.allocate.side_effect = lambda size: (bytearray(size), 0)
    for count in (2, 0):
        data = memoryview(bytes(range(1, 4 * count + 2)))[1:]
        one = InputTensor("x", "FP32", (count,), data)
        _, found = calls.arguments(model(), InferRequest(inputs=[one]))
        assert found.tobytes() == bytes(data) and found.dtype == np.float32
        assert found.flags.aligned


def test_a_sequence_is_known_by_its_id_and_its_kind():
    served = model(sequence=True)
    with pytest.raises(ProtocolError, match="must specify a non-zero or non-empty correlation ID"):
        calls_of().arguments(served, InferRequest(inputs=[X]))
    for name, said in ((5, "5"), ("5", "'5'")):
        asked = InferRequest(inputs=[X], sequence_id=name, sequence_start=True)
        found = calls_of().arguments(served, asked)
        assert found[:5] == (5, (), said, True, False) and len(found) == 6


def test_tensors_in_regions_are_located():
    calls = calls_of()
    calls.regions.locate.side_effect = lambda shm, whose: (shm.region, shm.offset, whose)
    x = InputTensor("x", "FP32", (2,), None, SharedMemoryRef("r", 4, 8))
    asked = InferRequest(inputs=[x], outputs=[RequestedOutput("y", shm=SharedMemoryRef("s", 0, 8))])
    first, outputs, given = calls.arguments(model(), asked)
    assert first == 5 and outputs == ((0, "s", 0, "output 'y'"),)
    assert given == {"in": ("r", 4, "input 'x'"), "shape": (2,)}
    with pytest.raises(ProtocolError, match="prepares its inputs before a helper gets them"):
        calls.arguments(model(prepare=len), asked)


@pytest.mark.parametrize(
    ("raised", "status"),
    [(ProtocolError(418, "tea"), 418), (ValueError("no"), 400), (KeyError("no"), 500)],
)
def test_what_prepares_inputs_may_refuse_them(raised, status):
    def prepare(x):
        raise raised

    with pytest.raises(ProtocolError) as caught:
        calls_of().arguments(model(prepare=prepare), InferRequest(inputs=[X]))
    assert caught.value.status == status


# ---- outputs -------------------------------------------------------------------------------------


def outputs(result, asked=(), **said):
    served = model(**said)
    return (
        calls_of().response(served, InferRequest(inputs=[X], outputs=list(asked)), result).outputs
    )


def test_outputs_come_as_they_were_asked_for():
    two = {
        "outputs": [DATATYPES["FP32"], DATATYPES["BF16"]],
        "output_index": {"y": 0, "z": 1},
        "metadata": types.SimpleNamespace(
            outputs=[TensorMetadata("y", "FP32", (-1,)), TensorMetadata("z", "BF16", (-1,))]
        ),
    }
    y, z = np.zeros(3, "f4"), np.zeros(3, "u2")
    assert [one.name for one in outputs((y, z), **two)] == ["y", "z"]
    found = outputs((y, z), [RequestedOutput("z"), RequestedOutput("y")], **two)
    assert [(one.name, one.array.dtype) for one in found] == [("z", np.int16), ("y", np.float32)]
    for wrong in (np.zeros(3, "u4"), np.zeros(3, "u1")):
        with pytest.raises(ProtocolError, match="for output 'z', which is declared as BF16"):
            outputs((y, wrong), **two)


def test_an_output_in_a_region_is_told_by_its_shape_and_size():
    asked = [RequestedOutput("y", shm=SharedMemoryRef("r", 0, 8))]
    (one,) = outputs(np.array([12, 3]), asked)
    assert (one.shape, one.nbytes, one.array) == ((3,), 12, None)
    with pytest.raises(ProtocolError, match=r"returned the shape \[3, 1\] for output 'y'"):
        outputs(np.array([12, 3, 1]), asked)


def test_text_comes_as_bytes_with_its_shape():
    said = {
        "outputs": [DATATYPES["BYTES"]],
        "metadata": types.SimpleNamespace(outputs=[TensorMetadata("y", "BYTES", (-1,), labels=())]),
    }
    (one,) = outputs((np.array([2]), np.frombuffer(b"abc", np.uint8)), **said)
    assert one.shape == (2,) and bytes(one.array) == b"abc"


# ---- ensembles -----------------------------------------------------------------------------------


def run(steps, **said):
    """What an ensemble of these steps does: its outcome, and its books."""
    told = []
    served = model(
        steps=steps,
        metadata=types.SimpleNamespace(
            inputs=[TensorMetadata("x", "FP32", (-1,))],
            outputs=[TensorMetadata("y", "FP32", (-1,))],
        ),
    )

    async def course():
        calls = calls_of(said.get("timeout"))
        calls.loop = asyncio.get_running_loop()
        times = iter([10, 15])
        calls.now = lambda: next(times)

        def outcome(answer, error):
            told.append((answer, error))
            if error is None and "raises" in said:
                raise said["raises"]

        one = ensembles.EnsembleRun(calls, served, InferRequest(inputs=[X]), 3, outcome, 0)
        if said.get("leaves"):
            await asyncio.sleep(0)
            one.cancel()
        await asyncio.wait([one._task])
        return calls

    return asyncio.run(course()), served, told


def test_an_ensemble_that_ends_is_told_and_counted():
    calls, served, ((answer, error),) = run(lambda call, x: x + 1)
    assert error is None and answer.outputs[0].array.tolist() == [2, 2]
    calls.accounting.succeed.assert_called_once_with(served, 1, 5)
    calls.accounting.told.assert_called_once_with(served, 3)
    calls.accounting.leave.assert_called_once()
    calls.accounting.failed.assert_not_called()


def test_an_ensemble_whose_answer_cannot_be_written_is_taken_back():
    wrong = ValueError("no text")
    calls, served, told = run(lambda call, x: x, raises=wrong)
    assert [error for _, error in told] == [None, wrong]
    calls.accounting.revoke.assert_called_once_with(served, 1, 5)
    calls.accounting.failed.assert_called_once_with(served, 3, wrong)
    calls.accounting.told.assert_not_called()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (lambda call, x: 1 / 0, "ZeroDivisionError"),
        (lambda call, x: "text", "returned <U4"),
        (lambda call, x: None, "for output 'y', which is declared as FP32"),
        (lambda call, x: (x, x), "returned a tuple: return 1 arrays, as it declares"),
        (lambda call, x: {"z": x}, "for output 'y'"),
        (lambda call, x: x.reshape(1, 2), r"of the shape \[1, 2\] for output 'y'"),
    ],
)
def test_an_ensemble_that_gives_something_else_says_so(steps, words):
    calls, served, ((answer, error),) = run(steps)
    assert answer is None and re.search(words, str(error)), error
    calls.accounting.failed.assert_called_once_with(served, 3, error)
    calls.accounting.succeed.assert_not_called()


def test_an_ensemble_has_its_time_and_may_be_left():
    async def waits(call, x):
        await asyncio.sleep(60)

    calls, served, ((_, error),) = run(waits, timeout=0.01)
    assert isinstance(error, CallTimeout)
    calls.accounting.failed.assert_called_once()
    calls, served, told = run(waits, leaves=True)
    assert told == []
    calls.accounting.cancelled.assert_called_once_with(served, 3)
    calls.accounting.leave.assert_called_once()


def test_an_ensemble_takes_no_regions():
    asked = InferRequest(inputs=[X], outputs=[RequestedOutput("y", shm=SharedMemoryRef("r", 0, 8))])
    with pytest.raises(ProtocolError, match="is an ensemble: send its tensors with the request"):
        ensembles.EnsembleRun(calls_of(), model(), asked, 0, print, 0)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("x", np.ones(2, "f4"), ""),
        ("z", np.ones(2, "f4"), "model 'm' has no input 'z'"),
        ("x", np.ones(2, "f8"), "is FP32, and the ensemble gives float64: convert it"),
    ],
)
def test_what_an_ensemble_gives_a_model_is_what_that_takes(name, value, words):
    if not words:
        one = ensembles._input(model(), name, value)
        assert one.name == "x" and one.shape == (2,) and one.array() is value
        return
    with pytest.raises(ProtocolError, match=words) as caught:
        ensembles._input(model(), name, value)
    assert caught.value.status == 500


def test_an_answer_is_arrays_to_the_ensemble_however_it_came():
    one = OutputTensor("y", "INT16", (2,), memoryview(b"\1\0\2\0"))
    assert ensembles._array(one).tolist() == [1, 2]
    array = np.ones(2)
    assert ensembles._array(OutputTensor("y", "FP64", (2,), array)) is array
