"""Signals: named scopes, and how tensors lie that are made within one.

What enters a scope is laid as the scope's name says: what is made there of no tensor, and the first
result of tensors from outside. What is made of that lies as the choice of placements decides, which
keeps it in pieces. Owns the names, the scopes of each thread, and the watch over tensors that are
made while there is a scope; without one, nothing is watched. Never says how something else moves.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from shmgpu.child import runtime
from shmgpu.common.wording import counted
from shmgpu.distributed.layout import Layout
from shmgpu.distributed.placements import Placement, Replicate, Shard
from shmgpu.errors import ConfigError
from shmgpu.ops import redistribution
from shmgpu.ops.graph import Node, Scalar, next_number
from shmgpu.parallel.device_mesh import HELPER, DeviceMesh, init_device_mesh, mesh_of_helpers
from shmgpu.tensors import current
from shmgpu.tensors.message import Held
from shmgpu.tensors.tensor import Tensor


@dataclass
class ShardConfig:
    """How a signal's tensors lie.

    Attributes:
        axis: which axis is cut; tensors that have it not are whole with each worker.
        workers: numbers of the helpers; all of them where it is None.
        replicated: whether tensors are whole with each of the workers.
    """

    axis: int = 0
    workers: list[int] | None = None
    replicated: bool = False


@dataclass
class SignalConfig:
    """What a signal's name stands for.

    Attributes:
        shard: how its tensors lie; None: nothing is said.
        backward_signal: the signal by which the gradients of its tensors lie.
        compile: accepted: programs are compiled in any case.
    """

    shard: ShardConfig | None = None
    backward_signal: str | None = None
    compile: bool = False


configs: dict[str, SignalConfig] = {}


def register_config(name: str, config: SignalConfig) -> None:
    """Say what a signal's name stands for, from its next scope on."""
    configs[name] = config


# ---- scopes ------------------------------------------------------------------------------------


@dataclass
class _Scope:
    """One that a thread is in.

    Attributes:
        name: the signal's.
        backward: by which gradients lie.
        start: number of the newest node from before it.
        inside: numbers of what was laid, and of what follows from that.
    """

    name: str
    backward: str | None
    start: int
    inside: set[int] = field(default_factory=set)


class _Scopes(threading.local):
    def __init__(self) -> None:
        self.stack: list[_Scope] = []


_scopes = _Scopes()
_lock = threading.Lock()
_plain_init = Tensor.__init__
_watching = 0  # scopes of all threads, and whether everything is cut
_everything: SignalConfig | None = None


def enter(name: str, backward: str | None = None) -> None:
    """Enter a signal's scope, until :func:`exit` is called in this thread.

    Args:
        name: the signal's; one that stands for nothing changes nothing.
        backward: the signal by which gradients lie; the one that the configuration names unless
            given.
    """
    config = configs.get(name)
    if backward is None and config is not None:
        backward = config.backward_signal
    _watch(1)
    _scopes.stack.append(_Scope(name, backward, next_number()))


def exit(name: str) -> None:
    """Leave the scope that this thread entered last.

    Raises:
        RuntimeError: it is in none, or in that of another signal.
    """
    inside = current_signal()
    if inside != name:
        raise RuntimeError(
            f"signal.exit({name!r}): this thread is in "
            + ("no signal's scope" if inside is None else f"the scope of {inside!r}")
        )
    _scopes.stack.pop()
    _watch(-1)


@contextlib.contextmanager
def context(name: str, backward: str | None = None) -> Iterator[None]:
    """A signal's scope: tensors that are made within lie as it says; see :func:`enter`."""
    enter(name, backward)
    try:
        yield
    finally:
        exit(name)


def tensor(tensor_arg: Tensor, name: str, backward_name: str | None = None) -> Tensor:
    """The same elements, lying as a signal says; gradients flow through it.

    Args:
        tensor_arg: on any mesh, or on none.
        name: the signal's; of one that stands for nothing, the tensor is returned.
        backward_name: the signal by which its gradient lies.
    """
    node = _laid(tensor_arg._node, _shard_of(name))
    if node is None:
        return tensor_arg
    made = Tensor(node)
    config = configs.get(name)
    if backward_name is None and config is not None:
        backward_name = config.backward_signal
    _hook(made, backward_name)
    return made


def current_signal() -> str | None:
    """The signal whose scope this thread is in."""
    return _scopes.stack[-1].name if _scopes.stack else None


def shard_everything() -> None:
    """From now on, tensors that are made of no others are cut along axis 0 where that is even."""
    global _everything
    if _everything is None:
        _everything = SignalConfig(ShardConfig())
        _watch(1)


# ---- what is made --------------------------------------------------------------------------------


def _watch(more: int) -> None:
    global _watching
    with _lock:
        _watching += more
        Tensor.__init__ = _made if _watching else _plain_init  # type: ignore[method-assign]


def _made(self: Tensor, node: Node) -> None:
    """In the place of ``Tensor.__init__``: it may show a node that lies otherwise."""
    _plain_init(self, node)
    if not _scopes.stack:
        if _everything is not None and _is_first(node):
            _show(self, _laid(node, _everything.shard, only_even=True))
        return
    scope = _scopes.stack[-1]
    shard = _shard_of(scope.name)
    if shard is not None and _enters(node, scope):
        _show(self, _laid(node, shard))
    node = self._node
    scope.inside.add(node.number)
    if node.needs_grad and node.leaf is None:
        _hook(self, scope.backward)


def _show(made: Tensor, node: Node | None) -> None:
    if node is not None:
        made._become(node)


def _is_first(node: Node) -> bool:
    """Whether it is given, or made of numbers alone; not what was computed and has no history."""
    if node.op is None:
        return type(node.value) is Held
    return node.value is None and all(type(one.value) is Scalar for one in node.inputs)


def _enters(node: Node, scope: _Scope) -> bool:
    """Whether nothing of what it is made of was laid within the scope; views are left as they are.

    Operations record several nodes, so the search goes on through those that no tensor shows.
    """
    if node.number <= scope.start or (node.op is not None and node.op.is_view):
        return False
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.number in scope.inside or one.op in redistribution.RECORDED:
            return False
        waiting += [each for each in one.inputs if each.number > scope.start]
    return True


def _shard_of(name: str | None) -> ShardConfig | None:
    config = None if name is None else configs.get(name)
    return None if config is None else config.shard


def _laid(node: Node, shard: ShardConfig | None, only_even: bool = False) -> Node | None:
    """The same elements, lying so; None where nothing is said of them."""
    if shard is None or not node.spec.shape:
        return None
    mesh = _mesh(shard.workers)
    if mesh is None:
        return None
    layout = _layout(mesh, shard, node.spec.shape, only_even)
    found: Node = redistribution.redistribute(node, layout)
    return found


def _layout(
    mesh: DeviceMesh, shard: ShardConfig, shape: tuple[int, ...], only_even: bool
) -> Layout:
    ndim = len(shape)
    how: Placement = Replicate()
    if not shard.replicated and -ndim <= shard.axis < ndim:
        length = shape[shard.axis]
        if not only_even or (length and length % mesh.size() == 0):
            how = Shard(shard.axis)
    return mesh.layout([how], ndim)


def _mesh(workers: list[int] | None) -> DeviceMesh | None:
    """The mesh of these helpers; None for all of them where there is one, or none but this process.

    Raises:
        ConfigError: there is no such helper.
    """
    recorder = current.recorder()
    if runtime.require().inline:
        return None
    count = len(recorder.helpers)
    if workers is None:
        return init_device_mesh(HELPER, (count,)) if count > 1 else None
    absent = [one for one in workers if not 0 <= one < count]
    if absent or not workers:
        raise ConfigError(
            f"a signal's workers are {workers}, of {counted(count, 'helper')}: name numbers from 0 "
            f"to {count - 1}"
        )
    return mesh_of_helpers(workers)


def _hook(made: Tensor, backward: str | None) -> None:
    """Have its gradient lie as that signal says."""
    shard = _shard_of(backward)
    if shard is None or not made._node.needs_grad:
        return

    def lay(gradient: Tensor) -> Tensor | None:
        node = _laid(gradient._node, shard)
        return None if node is None else Tensor(node)

    made.register_hook(lay)
