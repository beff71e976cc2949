"""Every name of the API is called once, and gives what PyTorch gives.

What each name must do in detail is told elsewhere; here nothing may be missing.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import shmgpu as gt

FUNCTIONS = """
zeros ones full rand randn arange eye empty tensor cat stack from_numpy linspace mse_loss
zeros_like ones_like full_like empty_like rand_like randn_like
where clamp maximum minimum abs sin cos gelu exp log sqrt sigmoid tanh relu transpose gather
sum mean max min var argmax logsumexp matmul softmax log_softmax layer_norm dropout embedding
tril pad conv2d max_pool2d scaled_dot_product_attention
""".split()
METHODS = """
shape dtype T exp log sqrt sigmoid tanh relu sum mean max reshape view unsqueeze squeeze transpose
permute split chunk item zero_ requires_grad_ detach clone numpy dot expand
requires_grad grad data backward tolist
""".split()
OPERATORS = "+ - * / ** % // @ & | ^ ~ -x abs == != < <= > >= += -= *= /= index assign".split()
TYPES = "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 bool".split()
NN = """
Module Linear Conv2d LayerNorm Embedding Dropout MaxPool2d GELU ReLU Sequential
mse_loss binary_cross_entropy cross_entropy_loss relu sigmoid tanh
""".split()
MODULE = "parameters zero_grad state_dict load_state_dict train eval".split()
OPTIM = "SGD Adam AdamW".split()
DEBUG = """
get_tape print_tape get_worker_stats print_worker_stats get_input_tape print_input_tape
get_output_queue print_output_queue get_handles print_handles get_tick_trace print_tick_trace
save_debug_trace verify enable
""".split()
SETTINGS = """
set_backend set_verbosity connect disconnect init gpu_workers manual_seed no_grad grad
debug nn optim
""".split()

A = np.linspace(-2, 2, 12, dtype="float32").reshape(3, 4)
P = np.abs(A) + 0.5
NUMBERS = np.array([[0, 2, 1], [1, 0, 2]])
B = A > 0
V = np.arange(4, dtype="float32")
IMAGE = np.linspace(-1, 1, 2 * 3 * 6 * 6, dtype="float32").reshape(2, 3, 6, 6)
FILTERS = np.linspace(-1, 1, 4 * 3 * 3 * 3, dtype="float32").reshape(4, 3, 3, 3)


class Both:
    """One library's functions, wherever they stand."""

    def __init__(self, *places):
        self.places = places

    def __getattr__(self, name):
        return next(getattr(place, name) for place in self.places if hasattr(place, name))


OURS, THEIRS = Both(gt), Both(F, torch)


def same(ours, theirs):
    """Equal shapes, types and elements, in whatever they are wrapped."""
    if isinstance(theirs, (tuple, list)):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(theirs, torch.Tensor):
        assert tuple(ours.shape) == tuple(theirs.shape)
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        np.testing.assert_allclose(
            ours.data, theirs.detach().numpy(), rtol=1e-5, atol=1e-6, equal_nan=True
        )
    else:
        assert ours == theirs


def drawn(x):
    """Finite numbers that no two libraries draw alike: of them the shape and the dtype."""
    return x * 0


# What is called, of either library ``f``, with tensors of the arrays.
CALLS = {
    "zeros": lambda f: (f.zeros(2, 3), f.zeros((2, 3), dtype=f.int64)),
    "ones": lambda f: (f.ones(2, 3), f.ones((2, 3), dtype=f.float64)),
    "full": lambda f: (f.full((2, 2), 1.5), f.full((2,), 3)),
    "rand": lambda f: drawn(f.rand(2, 3)),
    "randn": lambda f: drawn(f.randn((2, 3))),
    "arange": lambda f: (f.arange(5), f.arange(1, 7, 2), f.arange(0.0, 1.0, 0.25)),
    "eye": lambda f: (f.eye(3), f.eye(2, 4)),
    "empty": lambda f: f.zeros_like(f.empty(2, 3)),  # any bits may lie there: NaN, too
    "tensor": lambda f: (f.tensor([[1, 2], [3, 4]]), f.tensor([1.5]), f.tensor(True), f.tensor(2)),
    "cat": lambda f: f.cat([f.tensor(A), f.tensor(P)], dim=1),
    "stack": lambda f: f.stack([f.tensor(A), f.tensor(P)], 1),
    "from_numpy": lambda f: f.from_numpy(A) + 1,
    "linspace": lambda f: f.linspace(-1, 1, 5),
    "zeros_like": lambda f: f.zeros_like(f.tensor(NUMBERS)),
    "ones_like": lambda f: f.ones_like(f.tensor(A)),
    "full_like": lambda f: f.full_like(f.tensor(A), 2.5),
    "empty_like": lambda f: f.zeros_like(f.empty_like(f.tensor(NUMBERS))),
    "rand_like": lambda f: drawn(f.rand_like(f.tensor(A))),
    "randn_like": lambda f: drawn(f.randn_like(f.tensor(A))),
    "where": lambda f: f.where(f.tensor(B), f.tensor(A), 0.5),
    "clamp": lambda f: (f.clamp(f.tensor(A), -1, 1), f.clamp(f.tensor(A), min=0.0)),
    "maximum": lambda f: f.maximum(f.tensor(A), f.tensor(V)),
    "minimum": lambda f: f.minimum(f.tensor(A), f.tensor(V)),
    **{
        name: lambda f, name=name: getattr(f, name)(f.tensor(P))
        for name in "abs sin cos gelu exp log sqrt sigmoid tanh relu".split()
    },
    "transpose": lambda f: f.transpose(f.tensor(IMAGE), 1, 3),
    **{
        name: lambda f, name=name: (
            getattr(f, name)(f.tensor(A)),
            getattr(f, name)(f.tensor(A), 1),
            getattr(f, name)(f.tensor(IMAGE), (0, -1), keepdim=True),
        )
        for name in "sum mean".split()
    },
    "var": lambda f: (f.var(f.tensor(A)), f.var(f.tensor(A), 1), f.var(f.tensor(A), (0, 1))),
    "max": lambda f: (f.max(f.tensor(A)), tuple(f.max(f.tensor(A), 1))),
    "min": lambda f: (f.min(f.tensor(A)), tuple(f.min(f.tensor(A), 0))),
    "argmax": lambda f: (f.argmax(f.tensor(A)), f.argmax(f.tensor(A), 0)),
    "logsumexp": lambda f: (f.logsumexp(f.tensor(A), 1), f.logsumexp(f.tensor(A), (0, 1))),
    "matmul": lambda f: f.matmul(f.tensor(IMAGE), f.tensor(IMAGE[:, :1])),
    "softmax": lambda f: f.softmax(f.tensor(A), -1),
    "log_softmax": lambda f: f.log_softmax(f.tensor(A), 0),
    "layer_norm": lambda f: f.layer_norm(f.tensor(A), (4,), f.tensor(V), f.tensor(V)),
    "dropout": lambda f: (f.dropout(f.tensor(A), 0.5, False), drawn(f.dropout(f.tensor(A), 0.5))),
    "embedding": lambda f: f.embedding(f.tensor(NUMBERS), f.tensor(A)),
    "gather": lambda f: f.gather(f.tensor(A), 1, f.tensor(NUMBERS)),
    "tril": lambda f: f.tril(f.tensor(A), -1),
    "pad": lambda f: f.pad(f.tensor(A), (1, 2, 0, 1)),
    "conv2d": lambda f: f.conv2d(f.tensor(IMAGE), f.tensor(FILTERS), f.tensor(V), 2, padding=1),
    "max_pool2d": lambda f: f.max_pool2d(f.tensor(IMAGE), 2),
    "scaled_dot_product_attention": lambda f: f.scaled_dot_product_attention(
        f.tensor(IMAGE), f.tensor(IMAGE), f.tensor(IMAGE), is_causal=True
    ),
    "mse_loss": lambda f: f.mse_loss(f.tensor(A), f.tensor(P)),
}


def weights(f):
    return f.tensor(A, requires_grad=True) if f is OURS else torch.tensor(A, requires_grad=True)


def after(change):
    """A tensor changed in place."""

    def call(f):
        x = f.tensor(A) * 1
        return change(f, x)

    return call


def assigned(f, x):
    x[1] = 7.0
    x[:, 0] = f.tensor(V[:3])
    x[f.tensor([0, 2])] = 0.5
    return x


METHOD_CALLS = {
    "shape": lambda f: tuple(f.tensor(A).shape),
    "dtype": lambda f: (f.tensor(A).dtype == f.float32, f.tensor(NUMBERS).dtype == f.int64),
    "T": lambda f: f.tensor(A).T,
    **{
        name: lambda f, name=name: getattr(f.tensor(P), name)()
        for name in "exp log sqrt sigmoid tanh relu sum mean max detach clone".split()
    },
    "reshape": lambda f: (f.tensor(A).reshape(2, 6), f.tensor(A).reshape((-1,))),
    "view": lambda f: (f.tensor(A).view(2, -1), f.tensor(A).view((12,))),
    "unsqueeze": lambda f: f.tensor(A).unsqueeze(-1),
    "squeeze": lambda f: (f.tensor(A[:1]).squeeze(), f.tensor(A[:1]).squeeze(0)),
    "transpose": lambda f: f.tensor(A).transpose(0, 1),
    "permute": lambda f: (f.tensor(IMAGE).permute(3, 1, 0, 2), f.tensor(A).permute((1, 0))),
    "split": lambda f: (f.tensor(A).split(2), f.tensor(A).split([1, 3], 1)),
    "chunk": lambda f: f.tensor(A).chunk(2, dim=1),
    "item": lambda f: (f.tensor([2.5]).item(), f.tensor(3).item(), f.tensor(A).sum().item() < 1),
    "zero_": after(lambda f, x: x.zero_()),
    "requires_grad_": lambda f: f.tensor(A).requires_grad_().requires_grad,
    "requires_grad": lambda f: (weights(f).requires_grad, f.tensor(A).requires_grad),
    "numpy": lambda f: f.tensor(A).numpy().tolist(),
    "dot": lambda f: f.tensor(V).dot(f.tensor(V)),
    "expand": lambda f: (f.tensor(V).expand(3, 4), f.tensor(A[:, :1]).expand(-1, 5)),
    "data": lambda f: f.tensor(A).data.tolist(),
    "tolist": lambda f: f.tensor(NUMBERS).tolist(),
    "grad": lambda f: weights(f).grad,
    "backward": lambda f: [(w := weights(f)), (w * w).sum().backward(), w.grad][2],
}
OPERATOR_CALLS = {
    "+": lambda f: (f.tensor(A) + f.tensor(V), f.tensor(A) + 1, 1 + f.tensor(NUMBERS)),
    "-": lambda f: (f.tensor(A) - f.tensor(V), 1.5 - f.tensor(A)),
    "*": lambda f: (f.tensor(A) * f.tensor(V), 2 * f.tensor(NUMBERS)),
    "/": lambda f: (f.tensor(A) / f.tensor(P), 1 / f.tensor(P), f.tensor(NUMBERS) / 2),
    "**": lambda f: (f.tensor(P) ** 3, f.tensor(P) ** f.tensor(A), 2.0 ** f.tensor(A)),
    "%": lambda f: (f.tensor(NUMBERS) % 2, f.tensor(A) % 0.75),
    "//": lambda f: (f.tensor(NUMBERS) // 2, f.tensor(A) // 0.75),
    "@": lambda f: (f.tensor(A) @ f.tensor(V), f.tensor(A) @ f.tensor(P).T),
    "&": lambda f: (f.tensor(B) & f.tensor(~B), f.tensor(NUMBERS) & 1),
    "|": lambda f: f.tensor(B) | f.tensor(~B),
    "^": lambda f: f.tensor(NUMBERS) ^ 1,
    "~": lambda f: (~f.tensor(B), ~f.tensor(NUMBERS)),
    "-x": lambda f: -f.tensor(A),
    "abs": lambda f: abs(f.tensor(A)),
    "==": lambda f: f.tensor(NUMBERS) == 1,
    "!=": lambda f: f.tensor(NUMBERS) != 1,
    "<": lambda f: f.tensor(A) < f.tensor(V),
    "<=": lambda f: f.tensor(A) <= 0,
    ">": lambda f: f.tensor(A) > 0.5,
    ">=": lambda f: f.tensor(A) >= f.tensor(V),
    "+=": after(lambda f, x: x.__iadd__(f.tensor(V))),
    "-=": after(lambda f, x: x.__isub__(0.5)),
    "*=": after(lambda f, x: x.__imul__(f.tensor(V))),
    "/=": after(lambda f, x: x.__itruediv__(2)),
    "index": lambda f: (
        f.tensor(A)[1],
        f.tensor(A)[:, ::2],
        f.tensor(A)[..., None, -1],
        f.tensor(A)[[0, 2]],
        f.tensor(A)[f.tensor(NUMBERS), 1],
        f.tensor(A)[f.tensor([0, 1]), f.tensor([3, 2])],
    ),
    "assign": after(assigned),
}


@pytest.mark.parametrize(
    ("names", "calls"),
    [(FUNCTIONS, CALLS), (METHODS, METHOD_CALLS), (OPERATORS, OPERATOR_CALLS)],
    ids=["functions", "methods", "operators"],
)
def test_every_name_is_called(names, calls):
    assert set(names) == set(calls)


EVERY = {**CALLS, **{f"Tensor.{k}": v for k, v in METHOD_CALLS.items()}, **OPERATOR_CALLS}


@pytest.mark.table
@pytest.mark.parametrize("name", EVERY)
def test_it_gives_what_torch_gives(engine, name):
    same(EVERY[name](OURS), EVERY[name](THEIRS))


@pytest.mark.parametrize("name", TYPES)
def test_types_are_torch_s(engine, name):
    ours, theirs = (f.ones(2, dtype=getattr(f, name)) for f in (OURS, THEIRS))
    assert ours.dtype.name == name == str(theirs.dtype).removeprefix("torch.")
    assert (ours + ours).tolist() == (theirs + theirs).tolist()


@pytest.mark.parametrize("left", TYPES)
def test_two_types_make_that_of_torch(engine, left):
    for right in TYPES:
        ours, theirs = (
            f.ones(2, dtype=getattr(f, left)) * f.ones(2, dtype=getattr(f, right))
            for f in (OURS, THEIRS)
        )
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch."), (left, right)
    for number in (True, 2, 2.5):
        ours, theirs = (f.ones(2, dtype=getattr(f, left)) * number for f in (OURS, THEIRS))
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch."), (left, number)


def test_layers_optimisers_and_settings_are_there(engine):
    for place, names in ((gt.nn, NN), (gt.nn.Module, MODULE), (gt.optim, OPTIM), (gt, SETTINGS)):
        for name in names:
            assert callable(getattr(place, name)) or name in ("debug", "nn", "optim")
    assert isinstance(gt.ones(1).id, int)


@pytest.mark.parametrize("optimiser", OPTIM)
def test_a_network_of_every_layer_learns(engine, optimiser):
    gt.manual_seed(0)
    nn = gt.nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.look = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            self.words = nn.Embedding(5, 36)
            self.norm, self.drop = nn.LayerNorm(36), nn.Dropout(0.1)
            self.out = nn.Sequential(nn.Linear(36, 8), nn.GELU(), nn.Linear(8, 3))

        def forward(self, x, words):
            x = self.drop(self.norm(self.look(x).flatten(1) + self.words(words)))
            return self.out(x)

    model = Network()
    step = getattr(gt.optim, optimiser)(model.parameters(), lr=0.01)
    losses = []
    for _ in range(25):
        scores = model.train()(gt.tensor(IMAGE), gt.tensor([1, 4]))
        target = gt.tensor([0, 2])
        loss = nn.cross_entropy_loss(scores, target)
        loss = loss + nn.mse_loss(nn.sigmoid(scores), gt.ones(2, 3) * 0.5) * 0.1
        loss = loss + nn.binary_cross_entropy(nn.sigmoid(scores), gt.ones(2, 3) * 0.5) * 0.1
        loss = loss + (nn.relu(scores) + nn.tanh(scores)).mean() * 0.0
        loss.backward()
        step.step()
        model.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    again = Network()
    again.load_state_dict(model.state_dict())
    with gt.no_grad():
        shown = [one.eval()(gt.tensor(IMAGE), gt.tensor([1, 4])).data for one in (model, again)]
    np.testing.assert_array_equal(*shown)


def test_every_page_of_debugging_is_there(tmp_path, capsys):
    with gt.init(inline=True, devices="cpu", arena="8MiB", debug=True, debug_dir=tmp_path):
        assert (gt.ones(2) + 1).sum().item() == 4
        for name in DEBUG:
            call = getattr(gt.debug, name)
            if name.startswith("get_"):
                assert call() is not None
            elif name == "save_debug_trace":
                call(tmp_path / "trace.json")
                assert (tmp_path / "trace.json").exists()
            else:
                call()
        assert "sum" in capsys.readouterr().out


WRONG = {
    "shapes that do not stretch": (lambda: gt.ones(2, 3) + gt.ones(4), r"\(2, 3\) and \(4,\)"),
    "matrices that do not fit": (lambda: gt.ones(2, 3) @ gt.ones(2, 3), r"\(2, 3\) @ \(2, 3\)"),
    "a reshape": (lambda: gt.ones(2, 3).reshape(4, 2), r"\(2, 3\) has 6 .* \(4, 2\)"),
    "a cat": (lambda: gt.cat([gt.ones(2, 3), gt.ones(2, 4)]), r"\(2, 3\), \(2, 4\)"),
    "a stack": (lambda: gt.stack([gt.ones(2), gt.ones(3)]), r"\(2,\).*\(3,\)|\(3,\).*\(2,\)"),
    "an axis": (lambda: gt.ones(2, 3).sum(2), "dim=2 is out of range for 2 axes"),
    "an index": (lambda: gt.ones(2, 3)[2], "2"),
    "too many indices": (lambda: gt.ones(2)[0, 0], "too many"),
    "a loss": (lambda: gt.nn.binary_cross_entropy(gt.ones(2), gt.ones(3)), r"\(2,\).*\(3,\)"),
    "a layer": (lambda: gt.nn.Linear(3, 4)(gt.ones(2, 5)), r"\(2, 5\)"),
    "an expand": (lambda: gt.ones(2, 3).expand(4, 3), r"\(2, 3\).*\(4, 3\)"),
    "an assignment": (lambda: gt.ones(2, 3).__setitem__(0, gt.ones(4)), r"\(4,\)"),
    "in place": (lambda: gt.ones(3).__iadd__(gt.ones(2, 3)), r"\(2, 3\).*\(3,\)"),
    "a gradient's shape": (
        lambda: gt.ones(2, requires_grad=True).backward(gt.ones(3)),
        r"\(3,\) is not the tensor's \(2,\)",
    ),
    "a type without gradients": (
        lambda: gt.tensor([1, 2], dtype=gt.int64, requires_grad=True),
        "int64 has no gradient",
    ),
    "a type that tensors lack": (lambda: gt.tensor(np.ones(2, "complex64")), "complex64"),
    "a gelu of another name": (
        lambda: gt.gelu(gt.ones(2), approximate="erf"),
        "'erf' must be 'none' or 'tanh'",
    ),
    "a ragged list": (lambda: gt.tensor([[1, 2], [3]]), "inhomogeneous"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_error_is_raised_by_the_line_that_makes_it_and_names_shapes(engine, what, monkeypatch):
    from shmgpu.tensors import recorder

    def never(*_):
        raise AssertionError("something was computed to find that out")

    monkeypatch.setattr(recorder.Recorder, "_deliver", never)
    call, words = WRONG[what]
    with pytest.raises((ValueError, TypeError, IndexError, RuntimeError), match=words):
        call()
