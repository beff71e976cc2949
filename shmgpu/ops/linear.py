"""Matrix products.

Owns their rows, their gradients and the functions that record them. Never computes.
"""

from __future__ import annotations

import math
from typing import Any

from shmgpu.ops import rules
from shmgpu.ops.graph import Node, Op, Params, Spec, apply, spec_of
from shmgpu.ops.kernels import named
from shmgpu.ops.promotion import as_node, promote, result_type
from shmgpu.ops.shaping import reshape, transpose, unsqueeze
from shmgpu.ops.stretching import sum, sum_to

Specs = tuple[Spec, ...]


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


def _torch_matmul(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    if [len(spec.shape) for spec in specs] != [1, 2]:
        return torch.matmul
    # torch.matmul would give such an out= another shape on the way.
    mv = torch.mv
    return lambda a, b, out=None: mv(b.t(), a, out=out)


MATMUL = Op(
    "matmul",
    rules.not_of_bools("matmul", rules.matmul),
    numpy=named("matmul"),
    torch=_torch_matmul,
    gradients=(_left, _right),
    saves="i",
    takes_out=True,
)


def matmul(a: Node, b: Node) -> Node:
    """Matrix products: (..., n, k) and (..., k, m) -> (..., n, m).

    The leading axes are broadcast against each other. A vector counts as a row on the left and as a
    column on the right, and its axis is removed from the result.

    Raises:
        ValueError: the lengths of the k axes differ, or one has no axes.
    """
    if a.spec.dtype is not b.spec.dtype:
        dtype = promote(a.spec.dtype, b.spec.dtype)
        a, b = as_node(a, dtype), as_node(b, dtype)
    return apply(MATMUL, (a, b))


def dot(a: Node, b: Node) -> Node:
    """The sum of products of two vectors of one length: (n,) and (n,) -> ()."""
    if len(a.spec.shape) != 1 or a.spec.shape != b.spec.shape:
        raise ValueError(
            f"dot: the shapes {a.spec.shape} and {b.spec.shape} must be one axis of one length"
        )
    return matmul(a, b)


# ---- a layer ---------------------------------------------------------------------------------


def _layer(specs: Specs, params: Params) -> Spec:
    x, weight, *bias = specs
    if not x.shape or len(weight.shape) != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: the input's shape is {x.shape} and the weight's {weight.shape}: the last "
            "axis of both must be of one length, and the weight must have two axes"
        )
    if bias and bias[0].shape != weight.shape[:1]:
        raise ValueError(
            f"linear: the bias has the shape {bias[0].shape}, and the weight has "
            f"{weight.shape[0]} rows"
        )
    return spec_of(x.dtype, (*x.shape[:-1], weight.shape[0]))


def _numpy_layer(np: Any, specs: Specs, params: Params, out: Spec) -> Any:
    def kernel(x: Any, weight: Any, bias: Any = None, out: Any = None) -> Any:
        made = np.matmul(x, weight.T, out=out)
        if bias is not None:
            made = np.add(made, bias, out=made if made.shape else None)
        return made

    return kernel


def _torch_layer(torch: Any, specs: Specs, params: Params, out: Spec) -> Any:
    if len(specs) == 3 and len(specs[0].shape) == 2:
        addmm = torch.addmm
        return lambda x, weight, bias, out=None: addmm(bias, x, weight.t(), out=out)

    is_vector, matmul, mv = len(specs[0].shape) == 1, torch.matmul, torch.mv

    def kernel(x: Any, weight: Any, bias: Any = None, out: Any = None) -> Any:
        made = mv(weight, x, out=out) if is_vector else matmul(x, weight.t(), out=out)
        return made if bias is None else made.add_(bias)

    return kernel


def _rows(x: Node) -> Node:
    *lead, length = x.spec.shape
    return x if len(lead) == 1 else reshape(x, (math.prod(lead), length))


LINEAR = Op(
    "linear",
    rules.not_of_bools("linear", _layer),
    numpy=_numpy_layer,
    torch=_torch_layer,
    gradients=(
        lambda g, n: matmul(g, n.inputs[1]),
        lambda g, n: matmul(transpose(_rows(g), 0, 1), _rows(n.inputs[0])),
        lambda g, n: sum(g, tuple(range(len(g.spec.shape) - 1))) if len(g.spec.shape) > 1 else g,
    ),
    saves="i",
    takes_out=True,
)


def linear(input: Node, weight: Node, bias: Node | None = None) -> Node:
    """``input @ weight.T + bias``: (..., in) with a weight of (out, in) -> (..., out)."""
    nodes: tuple[Node, ...] = (input, weight) if bias is None else (input, weight, bias)
    dtype = input.spec.dtype
    if any(one.spec.dtype is not dtype for one in nodes):
        dtype = result_type(list(nodes))
        nodes = tuple([as_node(one, dtype) for one in nodes])
    return apply(LINEAR, nodes)
