"""Operations that have no input: values made where they are needed."""

from __future__ import annotations

from typing import Any

from shmgpu.dtypes import DType
from shmgpu.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.promotion import int64, number

Shape = tuple[int, ...]
Specs = tuple[Spec, ...]


def _made(specs: Specs, params: Params) -> Spec:
    return spec_of(params[0], params[1])


def _numpy_full(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, dtype = out.shape, out.dtype.numpy
    return lambda value: np.full(shape, value, dtype)


def _torch_full(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    shape, dtype = out.shape, out.dtype.torch
    return lambda value: torch.full(shape, value, dtype=dtype)


FULL = Op("full", _made, numpy=_numpy_full, torch=_torch_full, numbers=(0,))


def full(shape: Shape, value: complex, dtype: DType) -> Node:
    return apply(FULL, (number(value, dtype),), (dtype, shape))


def ones_like(x: Node) -> Node:
    return full(x.spec.shape, 1, x.spec.dtype)


def zeros_like(x: Node) -> Node:
    return full(x.spec.shape, 0, x.spec.dtype)


def _random(name: str, numpy_draw: Any, torch_draw: Any) -> Op:
    """Drawn from a generator of its own, seeded by the one input: the same in every run."""

    def numpy(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
        return lambda seed: numpy_draw(np.random.Generator(np.random.Philox(int(seed))), out)

    def torch(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        generator = module.Generator()
        return lambda seed: torch_draw(module, generator.manual_seed(int(seed)), out)

    return Op(name, _made, numpy=numpy, torch=torch, numbers=(0,))


RANDN = _random(
    "randn",
    lambda generator, out: generator.standard_normal(out.shape).astype(out.dtype.numpy),
    lambda torch, generator, out: torch.randn(
        out.shape, dtype=out.dtype.torch, generator=generator
    ),
)
RAND = _random(
    "rand",
    lambda generator, out: generator.random(out.shape).astype(out.dtype.numpy),
    lambda torch, generator, out: torch.rand(out.shape, dtype=out.dtype.torch, generator=generator),
)


def drawn(op: Op, shape: Shape, dtype: DType, seed: int) -> Node:
    return apply(op, (number(seed, int64),), (dtype, shape))
