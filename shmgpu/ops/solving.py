"""Linear equations: inverses, determinants, and what solves ``A @ X == B``.

Owns their rows, their gradients and the functions that record them. Matrices are in the last two
axes, the others are a batch. Never computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.elementwise import div, mul, neg, sub
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.linear import matmul
from shmgpu.ops.promotion import float32, float64, together
from shmgpu.ops.shaping import squeeze, transpose, unsqueeze
from shmgpu.ops.stretching import sum, sum_to

Specs = tuple[Spec, ...]

SOLVED_IN = (float32, float64)  # LAPACK has no others


def _square(specs: Specs, name: str) -> None:
    for spec in specs:
        if spec.dtype not in SOLVED_IN:
            raise TypeError(
                f"{name}: the tensor is {spec.dtype.name}, and must be float32 or float64: convert "
                "it first, as in x.to('float32')"
            )
    shape = specs[0].shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ValueError(
            f"{name}: takes square matrices in the last two axes, and the shape is {shape}"
        )


def _transposed(x: Node) -> Node:
    return transpose(x, -1, -2)


def _of_matrices(x: Node) -> Node:
    """One number a matrix, to be multiplied with it."""
    return unsqueeze(unsqueeze(x, -1), -1)


def _refusing_singular(name: str, module: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, whose library has a type of error for a pivot of 0."""
    singular = module.linalg.LinAlgError

    def checked(*inputs: Any) -> Any:
        try:
            return kernel(*inputs)
        except singular:
            raise ValueError(
                f"{name}: a matrix is singular (its determinant is 0): add a little to its "
                "diagonal, or select those that are not"
            ) from None

    return checked


# ---- inverses ------------------------------------------------------------------------------------


def _inverse_rule(specs: Specs, params: Params) -> Spec:
    _square(specs, "inv")
    return specs[0]


def _inverse_kernel(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return _refusing_singular("inv", module, module.linalg.inv)


def _inverse_gradient(g: Node, n: Node) -> Node:
    turned = _transposed(n)
    return neg(matmul(matmul(turned, g), turned))


INVERSE = Op(
    "inv",
    _inverse_rule,
    numpy=_inverse_kernel,
    torch=_inverse_kernel,
    gradients=(_inverse_gradient,),
    saves="o",
    may_fail=True,
)


def inverse(A: Node) -> Node:
    """The inverse of a matrix, or of each of a batch: (..., n, n) -> (..., n, n).

    The error of a singular one is raised where the result is read.

    Raises:
        ValueError: the matrices are not square.
        TypeError: they are not of float32 or float64.
    """
    return apply(INVERSE, (A,))


# ---- determinants --------------------------------------------------------------------------------


def _determinant_rule(specs: Specs, params: Params) -> Spec:
    _square(specs, "det")
    return spec_of(specs[0].dtype, specs[0].shape[:-2])


def _determinant_kernel(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    return module.linalg.det


def _cofactors_rule(specs: Specs, params: Params) -> Spec:
    return specs[0]


def _cofactors_kernel(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    """``det(A) * inv(A).T``; of singular matrices by singular values, of which each lacks one."""
    if not out.nbytes:
        return lambda x: x
    linalg, places = module.linalg, list(range(out.shape[-1]))

    def others_than(values: Any) -> Any:
        """For each the product of all others."""
        one = module.ones_like(values[..., :1])
        before = module.cumprod(module.concatenate([one, values[..., :-1]], -1), -1)
        behind = module.flip(module.concatenate([values[..., 1:], one], -1), (-1,))
        return before * module.flip(module.cumprod(behind, -1), (-1,))

    def of_singular(x: Any) -> Any:
        is_finite = module.isfinite(x).all(-1).all(-1)[..., None, None]
        u, values, v = linalg.svd(module.where(is_finite, x, module.ones_like(x)))
        sign = linalg.det(u) * linalg.det(v)
        found = (u * (sign[..., None] * others_than(values))[..., None, :]) @ v
        return module.where(is_finite, found, found * float("nan"))

    def kernel(x: Any) -> Any:
        numbers = linalg.det(x)[..., None, None]
        is_regular = module.isfinite(numbers) & (numbers != 0)
        if is_regular.all():
            return numbers * linalg.inv(x).swapaxes(-1, -2)
        others = module.zeros_like(x)
        others[..., places, places] = 1
        found = numbers * linalg.inv(module.where(is_regular, x, others)).swapaxes(-1, -2)
        return module.where(is_regular, found, of_singular(x))

    return kernel


def _cofactors_gradient(g: Node, n: Node) -> Node:
    """Of ``det(A) * inv(A).T``; NaN or infinite where a matrix is singular."""
    along = _of_matrices(sum(mul(g, n), (-2, -1)))
    across = matmul(matmul(n, _transposed(g)), n)
    return div(sub(mul(along, n), across), _of_matrices(det(n.inputs[0])))


COFACTORS = Op(
    "cofactors",
    _cofactors_rule,
    numpy=_cofactors_kernel,
    torch=_cofactors_kernel,
    gradients=(_cofactors_gradient,),
    saves="io",
)
DETERMINANT = Op(
    "det",
    _determinant_rule,
    numpy=_determinant_kernel,
    torch=_determinant_kernel,
    gradients=(lambda g, n: mul(_of_matrices(g), apply(COFACTORS, n.inputs)),),
    saves="i",
)


def det(A: Node) -> Node:
    """The determinant of a matrix, or of each of a batch: (..., n, n) -> (...).

    Its gradient is that of the polynomial, for singular matrices as well, where PyTorch may give 0;
    the gradient of that gradient needs a matrix that has an inverse.

    Raises:
        ValueError: the matrices are not square.
        TypeError: they are not of float32 or float64.
    """
    return apply(DETERMINANT, (A,))


# ---- solutions -----------------------------------------------------------------------------------


def _solved(specs: Specs, params: Params) -> Spec:
    _square(specs, "solve")
    a, b = specs[0].shape, specs[1].shape
    if a[-1] != b[-2]:
        raise ValueError(f"solve: {a} and {b} do not fit: they differ in how many rows they have")
    return spec_of(specs[0].dtype, (*rules.broadcast([a[:-2], b[:-2]], "solve"), *b[-2:]))


def _solve_kernel(module: Any, specs: Specs, params: Params, out: Spec) -> Any:
    # With all axes, for both libraries take some shapes of the right side for vectors.
    shape = (*(1,) * (len(out.shape) - len(specs[1].shape)), *specs[1].shape)
    solve = module.linalg.solve
    return _refusing_singular("solve", module, lambda a, b: solve(a, b.reshape(shape)))


def _matrix_gradient(g: Node, n: Node) -> Node:
    a = n.inputs[0]
    product = matmul(apply(SOLVE, (_transposed(a), g)), _transposed(n))
    return sum_to(neg(product), a.spec.shape)


def _side_gradient(g: Node, n: Node) -> Node:
    a, b = n.inputs
    return sum_to(apply(SOLVE, (_transposed(a), g)), b.spec.shape)


SOLVE = Op(
    "solve",
    _solved,
    numpy=_solve_kernel,
    torch=_solve_kernel,
    gradients=(_matrix_gradient, _side_gradient),
    saves="io",
    may_fail=True,
)


def solve(A: Node, B: Node, *, left: bool = True) -> Node:
    """X of ``A @ X == B``, or with ``left=False`` of ``X @ A == B``.

    Args:
        A: square matrices, (..., n, n); leading axes are broadcast against those of B.
        B: (..., n, k), or vectors: (n,), or of A's shape without its last axis.
        left: on which side A stands.

    Raises:
        ValueError: the shapes do not fit.
        TypeError: they are not of float32 or float64.
    """
    A, B = together(A, B)
    a, b = A.spec.shape, B.spec.shape
    is_vector = len(b) == 1 or (len(b) == len(a) - 1 and b == a[:-1])
    if is_vector and not left:
        raise ValueError(f"solve: left=False is for matrices, and {b} are vectors")
    if is_vector:
        return squeeze(apply(SOLVE, (A, unsqueeze(B, -1))), -1)
    if not b:
        raise ValueError("solve: B has no axes: give a vector or matrices")
    if left:
        return apply(SOLVE, (A, B))
    return _transposed(apply(SOLVE, (_transposed(A), _transposed(B))))
