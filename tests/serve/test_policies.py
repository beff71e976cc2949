"""What models say of their requests: how many may wait, how long, which inputs they omit."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import types
from dataclasses import asdict
from unittest import mock

import pytest
from serve import servers

from shmgpu.errors import RemoteError, remote_name
from shmgpu.serve import QueuePolicy
from shmgpu.serve.models.errors import Unloaded
from shmgpu.serve.protocol.types import InferRequest
from shmgpu.serve.scheduling.inference import Calls
from shmgpu.serve.scheduling.pending import Pending
from shmgpu.serve.scheduling.queues import ModelQueue

MODEL = servers.MODELS / "policies.py"


@pytest.fixture(scope="module")
def server():
    with servers.serving(MODEL, workers=1, helpers=1, grpc_port=0) as running:
        yield running


def infer(server, model, inputs, **more):
    body = json.dumps({"inputs": inputs, **more}).encode()
    status, _, answer = server.ask("POST", f"/v2/models/{model}/infer", body)
    return status, json.loads(answer)


def held(gate):
    return [{"name": "path", "datatype": "BYTES", "shape": [1], "data": [str(gate)]}]


def test_a_model_has_no_more_requests_than_its_queue_holds(server, gate):
    def failed():
        return server.statistics("short")["inference_stats"]["fail"]["count"]

    before, answers = failed(), []
    threads = [
        threading.Thread(target=lambda: answers.append(infer(server, "short", held(gate))))
        for _ in range(2)
    ]
    for one in threads:
        one.start()
    servers.until(lambda: server.pending() == 2, "both are pending")
    try:
        status, answer = infer(server, "short", held(gate))
        assert (status, answer["error"]) == (503, "Exceeds maximum queue size")
        assert failed() == before + 1
        # Others have queues of their own.
        thread = threading.Thread(
            target=lambda: answers.append(infer(server, "optional", [], id="other"))
        )
        thread.start()
        threads.append(thread)
        servers.until(lambda: server.pending() == 3, "another model's request is pending")
    finally:
        gate.touch()
        for one in threads:
            one.join()
    assert [status for status, _ in answers] == [200] * 3
    assert infer(server, "short", held(gate))[0] == 200


def test_known_requests_are_refused_as_others_are(server, gate, tmp_path):
    """After some equal ones, a request would take the short way."""
    gate.touch()
    for _ in range(6):
        assert infer(server, "short", held(gate))[0] == 200
    other = tmp_path / "other"
    threads = [threading.Thread(target=infer, args=(server, "short", held(other))) for _ in "ab"]
    for one in threads:
        one.start()
    servers.until(lambda: server.pending() == 2, "both are pending")
    try:
        assert infer(server, "short", held(gate))[0] == 503
    finally:
        other.touch()
        for one in threads:
            one.join()


def test_a_request_that_names_no_time_has_its_models(server, gate, tmp_path):
    status, answer = infer(server, "hasty", held(gate))
    assert (status, answer["error"]) == (503, "Request timeout expired")
    gate.touch()  # the late one ends
    servers.until(lambda: infer(server, "optional", [])[0] == 200, "the helper is free")
    other, answers = tmp_path / "other", []
    thread = threading.Thread(
        target=lambda: answers.append(
            infer(server, "hasty", held(other), parameters={"timeout": 25_000_000})
        )
    )
    thread.start()
    servers.until(lambda: server.pending() == 1, "it is pending")
    thread.join(0.2)  # four times what the model gives
    other.touch()
    thread.join()
    assert answers[0][0] == 200


def test_the_configuration_shows_the_policy(server):
    shown = json.loads(server.ask("GET", "/v2/models/batched/config")[2])
    assert shown["dynamic_batching"]["default_queue_policy"] == {
        "timeout_action": "REJECT",
        "default_timeout_microseconds": 1_500_000,
        "allow_timeout_override": True,
        "max_queue_size": 7,
    }


def test_the_configuration_shows_the_policies_of_priorities(server):
    def policy(**changed):
        return {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": True,
            "max_queue_size": 0,
        } | changed

    expected = {
        "2": policy(timeout_action="DELAY", default_timeout_microseconds=20_000),
        "4": policy(max_queue_size=3, allow_timeout_override=False),
    }
    shown = json.loads(server.ask("GET", "/v2/models/batched/config")[2])["dynamic_batching"]
    assert shown["priority_queue_policy"] == expected
    assert (shown["priority_levels"], shown["default_priority_level"]) == (4, 4)
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with client.InferenceServerClient(server.grpc_address) as made:
        found = made.get_model_config("batched").config.dynamic_batching
    assert found.priority_levels == found.default_priority_level == 4
    assert found.default_queue_policy.max_queue_size == 7
    assert {
        str(level): policy(
            timeout_action=one.TimeoutAction.Name(one.timeout_action),
            default_timeout_microseconds=one.default_timeout_microseconds,
            allow_timeout_override=one.allow_timeout_override,
            max_queue_size=one.max_queue_size,
        )
        for level, one in found.priority_queue_policy.items()
    } == expected


X = [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]


class Waiting:
    """Requests in threads, each once it is pending; their statuses and turns by their names."""

    def __init__(self, server):
        self.server, self.statuses, self.turns, self.threads = server, {}, {}, []

    def ask(self, name, **parameters):
        """Have one more wait; each by a connection of its own, and as bytes where it says so."""
        before = self.server.pending()
        self.threads.append(threading.Thread(target=self._ask, args=(name, parameters)))
        self.threads[-1].start()
        servers.until(lambda: self.server.pending() > before, f"{name} is pending")

    def _ask(self, name, parameters):
        self.statuses[name], answer = infer(self.server, "graded", X, parameters=parameters)
        if self.statuses[name] == 200:
            self.turns[name] = answer["outputs"][0]["data"][0]

    def join(self):
        for one in self.threads:
            one.join()


@pytest.fixture
def asked(server, gate):
    """Nothing that is asked runs until the gate is there."""
    found = Waiting(server)
    holder = threading.Thread(target=infer, args=(server, "short", held(gate)))
    holder.start()
    servers.until(lambda: server.pending() == 1, "the helper is busy")
    yield found
    gate.touch()
    found.join()
    holder.join()


def test_a_priority_has_a_queue_of_its_own(server, asked):
    def status(**parameters):
        return infer(server, "graded", X, parameters=parameters)[0]

    asked.ask("plain")
    asked.ask("other", priority=7)
    assert status() == 503  # they are as many as the model takes
    assert status(priority=9) == 503
    asked.ask("first", priority=1)
    assert status(priority=1) == 503


def test_known_requests_wait_in_the_queue_of_their_priority(server, gate, tmp_path):
    """Requests like earlier ones take the short way, which counts and refuses as the long one."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "x",
                    "datatype": "FP32",
                    "shape": [1],
                    "parameters": {"binary_data_size": 4},
                }
            ],
            "parameters": {"priority": 1, "binary_data_output": True},
        }
    ).encode()
    more = {"Inference_Header_Content_Length": str(len(header))}

    def ask():
        return server.ask("POST", "/v2/models/graded/infer", header + bytes(4), **more)[0]

    assert [ask() for _ in range(8)] == [200] * 8
    holder = threading.Thread(target=infer, args=(server, "short", held(gate)))
    holder.start()
    servers.until(lambda: server.pending() == 1, "the helper is busy")
    one = threading.Thread(target=ask)
    one.start()
    servers.until(lambda: server.pending() == 2, "one of the priority is pending")
    try:
        assert ask() == 503
    finally:
        gate.touch()
        one.join()
        holder.join()
    assert ask() == 200


def test_a_priority_has_a_time_of_its_own_which_requests_may_not_change(server, asked):
    named = {"priority": 2, "timeout": 25_000_000}
    status, answer = infer(server, "graded", X, parameters=named)
    assert (status, answer["error"]) == (503, "Request timeout expired")
    asked.ask("plain")  # has no time, as the model gives none


def test_a_request_that_is_delayed_waits_behind_all_others(server, gate, asked):
    def cancelled():
        done = subprocess.run(
            [sys.executable, "-m", "shmgpu", "top", str(server.process.pid), "--once", "--json"],
            env=servers.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)["broker"]["cancelled"]

    before = cancelled()
    asked.ask("ahead")  # its helper may have this one already
    asked.ask("plain")
    asked.ask("late", priority=3)
    servers.until(lambda: cancelled() > before, "it was taken back")
    asked.ask("urgent", priority=1)
    assert not asked.turns
    gate.touch()
    asked.join()
    assert set(asked.statuses.values()) == {200}
    assert asked.turns["urgent"] < asked.turns["plain"] < asked.turns["late"]


def test_a_delayed_request_that_is_in_time_is_served_by_its_priority(server, gate, asked):
    asked.ask("ahead")
    asked.ask("plain")
    asked.ask("third", priority=3, timeout=25_000_000)
    gate.touch()
    asked.join()
    assert asked.turns["third"] < asked.turns["plain"]


@pytest.mark.parametrize(("waited", "left"), [(10, 15), (40, 0)])
def test_a_request_whose_model_was_replaced_has_what_was_left_of_its_time(waited, left):
    """Until it waits behind others: from when it came, not from when it was sent again."""
    policy = asdict(QueuePolicy(default_timeout_ms=25_000, timeout_action="DELAY"))
    queue = ModelQueue(0, policy)
    old, new = (
        mock.Mock(number=number, metadata="same", prepared=None, sequence=None)
        for number in range(2)
    )
    for one in old, new:
        one.queue_of.return_value = queue
    loop, port = mock.Mock(), mock.Mock()
    catalog = types.SimpleNamespace(find=lambda name, version: new)
    calls = Calls(port, catalog, mock.Mock(), None, loop, mock.Mock(), {"default": [0]})
    came_ns = time.monotonic_ns() - waited * 10**9
    pending = Pending(calls, old, InferRequest(), (0,), 1, came_ns, mock.Mock())
    calls._send(pending)
    pending.ended(mock.Mock(), None, RemoteError(remote_name(Unloaded), ""))
    assert pending.served is new and port.submit.call_args.args[1] == (1,)
    delays = [call.args[0] for call in loop.call_later.call_args_list]
    assert len(delays) == 2 and all(left - 5 <= delay <= left for delay in delays)


@pytest.mark.parametrize("given", [[], ["x"], ["text"], ["x", "text"]])
def test_a_request_may_omit_all_inputs_that_are_optional(server, given):
    tensors = {
        "x": {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]},
        "text": {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    }
    for _ in range(5):
        status, answer = infer(server, "optional", [tensors[name] for name in given])
        assert status == 200, answer
        assert answer["outputs"][0]["data"] == [",".join(given)]


def test_such_a_request_may_come_by_any_way(server):
    client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with client.InferenceServerClient(server.grpc_address) as made:
        assert made.infer("optional", []).as_numpy("given").tolist() == [b""]
    assert json.loads(server.ask("POST", "/v2/models/optional/generate", b"{}")[2])["given"] == ""
    body = b"{}"
    size = {"Inference_Header_Content_Length": "2"}
    for _ in range(5):
        assert server.ask("POST", "/v2/models/optional/infer", body, **size)[0] == 200


@pytest.mark.parametrize("model", ["short", "rows"])
def test_a_model_that_needs_an_input_is_not_asked_without(server, model):
    """One of rows does, as nothing else would say how many there are."""
    status, answer = infer(server, model, [])
    assert status == 400
    assert "no inputs" in answer["error"]


@pytest.mark.table
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("max_queue_size=-1", "max_queue_size=-1"),
        ("max_queue_size=1.5", "max_queue_size=1.5"),
        ("default_timeout_ms=-1", "default_timeout_ms=-1"),
        ("default_timeout_ms='x'", "default_timeout_ms='x'"),
        ("priority_queue_policy=[1]", "policies by priority"),
        ("priority_queue_policy={5: QueuePolicy()}", "5 is no priority: use 1 to 4"),
        ("priority_queue_policy={1: 2}", "priority 1 must have a QueuePolicy"),
        ("priority_queue_policy={1: QueuePolicy(timeout_action='x')}", "timeout_action='x'"),
        ("priority_queue_policy={1: QueuePolicy(allow_timeout_override=1)}", "override=1"),
        (
            "sequence=True, priority_queue_policy={1: QueuePolicy(timeout_action='DELAY')}",
            'use "REJECT"',
        ),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(tmp_path, said, why):
    path = tmp_path / "models.py"
    path.write_text(
        "from shmgpu.serve import QueuePolicy, Tensor, model\n"
        "X = [Tensor('x', 'FP32', (1,))]\n"
        f"@model(inputs=X, outputs=X, {said})\n"
        "def same(helper, x):\n    return x\n"
    )
    with pytest.raises(AssertionError, match=why):
        with servers.serving(path, workers=1, helpers=1):
            pass


def test_a_file_may_declare_as_many_models_as_a_flag_says(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(
        "from shmgpu.serve import Tensor, model\n"
        "X = [Tensor('x', 'FP32', (1,))]\n"
        "for number in range(70):\n"
        "    globals()[f'm{number}'] = model(name=f'm{number}', inputs=X, outputs=X)("
        "lambda helper, x: x)\n"
    )
    with servers.serving(path, workers=1, helpers=1, models_per_file=70) as server:
        x = [{"name": "x", "datatype": "FP32", "shape": [1], "data": [5]}]
        for name in ("m0", "m63", "m64", "m69"):
            assert infer(server, name, x)[1]["outputs"][0]["data"] == [5.0]
    done = subprocess.run(
        [sys.executable, "-m", "shmgpu", "serve", str(path), "--port", "0"],
        env=servers.environment(),
        capture_output=True,
        text=True,
        timeout=servers.DEADLINE_S,
    )
    assert done.returncode != 0
    assert "declares 70 models, more than 64" in done.stderr
    assert "--models-per-file" in done.stderr
