"""OpenTelemetry: a span for each request under the client's own, with its waiting and computing."""

from __future__ import annotations

import contextlib
import json
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
    with servers.serving(servers.MODELS / "simple.py", workers=1, grpc_port=0, otel=True) as server:
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


def test_an_exporter_that_is_missing_is_said_at_the_start(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nobody")
    with pytest.raises(AssertionError, match="exporter that is missing"):
        with servers.serving(servers.MODELS / "simple.py", otel=True):
            pass
