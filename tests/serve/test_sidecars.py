"""What stands beside a model's file: what it adds, what it may not say, and who is told so."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from shmgpu.errors import ConfigError
from shmgpu.serve import Tensor
from shmgpu.serve.models.adapters import sidecar

FOUND = [Tensor("a", "FP32", (-1, 4)), Tensor("b", "INT64", (-1,))]
ROWS = {"name": "r", "datatype": "FP32", "shape": [-1, 2]}


def config(tmp_path, text="{}", name="net.json"):
    (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
    return sidecar.read(str(tmp_path / "net.pt"))


def refused(words):
    return pytest.raises(ConfigError, match=words) if words else contextlib.nullcontext()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "must hold keys and values: inputs, outputs, max_batch_size"),
        ("{", "the configuration .*net.json cannot be read"),
        ('{"inptus": []}', "there is no key 'inptus': use inputs, outputs"),
        ('{"inputs": {}}', "inputs is {}: see the page of shmgpu.serve"),
        ('{"max_batch_size": true}', "max_batch_size is True: see the page"),
        ('{"max_batch_size": 2.5}', "max_batch_size is 2.5: see the page"),
        ('{"cuda_graphs": 1}', "cuda_graphs is 1: see the page"),
        ('{"cuda_graphs": true, "max_delay_ms": 2.5, "max_batch_size": 3}', ""),
        ('{"max_delay_ms": 2}', ""),
    ],
)
def test_a_configuration_has_keys_that_there_are(tmp_path, text, words):
    with refused(words):
        assert config(tmp_path, text).values == json.loads(text)


def test_one_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"the configuration .*net\.toml cannot be read"):
        config(tmp_path, "max_batch_size =", "net.toml")


@pytest.mark.parametrize(
    ("said", "by_name", "wanted"),
    [
        ([], True, [("a", "FP32", (-1, 4)), ("b", "INT64", (-1,))]),
        ([], False, [("a", "FP32", (-1, 4)), ("b", "INT64", (-1,))]),
        ([{"name": "b", "shape": [3]}], True, [("a", "FP32", (-1, 4)), ("b", "INT64", (3,))]),
        ([{"name": "c"}], True, "the model has no input 'c', but a, b"),
        ([ROWS], False, "lists 1 inputs, and the model has 2: a, b"),
        ([ROWS, {}], False, [("r", "FP32", (-1, 2)), ("b", "INT64", (-1,))]),
        ([ROWS, 5], False, "one of inputs is 5, and must have no keys but name, datatype, shape"),
        ([ROWS, {"type": 5}], False, "one of inputs is {'type': 5}, and must have no keys but"),
    ],
)
def test_the_file_says_what_the_configuration_does_not(tmp_path, said, by_name, wanted):
    found = config(tmp_path, {"inputs": said})
    with refused(wanted if isinstance(wanted, str) else ""):
        made = found.tensors("inputs", FOUND, by_name=by_name)
        assert [(one.name, one.datatype, one.shape) for one in made] == wanted


def test_a_file_that_says_nothing_needs_a_shape_beside_it(tmp_path):
    found = config(tmp_path, {"inputs": [{"shape": [-1, 2]}, {"name": "n"}]})
    with pytest.raises(ConfigError, match=r"does not say the shape of the input 'n': write it"):
        found.tensors("inputs", [], by_name=False)
    (one,) = config(tmp_path, {"outputs": [{"shape": [-1, 2]}]}).tensors(
        "outputs", [], by_name=False
    )
    assert (one.name, one.datatype, one.shape) == ("output_0", "FP32", (-1, 2))


@pytest.mark.parametrize(
    ("said", "says_all"),
    [
        ([], False),
        ([ROWS], True),
        ([ROWS, {"name": "r", "shape": [1]}], False),
        ([ROWS, {"name": "r", "datatype": "FP32"}], False),
        ([5], False),
    ],
)
def test_a_configuration_may_say_all_so_that_nothing_is_found_out(tmp_path, said, says_all):
    assert config(tmp_path, {"inputs": said}).says_all("inputs") == says_all


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (["cat", "dog"], ("cat", "dog")),
        ("classes.txt", ("eins", "zwölf")),
        ("absent.txt", "the labels .*absent.txt cannot be read"),
        (["cat", 5], "labels are .*, and must be a list of text, or a file with one a line"),
        ({"cat": 1}, "labels are .*, and must be a list of text"),
    ],
)
def test_labels_are_a_list_or_a_file_of_lines(tmp_path, labels, wanted):
    (tmp_path / "classes.txt").write_text("eins\nzwölf\n")
    found = config(tmp_path, {"outputs": [{**ROWS, "labels": labels}]})
    with refused(wanted if isinstance(wanted, str) else ""):
        (one,) = found.tensors("outputs", [], by_name=False)
        assert one.labels == wanted


def made(found, tensors, most_rows):
    return found.make(
        lambda helper, *inputs: inputs[0],
        tensors,
        tensors[:1],
        arrays="numpy",
        platform="a kind",
        most_rows=most_rows,
    )


@pytest.mark.parametrize(
    ("values", "most_rows", "wanted"),
    [
        ({}, 1000, 32),
        ({}, 7, 7),
        ({"max_batch_size": 7}, 7, 7),
        ({"max_batch_size": 8}, 7, "max_batch_size=8, and the model takes 7 rows at most"),
        ({"max_batch_size": 1}, 0, "and the model takes one size of its first axis only"),
        ({}, 0, 0),
    ],
)
def test_no_more_rows_run_as_one_than_the_file_takes(tmp_path, values, most_rows, wanted):
    found = config(tmp_path, values)
    with refused(wanted if isinstance(wanted, str) else ""):
        assert made(found, FOUND, most_rows).max_batch_size == wanted


def test_the_rest_of_it_is_the_models(tmp_path):
    found = config(tmp_path, {"max_delay_ms": 2.5, "parameters": {"author": 5}})
    model = made(found, FOUND, 8)
    assert model.name == "net" and model.max_delay_ms == 2.5 and model.warmup is None
    assert model.parameters == {"author": "5"} and model.platform == "a kind"
    assert not model.cuda_graphs and model.arrays == "numpy"


@pytest.mark.parametrize(
    ("sample", "wanted"),
    [
        (1, [(1, 4), (1,)]),
        (8, [(8, 4), (8,)]),
        (9, "warmup has 9: use numbers of rows, 1 to 8, or values of all inputs by name"),
        (0, "warmup has 0: use numbers of rows, 1 to 8"),
        ("x", "warmup has 'x': use numbers of rows"),
        ({"a": [[1, 2, 3, 4]], "b": [5]}, [(1, 4), (1,)]),
        ({"a": [[1, 2, 3]], "b": [5]}, r"sample of 'a' has the shape \[1, 3\], and must have"),
        ({"a": [[1, 2, 3, 4]]}, r"warmup has .*, or values of all inputs by name \(a, b\)"),
        ({"a": [[1], [2, 3]], "b": [5]}, "a warmup sample does not hold arrays"),
    ],
)
def test_samples_are_rows_of_zeros_or_values(tmp_path, sample, wanted):
    found = config(tmp_path, {"warmup": [sample]})
    with refused(wanted if isinstance(wanted, str) else ""):
        (arrays,) = made(found, FOUND, 8).warmup
        assert [one.shape for one in arrays] == wanted
        assert [one.dtype for one in arrays] == [np.float32, np.int64]
        if isinstance(sample, dict):
            assert arrays[0].tolist() == sample["a"] and arrays[1].tolist() == [5]
        else:
            assert not arrays[0].any() and not arrays[1].any()


def test_a_sample_of_zeros_has_one_of_what_may_be_of_any_length(tmp_path):
    found = config(tmp_path, {"warmup": [3]})
    (arrays,) = made(found, [Tensor("a", "FP32", (-1, -1, 2)), FOUND[1]], 8).warmup
    assert [one.shape for one in arrays] == [(3, 1, 2), (3,)]


def test_zeros_of_text_are_empty_and_open_axes_are_as_long_as_asked():
    tensors = [
        Tensor("t", "BYTES", (-1, -1)),
        Tensor("f", "BF16", (2, -1)),
        Tensor("s", "BOOL", ()),
    ]
    text, bits, one = sidecar.zeros(tensors, 3, 5)
    assert text.shape == (3, 5) and set(text.ravel()) == {b""}
    assert bits.shape == (2, 5) and bits.dtype == np.int16
    assert one.shape == () and not one


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "FP16"), ("int64", "INT64")])
def test_a_frameworks_type_has_the_protocols_name(dtype, name):
    assert sidecar.datatype_of(np.dtype(dtype), "x") == name


@pytest.mark.parametrize("dtype", [np.dtype("c8"), np.dtype("M8[s]"), 5])
def test_a_type_that_the_protocol_has_not_is_named_with_its_tensor(dtype):
    with pytest.raises(ConfigError, match=r"tensor 'x' of the model is .*convert it inside"):
        sidecar.datatype_of(dtype, "x")
