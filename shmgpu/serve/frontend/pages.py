"""Pages for people: ``/`` says what is served, ``/docs`` how to ask for it, as HTML.

Owns these two and ``/openapi.json``, made from the description of the routes when somebody asks.
Nothing in them comes from another server, and names of models are escaped. Never answers a
protocol's request.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import orjson

from shmgpu.serve.frontend import documents, openapi
from shmgpu.serve.frontend.request import Request
from shmgpu.serve.frontend.routes import Front

HTML = b"text/html; charset=utf-8"
# Whatever a name might bring in, a browser neither runs nor loads it.
SAFE = (
    b"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
)
_STYLE = (
    "body{font:16px/1.5 sans-serif;margin:2em auto;max-width:60em;padding:0 1em}"
    "td,th{text-align:left;padding:.2em 1em .2em 0;vertical-align:top}code{font-size:90%}"
)


def home(front: Front, request: Request) -> None:
    """What is served."""
    said = documents.server()
    rows = [
        (f"<a href='/v2/models/{_path(one.name)}/versions/{_path(one.version)}'>{_text(one.name)}")
        + f"</a></td><td>{_text(one.version)}</td>"
        + f"<td>{_tensors(one.metadata.inputs)}</td><td>{_tensors(one.metadata.outputs)}"
        for versions in front.catalog.models.values()
        for one in versions.values()
    ]
    body = (
        f"<h1>{_text(said['name'])} {_text(said['version'])}</h1>"
        f"<p>{'Ready' if front.is_ready else 'Ending'}. <a href='/docs'>How to ask</a>, "
        "<a href='/openapi.json'>OpenAPI</a>, <a href='/v2'>extensions</a>, "
        "<a href='/v2/models/stats'>statistics</a>, <a href='/metrics'>metrics</a>.</p>"
        + _table(("model", "version", "inputs", "outputs"), rows)
    )
    request.reply(200, [_page(said["name"], body)], HTML, SAFE)


def docs(front: Front, request: Request) -> None:
    """How to ask: each path of the description, with what it is for and its statuses."""
    rows = [
        f"<code>{method.upper()}</code></td><td><code>{_text(path)}</code></td>"
        f"<td>{_text(operation['summary'])}</td>"
        f"<td>{', '.join(sorted(operation['responses']))}"
        for path, operations in openapi.describe()["paths"].items()
        for method, operation in operations.items()
    ]
    body = "<h1>Paths</h1>" + _table(("method", "path", "what it does", "statuses"), rows)
    request.reply(200, [_page("Paths", body)], HTML, SAFE)


def description(front: Front, request: Request) -> None:
    """The routes as OpenAPI."""
    request.reply(200, [orjson.dumps(openapi.describe())])


def _page(title: str, body: str) -> bytes:
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{_text(title)}</title>"
        f"<style>{_STYLE}</style><body>{body}</body></html>"
    ).encode("utf-8", "replace")


def _table(heads: Iterable[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{one}</th>" for one in heads)
    return f"<table><tr>{head}</tr>{''.join(f'<tr><td>{row}</td></tr>' for row in rows)}</table>"


def _tensors(tensors: Iterable[Any]) -> str:
    return "<br>".join(
        _text(f"{one.name}: {one.datatype} {list(one.shape)}{' or none' * one.optional}")
        for one in tensors
    )


def _text(value: str) -> str:
    return html.escape(value)


def _path(value: str) -> str:
    return html.escape(quote(value, safe="", errors="surrogatepass"))


ROUTES: list[tuple[bytes, re.Pattern[bytes], Callable[..., None]]] = [
    (b"GET", re.compile(rb"/"), home),
    (b"GET", re.compile(rb"/docs/?"), docs),
    (b"GET", re.compile(rb"/openapi\.json"), description),
]
