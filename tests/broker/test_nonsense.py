"""Every public keyword, given nonsense of every kind: it is taken, or refused in a sentence."""

from __future__ import annotations

import inspect
import math
import sys
import warnings

import numpy as np
import pytest

import shmgpu
from shmgpu import debug
from shmgpu.common import config
from shmgpu.serve import Tensor, model
from shmgpu.tensors import placement

launching = sys.modules["shmgpu.broker.launch"]  # the name is the function's

NONSENSE = {
    "None": None,
    "text": "nonsense",
    "no text": "",
    "bytes": b"x",
    "a zero byte": "\0",
    "a lone surrogate": "\ud800",
    "a fraction": 1.5,
    "a negative number": -1,
    "a huge number": 10**400,
    "NaN": math.nan,
    "infinity": math.inf,
    "True": True,
    "an object": object(),
    "a type": int,
    "a list": [],
    "a list of nothing": [None],
    "a list of text": ["a"],
    "a tuple of huge numbers": (10**400,),
    "a dictionary": {"x": "y"},
    "a set": {1},
    "an array": np.array([1, 2]),
    "a function": lambda *_: None,
}


class Begun(Exception):
    """All was taken, and processes would be started now."""


@pytest.fixture
def nothing_starts(monkeypatch, tmp_path):
    """Whatever would start a broker, or look for one, says so instead."""

    def begin(*_, **__):
        raise Begun

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHMGPU_SOCKET", str(tmp_path / "none.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(launching.core, "run", begin)
    monkeypatch.setattr("shmgpu.attach.spawn.start", begin)
    monkeypatch.setattr("shmgpu.attach.spawn.start_private", begin)
    yield
    shmgpu.shutdown()
    debug.disable()


def keywords(target):
    """The names of what may be given by keyword."""
    return [
        one.name
        for one in inspect.signature(target).parameters.values()
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]


def tried(target, **given):
    """Call it: whatever is raised is a sentence of ours; of a tensor's, a ValueError as torch's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = target(**given)
    except Begun:
        return None
    except (shmgpu.ShmError, ValueError) as error:
        assert type(error) is ValueError or isinstance(error, shmgpu.ShmError), repr(error)
        assert " " in str(error) and len(str(error)) > 20, error
        return None
    return result


STARTS = {
    "launch": (shmgpu.launch, {"main": lambda rank: None}),
    "init": (shmgpu.init, {"devices": "cpu"}),
    "connect": (shmgpu.connect, {}),
    "claim": (shmgpu.claim, {}),
    "ensure": (shmgpu.ensure, {}),
    "gpu_workers": (placement.gpu_workers, {"n": 1}),
    "set_backend": (placement.set_backend, {"name": "numpy"}),
    "debug.enable": (debug.enable, {}),
}
PAIRS = [(name, word) for name, (target, _) in STARTS.items() for word in keywords(target)]


@pytest.mark.table
@pytest.mark.parametrize(("name", "word"), PAIRS)
def test_what_starts_or_joins_a_broker_refuses_nonsense_in_a_sentence(nothing_starts, name, word):
    target, given = STARTS[name]
    for nonsense in NONSENSE.values():
        tried(target, **{**given, word: nonsense})
        shmgpu.shutdown()


def test_what_a_refused_start_was_given_holds_for_nobody(nothing_starts):
    with pytest.raises(shmgpu.ConfigError, match="debug_dir"):
        shmgpu.init(debug_dir="\ud800", devices="cpu")
    with pytest.raises(shmgpu.ConfigError, match="window"):
        shmgpu.init(debug_dir="records", tick_rate_ms=7, window="wide", devices="cpu")
    with pytest.raises(Begun):
        shmgpu.init(debug_dir="records", devices="cpu")
    assert config.given == {}


def plain(helper, x):
    return x


def of_models(**given):
    return model(**given)(plain)


DECORATORS = {
    "function": (shmgpu.Function, {"body": plain}),
    "model": (
        of_models,
        {"inputs": [Tensor("x", "FP32", (-1, 2))], "outputs": [Tensor("y", "FP32", (-1, 2))]},
    ),
    "Tensor": (Tensor, {"name": "x", "datatype": "FP32", "shape": (2,)}),
    "Batch": (shmgpu.Batch, {}),
    "Declared": (shmgpu.Declared, {"shape": 3}),
}
WORDS = [
    (name, word)
    for name, (target, _) in DECORATORS.items()
    for word in keywords(model if name == "model" else target)
]


@pytest.mark.parametrize(("name", "word"), WORDS)
def test_a_declaration_refuses_nonsense_in_a_sentence(name, word):
    target, given = DECORATORS[name]
    for nonsense in NONSENSE.values():
        tried(target, **{**given, word: nonsense})


@shmgpu.function(arrays="numpy")
def echo(helper, x):
    return x


@pytest.fixture
def running():
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        yield


def test_settings_of_a_call_refuse_nonsense_in_a_sentence(running):
    x = shmgpu.arena.zeros(4)
    for word in keywords(echo.options):
        for nonsense in NONSENSE.values():
            bound = tried(echo.options, **{word: nonsense})
            if bound is not None:
                tried(bound, x=x)
    for word in ("in_flight", "progress"):
        for nonsense in NONSENSE.values():
            results = tried(lambda **given: list(echo.map([x, x], **given)), **{word: nonsense})
            assert results is None or len(results) == 2
    assert echo(x).tolist() == [0] * 4


MEMORY = {
    "arena.empty": (shmgpu.arena.empty, {"shape": 3}),
    "arena.zeros": (shmgpu.arena.zeros, {"shape": 3}),
    "arena.array": (shmgpu.arena.array, {"data": [1, 2]}),
    "shm_malloc": (shmgpu.shm_malloc, {}),
    "shm_free": (shmgpu.shm_free, {}),
    "frombuffer": (shmgpu.frombuffer, {"block": bytearray(64)}),
    "shm_send_msg": (shmgpu.shm_send_msg, {"function": echo, "params": 64}),
    "write_trace": (shmgpu.write_trace, {"path": "trace.json"}),
    "status_name": (shmgpu.status_name, {}),
    "status_text": (shmgpu.status_text, {}),
}


@pytest.mark.table
@pytest.mark.parametrize("name", MEMORY)
def test_what_takes_and_gives_memory_refuses_nonsense_in_a_sentence(
    running, name, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    target, given = MEMORY[name]
    for word in keywords(target):
        for nonsense in NONSENSE.values():
            tried(target, **{**given, word: nonsense})
    assert echo(np.ones(2)).tolist() == [1, 1]
