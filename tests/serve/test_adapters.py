"""Files of models that need no code: TorchScript, torch.export, ONNX, and folders of them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from serve import servers

import shmgpu
from shmgpu.helper.decoded import Helper
from shmgpu.serve.models.adapters import ADAPTERS, onnx, sidecar
from shmgpu.serve.state.repository import KINDS, find

torch = pytest.importorskip("torch")
client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

has_onnx = all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not has_onnx, reason="needs onnx and onnxruntime: make setup")


@pytest.mark.parametrize(
    ("device", "has_cuda", "wanted", "is_told"),
    [
        ("cpu", True, ["CPUExecutionProvider"], False),
        ("cuda:1", False, ["CPUExecutionProvider"], True),
        (
            "cuda",
            True,
            [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"],
            False,
        ),
        (
            "cuda:3",
            True,
            [("CUDAExecutionProvider", {"device_id": 3}), "CPUExecutionProvider"],
            False,
        ),
    ],
)
def test_onnx_runs_on_the_helpers_device_where_its_package_can(
    device, has_cuda, wanted, is_told, caplog
):
    there = ["CUDAExecutionProvider"] * has_cuda + ["CPUExecutionProvider"]
    package = types.SimpleNamespace(get_available_providers=lambda: there)
    with caplog.at_level("WARNING", "shmgpu"):
        assert onnx._providers(package, device) == wanted
    assert (f"has no provider for {device}" in caplog.text) == is_told


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, images):
        scores = self.linear(images)
        return scores, scores.argmax(1)


class Named(torch.nn.Module):
    def forward(self, left, *, right):
        return {"total": left + right, "difference": left - right}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(3)
    return Net().eval()


@pytest.fixture(scope="module")
def repository(tmp_path_factory, net):
    """A folder with every kind of file, flat and in versions."""
    folder = tmp_path_factory.mktemp("models")
    example = torch.zeros(2, 4)
    torch.jit.trace(net, (example,)).save(str(folder / "traced.pt"))
    said = {"inputs": [{"shape": [-1, 4]}], "max_batch_size": 8, "warmup": [1, 8]}
    (folder / "traced.json").write_text(json.dumps(said))
    rows = torch.export.Dim("rows", max=16)
    program = torch.export.export(net, (example,), dynamic_shapes=({0: rows},))
    place = folder / "exported" / "3"
    place.mkdir(parents=True)
    torch.export.save(program, place / "model.pt2")
    (folder / "exported" / "config.toml").write_text(
        'parameters = {author = "me"}\n'
        "[[outputs]]\n"
        'labels = "names.txt"\n'
        "[[outputs]]\n"
        'name = "best"\n'
    )
    (folder / "exported" / "names.txt").write_text("cat\ndog\nowl\n")
    at_least_three = torch.export.export(
        net, (torch.zeros(4, 4),), dynamic_shapes=({0: torch.export.Dim("rows", min=3)},)
    )
    torch.export.save(at_least_three, folder / "three_or_more.pt2")
    at_least_two = torch.export.export(
        net, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    torch.export.save(at_least_two, folder / "two_or_more.pt2")
    fixed = torch.export.export(Named(), (example,), {"right": torch.ones(2, 4)})
    torch.export.save(fixed, folder / "named.pt2")
    (folder / "_notes.py").write_text("raise RuntimeError('this is no model')\n")
    (folder / "ours.py").write_text(
        "from shmgpu.serve import Tensor, model\n"
        "@model(inputs=[Tensor('x', 'FP32', (-1,))], outputs=[Tensor('y', 'FP32', (-1,))])\n"
        "def doubled(helper, x):\n    return x * 2\n"
    )
    if has_onnx:
        write_onnx(folder / "onnx_net.onnx", net)
    return folder


def write_onnx(path, net):
    """The same network, with text beside its numbers."""
    from onnx import TensorProto, checker, helper, numpy_helper, save_model

    weights = [
        numpy_helper.from_array(value.detach().numpy(), name)
        for name, value in (("w", net.linear.weight.T.contiguous()), ("b", net.linear.bias))
    ]
    nodes = [
        helper.make_node("Gemm", ["images", "w", "b"], ["scores"]),
        helper.make_node("Identity", ["words"], ["same"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("images", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("words", TensorProto.STRING, ["rows"]),
        ],
        [
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 3]),
            helper.make_tensor_value_info("same", TensorProto.STRING, ["rows"]),
        ],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(made)
    save_model(made, path)


@pytest.fixture(scope="module")
def server(repository):
    with servers.serving(repository, helpers=1) as running:
        yield running


def rows_of(count):
    return np.random.default_rng(count).standard_normal((count, 4), "float32")


@pytest.mark.table
@pytest.mark.parametrize(
    ("name", "scores", "best"),
    [
        ("traced", "output_0", "output_1"),
        ("exported", "output_0", "best"),
        ("two_or_more", "output_0", "output_1"),
        ("three_or_more", "output_0", "output_1"),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_a_file_of_torch_gives_what_the_module_gives(triton, net, name, scores, best, rows):
    x = rows_of(rows)
    expected = net(torch.from_numpy(x))
    answer = triton.infer(name, [servers.tensor("images", x, "FP32")])
    assert np.allclose(answer.as_numpy(scores), expected[0].detach().numpy(), atol=1e-6)
    assert np.array_equal(answer.as_numpy(best), expected[1].numpy())


def test_what_the_file_says_is_shown(triton):
    shown = triton.get_model_metadata("exported")
    assert shown["versions"] == ["3"] and shown["platform"] == "pytorch_export"
    assert shown["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 4]}]
    assert shown["outputs"] == [
        {"name": "output_0", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "best", "datatype": "INT64", "shape": [-1]},
    ]
    assert triton.get_model_config("exported")["max_batch_size"] == 16  # as it was exported
    assert triton.get_model_config("traced")["max_batch_size"] == 8  # as was said beside it
    assert triton.get_model_config("named")["max_batch_size"] == 0
    assert triton.get_model_metadata("traced")["outputs"][0]["shape"] == [-1, 3]


def test_what_stands_beside_a_model_has_its_place_its_keys_and_the_models_name(tmp_path):
    (tmp_path / "net" / "1").mkdir(parents=True)
    files = {"small.toml": "max_batch_size = 4", "net/config.json": '{"max_delay_ms": 2.5}'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert sidecar.read(tmp_path / "small.pt2") == sidecar.Config(
        tmp_path / "small.toml", {"max_batch_size": 4}, "small"
    )
    assert sidecar.read(tmp_path / "net/1/model.pt") == sidecar.Config(
        tmp_path / "net/config.json", {"max_delay_ms": 2.5}, "net"
    )
    alone = tmp_path / "alone.onnx"
    assert sidecar.read(alone) == sidecar.Config(alone, {}, "alone")


def test_labels_beside_a_model_name_its_classes(triton, net):
    x = rows_of(1)
    wanted = client.InferRequestedOutput("output_0", class_count=1)
    answer = triton.infer("exported", [servers.tensor("images", x, "FP32")], outputs=[wanted])
    best = net(torch.from_numpy(x))[1].item()
    assert answer.as_numpy("output_0").item().decode().endswith(["cat", "dog", "owl"][best])


def test_keyword_inputs_and_outputs_by_name_of_an_exported_program(triton):
    x = np.arange(8, dtype="float32").reshape(2, 4)
    answer = triton.infer(
        "named", [servers.tensor("right", x, "FP32"), servers.tensor("left", 3 * x, "FP32")]
    )
    assert np.array_equal(answer.as_numpy("total"), 4 * x)
    assert np.array_equal(answer.as_numpy("difference"), 2 * x)


@needs_onnx
def test_an_onnx_file_gives_what_the_module_gives(triton, net):
    x = rows_of(3)
    words = np.array([b"one", "zwölf".encode(), b""], object)
    asked = [servers.tensor("images", x, "FP32"), servers.tensor("words", words, "BYTES")]
    answer = triton.infer("onnx_net", asked)
    expected = net.linear(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(answer.as_numpy("scores"), expected, atol=1e-6)
    assert list(answer.as_numpy("same")) == list(words)
    assert triton.get_model_config("onnx_net")["max_batch_size"] == 32


@needs_onnx
def test_onnxruntime_reports_to_nobody(server):
    for pid in server.children():
        opened = [str(one.resolve()) for one in pathlib.Path(f"/proc/{pid}/fd").iterdir()]
        assert not [one for one in opened if "onnxruntime.db" in one]


def test_python_files_lie_in_the_same_folder(triton):
    x = np.ones(3, "float32")
    assert triton.infer("doubled", [servers.tensor("x", x, "FP32")]).as_numpy("y").tolist() == [
        2,
        2,
        2,
    ]


def test_requests_run_as_one_where_the_first_axis_is_open(server, triton):
    def counted():
        (told,) = triton.get_inference_statistics("exported")["model_stats"]
        return told

    before, helper = counted(), server.children()[0]
    http = client.InferenceServerClient(server.address, concurrency=16)
    with contextlib.closing(http):
        with servers.stopped(helper):  # so that they wait, and for one another
            waiting = [
                http.async_infer("exported", [servers.tensor("images", rows_of(1), "FP32")])
                for _ in range(16)
            ]
            servers.until(lambda: counted()["pending"] == 16, "all of them wait")
        for one in waiting:
            one.get_result()
    after = counted()
    assert after["inference_count"] == before["inference_count"] + 16
    assert after["execution_count"] < before["execution_count"] + 16


# ---- what is wrong is said in a sentence ---------------------------------------------------


def why_not(*words) -> str:
    """What the command says when it cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "shmgpu", "serve", *map(str, words), "--port=0", "--workers=1"],
        env=servers.environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    return done.stderr


def refusal(path) -> str:
    """The same sentence, of the adapter in this process: in a fraction of the time."""
    helper = Helper(0, "cpu", "default", 1)
    with pytest.raises(shmgpu.ConfigError) as caught:
        ADAPTERS[KINDS[path.suffix]](helper, str(path))
    return str(caught.value)


def test_a_torchscript_file_needs_the_shapes_of_its_inputs(tmp_path, net):
    torch.jit.trace(net, (torch.zeros(2, 4),)).save(str(tmp_path / "net.pt"))
    said = why_not(tmp_path / "net.pt")
    assert refusal(tmp_path / "net.pt") in said
    assert "does not say the shape of the input 'images'" in said and "net.json" in said


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ('{"inputs": [{"shape": [-1, 4]}, {"shape": [1]}]}', "lists 2 inputs, and the model has 1"),
        ('{"inputs": [{"shape": [-1, 5]}]}', "could not be run on zeros"),
        ('{"inputs": [{"shape": [-1, 4], "datatype": "FLOAT"}]}', "has the datatype 'FLOAT'"),
        ('{"batch": 3}', "there is no key 'batch'"),
        ('{"cuda_graphs": 1}', "cuda_graphs is 1"),
        ('{"warmup": true}', "warmup is True"),
        ('{"max_batch_size": true}', "max_batch_size is True"),
        ("{", "cannot be read"),
        ('{"inputs": [{"shape": [-1, 4]}], "warmup": [100]}', "use numbers of rows, 1 to 32"),
        (
            '{"inputs": [{"shape": [-1, 4]}], "warmup": [{"images": [[1, 2]]}]}',
            "a warmup sample of 'images' has the shape [1, 2], and must have [-1, 4]",
        ),
        ('{"inputs": [{"shape": "4"}]}', "shape='4' must be lengths"),
        ('{"inputs": [{"shape": [-1, 4.5]}]}', "must be lengths"),
        ('{"inputs": [{"shape": [-1, 4], "datatype": ["FP32"]}]}', "has the datatype ['FP32']"),
        ('{"inputs": [{"shape": [-1, 4], "labels": [1]}]}', "labels are [1]"),
        ('{"inputs": [{"shape": [-1, 4]}], "max_delay_ms": -5}', "model 'net': max_delay_ms=-5"),
    ],
)
def test_a_wrong_configuration_is_refused(tmp_path, net, config, sentence):
    torch.jit.trace(net, (torch.zeros(2, 4),)).save(str(tmp_path / "net.pt"))
    (tmp_path / "net.json").write_text(config)
    assert sentence in refusal(tmp_path / "net.pt")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("net.pt", "a file of torch.jit.save was expected"),
        ("net.pt2", "a file of torch.export.save was expected"),
        pytest.param("net.onnx", "an ONNX model was expected", marks=needs_onnx),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, name, sentence):
    torch.save({"weights": torch.zeros(2)}, tmp_path / name)
    said = why_not(tmp_path / name)
    assert sentence in said and "Traceback" not in said


def test_a_file_that_cannot_be_loaded_anew_is_told_of_in_a_sentence(tmp_path, net):
    path = tmp_path / "net.pt"
    torch.jit.trace(net, (torch.zeros(2, 4),)).save(str(path))
    (tmp_path / "net.json").write_text('{"inputs": [{"shape": [-1, 4]}]}')
    with servers.serving(path, workers=1, helpers=1, allow_repository=True) as server:
        path.write_bytes(b"nothing of the kind")
        status, _, answer = server.ask("POST", "/v2/repository/models/net/load")
        said = f"failed to load 'net': {path} cannot be loaded: a file of torch.jit.save"
        assert status == 400 and json.loads(answer)["error"].startswith(said)
        assert server.ask("GET", "/v2/models/net/ready")[0] == 200, "the old one serves on"
        log = os.read(server.process.stderr.fileno(), 1 << 16).decode()
    assert "cannot be loaded" in log and "Traceback" not in log


def test_what_torchscript_raises_is_a_sentence_to_clients(tmp_path, net):
    path = tmp_path / "net.pt"
    torch.jit.trace(net, (torch.zeros(2, 4),)).save(str(path))
    outputs = [{"datatype": "FP32", "shape": [-1, 3]}, {"datatype": "INT64", "shape": [-1]}]
    config = {"inputs": [{"shape": [-1, -1]}], "outputs": outputs}
    (tmp_path / "net.json").write_text(json.dumps(config))
    helper = Helper(0, "cpu", "default", 1)
    made = ADAPTERS["torchscript"](helper, str(path))  # on zeros it could not be run
    assert [len(one) for one in made(helper, torch.zeros(3, 4))] == [3, 3]
    with pytest.raises(RuntimeError) as caught:
        made(helper, torch.zeros(1, 5))
    assert "shapes cannot be multiplied" in str(caught.value) and "\n" not in str(caught.value)


def test_a_version_with_two_files_is_refused(tmp_path):
    folder = tmp_path / "net" / "1"
    folder.mkdir(parents=True)
    for name in ("model.onnx", "model.pt2"):
        (folder / name).touch()
    with pytest.raises(shmgpu.ConfigError, match=r"holds model\.onnx and model\.pt2"):
        find(str(tmp_path))


def test_a_path_may_have_the_sign_of_a_pool_in_it(tmp_path):
    path = tmp_path / "me@home" / "net.onnx"
    path.parent.mkdir()
    path.touch()
    assert [(one.path, one.pool) for one in find(str(path))] == [(str(path), "")]
    assert [(one.path, one.pool) for one in find(f"{path}@fast")] == [(str(path), "fast")]
    assert [one.pool for one in find(str(path.parent))] == [""]


def test_elements_that_the_protocol_has_not_are_refused(tmp_path):
    class Complex(torch.nn.Module):
        def forward(self, x):
            return torch.view_as_complex(x)

    torch.export.save(torch.export.export(Complex(), (torch.zeros(3, 2),)), tmp_path / "c.pt2")
    assert "which the protocol has no datatype for" in refusal(tmp_path / "c.pt2")


@needs_onnx
def test_a_configuration_names_inputs_that_an_onnx_file_has(tmp_path, net):
    write_onnx(tmp_path / "net.onnx", net)
    (tmp_path / "net.toml").write_text('[[inputs]]\nname = "pictures"\n')
    assert "the model has no input 'pictures', but images, words" in why_not(tmp_path / "net.onnx")
