"""Answers in parts: the generate extension, server-sent events, and the stream of gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import signal
import time
from unittest import mock

import numpy as np
import pytest
from serve import servers

from shmgpu.child.arguments import CallOptions
from shmgpu.errors import RemoteError, ShmError, remote_name
from shmgpu.serve.models.errors import StreamLost
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling.streams import Stream

grpc_client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def server():
    """One helper, so that all streams meet in it."""
    with servers.serving(
        servers.MODELS / "streaming.py", helpers=1, grpc_port=0, max_queue=64
    ) as running:
        yield running


def post(server, model, asked, kind="generate"):
    return server.ask("POST", f"/v2/models/{model}/{kind}", json.dumps(asked).encode())


def events(body):
    return [json.loads(one.removeprefix("data: ")) for one in body.decode().split("\n\n") if one]


def figures(server, model):
    return server.statistics(model)["inference_stats"]


def test_each_part_is_an_event(server):
    status, headers, body = post(server, "words", {"text": "so it goes"}, "generate_stream")
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    found = events(body)
    assert [(one["word"], one["number"]) for one in found] == [("so", 0), ("it", 1), ("goes", 2)]
    assert all((one["model_name"], one["model_version"]) == ("words", "1") for one in found)


def test_an_answer_of_one_part_is_an_object(server):
    status, headers, body = post(server, "words", {"text": "alone", "id": "seven"})
    assert (status, headers["content-type"]) == (200, "application/json")
    answer = json.loads(body)
    assert (answer["word"], answer["number"], answer["id"]) == ("alone", 0, "seven")
    status, _, body = post(server, "words", {"text": "one two"})
    assert status == 400
    assert "generate_stream" in json.loads(body)["error"]


def test_a_model_that_answers_at_once_can_be_asked_either_way(server):
    assert json.loads(post(server, "double", {"x": 4})[2])["y"] == 8.0
    (one,) = events(post(server, "double", {"x": 4}, "generate_stream")[2])
    assert one["y"] == 8.0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "has no 'text'"),
        ({"text": 7}, "text"),
        ({"text": ["a", "b"]}, "shape"),
        ({"text": "a", "more": {"b": 1}}, "'more'"),
        ({"text": "a", "parameters": 3}, "'parameters'"),
    ],
)
def test_what_does_not_fit_is_said_before_the_stream_begins(server, asked, said):
    status, _, body = post(server, "words", asked, "generate_stream")
    assert status == 400
    assert said in json.loads(body)["error"]


def test_a_failure_on_the_way_is_the_last_event(server):
    status, _, body = post(server, "breaks", {"x": 1}, "generate_stream")
    assert status == 200
    first, second, last = events(body)
    assert (first["y"], second["y"]) == (1.0, 2.0)
    assert "there is no third part" in last["error"]
    before = figures(server, "breaks")
    post(server, "breaks", {"x": 1}, "generate_stream")
    assert figures(server, "breaks")["fail"]["count"] == before["fail"]["count"] + 1


def test_a_stream_without_parts_is_an_empty_stream(server):
    status, headers, body = post(server, "words", {"text": ""}, "generate_stream")
    assert (status, body) == (200, b"")
    assert headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("error", [None, ValueError("no more")])
def test_a_stream_that_has_ended_is_not_given_up_as_well(error):
    """Its client may leave while the last event is still being sent."""
    calls, told = mock.Mock(), []
    stream = Stream(calls, mock.Mock(), mock.Mock(), 0, told.append, told.append)
    stream._ended(error)
    assert told == [error]
    left = calls.accounting.leave.call_count
    stream.cancel()
    stream.more()
    assert (calls.accounting.leave.call_count, told) == (left, [error])
    calls.accounting.cancelled.assert_not_called()
    calls.port.submit.assert_not_called()


def unbegun(**said):
    """A stream of a model that answers in parts, and what its client is told."""
    calls, told = mock.Mock(), []
    calls.arguments.return_value = ["first", "x"]
    calls.options.return_value = None
    calls.spans = None
    served = mock.Mock(streams=True, **said)
    return Stream(calls, served, mock.Mock(), 0, told.append, told.append), calls, told


def test_a_stream_that_cannot_be_sent_is_not_pending():
    stream, calls, _ = unbegun()
    calls.port.submit.side_effect = ShmError("no")
    with pytest.raises(ShmError, match="no"):
        stream.begin()
    calls.accounting.begin.assert_called_once()
    calls.accounting.leave.assert_called_once()


def test_the_next_part_comes_from_the_helper_that_has_the_stream_and_in_its_time():
    stream, calls, told = unbegun()
    calls.options.side_effect = lambda *asked: CallOptions(timeout=2.5)
    stream.begin()
    timer = calls.loop.call_later.return_value
    assert calls.loop.call_later.call_args.args == (2.5, stream._expire)
    stream._expire()
    calls.port.expire.assert_called_once_with(stream._call)
    stream.ended(None, (3, "part"), None)
    timer.cancel.assert_called_once()
    assert told == [calls.response.return_value] and stream.helper == 3
    assert calls.response.call_args.args == (stream.served, stream.request, "part")
    stream._expire()  # nothing is out
    calls.port.expire.assert_called_once()
    stream.more()
    target, args, _, options, handler, *_ = calls.port.submit.call_args.args
    assert target is stream.served.continuing and args == (stream._token,)
    assert options.placement == 1 << 3 and handler is stream
    stream.ended(None, (), None)
    assert told[1:] == [None] and stream.is_over
    calls.accounting.answered.assert_called_once()


def test_a_next_part_that_cannot_be_asked_for_ends_the_stream():
    stream, calls, told = unbegun()
    stream.begin()
    stream.ended(None, (3, "part"), None)
    error = calls.port.submit.side_effect = ShmError("no")
    stream.more()
    assert told[1:] == [error] and stream.is_over
    calls.accounting.failed.assert_called_once_with(stream.served, 0, error)


def test_a_part_that_is_none_ends_the_stream_and_the_helper_forgets_it():
    stream, calls, told = unbegun()
    stream.begin()
    error = calls.response.side_effect = ValueError("no such part")
    stream.ended(None, (3, "part"), None)
    assert told == [error]
    assert calls.port.submit.call_args.args[0] is stream.served.closing
    assert calls.port.submit.call_args.args[3].placement == 1 << 3


def test_a_stream_that_was_left_while_it_was_opened_is_closed_when_it_is_open():
    for result, closes in (((3, "part"), True), ((3,), False)):
        stream, calls, told = unbegun()
        stream.begin()
        stream.cancel()
        assert calls.port.submit.call_count == 1 and stream.is_over
        stream.ended(None, result, None)
        assert told == []
        assert (calls.port.submit.call_args.args[0] is stream.served.closing) == closes


@pytest.mark.parametrize("error", [None, ValueError("no")])
def test_an_answer_at_once_is_one_part_or_an_error(error):
    calls, told = mock.Mock(), []
    stream = Stream(calls, mock.Mock(streams=False), mock.Mock(), 0, told.append, told.append)
    stream.begin()
    stream._whole("answer", error)
    assert told == [error or "answer"] and stream.is_over == (error is not None)
    stream.cancel()
    assert calls.start.return_value.cancel.call_count == (error is None)


def test_a_stream_that_its_helper_does_not_have_any_more_is_to_be_tried_again():
    stream, _, told = unbegun()
    stream._ended(RemoteError(remote_name(StreamLost), "it is gone", ""))
    (error,) = told
    assert isinstance(error, ProtocolError) and error.status == 503 and "it is gone" in str(error)


def test_an_ordinary_request_to_a_stream_is_told_how_to_ask(server):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    status, _, body = server.ask(
        "POST", "/v2/models/breaks/infer", json.dumps({"inputs": [tensor]}).encode()
    )
    assert status == 400
    assert "generate_stream" in json.loads(body)["error"]


@contextlib.contextmanager
def reading(server, model, asked):
    """A stream of which parts are read one by one."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(asked))
        response = connection.getresponse()

        def one():
            line = response.readline()
            assert response.readline() == b"\n"
            return json.loads(line.removeprefix(b"data: "))

        yield one


def ended(server):
    return json.loads(post(server, "ended", {"x": 0})[2])["y"]


def test_a_helper_serves_others_between_the_parts(server):
    with (
        reading(server, "count", {"count": 1 << 40}) as one,
        reading(server, "count", {"count": 1 << 40}) as two,
    ):
        for number in range(5):
            assert one()["number"] == number
            assert json.loads(post(server, "double", {"x": number})[2])["y"] == 2 * number
            assert two()["number"] == number


def test_what_a_slow_client_does_not_take_is_not_made_and_what_it_leaves_is_closed(server):
    before = ended(server)
    with reading(server, "wide", {"count": 1 << 40}) as one:
        one()
        made = figures(server, "wide")["compute_infer"]
        # Parts that fill the sockets' buffers are made; then it stands still.
        last = [made]

        def stands_still():
            time.sleep(0.02)
            now = figures(server, "wide")["compute_infer"]
            stands = now == last[0]
            last[0] = now
            return stands

        servers.until(lambda: all(stands_still() for _ in range(5)), "no part is made")
    servers.until(lambda: ended(server) != before, "the generator is closed")
    assert ended(server)[-1] < 2000  # parts of 50 KB: buffers on the way have 10 MB together


def test_a_stream_whose_helper_dies_ends_with_a_sentence():
    with (
        servers.serving(servers.MODELS / "streaming.py", helpers=1) as server,
        reading(server, "count", {"count": 1 << 40}) as one,
    ):
        os.kill(one()["pid"], signal.SIGKILL)
        while "error" not in (part := one()):
            pass
        assert "died" in part["error"]
        servers.until(lambda: post(server, "double", {"x": 1})[0] == 200, "it serves again")


# ---- gRPC ------------------------------------------------------------------------------------


@contextlib.contextmanager
def streaming(server):
    """The stock client's stream: its answers and errors in order."""
    told = queue.Queue()
    with contextlib.closing(grpc_client.InferenceServerClient(server.grpc_address)) as triton:
        triton.start_stream(lambda result, error: told.put((result, error)))
        try:
            yield triton, lambda: told.get(timeout=30)
        finally:
            triton.stop_stream()


def text(value):
    tensor = grpc_client.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([value], dtype=object))
    return tensor


def test_parts_come_as_responses_of_the_stream(server):
    with streaming(server) as (triton, told):
        triton.async_stream_infer(
            "words", [text(b"so it goes")], request_id="a", enable_empty_final_response=True
        )
        for number, word in enumerate((b"so", b"it", b"goes")):
            result, error = told()
            assert error is None
            assert result.as_numpy("word")[0] == word
            assert result.as_numpy("number")[0] == number
            response = result.get_response()
            assert response.id == "a"
            assert not response.parameters["triton_final_response"].bool_param
        response = told()[0].get_response()
        assert response.parameters["triton_final_response"].bool_param
        assert not response.outputs
        triton.async_stream_infer("words", [text(b"again")], request_id="b")
        assert told()[0].get_response().id == "b"


def test_a_stream_that_fails_tells_it_and_goes_on(server):
    with streaming(server) as (triton, told):
        tensor = grpc_client.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.ones(1, "float32"))
        triton.async_stream_infer("breaks", [tensor])
        assert [told()[0].as_numpy("y")[0] for _ in range(2)] == [1, 2]
        assert "there is no third part" in str(told()[1])
        triton.async_stream_infer("double", [tensor])
        assert told()[0].as_numpy("y")[0] == 2
