"""The functions of the sealed table: ``infer``, ``load`` and ``unload``; models are data.

Owns which rows there are. A row's delay and kind of arrays are fixed when the broker starts, so
there is an ``infer`` for each of a few delays and for each kind; a model uses the one that fits.
How many rows a batch may have differs by model: a batch has CAPACITY units, and a row of a model
takes its share of them. Never runs a model.
"""

from __future__ import annotations

from typing import Any

from shmgpu.child.plans import PlanTable
from shmgpu.function_table import Batch, NamedBody
from shmgpu.functions import Function

CAPACITY = 1 << 24  # of a batch; a model of n rows takes CAPACITY // n with each
DELAYS_MS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class ServerFunction:
    """A row as the port calls it: in a pool, with rows of so many units.

    Attributes:
        max_rows: that run as one; 0 runs each call by itself.
    """

    def __init__(
        self, function: Function[Any, Any], pool: str | None, name: str = "", max_rows: int = 0
    ) -> None:
        self.name = name or function.name
        self.row = function.row
        self.pool = pool
        self.pickle = False
        self.mutates = False
        self.batch_max_rows = max_rows
        self.units_per_row = CAPACITY // max(max_rows, 1)
        self.out = None
        self.timeout: float | None = None
        self.plans = PlanTable()
        self.plans_port: Any = None
        self.signatures = None

    def why_unknown(self) -> str:
        """Why helpers do not have it: it cannot be."""
        return f"the server has no row for {self.name}: restart it"


class FunctionRows:
    """The rows of one server; made once, before the broker starts.

    Args:
        hang_after: seconds of execution after which a helper is taken for hung; None: never.
    """

    def __init__(self, hang_after: float | None = None) -> None:
        self.infer: dict[tuple[str, int], Function[Any, Any]] = {}
        self.alone: dict[str, Function[Any, Any]] = {}  # for models that are not batched
        for kind in ("numpy", "torch"):
            self.alone[kind] = _make(
                "shmgpu.serve.models.functions:infer", arrays=kind, hang_after=hang_after
            )
            for delay in DELAYS_MS:
                self.infer[kind, delay] = _make(
                    "shmgpu.serve.models.functions:infer",
                    arrays=kind,
                    batch=Batch(CAPACITY, delay / 1e3 if delay else None),
                    hang_after=hang_after,
                )
        self.infer_together = {
            kind: _make(
                "shmgpu.serve.models.functions:infer_together",
                arrays=kind,
                batch=Batch(CAPACITY),
                hang_after=hang_after,
            )
            for kind in ("numpy", "torch")
        }
        self.infer_in_regions = _make(
            "shmgpu.serve.models.functions:infer_in_regions", arrays="numpy", hang_after=hang_after
        )
        self.infer_gathered = _make(
            "shmgpu.serve.models.functions:infer_gathered",
            arrays="numpy",
            batch=Batch(CAPACITY),
            hang_after=hang_after,
        )
        self.infer_in_sequence = {
            kind: _make(
                "shmgpu.serve.models.functions:infer_in_sequence",
                arrays=kind,
                hang_after=hang_after,
            )
            for kind in ("numpy", "torch")
        }
        self.open_stream = {
            kind: _make(
                "shmgpu.serve.models.functions:open_stream", arrays=kind, hang_after=hang_after
            )
            for kind in ("numpy", "torch")
        }
        self.next_part = _make(
            "shmgpu.serve.models.functions:next_part", arrays="numpy", hang_after=hang_after
        )
        self.close_stream = _make("shmgpu.serve.models.functions:close_stream", arrays="numpy")
        self.load = _make("shmgpu.serve.models.functions:load", arrays="numpy")
        self.unload = _make("shmgpu.serve.models.functions:unload", arrays="numpy")

    def of(self, arrays: str, max_rows: int, max_delay_ms: float) -> Function[Any, Any]:
        """The ``infer`` of a model."""
        if not max_rows:
            return self.alone[arrays]
        return self.infer[arrays, nearest_delay_ms(max_delay_ms)]


def nearest_delay_ms(asked: float) -> int:
    """The longest delay that there is and that is not longer than what a model asks for.

    The shortest one that is any, where it asks for less than that.
    """
    return max(one for one in DELAYS_MS if one <= max(asked, 1)) if asked else 0


def _make(body: str, **options: Any) -> Function[Any, Any]:
    return Function(NamedBody(body), **options)
