"""What is compared of an answer: its status, and the shape of its body.

Owns the table, ``answers.jsonl``: a line for each request with Triton's answer and, where this
server's is another one, ours and why. The shape of JSON is JSON: ``"s"`` for text, ``"n"`` for a
number, ``"b"`` for a truth, and of a list that has equal elements one, with their number.
"""

from __future__ import annotations

import http.client
import json
import pathlib
from typing import Any, NamedTuple

from serve.recorded.requests import Asked

TABLE = pathlib.Path(__file__).with_name("answers.jsonl")
TIMEOUT_S = 30

VARIES = ("memory_usage",)  # keys whose lists have what the machine gives

WHY = {
    "fault": "what is wrong with a request is 400 here; Triton says 500 of most",
    "stricter": "one of the rows of the page's table, Stricter than Triton",
    "taken": "the request has one meaning, and is taken; Triton refuses its form",
    "document": "it has what this server knows, and not what only Triton has",
    "page": "a path that has something here",
    "ends": "the request ends Triton's process",
}


class Answer(NamedTuple):
    """A status, and the shape of the body."""

    status: int
    body: Any


class Row(NamedTuple):
    """Of the table; ``ours`` is None where it is Triton's."""

    theirs: Answer
    ours: Answer | None
    why: str

    @property
    def expected(self) -> Answer:
        """Of this server."""
        return self.theirs if self.ours is None else self.ours


def shape(value: Any) -> Any:
    """Of a value of JSON."""
    if isinstance(value, dict):
        return {key: shape(value[key]) for key in sorted(value) if key not in VARIES}
    if isinstance(value, list):
        shapes = [shape(one) for one in value]
        alike = all(one == shapes[0] for one in shapes)
        return [len(shapes), shapes[0]] if shapes and alike else shapes
    if value is None or isinstance(value, bool):
        return None if value is None else "b"
    return "s" if isinstance(value, str) else "n"


def body_shape(body: bytes, header_length: str | None, content_type: str) -> Any:
    """Of a body: JSON, JSON with so many bytes behind it, events, or text."""
    if content_type.startswith("text/event-stream"):
        events = body.decode().strip().split("\n\n")
        return {"events": [_json(one.removeprefix("data:")) for one in events]}
    if header_length is not None:
        length = int(header_length)
        return {"json": _json(body[:length]), "bytes": len(body) - length}
    return _json(body) if body else ""


def _json(text: bytes | str) -> Any:
    try:
        return shape(json.loads(text))
    except ValueError:
        return "text"


def ask(host: str, port: int, asked: Asked) -> Answer:
    """Send one request on a connection of its own; status 0: the connection ended instead."""
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request(asked.method, asked.path, asked.body or None, asked.headers)
        answer = connection.getresponse()
        told = answer.getheader("Inference-Header-Content-Length")
        body = answer.read()
        return Answer(answer.status, body_shape(body, told, answer.getheader("Content-Type") or ""))
    except (OSError, http.client.HTTPException):
        return Answer(0, "")
    finally:
        connection.close()


def fits(given: Answer, expected: Answer) -> bool:
    """Whether an answer has the status, and all that the shape has; documents may have more."""
    return given.status == expected.status and _has(given.body, expected.body)


def _has(given: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(
            key in given and _has(given[key], wanted[key]) for key in wanted
        )
    if isinstance(wanted, list):
        return (
            isinstance(given, list) and len(given) == len(wanted) and all(map(_has, given, wanted))
        )
    return bool(given == wanted)


def read() -> dict[str, Row]:
    """The table, by the request's name."""
    rows = {}
    for line in TABLE.read_text().splitlines():
        told = json.loads(line)
        ours = Answer(*told["ours"]) if "ours" in told else None
        rows[told["name"]] = Row(Answer(*told["triton"]), ours, told.get("why", ""))
    return rows


def write(rows: dict[str, Row]) -> None:
    """The table."""
    lines = []
    for name, row in rows.items():
        told: dict[str, Any] = {"name": name, "triton": list(row.theirs)}
        if row.ours is not None:
            told |= {"ours": list(row.ours), "why": row.why}
        lines.append(json.dumps(told, separators=(",", ":"), ensure_ascii=False))
    TABLE.write_text("\n".join(lines) + "\n")
