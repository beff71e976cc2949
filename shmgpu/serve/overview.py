"""What a server says of itself when it is ready: models, addresses, settings, as a table.

Owns this text. Never asks a worker or a helper: all of it is in the control table and the options.
"""

from __future__ import annotations

import argparse
from typing import Any

from shmgpu.serve.options import in_units


def counted(count: int, noun: str) -> str:
    """``1 helper``, ``2 helpers``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def overview(state: dict[str, Any], address: str, grpc: str, options: argparse.Namespace) -> str:
    """The lines.

    Args:
        state: of the control table.
        address: for HTTP, or a Unix socket's.
        grpc: for gRPC; empty: none.
        options: what the command line said.
    """
    rows = [("model", "version", "rows", "helpers on", "file")]
    for source in state["sources"].values():
        for model in source["models"]:
            batch = str(model["max_batch_size"] or "-")
            on = ", ".join(dict.fromkeys(state["devices"][source["pool"]]))
            rows.append((model["name"], model["version"], batch, on, source["path"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    if address.startswith("http"):
        lines.append(f"HTTP at {address}, pages for people at {address}/ and {address}/docs")
    else:
        lines.append(f"HTTP at {address}")
    if grpc:
        lines.append(f"gRPC at {grpc}")
    lines.append(
        f"each worker: {in_units(options.arena)} for requests and answers, bodies up to "
        f"{in_units(options.max_body)}; {counted(options.max_queue, 'request')} may wait or run"
    )
    allowed = [
        what
        for is_so, what in (
            (options.token_file, "a token is asked for"),
            (options.tls_cert, "connections are encrypted"),
            (options.allow_repository, "clients may load and unload models"),
            (options.allow_settings, "clients may change settings"),
            (options.allow_client_shm, "clients may register shared memory"),
            (options.reload, "models are reloaded when their files change"),
        )
        if is_so
    ]
    return "\n".join([*lines, *(["; ".join(allowed)] if allowed else [])])
