"""Sequences of several lengths as one tensor.

Owns these functions. Never packs: recurrent layers run over all steps of a padded batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmgpu.ops import rules
from shmgpu.tensors.tensor import FUNCTIONS, Tensor

__all__ = ["pad_sequence", "unpad_sequence"]


def __dir__() -> list[str]:
    return __all__


def pad_sequence(
    sequences: Sequence[Tensor],
    batch_first: bool = False,
    padding_value: float = 0.0,
    padding_side: str = "right",
) -> Tensor:
    """Sequences one beside the other, the shorter ones padded to the length of the longest.

    Args:
        sequences: N of them, each (its length, ...), of one type.
        batch_first: the result is (N, longest, ...), not (longest, N, ...).
        padding_value: what is added.
        padding_side: where: ``"right"`` is behind, ``"left"`` before.

    Raises:
        ValueError: there are none, their other axes differ, or there is no such side.
    """
    if padding_side not in ("left", "right"):
        raise ValueError(f'pad_sequence: padding_side={padding_side!r} must be "left" or "right"')
    if not len(sequences) or any(
        not one.ndim or one.shape[1:] != sequences[0].shape[1:] for one in sequences
    ):
        raise ValueError(
            f"pad_sequence: give sequences that differ in their first axis only, not "
            f"{[one.shape for one in sequences]}"
        )
    longest = max(one.shape[0] for one in sequences)
    rows = []
    for one in sequences:
        missing = longest - one.shape[0]
        ends = (missing, 0) if padding_side == "left" else (0, missing)
        rows.append(FUNCTIONS["pad"](one, (0, 0) * (one.ndim - 1) + ends, value=padding_value))
    found: Tensor = FUNCTIONS["stack"](rows, 0 if batch_first else 1)
    return found


def unpad_sequence(
    padded_sequences: Tensor, lengths: Sequence[int] | Tensor, batch_first: bool = False
) -> list[Tensor]:
    """The sequences that :func:`pad_sequence` padded behind; a tensor of lengths is looked at.

    Raises:
        ValueError: there are not as many lengths as sequences.
    """
    listed = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    x = padded_sequences if batch_first else padded_sequences.transpose(0, 1)
    if len(listed) != x.shape[0]:
        raise ValueError(
            f"unpad_sequence: {len(listed)} lengths are not for {x.shape[0]} sequences"
        )
    return [x[at, : rules.whole(n, "unpad_sequence", "lengths")] for at, n in enumerate(listed)]
