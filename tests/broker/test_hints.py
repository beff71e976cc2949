"""What the caller is told who has misunderstood what a decorated function is given."""

from __future__ import annotations

import collections
import pathlib

import numpy as np
import pytest

import shmgpu
from shmgpu.common import devices, wording


@shmgpu.function(arrays="numpy")
def lacks(x):
    return 2 * x


@shmgpu.function(arrays="numpy", batch=8)
def lacks_in_batches(x):
    return 2 * x


@shmgpu.function(arrays="numpy")
def lacks_and_takes_two(x, y=1):
    return x * y


@shmgpu.function(arrays="numpy")
def has(helper, x):
    return x.no_such_thing


@shmgpu.function(arrays="numpy")
def calls_wrongly(helper, x):
    return _two(x)


def _two(x, y):
    return x + y


@shmgpu.function(arrays="numpy")
def uses_its_session(helper, x):
    return helper.session.run(x)


@shmgpu.function(arrays="numpy")
def hands_its_session_on(helper, x):
    return _run(helper.session, x)


def _run(model, x):
    return model.run(x)


@shmgpu.function(arrays="numpy")
def has_none_of_its_own(helper, x):
    return _run(None, x)


@pytest.fixture(scope="module", autouse=True)
def running():
    with shmgpu.init(inline=True, arena="1MiB"):
        yield


@pytest.mark.parametrize("function", [lacks, lacks_in_batches])
def test_a_function_without_a_parameter_for_the_helper_is_told_how_to_write_one(function):
    with pytest.raises(shmgpu.RemoteError) as caught:
        function(np.ones((1, 2)))
    told = f"leave out: if x is an argument, write def {function.name}(helper, x))"
    assert told in caught.value.message


def test_so_is_one_that_takes_the_helper_for_an_argument():
    with pytest.raises(shmgpu.RemoteError, match=r"write def lacks_and_takes_two\(helper, x, y\)"):
        lacks_and_takes_two(np.ones(2))


def test_who_passes_too_many_arguments_is_told_that_the_helper_counts():
    with pytest.raises(shmgpu.RemoteError, match=r"given \(the helper counts, .* they pass x\)"):
        has(np.ones(2), 1)


@pytest.mark.parametrize("function", [has, calls_wrongly])
def test_errors_of_the_function_itself_are_told_as_they_are(function):
    with pytest.raises(shmgpu.RemoteError) as caught:
        function(np.ones(2))
    assert "helper" not in caught.value.message


@pytest.mark.parametrize("function", [uses_its_session, hands_its_session_on])
def test_who_uses_a_session_that_was_never_made_is_told_what_makes_one(function):
    with pytest.raises(shmgpu.RemoteError, match=r"helper.session is None: .* called load"):
        function(np.ones(2))


def test_who_forgot_to_name_the_session_function_that_stands_beside_is_told_its_name():
    beside = {"shmgpu": shmgpu, "__name__": "elsewhere"}
    exec(
        "def weights(helper): return 2\n"
        "@shmgpu.function(arrays='numpy')\n"
        "def scale(helper, x): return helper.session * x\n",
        beside,
    )
    with pytest.raises(shmgpu.RemoteError, match=r"take it where they are told session=weights"):
        beside["scale"](np.ones(2))


@shmgpu.function(arrays="numpy")
def gives(helper, which):
    return {"set": {1}, "counter": collections.Counter(), "path": pathlib.Path()}[which]


@shmgpu.function(arrays="numpy")
def raises_bad_params(helper):
    raise shmgpu.BadParams("mine")


def test_a_result_that_cannot_be_carried_is_no_exception_of_the_functions():
    for which, told in (("set", "a set"), ("counter", "a Counter would lose its type")):
        with pytest.raises(shmgpu.RemoteError) as caught:
            gives(which)
        assert str(caught.value).startswith(f"what the function returned is refused: {told}")
        assert "raised" not in str(caught.value) and "Traceback" not in str(caught.value)
    with pytest.raises(shmgpu.RemoteError, match=r"the function raised shmgpu\.errors\.BadParams"):
        raises_bad_params()


def test_map_takes_iterables_and_devices_have_numbers_from_0():
    with pytest.raises(shmgpu.ConfigError, match=r"gives.map\(\) takes an iterable .* 5 is none"):
        gives.map(5)
    with pytest.raises(shmgpu.ConfigError, match="'-1' is no device"):
        devices.name_of(-1)


def test_a_type_is_named_with_its_article():
    assert wording.kind_of(collections.OrderedDict()) == "an OrderedDict"
    assert [wording.with_article(name) for name in ("OrderedDict", "ndarray", "set")] == [
        "an OrderedDict", "an ndarray", "a set",
    ]  # fmt: skip
    assert [wording.counted(n, "child", "children") for n in (0, 1, 1000)] == [
        "0 children", "1 child", "1,000 children",
    ]  # fmt: skip


def test_a_none_that_is_not_the_session_is_told_as_it_is():
    with pytest.raises(shmgpu.RemoteError, match="NoneType") as caught:
        has_none_of_its_own(np.ones(2))
    assert "session" not in caught.value.message
