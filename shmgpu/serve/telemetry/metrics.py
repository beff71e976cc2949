"""What Prometheus scrapes: Triton's names for inference, our own for workers, helpers and arenas.

Owns the names, and what each is computed from. It reads counters that are kept anyway, so any
worker answers for the whole server. Names and units of the ``nv_inference_`` rows are those of
Triton's metrics page (docs/user_guide/metrics.md), so that existing dashboards work. Never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from shmgpu.serve.scheduling.catalog import Catalog
from shmgpu.serve.state.counters import ACCEPTED, CONNECTIONS, MOST_ROWS, Counters
from shmgpu.watch import exposition
from shmgpu.watch.stats import stats

CONTENT_TYPE = exposition.CONTENT_TYPE.encode()

Totals = dict[str, int]


def _us(field: str) -> Callable[[Totals], float]:
    return lambda total: total[field] // 1000


# The library appends "_total" to the name of a counter, which Triton does not. So it is not told
# that these are counters; the text that it makes is corrected.
_UNTYPED, _COUNTER = b" untyped\n", b" counter\n"

# name, help, type, value of a model's totals.
INFERENCE: list[tuple[str, str, str, Callable[[Totals], float]]] = [
    ("nv_inference_request_success", "Requests answered", "unknown",
     lambda total: total["success_count"]),
    ("nv_inference_count", "Inferences: rows of batched models, else requests", "unknown",
     lambda total: total["inference_count"]),
    ("nv_inference_exec_count", "Executions, each of one batch", "unknown",
     lambda total: total["exec_count"]),
    ("nv_inference_request_duration_us", "From requests' last byte to answers' first", "unknown",
     _us("success_ns")),
    ("nv_inference_queue_duration_us", "Waiting for a helper, and on the way there and back",
     "unknown", lambda total: max(0, total["call_ns"] - _computed(total)) // 1000),
    ("nv_inference_compute_input_duration_us", "Making a model's inputs of requests", "unknown",
     _us("input_ns")),
    ("nv_inference_compute_infer_duration_us", "In models' functions", "unknown",
     _us("infer_ns")),
    ("nv_inference_compute_output_duration_us", "Making answers of models' outputs", "unknown",
     _us("output_ns")),
    ("nv_cache_num_hits_per_model", "Requests answered from the response cache", "unknown",
     lambda total: total["cache_hit_count"]),
    ("nv_cache_num_misses_per_model", "Requests that were not in it", "unknown",
     lambda total: total["cache_miss_count"]),
    ("nv_cache_hit_duration_per_model", "Finding answers in it", "unknown", _us("cache_hit_ns")),
    ("nv_cache_miss_duration_per_model", "Looking in vain, and keeping the answer", "unknown",
     _us("cache_miss_ns")),
    ("nv_inference_pending_request_count", "Requests handed over and not answered", "gauge",
     lambda total: total["pending_0"] + total["pending_1"]),
]  # fmt: skip

# Why a request failed, in Triton's words.
FAILURES: list[tuple[str, Callable[[Totals], float]]] = [
    ("REJECTED", lambda total: total["full_count"] + total["expired_count"]),
    ("BACKEND",
     lambda total: total["fail_count"] - total["refused_count"] - total["expired_count"]),
    ("CANCELED", lambda total: total["cancel_count"]),
    ("OTHER", lambda total: total["refused_count"] - total["full_count"]),
]  # fmt: skip

# Why a model that asks for CUDA graphs ran without one: see the fields in `cuda_graphs`.
EAGER = ("no_device", "not_captured", "unseen_shape")


def _computed(total: Totals) -> int:
    return total["input_ns"] + total["infer_ns"] + total["output_ns"]


class Metrics(Collector):
    """The metrics of a server, made when they are asked for.

    Args:
        catalog: the models.
        counters: of all workers and helpers.
    """

    def __init__(self, catalog: Catalog, counters: Counters) -> None:
        self.catalog = catalog
        self.counters = counters
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All of them in Prometheus's text format."""
        return generate_latest(self._registry).replace(_UNTYPED, _COUNTER)

    def collect(self) -> Iterable[Metric]:
        """As a registry asks."""
        yield from self._of_models()
        yield from exposition.of_broker(stats(), "worker")
        yield from self._of_connections()

    def _of_models(self) -> Iterable[Metric]:
        self.catalog.refresh()
        models = [
            ({"model": one.name, "version": one.version}, one.index)
            for versions in self.catalog.models.values()
            for one in versions.values()
        ]
        totals = [(labels, self.counters.total(index)) for labels, index in models]
        for name, text, kind, value in INFERENCE:
            metric = Metric(name, text, kind)
            for labels, total in totals:
                metric.add_sample(name, labels, value(total))
            yield metric
        failures = Metric("nv_inference_request_failure", "Requests that failed", "unknown")
        for labels, total in totals:
            for reason, value in FAILURES:
                failures.add_sample(failures.name, {**labels, "reason": reason}, value(total))
        yield failures
        yield from self._of_graphs(models)
        batches = HistogramMetricFamily(
            "shmgpu_batch_rows", "Rows of each execution", labels=["model", "version"]
        )
        for labels, index in models:
            buckets, rows = _histogram(self.counters.batches(index))
            batches.add_metric(list(labels.values()), buckets, rows)
        yield batches

    def _of_graphs(self, models: list[tuple[dict[str, str], int]]) -> Iterable[Metric]:
        replays = CounterMetricFamily(
            "shmgpu_graph_replays", "Executions as CUDA graphs", labels=["model", "version"]
        )
        eager = CounterMetricFamily(
            "shmgpu_graph_eager",
            "Executions of models that ask for CUDA graphs, without one",
            labels=["model", "version", "reason"],
        )
        for labels, index in models:
            if not self.catalog.models[labels["model"]][labels["version"]].description[
                "cuda_graphs"
            ]:
                continue
            total = self.counters.total(index)
            replays.add_metric(list(labels.values()), total["graph_replayed"])
            for reason in EAGER:
                eager.add_metric([*labels.values(), reason], total[f"graph_{reason}"])
        yield replays
        yield eager

    def _of_connections(self) -> Iterable[Metric]:
        now = GaugeMetricFamily("shmgpu_connections", "Open, over HTTP", labels=["worker"])
        ever = CounterMetricFamily(
            "shmgpu_connections_accepted", "Taken, over HTTP", labels=["worker"]
        )
        for number, row in enumerate(self.counters.own.tolist()):
            now.add_metric([str(number)], row[CONNECTIONS])
            ever.add_metric([str(number)], row[ACCEPTED])
        yield now
        yield ever


def _histogram(executions: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets at powers of two, and all rows together."""
    bounds = [1 << power for power in range(MOST_ROWS.bit_length())]
    buckets = [
        (str(float(bound)), float(sum(n for rows, n in executions.items() if rows <= bound)))
        for bound in bounds
    ]
    buckets.append(("+Inf", float(sum(executions.values()))))
    return buckets, float(sum(rows * count for rows, count in executions.items()))
