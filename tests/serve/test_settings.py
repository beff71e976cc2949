"""Logging and trace settings, and the access log."""

from __future__ import annotations

import json
import re
import socket

import pytest
from serve import servers

MODEL = servers.MODELS / "simple.py"
TRACES = ("/v2/trace/setting", "/v2/models/scale/trace/setting")


@pytest.fixture(scope="module")
def allowing():
    with servers.serving(MODEL, helpers=1, grpc_port=0, allow_settings=True) as server:
        yield server


def test_settings_are_told_to_all_and_changed_by_none_unless_allowed(server):
    status, _, answer = server.ask("GET", "/v2/logging")
    assert status == 200 and json.loads(answer)["log_info"] is True
    assert server.ask("POST", "/v2/logging", b'{"log_info": false}')[0] == 403
    for path in TRACES:
        status, _, answer = server.ask("GET", path)
        assert status == 200 and json.loads(answer)["trace_level"] == ["OFF"]
        assert server.ask("POST", path, b'{"trace_level": null}')[0] == 403
    assert server.ask("GET", "/v2/models/nobody/trace/setting")[0] == 404


def test_what_is_logged_is_changed_for_whoever_asks_next(allowing):
    status, _, answer = allowing.ask("POST", "/v2/logging", b'{"log_verbose_level": 1}')
    assert status == 200 and json.loads(answer)["log_verbose_level"] == 1
    for _ in range(8):  # whichever worker it is
        assert json.loads(allowing.ask("GET", "/v2/logging")[2])["log_verbose_level"] == 1
    assert allowing.ask("POST", "/v2/logging", b'{"log_verbose_level": 0}')[0] == 200


@pytest.mark.parametrize(
    "asked",
    [{"log_file": "/tmp/x"}, {"nothing": 1}, {"log_info": 1}, {"log_verbose_level": -1}, []],
)
def test_a_setting_that_cannot_be_is_400(allowing, asked):
    assert allowing.ask("POST", "/v2/logging", json.dumps(asked).encode())[0] == 400


def test_stock_clients_see_and_change_settings(allowing):
    http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with http.InferenceServerClient(allowing.address) as client:
        assert client.get_log_settings()["log_error"] is True
        assert client.update_log_settings({"log_warning": False})["log_warning"] is False
        assert client.get_trace_settings(model_name="scale")["trace_level"] == ["OFF"]
        assert client.update_trace_settings(settings={"trace_level": None})
    with grpc.InferenceServerClient(allowing.grpc_address) as client:
        assert client.get_log_settings(as_json=True)["settings"]["log_warning"]["bool_param"] is (
            False
        )
        client.update_log_settings({"log_warning": True})
        traced = client.get_trace_settings(as_json=True)["settings"]
        assert traced["trace_level"]["value"] == ["OFF"]
        with pytest.raises(grpc.InferenceServerException, match="writes no traces"):
            client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
    assert json.loads(allowing.ask("GET", "/v2/logging")[2])["log_warning"] is True


def test_each_request_is_a_line_of_the_access_log_and_no_client_forges_one(tmp_path):
    log = tmp_path / "access.log"
    with servers.serving(MODEL, workers=1, helpers=1, access_log=log) as server:
        server.ask("GET", "/v2/models/scale")
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(b'GET /"" HTTP/1.0\r\n\r\n')
            while connection.recv(4096):
                pass
        servers.until(lambda: log.exists() and "HTTP/1.0" in log.read_text(), "it is written")
        log.rename(tmp_path / "old.log")
        server.ask("GET", "/nowhere")
        servers.until(log.exists, "a file that was renamed is followed by another")
    line = re.compile(r'127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}:[\d:]{8} \+0000\] "[^"\n]*" \d{3} \d+')
    old, new = (tmp_path / "old.log").read_text().splitlines(), log.read_text().splitlines()
    assert all(line.fullmatch(one) for one in old + new)
    assert any('"GET /v2/models/scale HTTP/1.1" 200 ' in one for one in old)
    assert old[-1].endswith('"GET /\\x22\\x22 HTTP/1.0" 404 21')
    assert '"GET /nowhere HTTP/1.1" 404 ' in new[-1]
