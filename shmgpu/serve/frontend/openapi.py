"""The HTTP front end as an OpenAPI 3.1 description, made from the table of routes.

Owns what the table does not say: the shapes of bodies, and the statuses. ``python -m
shmgpu.serve.frontend.openapi`` prints it. Never describes a route that the table does not have; the
server itself does not serve it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from shmgpu.serve.frontend import routes
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.state import log_settings

ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "minLength": 1}},
}
OBJECT: dict[str, Any] = {"type": "object"}
PARAMETERS = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
TENSOR = {
    "type": "object",
    "required": ["name", "shape", "datatype", "data"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 32},
        "datatype": {"type": "string", "enum": list(DATATYPES)},
        "data": {"type": "array"},
        "parameters": PARAMETERS,
    },
}
INFER = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": PARAMETERS,
        "inputs": {"type": "array", "items": TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "parameters": PARAMETERS},
            },
        },
    },
}
REGISTER = {
    "type": "object",
    "required": ["key", "byte_size"],
    "properties": {
        "key": {"type": "string"},
        "offset": {"type": "integer", "minimum": 0},
        "byte_size": {"type": "integer", "minimum": 0},
    },
}
INDEX = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
_KINDS = {bool: "boolean", int: "integer", str: "string"}
LOGGING = {
    "type": "object",
    "properties": {name: {"type": _KINDS[type(value)]} for name, value in log_settings.LOG.items()},
}

# By the name of what answers: the request's body, and statuses besides 200 and EVERYWHERE.
BODIES: dict[str, dict[str, Any]] = {
    "infer": INFER,
    "register": REGISTER,
    "register_cuda": OBJECT,
    "index": INDEX,
    "load": OBJECT,
    "generate": OBJECT,
    "generate_stream": OBJECT,
    "change_log_settings": LOGGING,
    "change_trace_settings": OBJECT,
}
STATUSES: dict[str, tuple[int, ...]] = {
    "ready": (400,),
    "infer": (415, 503),
    "register": (403,),
    "unregister": (403,),
    "register_cuda": (501,),
    "generate": (503,),
    "generate_stream": (503,),
    "load": (503,),
    "unload": (503,),
    "change_log_settings": (403,),
    "change_trace_settings": (403,),
}
# A token, methods, sizes and time are looked at before the path is.
EVERYWHERE = (400, 401, 404, 405, 408, 413, 431)
NOT_JSON = {"metrics": "text/plain", "generate_stream": "text/event-stream"}
EMPTY = ("live", "ready", "model_ready", "load", "unload", "register", "unregister")


def describe() -> dict[str, Any]:
    """The description, as OpenAPI's JSON has it."""
    paths: dict[str, Any] = {}
    rows = [(method, pattern.pattern, answer) for method, pattern, answer in routes.ROUTES]
    for method, pattern, answer in rows:
        for path in _paths(pattern.decode()):
            operation = _operation(answer.__name__, answer.__doc__ or "", path)
            paths.setdefault(path, {})[method.decode().lower()] = operation
    for path in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):
        paths[path] = {"post": _operation("infer", "Run a model.", path)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "shmgpu serve: the Open Inference Protocol", "version": "2"},
        "paths": dict(sorted(paths.items())),
    }


def _operation(name: str, summary: str, path: str) -> dict[str, Any]:
    kind = NOT_JSON.get(name, "application/json")
    responses: dict[str, Any] = {"200": {"description": "done"}}
    if name not in EMPTY and not name.startswith("unregister"):
        responses["200"]["content"] = {kind: {}}
    for status in sorted({*EVERYWHERE, *STATUSES.get(name, ())}):
        content: dict[str, Any] = {"application/json": {"schema": ERROR}}
        if status == 400 and name.endswith("ready"):
            content = {"application/json": {}}
        responses[str(status)] = {"description": "refused", "content": content}
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{name}{path}"),
        "summary": summary.partition("\n")[0],
        "responses": responses,
        "parameters": [
            {
                "name": parameter,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "minLength": 1},
            }
            for parameter in re.findall(r"{(\w+)}", path)
        ],
    }
    if name in BODIES:
        required = "required" in BODIES[name]
        content = {"application/json": {"schema": BODIES[name]}}
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _paths(pattern: str) -> Iterator[str]:
    """The paths of a route's pattern: with and without each part that may be left out."""
    pattern = pattern.removesuffix("/?")
    pattern = re.sub(r"\(\?P<(\w+)>\[\^/\]\+\)", r"{\1}", pattern)
    choice = re.search(r"\(\?:([^()]*)\)(\??)", pattern)
    if choice is None:
        yield pattern
        return
    before, after = pattern[: choice.start()], pattern[choice.end() :]
    for one in [*choice[1].split("|"), *([""] if choice[2] else [])]:
        yield from _paths(before + one + after)


if __name__ == "__main__":
    print(orjson.dumps(describe(), option=orjson.OPT_INDENT_2).decode())
