"""Small requests in clients' regions that come together: one message, each its own answer."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import struct

import pytest
from serve import servers
from serve.alike import Crowd, OwnRegionClient, calls

MODEL = """
import numpy as np
from shmgpu.serve import Tensor, model

X = [Tensor("x", "FP32", (-1, -1))]
Y = [Tensor("y", "FP32", (-1, -1))]


@model(inputs=X, outputs=Y, max_batch_size=8)
def double(helper, x):
    if (x < 0).any():
        raise ValueError("no number below zero")
    return x + x


@model(inputs=X, outputs=Y, max_batch_size=8, arrays="torch")
def tensors(helper, x):
    return x.mul_(2)


@model(inputs=X, outputs=Y, max_batch_size=8)
def narrow(helper, x):
    return x[:, :1] if (x == 7).all() else x + x


@model(inputs=X, outputs=Y, max_batch_size=8)
def flat(helper, x):
    return x[:, 0] if (x == 7).all() else x + x


@model(inputs=X, outputs=Y, max_batch_size=8)
def telling(helper, x):
    if (x >= 100).any():
        helper.response.parameters["own"] = x[:, 0]
    return x


@model(inputs=X, outputs=Y)
def unbatched(helper, x):
    return x + x
"""
CROWD = 12
NAMES = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("regions") / "models.py"
    path.write_text(MODEL)
    with servers.serving(
        path,
        servers.MODELS / "simple.py",
        workers=1,
        helpers=1,
        allow_client_shm=True,
        grpc_port=0,
    ) as running:
        yield running


@pytest.fixture
def crowd_of(server):
    with contextlib.ExitStack() as opened:

        def make(model, rows=1):
            clients = [
                OwnRegionClient(server, opened, model, f"r{next(NAMES)}", rows)
                for _ in range(CROWD)
            ]
            for client in clients:
                opened.callback(client.socket.close)
            crowd = Crowd(server, clients, rows)
            for _ in range(3):  # registering made the server forget what it knew
                crowd.ask([1] * CROWD)
            return crowd

        yield make


@pytest.mark.parametrize(("model", "rows"), [("double", 1), ("double", 2), ("tensors", 1)])
def test_each_of_those_that_came_together_gets_its_own(server, crowd_of, model, rows):
    crowd = crowd_of(model, rows)
    before, statistics = calls(server), server.statistics(model)
    for turn in range(5):
        values = [100 * turn + number for number in range(CROWD)]
        assert crowd.ask(values) == [(200, (2 * value,) * 2 * rows) for value in values]
        for client, value in zip(crowd.clients, values, strict=True):
            assert client.given[:] == struct.pack("<ff", value, value) * rows
    assert calls(server) - before < 5 * CROWD / 2, "they went one by one"
    later = server.statistics(model)
    grown = [later[name] - statistics[name] for name in ("inference_count", "execution_count")]
    assert grown[0] == 5 * CROWD * rows and grown[1] < 5 * CROWD / 2
    stats = [one["inference_stats"]["success"]["count"] for one in (statistics, later)]
    assert stats[1] - stats[0] == 5 * CROWD


def test_those_of_models_without_batches_go_one_by_one(server, crowd_of):
    crowd = crowd_of("unbatched")
    before = calls(server)
    assert crowd.ask(range(CROWD)) == [(200, (2 * n, 2 * n)) for n in range(CROWD)]
    assert calls(server) - before == CROWD


def test_a_region_that_is_not_what_it_was_costs_its_client_alone(server, crowd_of):
    crowd = crowd_of("double")
    helpers = server.children()
    lost = {2: "in", 5: "out"}
    for number, what in lost.items():
        os.truncate(f"/dev/shm/tests-{crowd.clients[number].name}-{what}-{os.getpid()}", 0)
    for _ in range(3):
        with servers.stopped(crowd.worker):
            for number, client in enumerate(crowd.clients):
                if number not in lost:
                    client.given[:] = struct.pack("<ff", number, number)
                super(OwnRegionClient, client).send(b"")
        for number, client in enumerate(crowd.clients):
            if number not in lost:
                status, _, data = client.answer()
                assert (status, struct.unpack("<ff", data)) == (200, (2 * number, 2 * number))
                continue
            status, said, _ = super(OwnRegionClient, client).answer()
            assert status == 400 and "has become smaller" in said["error"]
    assert server.children() == helpers


def test_an_error_is_told_to_all(crowd_of):
    crowd = crowd_of("double")
    for _ in range(3):
        assert crowd.ask([-1] * CROWD) == [(500, ())] * CROWD
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_a_result_of_another_shape_reaches_all(crowd_of):
    crowd = crowd_of("narrow")
    for _ in range(3):
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
        assert crowd.ask([7] * CROWD) == [(200, (7,))] * CROWD


def test_a_result_that_is_not_as_declared_is_refused_each(crowd_of):
    crowd = crowd_of("flat")
    assert crowd.ask([7] * CROWD) == [(500, ())] * CROWD
    assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_parameters_of_answers_reach_each(crowd_of):
    crowd = crowd_of("telling")
    values = [100 + number for number in range(CROWD)]
    for _ in range(2):
        crowd.send(values)
        for client, value in zip(crowd.clients, values, strict=True):
            status, said, _ = client.answer()
            assert (status, said["parameters"], client.taken[:]) == (
                200, {"own": value}, struct.pack("<ff", value, value),
            )  # fmt: skip


def test_those_who_leave_are_not_waited_for(server, crowd_of):
    crowd = crowd_of("double")
    leavers = {0, 3, 4}
    stay = [number for number in range(CROWD) if number not in leavers]
    assert crowd.ask(range(CROWD), leavers) == [(200, (2 * n, 2 * n)) for n in stay]
    servers.until(lambda: server.pending() == 0, "nothing is pending")


def test_over_grpc_too(server):
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
    with contextlib.ExitStack() as opened:
        names = [f"g{next(NAMES)}" for _ in range(CROWD)]
        given, taken = (
            [opened.enter_context(server.region(f"{name}-{what}", 8)) for name in names]
            for what in ("in", "out")
        )
        client = opened.enter_context(grpc.InferenceServerClient(server.grpc_address))
        inputs, outputs = [], []
        for name in names:
            inputs.append(grpc.InferInput("x", [1, 2], "FP32"))
            inputs[-1].set_shared_memory(f"{name}-in", 8)
            outputs.append(grpc.InferRequestedOutput("y"))
            outputs[-1].set_shared_memory(f"{name}-out", 8)
        errors: queue.Queue[object] = queue.Queue()
        for turn in range(6):
            for number, memory in enumerate(given):
                memory[:] = struct.pack("<ff", turn, number)
            with servers.stopped(server.children()[-1]):
                for x, y in zip(inputs, outputs, strict=True):
                    client.async_infer(
                        "double", [x], lambda result, error: errors.put(error), outputs=[y]
                    )
            for _ in names:
                assert errors.get(timeout=servers.DEADLINE_S) is None
            for number, memory in enumerate(taken):
                assert struct.unpack("<ff", memory[:]) == (2 * turn, 2 * number)
