"""Which helper this process is: what the original C interface offers in a helper.

Owns the check that it is asked in one. Never answers outside a helper.
"""

from __future__ import annotations

from shmgpu import core


def shm_get_helper_id() -> int:
    """In a helper: its number, from 0; NotRunning elsewhere."""
    return core.check(core.helper_id(), "this process has no helper's number")
