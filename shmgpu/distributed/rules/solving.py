"""Rules of linear equations: batches may be cut, and the columns of what is solved for.

Owns these labels. Never cuts a matrix that is inverted.
"""

from __future__ import annotations

from shmgpu.distributed.rules.base import Names, Rule, Scheme, Specs
from shmgpu.ops import solving
from shmgpu.ops.graph import Op, Params, Spec


def _batch(specs: Specs, params: Params, out: Spec) -> Scheme:
    """(..., n, n) -> (...), or (..., n, n): each matrix is whole."""
    shape = specs[0].shape
    lead: Names = tuple(range(len(shape) - 2))
    inside: Names = (None,) * (len(out.shape) - len(lead))
    return Scheme(((*lead, None, None),), (*lead, *inside), shape[:-2])


def _solve(specs: Specs, params: Params, out: Spec) -> Scheme:
    """(..., n, n) and (..., n, k) -> (..., n, k): each column is solved for by itself."""
    lead = len(out.shape) - 2
    batch, columns = out.shape[:lead], lead

    def leading(spec: Spec) -> Names:
        first = lead - (len(spec.shape) - 2)
        shape = spec.shape[:-2]
        return tuple([label if n == batch[label] else None for label, n in enumerate(shape, first)])

    a, b = specs
    return Scheme(
        ((*leading(a), None, None), (*leading(b), None, columns)),
        (*range(lead), None, columns),
        (*batch, out.shape[-1]),
    )


RULES: dict[Op, Rule] = {
    solving.INVERSE: Rule(_batch),
    solving.DETERMINANT: Rule(_batch),
    solving.COFACTORS: Rule(_batch),
    solving.SOLVE: Rule(_solve, linear=((1,),)),
}
