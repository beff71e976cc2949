"""Signals in GT's spelling: ``with signal.context("layer1"):`` tensors lie as its name says.

What a name stands for is said by :func:`register_config`, or by a file that :func:`load_config`
reads. Owns the names. Never lays a tensor: :mod:`shmgpu.parallel.signals` does.
"""

from __future__ import annotations

from shmgpu.parallel.signal_files import load_config
from shmgpu.parallel.signals import (
    ShardConfig,
    SignalConfig,
    context,
    current_signal,
    enter,
    exit,
    register_config,
    tensor,
)

signal = context  # GT's other name for it

__all__ = [
    "ShardConfig",
    "SignalConfig",
    "context",
    "current_signal",
    "enter",
    "exit",
    "load_config",
    "register_config",
    "signal",
    "tensor",
]
