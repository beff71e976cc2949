"""What clients that mean harm are answered; see the page on security."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time

import pages
import pytest
from serve import servers
from serve.test_connections import JSON, MODEL, PATH, connected, read_all

POST = b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def strict():
    with servers.serving(
        MODEL,
        workers=1,
        helpers=1,
        max_body="1MiB",
        max_header="2KiB",
        max_connections=4,
        idle_timeout=2,
    ) as server:
        yield server


def told(server, data):
    """All that is answered to some bytes, as statuses."""
    with connected(server) as connection:
        connection.sendall(data)
        answer = read_all(connection)
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4\r\nContent-Length: 4\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: -4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Content-Length : 4\r\n",
        b"Content-Length\r\n",
        b"Content-Length:\x0b4\r\n",
        b"X: a\x00b\r\n",
    ],
)
def test_a_request_whose_end_could_be_doubted_is_400_and_ends_the_connection(strict, lines):
    smuggled = LIVE + b"\r\n"
    assert told(strict, POST + lines + b"\r\n" + b"0\r\n\r\n" + smuggled) == [400]


def test_what_follows_a_chunked_body_changes_nothing_and_is_bounded(strict):
    chunked = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%b\r\n0\r\n" % (
        len(JSON),
        JSON,
    )
    after = b"Content-Encoding: br\r\nInference-Header-Content-Length: 1\r\n\r\n"
    assert told(strict, POST + chunked + after) == [200]
    with connected(strict) as connection:
        connection.sendall(POST + chunked)
        with contextlib.suppress(OSError):
            for number in range(10_000):
                connection.sendall(b"X-%d: 1\r\n" % number)
        assert read_all(connection).startswith(b"HTTP/1.1 431 ")
    assert strict.ask("POST", PATH, JSON)[0] == 200


def test_a_body_in_as_many_chunks_as_bytes_is_answered(strict):
    body = JSON + b" " * 300_000
    data = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert told(strict, POST + head + data) == [200]


def test_memory_is_held_by_the_bytes_of_a_body_and_not_by_its_announcement():
    with servers.serving(
        MODEL, workers=1, helpers=1, arena="16MiB", max_body="12MiB", receive_timeout=1
    ) as server:
        with connected(server) as connection:
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % (12 << 20))
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")
        assert server.ask("POST", PATH, JSON)[0] == 200


def test_empty_lines_do_not_keep_a_connection(strict):
    with connected(strict) as connection:
        connection.settimeout(0.3)
        begun = time.monotonic()
        while time.monotonic() - begun < servers.DEADLINE_S:
            try:
                connection.sendall(b"\r\n")
                if not connection.recv(10):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("it is still open")


def test_an_old_client_that_does_not_ask_for_more_is_answered_once(strict):
    line = b"GET /v2/health/live HTTP/1.0\r\n\r\n"
    with connected(strict) as connection:
        connection.sendall(line + line)
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200 ") == 1 and b"Connection: close" in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/2.0\r\nHost: x\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/0.9\r\nHost: x\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /v2/health/live HTTP/1.0\r\n\r\n", 200),
        (
            b"POST /v2/health/live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
            b"0\r\n\r\n",
            400,
        ),
        (LIVE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + LIVE, 200),
        (b"CONNECT host:1 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"DELETE /v2/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"GET /../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 404),
        (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ],
    ids=[
        *("http/2", "2.0", "0.9", "no host", "two hosts", "1.0", "two codings"),
        *("websocket", "connect", "method", "path", "long path"),
    ],
)
def test_what_the_server_does_not_do_is_refused(strict, data, status):
    assert told(strict, data) == [status]


def test_a_flood_of_connections_is_turned_away_and_then_forgotten(strict):
    with contextlib.ExitStack() as held:
        for _ in range(60):
            with contextlib.suppress(OSError):
                held.enter_context(connected(strict))
    servers.until(strict.is_ready, "there is room again")


def test_a_body_has_no_room_before_the_token_is_seen(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    with servers.serving(MODEL, workers=1, helpers=1, token_file=token) as server:
        with connected(server) as connection:
            connection.sendall(POST + b"Content-Length: 60000000\r\n\r\n")
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 401 ") and b"WWW-Authenticate: Bearer" in answer
        assert server.ask("GET", "/v2/health/ready?")[0] == 401, "only the very paths are open"
        assert server.ask("GET", "/metrics")[0] == 401
        for line in (b"POST", b"GET"):
            for body in (b"Content-Length: 60000000", b"Transfer-Encoding: chunked"):
                with connected(server) as connection:
                    connection.sendall(
                        line + b" /v2/health/live HTTP/1.1\r\nHost: x\r\n" + body + b"\r\n\r\n"
                    )
                    assert read_all(connection).startswith(b"HTTP/1.1 401 "), (line, body)
        assert server.ask("GET", "/v2/health/live")[0] == 200
        assert server.ask("HEAD", "/v2/health/live")[0] == 200


def started_and_ended(*flags):
    done = subprocess.Popen(
        [sys.executable, "-m", "shmgpu", "serve", str(MODEL), *flags],
        env=servers.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in done.stdout:
        if line.startswith("ready"):
            done.terminate()
            break
    _, said = done.communicate(timeout=servers.DEADLINE_S)
    return done.returncode, said


def test_a_server_that_is_open_to_every_network_warns(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    code, said = started_and_ended("--port", "0", "--host", "0.0.0.0")
    assert code == 0 and "asks for no token" in said
    code, said = started_and_ended("--port", "0", "--host", "0.0.0.0", "--token-file", str(token))
    assert code == 0 and "token" not in said


def test_a_file_that_is_no_socket_stays_where_it_is(tmp_path):
    file = tmp_path / "precious"
    file.write_text("kept")
    code, said = started_and_ended("--uds", str(file))
    assert code != 0 and "not a socket" in said
    assert file.read_text() == "kept"
    place = str(tmp_path / "in-use")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(place)
        other.listen()
        code, said = started_and_ended("--uds", place)
        assert code != 0 and "another server listens" in said
    code, said = started_and_ended("--uds", place)
    assert code == 0, "one that was left behind is replaced"
    assert not pathlib.Path(place).exists()


def test_every_flag_that_limits_is_on_the_page_about_security():
    from shmgpu.serve import options as flags

    page = pages.text_of(pathlib.Path(flags.__file__).with_name("SECURITY.md"))
    limits = ("max-", "allow-", "timeout", "tls", "token", "host", "uds")
    missing = [
        f.name
        for f in flags.FLAGS
        if any(p in f.name for p in limits) and f"--{f.name}" not in page
    ]
    assert not missing


def test_json_that_is_refused_is_refused_with_a_sentence(strict):
    for body in (b"", b"{", b"[]", b"null", b'{"inputs": 1}', b"\xff", b"[" * 100_000):
        status, _, answer = strict.ask("POST", PATH, body)
        assert status == 400 and json.loads(answer)["error"]


def test_an_old_client_reads_a_stream_until_the_connection_ends(tmp_path):
    log = tmp_path / "log"
    with servers.serving(
        servers.MODELS / "streaming.py", workers=1, helpers=1, access_log=log
    ) as server:
        body = b'{"text": "so it goes"}'
        path = b"/v2/models/words/generate_stream"
        with connected(server) as connection:
            connection.sendall(
                b"POST %b HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)
            )
            head, _, answer = read_all(connection).partition(b"\r\n\r\n")
        assert b"chunked" not in head and b"Connection: close" in head
        assert answer.startswith(b"data: {") and answer.endswith(b"}\n\n")
        assert answer.count(b"data: ") == 3
        line = '"POST /v2/models/words/generate_stream HTTP/1.0" 200 '
        servers.until(lambda: log.exists() and line in log.read_text(), "it is logged")
