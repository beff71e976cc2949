"""The module in C that a machine may lack, as it needs a library: why it cannot be had.

Owns that question, for those who do without and for those who tell the user. Never looks for the
compiled core, without which nothing is done.
"""

from __future__ import annotations

import importlib


def why_no_http2() -> str:
    """Why HTTP/2 by libnghttp2 cannot be had: it was not built, or there is no library; or ""."""
    try:
        importlib.import_module("shmgpu._http2")
    except ImportError as error:
        return str(error)
    return ""
