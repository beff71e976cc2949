"""In workers: an OpenTelemetry span for each request, with children for waiting and computing.

Owns the way from a finished request to its spans. While a request runs, it costs nothing but a note
of its ``traceparent`` header. Later the worker reads the dispatcher's trace, which has the times of
every call, and gives the spans these times. The SDK's thread exports them to where its environment
variables (``OTEL_...``) say. Never changes what it measures.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import threading
import time
from typing import Any

import numpy as np
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shmgpu import core
from shmgpu.common.logs import Pause, logger
from shmgpu.common.wording import with_extra
from shmgpu.errors import ConfigError
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.watch import monitor, trace

MOST_WAITING = 8192  # the most requests that wait for their spans; further ones get none
LATE_NS = 5_000_000_000  # that a request's span waits for its call to be in the trace
CLOSE_S = 1.0  # for the last spans, at a worker's end
_PROPAGATOR = TraceContextTextMapPropagator()


# Its call's sequence, its times, traceparent, attributes, why it failed.
_Ended = tuple[int, int, int, str, dict[str, Any], str]
_Times = dict[str, tuple[int, int]]


class Spans:
    """The spans of one worker.

    Args:
        exporter: of the SDK; what takes finished spans.
        slot: the worker's, by which it knows its calls in the trace.
    """

    def __init__(self, exporter: SpanExporter, slot: int) -> None:
        self._exporter = exporter
        # The SDK's own resource: OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win.
        named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "shmgpu"}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("shmgpu.serve")
        self._slot = slot
        self._waiting: list[_Ended] = []
        self._late: list[_Ended] = []  # their calls are not in the trace yet
        self._last_times: dict[int, _Times] = {}
        self._kept: dict[int, _Times] = {}  # of streams, which end long after their calls
        self._next_record = core.broker_stats()["trace_written"]

    def keep(self, sequence: int) -> None:
        """Keep a call's times until the request that it is of has ended."""
        self._kept[sequence] = {}

    def ended(
        self,
        sequence: int,
        started_ns: int,
        traceparent: bytes,
        attributes: dict[str, Any],
        error: BaseException | None,
    ) -> None:
        """Take note of a request that has ended now.

        Args:
            sequence: of its call; 0: there was none.
            started_ns: when its last byte had come, CLOCK_MONOTONIC.
            traceparent: the header of that name; empty without.
            attributes: of its span.
            error: why it failed.
        """
        if len(self._waiting) + len(self._late) >= MOST_WAITING:
            self._kept.pop(sequence, None)
        else:
            why = _why(error)
            parent = traceparent.decode("latin-1")
            now = time.monotonic_ns()
            self._waiting.append((sequence, started_ns, now, parent, attributes, why))

    def make(self) -> None:
        """Make the spans of requests that have ended since."""
        found = self._times()
        # An answer may arrive a moment before its trace record, or after it.
        for sequence in self._kept.keys() & found.keys():
            self._kept[sequence] = found[sequence]
        kept = {sequence: times for sequence, times in self._kept.items() if times}
        times, self._last_times = {**self._last_times, **kept, **found}, found
        ended, self._waiting, self._late = self._late + self._waiting, [], []
        oldest = time.monotonic_ns() - LATE_NS
        due: list[_Ended] = []
        for one in ended:
            sequence, _, ended_ns, *_ = one
            is_late = sequence and sequence not in times and ended_ns > oldest
            (self._late if is_late else due).append(one)
        self._export(due, times)

    def _export(self, waiting: list[_Ended], times: dict[int, _Times]) -> None:
        wall = time.time_ns() - time.monotonic_ns()
        for sequence, started_ns, ended_ns, parent, attributes, why in waiting:
            span = self._tracer.start_span(
                "infer",
                _PROPAGATOR.extract({"traceparent": parent}) if parent else None,
                SpanKind.SERVER,
                attributes,
                start_time=started_ns + wall,
            )
            if why:
                span.set_status(Status(StatusCode.ERROR, why))
            context = set_span_in_context(span)
            for name, (begun, ended) in times.get(sequence, {}).items():
                child = self._tracer.start_span(name, context, start_time=begun + wall)
                child.end(ended + wall)
            span.end(ended_ns + wall)
            self._kept.pop(sequence, None)

    def close(self) -> None:
        """Make what is left, and wait until it has been exported, as long as CLOSE_S."""
        self.make()
        self._export(self._late, {})
        # Without a collector the SDK would keep trying, longer than a server may take to end.
        giving_up = threading.Timer(CLOSE_S, self._exporter.shutdown)
        giving_up.start()
        self._provider.shutdown()
        giving_up.cancel()

    def _times(self) -> dict[int, _Times]:
        """When this worker's calls waited and ran, by their sequence."""
        written = core.broker_stats()["trace_written"]
        first = max(self._next_record, written - monitor.MOST_RECORDS)
        self._next_record, raw = core.read_trace_bytes(first, max(0, written - first))
        records = np.frombuffer(raw, dtype=monitor.RECORD)
        # Not known before the first call: a worker may begin before the dispatcher notes its own.
        generation = core.child_stats(self._slot)["generation"]
        own = records[
            (records["slot"] == self._slot)
            & (records["generation"] == generation)
            & (records["handed_ns"] != 0)
        ]
        found: dict[int, _Times] = {}
        for one in own:
            handed = int(one["handed_ns"])
            begun = handed + int(one["started_units"]) * trace.UNIT_NS
            ended = handed + int(one["finished_units"]) * trace.UNIT_NS
            found[int(one["sequence"])] = {
                "queue": (int(one["queued_ns"]), begun),
                "compute": (begun, ended),
            }
        return found


def _why(error: BaseException | None) -> str:
    """The sentence that the client gets, or what it was made of."""
    if error is None:
        return ""
    if isinstance(error, ProtocolError):
        return error.sentence
    return f"{type(error).__name__}: {error}"


def exporter() -> SpanExporter:
    """The one that OTEL_TRACES_EXPORTER names, ``otlp`` without.

    Raises:
        ConfigError: it is not installed.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    name = {"otlp": "otlp_proto_http"}.get(name, name)
    for entry in importlib.metadata.entry_points(group="opentelemetry_traces_exporter", name=name):
        try:
            made: SpanExporter = entry.load()()
        except ImportError as error:
            raise ConfigError(
                f"--otel needs a package that is missing ({error.name}): {with_extra('otel')}"
            ) from None
        return made
    raise ConfigError(
        f"--otel needs an exporter that is missing ({name}): "
        f"{with_extra('otel')}, or set OTEL_TRACES_EXPORTER to another"
    )


class Complaints(logging.Handler):
    """What the SDK logs while it cannot export: it says so at each try, for each batch.

    One line in a while is enough of that, from the logger of everything else here.
    """

    PAUSE_S = 60.0

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._pause = Pause(self.PAUSE_S)

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of it, or count it."""
        left_out = self._pause.passed()
        if left_out is None:
            return
        before = f", and {left_out} times before" if left_out else ""
        logger.warning(
            "spans are not exported%s (%s): OTEL_EXPORTER_OTLP_ENDPOINT says where a collector is",
            before,
            " ".join(record.getMessage().split()),
        )


def exporting(slot: int) -> Spans:
    """Spans that are exported as the environment says; for the worker in that slot."""
    log = logging.getLogger("opentelemetry")
    log.addHandler(Complaints())
    log.propagate = False
    return Spans(exporter(), slot)
