"""The access log."""

from __future__ import annotations

import os
import re
import socket

from serve import servers

LINE = re.compile(r'127\.0\.0\.1 - - \[\d\d/\w{3}/\d{4}:[\d:]{8} \+0000\] "[^"\n]*" \d{3} \d+')


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
