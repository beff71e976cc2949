"""Programs written for GT run here with nothing but their import changed.

Small ones, in the spelling of its pages; where GT's and PyTorch's spelling differ, both work.
"""

from __future__ import annotations

import logging
import pkgutil
import pydoc

import numpy as np
import pytest

import shmgpu as gt
from shmgpu.tensors.tensor import ALSO, FUNCTIONS


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip where the table of operations has no such row."""
    missing = sorted(set(names) - set(FUNCTIONS))
    return pytest.mark.skipif(bool(missing), reason=f"no operation {missing}")


# ---- the first page ------------------------------------------------------------------------------


def test_whole_numbers_that_want_gradients_become_float32_and_a_matrix_is_seeded_with_ones(engine):
    a = gt.tensor([[1, 2], [3, 4]], requires_grad=True)
    b = gt.tensor([[5, 6], [7, 8]], requires_grad=True)
    c = a @ b
    c.backward()
    assert a.dtype == gt.float32
    assert a.grad.data.tolist() == [[11, 15], [11, 15]]
    assert b.grad.data.numpy().tolist() == [[4, 4], [6, 6]]


def test_an_integer_type_that_was_asked_for_has_no_gradient(engine):
    with pytest.raises(TypeError, match="int32 has no gradient"):
        gt.tensor([1, 2], dtype=gt.int32, requires_grad=True)


def test_data_is_an_array_that_also_answers_numpy_and_item(engine):
    total = gt.tensor([1, 2, 3, 4]) + gt.tensor([5, 6, 7, 8])
    assert isinstance(total.data, np.ndarray)
    assert type(total.data.numpy()) is np.ndarray
    assert total.data.numpy().tolist() == [6, 8, 10, 12]
    assert gt.tensor([3.5]).data.item() == gt.tensor([3.5]).item() == 3.5
    with pytest.raises(ValueError, match="read-only"):
        total.data[0] = 1


def test_creation_in_either_spelling_of_a_shape(engine):
    for make, value in ((gt.zeros, 0), (gt.ones, 1)):
        for made in (make(2, 3), make((2, 3))):
            assert made.shape == (2, 3) and made.dtype == gt.float32
            assert (made.data == value).all()
    assert gt.randn(1000, 1000).data.std() == pytest.approx(1, abs=0.01)


def test_a_slice_of_a_product_prints_its_elements(engine):
    c = gt.ones(10, 10) @ gt.ones(10, 10)
    assert str(c[:2, :2]).startswith("tensor([[10.")


def test_from_numpy_collects_gradients_when_asked(engine):
    x = gt.from_numpy(np.full((2, 2), 3, "float32"), requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.data.tolist() == [[6, 6], [6, 6]]


def test_operations_are_functions_and_methods(engine):
    a = gt.tensor([[-1.0, 4.0], [9.0, 16.0]])
    for name in ("relu", "mean", "sum", "exp", "sigmoid", "tanh", "transpose"):
        np.testing.assert_array_equal(getattr(gt, name)(a).data, getattr(a, name)().data)
    assert gt.mse_loss(a, gt.zeros(2, 2)).item() == pytest.approx((a.data**2).mean())
    assert a.transpose().data.tolist() == a.T.data.tolist() == [[-1, 9], [4, 16]]


@pytest.mark.table
@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *gt._TENSOR_NAMES} - {"Data", "Tensor"}))
def test_help_says_what_a_function_does_in_words_of_tensors(name):
    found = getattr(gt, name)
    text = pydoc.plain(pydoc.render_doc(found))
    prose = (found.__doc__ or "").partition("Example:")[0]
    assert prose.strip().endswith((".", '"``'))
    assert ALSO.get(name, name) in text
    assert "Node" not in text and "Operand" not in text


@pytest.mark.parametrize("name", "float16 bfloat16 float32 float64 int8 int32 int64 bool".split())
def test_types_have_names(engine, name):
    assert gt.ones(2, dtype=getattr(gt, name)).dtype.name == name


# ---- the later pages -----------------------------------------------------------------------------


def test_every_method_of_a_tensor(engine):
    t = gt.tensor(np.arange(1, 7, dtype="float32").reshape(2, 3))
    array = np.arange(1, 7, dtype="float32").reshape(2, 3)
    for name in ("exp", "log", "sqrt", "tanh", "sum", "mean"):
        np.testing.assert_allclose(getattr(t, name)().data, getattr(np, name)(array), rtol=1e-5)
    np.testing.assert_allclose(t.sigmoid().data, 1 / (1 + np.exp(-array)), rtol=1e-6)
    np.testing.assert_array_equal((t - 3).relu().data, np.maximum(array - 3, 0))
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(t.sum(axis=axis).data, array.sum(axis))
        np.testing.assert_array_equal(
            t.mean(axis=axis, keepdims=True).data, array.mean(axis, keepdims=True)
        )
    assert t.reshape(3, 2).shape == t.view(3, 2).shape == t.view((3, -1)).shape == (3, 2)
    assert t.unsqueeze(0).shape == (1, 2, 3)
    assert t.unsqueeze(0).squeeze().shape == t.unsqueeze(0).squeeze(0).shape == (2, 3)
    assert t.transpose(0, 1).shape == t.permute(1, 0).shape == t.T.shape == (3, 2)
    assert [one.shape for one in t.split(2, dim=1)] == [(2, 2), (2, 1)]
    assert [one.shape for one in t.split([1, 2], 1)] == [(2, 1), (2, 2)]
    assert [one.shape for one in t.chunk(2)] == [(1, 3), (1, 3)]
    assert t[0].dot(t[1]).item() == 32
    assert isinstance(t.id, int) and t.id != t.clone().id
    assert isinstance(t.numpy(), np.ndarray)
    assert t.detach().requires_grad is False
    assert t.requires_grad_(True).requires_grad is True
    assert t.clone().requires_grad is True
    assert gt.ones(2).zero_().data.tolist() == [0, 0]
    np.testing.assert_array_equal(gt.cat([t, t], axis=1).data, np.hstack([array, array]))


@needs("max")
def test_the_greatest_element_and_its_gradient(engine):
    t = gt.tensor([[1.0, 5.0], [2.0, 3.0]], requires_grad=True)
    t.max().backward()
    assert t.max().item() == 5
    assert t.grad.data.tolist() == [[0, 1], [0, 0]]


def test_gradients_flow_through_slices(engine):
    w = gt.randn(4, 5, requires_grad=True)
    (w[1:3, :2] * 2).sum().backward()
    expected = np.zeros((4, 5))
    expected[1:3, :2] = 2
    np.testing.assert_array_equal(w.grad.data, expected)


def test_a_weight_is_updated_in_place_as_gt_and_as_pytorch_write_it(engine):
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    for step in range(1, 3):
        (w * 3).sum().backward()
        if step == 1:
            w -= 0.1 * w.grad
        else:
            with gt.no_grad():
                w -= 0.1 * w.grad
        w.grad.zero_()
        assert w.requires_grad and w.is_leaf
        np.testing.assert_allclose(w.data, [1 - 0.3 * step, 2 - 0.3 * step], rtol=1e-6)
    (w * w).sum().backward()
    np.testing.assert_allclose(w.grad.data, 2 * w.data)


def test_an_update_that_gradients_would_flow_through_is_refused(engine):
    w = gt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="no_grad"):
        w -= w * 2


def test_no_grad_records_nothing_for_gradients(engine):
    with gt.no_grad():
        y = gt.ones(3, requires_grad=True) * 2
    assert not y.requires_grad


def test_the_training_loop_of_its_page(engine):
    from shmgpu.nn import SGD, Linear, Module

    class MLP(Module):
        def __init__(self):
            super().__init__()
            self.fc1 = Linear(8, 16)
            self.fc2 = Linear(16, 2)

        def forward(self, x):
            x = self.fc1(x).relu()
            return self.fc2(x)

    gt.manual_seed(1)
    model = MLP()
    optimizer = SGD(model.parameters(), lr=0.1)
    inputs, targets = gt.randn(32, 8), gt.ones(32, 2)
    losses = []
    for _ in range(20):
        loss = ((model(inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
    model.zero_grad()
    assert all(one.grad is None for one in model.parameters())


def test_nn_has_the_activations_and_the_losses(engine):
    x = gt.tensor([[-1.0, 2.0]])
    for name in ("relu", "sigmoid", "tanh"):
        np.testing.assert_array_equal(getattr(gt.nn, name)(x).data, getattr(gt, name)(x).data)
    assert gt.nn.mse_loss(x, x).item() == 0
    with pytest.raises(AttributeError, match=r"shmgpu\.nn"):
        gt.nn.no_such_operation


@needs("binary_cross_entropy", "cross_entropy")
def test_the_losses_of_classes(engine):
    half = gt.tensor([0.5, 0.5])
    assert gt.nn.binary_cross_entropy(half, gt.ones(2)).item() == pytest.approx(np.log(2))
    even = gt.zeros(3, 4)
    loss = gt.nn.cross_entropy_loss(even, gt.tensor([0, 1, 2]))
    assert loss.item() == pytest.approx(np.log(4))


# ---- settings ------------------------------------------------------------------------------------


def test_the_backend_is_chosen_by_name():
    with gt.init(inline=True, devices="cpu"):
        for name in ("numpy", "torch"):
            gt.set_backend(name, device="cpu")
            assert (gt.tensor([1.0]) + 1).item() == 2
        with pytest.raises(ValueError, match="torch and numpy"):
            gt.set_backend("jax")


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_broker_may_be_started_for_one_backend(backend, monkeypatch):
    from shmgpu.engine import functions as bodies

    asked = []
    engine_of = bodies.engine_of
    monkeypatch.setattr(
        bodies, "engine_of", lambda helper, name: asked.append(name) or engine_of(helper, name)
    )
    with gt.init(inline=True, backend=backend):
        assert (gt.ones(2) + 1).sum().item() == 4
        assert set(asked) == {backend}
        other = {"numpy": "torch", "torch": "numpy"}[backend]
        gt.set_backend(other)
        assert (gt.ones(2) + 1).sum().item() == 4
        assert list(dict.fromkeys(asked)) == [backend, other]


def test_how_much_is_logged_is_a_number_from_0_to_3():
    log = logging.getLogger("shmgpu")
    before = log.level
    try:
        for level, meant in enumerate(
            (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
        ):
            gt.set_verbosity(level)
            assert log.level == meant
        with pytest.raises(ValueError, match="0, 1, 2 or 3"):
            gt.set_verbosity(4)
    finally:
        log.setLevel(before)


def test_every_name_of_a_tensor_s_rooms_is_the_package_s_too():
    for name in gt._TENSOR_NAMES:
        assert getattr(gt, name).__name__
    with pytest.raises(AttributeError, match="no_such_name"):
        gt.no_such_name


def test_no_room_of_the_package_has_the_name_of_an_operation():
    modules = {room.name for room in pkgutil.iter_modules(gt.__path__)}
    assert not modules & ({*FUNCTIONS} | {*gt._TENSOR_NAMES})
    assert callable(gt.log)
