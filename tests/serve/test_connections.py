"""What a client's connection may do, and what is answered when it does more."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import zlib

import numpy as np
import pytest
from serve import servers

MODEL = servers.MODELS / "simple.py"
JSON = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
).encode()
PATH = "/v2/models/scale/infer"


@contextlib.contextmanager
def connected(server):
    with socket.create_connection((server.host, server.port), timeout=servers.DEADLINE_S) as made:
        yield made


def read_all(connection):
    """All that comes until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            found += piece
    return found


@pytest.fixture(scope="module")
def strict():
    with servers.serving(
        MODEL,
        workers=1,
        helpers=1,
        max_body="64KiB",
        max_header="2KiB",
        max_connections=4,
        max_tensors=2,
        max_json_depth=8,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def hasty():
    """A server of its own: whoever waits for it on a busy machine may be slow."""
    with servers.serving(MODEL, workers=1, helpers=1, idle_timeout=1, receive_timeout=1) as server:
        yield server


def test_a_body_beyond_the_limit_is_413_and_the_answer_arrives(strict):
    with connected(strict) as connection:
        size = 1 << 20
        connection.sendall(
            b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
        )
        with contextlib.suppress(OSError):
            connection.sendall(bytes(size))
        assert read_all(connection).startswith(b"HTTP/1.1 413 ")
    status, _, _ = strict.ask("POST", PATH, (bytes(4096) for _ in range(64)))
    assert status == 413, "a chunked one"
    bomb = gzip.compress(bytes(1 << 22))
    assert strict.ask("POST", PATH, bomb, Content_Encoding="gzip")[0] == 413


@pytest.mark.parametrize(
    "head",
    [b"X-Long: " + b"x" * 4096, b"\r\n".join(b"X-%d: 1" % n for n in range(600)), b"x" * 20000],
)
def test_a_head_beyond_the_limit_is_431(strict, head):
    with connected(strict) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /v2 HTTP/1.1\r\nHos",
        b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n12345",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_client_that_sends_too_slowly_is_let_go(hasty, data):
    with connected(hasty) as connection:
        connection.sendall(data)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") if data else answer == b""


def test_a_client_that_does_not_read_is_let_go():
    with servers.serving(MODEL, workers=1, helpers=1, send_timeout=1, arena="64MiB") as server:
        x = np.ones(1 << 21, "float32")
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "datatype": "FP32",
                        "shape": [x.size],
                        "parameters": {"binary_data_size": x.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        with connected(server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(
                b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\n"
                b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
                % (len(header), len(header) + x.nbytes)
                + header
                + x.tobytes()
            )

            def is_let_go():
                done = server.statistics("scale")["inference_count"]
                mine = f":{connection.getsockname()[1]:04X}"
                # Of the server's end only: this one hears of nothing before it has read.
                ends = servers.connections()
                states = [state for _, remote, state, _ in ends if remote.endswith(mine)]
                return done and "01" not in states

            servers.until(is_let_go, "the connection was ended")


def test_connections_beyond_the_limit_are_503(strict):
    with contextlib.ExitStack() as open_ones:
        for _ in range(4):
            open_ones.enter_context(connected(strict))
        with connected(strict) as one_more:
            assert read_all(one_more).startswith(b"HTTP/1.1 503 ")
    servers.until(lambda: strict.is_ready(), "there is room again")


def test_too_many_tensors_and_too_deep_json_are_400(strict):
    many = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}] * 3}
    assert strict.ask("POST", PATH, json.dumps(many).encode())[0] == 400
    deep = JSON[:-1] + b', "parameters": {"a": ' + b"[" * 9 + b"]" * 9 + b"}}"
    assert strict.ask("POST", PATH, deep)[0] == 400


@pytest.mark.parametrize(("name", "window"), [("gzip", 31), ("deflate", 15)])
def test_an_answer_is_compressed_for_a_client_that_asks(strict, name, window):
    status, headers, answer = strict.ask("POST", PATH, JSON, Accept_Encoding=f"br, {name};q=1")
    assert (status, headers["content-encoding"]) == (200, name)
    assert json.loads(zlib.decompress(answer, window))["outputs"][0]["data"] == [2, 4]


@pytest.mark.parametrize(
    ("accepted", "given"),
    [
        ("gzip;q=0, deflate", "deflate"),
        ("gzip; q=0.000", None),
        ("gzip;q=0.1", "gzip"),
        ("br, identity", None),
    ],
)
def test_an_answer_is_not_compressed_as_a_client_forbids(strict, accepted, given):
    status, headers, _ = strict.ask("POST", PATH, JSON, Accept_Encoding=accepted)
    assert (status, headers.get("content-encoding")) == (200, given)


@pytest.mark.parametrize("more", [b"x", gzip.compress(JSON)], ids=["garbage", "another"])
def test_what_follows_a_compressed_body_is_not_left_unread(strict, more):
    body = gzip.compress(JSON)
    assert strict.ask("POST", PATH, body, Content_Encoding="gzip")[0] == 200
    status, _, answer = strict.ask("POST", PATH, body + more, Content_Encoding="gzip")
    assert (status, b"continues after" in answer) == (400, True)


def test_requests_sent_in_one_go_are_answered_in_order(strict):
    one = b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(
        JSON
    )
    with connected(strict) as connection:
        connection.sendall(
            3 * (one + JSON)
            + b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            + b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        answer = read_all(connection)
    states = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert states == [200, 200, 200, 200, 404]


def test_what_is_no_http_is_400(strict):
    with connected(strict) as connection:
        connection.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400 ")
    assert strict.ask("POST", PATH, JSON)[0] == 200


def test_a_body_that_waits_to_be_asked_for_is_asked_for(strict):
    with connected(strict) as connection:
        connection.sendall(
            b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(JSON)
        )
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(JSON)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_a_token_is_asked_for_but_where_health_is_looked_at(tmp_path):
    token = tmp_path / "token"
    token.write_text("a long random text\n")
    with servers.serving(MODEL, workers=1, helpers=1, token_file=token, grpc_port=0) as server:
        assert server.ask("GET", "/v2/health/ready")[0] == 200
        for given in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "a long random text"},
        ):
            status, headers, _ = server.ask("POST", PATH, JSON, **given)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
        good = "Bearer a long random text"
        assert server.ask("POST", PATH, JSON, Authorization=good)[0] == 200
        client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
        with contextlib.closing(client.InferenceServerClient(server.grpc_address)) as triton:
            assert triton.is_server_ready()
            with pytest.raises(client.InferenceServerException, match="token"):
                triton.get_server_metadata()
            assert triton.get_server_metadata(headers={"authorization": good})


def test_connections_are_encrypted_where_there_is_a_certificate(certificate):
    import ssl
    import urllib.request

    with servers.serving(MODEL, workers=1, helpers=1, **certificate) as server:
        trusting = ssl.create_default_context(cafile=str(certificate["tls_cert"]))
        big = json.dumps(
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [99999], "data": [1] * 99999}]}
        ).encode()
        for body in (JSON, big):
            asked = urllib.request.Request(f"https://{server.address}{PATH}", body)
            with urllib.request.urlopen(asked, context=trusting) as answer:
                assert json.load(answer)["outputs"][0]["data"][0] == 2


def answers_to(server, *requests):
    """Status lines and heads of what is answered on one connection, until it ends or stays open."""
    found = []
    with connected(server) as connection:
        file = connection.makefile("rb")
        for request in requests:
            try:
                connection.sendall(request)
            except OSError:  # it has ended
                return found
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                try:
                    line = file.readline()
                except ConnectionResetError:
                    line = b""
                if not line:
                    return found
                head += line
            lines = head.lower().split(b"\r\n")
            size = next(int(one.split(b":")[1]) for one in lines if one[:15] == b"content-length:")
            file.read(size)
            found.append((int(head.split()[1]), b"connection: keep-alive" in lines))
    return found


def test_a_client_of_http_1_0_keeps_its_connection_if_it_asks_for_that(strict):
    kept = b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    plain = b"GET /v2 HTTP/1.0\r\n\r\n"
    assert answers_to(strict, kept, kept, plain, kept) == [(200, True), (200, True), (200, False)]
    size = b"Connection: Keep-Alive\r\nContent-Length: %d\r\n\r\n" % len(JSON)
    infer = b"POST " + PATH.encode() + b" HTTP/1.0\r\n" + size + JSON
    assert answers_to(strict, *[infer] * 8) == [(200, True)] * 8


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://anybody:8000/v2/health/live", 200),
        (b"HTTPS://anybody/v2/models/scale", 200),
        (b"http://anybody/nowhere", 404),
        (b"http://anybody?x=1", 200),  # the page for people
        (b"http://", 404),
        (b"ftp://anybody/v2", 404),
        (b"*", 404),
    ],
)
def test_a_whole_url_is_read_as_its_path(strict, target, status):
    answers = answers_to(strict, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [code for code, _ in answers] == [status]


def test_a_whole_url_runs_a_model(strict):
    head = b"POST http://x" + PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    assert answers_to(strict, *[head % len(JSON) + JSON] * 6) == [(200, False)] * 6


def test_a_model_that_is_not_ready_says_why(strict):
    status, _, body = strict.ask("GET", "/v2/models/nobody/ready")
    assert (status, "nobody" in json.loads(body)["error"]) == (400, True)
    status, _, body = strict.ask("GET", "/v2/models/nobody/stats")
    assert (status, "unknown model" in json.loads(body)["error"]) == (400, True)
