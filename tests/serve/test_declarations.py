"""What may be declared of a model, up to each bound, and what is refused just beyond it."""

from __future__ import annotations

import contextlib
import sys
import types

import numpy as np
import pytest

from shmgpu.errors import ConfigError
from shmgpu.serve import QueuePolicy, Tensor
from shmgpu.serve.models import loading, preprocessing, queue_policy
from shmgpu.serve.models.declaration import MOST_DELAY_MS, MOST_ROWS, Model
from shmgpu.serve.protocol.metadata import TensorMetadata

X, ROWS, TEXT = Tensor("x", "FP32", (2,)), Tensor("x", "FP32", (-1, 2)), Tensor("t", "BYTES", (-1,))
TORCH = {"inputs": [ROWS], "outputs": [ROWS], "arrays": "torch", "max_batch_size": 1}


def same(helper, x):
    return x


def yields(helper, x):
    yield x


def with_state(helper, state, x):
    return x


def declared(**said):
    return Model(**{"body": same, "inputs": [X], "outputs": [X], **said})


def policies(**said):
    return {1: QueuePolicy(**said)}


DECLARED = [
    ({"max_batch_size": 0}, ""),
    ({"max_batch_size": MOST_ROWS, "inputs": [ROWS], "outputs": [ROWS]}, ""),
    ({"max_batch_size": MOST_ROWS + 1}, f"must be rows, 0 to {MOST_ROWS}"),
    ({"max_batch_size": -1}, f"must be rows, 0 to {MOST_ROWS}"),
    ({"max_batch_size": 1.0}, "must be rows"),
    ({"max_batch_size": 1}, r"axis 0 of 'x' is its rows: write shape=\(-1, \.\.\.\), not \(2,\)"),
    ({"max_batch_size": 1, "inputs": [ROWS]}, "axis 0 of 'x' is its rows"),
    ({"max_batch_size": 1, "inputs": [Tensor("x", "FP32", ())]}, r"not \(\)"),
    ({"max_delay_ms": 0}, ""),
    ({"max_delay_ms": MOST_DELAY_MS}, ""),
    ({"max_delay_ms": MOST_DELAY_MS + 1}, f"must be 0 to {MOST_DELAY_MS}"),
    ({"max_delay_ms": -1}, f"must be 0 to {MOST_DELAY_MS}"),
    ({"max_delay_ms": float("nan")}, f"must be 0 to {MOST_DELAY_MS}"),
    ({"arrays": "torch"}, ""),
    ({"arrays": "jax"}, 'must be "numpy" or "torch"'),
    ({"inputs": [X, X]}, "two inputs have the same name"),
    ({"outputs": [X, X]}, "two outputs have the same name"),
    ({"inputs": [X, "y"]}, "inputs= must list Tensors, at least one"),
    ({"outputs": []}, "outputs= must list Tensors, at least one"),
    ({"prepare": "m:f", "prepared": [X]}, ""),
    ({"prepare": "m:f"}, "prepared= must list Tensors"),
    ({"prepare": "m:f", "prepared": [X, X]}, "two prepared have the same name"),
    ({"prepare": "m:f", "prepared": [TEXT]}, "must be plain numbers, not BYTES or BF16"),
    ({"prepare": "m:f", "prepared": [Tensor("x", "BF16", (1,))]}, "not BYTES or BF16"),
    ({"prepared": [X]}, 'must be "module:function"'),
    ({"prepare": ":f", "prepared": [X]}, 'must be "module:function"'),
    ({"prepare": "m:", "prepared": [X]}, 'must be "module:function"'),
    ({"prepare": "m:f()", "prepared": [X]}, 'must be "module:function"'),
    ({"sequence": True, "body": with_state}, ""),
    ({"sequence": True, "body": with_state, **TORCH}, "keeps a state for each sequence"),
    ({"sequence": True, "body": yields}, "keeps a state for each sequence|has the parameters"),
    ({"cache": True}, ""),
    ({"cache": True, "body": yields}, "cache=True is for models that answer at once"),
    ({"cache": True, "body": with_state, "sequence": True}, "cache=True is for models"),
    ({"cuda_graphs": True, **TORCH}, ""),
    ({"cuda_graphs": True, **TORCH, "arrays": "numpy"}, "cuda_graphs is for batched models"),
    ({"cuda_graphs": True, "arrays": "torch"}, "cuda_graphs is for batched models"),
    ({"cuda_graphs": True, **TORCH, "body": yields}, "cuda_graphs is for batched models"),
    ({"cuda_graphs": True, **TORCH, "inputs": [TEXT]}, "'t' is BYTES: omit it"),
    ({"cuda_graphs": True, **TORCH, "outputs": [TEXT]}, "'t' is BYTES: omit it"),
    (
        {"cuda_graphs": True, **TORCH, "inputs": [TEXT], "prepare": "m:f", "prepared": [ROWS]},
        "",
    ),
    ({"max_queue_size": -1}, "max_queue_size=-1 must be requests, 0 for as many"),
    ({"max_queue_size": True}, "max_queue_size=True must be requests"),
    ({"max_queue_size": 1}, ""),
    ({"default_timeout_ms": queue_policy.MOST_TIMEOUT_MS}, ""),
    ({"default_timeout_ms": queue_policy.MOST_TIMEOUT_MS + 1}, "default_timeout_ms=.* must be 0"),
    ({"default_timeout_ms": -1}, "default_timeout_ms=-1 must be 0 to"),
    ({"default_timeout_ms": True}, "default_timeout_ms=True must be 0 to"),
    ({"priority_queue_policy": [1]}, r"priority_queue_policy=: it must be policies by priority"),
    ({"priority_queue_policy": {0: QueuePolicy()}}, "0 is no priority: use 1 to 4"),
    ({"priority_queue_policy": {5: QueuePolicy()}}, "5 is no priority: use 1 to 4"),
    ({"priority_queue_policy": {True: QueuePolicy()}}, "True is no priority"),
    ({"priority_queue_policy": {4: 7}}, "priority 4 must have a QueuePolicy, not 7"),
    ({"priority_queue_policy": {4: QueuePolicy(), 1: QueuePolicy()}}, ""),
    ({"priority_queue_policy": policies(timeout_action="DELAY")}, ""),
    (
        {"priority_queue_policy": policies(timeout_action="DELAY"), "body": yields},
        'priority 1 cannot have timeout_action="DELAY"',
    ),
    (
        {
            "priority_queue_policy": policies(timeout_action="DELAY"),
            "body": with_state,
            "sequence": True,
        },
        'priority 1 cannot have timeout_action="DELAY"',
    ),
    ({"priority_queue_policy": policies(), "body": with_state, "sequence": True}, ""),
]


def refused(words):
    return pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext()


@pytest.mark.parametrize(("said", "words"), DECLARED)
def test_what_may_be_declared_of_a_model_ends_where_the_sentence_says(said, words):
    with refused(words):
        declared(**said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"timeout_action": "DROP"}, 'timeout_action=\'DROP\' must be "REJECT" or "DELAY"'),
        ({"timeout_action": "DELAY"}, ""),
        ({"allow_timeout_override": 0}, "allow_timeout_override=0 must be True or False"),
        ({"allow_timeout_override": False}, ""),
    ],
)
def test_a_policy_knows_two_actions(said, words):
    with refused(words):
        QueuePolicy(**said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("x", "FP32", (-1, 0, 5)), ""),
        (("x", "FP32", (-2,)), r"tensor 'x': shape=\(-2,\) has a length below -1"),
        (("x", "FP32", ("a",)), r"shape=\('a',\) must be lengths, such as"),
        (("x", "FP32", 4), "shape=4 must be lengths, such as"),
        (("x", "FP33", (1,)), "has the datatype 'FP33': use one of BOOL, "),
        (("x", 5, (1,)), "has the datatype 5: use one of"),
        (("", "FP32", (1,)), "a tensor's name must be text, not ''"),
        ((5, "FP32", (1,)), "a tensor's name must be text, not 5"),
    ],
)
def test_a_tensor_has_a_name_a_datatype_and_lengths(said, words):
    with refused(words):
        Tensor(*said)


def test_what_workers_are_told_of_a_model_is_what_was_declared():
    one = declared(
        name="m", max_delay_ms=2, parameters={"a": "b"}, cache=True, prepare="m:f", prepared=[X],
        max_queue_size=3, default_timeout_ms=4, priority_queue_policy=policies(max_queue_size=5),
    )  # fmt: skip
    told = one.describe("7").as_dict()
    assert told["name"] == "m" and told["version"] == "7" and told["platform"] == "python"
    tensor = {"name": "x", "datatype": "FP32", "shape": (2,), "optional": False, "labels": ()}
    assert told["inputs"] == told["outputs"] == told["prepared"] == [tensor]
    assert told["prepare"] == "m:f" and told["steps"] == "" and told["parameters"] == {"a": "b"}
    assert (told["max_delay_ms"], told["max_queue_size"], told["default_timeout_ms"]) == (2, 3, 4)
    assert told["cache"] and not (told["sequence"] or told["streams"] or told["cuda_graphs"])
    assert told["priority_queue_policy"]["1"]["max_queue_size"] == 5
    assert declared(body=yields).describe("1").streams


# ---- what prepares a request ----------------------------------------------------------------


ONE, TWO = TensorMetadata("a", "FP32", (-1, 2)), TensorMetadata("b", "INT64", (-1,))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((np.ones((3, 2)), np.ones(3)), ""),
        ([np.ones((3, 2)), [1, 2, 3]], ""),
        ({"b": np.ones(3), "a": np.ones((3, 2)), "c": None}, ""),
        ({"a": np.ones((3, 2))}, "prepare returned no 'b'"),
        (np.ones((3, 2)), "prepare must return 2 arrays"),
        ((np.ones((3, 2)),), "prepare must return 2 arrays"),
        ("ab", "prepare must return 2 arrays, as the model declares in prepared=, not a str"),
        ((np.ones((3, 3)), np.ones(3)), r"'a' with the shape \[3, 3\], .* declares \[-1, 2\]"),
        ((np.ones((3, 2)), np.ones(2)), r"'b' with the shape \[2\], .* \[-1\] for 3 rows"),
    ],
)
def test_what_prepares_a_request_returns_what_the_model_declares(result, words):
    with refused(words):
        arrays, told = preprocessing.call(lambda x: result, ["x"], [ONE, TWO], 3)
        assert [one.dtype for one in arrays] == [np.float32, np.int64] and told == {}
        assert arrays[0].shape == (3, 2) and arrays[1].tolist() in ([1, 1, 1], [1, 2, 3])


def test_rows_count_only_where_requests_have_some():
    ((one, two), _) = preprocessing.call(lambda: (np.ones((3, 2)), [1]), [], [ONE, TWO], None)
    assert len(one) == 3 and len(two) == 1
    ((one,), _) = preprocessing.call(lambda: np.ones((3, 2)), [], [ONE], 3)
    assert len(one) == 3


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("prepares:work", ""),
        ("prepares:VALUE", "of MODEL is not a function"),
        ("prepares:absent", "of MODEL cannot be found .*: name a module beside the model"),
        ("absent_module:work", "of MODEL cannot be found .*: name a module beside the model"),
        ("operator:neg", ""),  # of one that is installed
    ],
)
def test_what_prepares_requests_is_a_function_of_a_module_beside_the_model(
    reference, words, tmp_path, monkeypatch
):
    monkeypatch.setattr("sys.path", ["", *sys.path])
    (tmp_path / "prepares.py").write_text("VALUE = 5\ndef work(x):\n    return x\n")
    model = str(tmp_path / "model.py")
    with refused(words.replace("MODEL", model)):
        assert preprocessing.find(reference, model)(5) in (5, -5)


# ---- models of one server -------------------------------------------------------------------


class Table:
    """The part of the table that workers share which tells of sources."""

    def __init__(self, **sources):
        self.state = {"sources": sources, "indices": {}}

    @contextlib.contextmanager
    def change(self):
        yield self.state


def source(*names, **said):
    models = [{"name": name, "version": "1"} for name in names]
    return {"models": models, "imported": {}, "state": "LOADING", "is_rolled": False, **said}


def publish(table, *names):
    described = [{"name": name, "version": "1"} for name in names]
    return loading.publish(table, 2, described, {"seen": 1})


@pytest.mark.parametrize(
    ("other", "is_taken"),
    [
        (source("m", path="a.py", state="READY"), True),
        (source("n", path="a.py", state="READY"), False),
        (source("m", path="a.py", state="LOADING"), False),
    ],
)
def test_two_files_do_not_declare_the_same_version_of_a_model(other, is_taken):
    table = Table(**{"1": other, "2": source(path="b.py")})
    words = r"two files declare version 1 of the model 'm' \(a.py, b.py\)" if is_taken else ""
    with refused(words):
        assert publish(table, "m") == [0]
        mine = table.state["sources"]["2"]
        assert mine["state"] == "READY" and mine["imported"] == {"seen": 1}
        assert [one["name"] for one in mine["models"]] == ["m"]


def test_who_replaces_a_file_declares_what_that_had_and_what_is_rolled_is_not_ready_yet():
    had = source("m", path="a.py", state="READY")
    table = Table(**{"1": had, "2": source(path="a.py", replaces="1", is_rolled=True)})
    assert publish(table, "m") == [0]
    assert table.state["sources"]["2"]["state"] == "LOADING"
    assert publish(table, "m") == [0]  # by another helper, which has loaded it, too


def test_a_server_loads_so_many_models_in_its_life(monkeypatch):
    monkeypatch.setattr(loading, "MOST_MODELS", 2)
    table = Table(**{"2": source(path="b.py")})
    assert publish(table, "a", "b") == [0, 1]
    table.state["sources"]["2"]["models"] = []
    assert publish(table, "b") == [1]
    with pytest.raises(ConfigError, match="at most 2 models in its life: restart it"):
        publish(table, "c")


def test_a_file_without_a_model_says_how_one_is_declared(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("def load(helper):\n    return 5\n")
    helper = types.SimpleNamespace()
    with pytest.raises(ConfigError, match="declares no model: decorate a function with @shmgpu"):
        loading.load_python(helper, {"path": str(path)}, 9)
    assert helper.session == 5
