"""OpenTelemetry: a span for each request under the client's own, with its waiting and computing."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import queue
import select
import socket
import threading

import numpy as np
import pytest
from serve import servers

pytest.importorskip("opentelemetry.sdk", reason="shmgpu[otel] is not installed")
client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
grpc_client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Exported:
    """The spans that a server's workers have written to its standard output."""

    def __init__(self, server):
        self.spans = []
        self._stream = server.process.stdout
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        text = ""
        with contextlib.suppress(ValueError):  # it was closed
            for line in self._stream:
                if not text and line != "{\n":
                    continue  # what the server itself says there when it is ready
                text += line
                if line == "}\n":
                    self.spans.append(json.loads(text))
                    text = ""

    def join(self):
        self._thread.join(servers.DEADLINE_S)

    def of(self, model, name="infer"):
        return [
            one
            for one in list(self.spans)
            if one["name"] == name and one["attributes"].get("model.name") == model
        ]

    def below(self, span):
        return {
            one["name"]: one
            for one in list(self.spans)
            if one["parent_id"] == span["context"]["span_id"]
        }


@pytest.fixture
def exported(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    files = [servers.MODELS / "simple.py", servers.MODELS / "streaming.py"]
    with servers.serving(*files, workers=1, grpc_port=0, otel=True) as server:
        found = Exported(server)
        found.server = server
        yield found
    found.join()


def ask(kind, address, model="scale", **more):
    with contextlib.closing(kind.InferenceServerClient(address)) as triton:
        x = kind.InferInput("x", (3,), "FP32")
        x.set_data_from_numpy(np.ones(3, "float32"))
        triton.infer(model, [x], headers=dict(HEADERS), **more)


def test_spans_hang_below_the_clients_and_have_their_own_times(exported):
    server = exported.server
    ask(client, server.address, request_id="seven")
    ask(grpc_client, server.grpc_address)
    servers.until(lambda: len(exported.of("scale")) == 2, "both requests have a span")
    for span in exported.of("scale"):
        assert span["context"]["trace_id"] == f"0x{TRACE}"
        assert span["parent_id"] == f"0x{PARENT}"
        parts = servers.until(
            lambda span=span: len(found := exported.below(span)) == 2 and found, "its parts"
        )
        times = [
            span["start_time"],
            parts["queue"]["start_time"],
            parts["queue"]["end_time"],
            parts["compute"]["end_time"],
            span["end_time"],
        ]
        assert times == sorted(times)
        assert parts["queue"]["end_time"] == parts["compute"]["start_time"]
    assert exported.of("scale")[0]["attributes"]["request.id"] == "seven"


def test_the_span_of_a_failure_says_why(exported):
    with pytest.raises(client.InferenceServerException):
        ask(client, exported.server.address, "fails")
    (span,) = servers.until(lambda: exported.of("fails"), "it has a span")
    assert span["status"]["status_code"] == "ERROR"
    assert "not liked" in span["status"]["description"]


def test_requests_like_earlier_ones_have_theirs_too(exported):
    for _ in range(5):
        ask(client, exported.server.address)
    servers.until(lambda: len(exported.of("scale")) == 5, "all have a span")


def generate(server, model, asked, how="generate_stream", timeout=servers.DEADLINE_S):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
    connection.request("POST", f"/v2/models/{model}/{how}", json.dumps(asked), HEADERS)
    return connection, connection.getresponse()


def is_error(span, sentence):
    status = span["status"]
    return status["status_code"] == "ERROR" and sentence in status["description"]


def test_an_answer_in_parts_has_one_span_with_the_parts_of_its_first_call(exported):
    server = exported.server
    connection, response = generate(server, "count", {"count": 3, "id": "nine"})
    with contextlib.closing(connection):
        assert response.read().count(b"data: ") == 3
    (span,) = servers.until(lambda: exported.of("count"), "it has a span")
    assert span["context"]["trace_id"] == f"0x{TRACE}" and span["parent_id"] == f"0x{PARENT}"
    assert span["attributes"]["request.id"] == "nine"
    assert span["status"]["status_code"] == "UNSET"
    assert servers.until(lambda: len(exported.below(span)) == 2, "its parts")


def test_the_parts_of_a_stream_that_lasts_are_not_forgotten(exported):
    server = exported.server
    connection, response = generate(server, "count", {"count": 1 << 30})
    with contextlib.closing(connection):
        response.read(20)
        for _ in range(3):  # rounds of making spans, each of which forgets the one before
            before = len(exported.of("scale"))
            ask(client, server.address)
            servers.until(lambda n=before: len(exported.of("scale")) > n, "a round has been made")
        assert not exported.of("count")
        response.close()
    (span,) = servers.until(lambda: exported.of("count"), "it has a span")
    assert is_error(span, "the client has left")
    assert servers.until(lambda: len(exported.below(span)) == 2, "its parts")


def test_a_request_whose_client_leaves_while_it_runs_has_a_span_that_says_so(exported, gate):
    server = exported.server
    path = {"name": "path", "datatype": "BYTES", "shape": [1], "data": [str(gate)]}
    connection = http.client.HTTPConnection(server.host, server.port)
    with contextlib.closing(connection):
        asked = json.dumps({"inputs": [path]})
        connection.request("POST", "/v2/models/held/infer", asked, HEADERS)
        servers.until(lambda: server.pending() == 1, "it runs")
    (span,) = servers.until(lambda: exported.of("held"), "it has a span")
    assert server.pending() == 0
    gate.touch()
    assert is_error(span, "the client has left") and span["parent_id"] == f"0x{PARENT}"


def test_requests_of_a_grpc_stream_have_spans_below_its_own(exported):
    told = queue.SimpleQueue()
    with contextlib.closing(grpc_client.InferenceServerClient(exported.server.grpc_address)) as one:
        one.start_stream(lambda result, error: told.put((result, error)), headers=dict(HEADERS))
        x = grpc_client.InferInput("x", (3,), "FP32")
        x.set_data_from_numpy(np.ones(3, "float32"))
        count = grpc_client.InferInput("count", (1,), "INT64")
        count.set_data_from_numpy(np.array([2]))
        one.async_stream_infer("scale", [x])
        one.async_stream_infer("count", [count])
        one.async_stream_infer("nobody", [x])
        errors = [told.get(timeout=servers.DEADLINE_S)[1] for _ in range(4)]
        assert [error is None for error in errors] == [True, True, True, False]
        one.stop_stream()
    for model in ("scale", "count", "nobody"):
        (span,) = servers.until(lambda model=model: exported.of(model), f"{model} has a span")
        assert span["parent_id"] == f"0x{PARENT}"
        assert is_error(span, "nobody") == (model == "nobody")


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_requests_that_are_refused_have_a_span_that_says_why(exported, kind):
    server = exported.server
    module, address = {
        "http": (client, server.address), "grpc": (grpc_client, server.grpc_address)
    }[kind]  # fmt: skip
    for model, sentence in (("nobody", "unknown model"), ("add_sub", "'x'")):
        with pytest.raises(client.InferenceServerException):
            ask(module, address, model, request_id="lost")
        (span,) = servers.until(lambda model=model: exported.of(model), "it has a span")
        assert is_error(span, sentence) and span["parent_id"] == f"0x{PARENT}"
        assert exported.below(span) == {}


def test_an_object_that_is_refused_has_a_span_too(exported):
    connection, response = generate(exported.server, "count", {"other": 1}, "generate")
    with contextlib.closing(connection):
        assert response.status == 400
    (span,) = servers.until(lambda: exported.of("count"), "it has a span")
    assert is_error(span, "has no 'count'") and span["parent_id"] == f"0x{PARENT}"


def test_an_exporter_that_is_missing_is_said_at_the_start(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nobody")
    with pytest.raises(AssertionError, match="exporter that is missing"):
        with servers.serving(servers.MODELS / "simple.py", otel=True):
            pass


def test_an_exporter_that_fails_is_told_of_once_in_a_while(caplog, monkeypatch):
    from shmgpu.serve.telemetry import spans

    now = 100.0
    monkeypatch.setattr(spans.time, "monotonic", lambda: now)
    complaints = spans.Complaints()
    for passed in (0.0, 1.0, 1.0, 100.0):
        now += passed
        complaints.handle(logging.makeLogRecord({"levelno": 30, "msg": "no\ncollector"}))
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("(no collector)" in one for one in told)
    assert "and 2 times before" in told[1]


def test_without_a_collector_there_is_one_line_and_the_server_ends(monkeypatch):
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason="shmgpu[otel] is not installed"
    )
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}"
        )
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with servers.serving(
            servers.MODELS / "simple.py", workers=1, helpers=1, otel=True, drain_timeout=3
        ) as server:
            log = server.process.stderr.fileno()
            said = ""

            def told():
                nonlocal said
                said += os.read(log, 1 << 16).decode()
                return "spans are not exported" in said

            os.set_blocking(log, False)
            ask(client, server.address)
            servers.until(lambda: readable(log) and told(), "the log tells of it")
            os.set_blocking(log, True)
        assert said.count("\n") == 1 and "Connection refused" in said


def readable(descriptor):
    return select.select([descriptor], [], [], 0.1)[0]
