"""Trace and log settings: what clients read, and change where that is allowed.

Owns their names and types, which are Triton's, and where they are kept: in the control table, so
that all workers have the same. Log settings decide what workers log. Trace settings are stored and
returned, but never have an effect: the broker's own trace is always on.
"""

from __future__ import annotations

import logging
from typing import Any

from shmgpu.common.logs import logger
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.state.control_table import ControlTable

LOG: dict[str, bool | int | str] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
TRACE: dict[str, str | list[str]] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
FIXED = ("log_file", "log_format", "trace_file", "trace_mode")  # of the server alone
LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
MOST_TEXT = 64

_LOG, _TRACE = "log", "trace"


def log(table: ControlTable) -> dict[str, Any]:
    """The log settings."""
    return {**LOG, **table.read()[1]["settings"].get(_LOG, {})}


def trace(table: ControlTable, model: str = "") -> dict[str, Any]:
    """The trace settings: all models', or one's."""
    kept = table.read()[1]["settings"].get(_TRACE, {})
    return {**TRACE, **kept.get("", {}), **kept.get(model, {})}


def change_log(table: ControlTable, allowed: bool, asked: dict[str, Any]) -> dict[str, Any]:
    """Change some: the log settings then."""
    _permit(allowed)
    found = log(table)
    for name, value in asked.items():
        _check_name(name, found, value)
        if type(value) is not type(LOG[name]) or not _has_size(value):
            shown = repr(value)[:MOST_TEXT]
            raise ProtocolError(
                400, f"the log setting '{name}' must be like {LOG[name]!r}, not {shown}"
            )
    with table.change() as state:
        state["settings"].setdefault(_LOG, {}).update(asked)
    return log(table)


def change_trace(
    table: ControlTable, allowed: bool, asked: dict[str, Any], model: str = ""
) -> dict[str, Any]:
    """Change some, or with None take back what was changed: the trace settings then."""
    _permit(allowed)
    found = trace(table, model)
    for name, value in asked.items():
        _check_name(name, found, value)
        if value is not None:
            _check_trace(name, value)
    with table.change() as state:
        kept = state["settings"].setdefault(_TRACE, {}).setdefault(model, {})
        for name, value in asked.items():
            if value is None:
                kept.pop(name, None)
            else:
                kept[name] = value
    return trace(table, model)


def apply_log(table: ControlTable) -> None:
    """Have this process log what the settings say, if they were ever changed."""
    if _LOG not in table.read()[1].get("settings", {}):
        return
    found = log(table)
    order = (
        (found["log_verbose_level"] > 0, logging.DEBUG),
        (found["log_info"], logging.INFO),
        (found["log_warning"], logging.WARNING),
        (found["log_error"], logging.ERROR),
        (True, logging.CRITICAL),
    )
    logger.setLevel(next(level for is_on, level in order if is_on))


def _permit(allowed: bool) -> None:
    if not allowed:
        raise ProtocolError(
            403, "trace and log settings may not be changed: start the server with --allow-settings"
        )


def _check_name(name: str, found: dict[str, Any], value: Any) -> None:
    if name in FIXED and value != found.get(name):
        raise ProtocolError(400, f"'{name}' cannot be changed while the server runs")
    if name not in found:
        raise ProtocolError(400, f"there is no setting '{name[:MOST_TEXT]}'")


def _has_size(value: Any) -> bool:
    """Whether a log setting is of a size that gRPC has for it, and the table room."""
    return len(value) <= MOST_TEXT if isinstance(value, str) else 0 <= value < 1 << 32


def _check_trace(name: str, value: Any) -> None:
    if name == "trace_level":
        if isinstance(value, list) and 0 < len(value) <= len(LEVELS):
            if all(isinstance(one, str) and one in LEVELS for one in value):
                return
        raise ProtocolError(
            400, f"'trace_level' must be a list of {', '.join(LEVELS)}, each at most once"
        )
    if name in FIXED:  # as it is
        return
    text = str(value)[: MOST_TEXT + 1] if isinstance(value, (str, int)) else ""
    if not text.lstrip("-").isdecimal() or len(text) > MOST_TEXT:
        raise ProtocolError(400, f"the trace setting '{name}' must be a whole number, as text")
