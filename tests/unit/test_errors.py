"""Errors: what they carry and say, here and in another process."""

from __future__ import annotations

import copy
import pickle

import pytest

from shmgpu import errors

MADE = [
    errors.ConfigError("a"),
    errors.SessionError("a", 3, "Traceback\n"),
    errors.ArenaFull("a", 1, 2, 3, 4),
    errors.RemoteError("ValueError", "too few", "Traceback\n"),
    errors.BroadcastError("ValueError", "too few", "Traceback\n", 3, True),
    errors.ChildError("child 3 failed", 3, -9, "Traceback\n"),
    errors.BadParams("a"),
]


@pytest.mark.parametrize("error", MADE, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(
    "carried", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"]
)
def test_an_error_is_the_same_elsewhere(error, carried):
    found = carried(error)
    assert type(found) is type(error) and found is not error
    assert vars(found) == vars(error) and found.args == error.args and str(found) == str(error)


def test_what_an_arena_says_of_itself_has_names():
    error = errors.ArenaFull("a", 1, 2, 3, 4)
    assert (error.asked_bytes, error.free_bytes) == (1, 2)
    assert (error.largest_bytes, error.capacity_bytes) == (3, 4)
    assert isinstance(error, MemoryError) and str(error) == "a"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            errors.RemoteError("ValueError", "no"),
            "the function raised ValueError in the helper: no",
        ),
        (
            errors.RemoteError("ValueError", "no", "Traceback\n  line\n\n"),
            "the function raised ValueError in the helper: no\n\nIn the helper:\nTraceback\n  line",
        ),
        (
            errors.RemoteError("shmgpu.errors.BadParams", "it is a set"),
            "what the function returned is refused: it is a set",
        ),
        (
            errors.RemoteError("shmgpu.errors.BadParams", "it is a set", "Traceback"),
            "the function raised shmgpu.errors.BadParams in the helper: it is a set\n\n"
            "In the helper:\nTraceback",
        ),
        (
            errors.BroadcastError("ValueError", "no", helper=3),
            "the function raised ValueError in helper 3: no (nothing has changed, and that helper "
            "is replaced)",
        ),
        (
            errors.BroadcastError("ValueError", "no", helper=3, has_effect=True),
            "the function raised ValueError in helper 3: no (the broadcast stands, and the helper "
            "that replaces this one gets it before it serves)",
        ),
        (errors.ChildError("child 3 failed", 3), "child 3 failed"),
        (
            errors.ChildError("child 3 failed", 3, 1, "Traceback\n"),
            "child 3 failed\n\nIn child 3:\nTraceback",
        ),
    ],
)
def test_an_error_says_what_happened_and_where(error, said):
    assert str(error) == said


class Own(Exception):
    class Inner(Exception):
        pass


def test_an_errors_type_is_known_by_its_name_and_not_by_its_base(monkeypatch):
    assert errors.RemoteError("ValueError", "").matches(ValueError)
    assert not errors.RemoteError("ValueError", "").matches(Exception)
    assert errors.remote_name(Own.Inner) == f"{__name__}.Own.Inner"
    monkeypatch.setattr(Own, "__module__", "__main__")  # which is another one in each process
    assert errors.remote_name(Own) == "Own"
