"""A request's JSON as Python values: within the limits, and with one meaning.

Owns what is refused of JSON that a parser would take: objects with a key twice, which two parsers
read in two ways; more arrays, objects, keys or values than a request needs, each of which costs far
more than its bytes; and nesting without an end. The numbers are counted before anything is parsed,
and a long array of numbers is left as text (:class:`.datatypes.NumberText`), to be parsed in C, or
in steps: so no thread of a process is held up for long by another one that reads. Never looks at
what the keys say, but for the ``data`` of ``inputs``: elements, whose nesting their shape bounds.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from shmgpu.serve.protocol.datatypes import MOST_LAX_BYTES, NumberText
from shmgpu.serve.protocol.json_numbers import uncollected
from shmgpu.serve.protocol.types import RequestLimits, refusal

LONG_BYTES = 1 << 14  # of an array of numbers that is left as text, and of what may hold one
MOST_LEFT = 1024  # places where such an array may be
STEP = 1 << 20  # bytes that are looked at at once
MOST_DEPTH = 64  # of an array that is left as text
MOST_BEHIND = 4096  # bytes between its end and the next string
_QUOTE = ord('"')
_DATA = re.compile(rb'"data"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}(\[{1,%d})' % (MOST_DEPTH + 1))
# What stands for an array that is left as text; no client can know it.
_MARK = secrets.token_hex(16)


def read_object(text: bytes, limits: RequestLimits, hint: str = "correct it") -> dict[str, Any]:
    """The object that a request's JSON is.

    Args:
        text: all of the JSON.
        limits: what a request may ask for.
        hint: what to do where it is not JSON.

    Raises:
        ProtocolError: status 400; it is not JSON, no object, beyond a limit or ambiguous.
    """
    left: list[NumberText] = []
    if len(text) >= LONG_BYTES:
        text, left = _without_numbers(text, left, False)
        _bound(text, b"[{", limits.json_containers, "arrays and objects")
        _bound(text, b":", limits.json_keys, "keys")
        _bound(text, b",", limits.json_values, "values outside of flat arrays of numbers")
        escaped = _count(text, (b'\\"',)) if b"\\" in text else 0
        if (_count(text, b'"') - escaped) // 2 > limits.json_texts:
            raise refusal(
                f"the request's JSON has more than {limits.json_texts} texts: send BYTES as binary "
                "data"
            )
        if len(text) > limits.json_text:
            raise refusal(
                f"the request's JSON has {len(text)} bytes outside of flat arrays of numbers, and "
                f"this server takes {limits.json_text}: send tensors as binary data"
            )
        text, left = _without_numbers(text, left, True)  # the bounds hold for what is nested
    found = _load(text, hint)
    if not isinstance(found, dict):
        raise refusal("the request is not a JSON object: send one with its fields by name")
    keys = _walk(found, limits)
    # Each key has one colon behind it. Others are in strings, or in tensors' data.
    if _count(text, b":") != keys and _outside(text, b":") != _keys(found):
        raise refusal("the request's JSON has an object with the same key twice: give each once")
    if left:
        _put_back(found, left)
    return found


def _bound(text: bytes, signs: bytes, most: int, what: str) -> None:
    """Refuses more of these signs, outside strings, than there may be."""
    if _count(text, signs, most) > most and _outside(text, signs, most) > most:
        raise refusal(
            f"the request's JSON has more than {most} {what}: send tensors as binary data, or "
            "numbers flat"
        )


def _count(text: bytes, signs: bytes | tuple[bytes, ...], most: int | None = None) -> int:
    """How many of these signs there are, strings included; not much further than ``most``."""
    found = 0
    for at in range(0, len(text), STEP):
        if isinstance(signs, bytes):  # quicker than bytes' own count of many
            octets = np.frombuffer(text, np.uint8, min(STEP, len(text) - at), at)
            found += sum(int(np.count_nonzero(octets == sign)) for sign in signs)
        else:
            found += sum(text.count(sign, at, at + STEP) for sign in signs)
        if most is not None and found > most:
            break
    return found


def _outside(text: bytes, signs: bytes, most: int | None = None) -> int:
    """How many of these signs there are outside strings; not much further than ``most``."""
    found, at, in_text = 0, 0, 0
    while at < len(text) and (most is None or found <= most):
        piece = text[at : at + STEP]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what a backslash begins stays together
            piece = text[at : at + STEP + 1]
        at += len(piece)
        if b"\\" in piece:  # quotation marks that end no string
            piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        octets = np.frombuffer(piece, np.uint8)
        quotes = np.flatnonzero(octets == _QUOTE)
        for sign in signs:
            before = np.searchsorted(quotes, np.flatnonzero(octets == sign))
            found += int(np.count_nonzero((before + in_text) % 2 == 0))
        in_text = (in_text + len(quotes)) % 2
    return found


def _without_numbers(
    text: bytes, left: list[NumberText], is_nested: bool
) -> tuple[bytes, list[NumberText]]:
    """The JSON with a mark in the place of each long array of numbers, and these with those before.

    Args:
        text: the JSON.
        left: what was left as text before.
        is_nested: whether nested arrays are taken, or flat ones.
    """
    left = left.copy()
    parts: list[bytes] = []
    kept = at = 0
    for _ in range(MOST_LEFT):
        at = _find(text, b'"data"', at)
        if at < 0:
            break
        found = _DATA.match(text, at)
        is_name = found is not None and text[at - 1 : at] != b"\\"
        at += len(b'"data"')
        if found is None or not is_name:
            continue
        depth = len(found[1]) if is_nested else 1
        start = found.start(1) + 1
        # Such an array has no string in it, so it ends before the next one begins.
        quote = text.find(b'"', start)
        stop = quote if quote >= 0 else len(text)
        if is_nested:  # what follows it has no such brackets, and is short
            begin = max(start, stop - MOST_BEHIND)
            close = text.rfind(b"]" * depth, begin, stop) + depth - 1
        else:
            close = text.find(b"]", start, stop)
        if close - start < LONG_BYTES or (1 < depth <= MOST_DEPTH) != is_nested:
            continue
        if not is_nested and text.find(b"[", start, close) >= 0:
            continue
        parts += [text[kept : start - 1], b'"%s%d"' % (_MARK.encode(), len(left))]
        left.append(NumberText(text, start, close, depth))
        at = kept = close + 1
    return (b"".join([*parts, text[kept:]]), left) if parts else (text, left)


def _find(text: bytes, word: bytes, at: int) -> int:
    """Where the word is next, or -1; a long text is not searched without a pause."""
    while at < len(text):
        found = text.find(word, at, at + STEP + len(word) - 1)
        if found >= 0:
            return found
        at += STEP
    return -1


def _put_back(found: dict[str, Any], left: list[NumberText]) -> None:
    """The arrays that were left as text in the place of their marks, which are in inputs alone."""
    inputs = found.get("inputs")
    waiting = {f"{_MARK}{number}": one for number, one in enumerate(left)}
    for entry in inputs if isinstance(inputs, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("data"), str):
            entry["data"] = waiting.pop(entry["data"], entry["data"])
    if waiting:
        raise refusal("the request has 'data' outside of its 'inputs': omit it there")


def _load(text: bytes, hint: str) -> Any:
    try:
        with uncollected:
            return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    # Triton's clients write numbers that are not finite as NaN and Infinity, which are no JSON.
    if len(text) <= MOST_LAX_BYTES and (b"NaN" in text or b"Infinity" in text):
        try:
            with uncollected:
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
