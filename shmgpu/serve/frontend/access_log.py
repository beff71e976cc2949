"""The access log: a line for each request, in the Common Log Format, and how long it took.

Owns the file. Lines are collected and written a few times a second, each time to the file that has
the name at that moment, so the log can be rotated by renaming it. All workers append to one file;
the lines of one write stay together. Never delays an answer.
"""

from __future__ import annotations

import os
import time

from shmgpu.common.logs import logger
from shmgpu.serve.frontend.request import Request

MOST_LINES = 1000  # that wait to be written

# Whatever could end a line or a quotation, and what is no ASCII.
_ESCAPES = {code: f"\\x{code:02x}" for code in range(256) if not 32 <= code < 127 or code in b'"\\'}


class AccessLog:
    """A worker's; ``path`` of ``-``: standard output."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lines: list[str] = []
        self._second = -1
        self._date = ""

    def __call__(self, peer: str, request: Request, status: int, length: int) -> None:
        """Keep the line of an answer over HTTP."""
        asked = b"%s %s HTTP/1.%d" % (request.method, request.target, not request.is_old)
        text = asked.decode("latin-1") if request.method else "-"
        seconds = time.monotonic() - request.whole_at if request.whole_at else 0.0
        self.line(peer, text, status, length, seconds)

    def line(self, peer: str, asked: str, status: int, length: int, seconds: float) -> None:
        """Keep a line.

        Args:
            peer: the client's address; "-": it has none.
            asked: the request's line.
            status: of HTTP.
            length: bytes of the answer.
            seconds: from the request's last byte to the answer's.
        """
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._date = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now))
        text = asked.translate(_ESCAPES)
        self._lines.append(f'{peer} - - [{self._date}] "{text}" {status} {length} {seconds:.6f}\n')
        if len(self._lines) >= MOST_LINES:
            self.write()

    def write(self) -> None:
        """Write what was kept."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        data = "".join(lines).encode()
        try:
            if self.path == "-":
                os.write(1, data)
                return
            file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        except OSError as error:
            logger.warning("%d lines of the access log are lost: %s", len(lines), error)
