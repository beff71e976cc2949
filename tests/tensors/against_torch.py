"""The same done by us and by torch, and compared: values, types, shapes, gradients."""

from __future__ import annotations

import numpy as np
import torch
from tensors.samples import OURS, THEIRS

from shmgpu.tensors import tensor as st

# How far apart two float types may be that were rounded in another order.
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def plain(values):
    """A torch tensor as an array of what NumPy has."""
    values = values.detach()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def same(ours, theirs, tol=None):
    """Equal in shape, type and elements."""
    name = str(theirs.dtype).removeprefix("torch.")
    assert ours.shape == tuple(theirs.shape)
    assert ours.dtype.name == name
    tol = TOLERANCE.get(name, 0) if tol is None else tol
    got = np.asarray(ours.data)
    got = got.astype(np.float32) if name == "bfloat16" else got
    np.testing.assert_allclose(got, plain(theirs), rtol=tol, atol=tol)


def agree(call, *arrays, dtype="float32", tol=None, grads=True, seed=5):
    """``call(functions, tensors...)`` gives the same, and so do its gradients.

    Arrays of floats become tensors of ``dtype`` that collect gradients.
    """
    ours, theirs = [], []
    for a in arrays:
        a = np.asarray(a)
        is_float = a.dtype.kind == "f"
        kind = getattr(torch, dtype)
        theirs.append(torch.tensor(a, dtype=kind if is_float else None))
        ours.append(st.tensor(a, dtype=dtype if is_float else None))
        if is_float and grads:
            theirs[-1].requires_grad_()
            ours[-1].requires_grad_()
    out, want = call(OURS, *ours), call(THEIRS, *theirs)
    outs, wants = (out, want) if isinstance(want, tuple) else ((out,), (want,))
    assert len(outs) == len(wants)
    for one, other in zip(outs, wants, strict=True):
        same(one, other, tol)
    if not grads or not wants[0].requires_grad:
        return
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, wants[0].shape)
    wants[0].backward(torch.tensor(weights, dtype=wants[0].dtype))
    outs[0].backward(st.tensor(weights, dtype=outs[0].dtype))
    for one, other in zip(ours, theirs, strict=True):
        if other.grad is not None and one.grad is None:
            assert not other.grad.any()
        elif other.grad is not None:
            same(one.grad, other.grad, tol)
