"""Random programs of up to 50 operations: torch's values and gradients, whatever is optimised."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import numpy as np
import pytest
import torch
from tensors.samples import OURS, THEIRS

from shmgpu import ops
from shmgpu.engine import plan
from shmgpu.engine.plan import Options
from shmgpu.engine.session import Engine
from shmgpu.ops import casting, collective, redistribution, updates
from shmgpu.ops.graph import Op
from shmgpu.tensors import current
from shmgpu.tensors import tensor as st

pytestmark = [
    pytest.mark.operations,
    pytest.mark.filterwarnings("error"),  # torch warns where memory does not fit
]

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


def matrix(f, x):
    """Its elements on two axes."""
    return f.flatten(x).reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)


def image(f, x):
    return matrix(f, x)[None, None]


def window(x):
    """Of two, where there are two."""
    return tuple(min(2, n) for n in x.shape[-2:])


def ramp(f, *shape):
    """Numbers of no one's choosing."""
    return f.arange(int(np.prod(shape))).double().reshape(*shape) * 0.1 - 0.3


def places(f, x):
    """For each element one of the first axis."""
    return (f.arange(int(np.prod(x.shape))) % x.shape[0]).reshape(*x.shape)


def put(f, x):
    x = x * 1.0
    x[[0, -1]] = x[[-1, 0]] * 0.5
    x[::2] = x[::2] * 0.5
    return x


def solved(f, x):
    m = x @ x.transpose(-1, -2) / (8.0 * x.shape[-1]) + f.eye(x.shape[-2], dtype=torch.float64)
    return f.linalg.solve(m, x) + f.linalg.inv(m) @ x + f.linalg.det(m)[..., None, None]


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
    "equations": lambda f, x, r: bounded(f, solved(f, x)) if x.ndim > 1 else x,
    "cos": lambda f, x, r: f.cos(x) * 2.0,
    "bent": lambda f, x, r: f.erf(x) + f.sigmoid(x),
    "silu": lambda f, x, r: f.silu(x) + f.leaky_relu(x, 0.1),
    "logarithms": lambda f, x, r: f.log(f.abs(x) + 0.5) + f.log1p(f.abs(x)),
    "roots": lambda f, x, r: f.sqrt(f.abs(x) + 0.1) - f.rsqrt(f.abs(x) + 0.5),
    "whole": lambda f, x, r: f.floor(x) - f.ceil(x) + f.round(x * 0.7) * f.sign(x),
    "remainder": lambda f, x, r: x % 0.7 + x.detach() // 0.7,
    "compared": lambda f, x, r: ((x > 0) == (x <= 0.5)).double() + ((x < 1) != (x >= 0)).double(),
    "logic": lambda f, x, r: f.logical_or(
        f.logical_not(x > 0), f.logical_and(x < 1, x >= -1)
    ).double(),
    "bits": lambda f, x, r: bounded(
        f, (((f.round(x * 3).long() & 6) | 1) ^ ~f.round(x).long()).double()
    ),
    "finite": lambda f, x, r: (f.isfinite(x) & ~f.isnan(x) & ~f.isinf(x)).double() * x,
    "upper": lambda f, x, r: f.triu(x) if x.ndim > 1 else x,
    "rolled": lambda f, x, r: f.roll(x, 1, 0) if x.ndim else x,
    "prod": lambda f, x, r: bounded(f, f.prod(x, -1)) if x.ndim else x,
    "angles": lambda f, x, r: (
        f.atan(x) + f.asin(f.tanh(x) * 0.9) - f.atan2(x, x * x + 0.3) + f.acos(f.sin(x) * 0.9)
    ),
    "hyperbolic": lambda f, x, r: (
        f.asinh(x) + f.acosh(x * x + 1.2) + f.expm1(-f.abs(x)) + f.atanh(f.sin(x) * 0.9)
    ),
    "more angles": lambda f, x, r: (
        f.sinh(f.tanh(x)) + f.cosh(f.sin(x)) * 0.5 + f.tan(f.sin(x) * 0.7) - f.logaddexp(x, x * 0.3)
    ),
    "more logarithms": lambda f, x, r: (
        f.log2(f.abs(x) + 0.5) + f.log10(f.abs(x) + 0.3) + f.fmod(x, 0.7)
    ),
    "lengths": lambda f, x, r: f.hypot(x, x * 0.5 + 2.0) + f.copysign(x, 0.7 - x),
    "cumprod": lambda f, x, r: bounded(f, f.cumprod(f.tanh(x), -1)) if x.ndim else x,
    "neighbours": lambda f, x, r: f.nextafter(x.detach(), -x.detach()) + f.signbit(x).double(),
    "shifted": lambda f, x, r: (
        (((f.round(x * 3).long() & 15) << 2) - (f.round(x * 50).long() >> 1)).double() * 0.01
    ),
    "buckets": lambda f, x, r: f.bucketize(x.detach(), ramp(f, 5)).double() * 0.1,
    "least": lambda f, x, r: f.amin(x, -1) if x.ndim else x,
    "places": lambda f, x, r: (f.argmax(x, 0) - f.argmin(x, 0)).double() * 0.1 if x.ndim else x,
    "sorted": lambda f, x, r: f.sort(x.detach(), -1)[0] if x.ndim else x,
    "any": lambda f, x, r: x * 0.5 + f.any(x > 1).double() - f.all(x > -1).double(),
    "batch_norm": lambda f, x, r: (
        f.nn.functional.batch_norm(
            x, None, None, ramp(f, x.shape[1]) + f.mean(x), ramp(f, x.shape[1]), True
        )
        if x.ndim > 1 and x.numel() > x.shape[1]
        else x
    ),
    "layer_norm": lambda f, x, r: (
        f.layer_norm(x, tuple(x.shape[-1:]), ramp(f, x.shape[-1]) + f.mean(x), ramp(f, x.shape[-1]))
        if x.ndim and x.shape[-1] > 1
        else x
    ),
    "linear": lambda f, x, r: (
        bounded(f, f.linear(x, ramp(f, 5, x.shape[-1]), ramp(f, 5))) if x.ndim else x
    ),
    "conv2d": lambda f, x, r: bounded(
        f, f.conv2d(image(f, x), ramp(f, 2, 1, 3, 3) + f.mean(x), ramp(f, 2), padding=1)[0]
    ),
    "max_pool2d": lambda f, x, r: (
        f.max_pool2d(image(f, x), window(matrix(f, x)))[0]
        + f.max_pool2d(image(f, x.detach()), window(matrix(f, x)))[0] * 0.1
    ),
    "avg_pool2d": lambda f, x, r: f.avg_pool2d(image(f, x), window(matrix(f, x)))[0],
    "embedding": lambda f, x, r: f.embedding(f.arange(4) % matrix(f, x).shape[0], matrix(f, x)),
    "taken": lambda f, x, r: f.gather(x, 0, places(f, x)) if x.ndim else x,
    "scattered": lambda f, x, r: (
        bounded(f, f.scatter_add(x, 0, places(f, x), x * 0.1)) if x.ndim else x
    ),
    "put": lambda f, x, r: put(f, x) if x.ndim else x,
    "numbered": lambda f, x, r: (
        x[f.arange(x.shape[0]).flip(0), f.arange(x.shape[0]) % x.shape[1]] if x.ndim > 1 else x
    ),
    "cross_entropy": lambda f, x, r: bounded(
        f, f.cross_entropy(matrix(f, x), f.arange(matrix(f, x).shape[0]) % matrix(f, x).shape[1])
    ),
    "binary_cross_entropy": lambda f, x, r: bounded(
        f, f.binary_cross_entropy(f.sigmoid(x), f.sigmoid(f.sin(x)))
    ),
    "mse_loss": lambda f, x, r: bounded(f, f.mse_loss(x, f.sin(x) * 0.3 + 0.1)),
    "attention": lambda f, x, r: (
        f.scaled_dot_product_attention(x, x, x, is_causal=True) if x.ndim > 1 else x
    ),
    "made": lambda f, x, r: (
        x * 0.5
        + f.eye(*x.shape[-2:], dtype=torch.float64)
        - f.linspace(-1, 1, x.shape[-1], dtype=torch.float64)
        + f.full((1,), 0.25, dtype=torch.float64)
        if x.ndim > 1
        else x
    ),
    "halves": lambda f, x, r: (
        f.stack(f.chunk(f.cat([x, x * 0.5], -1), 2, -1)).sum(0) if x.ndim else x
    ),
}
TWO = {
    "add": lambda f, x, y, r: (x + y) * 0.5,
    "sub": lambda f, x, y, r: x - y * 0.5,
    "mul": lambda f, x, y, r: x * y * 0.5,
    "maximum": lambda f, x, y, r: f.maximum(x, y),
    "minimum": lambda f, x, y, r: f.minimum(x, y),
    "scaled": lambda f, x, y, r: f.add(x * 0.5, y, alpha=-0.5),
    "div": lambda f, x, y, r: x / (f.abs(y) + 1.0),
    "pow": lambda f, x, y, r: (f.abs(x) * 0.5 + 0.5) ** (y * 0.5),
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
    "no capture": 32,
    "none": 63,
}


@pytest.fixture(params=LEFT_OUT.values(), ids=LEFT_OUT)
def flags(request):
    """Each way to leave out optimisations."""
    return request.param


def test_every_optimisation_is_switched():
    switched = [one.name for one in dataclasses.fields(Options) if one.default is True]
    assert len(switched) == 6, "a new one needs its bit in the fixture above"


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
    for flags in (*range(1, 64, 7), *LEFT_OUT.values(), 0):
        current.recorder().flags = flags
        used.clear()
        for _ in range(4):
            assert step() == wanted
        assert used == {flags}


# Drawn numbers are each library's own.
OWN = {"rand", "randn", "checkpoint"}  # each has tests of its own
OWN |= {row.name for row in vars(updates).values() if isinstance(row, Op)}  # an optimiser's
OWN |= {row.name for row in (*collective.LOWERED, *redistribution.RECORDED)}
OWN.add(casting.CAST_PARTS.name)


def test_programs_draw_from_the_whole_table(engine):
    """Nothing is computed: it is the operations that are looked at, and those of gradients."""
    found = set()
    for seed in range(250):
        rng = random.Random(seed)
        leaves = [st.tensor(drawn(rng), requires_grad=True) for _ in range(rng.randint(1, 4))]
        values = play(OURS, leaves, seed)
        nodes = [one._node for one in values]
        outs = [one.sum() for one in values[len(leaves) :] if one.requires_grad]
        for one in leaves if outs else []:
            with contextlib.suppress(RuntimeError):  # the program made nothing of it
                nodes += [g._node for g in st.grad(outs, [one], retain_graph=True)]
        found |= rows_under(nodes)
    assert found >= ops.TABLE.keys() - OWN


def rows_under(nodes):
    """Names of the operations that these were recorded from."""
    found, stack, seen = set(), list(nodes), set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            if node.op is not None:
                found.add(node.op.name)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_gives_what_torch_gives(engine, flags, seed):
    current.recorder().flags = flags
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
