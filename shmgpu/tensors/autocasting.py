"""Mixed precision: which operations a thread records in a lower float type, and which in float32.

Owns the mode of each thread, and the two lists, which are torch's. An operation that is in neither
is recorded in the types that it is given. Never looks at a value.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from shmgpu.codec.dtypes import DType
from shmgpu.ops.casting import cast
from shmgpu.ops.graph import Node
from shmgpu.ops.promotion import bfloat16, float16, float32

LOWER = frozenset(
    "matmul linear conv1d conv2d conv_transpose1d conv_transpose2d prelu "
    "scaled_dot_product_attention".split()
)
FULL = frozenset(
    "exp log log1p pow rsqrt reciprocal sum prod cumsum logsumexp softmax log_softmax softmin "
    "softplus layer_norm group_norm mse_loss l1_loss smooth_l1_loss huber_loss nll_loss "
    "cross_entropy binary_cross_entropy_with_logits kl_div cosine_similarity cosine_embedding_loss "
    "margin_ranking_loss hinge_embedding_loss triplet_margin_loss soft_margin_loss "
    "poisson_nll_loss gaussian_nll_loss pairwise_distance inverse det solve".split()
)
CAST = frozenset((float16, bfloat16, float32))  # float64 stays what it is


class AutocastMode(threading.local):
    """What a thread's operations are recorded in.

    Attributes:
        dtype: of those in ``LOWER``; None where nothing is cast.
    """

    dtype: DType | None = None


mode = AutocastMode()


def following(record: Callable[..., Any]) -> Callable[..., Any]:
    """The same for operations without a rule; of the others one that casts as the mode says."""
    name = record.__name__
    if name not in LOWER and name not in FULL:
        return record
    lower = name in LOWER

    @functools.wraps(record)
    def call(*args: Any, **kwargs: Any) -> Any:
        wanted = mode.dtype
        if wanted is None:
            return record(*args, **kwargs)
        dtype = wanted if lower else float32

        def prepared(one: Any) -> Any:
            return cast(one, dtype) if type(one) is Node and one.spec.dtype in CAST else one

        return record(*map(prepared, args), **{k: prepared(v) for k, v in kwargs.items()})

    return call
