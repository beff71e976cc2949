"""Operations whose values torch computes in one call: a convolution's two gradients, and others.

Owns which they are, and that call. It is made where a program asks for several of them of the same
inputs; for one of them alone its own row has a kernel. Never changes what is computed, and never
decides when: the plan does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from shmgpu.ops.batch_normalising import BATCH_NORM_INPUT, BATCH_NORM_SUMS
from shmgpu.ops.graph import Op, Spec
from shmgpu.ops.normalising import LAYER_NORM, LAYER_NORM_INPUT, LAYER_NORM_WEIGHT, MOMENTS
from shmgpu.ops.program import Step
from shmgpu.ops.windows import CONV2D_INPUT, CONV2D_WEIGHT

Specs = Sequence[Spec]  # by slot


class Joint(NamedTuple):
    """What is computed at once.

    Attributes:
        ops: the rows, each at most once, in the order in which the kernel returns their values.
        key: (step, specs by slot) -> what must be equal of all of them.
        torch: (torch, their steps, specs by slot) -> the kernel. It gets the inputs of all of them,
            one operation's after the other's.
    """

    ops: tuple[Op, ...]
    key: Callable[[Step, Specs], Hashable]
    torch: Callable[[Any, Sequence[Step], Specs], Callable[..., tuple[Any, ...]]]


def _convolution_key(step: Step, specs: Specs) -> Hashable:
    g, other = step.inputs
    shapes = step.params[0], specs[other].shape
    return (g, *(shapes if step.op is CONV2D_INPUT else reversed(shapes)), step.params[1:])


def _convolution(torch: Any, steps: Sequence[Step], specs: Specs) -> Callable[..., Any]:
    stride, padding, dilation, groups = steps[0].params[1:]
    backward = torch.ops.aten.convolution_backward.default
    rest = (None, stride, padding, dilation, False, (0, 0), groups, (True, True, False))
    return lambda g, w, _, x: backward(g, x, w, *rest)[:2]


def _batch_norm_sums(torch: Any, steps: Sequence[Step], specs: Specs) -> Callable[..., Any]:
    (eps,), dtype = steps[0].params, steps[1].spec.dtype.torch
    backward = torch.ops.aten.native_batch_norm_backward.default
    mask = (True, True, True)

    def kernel(g: Any, x: Any, w: Any, moments: Any, *_: Any) -> tuple[Any, Any]:
        middle, spread = moments
        scale = torch.rsqrt(spread + eps)
        made, *sums = backward(g, x, w.to(dtype), None, None, middle, scale, True, eps, mask)
        return made, torch.stack(sums).to(dtype)

    return kernel


def _layer_norm(torch: Any, steps: Sequence[Step], specs: Specs) -> Callable[..., Any]:
    out, (count, eps) = steps[0].spec, steps[0].params
    shape, dtype = out.shape[len(out.shape) - count :], steps[1].spec.dtype.torch
    forward, stack = torch.native_layer_norm, torch.stack

    def kernel(x: Any, w: Any, b: Any, _: Any) -> tuple[Any, Any]:
        made, middle, scale = forward(x, shape, w, b, eps)
        return made, stack((middle.to(dtype), scale.to(dtype)))

    return kernel


def _layer_norm_gradients(torch: Any, steps: Sequence[Step], specs: Specs) -> Callable[..., Any]:
    out, (count, _) = steps[0].spec, steps[0].params
    shape = out.shape[len(out.shape) - count :]
    backward = torch.ops.aten.native_layer_norm_backward.default
    mask = (True, True, False)

    def kernel(g: Any, x: Any, w: Any, moments: Any, *_: Any) -> Any:
        middle, scale = moments.to(x.dtype) if x.device.type == "cpu" else moments
        return backward(g, x, shape, middle, scale, w, None, mask)[:2]

    return kernel


JOINTS = (
    Joint((CONV2D_INPUT, CONV2D_WEIGHT), _convolution_key, _convolution),
    Joint(
        (BATCH_NORM_INPUT, BATCH_NORM_SUMS),
        lambda step, specs: (*step.inputs[:2], step.inputs[-1], step.params),
        _batch_norm_sums,
    ),
    Joint((LAYER_NORM, MOMENTS), lambda step, specs: (step.inputs[0], step.params), _layer_norm),
    Joint(
        (LAYER_NORM_INPUT, LAYER_NORM_WEIGHT),
        lambda step, specs: (step.inputs, step.params),
        _layer_norm_gradients,
    ),
)


def groups(
    steps: dict[int, Step], specs: Specs, early: set[int], first: int, joints: Sequence[Joint]
) -> dict[tuple[int, ...], Joint]:
    """The slots of each group that there is of them.

    Inputs of a group are older than all of it, so nothing outside lies between two of its steps.
    What could be done after the answer is done before it, with the rest of its group: ``early``
    gets it.
    """
    of_op = {op: joint for joint in joints for op in joint.ops}
    found: dict[tuple[Joint, Hashable], dict[Op, int]] = {}
    for slot, step in steps.items():
        one = of_op.get(step.op)
        if one is not None:
            members = found.setdefault((one, one.key(step, specs)), {})
            members.setdefault(step.op, slot)
    made: dict[tuple[int, ...], Joint] = {}
    for (joint, _), members in found.items():
        slots = tuple([members[op] for op in joint.ops if op in members])
        inputs = {source for slot in slots for source in steps[slot].inputs}
        if len(slots) < len(joint.ops) or max(inputs) >= min(slots):
            continue
        if not early.isdisjoint(slots):
            if any(source >= first and source not in early for source in inputs):
                continue
            early.update(slots)
        made[slots] = joint
    return made
