"""A run as one JSON document: written, and read back.

What is read may come from an older run or from anywhere, so whatever does not fit is a
``ResultError`` of one sentence. Keys that a reader does not know are left alone; ``SCHEMA`` rises
when a key that it does know changes its meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure.figures import Asked, Curve, Point, Row

SCHEMA = 1
_NUMBERS = ("value", "baseline_value", "ratio")
_NUMBER = (int, float, type(None))
_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "unit": str,
    "baseline": (str, type(None)),
    "asked": (str, type(None)),
    "met": (bool, type(None)),
    "rounds": int,
    "notes": list,
    **dict.fromkeys(_NUMBERS, _NUMBER),
}


class ResultError(Exception):
    """A file is not a result of the suite; the message is one sentence."""


@dataclass(frozen=True)
class Result:
    """A run that was kept: its rows in order, what it ran on, and whether it was a quick one.

    ``stopped`` says that it was ended early, and so lacks rows; ``took_s`` how many seconds each
    group took.
    """

    rows: tuple[Row, ...]
    environment: Mapping[str, Any]
    quick: bool
    path: Path | None = None
    stopped: bool = False
    took_s: Mapping[str, float] = field(default_factory=dict)


def as_json(
    rows: Sequence[Row],
    environment: Mapping[str, Any],
    quick: bool,
    seconds: float | None = None,
    *,
    stopped: bool = False,
    took_s: Mapping[str, float] | None = None,
) -> str:
    """Return the run as one JSON document; infinite and undefined numbers become null.

    ``seconds`` is the least that a round of a probe took, ``took_s`` what each
    group and all of the run did.
    """
    document = {
        "schema": SCHEMA,
        "quick": quick,
        "stopped": stopped,
        "seconds": seconds,
        "took_s": took_s,
        "environment": environment,
        "rows": [row.as_json() for row in rows],
    }
    return plain_json(document)


def plain_json(document: Any) -> str:
    """Return plain data as JSON that every reader takes: no NaN, no infinity."""
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _finite(item: Any) -> Any:
    if isinstance(item, float):
        return item if math.isfinite(item) else None
    if isinstance(item, Mapping):
        return {key: _finite(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_finite(value) for value in item]
    return item


def save(path: Path, text: str) -> None:
    """Write the document in one step, so that a run that is cut short leaves no half file.

    What is no file (a pipe, a terminal) is written to as it is, and what a link names stays where
    it is. ResultError says in a sentence why it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        path = path.resolve()
        with _partial(path) as partial:
            partial.write_text(text)
            partial.replace(path)
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}.") from None


def check_writable(path: Path) -> None:
    """Raise ResultError where ``save`` could not write, before hours are spent on what to write."""
    try:
        if path.exists() and not path.is_file():
            with path.open("a"):
                return
        path = path.resolve()
        with _partial(path) as partial:
            partial.touch()
    except OSError as error:
        raise ResultError(f"{path} cannot be written: {error.strerror}.") from None


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Give a file's name beside ``path``, and leave nothing there."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def load(path: Path) -> Result:
    """Read what ``save`` wrote; ResultError says in a sentence what a file is instead."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ResultError(f"{path} is not JSON: give a file that --json wrote.") from None
    if not isinstance(document, dict) or "schema" not in document:
        raise ResultError(f"{path} is no result of this suite: give a file that --json wrote.")
    if document["schema"] != SCHEMA:
        raise ResultError(
            f"{path} has schema {document['schema']!r} and this suite reads {SCHEMA}: "
            "read it with the commit that wrote it."
        )
    try:
        rows = tuple(_row(item) for item in document["rows"])
        environment = document["environment"]
        if not isinstance(environment, dict):
            raise TypeError
        stopped = bool(document.get("stopped", False))
        took_s = {name: float(s) for name, s in (document.get("took_s") or {}).items()}
        return Result(rows, environment, bool(document["quick"]), path, stopped, took_s)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = f" ({error})" if str(error) else ""
        raise ResultError(
            f"{path} is damaged{where}: measure again, or restore the file."
        ) from None


def _row(item: Mapping[str, Any]) -> Row:
    if not isinstance(item.get("name"), str):
        raise TypeError("a row has no name")
    known = {key: item[key] for key in _KINDS if key in item}
    for key, value in known.items():
        if not isinstance(value, _KINDS[key]):
            raise TypeError(f"{key} of {item.get('name')!r} is {value!r}")
    if known.get("asked") is not None:
        Asked.parse(known["asked"])
    point = item.get("point")
    return Row(
        **{**known, "notes": tuple(map(str, known.get("notes", ())))},
        spread={
            key: (float(pair[0]), float(pair[1]))
            for key, pair in item.get("spread", {}).items()
            if None not in pair
        },
        point=point and Point(Curve(**point["curve"]), float(point["x"]), str(point["series"])),
    )
