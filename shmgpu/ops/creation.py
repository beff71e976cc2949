"""Operations that have no input: values made where they are needed.

Owns their rows and the functions that record them. Never makes an element in a child.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.codec.dtypes import DType
from shmgpu.common import seeding
from shmgpu.ops import drawing
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.promotion import float32, int64, number

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
    """A tensor of one value, made where it is needed."""
    return apply(FULL, (number(value, dtype),), (dtype, shape))


def ones_like(x: Node) -> Node:
    """Ones in x's shape and type."""
    return full(x.spec.shape, 1, x.spec.dtype)


def zeros_like(x: Node) -> Node:
    """Zeros in x's shape and type."""
    return full(x.spec.shape, 0, x.spec.dtype)


def _count(specs: Specs, params: Params) -> Spec:
    return spec_of(params[0], (params[1],))


def _numpy_arange(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (length,), dtype = out.shape, out.dtype.numpy
    wide = np.int64 if dtype.kind in "iu" else np.float64
    return lambda start, step: (np.arange(length, dtype=wide) * wide(step) + wide(start)).astype(
        dtype
    )


def _torch_arange(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    (length,), dtype = out.shape, out.dtype.torch
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return lambda start, step: (torch.arange(length, dtype=wide) * step + start).to(dtype)


ARANGE = Op("arange", _count, numpy=_numpy_arange, torch=_torch_arange, numbers=(0, 1))


def arange(start: float, step: float, length: int, dtype: DType) -> Node:
    """``length`` numbers, the first ``start``, each greater than that before it by ``step``."""
    return apply(ARANGE, (number(start, dtype), number(step, dtype)), (dtype, length))


def _numpy_linspace(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return lambda start, end: np.linspace(start, end, out.shape[0]).astype(out.dtype.numpy)


def _torch_linspace(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return lambda start, end: torch.linspace(start, end, out.shape[0], dtype=out.dtype.torch)


LINSPACE = Op("linspace", _count, numpy=_numpy_linspace, torch=_torch_linspace, numbers=(0, 1))


def linspace(start: float, end: float, steps: int, dtype: DType) -> Node:
    """``steps`` evenly spaced numbers from ``start`` to ``end``, both included."""
    return apply(LINSPACE, (number(start, dtype), number(end, dtype)), (dtype, steps))


EYE = Op(
    "eye",
    _made,
    numpy=lambda np, specs, params, out: lambda: np.eye(*out.shape, dtype=out.dtype.numpy),
    torch=lambda torch, specs, params, out: lambda: torch.eye(*out.shape, dtype=out.dtype.torch),
)


def eye(n: int, m: int, dtype: DType) -> Node:
    """An n by m matrix with ones on its diagonal."""
    return apply(EYE, (), (dtype, (n, m)))


# ---- drawn ---------------------------------------------------------------------------------------

# Binary digits of a number from 0 to 1 so that it is never rounded up to 1.
_DIGITS = {"float16": 11, "bfloat16": 8, "float64": 53}


class DrawnAhead:
    """What a seed gave, in its place."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class Drawn:
    """A kernel of torch that draws on a device, seeded by its input.

    In two parts for those who cannot seed where they draw: a captured graph is seeded before.
    """

    __slots__ = ("_draw", "_generator", "_module")

    def __init__(self, module: Any, draw: Any) -> None:
        self._module = module
        self._draw = draw
        self._generator: Any = None

    @property
    def generator(self) -> Any:
        """Its own; made at first use, because only then it is known on which device."""
        if self._generator is None:
            self._generator = self._module.Generator(device=self._module.get_default_device())
        return self._generator

    def seed(self, number: int) -> None:
        """What is drawn next follows from that number."""
        self.generator.manual_seed(seeding.mixed(int(number)))

    def draw(self) -> Any:
        """The next numbers."""
        return self._draw(self.generator)

    def __call__(self, seed: Any) -> Any:
        """What that seed gives."""
        if type(seed) is DrawnAhead:
            return seed.array
        self.seed(seed)
        return self.draw()


def _drawn(name: str, distribution: int, numpy_draw: Any, torch_draw: Any) -> Op:
    """What follows from the one input, a seed: the same in every run.

    On a host float32 is the project's own (:mod:`shmgpu.ops.drawing`), with NumPy as with torch.
    Other dtypes, and what devices draw, come from a generator of NumPy's or torch's.
    """

    def numpy(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
        def draw(seed: Any) -> Any:
            mixed = seeding.mixed(int(seed))
            if params[0] is float32:
                made = np.empty(out.shape, np.float32)
                drawing.fill(distribution, mixed, made.ctypes.data, made.size)
                return made
            return numpy_draw(np.random.Generator(np.random.Philox(mixed)), out, params[0])

        return draw

    def torch(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        return Drawn(module, lambda generator: torch_draw(module, generator, out))

    def torch_on_host(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
        if params[0] is not float32:
            return torch(module, specs, params, out)

        def draw(seed: Any) -> Any:
            if type(seed) is DrawnAhead:
                return seed.array
            made = module.empty(out.shape, dtype=module.float32)
            mixed = seeding.mixed(int(seed))
            drawing.fill(distribution, mixed, made.data_ptr(), made.numel())
            return made

        return draw

    return Op(name, _made, numpy=numpy, torch=torch, torch_on_host=torch_on_host, numbers=(0,))


RANDN = _drawn(
    "randn",
    drawing.NORMAL,
    lambda generator, out, _: generator.standard_normal(out.shape).astype(out.dtype.numpy),
    lambda torch, generator, out: torch.randn(
        out.shape, dtype=out.dtype.torch, generator=generator
    ),
)


def _numpy_rand(generator: Any, out: Spec, dtype: DType) -> Any:
    digits = _DIGITS[dtype.name]
    drawn = generator.integers(0, 1 << digits, out.shape)
    return (drawn * math.ldexp(1.0, -digits)).astype(out.dtype.numpy)


RAND = _drawn(
    "rand",
    drawing.UNIFORM,
    _numpy_rand,
    lambda torch, generator, out: torch.rand(out.shape, dtype=out.dtype.torch, generator=generator),
)

DRAWN = (RANDN, RAND)


def random(op: Op, shape: Shape, dtype: DType, seeds: seeding.Seeds = seeding.TENSORS) -> Node:
    """Drawn as ``op`` does, with the next seed."""
    return apply(op, (number(seeds.next(), int64),), (dtype, shape))
