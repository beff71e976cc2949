"""Counters that a server of this package lets others of the same user see.

Owns a memory file that describes its own content, so that a watcher needs neither the server's code
nor its packages: a head (JSON: the fields, and how many writers and models), the models' names,
then 64-bit numbers by writer, model and field, and by worker and field. The server maps it and
counts in it. A watcher finds it under ``/proc``, as it finds the scoreboard, and reads it without
mapping it, since another process can change its size. Never writes to another server's file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

NAME = "shmgpu-figures"
_LINK = f"/memfd:{NAME}"
_MAGIC = b"shmfig01"
_START = struct.Struct("<8sQ")  # magic, bytes of the JSON behind it
_NAMES_AT = 4096
_NAME_BYTES = 256
_MOST_BYTES = 64 << 20  # of what a watcher reads

Row = dict[str, Any]

_RATES = {
    "requests_per_s": "success_count",
    "inferences_per_s": "inference_count",
    "failed_per_s": "fail_count",
    "runs_per_s": "exec_count",
}
_SHOWN = (
    *_RATES.values(), "exec_requests", "success_ns", "call_ns", "input_ns", "infer_ns",
    "output_ns", "pending_0", "pending_1",
)  # fmt: skip


class CounterFile:
    """The file, for its maker and those forked off it.

    Args:
        writers: how many processes count.
        models: how many names there may be.
        fields: of each.
        workers: how many of the writers are workers: the first ones.
        own: fields of each of them, whatever the model.
    """

    def __init__(
        self,
        writers: int,
        models: int,
        fields: Sequence[str],
        workers: int = 0,
        own: Sequence[str] = (),
    ) -> None:
        about = {
            "writers": writers,
            "models": models,
            "fields": list(fields),
            "workers": workers,
            "own": list(own),
        }
        head = json.dumps(about).encode()
        assert _START.size + len(head) <= _NAMES_AT
        numbers_at = _NAMES_AT + models * _NAME_BYTES
        own_at = numbers_at + writers * models * len(fields) * 8
        file = os.memfd_create(NAME, os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, own_at + workers * len(own) * 8)
            self._memory = mmap.mmap(file, 0)  # has a descriptor of its own, by which it is found
        finally:
            os.close(file)
        self._memory[: _START.size] = _START.pack(_MAGIC, len(head))
        self._memory[_START.size : _START.size + len(head)] = head
        shape = (writers, models, len(fields))
        self.numbers: npt.NDArray[np.uint64] = np.ndarray(
            shape, np.uint64, self._memory, numbers_at
        )
        self.own: npt.NDArray[np.uint64] = np.ndarray(
            (workers, len(own)), np.uint64, self._memory, own_at
        )

    def name(self, model: int, name: str) -> None:
        """Name the model that a row of numbers belongs to."""
        start = _NAMES_AT + model * _NAME_BYTES
        kept = name.encode()[: _NAME_BYTES - 1]
        self._memory[start : start + _NAME_BYTES] = kept.ljust(_NAME_BYTES, b"\0")

    def close(self) -> None:
        """Make it impossible to find; the numbers stay readable here."""
        self._memory[: _START.size] = bytes(_START.size)


def find(pid: int) -> str | None:
    """The path of a process's counters; None: it has none."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(_LINK) and not _is_closed(path):
                    return path
    return None


def _is_closed(path: str) -> bool:
    """Whether its maker continues without it."""
    with open(path, "rb", buffering=0) as file:
        return file.read(_START.size) == bytes(_START.size)


def read(path: str) -> tuple[dict[str, Row], list[Row]]:
    """The sums of all writers by model, and the numbers of each worker.

    Both are empty, where the file is gone or is none of these.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _parse(file.read(size)) if _START.size < size <= _MOST_BYTES else ({}, [])
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return {}, []


def _parse(data: bytes) -> tuple[dict[str, Row], list[Row]]:
    magic, length = _START.unpack_from(data)
    if magic != _MAGIC:
        return {}, []
    head = json.loads(data[_START.size : _START.size + length])
    writers, models, fields = int(head["writers"]), int(head["models"]), list(head["fields"])
    workers, own = int(head["workers"]), list(head["own"])
    if not set(_SHOWN) <= set(fields):
        return {}, []
    numbers_at = _NAMES_AT + models * _NAME_BYTES
    numbers = np.frombuffer(data, np.uint64, writers * models * len(fields), numbers_at).reshape(
        writers, models, len(fields)
    )
    of_workers = np.frombuffer(
        data, np.uint64, workers * len(own), numbers_at + numbers.nbytes
    ).reshape(workers, len(own))
    found = {}
    for model in range(models):
        start = _NAMES_AT + model * _NAME_BYTES
        name = data[start : start + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        if name:
            name = "".join(letter if letter.isprintable() else "?" for letter in name)
            found[name] = dict(zip(fields, numbers[:, model].sum(axis=0).tolist(), strict=True))
    return found, [dict(zip(own, row, strict=True)) for row in of_workers.tolist()]


def show(now: dict[str, Row], before: dict[str, Row], seconds: float) -> list[Row]:
    """What a watcher tells of each model, since ``before`` (at first: since the start)."""
    rows = []
    for name, row in now.items():
        earlier = before.get(name, {})
        # A reading in the midst of counting may miss a part: never below 0.
        grown = {field: max(0, value - earlier.get(field, 0)) for field, value in row.items()}
        requests, runs = grown["success_count"], grown["exec_requests"]
        computed = grown["input_ns"] + grown["infer_ns"] + grown["output_ns"]
        rows.append(
            {
                "model": name,
                **{shown: grown[field] / seconds for shown, field in _RATES.items()},
                "requests": row["success_count"],
                "failed": row["fail_count"],
                "pending": row["pending_0"] + row["pending_1"],
                "requests_per_run": runs / grown["exec_count"] if grown["exec_count"] else None,
                "request_us": grown["success_ns"] / requests / 1e3 if requests else None,
                "queue_us": max(0, grown["call_ns"] - computed) / runs / 1e3 if runs else None,
                "compute_us": computed / runs / 1e3 if runs else None,
            }
        )
    return rows
