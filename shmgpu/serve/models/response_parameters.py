"""Parameters of answers: what an answer says besides its outputs; ``helper.response``.

Owns how a model's function gives them, how a helper's result carries them, and how a worker reads
them back. They are carried as an array of bytes, JSON, with a row for each row of a batch: so they
are cut apart with the outputs. A result without them is carried as if they did not exist. Never
knows HTTP or gRPC.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shmgpu.common.wording import kind_of
from shmgpu.errors import ConfigError
from shmgpu.serve.models.request_context import Scalar

MOST_PARAMETERS = 64
MOST_BYTES = 1 << 16  # of those of one answer, as JSON


class ResponseContext:
    """``helper.response`` of a model's function, while it runs.

    Attributes:
        parameters: to be filled: a bool, a whole number of 64 bits, a finite number or text, by
            name. The function of a batched model may give a list with one of them for each row.
    """

    __slots__ = ("parameters",)

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}


def pack(result: Any, given: Mapping[str, Any], whose: str, rows: int | None) -> Any:
    """A model's result as a call carries it, beside the parameters of the answer.

    Args:
        result: its outputs, as calls carry them.
        given: the parameters, at least one.
        whose: who gave them, as the beginning of a sentence.
        rows: of the batch; None: there is no batch.

    Raises:
        ConfigError: they cannot be carried.
    """
    texts = [json.dumps(row).encode() for row in _by_row(given, whose, rows)]
    width = max(map(len, texts))
    if width > MOST_BYTES:
        raise ConfigError(
            f"{whose} gave parameters of {width} bytes as JSON for one answer, more than "
            f"{MOST_BYTES}: return what is long as an output"
        )
    lines = np.full((len(texts), width), ord(" "), np.uint8)
    for line, text in zip(lines, texts, strict=True):
        line[: len(text)] = np.frombuffer(text, np.uint8)
    if rows is None:
        return {"outputs": result, "parameters": lines[0]}
    if len(lines) < rows:  # all have the same
        lines = np.repeat(lines, rows, axis=0)
    return {"outputs": result, "parameters": lines}


def is_packed(result: Any) -> bool:
    """Whether a result carries parameters."""
    return type(result) is dict


def unpack(result: Any) -> tuple[Any, dict[str, Scalar]]:
    """The outputs of a result, and the parameters of the answer."""
    if not is_packed(result):
        return result, {}
    lines = np.atleast_2d(result["parameters"])
    return result["outputs"], _merged([json.loads(line.tobytes()) for line in lines])


def checked(given: Mapping[str, Any], whose: str, rows: int | None) -> dict[str, Scalar]:
    """Parameters that were given where the answer is made.

    Arguments and errors are those of :func:`pack`.
    """
    return _merged(_by_row(given, whose, rows)) if given else {}


def _by_row(given: Mapping[str, Any], whose: str, rows: int | None) -> list[dict[str, Any]]:
    """For each row its parameters, what is its own as a list of one; one row where all are equal.

    So one line of JSON says which parameters are the whole batch's.
    """
    if len(given) > MOST_PARAMETERS:
        raise ConfigError(
            f"{whose} gave {len(given)} parameters, more than {MOST_PARAMETERS}: return values as "
            "an output"
        )
    whole: dict[str, Any] = {}
    own: dict[str, list[Any]] = {}
    for name, value in given.items():
        if not isinstance(name, str) or not name or name.startswith("triton_"):
            raise ConfigError(
                f"{whose} gave a parameter called {name!r}: use text that does not begin with "
                "triton_"
            )
        if rows is None or not _is_list(value):
            whole[name] = _plain(value, name, whose)
            continue
        if len(value) != rows:
            raise ConfigError(
                f"{whose} got {rows} rows and gave {len(value)} values of the parameter {name!r}: "
                "give one for all, or one for each row"
            )
        own[name] = [_plain(one, name, whose) for one in value]
    if not own:
        return [whole]
    assert rows is not None
    return [{**whole, **{name: [own[name][row]] for name in own}} for row in range(rows)]


def _is_list(value: Any) -> bool:
    if isinstance(value, (str, bytes)) or getattr(value, "shape", None) == ():
        return False
    return hasattr(value, "__len__")


def _plain(value: Any, name: str, whose: str) -> Scalar:
    if getattr(value, "shape", None) == ():  # of NumPy or torch
        value = value.item()
    if type(value) is str and _is_unicode(value):
        return value
    if type(value) is bool:
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 63:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    raise ConfigError(
        f"{whose} gave {str(value)[:80]!r}, {kind_of(value)}, as the parameter {name!r}: "
        "give a bool, a whole number of 64 bits, a finite number or text"
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _merged(rows: list[dict[str, Any]]) -> dict[str, Scalar]:
    """Parameters of one answer, from those of its rows.

    The protocol has no lists: several rows' own values are the text of one, as JSON.
    """
    found: dict[str, Scalar] = {}
    for name, value in rows[0].items():
        if not isinstance(value, list):
            found[name] = value
        elif len(rows) == 1:
            found[name] = value[0]
        else:
            found[name] = json.dumps([row[name][0] for row in rows])
    return found
