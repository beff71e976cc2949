"""The access log: a line for each request, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time

import numpy as np
import pytest
from serve import servers

LINE = re.compile(
    r"127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}:[\d:]{8} \+0000\] "
    r'"([^"\n]*)" (\d{3}) (\d+) (\d+\.\d{6})'
)
SERVICE = "POST /inference.GRPCInferenceService/"


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_each_request_is_a_line_and_no_client_forges_one(tmp_path):
    log = tmp_path / "access.log"
    with servers.serving(
        servers.MODELS / "simple.py", workers=1, helpers=1, access_log=log
    ) as server:
        assert log.stat().st_mode & 0o777 == 0o640 & ~umask()
        server.ask("GET", "/v2/models/scale")
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(b'GET /"" HTTP/1.0\r\n\r\n')
            while connection.recv(4096):
                pass
        servers.until(lambda: log.exists() and "HTTP/1.0" in log.read_text(), "it is written")
        log.rename(tmp_path / "old.log")
        server.ask("GET", "/nowhere")
        servers.until(log.exists, "a file that was renamed is followed by another")
    old, new = (tmp_path / "old.log").read_text().splitlines(), log.read_text().splitlines()
    assert all(LINE.fullmatch(one) for one in old + new)
    assert any('"GET /v2/models/scale HTTP/1.1" 200 ' in one for one in old)
    assert '"GET /\\x22\\x22 HTTP/1.0" 404 ' in old[-1]
    assert '"GET /nowhere HTTP/1.1" 404 ' in new[-1]


class Log:
    """The lines of a server's log from now on: what was asked, status, bytes, seconds."""

    def __init__(self, path):
        self.path = path
        self.before = len(path.read_text().splitlines())

    def rows(self):
        lines = self.path.read_text().splitlines()[self.before :]
        rows = [LINE.fullmatch(line).groups() for line in lines]
        return [(asked, int(status), int(size), float(took)) for asked, status, size, took in rows]

    def of(self, part, count=1):
        """Those of requests that have this in their line; as many as they are to be."""
        rows = servers.until(
            lambda: len(found := [row for row in self.rows() if part in row[0]]) >= count and found,
            self.rows,
            10,
        )
        assert len(rows) == count
        return rows


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "access.log"
    models = (servers.MODELS / name for name in ("simple.py", "streaming.py"))
    with servers.serving(*models, workers=1, helpers=1, grpc_port=0, access_log=path) as server:
        server.ask("GET", "/last-of-the-start")
        servers.until(lambda: "/last-of-the-start" in path.read_text(), "the first lines")
        yield server, path


@pytest.fixture
def server(logged):
    return logged[0]


@pytest.fixture
def log(logged):
    return Log(logged[1])


def test_a_line_says_how_long_the_request_took(server, log, gate):
    begun = time.monotonic()
    with servers.Held(server, gate):
        servers.until(lambda: server.pending() == 1, "it is held")
        time.sleep(0.3)
    ((asked, status, size, took),) = log.of("held")
    assert (asked, status, size > 0) == ("POST /v2/models/held/infer HTTP/1.1", 200, True)
    assert 0.3 <= took <= time.monotonic() - begun


def test_a_stream_is_a_line_at_its_end_with_all_its_bytes(server, log):
    body = json.dumps({"text": "one two three"}).encode()
    _, _, answer = server.ask("POST", "/v2/models/words/generate_stream", body)
    ((asked, status, size, took),) = log.of("words")
    assert asked == "POST /v2/models/words/generate_stream HTTP/1.1"
    assert (status, size, took > 0) == (200, len(answer), True)


def test_who_leaves_before_the_answer_is_a_line_too(server, log, gate):
    path = {"name": "path", "datatype": "BYTES", "shape": [1], "data": [str(gate)]}
    body = json.dumps({"inputs": [path]}).encode()
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.request("POST", "/v2/models/held/infer", body)
        servers.until(lambda: server.pending() == 1, "it is held")
    assert log.of("held")[0][1:3] == (499, 0)
    gate.touch()
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.request("POST", "/v2/models/wide/generate_stream", b'{"count": 1000000000}')
        connection.getresponse().read(100_000)
    ((_, status, size, _),) = log.of("wide")
    assert (status, size >= 100_000) == (200, True)


def test_calls_over_grpc_are_lines(server, log):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    import grpc

    x = client.InferInput("x", [2], "FP32").set_data_from_numpy(np.ones(2, np.float32))
    with client.InferenceServerClient(server.grpc_address) as made:
        made.is_server_live()
        found = made.infer("scale", [x]).get_response()
        with pytest.raises(client.InferenceServerException):
            made.infer("nobody", [x])
    rows = log.of(SERVICE, 3)
    assert [row[:2] for row in rows] == [
        (f"{SERVICE}ServerLive HTTP/2.0", 200),
        (f"{SERVICE}ModelInfer HTTP/2.0", 200),
        (f"{SERVICE}ModelInfer HTTP/2.0", 404),
    ]
    assert rows[1][2] == found.ByteSize()
    assert rows[1][3] > 0
    with grpc.insecure_channel(server.grpc_address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/nothing/Here")(b"")
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert log.of("nothing")[0][:3] == ("POST /nothing/Here HTTP/2.0", 501, 0)


def test_a_stream_over_grpc_is_a_line_when_it_ends(server, log):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    text = client.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"one two three"], object))
    came = []
    with client.InferenceServerClient(server.grpc_address) as made:
        made.start_stream(lambda result, error: came.append(error or result.get_response()))
        made.async_stream_infer("words", [text])
        servers.until(lambda: len(came) == 3, "all parts")
        made.stop_stream()
    ((asked, status, size, _),) = log.of(SERVICE)
    assert (asked, status) == (f"{SERVICE}ModelStreamInfer HTTP/2.0", 200)
    assert size > sum(one.ByteSize() for one in came)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:%5Bfe80::1%5D:5000", "fe80::1"),
        ("unix:/run/x", "-"),
    ],
)
def test_a_peer_of_grpc_is_its_address(peer, address):
    rpc = pytest.importorskip("shmgpu.serve.frontend.grpc_access_log", exc_type=ImportError)
    assert rpc._address_of(peer) == address
