"""GT's names, where they mean something else than PyTorch's: ``import shmgpu.compat.gt as gt``.

Everything that is not named here is :mod:`shmgpu`'s. In a program that has imported this, tensors
that are made of none (``randn``, ``zeros``, ``tensor``, ...) are given to the helpers in turn;
``max`` and ``min`` with ``axis=`` give values alone; ``T`` exchanges the last two axes;
``connect()`` gives the membership that there is, and starts a broker where none runs. Signals lay
tensors on meshes; ``GT_CONFIG`` names their file, ``GT_AUTO_SHARD=1`` cuts all tensors. Owns these
differences. Never computes: all of it is done by the package's own functions.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import shmgpu
from shmgpu import nn as nn
from shmgpu import signal as signal
from shmgpu.attach import endpoint, hosts, membership
from shmgpu.attach.membership import Membership
from shmgpu.common import config as settings
from shmgpu.compat.gt import config as config
from shmgpu.ops import casting, graph, shaping
from shmgpu.parallel import signal_files, signals
from shmgpu.parallel.signal_files import load_config
from shmgpu.parallel.signals import ShardConfig, SignalConfig, register_config
from shmgpu.tensors import current
from shmgpu.tensors import tensor as tensors
from shmgpu.tensors.sharing import view
from shmgpu.tensors.tensor import Tensor

__all__ = [
    "ShardConfig",
    "SignalConfig",
    "config",
    "connect",
    "from_numpy",
    "load_config",
    "max",
    "min",
    "nn",
    "register_config",
    "signal",
    "signal_tensor",
    "tensor",
]

signal_tensor = signal.tensor
current.put_leaves_in_turn()
signal_files.load_from_environment()
if os.environ.get("GT_AUTO_SHARD", "0") not in ("", "0"):
    signals.shard_everything()


def __getattr__(name: str) -> Any:
    """The package's own names."""
    return getattr(shmgpu, name)


def __dir__() -> list[str]:
    return sorted({*dir(shmgpu), *__all__})


def connect(
    address: str | None = None, *, host: str | None = None, port: int | None = None
) -> Membership:
    """Join a broker: that of ``python -m shmgpu.compat.gt.server`` at that port, or the user's own.

    Where this program is in a broker, its membership is returned, and nothing changes. Where none
    runs, one is started that ends a minute after its last program has left.

    Args:
        address: ``"localhost:12345"``; another machine is refused.
        host: the same in two parts.
        port: likewise.

    Raises:
        ConfigError: another machine.
        LaunchError: this process is a child of :func:`shmgpu.launch`, or has helpers of its own.
    """
    split = hosts.split(address)
    if split is not None:
        host, port = split
    hosts.refuse_others(host, port)
    joined = membership.joined()
    if joined is not None:
        return joined
    if port is not None:
        path = endpoint.path_of_port(int(port))
        if (listening := endpoint.connect(path)) is not None:
            listening.close()
            return membership.connect(path)
    return membership.ensure(idle_timeout=settings.resolve("idle_timeout"))


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """As :func:`shmgpu.tensor`; the copy is the next helper's."""
    copied = tensors.tensor(data, dtype=dtype, requires_grad=requires_grad)
    made = Tensor(graph.apply(casting.ALIAS, (copied._node,)))
    return made.requires_grad_() if requires_grad else made


def from_numpy(array: Any, requires_grad: bool = False) -> Tensor:
    """As :func:`tensor`, of an array."""
    return tensor(array, requires_grad=requires_grad)


def _over_axis(name: str) -> Callable[..., Any]:
    found, plain = tensors.FUNCTIONS[name], tensors.FUNCTIONS[f"a{name}"]

    def reduce(self: Tensor, *args: Any, **options: Any) -> Any:
        if "axis" in options and not args:
            axis, keepdims = options.pop("axis"), options.pop("keepdims", False)
            return plain(self, axis, keepdims, **options)
        return found(self, *args, **options)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"As :func:`shmgpu.{name}`; with ``axis=`` the values alone, as in NumPy."
    return reduce


max = _over_axis("max")
min = _over_axis("min")


def _transposed(self: Tensor) -> Tensor:
    """The tensor with its last two axes exchanged."""
    return view(self, shaping.transpose(self._node, -2, -1)) if self.ndim > 1 else self


Tensor.max, Tensor.min = max, min  # type: ignore[method-assign]
Tensor.T = property(_transposed)  # type: ignore[assignment]
