"""``from shmgpu.compat.gt.config import SignalConfig, ShardConfig``: what signals stand for.

Owns the names. Never reads a file itself.
"""

from __future__ import annotations

from shmgpu.parallel.signal_files import load_config
from shmgpu.parallel.signals import ShardConfig, SignalConfig, configs, register_config

__all__ = ["ShardConfig", "SignalConfig", "get_signal_config", "load_config", "register_config"]

register_signal = register_config  # GT's name for it in this module


def get_signal_config(name: str) -> SignalConfig | None:
    """What a signal's name stands for; None for nothing."""
    return configs.get(name)
