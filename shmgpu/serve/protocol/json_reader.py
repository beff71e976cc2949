"""A request's JSON as Python values: within the limits, and with one meaning.

Owns what is refused of JSON that a parser would take: objects with a key twice, which two parsers
read in two ways, and nesting without an end. Never looks at what the keys say, but for ``data``: a
tensor's elements, whose nesting its shape bounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from shmgpu.serve.protocol.types import RequestLimits, refusal

_QUOTE, _COLON = ord('"'), ord(":")


def read_object(text: bytes, limits: RequestLimits, hint: str = "correct it") -> dict[str, Any]:
    """The object that a request's JSON is.

    Args:
        text: all of the JSON.
        limits: what a request may ask for.
        hint: what to do where it is not JSON.

    Raises:
        ProtocolError: status 400; it is not JSON, no object, nested too deeply or ambiguous.
    """
    found = _load(text, hint)
    if not isinstance(found, dict):
        raise refusal("the request is not a JSON object: send one with its fields by name")
    keys = _walk(found, limits)
    # Each key has one colon behind it. Others are in strings, or in tensors' data.
    if text.count(b":") != keys and _colons(text) != _keys(found):
        raise refusal("the request's JSON has an object with the same key twice: give each once")
    return found


def _load(text: bytes, hint: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    # Triton's clients write numbers that are not finite as NaN and Infinity, which are no JSON.
    if b"NaN" in text or b"Infinity" in text:
        try:
            return json.loads(text.decode())
        except (ValueError, RecursionError):
            pass
    raise refusal(f"the request is not JSON ({reason}): {hint}")


def _walk(found: dict[str, Any], limits: RequestLimits) -> int:
    """How many keys there are outside tensors' data; refuses what is nested too deeply."""
    level: list[Any] = [found]
    keys = 0
    for _ in range(limits.json_depth):
        deeper: list[Any] = []
        for value in level:
            items: Iterable[Any] = value
            if type(value) is dict:
                keys += len(value)
                items = (item for key, item in value.items() if key != "data")
            deeper += [item for item in items if type(item) is dict or type(item) is list]
        if not deeper:
            return keys
        level = deeper
    raise refusal(
        f"the request's JSON is nested deeper than {limits.json_depth}: send tensors flat, or as "
        "binary data"
    )


def _colons(text: bytes) -> int:
    """How many colons there are outside strings."""
    if b"\\" in text:  # quotation marks that end no string
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    octets = np.frombuffer(text, np.uint8)
    quotes, colons = np.flatnonzero(octets == _QUOTE), np.flatnonzero(octets == _COLON)
    return int(np.count_nonzero(np.searchsorted(quotes, colons) % 2 == 0))


def _keys(found: Any) -> int:
    """How many keys there are, tensors' data included."""
    keys, waiting = 0, [found]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            keys += len(value)
            value = value.values()
        waiting += [item for item in value if type(item) is dict or type(item) is list]
    return keys
