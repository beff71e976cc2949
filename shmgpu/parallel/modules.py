"""Layers cut over a mesh: a plan says for each layer, by its name, in which style.

Owns the styles: where each puts the layer's parameters, and how the layer's inputs and outputs lie.
All shapes stay those of whole tensors, so a layer's code need not know that it is cut. Never
computes, never moves a piece: which moves there are is found when a step is sent.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from shmgpu.distributed.placements import Placement, Replicate, Shard
from shmgpu.nn.layers import Embedding, Linear
from shmgpu.nn.module import Module
from shmgpu.parallel.constraints import constrain
from shmgpu.parallel.device_mesh import DeviceMesh, checked_mesh
from shmgpu.parallel.tensors import put
from shmgpu.tensors.tensor import Tensor

Layouts = Placement | Sequence[Placement | None] | None


class ParallelStyle:
    """How a layer is cut; see the classes that derive from it."""

    def apply(self, module: Module, device_mesh: DeviceMesh) -> None:
        """Cut the layer."""
        raise NotImplementedError(f"{type(self).__name__} does not say in apply() what it does")


class _OfWeights(ParallelStyle):
    """Weights are put on the mesh, and the first input and the output are constrained."""

    cuts: ClassVar[Mapping[type, Mapping[str, Placement]]]

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = input_layouts
        self.output_layouts = output_layouts
        self.use_local_output = use_local_output

    def _wanted(self, module: Module) -> tuple[Placement | None, Placement]:
        """How the input and the output shall lie."""
        raise NotImplementedError

    def apply(self, module: Module, device_mesh: DeviceMesh) -> None:
        """Cut the layer: TypeError for one that the style does not know."""
        kind = next((kind for kind in self.cuts if isinstance(module, kind)), None)
        if kind is None:
            raise TypeError(
                f"{type(self).__name__} cuts {' and '.join(k.__name__ for k in self.cuts)}, not "
                f"{type(module).__name__}: name such layers in the plan"
            )
        for name, placement in self.cuts[kind].items():
            parameter = module._parameters.get(name)
            if parameter is not None:
                put(parameter, device_mesh, [placement])
        want, out = self._wanted(module)
        if want is not None:
            _before(module, lambda x: constrain(x, device_mesh, [want]))
        _after(module, lambda y: constrain(y, device_mesh, [out]))


class ColwiseParallel(_OfWeights):
    """Each member has some of the outputs of a Linear, or some of the columns of an Embedding.

    Args:
        input_layouts: accepted: the input is made whole, however it lies.
        output_layouts: how the output shall lie; ``Shard(-1)``, where it comes, unless given.
        use_local_output: accepted, and changes nothing: shapes are those of whole tensors.
    """

    cuts: ClassVar[Mapping[type, Mapping[str, Placement]]] = {
        Linear: {"weight": Shard(0), "bias": Shard(0)},
        Embedding: {"weight": Shard(1)},
    }

    def _wanted(self, module: Module) -> tuple[Placement | None, Placement]:
        whole = None if isinstance(module, Embedding) else Replicate()
        return whole, self.output_layouts or Shard(-1)


class RowwiseParallel(_OfWeights):
    """Each member has some of the inputs of a Linear, or some of the rows of an Embedding.

    Args:
        input_layouts: accepted: the input is cut along its last axis, however it lies.
        output_layouts: how the sum of the members' parts shall lie; whole unless given.
        use_local_output: accepted, and changes nothing: shapes are those of whole tensors.
    """

    cuts: ClassVar[Mapping[type, Mapping[str, Placement]]] = {
        Linear: {"weight": Shard(1), "bias": Replicate()},
        Embedding: {"weight": Shard(0)},
    }

    def _wanted(self, module: Module) -> tuple[Placement | None, Placement]:
        cut = None if isinstance(module, Embedding) else Shard(-1)
        return cut, self.output_layouts or Replicate()


class SequenceParallel(ParallelStyle):
    """Each member computes the layer (a norm, a dropout) for some places of the sequence.

    Args:
        sequence_dim: the axis of places.
        use_local_output: accepted, and changes nothing: shapes are those of whole tensors.
    """

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_dim = sequence_dim
        self.use_local_output = use_local_output

    def apply(self, module: Module, device_mesh: DeviceMesh) -> None:
        """Put the layer's parameters with each member, and cut its input and output."""
        for parameter in module.parameters():
            put(parameter, device_mesh, [Replicate()])
        cut = [Shard(self.sequence_dim)]
        _before(module, lambda x: constrain(x, device_mesh, cut))
        _after(module, lambda y: constrain(y, device_mesh, cut))


class PrepareModuleInput(ParallelStyle):
    """How a layer's inputs shall lie.

    Args:
        input_layouts: accepted: how inputs lie is known.
        desired_input_layouts: for each positional input, or for the only one; None for one that is
            left alone.
        input_kwarg_layouts: accepted likewise.
        desired_input_kwarg_layouts: the same of inputs by name.
        use_local_output: accepted, and changes nothing: shapes are those of whole tensors.
    """

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: Mapping[str, Placement] | None = None,
        desired_input_kwarg_layouts: Mapping[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = input_layouts
        self.desired_input_layouts = _listed(desired_input_layouts)
        self.input_kwarg_layouts = input_kwarg_layouts
        self.desired_input_kwarg_layouts = dict(desired_input_kwarg_layouts or {})
        self.use_local_output = use_local_output

    def apply(self, module: Module, device_mesh: DeviceMesh) -> None:
        """Have inputs moved before the layer sees them."""
        wanted, named = self.desired_input_layouts, self.desired_input_kwarg_layouts

        def hook(_: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = list(args)
            for place, (one, how) in enumerate(zip(args, wanted, strict=False)):
                if how is not None:
                    given[place] = constrain(one, device_mesh, [how])
            by_name = {
                name: constrain(one, device_mesh, [named[name]]) if name in named else one
                for name, one in kwargs.items()
            }
            return tuple(given), by_name

        module.register_forward_pre_hook(hook, with_kwargs=True)


class PrepareModuleOutput(ParallelStyle):
    """How a layer's outputs shall lie.

    Args:
        output_layouts: accepted: how outputs lie is known.
        desired_output_layouts: for each output, or for the only one; None for one that is left.
        use_local_output: accepted, and changes nothing: shapes are those of whole tensors.
    """

    def __init__(
        self,
        *,
        output_layouts: Layouts = None,
        desired_output_layouts: Layouts = None,
        use_local_output: bool = True,
    ) -> None:
        self.output_layouts = output_layouts
        self.desired_output_layouts = _listed(desired_output_layouts)
        self.use_local_output = use_local_output

    def apply(self, module: Module, device_mesh: DeviceMesh) -> None:
        """Have outputs moved before others see them."""
        wanted = self.desired_output_layouts

        def hook(_: Module, args: Any, out: Any) -> Any:
            if isinstance(out, Tensor):
                return constrain(out, device_mesh, wanted[:1])
            return type(out)(
                [
                    one if how is None else constrain(one, device_mesh, [how])
                    for one, how in zip(out, wanted, strict=True)
                ]
            )

        module.register_forward_hook(hook)


def _listed(layouts: Layouts) -> list[Any]:
    if layouts is None:
        return []
    return [layouts] if isinstance(layouts, Placement) else list(layouts)


def _before(module: Module, change: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))


def _after(module: Module, change: Callable[[Tensor], Tensor]) -> None:
    module.register_forward_hook(lambda _, args, out: change(out))


def parallelize_module(
    module: Module,
    device_mesh: DeviceMesh,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle],
) -> Module:
    """Cut a model's layers over a mesh of one axis, in place.

    Parameters stay the tensors that they are, so an optimiser may have them already.

    Args:
        module: the model.
        device_mesh: the mesh, or a part of it: ``mesh["tensor"]``.
        parallelize_plan: a style for the module itself, or for layers within by their names, in
            which ``*`` stands for any name between two dots.

    Returns:
        The module.

    Raises:
        ValueError: the mesh has several axes, or no layer has a name of the plan.
        TypeError: a style does not know how to cut that layer, or is none; or that is no mesh.
    """
    if checked_mesh(device_mesh, "parallelize_module").ndim != 1:
        raise ValueError(
            f"parallelize_module: {device_mesh} has {device_mesh.ndim} axes: choose one of them, "
            'as in mesh["tensor"]'
        )
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.apply(module, device_mesh)
        return module
    names = dict(module.named_modules())
    for pattern, style in parallelize_plan.items():
        if not isinstance(style, ParallelStyle):
            raise TypeError(
                f"parallelize_module: {pattern!r} is to be cut by a style, such as "
                f"ColwiseParallel(), not {style!r}"
            )
        wanted = pattern.split(".")
        found = [
            layer
            for name, layer in names.items()
            if len(parts := name.split(".")) == len(wanted)
            and all(map(fnmatch.fnmatchcase, parts, wanted))
        ]
        if not found:
            raise ValueError(
                f"parallelize_module: no layer is called {pattern!r}: there are "
                f"{', '.join(name for name in names if name)}"
            )
        for layer in found:
            style.apply(layer, device_mesh)
    return module


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """As PyTorch's, for programs that have it; it changes nothing.

    ``cross_entropy`` of scores whose classes are cut moves a maximum, a sum and one score of each
    example between members, and never the scores, with it and without.
    """
    yield
