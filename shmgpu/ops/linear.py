"""Products of matrices."""

from __future__ import annotations

from shmgpu.graph import Node, Op, apply
from shmgpu.ops import rules
from shmgpu.ops.kernels import named
from shmgpu.ops.promotion import as_node, promote
from shmgpu.ops.shaping import reshape, transpose, unsqueeze
from shmgpu.ops.stretching import sum_to


def _left(g: Node, n: Node) -> Node:
    a, b = n.inputs
    if len(b.spec.shape) == 1:
        return sum_to(matmul(unsqueeze(g, -1), unsqueeze(b, 0)), a.spec.shape)
    if len(a.spec.shape) == 1:
        g = unsqueeze(g, -2)
        return reshape(sum_to(matmul(g, transpose(b, -1, -2)), (1, *a.spec.shape)), a.spec.shape)
    return sum_to(matmul(g, transpose(b, -1, -2)), a.spec.shape)


def _right(g: Node, n: Node) -> Node:
    a, b = n.inputs
    if len(a.spec.shape) == 1:
        column = unsqueeze(a, -1)
        if len(b.spec.shape) == 1:
            return reshape(matmul(column, reshape(g, (1, 1))), b.spec.shape)
        return sum_to(matmul(column, unsqueeze(g, -2)), b.spec.shape)
    if len(b.spec.shape) == 1:
        product = matmul(transpose(a, -1, -2), unsqueeze(g, -1))
        return reshape(sum_to(product, (*b.spec.shape, 1)), b.spec.shape)
    return sum_to(matmul(transpose(a, -1, -2), g), b.spec.shape)


MATMUL = Op(
    "matmul",
    rules.matmul,
    numpy=named("matmul"),
    torch=named("matmul"),
    gradients=(_left, _right),
    saves="i",
    takes_out=True,
)


def matmul(a: Node, b: Node) -> Node:
    if a.spec.dtype is not b.spec.dtype:
        dtype = promote(a.spec.dtype, b.spec.dtype)
        a, b = as_node(a, dtype), as_node(b, dtype)
    return apply(MATMUL, (a, b))


def dot(a: Node, b: Node) -> Node:
    if len(a.spec.shape) != 1 or a.spec.shape != b.spec.shape:
        raise ValueError(
            f"dot: the shapes {a.spec.shape} and {b.spec.shape} must be one axis of one length"
        )
    return matmul(a, b)
