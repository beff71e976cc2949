"""messages: round trips of empty messages in C, beside the raw relay.

Both programs are built by the same compiler with the same flags and take the same arguments;
``benchmarks/c/stage.h`` counts for both.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.figures import Figure, Group, Probe, Workload
from benchmarks.native import build, run_json

START_LIMIT_S = 90.0
HANDOVER = 16
LIBRARIES: Mapping[str, str | None] = {"messages": "*.c", "relay": None}
LABELS = {"messages": "shmgpu", "relay": "relay"}


def _probe(
    program: str,
    *,
    children: int,
    helpers: int,
    window: int = 1,
    active: int | None = None,
    label: str | None = None,
) -> Probe:
    """Run ``program``: its rate, and when one child alone is active its latency."""
    timed = window == 1 and (active or children) == 1

    def run(seconds: float) -> dict[str, float]:
        arguments = {
            "--children": children,
            "--active": active or children,
            "--helpers": helpers,
            "--window": window,
            "--handover": HANDOVER,
            "--seconds": seconds,
        }
        path = build(program, library=LIBRARIES[program])
        words = [str(word) for pair in arguments.items() for word in pair]
        result = run_json([path, *words], seconds + START_LIMIT_S)
        if timed:
            return {"median": result["median_ns"] / 1000, "p99": result["p99_ns"] / 1000}
        return {"rate": result["rate"]}

    units = {"median": "us", "p99": "us"} if timed else {"rate": "1/s"}
    return Probe(label or LABELS[program], run, units)


def _against_relay(name: str, children: int, window: int, asked: str | None) -> Group:
    def probe(program: str) -> Probe:
        return _probe(program, children=children, helpers=2, window=window)

    return Group(
        name,
        (probe("messages"), probe("relay")),
        (Figure(f"rate_{name}", ("shmgpu", "rate"), ("relay", "rate"), asked),),
    )


WORKLOAD = Workload(
    "messages",
    "round trips of empty messages from C, beside a raw relay of poll, read and write",
    (
        _against_relay("window1", 32, 1, ">= 0.85"),
        _against_relay("window16", 32, 16, ">= 0.85"),
        Group(
            "children256",
            (
                _probe("messages", children=256, helpers=2, label="shmgpu, 256 children"),
                _probe("messages", children=32, helpers=2, label="shmgpu, 32 children"),
                _probe("relay", children=256, helpers=2),
            ),
            (
                Figure(
                    "rate_children256",
                    ("shmgpu, 256 children", "rate"),
                    ("shmgpu, 32 children", "rate"),
                    ">= 0.9",
                ),
                Figure(
                    "rate_children256_relay",
                    ("shmgpu, 256 children", "rate"),
                    ("relay", "rate"),
                ),
            ),
        ),
        Group(
            "latency",
            (
                _probe("messages", children=1, helpers=1),
                _probe("relay", children=1, helpers=1),
                _probe(
                    "messages", children=256, helpers=1, active=1, label="shmgpu, 255 idle besides"
                ),
            ),
            (
                Figure("latency", ("shmgpu", "median"), ("relay", "median"), "<= 1.2"),
                Figure("latency_p99", ("shmgpu", "p99"), ("relay", "p99")),
                Figure(
                    "latency_among_idle",
                    ("shmgpu, 255 idle besides", "median"),
                    ("shmgpu", "median"),
                    "<= 1.3",
                    "shmgpu, alone",
                ),
            ),
        ),
    ),
)
