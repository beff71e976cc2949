"""Settings of logging and tracing, in Triton's words; for both front ends.

Owns what clients see of them and may change. What a client changed lies in the control table, and
each worker goes by it; helpers log as they were started.
"""

from __future__ import annotations

import logging
from typing import Any

from shmgpu.logs import logger
from shmgpu.serve.requests import ProtocolError
from shmgpu.serve.table import Table

LOGGING: dict[str, Any] = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
FIXED = ("log_file", "log_format")  # while the server runs

# There are no traces in Triton's format: settings answer, and can be set to this only.
TRACING: dict[str, Any] = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
CLOSED = "this setting cannot be changed by clients: start the server with --allow-settings"


def logging_settings(table: Table) -> dict[str, Any]:
    """What is logged."""
    changed: dict[str, Any] = table.read()[1]["settings"].get("logging", {})
    return LOGGING | changed


def change_logging(table: Table, asked: dict[str, Any], is_allowed: bool) -> dict[str, Any]:
    """Change what is logged: all of it, then.

    Raises:
        ProtocolError: it is not allowed, or there is no such setting or value.
    """
    if not is_allowed:
        raise ProtocolError(403, CLOSED)
    for name, value in asked.items():
        if name not in LOGGING:
            raise ProtocolError(400, f"unknown log setting {name!r}: use {', '.join(LOGGING)}")
        if name in FIXED and value != LOGGING[name]:
            raise ProtocolError(400, f"{name} cannot be changed while the server runs")
        if type(value) is not type(LOGGING[name]) or (type(value) is int and value < 0):
            kind = type(LOGGING[name]).__name__
            raise ProtocolError(400, f"{name} must be of type {kind}, and no number below 0")
    if asked:
        with table.change() as state:
            state["settings"].setdefault("logging", {}).update(asked)
    return logging_settings(table)


def apply_logging(table: Table) -> None:
    """Log in this process as clients asked for, if any did."""
    asked = table.read()[1]["settings"].get("logging")
    if asked is None:
        return
    said = LOGGING | asked
    levels = (
        (said["log_verbose_level"] > 0, logging.DEBUG),
        (said["log_info"], logging.INFO),
        (said["log_warning"], logging.WARNING),
        (said["log_error"], logging.ERROR),
    )
    logger.setLevel(next((level for is_on, level in levels if is_on), logging.CRITICAL))


def change_tracing(asked: dict[str, Any], is_allowed: bool) -> dict[str, Any]:
    """Change what is traced, which stays as it is: null asks for the default.

    Raises:
        ProtocolError: it is not allowed, or something else than the default was asked for.
    """
    if not is_allowed:
        raise ProtocolError(403, CLOSED)
    for name, value in asked.items():
        if name not in TRACING:
            raise ProtocolError(400, f"unknown trace setting {name!r}: use {', '.join(TRACING)}")
        if value not in (None, [], TRACING[name]):
            raise ProtocolError(
                400, f"this server writes no traces in Triton's format: leave {name} as it is"
            )
    return TRACING
