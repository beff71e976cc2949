"""What a block says of a call's arguments and of its result.

Owns what follows from that for whoever sends the block and reads the result. Never writes or reads
either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shmgpu.codec import arrays, dtypes
from shmgpu.codec.layout import Signature, TreeLayout

MAX_KEPT_OUTPUT = 4096  # bytes of an output buffer that is worth keeping from call to call


class Promise(Signature):
    """What a block says of arguments and result, and what the caller makes of such a result.

    Never changes: a plan that has learned of another result replaces its promise in one step, and
    each call goes by the one that its own block has. So threads may learn while others call.

    Args:
        arguments: layout of (args, kwargs).
        hint: layout that the result is expected to have, or None.
        declared: whether the user declared it.
        as_torch: whether results are tensors of torch.
        as_given: whether the caller gets them as they are, and not something made of them.

    Attributes:
        shape, dtype: of a result that the caller gets as one plain NumPy array; None otherwise.
        output_bytes: size of such a result, at least 1; 0 where nothing is promised.
        is_one_array: whether the result is one array, and in no container.
        is_small: whether it is worth keeping output buffers for such results, and arrays over them.
        make: makes of a NumPy array what the caller gets; None where that is the array.
        form: the result with the number of an array in place of each; None: nothing is promised.
    """

    __slots__ = ("dtype", "form", "is_one_array", "is_small", "make", "output_bytes", "shape")

    def __init__(
        self,
        arguments: TreeLayout,
        hint: TreeLayout | None,
        declared: bool,
        as_torch: bool,
        as_given: bool,
    ) -> None:
        super().__init__(arguments, hint, declared)
        self.output_bytes = 0
        self.shape: Any = None
        self.dtype: Any = None
        self.is_one_array = hint is not None and hint.tree.is_one_array
        self.is_small = False
        self.make: Callable[[Any], Any] | None = None
        self.form: Any = None
        if hint is None:
            return
        self.output_bytes = max(hint.nbytes, 1)
        self.form = hint.tree.build(range(len(hint.specs)), ())
        in_numpy = all(spec.dtype.has_numpy for spec in hint.specs)
        in_torch = all(
            spec.dtype.has_torch and spec.dtype.name not in dtypes.EXTENSIONS for spec in hint.specs
        )
        if as_torch and in_torch:
            self.make = arrays.tensor_over
        self.is_small = (
            self.output_bytes <= MAX_KEPT_OUTPUT
            and as_given
            and in_numpy
            and (not as_torch or in_torch)
        )
        if self.is_one_array and in_numpy and as_given and not as_torch:
            self.shape = hint.specs[0].shape
            self.dtype = hint.specs[0].dtype.numpy
