"""Requests that are alike to the byte but for their tensors: the way of most of them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import threading

import numpy as np
import pytest
from serve import servers

MODEL = """
import numpy as np
from shmgpu.serve import Tensor, model


@model(inputs=[Tensor("a", "FP32", (-1, 2)), Tensor("b", "INT64", (-1, 1))],
       outputs=[Tensor("sum", "FP32", (-1, 2)), Tensor("twice", "INT64", (-1, 1))],
       max_batch_size=8)
def both(helper, a, b):
    return a + b.astype("float32"), 2 * b


@model(inputs=[Tensor("x", "FP32", (-1,))], outputs=[Tensor("y", "FP32", (-1,))])
def moody(helper, x):
    if x[0] < 0:
        raise ValueError("no number below zero")
    return x[:1] if x[0] == 7 else x


@model(inputs=[Tensor("x", "FP32", (-1, -1))], outputs=[Tensor("y", "FP32", (-1, -1))],
       max_batch_size=8)
def in_place(helper, x):
    if (x < 0).any():
        raise ValueError("no number below zero")
    return np.add(x, x, out=helper.out)


@model(inputs=[Tensor("x", "FP32", (-1, -1))], outputs=[Tensor("y", "FP32", (-1, -1))],
       max_batch_size=8)
def narrow(helper, x):
    return x[:, :1] if (x == 7).all() else x + x


@model(inputs=[Tensor("x", "FP32", (-1, -1))], outputs=[Tensor("y", "FP32", (-1, -1))],
       max_batch_size=8)
def narrow_once(helper, x):
    return narrow.body(helper, x)


@model(inputs=[Tensor("a", "FP32", (-1, 2)), Tensor("b", "FP32", (-1, 2), optional=True),
               Tensor("c", "FP32", (-1, 2))],
       outputs=[Tensor("sum", "FP32", (-1, 2))], max_batch_size=8, warmup=[])
def gapped(helper, a, b, c):
    return a + c
"""
ALIKE = 12  # by the third a request is known, and soon it has a lane


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("lanes") / "models.py"
    path.write_text(MODEL)
    return path


def serving(path):
    return servers.serving(path, servers.MODELS / "simple.py", workers=1, helpers=1)


@pytest.fixture(scope="module")
def server(path):
    with serving(path) as running:
        yield running


class Client:
    """One connection that sends requests alike."""

    def __init__(self, server, model, inputs, outputs):
        self.path = f"/v2/models/{model}/infer"
        tensors = [
            {"name": n, "datatype": t, "shape": shape, "parameters": {"binary_data_size": size}}
            for n, t, shape, size in inputs
        ]
        wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        self.header = json.dumps({"inputs": tensors, "outputs": wanted}).encode()
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=30)

    def message(self, data):
        return self.header + data

    def ask(self, data):
        """The status, and the JSON and the bytes behind it of the answer."""
        length = str(len(self.header))
        headers = {"Inference-Header-Content-Length": length}
        self.connection.request("POST", self.path, self.message(data), headers)
        response = self.connection.getresponse()
        body = response.read()
        size = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        return response.status, json.loads(body[:size]), body[size:]


def both(server):
    inputs = [("a", "FP32", [1, 2], 8), ("b", "INT64", [1, 1], 8)]
    return Client(server, "both", inputs, ["twice", "sum"])


def in_place(server, model="in_place"):
    return Client(server, model, [("x", "FP32", [1, 2], 8)], ["y"])


def moody(server):
    return Client(server, "moody", [("x", "FP32", [2], 8)], ["y"])


def test_each_of_many_alike_is_answered_with_its_own(server):
    wrong = []

    def run(seed):
        client = both(server)
        for number in range(200):
            b = 1000 * seed + number
            status, said, data = client.ask(struct.pack("<ffq", 0.5, 1.5, b))
            twice, first, second = struct.unpack("<qff", data)
            names = [one["name"] for one in said["outputs"]]
            right = (200, ["twice", "sum"], 2 * b, b + 0.5, b + 1.5)
            if (status, names, twice, first, second) != right:
                wrong.append((seed, number, status, said, data))
        client.connection.close()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_and_a_result_of_another_shape_among_many_alike_are_told(server):
    client = moody(server)
    for round_ in range(3):
        for number in range(ALIKE):
            status, _, data = client.ask(struct.pack("<ff", number % 5, 2))
            assert (status, struct.unpack("<ff", data)) == (200, (number % 5, 2)), round_
        status, said, _ = client.ask(struct.pack("<ff", -1, 2))
        assert status == 500
        assert "no number below zero" in said["error"]
        status, said, data = client.ask(struct.pack("<ff", 7, 2))
        assert (status, said["outputs"][0]["shape"], data) == (200, [1], struct.pack("<f", 7))


def test_a_model_may_write_its_output_where_it_is_sent_from(server):
    client = in_place(server)
    for number in range(3 * ALIKE):
        if number % ALIKE == ALIKE - 1:
            assert client.ask(struct.pack("<ff", -1, 2))[0] == 500
        status, _, data = client.ask(struct.pack("<ff", number, 2))
        assert (status, struct.unpack("<ff", data)) == (200, (2 * number, 4))


def test_one_that_is_alike_but_cut_short_or_too_long_is_refused(server):
    client = moody(server)
    for _ in range(ALIKE):
        assert client.ask(bytes(8))[0] == 200
    for size in (0, 4, 12):
        assert client.ask(bytes(size))[0] == 400
    assert client.ask(bytes(8))[0] == 200


def read_answer(reader):
    """The last eight bytes of one answer's body."""
    assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
    size = 0
    while (line := reader.readline()) != b"\r\n":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    return reader.read(size)[-8:]


@pytest.mark.parametrize("piece_bytes", [1 << 20, 300, 7])
def test_requests_alike_that_come_together_or_in_pieces_are_answered_in_order(server, piece_bytes):
    client = moody(server)
    length = len(client.header)
    head = (
        f"POST {client.path} HTTP/1.1\r\nHost: here\r\nContent-Length: {length + 8}\r\n"
        f"Inference-Header-Content-Length: {length}\r\n\r\n"
    ).encode()
    with socket.create_connection((server.host, server.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb")
        for number in range(ALIKE):
            connection.sendall(head + client.message(struct.pack("<ff", number % 5, 1)))
            assert read_answer(reader) == struct.pack("<ff", number % 5, 1)
        for _ in range(3):
            values = [struct.pack("<ff", number, 0) for number in range(4)]
            together = b"".join(head + client.message(value) for value in values)
            for start in range(0, len(together), piece_bytes):
                connection.sendall(together[start : start + piece_bytes])
            assert [read_answer(reader) for _ in values] == values
        reader.close()


def test_those_that_leave_an_optional_input_away_are_answered_too(server):
    client = Client(server, "gapped", [(n, "FP32", [1, 2], 8) for n in "ac"], ["sum"])
    for number in range(ALIKE):
        status, _, data = client.ask(struct.pack("<4f", number, 1, 2, 3))
        assert (status, struct.unpack("<ff", data)) == (200, (number + 2, 4))


class Crowd:
    """Clients whose requests come in one turn of the worker's loop."""

    def __init__(self, server, count, model="in_place"):
        self.worker = server.children()[-1]
        self.clients = [in_place(server, model) for _ in range(count)]
        for client in self.clients:
            assert client.ask(struct.pack("<ff", 1, 2))[0] == 200

    def ask(self, values, leavers=()):
        """What those are answered who stay."""
        self.send(values, leavers)
        return self.answers(leavers)

    def send(self, values, leavers=()):
        """Ask for one value each; the leavers are gone before the worker has read anything."""
        os.kill(self.worker, signal.SIGSTOP)
        try:
            for client, value in zip(self.clients, values, strict=True):
                headers = {"Inference-Header-Content-Length": str(len(client.header))}
                body = client.message(struct.pack("<ff", value, value))
                client.connection.request("POST", client.path, body, headers)
            self.leave(leavers)
        finally:
            os.kill(self.worker, signal.SIGCONT)

    def leave(self, leavers):
        """Have some clients go away."""
        for number in leavers:
            self.clients[number].connection.close()

    def answers(self, leavers=()):
        """The status and what lies behind the JSON, for each but those who left."""
        answers = []
        for number, client in enumerate(self.clients):
            if number in leavers:
                continue
            response = client.connection.getresponse()
            body = response.read()
            size = int(response.headers.get("Inference-Header-Content-Length", len(body)))
            found = struct.unpack(f"<{(len(body) - size) // 4}f", body[size:])
            answers.append((response.status, found))
        return answers


CROWD = 20


def executions(server):
    said = server.statistics("in_place")
    return said["inference_count"], said["execution_count"]


def test_requests_that_come_together_are_answered_each_with_its_own(server):
    crowd = Crowd(server, CROWD)
    requests, runs = executions(server)
    for turn in range(5):
        values = [100 * turn + number for number in range(CROWD)]
        assert crowd.ask(values) == [(200, (2 * value, 2 * value)) for value in values]
    more, further = executions(server)
    assert more - requests == 5 * CROWD
    assert further - runs <= 5 * CROWD / 2, "they ran one by one"


def test_an_error_is_told_to_all_that_came_together(server):
    crowd = Crowd(server, CROWD)
    for _ in range(3):
        assert crowd.ask([-1] * CROWD) == [(500, ())] * CROWD
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_a_result_of_another_shape_reaches_all_that_came_together(server):
    crowd = Crowd(server, CROWD, "narrow")
    for _ in range(3):
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
        assert crowd.ask([7] * CROWD) == [(200, (7,))] * CROWD
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_those_whose_joined_result_was_no_row_each_are_calls_of_their_own_from_then_on(
    server, gate
):
    crowd = Crowd(server, CROWD, "narrow_once")
    before = calls(server)
    assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
    assert calls(server) - before < CROWD / 2
    with servers.Held(server, gate):  # while something is under way, nobody goes by itself
        servers.until(lambda: server.pending() == 1, "a helper is busy")
        crowd.send([7] * CROWD)
        servers.until(lambda: server.pending() == CROWD + 1, "all have come")
    assert crowd.answers() == [(200, (7,))] * CROWD
    before = calls(server)
    assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
    assert calls(server) - before == CROWD


def calls(server):
    """That the dispatcher has taken, so far."""
    return server.samples()["shmgpu_calls_total", frozenset()]


@pytest.mark.parametrize("leavers", [set(), {3, 4, 11}, set(range(CROWD))])
def test_who_leaves_the_queue_is_counted_as_that_and_who_stays_is_answered(server, gate, leavers):
    stay = [number for number in range(CROWD) if number not in leavers]
    crowd, (answered, left, _) = leave_the_queue(server, gate, leavers)
    assert crowd.answers(leavers) == [(200, (2 * value, 2 * value)) for value in stay]
    assert (answered, left) == (len(stay), len(leavers))
    assert server.pending() == 0


def test_what_all_have_left_is_not_run(path, gate):
    # A server of its own, which never saw how long the held call takes: nothing is handed to the
    # helper behind it.
    with serving(path) as server:
        _, counts = leave_the_queue(server, gate, set(range(CROWD)))
        assert tuple(counts) == (0, CROWD, 0)


def leave_the_queue(server, gate, leavers):
    """A crowd of which some left while no helper was free, and by how much the counts grew."""
    crowd = Crowd(server, CROWD)
    before = counts(server)
    queued = ("shmgpu_queued", frozenset())
    with servers.Held(server, gate):
        servers.until(lambda: server.pending() == 1, "a helper is busy")
        crowd.send(range(CROWD))
        servers.until(lambda: server.pending() == CROWD + 1, "all have come")
        crowd.leave(leavers)
        remain = CROWD - len(leavers)
        servers.until(lambda: server.pending() == remain + 1, "nobody waits for those who left")
        servers.until(lambda: remain or not server.samples()[queued], "nor does the dispatcher")
    servers.until(lambda: server.pending() == 0, "the others are answered")
    return crowd, counts(server) - before


def counts(server, model="in_place"):
    """Requests that were answered, those whose clients left, and executions."""
    samples, labels = server.samples(), frozenset({("model", model), ("version", "1")})
    left = samples["nv_inference_request_failure", labels | {("reason", "CANCELED")}]
    answered = samples["nv_inference_request_success", labels]
    return np.array([answered, left, samples["nv_inference_exec_count", labels]])


def test_those_that_came_with_others_and_leave_cost_nobody_an_answer(server):
    for leavers in ({3, 4, 11}, set(range(CROWD))):
        crowd = Crowd(server, CROWD)
        answers = crowd.ask(list(range(CROWD)), leavers)
        stay = [number for number in range(CROWD) if number not in leavers]
        assert answers == [(200, (2 * value, 2 * value)) for value in stay]
        servers.until(lambda: not server.pending(), "nothing is pending")
    assert in_place(server).ask(struct.pack("<ff", 1, 2))[2] == struct.pack("<ff", 2, 4)


def test_clients_that_leave_cost_nobody_an_answer(server):
    client = moody(server)
    for _ in range(ALIKE):
        assert client.ask(bytes(8))[0] == 200
    for _ in range(100):
        leaver = moody(server)
        headers = {"Inference-Header-Content-Length": str(len(leaver.header))}
        leaver.connection.request("POST", leaver.path, leaver.message(bytes(8)), headers)
        leaver.connection.close()
    for number in range(ALIKE):
        value = struct.pack("<ff", number % 5, 2)
        assert client.ask(value)[2] == value
    servers.until(lambda: not server.pending(), "nothing is pending")
