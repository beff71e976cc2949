"""16-bit floats on NumPy: rounded once, like torch's; without ml_dtypes, a sentence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from tensors.against_torch import same

from shmgpu.tensors import tensor as st

WITHOUT = """
import sys
sys.modules["ml_dtypes"] = None
import shmgpu
from shmgpu.tensors import current
current._backend = "numpy"
with shmgpu.init(inline=True, arena="16MiB"):
    assert shmgpu.ones(3, dtype="float16").data.sum() == 3
    try:
        (shmgpu.ones(3, dtype="bfloat16") + 1).data
    except shmgpu.ShmError as error:
        print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_many_are_not_rounded_on_the_way(engine, dtype):
    x = st.ones(10_000, dtype=dtype)
    same(x.sum(), torch.ones(10_000, dtype=getattr(torch, dtype)).sum())
    same(x.mean(), torch.ones(10_000, dtype=getattr(torch, dtype)).mean())


def test_a_number_beside_halves_is_not_rounded_first(engine):
    x = np.arange(1, 200, dtype="float32")
    ours, theirs = st.tensor(x, "bfloat16") * 0.1, torch.tensor(x, dtype=torch.bfloat16) * 0.1
    same(ours, theirs, tol=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_number_stretched_over_halves_is_of_their_type(engine, dtype):
    x = st.ones(3, dtype=dtype)
    x[:] = 0.5
    assert x.data.dtype == st.ones(1, dtype=dtype).data.dtype
    same(x, torch.full((3,), 0.5, dtype=getattr(torch, dtype)))


@pytest.mark.slow
def test_bfloat16_without_ml_dtypes_is_refused_in_a_sentence():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=100
    )
    assert "ml_dtypes: install it, or use torch tensors" in done.stdout
