"""Counters of a running broker, as one dictionary.

Owns the shape of what :func:`stats` returns. Reads the scoreboard that the dispatcher writes; never
counts itself.
"""

from __future__ import annotations

from typing import Any

from shmgpu import core
from shmgpu.watch import html


class Stats(dict[str, Any]):
    """A dictionary of counters, which a notebook shows as tables."""

    def _repr_html_(self) -> str:
        return html.page(self)


def stats() -> dict[str, Any]:
    """Counters since the start: ``broker``, ``children``, ``helpers``, ``bytes``.

    ``broker`` counts messages and times of the dispatcher; ``children`` and ``helpers`` are
    lists with one dictionary for each; ``bytes`` adds up theirs by kind: ``marshalled`` (always
    0), ``gathered`` into batches, ``copied_in``, ``copied_out``, ``host_to_device``,
    ``device_to_host``.

    Raises:
        NotRunning: no broker runs that this process belongs to.
    """
    broker = core.broker_stats()
    children = [core.child_stats(child) for child in range(broker["children"])]
    helpers = [core.helper_stats(helper) for helper in range(broker["helpers"])]
    total = {
        name: sum(row["bytes"][name] for row in (*children, *helpers)) for name in core.BYTES_NAMES
    }
    batches = sum(row["batches"] for row in helpers)
    batched = sum(row["batched"] for row in helpers)
    return Stats(
        broker=broker,
        children=children,
        helpers=helpers,
        bytes=total,
        mean_batch=batched / batches if batches else 0.0,
    )
