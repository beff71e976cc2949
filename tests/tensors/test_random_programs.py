"""Random programs of up to 50 operations: torch's values and gradients, whatever is optimised."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from tensors.samples import OURS, THEIRS

from shmgpu import lazy
from shmgpu import tensors as st
from shmgpu.engine import plan
from shmgpu.engine.plan import Options
from shmgpu.engine.session import Engine

LENGTHS = (1, 3, 24)  # 24 * 24 float64 lie in planned memory, the others in their own
MAX_STEPS = 50


def bounded(f, x):
    """Kept within [-2, 2], so that long programs neither overflow nor vanish."""
    return f.sin(x) * 2.0


def symmetric(x):
    """Of a square one, a sum with a view of itself."""
    n = min(x.shape[-1], x.shape[-2])
    x = x[..., :n, :n] * 0.5
    return x + x.transpose(-1, -2)


# What is done, by how many tensors it takes; each fits any shape of at most three axes.
ONE = {
    "sin": lambda f, x, r: f.sin(x),
    "tanh": lambda f, x, r: f.tanh(x) * 2.0,
    "number": lambda f, x, r: x * 0.5 + r.choice((-1.0, 0.25, 1.0)),
    "reflected": lambda f, x, r: 1.5 - x,
    "quotient": lambda f, x, r: x / (x * x + 1.0),
    "power": lambda f, x, r: (x * x + 0.1) ** 0.5,
    "relu": lambda f, x, r: f.relu(x),
    "gelu": lambda f, x, r: f.gelu(x),
    "exp": lambda f, x, r: f.exp(-f.abs(x)),
    "where": lambda f, x, r: f.where(x > 0.1, x, x * 0.3),
    "clamp": lambda f, x, r: f.clamp(x, -1.0, 1.0),
    "softmax": lambda f, x, r: f.softmax(x, -1) if x.ndim else x,
    "log_softmax": lambda f, x, r: f.log_softmax(x, 0) * 0.5 if x.ndim else x,
    "flatten": lambda f, x, r: f.flatten(x),
    "transposed": lambda f, x, r: x.transpose(0, -1) if x.ndim else x,
    "turned": lambda f, x, r: f.flip(x, (0,)) if x.ndim else x,
    "row": lambda f, x, r: x[r.randrange(x.shape[0])] if x.ndim else x,
    "part": lambda f, x, r: x[..., : max(1, x.shape[-1] // 2)] if x.ndim else x,
    "every other": lambda f, x, r: x[::2] if x.ndim else x,
    "axis": lambda f, x, r: x.unsqueeze(r.choice((0, -1))) if x.ndim < 3 else x,
    "stretched": lambda f, x, r: x.unsqueeze(0).expand(3, *x.shape) if x.ndim < 3 else x,
    "sum": lambda f, x, r: (
        bounded(f, f.sum(x, r.randrange(x.ndim), r.random() < 0.5)) if x.ndim else x
    ),
    "mean": lambda f, x, r: f.mean(x, -1, True) if x.ndim else x,
    "amax": lambda f, x, r: f.amax(x, 0) if x.ndim else x,
    "cumsum": lambda f, x, r: bounded(f, f.cumsum(x, -1)) if x.ndim else x,
    "tril": lambda f, x, r: f.tril(x) if x.ndim > 1 else x,
    "gather": lambda f, x, r: x[[0, -1, 0]] if x.ndim else x,
    "padded": lambda f, x, r: f.pad(x, (1, -1)) if x.ndim else x,
    "symmetric": lambda f, x, r: symmetric(x * 0.5) if x.ndim > 1 else x,
    "square": lambda f, x, r: bounded(f, x @ x.transpose(-1, -2)) if x.ndim > 1 else x,
}
TWO = {
    "add": lambda f, x, y, r: (x + y) * 0.5,
    "sub": lambda f, x, y, r: x - y * 0.5,
    "mul": lambda f, x, y, r: x * y * 0.5,
    "maximum": lambda f, x, y, r: f.maximum(x, y),
    "joined": lambda f, x, y, r: f.cat([f.flatten(x), f.flatten(y)]),
}
# In place: the tensor itself is changed; views on it that were taken before are not, in ours.
INTO = {
    "sub_": lambda f, x, y, r: x.__isub__(y * 0.25),
    "mul_": lambda f, x, y, r: x.__imul__(0.5),
    "row": lambda f, x, y, r: x.__setitem__(0, 0.5),
}


def drawn(rng):
    shape = (24, 24)
    if rng.random() < 0.6:
        shape = tuple(rng.choice(LENGTHS) for _ in range(rng.randrange(4)))
    return np.random.default_rng(rng.getrandbits(32)).uniform(-2, 2, shape)


def fits(x, y):
    try:
        shape = np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    except ValueError:
        return False
    return np.prod(shape, dtype=int) <= 1 << 14 and len(shape) <= 3


def play(f, leaves, seed):
    """Run the program of that seed; which steps come depends on shapes only."""
    rng = random.Random(seed)
    values = list(leaves)
    for _ in range(rng.randint(1, MAX_STEPS)):
        at = rng.randrange(len(values))
        x = values[at]
        kind = rng.random()
        if kind < 0.3:
            y = rng.choice(values)
            name = rng.choice(sorted(TWO))
            inner = random.Random(rng.getrandbits(32))
            if not fits(x, y):
                continue
            made = TWO[name](f, x, y, inner)
        elif kind < 0.4:
            name = rng.choice(sorted(INTO))
            inner = random.Random(rng.getrandbits(32))
            y = rng.choice(values)
            made = x * 1.0  # nothing else shows it, so both libraries mean the same by a change
            y = y if fits(x, y) and np.broadcast_shapes(x.shape, y.shape) == x.shape else 1.0
            if name != "row" or x.ndim:
                INTO[name](f, made, y, inner)
        else:
            name = rng.choice(sorted(ONE))
            made = ONE[name](f, x, random.Random(rng.getrandbits(32)))
        if np.prod(made.shape, dtype=int) > 1 << 14:
            continue
        values.append(made)
        if len(values) > 8:  # what falls out is needed by nobody but the program
            values.pop(rng.randrange(len(leaves), len(values)))
    return values


@pytest.fixture(autouse=True)
def _memory_is_planned_for_the_smallest(monkeypatch):
    """So that small tensors lie in buffers and are written over, as great ones are."""
    monkeypatch.setattr(plan, "MIN_BUFFER", 0)


LEFT_OUT = {
    "all": 0,
    "no reuse": 1,
    "no plan": 2,
    "no dropping": 4,
    "no fusion": 8,
    "no early answer": 16,
    "none": 31,
}


@pytest.fixture(params=LEFT_OUT.values(), ids=LEFT_OUT)
def flags(request):
    """Each way to leave out optimisations."""
    return request.param


def test_every_optimisation_is_switched():
    assert len(dataclasses.fields(Options)) == 5, "a new one needs its bit in the fixture above"


def test_optimisations_are_switched_on_the_way_with_equal_results(engine, monkeypatch):
    """One loop, whose program is known: each switch takes effect, and none changes a bit."""
    used = set()
    given = Engine._given

    def noting(self, ready, *rest):
        used.add(ready.flags)
        return given(self, ready, *rest)

    monkeypatch.setattr(Engine, "_given", noting)
    rng = np.random.default_rng(0)
    x, y = (st.tensor(rng.standard_normal((24, 24))) for _ in range(2))

    def step():
        z = (x * y + 1.0) * 0.5
        return (z @ z.T + (x * y + 1.0).exp()).tanh().data.tobytes()

    wanted = step()
    for flags in (*range(16), 0, 15):
        lazy.current().flags = flags
        used.clear()
        for _ in range(4):
            assert step() == wanted
        assert used == {flags}


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_gives_what_torch_gives(engine, flags, seed):
    lazy.current().flags = flags
    rng = random.Random(seed)
    arrays = [drawn(rng) for _ in range(rng.randint(1, 4))]
    ours = play(OURS, [st.tensor(a, requires_grad=True) for a in arrays], seed)
    theirs = play(THEIRS, [torch.tensor(a, requires_grad=True) for a in arrays], seed)
    assert len(ours) == len(theirs)
    outs = [one for one in range(len(arrays), len(ours)) if ours[one].requires_grad]
    if outs:
        total = sum(OURS.sum(ours[one]) for one in outs)
        want = sum(theirs[one].sum() for one in outs)
        (total * 1.0).backward()
        (want * 1.0).backward()
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one.data, other.detach().numpy(), rtol=1e-8, atol=1e-8)
    for one, other in zip(ours[: len(arrays)], theirs[: len(arrays)], strict=True):
        assert (one.grad is None) <= (other.grad is None or not other.grad.any())
        if one.grad is not None:
            np.testing.assert_allclose(one.grad.data, other.grad.numpy(), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("seed", range(20, 30))
def test_a_program_that_is_run_again_with_other_numbers_gives_those(engine, seed):
    """The second run is of a program that is planned and has used its memory."""
    rng = random.Random(seed)
    shapes = [drawn(rng).shape for _ in range(3)]
    for again in range(3):
        numbers = np.random.default_rng(again)
        arrays = [numbers.uniform(-2, 2, shape) for shape in shapes]
        with st.no_grad():
            ours = play(OURS, [st.tensor(a) for a in arrays], seed)
        theirs = play(THEIRS, [torch.tensor(a) for a in arrays], seed)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(one.data, other.numpy(), rtol=1e-8, atol=1e-8)
