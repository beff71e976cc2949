"""netcl's training step: all replicas at once, on their parts of a batch.

Owns what a step consists of, and when hooks are called. It is recorded once, for a batch that is
cut over the mesh, so forward, backward, the mean of gradients and the optimiser's step are one
message to all helpers. Never waits, unless it is told to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shmgpu.common.wording import counted
from shmgpu.compat.netcl.collectives import become
from shmgpu.compat.netcl.replicas import on_mesh
from shmgpu.distributed.placements import Partial, Replicate, Shard
from shmgpu.ops import promotion
from shmgpu.parallel.device_mesh import DeviceMesh
from shmgpu.parallel.tensors import distribute_tensor, from_local, redistributed
from shmgpu.tensors.grad_mode import no_grad
from shmgpu.tensors.tensor import Tensor

Forward = Callable[[DeviceMesh, Tensor, Tensor], tuple[Any, Any]]

_RELEASE = ("forward_fn", "params_replicas", "optimizers", "batch")
_TYPES = {"bfloat16": promotion.bfloat16, "float16": promotion.float16, None: None}


def data_parallel_step(
    *args: Any,
    loss_fn: Callable[[Any, Tensor], Tensor] | None = None,
    tape_factory: Callable[[], Any] | None = None,
    pre_shard_hook: Callable[[Any, Any], object] | None = None,
    post_sync_hook: Callable[[Any], object] | None = None,
    post_step_hook: Callable[[int], object] | None = None,
    overlap: bool = True,
    compress: str | None = None,
    **named: Any,
) -> Tensor:
    """One step of data-parallel training: the mean loss over the whole batch.

    In two forms. ``data_parallel_step(replicas, (x, y), loss_fn=loss_fn)``: replicas of a model;
    the loss is ``loss_fn(model(x), y)``, and the optimiser is that of :func:`prepare_replicas`.
    ``data_parallel_step(forward_fn, params_replicas, optimizers, (x, y))``, as in netcl 0.4:
    ``forward_fn(mesh, x, y, params)`` gives the loss and a tape (or None). Either function is
    called once, for all replicas: x and y are tensors of the whole batch, of which each replica has
    its rows. The loss must be a mean over rows; the gradients' is weighted by how many each has.

    Args:
        *args: of either form.
        loss_fn: of the first form.
        tape_factory: makes what has ``backward(loss)``; ``loss.backward()`` is called unless given.
        pre_shard_hook: called with x and y before they are cut.
        post_sync_hook: called with the replicas when they have their gradients.
        post_step_hook: called with each replica's number after the step.
        overlap: go on while helpers are at work; otherwise the step is waited for.
        compress: ``"bfloat16"`` or ``"float16"``: what replicas send each other of gradients.
        **named: the second form's arguments, by name.

    Returns:
        The loss, of shape (): ``item()`` waits for the step.

    Raises:
        TypeError: the arguments are of neither form.
        ValueError: x and y differ in length, there is no such compression, or the first optimiser
            has none of the first replica's parameters.
    """
    if compress not in _TYPES:
        raise ValueError(f"data_parallel_step: compress={compress!r}: use 'bfloat16' or 'float16'")
    step = _Arguments(args, named, loss_fn)
    replicas, first, (x, y) = step.replicas, step.replicas[0], step.batch
    if len(x) != len(y):
        has = counted(len(x), "row")
        raise ValueError(f"data_parallel_step: x has {has}, and y {len(y)}: cut them alike")
    mesh = on_mesh(replicas)
    if pre_shard_hook is not None:
        pre_shard_hook(x, y)
    rows, targets = _cut(x, mesh), _cut(y, mesh)
    loss, tape = step.forward(mesh, rows, targets)
    if tape_factory is not None:
        tape = tape_factory()
    if tape is None:
        loss.backward()
    else:
        tape.backward(loss)
    if compress is not None:
        _compress(first, mesh, _TYPES[compress])
    others = [
        each
        for each in replicas[1:]
        if any(one is not other for one, other in zip(each, first, strict=True))
    ]
    if post_sync_hook is not None:
        for each in others:
            for one, other in zip(each, first, strict=True):
                one.grad = None if other.grad is None else other.grad.detach()
        post_sync_hook(replicas)
    if step.optimizers:
        step.optimizers[0].step()
        for optimizer in step.optimizers:
            optimizer.zero_grad()
    for each in others:
        for one, other in zip(each, first, strict=True):
            become(one, other)
            one.grad = None
    if post_step_hook is not None:
        for place in range(len(replicas)):
            post_step_hook(place)
    told: Tensor = loss.detach()
    if not overlap:
        told.item()
    return told


class _Arguments:
    """The arguments of either form.

    Attributes:
        replicas: lists of parameters.
        optimizers: the first one makes the step; none: nobody does.
        batch: x and y.
        forward: from the mesh, x and y on it, to the loss and a tape (or None).
    """

    def __init__(
        self, args: Sequence[Any], named: dict[str, Any], loss_fn: Callable[..., Any] | None
    ) -> None:
        is_model_s = loss_fn is not None
        names = ("replicas", "batch") if is_model_s else _RELEASE
        given = dict(zip(names, args, strict=False))
        if (
            len(args) > len(names)
            or given.keys() & named.keys()
            or {*given, *named} != set(names)
            or (not is_model_s and not callable({**given, **named}["forward_fn"]))
        ):
            raise TypeError(
                "data_parallel_step takes (replicas, (x, y), loss_fn=loss_fn), or (forward_fn, "
                "params_replicas, optimizers, (x, y)): pass the arguments of one form"
            )
        given |= named
        self.batch = given["batch"]
        self.replicas = given["replicas" if is_model_s else "params_replicas"]
        if loss_fn is None:
            self._of_release(given)
        else:
            self._of_model(loss_fn)

    def _of_model(self, loss_fn: Callable[..., Any]) -> None:
        model = getattr(self.replicas, "model", None)
        if model is None:
            raise ValueError(
                "data_parallel_step: these replicas are of no model: make them of one with "
                "prepare_replicas(model, optimizer), or pass a forward_fn"
            )
        optimizer = self.replicas.optimizer
        self.optimizers = [] if optimizer is None else [optimizer]
        self.forward: Forward = lambda mesh, x, y: (loss_fn(model(x), y), None)

    def _of_release(self, given: dict[str, Any]) -> None:
        forward_fn, first = given["forward_fn"], self.replicas[0]
        self.optimizers = list(given["optimizers"])
        if self.optimizers:
            theirs = [one for group in self.optimizers[0].param_groups for one in group["params"]]
            if not {id(one) for one in theirs} & {id(one) for one in first}:
                raise ValueError(
                    "data_parallel_step: the first optimiser has none of the first replica's "
                    "parameters: make optimizers[i] of replicas[i]"
                )
        self.forward = lambda mesh, x, y: forward_fn(mesh, x, y, first)


def _cut(rows: Any, mesh: DeviceMesh) -> Tensor:
    """On the mesh, so that each replica has its rows."""
    return distribute_tensor(rows, mesh, [Shard(0)])


def _compress(params: Sequence[Tensor], mesh: DeviceMesh, dtype: Any) -> None:
    """Have gradients be added up in a shorter type: each replica rounds its own."""
    parts, whole = mesh.layout(Partial(), 0), mesh.layout(Replicate(), 0)
    with no_grad():
        for one in params:
            if one.grad is not None and one.grad.dtype.itemsize > dtype.itemsize:
                own = redistributed(one.grad, parts).to_local().to(dtype)
                summed = redistributed(from_local(own, mesh, [Partial()]), whole)
                one.grad = summed.to(one.dtype)
