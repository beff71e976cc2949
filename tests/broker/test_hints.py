"""What the caller is told who has misunderstood what a decorated function is given."""

from __future__ import annotations

import numpy as np
import pytest

import shmgpu


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


def test_a_none_that_is_not_the_session_is_told_as_it_is():
    with pytest.raises(shmgpu.RemoteError, match="NoneType") as caught:
        has_none_of_its_own(np.ones(2))
    assert "session" not in caught.value.message
