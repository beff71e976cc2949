"""Models that are written wrongly: who asks is told what, and who wrote them where."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from serve import servers

from shmgpu.errors import ArenaFull, ConfigError, RemoteError, ResultTooLarge
from shmgpu.helper.decoded import Helper
from shmgpu.serve import Tensor, model
from shmgpu.serve.models import errors, runner
from shmgpu.serve.models.declaration import Model
from shmgpu.serve.scheduling import statuses

ONE_ROW = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}


@pytest.fixture(scope="module")
def server():
    with servers.serving(servers.MODELS / "wrong.py") as running:
        yield running


def ask(server, model):
    status, _, body = server.ask("POST", f"/v2/models/{model}/infer", json.dumps(ONE_ROW).encode())
    return status, json.loads(body)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("nothing", "returned None for output 'y'"),
        ("text", "returned a str for output 'y'"),
        ("two", "returned 2 values: return one array"),
        ("plain_lists", "returned a list for output 'y'"),
        ("too_narrow", "returned the shape [1, 2] for output 'y'"),
        ("too_few", "got 1 rows and returned the shape [0, 4] for output 'y'"),
        ("of_another_name", "returned no output 'y'"),
        ("of_another_type", "returned float64 for output 'y'"),
    ],
)
def test_what_a_model_does_not_declare_is_told_by_its_name(server, model, why):
    status, answer = ask(server, model)
    assert status == 500
    assert answer["error"].replace('"', "'").startswith(f"model '{model}' {why}")


def test_an_error_whose_text_is_no_utf8_is_answered(server):
    for _ in range(3):  # a connection each, so that both workers are asked
        status, answer = ask(server, "raises_no_text")
        assert (status, answer["error"]) == (500, r"FileNotFoundError: no file b\udcffd")


def test_a_stream_that_yields_no_array_says_so(server):
    body = json.dumps({"x": [[1, 2, 3, 4]]}).encode()
    status, _, events = server.ask("POST", "/v2/models/yields_text/generate_stream", body)
    assert status == 200
    assert b"model 'yields_text' returned a str for output 'y'" in events


def test_a_batched_models_first_input_may_be_left_away(server):
    status, answer = ask(server, "biased")
    assert status == 200, answer
    assert np.array_equal(answer["outputs"][0]["data"], [1, 2, 3, 4])


def test_a_process_that_a_model_forked_takes_no_requests(server):
    for _ in range(4):
        status, answer = ask(server, "forks")
        assert (status, answer["outputs"][0]["data"]) == (200, [1, 2, 3, 4])

    def copies():
        helpers = server.children()[:2]
        listed = [pathlib.Path(f"/proc/{one}/task/{one}/children").read_text() for one in helpers]
        stats = [pathlib.Path(f"/proc/{pid}/stat").read_text() for pid in " ".join(listed).split()]
        return [one for one in stats if one.rpartition(")")[2].split()[0] != "Z"]

    servers.until(lambda: not copies(), "what the model forked has ended")


@pytest.mark.parametrize("forks", ["as it is read", "in load", "as it is warmed up"])
def test_a_process_forked_while_a_model_is_loaded_takes_no_requests(tmp_path, forks):
    path = tmp_path / "forking.py"
    path.write_text(
        "import os\n"
        "from shmgpu.serve import Tensor, model\n"
        "def fork(when):\n"
        f"    if when == {forks!r}:\n"
        "        os.fork()\n"
        "fork('as it is read')\n"
        "def load(helper):\n"
        "    fork('in load')\n"
        "x, y = Tensor('x', 'FP32', (1, 4)), Tensor('y', 'FP32', (1, 4))\n"
        "@model(inputs=[x], outputs=[y], warmup=lambda: fork('as it is warmed up') or [])\n"
        "def same(helper, x):\n"
        "    return x\n"
    )
    with servers.serving(path, workers=1, helpers=1, allow_repository=True) as server:
        for _ in range(4):
            assert ask(server, "same")[0] == 200
        assert server.ask("POST", "/v2/repository/models/same/load")[0] == 200
        for _ in range(4):
            assert ask(server, "same")[0] == 200


def test_where_a_model_raised_is_in_the_log_once_in_a_while(caplog, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(statuses, "_tracebacks", statuses.Pause(1.0))  # others' clock is another
    error = RemoteError("ValueError", "no", "Traceback\n  line 7 of the model\nValueError: no\n")
    for passed in (0.0, 0.1, 0.1, 2.0):
        now += passed
        assert statuses.answer_to(error) == (500, "ValueError: no")
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("line 7 of the model" in one for one in told)
    assert "2 others" in told[1]


def test_zero_rows_are_counted_with_their_own_model(server):
    body = json.dumps(ONE_ROW | {"inputs": [ONE_ROW["inputs"][0] | {"shape": [0, 4], "data": []}]})
    assert server.ask("POST", "/v2/models/biased/infer", body.encode())[0] == 200
    stats = server.statistics("biased")
    in_batches = sum(batch["compute_infer"]["count"] for batch in stats["batch_stats"])
    assert in_batches == stats["execution_count"] > 0


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x, r"is called with \(helper, x\)"),
        (lambda helper, x, y: x, r"is called with \(helper, x\)"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_where_it_is_declared(function, words):
    one = [Tensor("x", "FP32", (1,))]
    with pytest.raises(ConfigError, match=words):
        model(inputs=one, outputs=one)(function)
    model(inputs=one, outputs=one)(lambda helper, *inputs: inputs[0])
    model(inputs=one, outputs=one, sequence=True)(lambda helper, state, x: x)


DECLARED = (
    "from shmgpu.serve import Tensor, model\n"
    "one = [Tensor('x', 'FP32', (1,))]\n"
    "@model(inputs=one, outputs=one{more})\n"
    "def same(helper, x):\n"
    "    {body}\n"
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def load(helper):\n    raise SystemExit(3)", "load() of PATH raised SystemExit: 3"),
        ("def load(helper):\n    open('absent')", "load() of PATH raised FileNotFoundError"),
        ("raise SystemExit", "PATH raised SystemExit"),
        (
            DECLARED.format(more="", body="raise SystemExit(4)"),
            "the warm-up of model 'same' in PATH raised SystemExit: 4",
        ),
        (
            DECLARED.format(more=", warmup=[5]", body="return x"),
            "model 'same': warmup= must be a list of samples",
        ),
    ],
)
def test_a_model_that_cannot_be_loaded_is_named(tmp_path, text, sentence):
    path = tmp_path / "broken.py"
    path.write_text(text)
    store = runner.ModelStore.__new__(runner.ModelStore)
    store.helper = Helper(0, "cpu", "default", 1)
    store.loaded, store.is_copy, store.most_models = {}, False, 64
    store.max_batch_size = store.modules = None
    source = {"path": str(path), "kind": "python", "name": "", "version": "1"}
    store.table = types.SimpleNamespace(read=lambda: (0, {"sources": {"1": source}}))
    with pytest.raises((errors.LoadFailed, ConfigError)) as caught:
        store.load(1)
    assert str(caught.value).startswith(sentence.replace("PATH", str(path)))
    sys.modules.pop("shmgpu_served_1", None)


def test_a_server_that_cannot_load_shows_the_models_own_frames_only(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def load(helper):\n    raise ValueError('no weights')\n")
    refused = subprocess.run(
        [sys.executable, "-m", "shmgpu", "serve", path, "--port=0", "--workers=1"],
        env=servers.environment(), capture_output=True, text=True, timeout=servers.DEADLINE_S,
    )  # fmt: skip
    assert refused.returncode != 0
    assert f"load() of {path} raised ValueError: no weights" in refused.stderr
    assert 'broken.py", line 2, in load' in refused.stderr
    assert "runner.py" not in refused.stderr


async def a_coroutine(helper, x):
    return x


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"name": "a/b"}, "leave out slashes"),
        ({"name": "a\nb"}, "leave out slashes and line ends"),
        ({"name": 5}, "a name must be text"),
        ({"outputs": Tensor("y", "FP32", (1,))}, "outputs= must list Tensors"),
        ({"outputs": None}, "outputs= must list Tensors"),
        ({"max_delay_ms": "3"}, "max_delay_ms= must be a number"),
        ({"parameters": ["a"]}, "parameters= must be a dictionary"),
        ({"prepare": 5}, "prepare= must be"),
        ({"body": a_coroutine}, "is an async function"),
    ],
)
def test_a_declaration_of_another_kind_is_refused(declared, words):
    one = [Tensor("x", "FP32", (1,))]
    said = {"inputs": one, "outputs": one, "body": lambda helper, x: x, **declared}
    with pytest.raises(ConfigError, match=words):
        Model(**said)


@pytest.mark.parametrize("labels", ["cat", 5])
def test_labels_are_a_list(labels):
    with pytest.raises(ConfigError, match="must be a list, in order of classes"):
        Tensor("y", "FP32", (3,), labels=labels)


def test_what_no_arena_could_hold_is_not_to_be_tried_again():
    full = ArenaFull("no room", 3 << 20, 2 << 20, 2 << 20, 4 << 20)
    assert statuses.answer_to(full)[0] == 503
    status, sentence = statuses.answer_to(full, body_bytes=1 << 20)
    assert status == 500 and "larger --arena" in sentence and "try again" not in sentence


def test_an_answer_that_is_larger_than_the_arena_says_what_to_raise(tmp_path):
    path = tmp_path / "large.py"
    path.write_text(
        "import numpy as np\n"
        "from shmgpu.serve import Tensor, model\n"
        "count, filled = Tensor('n', 'INT64', (1,)), Tensor('y', 'FP32', (-1,))\n"
        "@model(inputs=[count], outputs=[filled], warmup=[])\n"
        "def fill(helper, n):\n"
        "    return np.ones(int(n[0]), 'float32')\n"
    )
    with servers.serving(path, helpers=1, workers=1, arena="2MiB") as server:

        def fill(count):
            asked = {"name": "n", "datatype": "INT64", "shape": [1], "data": [count]}
            body = json.dumps({"inputs": [asked]}).encode()
            return server.ask("POST", "/v2/models/fill/infer", body)

        status, _, answer = fill(1 << 20)
        assert (status, b"larger --arena" in answer) == (500, True)
        assert fill(1 << 18)[0] == 200


def test_an_error_without_words_is_named_alone():
    assert statuses.answer_to(RemoteError("MemoryError", "", ""))[1] == "MemoryError"


def test_an_answer_that_is_too_large_says_what_to_set():
    status, sentence = statuses.answer_to(ResultTooLarge("infer: the result is larger"))
    assert status == 500 and "SHMGPU_PARKED" in sentence
