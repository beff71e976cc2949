"""Which helpers load a model, and on which devices they are."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest
from serve import servers

from shmgpu.broker.launch_config import LaunchConfig
from shmgpu.common import devices
from shmgpu.errors import ConfigError
from shmgpu.serve import options
from shmgpu.serve.helper_pools import pools_of
from shmgpu.serve.state.repository import find_all, in_pools

WHERE = """
import numpy as np
from shmgpu.serve import Tensor, model

@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("where", "BYTES", (2,))])
def {name}(helper, x):
    return np.array([helper.pool, str(helper.device)], dtype=object)
"""


@pytest.fixture
def where(tmp_path):
    """Three files, each with a model that says where it runs."""
    for name in "abc":
        (tmp_path / f"{name}.py").write_text(WHERE.format(name=name))
    return tmp_path


def parsed(name, text):
    (flag,) = [one for one in options.FLAGS if one.name == name]
    return None if text is None else flag.parse(text)


@pytest.mark.parametrize(
    ("models", "helpers", "given", "placed"),
    [
        (["a"], "2", "cuda:0,cuda:1", {"a": ["cuda:0", "cuda:1"]}),
        (["a@cuda:0", "b@cuda:1"], "1", None, {"a": ["cuda:0"], "b": ["cuda:1"]}),
        (["a@cuda:2", "b@cuda"], "2", None, {"a": ["cuda:2"] * 2, "b": ["cuda:0"] * 2}),
        (
            ["a@cuda:1", "b", "c@cuda:1"],
            "1",
            None,
            {"a": ["cuda:1"], "b": ["cpu"], "c": ["cuda:1"]},
        ),
        (["a@cuda:1", "b"], "2", "cuda:0,cuda:2", {"a": ["cuda:1"] * 2, "b": ["cuda:0", "cuda:2"]}),
        (["a@cpu", "b@cuda:0"], "1", None, {"a": ["cpu"], "b": ["cuda:0"]}),
        (
            ["a@large", "b@fast"],
            "large=2,fast=1",
            "large=cuda:0,large=cuda:1,fast=cpu",
            {"a": ["cuda:0", "cuda:1"], "b": ["cpu"]},
        ),
        (["a@large", "b"], "fast=1,large=1", "cuda:1", {"a": ["cuda:1"], "b": ["cuda:1"]}),
        (["a@cpu", "b"], "gpu=1,cpu=1", "gpu=cuda:0", {"a": ["cpu"], "b": ["cuda:0"]}),
    ],
)
def test_a_model_has_helpers_on_its_devices(where, monkeypatch, models, helpers, given, placed):
    """As a launch on a machine of three GPUs would start them."""
    monkeypatch.setattr(devices, "available", lambda: 3)
    monkeypatch.setattr(devices, "_torch_is_used", lambda: False)
    named = [
        f"{where}/{name}.py{at and '@'}{at}" for name, _, at in (m.partition("@") for m in models)
    ]
    sources = find_all(named)
    sources, counts, on = pools_of(sources, parsed("helpers", helpers), parsed("devices", given))
    plan = LaunchConfig(children=1, helpers=counts, devices=on)
    found = {
        source.path[-4]: [one.device for one in plan.setups if one.pool == source.pool]
        for source in in_pools(sources, list(plan.pools))
    }
    assert found == placed
    # Helpers that have a GPU each make communicators; those that share one, or the CPU, need none.
    gpus = {device for ones in placed.values() for device in ones if device != "cpu"}
    assert plan.has_gpus_apart == (len(gpus) > 1)


@pytest.mark.parametrize(
    ("first", "second", "device"),
    [("cuda", "cuda:0", "cuda:0"), ("cuda:01", "cuda:1", "cuda:1"), ("cpu:0", "cpu", "cpu")],
)
def test_a_device_has_one_pool_whatever_it_is_called(where, first, second, device):
    sources = find_all([f"{where}/a.py@{first}", f"{where}/b.py@{second}"])
    placed, counts, on = pools_of(sources, 2, None)
    assert [one.pool for one in placed] == [device] * 2
    assert (counts, on) == ({device: 2}, {device: [device]})


@pytest.mark.parametrize(
    ("name", "text", "meaning"),
    [
        ("devices", "", None),
        ("devices", "  ", None),
        ("devices", "cuda:0, cpu", ["cuda:0", "cpu"]),
        ("devices", "fast = cuda:0, fast=cpu", {"fast": ["cuda:0", "cpu"]}),
        ("helpers", "fast = 2, large=1", {"fast": 2, "large": 1}),
    ],
)
def test_blanks_and_empty_text_say_nothing(where, name, text, meaning):
    """On the command line as in a configuration file."""
    (where / "a.toml").write_text(f'models = ["a.py"]\n{name} = "{text}"\n')
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    for words in ([f"--{name}", text, "a.py"], ["--config", str(where / "a.toml")]):
        assert getattr(options.resolve(parser.parse_args(words)), name) == meaning


def test_models_run_where_they_were_put_and_say_so(where):
    def ask(server, name):
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
        _, _, answer = server.ask("POST", f"/v2/models/{name}/infer", json.dumps(body).encode())
        return json.loads(answer)["outputs"][0]["data"]

    models = where / "a.py", f"{where}/b.py@cpu"
    with servers.serving(*models, helpers=2, workers=1, devices="cpu") as server:
        assert ask(server, "a") == ["default", "cpu"]
        assert ask(server, "b") == ["cpu", "cpu"]
        shown = json.loads(server.ask("GET", "/v2/models/b/config")[2])
        assert shown["instance_group"] == [
            {"name": "b_0", "kind": "KIND_CPU", "count": 2, "gpus": []}
        ]
        assert len(server.children()) == 1 + 2 + 2
    with servers.serving(
        where / "a.py", f"{where}/b.py@large", helpers="small=1,large=1", workers=1
    ) as server:
        assert ask(server, "a") == ["small", "cpu"]
        assert ask(server, "b") == ["large", "cpu"]


def test_devices_are_shown_as_a_group_for_each():
    from shmgpu.serve.frontend.documents import _instance_group

    assert _instance_group("m", ["cuda:1", "cpu", "cuda:1", "cpu:0"]) == [
        {"name": "m_0", "kind": "KIND_GPU", "count": 2, "gpus": [1]},
        {"name": "m_1", "kind": "KIND_CPU", "count": 1, "gpus": []},
        {"name": "m_2", "kind": "KIND_CPU", "count": 1, "gpus": []},
    ]


def test_a_cpu_with_a_number_is_the_cpu():
    assert [devices.name_of(one) for one in ("cpu:0", "cpu", "cuda", 1)] == [
        *("cpu", "cpu", "cuda:0", "cuda:1")
    ]
    assert LaunchConfig(children=1, helpers=2, devices=["cpu:0"]).setups[0].device == "cpu"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a.py@cuda:7",), "devices names cuda:7, and this machine shows"),
        (("a.py@cpu", "--devices", "cpu"), "so --devices is for none"),
        (("a.py@cpu", "--devices", "x=cpu"), "give the pools to --helpers, too"),
        (("a.py", "--devices", "x=cpu"), "names the pool 'x', and the helpers form"),
        (("a.py", "--devices", "x=cpu,cpu"), "either each device has its pool"),
        (("a.py@cuda:0", "--helpers", "x=1"), "for the pool 'cuda:0', and the helpers form x"),
    ],
)
def test_what_does_not_fit_together_is_said_in_a_sentence(where, words, sentence):
    done = subprocess.run(
        [sys.executable, "-m", "shmgpu", "serve", *words, "--port", "0"],
        cwd=where,
        env=servers.environment(),
        capture_output=True,
        text=True,
        timeout=servers.DEADLINE_S,
    )
    assert done.returncode != 0
    assert sentence in done.stderr and "Traceback" not in done.stderr


def test_a_device_that_is_none_is_a_pool(where):
    sources = find_all([f"{where}/a.py@fast"])
    assert pools_of(sources, 2, None) == (sources, 2, None)
    with pytest.raises(ConfigError, match="for the pool 'fast'"):
        in_pools(sources, ["default"])
