"""netcl's replicas: a list for each, with the tensors that are this replica's parameters.

Owns how they are made, and what of them is made equal again. A model's replicas show the model's
own parameters, which lie replicated on a mesh; those of a list of tensors are copies. Never runs a
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmgpu.compat.netcl.collectives import become, reduced, scatter
from shmgpu.distributed.placements import Replicate
from shmgpu.nn.module import Module
from shmgpu.ops.promotion import is_float
from shmgpu.optim import Optimizer
from shmgpu.parallel.device_mesh import HELPER, DeviceMesh, init_device_mesh
from shmgpu.parallel.tensors import distribute_tensor, mesh_of, put
from shmgpu.tensors import current
from shmgpu.tensors.tensor import Tensor, snapshot


class DeviceManager:
    """The helpers, for programs that ask netcl's for its queues.

    Attributes:
        devices: as many as there are replicas: names, or numbers of helpers.
    """

    def __init__(self, devices: Sequence[Any] | None = None) -> None:
        if devices is None:
            devices = [f"{HELPER}:{number}" for number in current.recorder().helpers]
        self.devices = list(devices)

    def num_devices(self) -> int:
        """How many there are."""
        return len(self.devices)

    def get_queues(self) -> list[Any]:
        """What stands for a queue each: the devices."""
        return list(self.devices)


class Replicas(list[list[Tensor]]):
    """Lists of parameters, one for each replica.

    Attributes:
        mesh: on which the parameters lie.
        model: whose parameters they are; None for those of a list of tensors.
        optimizer: what steps them; None where nothing was said.
    """

    def __init__(
        self,
        lists: Sequence[list[Tensor]],
        mesh: DeviceMesh,
        model: Module | None = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        super().__init__(lists)
        self.mesh, self.model, self.optimizer = mesh, model, optimizer


def prepare_replicas(
    model: Any, opt: Any = None, n_replicas: int | None = None, devices: Sequence[Any] | None = None
) -> Replicas:
    """Replicas of a model, or of a list of tensors, on a mesh.

    ``prepare_replicas(params, queues)``, as in netcl 0.4, copies the tensors for as many replicas
    as there are queues. Of a model no copy is made: its parameters lie replicated on the mesh from
    here on, and each replica's list names them.

    Args:
        model: a module; or tensors, which the replicas' first ones are copies of.
        opt: the optimiser of the module's parameters; or the queues.
        n_replicas: how many; as many as devices, or as helpers, unless given.
        devices: names such as ``"cpu:0"`` or ``"helper:1"``: the kind is that of the helpers, and
            member i of the mesh is replica i.

    Raises:
        ValueError: there are no replicas to be made, or not as many devices.
        ConfigError: there are fewer helpers, or they have other devices.
    """
    if opt is not None and not isinstance(opt, Optimizer):
        if devices is not None or n_replicas is not None:
            raise ValueError(
                f"prepare_replicas: {opt!r} is no optimiser: pass one of shmgpu.optim, or the "
                "queues alone"
            )
        opt, devices = None, opt
    if devices is None:
        count = len(current.recorder().helpers) if n_replicas is None else n_replicas
    else:
        count = len(devices)
        if n_replicas not in (None, count):
            raise ValueError(
                f"prepare_replicas: {n_replicas} replicas on {count} devices: name a device for "
                "each"
            )
    if count < 1:
        raise ValueError("prepare_replicas: there must be one replica at least")
    mesh = init_device_mesh(_kind(devices), (count,))
    if isinstance(model, Module):
        params = list(model.parameters())
        for one in params:
            put(one, mesh, [Replicate()])
        return Replicas([list(params) for _ in range(count)], mesh, model, opt)
    lists = [[_collecting(distribute_tensor(one, mesh)) for one in model] for _ in range(count)]
    return Replicas(lists, mesh, None, opt)


def replicate_params(params: Sequence[Tensor], queues: Sequence[Any]) -> list[list[Tensor]]:
    """Copies of parameters that are on no mesh, for each queue: for loops over replicas by hand.

    What is computed of one replica alone is one helper's work, so replicas run at the same time.
    They collect gradients if the parameters do.
    """
    lists = []
    for _ in queues:
        copies = [snapshot(one) for one in params]
        for one, copy in zip(params, copies, strict=True):
            if one.requires_grad:
                copy.requires_grad_()
        lists.append(copies)
    return lists


def shard_batch(x: Any, num_shards: int) -> list[Any]:
    """Cut a batch along its first axis: arrays as arrays, tensors as tensors.

    Raises:
        ValueError: there is no axis, or it is to be cut into no pieces.
    """
    return scatter(x, num_shards)


def sync_grads(
    param_replicas: Sequence[Sequence[Tensor]], weights: Sequence[float] | None = None
) -> None:
    """Have all replicas' gradients become their mean, in one message.

    Replicas that show one model's parameters have one gradient, which is the mean already.

    Args:
        param_replicas: for each replica its parameters, with gradients.
        weights: what each counts, such as its number of rows; equal unless given.

    Raises:
        ValueError: a gradient is missing, or weights are not one for each replica, are negative, or
            add up to nothing.
    """
    count = len(param_replicas)
    shares = None
    if weights is not None:
        total = float(sum(weights))
        if len(weights) != count or min(weights) < 0 or total <= 0:
            raise ValueError(
                f"sync_grads: {list(weights)} are no weights of {count} replicas: name one for "
                "each, none below 0, and one above"
            )
        shares = [float(one) / total for one in weights]
    if count < 2:
        return
    lists = []
    for same in zip(*param_replicas, strict=True):
        if any(one.grad is None for one in same):
            raise ValueError(
                "sync_grads: a parameter has no gradient: call backward() of each replica's loss "
                "before"
            )
        if any(one is not same[0] for one in same):
            lists.append([one.grad for one in same if one.grad is not None])
    if lists:
        reduced(lists, "mean", shares)


def broadcast_params(
    src_params: Sequence[Tensor] | None,
    dst_param_groups: Sequence[Sequence[Tensor]],
    root: int = 0,
    optimizers: Sequence[Optimizer] | None = None,
) -> None:
    """Have all replicas have the parameters of one, and their optimisers its state.

    Args:
        src_params: the parameters; those of ``root`` where it is None.
        dst_param_groups: the replicas.
        root: the replica whose parameters, and whose optimiser's state, the others get.
        optimizers: one for each replica, over its parameters.

    Raises:
        ValueError: there is no such replica, or they have not as many parameters or optimisers.
    """
    count = len(dst_param_groups)
    if not 0 <= root < count:
        raise ValueError(f"broadcast_params: there is no root {root} among {count} replicas")
    source = dst_param_groups[root] if src_params is None else src_params
    if any(len(group) != len(source) for group in dst_param_groups):
        raise ValueError("broadcast_params: replicas must have as many parameters as the source")
    if optimizers is not None and len(optimizers) != count:
        raise ValueError(
            f"broadcast_params: {len(optimizers)} optimisers of {count} replicas: pass one for each"
        )
    for group in dst_param_groups:
        for one, other in zip(group, source, strict=True):
            if one is not other:
                become(one, other)
    if optimizers is not None:
        state = optimizers[root].state_dict()
        for place, optimizer in enumerate(optimizers):
            if place != root and optimizer is not optimizers[root]:
                optimizer.load_state_dict(state)


# ---- for the package ---------------------------------------------------------------------------


def on_mesh(replicas: Sequence[Sequence[Tensor]]) -> DeviceMesh:
    """The mesh of these replicas; the first one's parameters are put on one where they are not."""
    if isinstance(replicas, Replicas):
        return replicas.mesh
    first = replicas[0]
    lying = next((one for one in first if mesh_of(one) is not None), None)
    if lying is not None:
        mesh: DeviceMesh = lying.device_mesh
        return mesh
    mesh = init_device_mesh(HELPER, (len(replicas),))
    for one in first:
        put(one, mesh, [Replicate()])
    return mesh


def _kind(devices: Sequence[Any] | None) -> str:
    """What the devices' names say that helpers have; queues, numbers and None say nothing."""
    kinds = {one.partition(":")[0] for one in devices or () if isinstance(one, str)}
    if len(kinds) > 1:
        raise ValueError(
            f"prepare_replicas: a mesh is of one kind of device, and {sorted(kinds)} are named"
        )
    return kinds.pop() if kinds else HELPER


def _collecting(one: Tensor) -> Tensor:
    return one.requires_grad_() if is_float(one.dtype) else one
