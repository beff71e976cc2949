"""A module finds its parts as torch's does: names, hooks, element types, states."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import shmgpu as gt
from shmgpu import nn


def made(package, ones):
    """The same model of either library: a part that is shared, buffers of both kinds."""

    class Model(package.Module):
        def __init__(self):
            super().__init__()
            self.first = package.Linear(4, 4)
            self.rest = package.Sequential(package.ReLU(), package.Linear(4, 4, bias=False))
            self.again = self.first
            self.tied = package.Linear(4, 4)
            self.tied.weight = self.first.weight
            self.register_buffer("scale", ones(4))
            self.register_buffer("scratch", ones(2), persistent=False)
            self.register_buffer("none", None)
            self.register_parameter("missing", None)

        def forward(self, x, times=1):
            return self.rest(self.first(x)) * self.scale * times

    return Model()


@pytest.fixture
def pair():
    with gt.init(inline=True, arena="16MiB", threads=1):
        yield made(nn, gt.ones), made(torch.nn, torch.ones)


def names(found):
    return [name for name, _ in found]


def test_parts_have_torchs_names_and_what_is_shared_is_named_once(pair):
    for call in (
        lambda m: names(m.named_parameters()),
        lambda m: names(m.named_parameters("model")),
        lambda m: names(m.named_parameters(recurse=False)),
        lambda m: names(m.named_parameters(remove_duplicate=False)),
        lambda m: names(m.named_buffers()),
        lambda m: names(m.named_modules()),
        lambda m: names(m.named_modules(prefix="model", remove_duplicate=False)),
        lambda m: names(m.named_children()),
        lambda m: len(list(m.parameters())) + len(list(m.buffers())) + len(list(m.children())),
        lambda m: list(m.state_dict()),
        lambda m: list(m.state_dict(prefix="model.")),
        lambda m: (m.none, m.missing, type(m.get_submodule("rest.1")).__name__),
        lambda m: (m.get_submodule("") is m, m.get_parameter("rest.1.weight") is m.rest[1].weight),
        lambda m: m.get_buffer("scale") is m.scale,
        lambda m: repr(m),
    ):
        ours, theirs = map(call, pair)
        assert ours == theirs


def test_a_parameter_is_not_lost_by_setting_another_tensor(engine):
    layer = nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"Linear\.weight is a parameter.*wrap it in nn\.Parameter"):
        layer.weight = gt.ones(1, 2)
    layer.weight = nn.Parameter(gt.ones(1, 2))
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert layer(gt.ones(1, 2)).item() == 2


def test_a_part_is_registered_under_a_free_name_without_a_dot(pair):
    model = pair[0]
    for call in (
        lambda name: model.register_buffer(name, gt.ones(1)),
        lambda name: model.register_parameter(name, None),
        lambda name: model.add_module(name, nn.ReLU()),
    ):
        for name in ("forward", "a.b", ""):
            with pytest.raises(KeyError, match="cannot name a part"):
                call(name)
    model.add_module("last", nn.ReLU())
    model.register_module("gone", None)
    assert model.get_submodule("last") is model.last
    with pytest.raises(AttributeError, match=r"no module 'rest\.7'"):
        model.get_submodule("rest.7")
    with pytest.raises(AttributeError, match="no parameter 'missing'"):
        model.get_parameter("missing")
    assert "first" in dir(model)
    del model.last
    assert not hasattr(model, "last")


def test_hooks_see_and_change_what_goes_in_and_comes_out(pair):
    def run(model, x):
        seen = []
        handles = [
            model.register_forward_pre_hook(lambda m, args: seen.append("in") or args[0] * 2),
            model.register_forward_hook(lambda m, args, out: seen.append("out")),
            model.register_forward_hook(lambda m, args, out: out + 1, prepend=True),
            model.register_forward_hook(
                lambda m, args, kwargs, out: seen.append(sorted(kwargs)), with_kwargs=True
            ),
            model.register_forward_pre_hook(
                lambda m, args, kwargs: (args, {"times": 3}), with_kwargs=True
            ),
        ]
        with_hooks = model(x, times=2)
        for handle in handles:
            handle.remove()
        return seen, with_hooks.tolist(), model(x).tolist()

    ours, theirs = pair
    ours.load_state_dict(theirs.state_dict())
    x = np.arange(8, dtype="float32").reshape(2, 4)
    found, want = run(ours, gt.tensor(x)), run(theirs, torch.tensor(x))
    assert found[0] == want[0] == ["in", "out", ["times"]]
    np.testing.assert_allclose(found[1], want[1], rtol=1e-5)
    np.testing.assert_allclose(found[2], want[2], rtol=1e-5)


def test_a_module_changes_its_element_type_and_stays_itself(pair):
    model = pair[0]
    weight = model.first.weight
    model(gt.ones(2, 4)).sum().backward()
    assert model.to("float64", device="cpu") is model
    assert model.first.weight is weight and weight.requires_grad and weight.is_leaf
    assert weight.dtype.name == weight.grad.dtype.name == "float64"
    out = model(gt.ones(2, 4, dtype="float64"))
    out.sum().backward()
    assert out.dtype.name == "float64"
    for call, kind in (("half", "float16"), ("bfloat16", "bfloat16"), ("float", "float32")):
        assert getattr(model, call)().scale.dtype.name == kind
    assert model.double().cpu().cuda(0).to(gt.ones(1)).scale.dtype.name == "float32"
    assert model.to(torch.device("cpu")).to(torch.float64).scale.dtype.name == "float64"
    before = model.scale.detach()
    model.float()
    model.scale.fill_(3.0)
    assert before.dtype.name == "float64" and (before.data == 1).all()
    before += 4
    assert (before.data == 5).all() and (model.scale.data == 3).all()
    with pytest.raises(TypeError, match="not of int64"):
        model.to("int64")
    with pytest.raises(TypeError, match="none of its arguments"):
        model.to(memory="contiguous")


def test_freezing_and_modes_reach_all_parts(pair):
    model = pair[0]
    model.requires_grad_(False)
    assert not any(one.requires_grad for one in model.parameters())
    assert len(list(model.parameters())) == len(list(pair[1].parameters()))
    model.requires_grad_()
    seen = []
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen[-1] == "Model" and seen.count("Linear") == 3
    model(gt.ones(2, 4)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert (model.first.weight.grad.data == 0).all()
    model.zero_grad()
    assert model.first.weight.grad is None
    assert not model.eval().rest[0].training and model.train().rest[0].training


def test_a_state_is_loaded_as_torch_loads_it(pair):
    ours, theirs = pair
    state = theirs.state_dict()
    found, want = ours.load_state_dict(state), theirs.load_state_dict(state)
    assert (found.missing_keys, found.unexpected_keys) == ([], []) == tuple(want)
    assert repr(found) == repr(want) == f"{found}"
    wrong = {**state, "more": torch.ones(1)}
    del wrong["tied.bias"]
    found, want = (m.load_state_dict(wrong, strict=False) for m in pair)
    assert found == tuple(want) and repr(found) == repr(want).removeprefix("_")
    told = []
    for model in pair:
        with pytest.raises(RuntimeError) as caught:
            model.load_state_dict({**wrong, "scale": torch.ones(3)})
        told.append(str(caught.value).replace("torch.Size([3])", "(3,)"))
    assert told[0] == told[1].replace("torch.Size([4])", "(4,)")
    doubled = {name: one.double() for name, one in state.items()}
    ours.load_state_dict(doubled)
    assert ours.first.weight.dtype.name == "float32"
    ours.load_state_dict(doubled, assign=True)
    assert ours.first.weight.dtype.name == "float64" and ours.first.weight.requires_grad
    assert not ours.scale.requires_grad


def test_a_copy_of_a_module_has_parameters_of_its_own(pair):
    model = pair[0]
    twin = copy.deepcopy(model)
    with gt.no_grad():
        twin.first.weight.zero_()
    assert model.first.weight.data.any() and twin.tied.weight is twin.first.weight


def test_functions_have_torchs_signatures(engine):
    import shmgpu.nn.functional as F

    x = gt.tensor(np.array([[1.0, -2.0, 3.0, -4.0]], "float32"))
    theirs = torch.tensor(np.array(x.data))
    for call in (
        lambda f, x: f.leaky_relu(x, 0.2, False),
        lambda f, x: f.elu(x, alpha=2.0),
        lambda f, x: f.threshold(x, 0.5, 20.0),
        lambda f, x: f.softshrink(x, 1.5),
        lambda f, x: f.hardshrink(x),
        lambda f, x: f.normalize(x, dim=1),
        lambda f, x: f.normalize(x, 1.0, -1),
        lambda f, x: f.pairwise_distance(x, x * 2),
        lambda f, x: f.layer_norm(x, (4,)),
        lambda f, x: f.cosine_similarity(x, x * x),
        lambda f, x: f.dropout(x, 0.5, False),
        lambda f, x: f.alpha_dropout(x, 0.5, False),
        lambda f, x: f.batch_norm(x, x[0], x[0] * x[0]),
    ):
        np.testing.assert_allclose(call(F, x).data, call(torch.nn.functional, theirs), rtol=1e-5)
    assert F.one_hot(gt.tensor([0, 2])).shape == (2, 3)
    drawn = F.gumbel_softmax(gt.zeros(200, 4), hard=True)
    assert (drawn.data.sum(1) == 1).all() and (drawn.data.sum(0) > 20).all()
    many = F.alpha_dropout(gt.randn(100, 100), 0.3, True)
    assert abs(float(many.mean())) < 0.1 and abs(float(many.var()) - 1) < 0.1
    assert "relu" in dir(F) and not hasattr(F, "no_such_function")
    with pytest.raises(ValueError, match="give running_mean"):
        F.batch_norm(x, None, None)
