"""Look at what tensors do: what was recorded, where it ran, what moved, who was busy.

While it is off, it costs one comparison for each message. :func:`enable` turns it on, and so do
``launch(debug=True)``, ``init(debug=True)`` and ``SHMGPU_DEBUG=1``; with a ``debug_dir`` each child
leaves a file there when it ends, which ``shmgpu trace`` reads. Everything is available as data
(``get_...``) and as text (``print_...``).

Owns these names. Never does what they promise itself: tensors/debug/ does.
"""

from __future__ import annotations

from shmgpu.tensors.debug import (
    NotDebugging,
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
from shmgpu.tensors.debug.ledger import Unsound
from shmgpu.tensors.debug.rows import Handle, Instruction, Operation
from shmgpu.tensors.debug.ticks import Span, Tick

__all__ = [
    "Handle",
    "Instruction",
    "NotDebugging",
    "Operation",
    "Span",
    "Tick",
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
