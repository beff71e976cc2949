"""The decorator itself: what it makes, and what it refuses."""

from __future__ import annotations

import inspect
import operator
import pickle
import subprocess
import sys
import types

import pytest

import shmgpu
from shmgpu import function_table
from shmgpu.errors import ConfigError


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


def test_a_batch_may_be_of_one_row():
    assert shmgpu.Batch(max_size=1).max_size == 1


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


def test_a_map_takes_what_can_be_iterated():
    with pytest.raises(ConfigError, match=r"scale.map\(\) needs arguments: pass an iterable"):
        scale.map()
    with pytest.raises(ConfigError, match="takes an iterable for each argument, and 5 is none"):
        scale.map([1, 2], 5)


def test_a_body_that_is_named_is_found_called_and_carried_by_its_name():
    named = function_table.NamedBody("operator:add")
    assert named(2, 3) == 5 == pickle.loads(pickle.dumps(named))(2, 3)
    assert pickle.loads(pickle.dumps(named)).find() is operator.add


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ({}, ""),
        ({"make": "helper"}, "make"),
        ({"make": "helper", "load": "helper"}, "load"),
        ({"load": "helper, more"}, ""),
        ({"load": "other", "make": "helper"}, "make"),
    ],
)
def test_what_could_make_a_session_stands_beside_a_function(names, found):
    there = {"__name__": "beside", "max": max, "number": 5, "foreign": scale.local}
    for name, parameters in {"work": "helper, x", **names}.items():
        exec(f"def {name}({parameters}): pass", there)
    assert function_table.session_maker_beside(there["work"]) == found
    assert function_table.session_maker_beside(max) == ""


def test_a_function_that_is_carried_again_is_the_one_that_is_known(monkeypatch):
    known = types.SimpleNamespace(known_as="m:f")
    monkeypatch.setattr(function_table, "by_row", {1: known})
    made = types.SimpleNamespace
    assert function_table._remake(None, "m:f", None, {}) is known
    other = function_table._remake(lambda body, **told: made(body=body, **told), "m:g", 5, {"x": 1})
    assert (other.known_as, other.body, other.x) == ("m:g", 5, 1)


NAMED = """
import sys
import shmgpu
from shmgpu.function_table import NamedBody
from shmgpu.functions import Function

double = Function(NamedBody("far:double"), arrays="numpy")

if __name__ == "__main__":
    with shmgpu.init(devices="cpu", arena="1MiB"):
        print(double(21), double(4), double.submit(5).result(), "far" in sys.modules)
    with shmgpu.init(inline=True, devices="cpu", arena="1MiB"):
        print(double(21))
"""


def test_a_body_that_is_named_is_imported_where_it_runs_and_not_where_it_is_called(tmp_path):
    (tmp_path / "far.py").write_text("def double(helper, x):\n    return 2 * x\n")
    (tmp_path / "program.py").write_text(NAMED)
    command = [sys.executable, str(tmp_path / "program.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["42 8 10 False", "42"], ran.stderr


ENGINE = """
import sys
import shmgpu as gt
if __name__ == "__main__":
    with gt.init(devices="cpu", arena="8MiB", backend="numpy"):
        print((gt.ones(2) + 1).data.tolist())
        print([name for name in sys.modules if name.startswith("shmgpu.engine")])
"""


def test_a_child_that_computes_with_tensors_imports_nothing_of_the_engine(tmp_path):
    (tmp_path / "program.py").write_text(ENGINE)
    command = [sys.executable, str(tmp_path / "program.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.stdout.splitlines() == ["[2.0, 2.0]", "[]"], ran.stderr
