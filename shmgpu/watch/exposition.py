"""A broker's counters as Prometheus scrapes them, whoever answers: a server or ``shmgpu top``.

Owns the names of what every broker counts, and how Prometheus writes a sample. Never counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shmgpu.core import CHILD_STATES, HELPER_STATES

CONTENT_TYPE = CONTENT_TYPE_LATEST

# name, help, key of stats()["broker"]; {child} is what children are called.
COUNTED = [
    ("shmgpu_calls", "Calls that the dispatcher took", "submitted"),
    ("shmgpu_calls_failed", "Calls answered with an error", "failed"),
    ("shmgpu_calls_requeued", "Calls taken back from dead helpers", "requeued"),
    ("shmgpu_helper_deaths", "Helpers that died", "helper_deaths"),
    ("shmgpu_helper_restarts", "Helpers that were replaced", "helper_respawns"),
    ("shmgpu_helper_hangs", "Helpers ended because a call took too long", "helper_hangs"),
    ("shmgpu_{child}_deaths", "{Child} processes that died", "child_deaths"),
    ("shmgpu_{child}_restarts", "{Child} processes that were restarted", "child_restarts"),
]
# And what only shmgpu top tells, which has no server beside it.
COUNTED_BY_TOP = [
    ("shmgpu_calls_refused", "Calls beyond max_queue, or a quota's rate", "refused"),
    ("shmgpu_calls_expired", "Calls whose deadline passed in the queue", "expired"),
    ("shmgpu_calls_cancelled", "Calls that were taken back", "cancelled"),
    ("shmgpu_broadcasts", "Broadcasts that took effect", "broadcasts"),
]
SECONDS_OF = {"queued": "waited for a helper", "service": "executed"}
QUANTILES = {"0.5": "p50", "0.99": "p99"}


def of_broker(found: dict[str, Any], child: str) -> Iterator[Metric]:
    """Families of what each broker counts.

    Args:
        found: as :func:`shmgpu.stats` gives it, or a sample.
        child: what children are called: ``"child"``, or a server's ``"worker"``.
    """
    broker = found["broker"]
    for name, text, key in COUNTED:
        words = {"child": child, "Child": child.capitalize()}
        yield CounterMetricFamily(name.format(**words), text.format(**words), broker[key])
    yield GaugeMetricFamily("shmgpu_queued", "Calls that wait for a helper", broker["queued"])
    yield GaugeMetricFamily("shmgpu_arena_bytes", "Bytes of an arena", broker["arena_bytes"])
    used = GaugeMetricFamily("shmgpu_arena_used_bytes", "Of an arena", labels=[child])
    for number, row in enumerate(found["children"]):
        used.add_metric([str(number)], row["arena_used_bytes"])
    yield used
    copied = CounterMetricFamily("shmgpu_bytes", "Bytes that were moved", labels=["kind"])
    for kind, count in found["bytes"].items():
        copied.add_metric([kind], count)
    yield copied
    plural = {"child": "children"}.get(child, f"{child}s")
    yield _states(f"shmgpu_{plural}", plural.capitalize(), found["children"], CHILD_STATES)
    yield _states("shmgpu_helpers", "Helpers", found["helpers"], HELPER_STATES)
    paused = GaugeMetricFamily(
        "shmgpu_pool_paused", "Whether it starts no calls until shmgpu resume", labels=["pool"]
    )
    for pool, name in sorted({(row["pool"], row["pool_name"]) for row in found["helpers"]}):
        paused.add_metric([name], broker["paused_pools"] >> pool & 1)
    yield paused
    busy = CounterMetricFamily(
        "shmgpu_helper_busy_seconds", "Time spent in functions", labels=["helper", "pool"]
    )
    for number, row in enumerate(found["helpers"]):
        busy.add_metric([str(number), row["pool_name"]], row["busy_ns"] / 1e9)
    yield busy


def _states(name: str, text: str, rows: Sequence[dict[str, Any]], states: Sequence[str]) -> Metric:
    """How many there are in each state, which a row has as a number or as a word."""
    metric = GaugeMetricFamily(name, f"{text} in a state", labels=["state"])
    for number, state in enumerate(states):
        count = sum(row["state"] in (number, state) for row in rows)
        metric.add_metric([state.replace(" ", "_")], count)
    return metric


class SampleMetrics(Collector):
    """A sample of :class:`shmgpu.watch.monitor.Monitor` as metrics."""

    def __init__(self, sample: dict[str, Any]) -> None:
        self.sample = sample

    def text(self) -> bytes:
        """In Prometheus's text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterable[Metric]:
        """As a registry asks."""
        sample = self.sample
        broker = sample["broker"]
        running = GaugeMetricFamily("shmgpu_running", "Whether the broker runs", labels=["pid"])
        running.add_metric([str(sample["pid"])], sample["running"])
        yield running
        yield GaugeMetricFamily("shmgpu_uptime_seconds", "Since its start", sample["uptime_s"])
        yield from of_broker(sample, "child")
        for name, text, key in COUNTED_BY_TOP:
            yield CounterMetricFamily(name, text, broker[key])
        yield GaugeMetricFamily("shmgpu_in_flight", "Calls that helpers hold", broker["in_flight"])
        yield from self._of_functions()

    def _of_functions(self) -> Iterator[Metric]:
        rate = GaugeMetricFamily(
            "shmgpu_function_calls_per_second", "In the last interval", labels=["function"]
        )
        for row in self.sample["functions"]:
            rate.add_metric([row["name"]], row["calls_per_s"])
        yield rate
        for kind, what in SECONDS_OF.items():
            seconds = GaugeMetricFamily(
                f"shmgpu_function_{kind}_seconds",
                f"How long its calls {what} in the last interval",
                labels=["function", "quantile"],
            )
            for row in self.sample["functions"]:
                for quantile, suffix in QUANTILES.items():
                    if (microseconds := row[f"{kind}_{suffix}_us"]) is not None:
                        seconds.add_metric([row["name"], quantile], microseconds / 1e6)
            yield seconds
