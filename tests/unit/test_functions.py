"""The decorator itself: what it makes, and what it refuses."""

from __future__ import annotations

import inspect
import pickle

import pytest

import shmgpu


@shmgpu.function(arrays="numpy")
def scale(helper, x, factor=2):
    """Multiply."""
    return x * factor


def test_a_decorated_function_shows_the_original_without_the_helper():
    assert scale.__name__ == "scale" and scale.__doc__ == "Multiply."
    assert str(inspect.signature(scale)) == "(x, factor=2)"
    assert scale.local(None, 3, factor=4) == 12
    assert "scale" in repr(scale)


def test_a_decorated_function_is_pickled_by_name(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__) or _module())
    assert pickle.loads(pickle.dumps(scale)) is scale


def _module():
    import types

    module = types.ModuleType(__name__)
    module.__dict__["scale"] = scale
    return module


@pytest.mark.parametrize(
    "settings",
    [
        {"arrays": "jax"},
        {"batch": 0},
        {"batch": "many"},
        {"timeout": -1},
        {"timeout": "soon"},
        {"hang_after": -2},
        {"pool": 3},
        {"idempotent": "perhaps"},
        {"pickle": "sometimes"},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_in_a_sentence(settings):
    with pytest.raises(shmgpu.ConfigError, match=r" "):
        shmgpu.function(**settings)(lambda helper: None)


@pytest.mark.parametrize("body", [lambda: None, lambda *, helper: None, lambda **named: None, 5])
def test_a_function_without_a_place_for_the_helper_is_refused(body):
    with pytest.raises(shmgpu.ConfigError, match=r" "):
        shmgpu.function(arrays="numpy")(body)


def test_a_function_that_a_helper_could_only_begin_is_refused_where_it_is_decorated():
    def parts(helper, x):
        yield x

    async def later(helper, x):
        return x

    with pytest.raises(shmgpu.ConfigError, match=r"parts is a generator .* return a list"):
        shmgpu.function(parts)
    with pytest.raises(shmgpu.ConfigError, match=r"write def later, .* later.aio\(\.\.\.\)"):
        shmgpu.function(later)


@pytest.mark.parametrize(
    "settings", [{"max_size": 0}, {"max_size": 1.5}, {"max_delay": -1}, {"max_delay": 100}], ids=str
)
def test_batches_out_of_range_are_refused_in_a_sentence(settings):
    with pytest.raises(shmgpu.ConfigError, match=r" "):
        shmgpu.Batch(**settings)


@pytest.mark.parametrize(
    "settings", [{"priority": 4}, {"priority": -1}, {"timeout": -1}, {"helpers": [64]}], ids=str
)
def test_options_out_of_range_are_refused_in_a_sentence(settings):
    with pytest.raises(shmgpu.ConfigError, match=r" "):
        scale.options(**settings)


def test_errors_form_one_tree():
    for name in shmgpu.errors.__all__:
        assert issubclass(getattr(shmgpu.errors, name), shmgpu.ShmError)
        assert getattr(shmgpu, name) is getattr(shmgpu.errors, name)
