"""Deaths, drains, time-outs, full queues: what clients see of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import threading
import time

import pytest
from serve import servers

MODEL = servers.MODELS / "simple.py"


def body(model_input, data, datatype="FP64"):
    shape = [len(data)]
    return json.dumps(
        {"inputs": [{"name": model_input, "datatype": datatype, "shape": shape, "data": data}]}
    ).encode()


def sleep(server, seconds, **headers):
    """Status and answer of the model that sleeps."""
    status, _, answer = server.ask(
        "POST", "/v2/models/sleep/infer", body("seconds", [seconds]), **headers
    )
    return status, json.loads(answer)


def helper_pid(server):
    return sleep(server, 0)[1]["outputs"][0]["data"][0]


def pending(server, count):
    """Wait until so many requests are with helpers or in the queue."""
    servers.until(lambda: server.pending() >= count, f"{count} requests are pending")


def test_a_killed_helper_costs_the_request_that_it_ran_and_is_replaced(gate):
    with servers.serving(MODEL, helpers=1, workers=1) as server:
        pid = helper_pid(server)
        with servers.Held(server, gate) as lost:
            pending(server, 1)
            with servers.Held(server, gate) as queued:
                pending(server, 2)
                os.kill(pid, signal.SIGKILL)
                lost.thread.join(servers.DEADLINE_S)
        assert lost.answer[0] == 503, lost.answer
        assert "died" in lost.answer[1]["error"]
        assert queued.answer[0] == 200, "the queued request was lost, too"
        assert helper_pid(server) != pid


def test_a_killed_worker_costs_its_connections_and_is_replaced():
    with servers.serving(MODEL, workers=2) as server:
        workers = server.children()[-2:]
        os.kill(workers[0], signal.SIGKILL)
        # Until it has ended it may be given connections, which end with it.
        servers.until(lambda: workers[0] not in server.children(), "it is gone")
        for _ in range(20):
            assert sleep(server, 0)[0] == 200
        servers.until(
            lambda: len(server.children()) == 4,
            "another worker",
        )
        for _ in range(20):
            assert sleep(server, 0)[0] == 200


def status_of(pid):
    return pathlib.Path(f"/proc/{pid}/status").read_text()


def has_ended(pid):
    """Whoever adopts an orphan may take his time to wait for it; that is no process any more."""
    try:
        return "State:\tZ" in status_of(pid)
    except OSError:
        return True


def test_a_worker_that_is_told_to_end_answers_first_and_is_replaced(gate):
    with servers.serving(MODEL, workers=1) as server:
        (worker,) = server.children()[-1:]
        with servers.Held(server, gate) as running:
            pending(server, 1)
            os.kill(worker, signal.SIGTERM)
            servers.until(lambda: "ShdPnd:\t0000000000000000" in status_of(worker), "it heard")
        assert running.answer[0] == 200
        servers.until(lambda: worker not in server.children(), "it has ended")
        servers.until(server.is_ready, "another worker")


def test_an_end_turns_ready_off_first_and_answers_what_was_asked(gate):
    with servers.serving(MODEL, helpers=1, workers=1, drain_delay=2) as server:
        with servers.Held(server, gate) as running, servers.Held(server, gate) as queued:
            pending(server, 2)
            server.process.send_signal(signal.SIGTERM)
            servers.until(lambda: not server.is_ready(), "not ready")
            assert server.ask("GET", "/v2/health/live")[0] == 200
            gate.touch()
            late = sleep(server, 0)  # before the server stops accepting
        assert [running.answer[0], queued.answer[0], late[0]] == [200, 200, 200]
        server.process.wait(servers.DEADLINE_S)
        with pytest.raises(OSError):
            sleep(server, 0)


class Loop(threading.Thread):
    """A client that asks as soon as it is answered, until it finds nobody who listens.

    Attributes:
        answered: how often it was.
        lost: what became of requests that were sent and not answered.
        goodbyes: connections of which an answer said that it was the last.
    """

    REQUEST = b"POST /v2/models/sleep/infer HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b"

    def __init__(self, server):
        super().__init__()
        self.server = server
        self.answered = self.goodbyes = 0
        self.lost = []
        self.start()

    def run(self):
        data = body("seconds", [0.0])
        request = self.REQUEST % (len(data), data)
        while True:
            try:
                connection = socket.create_connection((self.server.host, self.server.port))
            except ConnectionRefusedError:
                return
            with connection:
                connection.settimeout(servers.DEADLINE_S)
                is_last = False
                asked = 0
                while not is_last:
                    asked += 1
                    try:
                        connection.sendall(request)
                        with http.client.HTTPResponse(connection) as response:
                            response.begin()
                            response.read()
                    except (OSError, http.client.HTTPException) as error:
                        self.lost.append(f"request {asked} of a connection: {error!r}")
                        return
                    assert response.status == 200
                    self.answered += 1
                    is_last = response.headers.get("Connection") == "close"
                self.goodbyes += 1


def lose_none(server, clients):
    loops = [Loop(server) for _ in range(clients)]
    servers.end_amid(server, loops)
    assert all(one.goodbyes for one in loops)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_end_amid_requests_loses_none_that_was_sent(workers):
    with servers.serving(MODEL, helpers=1, workers=workers) as server:
        lose_none(server, 16)


def test_an_end_closes_connections_that_nobody_uses(gate):
    with servers.serving(MODEL, helpers=1, workers=1) as server:
        with socket.create_connection((server.host, server.port)) as idle:
            servers.until(lambda: server.children(), "they run")
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            idle.settimeout(servers.DEADLINE_S)
            assert idle.recv(1) == b""
        assert server.process.wait(servers.DEADLINE_S) == 0
        assert time.monotonic() - started < servers.DEADLINE_S / 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("time_", range(10))
def test_ten_ends_in_a_row_lose_none(time_):
    with servers.serving(MODEL, helpers=2, workers=1 + time_ % 2) as server:
        lose_none(server, 32)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_that_everybody_is_told_at_once_is_one_in_order(gate, number):
    with servers.serving(MODEL, helpers=1, workers=2, drain_delay=1, in_group=True) as server:
        with servers.Held(server, gate) as running, servers.Held(server, gate) as queued:
            pending(server, 2)
            os.killpg(server.process.pid, number)
            servers.until(lambda: not server.is_ready(), "not ready")
        assert [running.answer[0], queued.answer[0]] == [200, 200]
        assert server.process.wait(servers.DEADLINE_S) == 0
    assert server.said == ""


def test_a_worker_that_is_told_before_its_parent_listens_has_not_failed():
    with servers.serving(MODEL, helpers=1, workers=1, in_group=True) as server:
        (worker,) = server.children()[-1:]
        server.process.send_signal(signal.SIGSTOP)
        try:
            os.killpg(server.process.pid, signal.SIGTERM)
            servers.until(lambda: has_ended(worker), "the worker has ended")
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert server.process.wait(servers.DEADLINE_S) == 0
    assert server.said == ""


def test_a_full_queue_is_503(gate):
    with (
        servers.serving(MODEL, helpers=1, workers=1, max_queue=2) as server,
        servers.Held(server, gate) as first,
        servers.Held(server, gate) as second,
    ):
        pending(server, 2)
        status, answer = sleep(server, 0)
        assert status == 503
        assert "queue" in answer["error"]
        first.let_go()
        second.let_go()
        assert (first.answer[0], second.answer[0]) == (200, 200)
        assert sleep(server, 0)[0] == 200


def test_a_request_in_the_queue_beyond_its_time_is_503(gate):
    with (
        servers.serving(MODEL, helpers=1, workers=1) as server,
        servers.Held(server, gate) as first,
    ):
        pending(server, 1)
        late = json.loads(body("seconds", [0.0]))
        late["parameters"] = {"timeout": 50_000}  # microseconds
        started = time.monotonic()
        status, _, answer = server.ask("POST", "/v2/models/sleep/infer", json.dumps(late).encode())
        assert (status, first.answer) == (503, None), "it waited for the first"
        assert "timeout" in json.loads(answer)["error"]
        assert time.monotonic() - started >= 0.05


def test_what_a_client_that_left_has_in_the_queue_is_not_run(gate):
    with servers.serving(MODEL, helpers=1, workers=1) as server:
        with servers.Held(server, gate):
            pending(server, 1)
            with socket.create_connection((server.host, server.port)) as leaving:
                data = body("seconds", [0.0])
                leaving.sendall(
                    b"POST /v2/models/sleep/infer HTTP/1.1\r\nHost: x\r\n"
                    b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
                )
                pending(server, 2)
            servers.until(lambda: server.pending() == 1, "it has left the queue")
        assert server.statistics("held")["execution_count"] == 1
        assert server.statistics("sleep")["execution_count"] == 0


def test_a_session_that_fails_ends_the_command_with_a_sentence(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def load(helper):\n    raise OSError('no weights here')\n")
    with pytest.raises(AssertionError, match="no weights here"), servers.serving(path):
        pass


def test_a_taken_port_is_said_before_anything_is_started():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(AssertionError, match="cannot listen"),
            servers.serving(MODEL, port=port),
        ):
            pass


TURNS = """
import numpy as np
from shmgpu.serve import Tensor, model

turns = 0

@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("turn", "INT64", (1,))], warmup=[])
def turn(helper, x):
    global turns
    turns += 1
    return np.array([turns])
"""


def test_a_priority_goes_before_what_waits_longer(gate, tmp_path):
    (tmp_path / "turns.py").write_text(TURNS)
    with servers.serving(MODEL, tmp_path / "turns.py", helpers=1, workers=1) as server:
        turns = {}

        def ask(name, **parameters):
            asked = json.loads(body("x", [1.0], "FP32"))
            asked["parameters"] = parameters
            _, _, answer = server.ask("POST", "/v2/models/turn/infer", json.dumps(asked).encode())
            turns[name] = json.loads(answer)["outputs"][0]["data"][0]

        with servers.Held(server, gate) as running:
            pending(server, 1)
            asking = []
            for count, (name, parameters) in enumerate(
                [("plain", {}), ("third", {"priority": 3}), ("first", {"priority": 1})], 2
            ):
                asking.append(threading.Thread(target=ask, args=(name,), kwargs=parameters))
                asking[-1].start()
                pending(server, count)
            running.let_go()
            for one in asking:
                one.join()
        assert turns == {"first": 1, "third": 2, "plain": 3}


def test_nothing_of_a_server_stays_behind():
    with servers.serving(MODEL, helpers=1, workers=1) as server:
        assert sleep(server, 0)[0] == 200
        pids = server.children()
    assert [pid for pid in pids if not has_ended(pid)] == []


def test_when_the_parent_is_killed_nobody_stays():
    with servers.serving(MODEL, helpers=1, workers=2) as server:
        assert sleep(server, 0)[0] == 200
        pids = server.children()
        assert len(pids) == 3
        server.process.kill()
        server.process.wait()
        servers.until(
            lambda: all(map(has_ended, pids)),
            "helpers and workers end with their parent",
        )
        server.process.returncode = 0  # as the end was meant
