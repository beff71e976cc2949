"""tinygrad's names: sharded tensors compute what one device does, and lie where programs say."""

from __future__ import annotations

import numpy as np
import pytest
from meshes.conftest import broker_of

import shmgpu as gt
from shmgpu.distributed import CommDebugMode, all_reduce_algorithm
from shmgpu.tensors import tensor as tensors

RNG = np.random.default_rng(7)
X = RNG.standard_normal((11, 6)).astype("f4")
W = RNG.standard_normal((6, 4)).astype("f4")


@pytest.fixture(scope="module")
def tiny():
    """The module, whose methods all tensors have meanwhile, and no test of others."""
    before = dict(vars(tensors.Tensor))
    import shmgpu.compat.tinygrad as module
    from shmgpu.compat.tinygrad import methods

    methods.install()
    with broker_of(3):
        gt.zeros(1).item()  # what a broker's first messages open stays open
        module.Tensor.ones(3).shard(("helper:0", "helper:1"), 0).realize().numpy()
        yield module
    for name in methods.METHODS:
        if name in before:
            setattr(tensors.Tensor, name, before[name])
        else:
            delattr(tensors.Tensor, name)


def devices(tiny, count=2):
    return tuple(f"{tiny.Device.DEFAULT}:{number}" for number in range(count))


@pytest.mark.parametrize("axes", [(0, None), (None, 1), (1, 0), (None, None), (0, 0), (1, 1)])
def test_a_product_of_sharded_tensors_is_one_device_s(tiny, axes):
    """Eleven rows on three devices are not equal parts, nor are four columns."""
    x, w = (
        tiny.Tensor(one, requires_grad=True).shard(devices(tiny, 3), axis)
        for one, axis in zip((X, W), axes, strict=True)
    )
    y = (x @ w).relu()
    loss = y.mean().backward()
    np.testing.assert_allclose(y.numpy(), np.maximum(X @ W, 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss.item(), np.maximum(X @ W, 0).mean(), rtol=1e-4)
    assert (x.axis, w.axis) == axes and x.device == devices(tiny, 3)


def test_gradients_flow_to_what_was_sharded(tiny):
    x = tiny.Tensor(X, requires_grad=True)
    (x.shard(devices(tiny), 0) * 3).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(X, 3))


def test_a_tensor_says_where_its_pieces_are_and_is_sharded_once(tiny):
    t = tiny.Tensor.arange(10.0).shard(("HELPER:2", "helper:0", "helper:1"), axis=0)
    assert t.device == ("helper:2", "helper:0", "helper:1")
    assert t.axis == 0 and t.bounds == ((0, 4), (4, 7), (7, 10))
    for again in (t.shard, t.shard_):
        with pytest.raises(RuntimeError, match="can't shard a multi-device tensor"):
            again(devices(tiny), axis=0)
    assert t.shard_like(t) is t and tiny.Tensor.ones(10).shard_like(t).axis == 0
    alone = tiny.Tensor.ones(2)
    assert alone.device == tiny.Device.DEFAULT and alone.axis is None
    assert alone.shard(("helper:1",), axis=0) is alone and alone.shard_like(alone) is alone
    with pytest.raises(RuntimeError, match="not cut along an axis"):
        _ = alone.bounds
    with pytest.raises(ValueError, match="no device 'CUDA:0'"):
        alone.shard(("CUDA:0", "CUDA:1"))
    both = alone.to(devices(tiny))
    assert both.device == devices(tiny) and both.axis is None and alone.device == "helper"
    assert t.to("helper:0").axis is None
    np.testing.assert_array_equal(t.to("helper:0").numpy(), np.arange(10))
    placed = tiny.Tensor.zeros(2, 3, device=devices(tiny))
    assert placed.shape == (2, 3) and placed.device == devices(tiny)
    tiny.Device["helper:1"].synchronize()


def test_reshapes_and_slices_cross_the_boundaries_of_pieces(tiny):
    t = tiny.Tensor.arange(24.0).shard(devices(tiny), axis=0)
    np.testing.assert_array_equal(
        t.reshape(3, 8)[1:, 2:5].numpy(), np.arange(24.0).reshape(3, 8)[1:, 2:5]
    )
    rows = tiny.Tensor(X).shard(devices(tiny), axis=0)
    np.testing.assert_array_equal((rows[3:9] * 2).numpy(), X[3:9] * 2)


@pytest.mark.parametrize("variables", [{"RING": "2"}, {"RING": "0"}, {"ALL2ALL": "2"}, {}])
def test_each_way_to_reduce_gives_the_same_bits_and_is_counted(tiny, monkeypatch, variables):
    """Of three devices, whose order shows in the bits of a sum."""
    way = {"2": "ring", "0": "naive"}.get(
        variables.get("RING"), "all_to_all" if variables else None
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = (RNG.standard_normal((3, 50_000)) * [[1e8], [1], [1e-3]]).astype("f4")
    with all_reduce_algorithm("auto"), CommDebugMode() as met:
        x = tiny.Tensor(given).shard(devices(tiny, 3), axis=0)
        total = x.sum(axis=0).to(devices(tiny, 3))
        found = total.numpy()
    np.testing.assert_array_equal(found, given[0] + given[1] + given[2])
    assert met.get_algorithm_counts() == {way or "auto": 1}
    with pytest.raises(ValueError, match="there is no 'tree'"), all_reduce_algorithm("tree"):
        pass


def test_names_that_mean_something_else_there_do_so_here(tiny):
    t = tiny.Tensor([[1, 5, 3], [4, 2, 6]])
    assert (
        t.max(axis=1).tolist() == [5, 6] and t.min().item() == 1 and t.max(0).tolist() == [4, 5, 6]
    )
    assert (t > 2).mean().item() == pytest.approx(4 / 6)
    assert t.transpose().shape == (3, 2) and t.cat(t, dim=1).shape == (2, 6)
    assert t.stack(t).shape == (2, 2, 3) and t.cast(tiny.dtypes.float32).dtype is gt.float32
    x, w = tiny.Tensor(X), tiny.Tensor(W)
    np.testing.assert_allclose(x.dot(w).numpy(), X @ W, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        x.linear(w, tiny.Tensor.ones(4)).numpy(), X @ W + 1, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(x.softmax().sum(-1).numpy(), np.ones(11), rtol=1e-5)
    np.testing.assert_allclose(x.log_softmax().exp().numpy(), x.softmax().numpy(), rtol=1e-4)
    np.testing.assert_allclose(x.layernorm().mean(-1).numpy(), np.zeros(11), atol=1e-6)
    image = tiny.Tensor.arange(16.0).reshape(1, 1, 4, 4)
    assert image.max_pool2d().tolist() == [[[[5, 7], [13, 15]]]]
    assert image.avg_pool2d().tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert image.conv2d(tiny.Tensor.ones(2, 1, 3, 3), padding=1).shape == (1, 2, 4, 4)
    assert (
        x.dropout(0.5) is x and x.sequential([tiny.Tensor.relu, tiny.Tensor.exp]).min().item() >= 1
    )
    assert isinstance(x, tiny.Tensor) and tiny.Tensor.full((2,), 7).assign([1, 2]).tolist() == [
        1,
        2,
    ]
    low, high = tiny.Tensor.randint(50, low=3, high=5), tiny.Tensor.uniform(50, low=-2, high=-1)
    assert set(low.tolist()) == {3, 4} and high.shape == (50,) and high.max().item() < -1
    for make, end in (
        (tiny.Tensor.kaiming_uniform, (6 / (1 + 0.01**2) / 50) ** 0.5),
        (tiny.Tensor.glorot_uniform, (6 / (200 + 50)) ** 0.5),
        (tiny.Tensor.scaled_uniform, (200 * 50) ** -0.5),
    ):
        made = make(200, 5, 10).numpy()
        assert made.shape == (200, 5, 10)
        assert 0.99 * end < made.max() <= end and -end <= made.min() < -0.99 * end
    with pytest.raises(ValueError, match="windows have no gaps"):
        image.avg_pool2d(dilation=2)


def test_arguments_are_taken_as_they_stand_there(tiny):
    """By position, by ``axis`` and by ``dim``; each default is tinygrad's."""
    t, u = tiny.Tensor([[1, 5, 3], [4, 2, 6]]), tiny.Tensor([[2, 2, 2], [2, 2, 2]])
    assert t.max(u).tolist() == [[2, 5, 3], [4, 2, 6]]  # PyTorch's, of two tensors
    assert t.min(u).tolist() == [[1, 2, 2], [2, 2, 2]]
    assert t.max(dim=0).tolist() == [4, 5, 6] and t.min(1, keepdim=True).tolist() == [[1], [2]]
    assert t.mean(dim=0).tolist() == [2.5, 3.5, 4.5] and t.mean(1, True).shape == (2, 1)
    assert t.transpose(0, 1).tolist() == [[1, 4], [5, 2], [3, 6]] == t.transpose().tolist()
    x = tiny.Tensor(X)
    for name, power in (("softmax", 1), ("log_softmax", 0)):
        columns = getattr(x, name)(0)
        np.testing.assert_array_equal(getattr(x, name)(dim=0).numpy(), columns.numpy())
        shares = columns if power else columns.exp()
        np.testing.assert_allclose(shares.sum(0).numpy(), np.ones(6), rtol=1e-5)
        assert getattr(x, name)(0, gt.float64).dtype is gt.float64
    np.testing.assert_allclose(x.swish().numpy(), x.silu().numpy())
    np.testing.assert_allclose(x.linear(x[0]).numpy(), X * X[0], rtol=1e-6)
    np.testing.assert_allclose(x.layernorm(0).mean().item(), 0, atol=1e-6)
    image, weight = tiny.Tensor.arange(72.0).reshape(1, 2, 6, 6), tiny.Tensor.ones(2, 1, 2, 2)
    found = image.conv2d(weight, tiny.Tensor([0.0, 100.0]), 2, 3, 2, 1)
    wanted = gt.nn.conv2d(image, weight, gt.tensor([0.0, 100.0]), 3, 1, 2, 2)
    np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    assert image.max_pool2d(3, 1, 2, 1).tolist() == gt.nn.max_pool2d(image, 3, 1, 1, 2).tolist()
    assert image.avg_pool2d(3, 1, 1, 1).tolist() == gt.nn.avg_pool2d(image, 3, 1, 1).tolist()


def test_classes_are_counted_along_the_last_axis_however_many_there_are(tiny):
    scores, classes = RNG.standard_normal((4, 3, 5)).astype("f4"), RNG.integers(0, 5, (4, 3))
    classes[0, 0] = 2
    flat = scores.reshape(-1, 5)
    picked = -np.log(np.exp(flat) / np.exp(flat).sum(1, keepdims=True))[
        np.arange(12), classes.reshape(-1)
    ]
    for given, numbers in ((scores, classes), (flat, classes.reshape(-1))):
        x, y = tiny.Tensor(given), tiny.Tensor(numbers)
        np.testing.assert_allclose(
            x.sparse_categorical_crossentropy(y).item(), picked.mean(), rtol=1e-5
        )
        total = x.sparse_categorical_crossentropy(y, ignore_index=2, reduction="sum").item()
        kept = classes.reshape(-1) != 2
        np.testing.assert_allclose(total, picked[kept].sum(), rtol=1e-5)


def test_a_device_is_a_helper_by_its_name(tiny):
    assert tiny.Tensor.ones(2).device.type == "cpu"
    assert tiny.Tensor.ones(4).shard(devices(tiny), 0).device.type == "cpu"
    made = tiny.Tensor.zeros(2, 3, dtype=gt.float64, device="HELPER:1")
    assert made.dtype is gt.float64 and made.shape == (2, 3)
    assert tiny.Tensor.zeros((2, 3), device=("helper",)).shape == (2, 3)
    for device in ("cpu", ["cuda:0"]):
        with pytest.raises(ValueError, match="there is no device"):
            tiny.Tensor.zeros(2, device=device)
    assert tiny.Device["helper:1"] is tiny.Device
    with pytest.raises(ValueError, match="there is no device 'helper1'"):
        tiny.Device["helper1"]


def test_states_are_found_in_objects_and_loaded(tiny):
    class Net:
        def __init__(self):
            self.layers = [tiny.nn.Linear(6, 4), tiny.Tensor.relu]
            self.more = {"w": tiny.Tensor(W), "name": "net"}

    net = Net()
    state = tiny.nn.state.get_state_dict(net)
    assert list(state) == ["layers.0.weight", "layers.0.bias", "more.w"]
    assert tiny.nn.state.get_parameters(net)[2] is net.more["w"]
    tiny.nn.state.load_state_dict(net, {**state, "more.w": W * 2})
    np.testing.assert_array_equal(net.more["w"].numpy(), W * 2)
    tiny.nn.state.load_state_dict(net, {}, strict=False)
    with pytest.raises(KeyError, match=r"no 'layers\.0\.weight'"):
        tiny.nn.state.load_state_dict(net, {})
    with pytest.raises(ValueError, match="is of shape"):
        tiny.nn.state.load_state_dict(net, {**state, "more.w": X})


def test_a_jitted_function_is_the_function(tiny):
    calls = []

    class Counter:
        @tiny.TinyJit
        def step(self, x, by=1):
            calls.append(x)
            return x + by

    assert [Counter().step(one, by=2) for one in (1, 5)] == [3, 7] and calls == [1, 5]
    Counter.step.reset()


def train(tiny, sharded):
    """Losses, weights and running statistics of a small network, and who met."""
    tiny.Tensor.manual_seed(2)
    conv, norm, last = tiny.nn.Conv2d(1, 3, 3), tiny.nn.BatchNorm2d(3), tiny.nn.Linear(12, 4)
    layers = [conv, norm, tiny.Tensor.relu, lambda x: x.flatten(1), last]
    rng = np.random.default_rng(4)
    images, classes = rng.standard_normal((13, 1, 4, 4)).astype("f4"), rng.integers(0, 4, 13)
    x, y = tiny.Tensor(images), tiny.Tensor(classes)
    if sharded:
        assert x.shard_(devices(tiny), axis=0) is x and y.shard_(devices(tiny), axis=0) is y
        for one in tiny.nn.state.get_state_dict(layers).values():
            one.to_(devices(tiny))
    opt = tiny.nn.optim.AdamW(tiny.nn.state.get_parameters(layers), lr=0.02)
    assert len(opt.params) == 6 and len(opt.buffers) == 3
    losses = []
    for step in range(4):
        opt.lr = 0.02 / (step + 1)
        with tiny.Tensor.train():
            opt.zero_grad()
            loss = x.sequential(layers).sparse_categorical_crossentropy(y).backward()
            opt.step()
        losses.append(loss.item())
    assert not tiny.Tensor.training and opt.lr == 0.005
    with pytest.raises(RuntimeError, match="enabled to use the optimizer"):
        opt.step()
    learned = norm.running_var.numpy().copy()
    accuracy = (x.sequential(layers).argmax(axis=1) == y).mean().item()
    np.testing.assert_array_equal(norm.running_var.numpy(), learned)  # only training moves them
    return losses, conv.weight, norm.running_var, accuracy


def test_a_network_with_a_batch_norm_trains_as_on_one_device(tiny):
    losses, weight, variance, accuracy = train(tiny, sharded=False)
    alone = weight.numpy(), variance.numpy()
    with CommDebugMode() as met:
        found, weight, variance, also = train(tiny, sharded=True)
    np.testing.assert_allclose(found, losses, rtol=1e-4)
    np.testing.assert_allclose(weight.numpy(), alone[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(variance.numpy(), alone[1], rtol=1e-4)
    assert also == pytest.approx(accuracy) and weight.device == devices(tiny)
    # Each step at most: gradients and the loss, what the loss is divided by, the norm's three.
    assert 4 * 2 <= met.get_total_counts() <= 4 * 5 + 1


def test_tensors_made_by_hand_are_trained(tiny):
    w = tiny.Tensor.zeros(6, 4)
    opt = tiny.nn.optim.SGD([w], lr=1.0)
    with tiny.Tensor.train():
        (tiny.Tensor(X) @ w).sum().backward()
        assert opt.schedule_step() == [w]
    np.testing.assert_allclose(w.numpy(), -np.repeat(X.sum(0)[:, None], 4, 1), rtol=1e-4)
    assert type(tiny.nn.optim.Adam([w]).inner) is gt.optim.Adam
    with pytest.raises(ValueError, match="a tensor of a float type"):
        tiny.nn.optim.SGD([tiny.Tensor([1, 2])])


def test_what_examples_import_beside_it(tiny, monkeypatch, capsys):
    from shmgpu.compat.tinygrad import helpers

    monkeypatch.setenv("STEPS_OF_THIS", "7")
    assert helpers.getenv("STEPS_OF_THIS", 3) == 7 and helpers.getenv("NOT_SET", "x") == "x"
    assert helpers.colored("a", "red") == "\x1b[31ma\x1b[0m" and helpers.colored("a", None) == "a"
    told = helpers.trange(3, desc="steps")
    told.set_description("loss")
    assert list(told) == [0, 1, 2]
    tiny.GlobalCounters.reset()
