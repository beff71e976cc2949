"""The demo's data: the handwritten digits that ship with scikit-learn, in a fixed split.

Owns what an image is (float32, one channel, 8 x 8, values 0 to 1) and which images are held out.
Never imports torch: it uses NumPy only, so that the process that reads the images can still fork.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shmgpu.common.wording import with_extra
from shmgpu.errors import ShmError

CLASSES = 10
IMAGE_SHAPE = (1, 8, 8)
HELD_OUT = 0.3


class MissingPackage(ShmError):
    """A package that only the demo needs is not installed."""


@dataclass(frozen=True)
class Split:
    """Images, float32 of shape (n, 1, 8, 8), and their labels, int64 of shape (n,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def load(seed: int) -> tuple[Split, Split]:
    """The digits as (train, held out); the same seed gives the same split.

    Raises:
        MissingPackage: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingPackage(
            "the demo's handwritten digits come with scikit-learn, which is not installed here: "
            + with_extra("demo")
        ) from error
    digits: Any = load_digits()
    images = (digits.images / 16).astype(np.float32).reshape(-1, *IMAGE_SHAPE)
    return split(Split(images, digits.target.astype(np.int64)), seed)


def split(everything: Split, seed: int) -> tuple[Split, Split]:
    """(train, held out): the same share of each digit is held out, chosen and ordered by chance."""
    images, labels = everything.images, everything.labels
    chance = np.random.default_rng(seed)
    chosen = []
    for digit in np.unique(labels):
        indices = chance.permutation(np.flatnonzero(labels == digit))
        chosen.append(indices[: round(HELD_OUT * len(indices))])
    held_out = chance.permutation(np.concatenate(chosen))
    train = np.setdiff1d(np.arange(len(labels)), held_out)
    return Split(images[train], labels[train]), Split(images[held_out], labels[held_out])
