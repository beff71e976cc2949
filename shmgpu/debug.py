"""Look at what tensors do: what was recorded, where it ran, what moved, who was busy.

The name that programs use, and nothing else: what stands behind it is :mod:`shmgpu.tensors.debug`.
"""

from __future__ import annotations

from shmgpu.tensors.debug import (
    NotDebugging,
    Unsound,
    disable,
    enable,
    get_dropped,
    get_handles,
    get_input_tape,
    get_output_queue,
    get_spans,
    get_tape,
    get_tick_trace,
    get_worker_stats,
    is_enabled,
    print_handles,
    print_input_tape,
    print_output_queue,
    print_tape,
    print_tick_trace,
    print_worker_stats,
    save_debug_trace,
    verify,
)

__all__ = [
    "NotDebugging",
    "Unsound",
    "disable",
    "enable",
    "get_dropped",
    "get_handles",
    "get_input_tape",
    "get_output_queue",
    "get_spans",
    "get_tape",
    "get_tick_trace",
    "get_worker_stats",
    "is_enabled",
    "print_handles",
    "print_input_tape",
    "print_output_queue",
    "print_tape",
    "print_tick_trace",
    "print_worker_stats",
    "save_debug_trace",
    "verify",
]


def __dir__() -> list[str]:
    return __all__
