"""Programs that no broker started: how they find one, join it, share it and leave it.

Owns the socket's path, what a joining program is told, and what makes two programs share a
broker. Who is let in and who is refused, csrc/broker/listener.c decides. Never forks a role, never
signals a member.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """What pickles of earlier releases name here, from where it lives."""
    if name not in ("Membership", "claim", "connect", "disconnect", "ensure"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from shmgpu.attach import membership

    return getattr(membership, name)
