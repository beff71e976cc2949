"""Requests that are alike to the byte but for their tensors: the way of most of them."""

from __future__ import annotations

import contextlib
import json
import socket
import struct

import numpy as np
import pytest
from serve import servers
from serve.alike import Client, Crowd, RegionClient, calls

MODEL = """
import itertools
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
    if x[0] == 9:
        return x.astype("float64")
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


@model(inputs=[Tensor("x", "FP32", (-1, -1))], outputs=[Tensor("y", "FP32", (-1, -1))],
       max_batch_size=8)
def telling(helper, x):
    if (x >= 100).any():
        helper.response.parameters["own"] = x[:, 0]
    return x


runs = itertools.count()


@model(inputs=[Tensor("x", "FP32", (-1, -1))], outputs=[Tensor("y", "FP32", (-1, -1))],
       max_batch_size=8)
def turn(helper, x):
    return np.full_like(x, next(runs))


@model(inputs=[Tensor("a", "FP32", (-1, 2)), Tensor("b", "FP32", (-1, 2), optional=True),
               Tensor("c", "FP32", (-1, 2))],
       outputs=[Tensor("sum", "FP32", (-1, 2))], max_batch_size=8, warmup=[])
def gapped(helper, a, b, c):
    return a + c


@model(inputs=[Tensor("x", "FP32", (-1,))],
       outputs=[Tensor("none", "FP32", (-1,)), Tensor("y", "FP32", (-1,))])
def none_and_all(helper, x):
    return x[:0], x
"""
ALIKE = 12  # by the third a request is known, and soon it takes the fast path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("fast_path") / "models.py"
    path.write_text(MODEL)
    return path


def serving(path, **flags):
    return servers.serving(path, servers.MODELS / "simple.py", workers=1, helpers=1, **flags)


@pytest.fixture(scope="module")
def server(path):
    with serving(path, allow_client_shm=True) as running:
        yield running


def both(server):
    inputs = [("a", "FP32", [1, 2], 8), ("b", "INT64", [1, 1], 8)]
    return Client(server, "both", inputs, ["twice", "sum"])


def in_place(server, model="in_place", rows=1, **parameters):
    return Client(server, model, [("x", "FP32", [rows, 2], 8 * rows)], ["y"], **parameters)


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
        client.socket.close()

    servers.at_once(run, range(6))
    assert not wrong


def test_what_a_connection_asked_lately_is_no_reason_to_take_it_for_what_it_asks_now(server):
    """One connection asks several things in turn, of the same length or not, and again the same."""
    clients = [in_place(server), in_place(server, rows=2), moody(server)]
    shared = clients[0].socket
    for client in clients[1:]:
        client.socket.close()
        client.socket = shared
    double, two_rows, same = clients
    for number in range(ALIKE):
        for client, rows, factor in (
            (double, 1, 2),
            (two_rows, 2, 2),
            (same, 1, 1),
            (double, 1, 2),
        ):
            status, _, data = client.ask(struct.pack("<ff", number % 5, 1) * rows)
            expected = struct.pack("<ff", factor * (number % 5), factor) * rows
            assert (status, data) == (200, expected)
        status, said, _ = same.ask(struct.pack("<ff", -1, 1))
        assert (status, "no number below zero" in said["error"]) == (500, True)
        assert double.ask(bytes(4))[0] == 400  # of another length


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
        status, said, _ = client.ask(struct.pack("<ff", 9, 2))
        assert status == 500
        assert "returned float64" in said["error"]


def test_a_request_that_waited_is_not_taken_for_what_came_meanwhile(server, tmp_path):
    """Another client's request is as long as the two that were sent in one piece, and so is its
    body as the second one's."""
    mine, other = moody(server), Client(server, "scale", [("x", "FP32", [2], 8)], ["y"])
    data = struct.pack("<ff", 1, 2)
    for _ in range(2):
        assert mine.ask(data)[2] == data
    two = mine.request(data) * 2
    head, end, body = other.request(data).partition(b"\r\n\r\n")
    pad = len(two) - len(head + end + body) - len(b"\r\nX-Pad: ")
    long = head + b"\r\nX-Pad: " + b"x" * pad + end + body
    with servers.Held(server, tmp_path / "gate"):
        servers.until(lambda: server.pending() == 1, "the helper is busy")
        mine.socket.sendall(two)
        servers.until(lambda: server.pending() == 2, "the first waits")
        other.socket.sendall(long)  # and nothing else: it would lie in its place
    answers = b""
    while answers.count(b"HTTP/1.1 200") < 2 or not answers.endswith(data):
        answers += mine.socket.recv(65536)
    assert struct.unpack("<ff", other.answer()[2]) == (2, 4)
    for _ in range(ALIKE):
        other.socket.sendall(long)
        assert struct.unpack("<ff", other.answer()[2]) == (2, 4)


@pytest.mark.parametrize("has_length", [False, True])
def test_those_alike_in_regions_are_answered_with_what_lies_there(server, has_length):
    client = RegionClient(server, "moody", has_length=has_length)
    with server.region("in", 8) as given, server.region("out", 8) as taken:
        for round_ in range(3):
            for number in range(ALIKE):
                given[:] = struct.pack("<ff", number % 5, round_)
                status, said, _ = client.ask(b"")
                assert (status, said["outputs"][0]["shape"]) == (200, [2])
                assert struct.unpack("<ff", taken[:]) == (number % 5, round_)
            given[:] = struct.pack("<ff", 7, 2)
            status, said, _ = client.ask(b"")
            assert (status, said["outputs"][0]["shape"]) == (200, [1])
            given[:] = struct.pack("<ff", -1, 2)
            status, said, _ = client.ask(b"")
            assert status == 500
            assert "no number below zero" in said["error"]
    status, said, _ = client.ask(b"")
    assert status == 404
    assert "Unable to find shared memory region" in said["error"]


def test_an_empty_output_in_the_answer_beside_one_in_a_region_is_no_failure(server):
    client = RegionClient(server, "none_and_all")
    asked = json.loads(client.header)
    asked["outputs"].insert(0, {"name": "none", "parameters": {"binary_data": True}})
    client.header = json.dumps(asked).encode()
    with server.region("in", 8) as given, server.region("out", 8) as taken:
        for number in range(ALIKE):
            given[:] = struct.pack("<ff", number, 1)
            status, said, _ = client.ask(b"")
            assert (status, [one["shape"] for one in said["outputs"]]) == (200, [[0], [2]])
            assert taken[:] == given[:]
    counted = server.statistics("none_and_all")["inference_stats"]
    assert [counted[name]["count"] for name in ("success", "fail")] == [ALIKE, 0]


def test_those_alike_but_for_their_regions_are_answered_from_their_own(server):
    """Heads are equal to the byte, and so are lengths."""
    clients = [RegionClient(server, "moody", given=given) for given in ("i1", "i2")]
    with server.region("i1", 8) as one, server.region("i2", 8) as two:
        with server.region("out", 8) as taken:
            one[:], two[:] = struct.pack("<ff", 1, 1), struct.pack("<ff", 2, 2)
            for _ in range(ALIKE):
                for client, expected in zip(clients, (one, two), strict=True):
                    assert client.ask(b"")[0] == 200
                    assert taken[:] == expected[:]


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


def raw(server):
    """Whose requests are the bytes of the model's only input, without JSON."""
    client = in_place(server)
    client.header = b""
    return client


def test_of_data_alone_each_of_many_is_answered_with_binary_data(server):
    client = raw(server)
    for number in range(3 * ALIKE):
        for values in ([number, 2], [3, number, 5, 6][: 2 + 2 * (number % 2)]):
            status, said, data = client.ask(struct.pack(f"<{len(values)}f", *values))
            sent = said["outputs"][0]["parameters"]["binary_data_size"]
            found = struct.unpack(f"<{sent // 4}f", data)
            assert (status, found) == (200, tuple(2 * value for value in values))


def test_json_that_is_a_number_is_not_taken_for_a_request_of_data_alone(server):
    client = raw(server)
    for _ in range(ALIKE):
        assert client.ask(bytes(8))[0] == 200
    client.header = b"8"
    for _ in range(2):
        status, said, _ = client.ask(bytes(7))
        assert status == 400 and "not a JSON object" in said["error"]


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
    with client.socket as connection, connection.makefile("rb") as reader:
        for number in range(ALIKE):
            client.send(struct.pack("<ff", number % 5, 1))
            assert read_answer(reader) == struct.pack("<ff", number % 5, 1)
        for _ in range(3):
            values = [struct.pack("<ff", number, 0) for number in range(4)]
            together = b"".join(client.request(value) for value in values)
            for start in range(0, len(together), piece_bytes):
                connection.sendall(together[start : start + piece_bytes])
            assert [read_answer(reader) for _ in values] == values


def test_those_that_leave_an_optional_input_away_are_answered_too(server):
    client = Client(server, "gapped", [(n, "FP32", [1, 2], 8) for n in "ac"], ["sum"])
    for number in range(ALIKE):
        status, _, data = client.ask(struct.pack("<4f", number, 1, 2, 3))
        assert (status, struct.unpack("<ff", data)) == (200, (number + 2, 4))


CROWD = 20


def crowd_of(server, model="in_place", rows=1):
    return Crowd(server, [in_place(server, model, rows) for _ in range(CROWD)], rows)


def executions(server):
    said = server.statistics("in_place")
    return said["inference_count"], said["execution_count"]


@pytest.mark.parametrize("rows", [1, 2])
def test_requests_that_come_together_are_answered_each_with_its_own(server, rows):
    crowd = crowd_of(server, rows=rows)
    requests, runs = executions(server)
    for turn in range(5):
        values = [100 * turn + number for number in range(CROWD)]
        assert crowd.ask(values) == [(200, (2 * value,) * 2 * rows) for value in values]
    more, further = executions(server)
    assert more - requests == 5 * CROWD * rows
    assert further - runs <= 5 * CROWD / 2, "they ran one by one"


def test_an_error_is_told_to_all_that_came_together(server):
    crowd = crowd_of(server)
    for _ in range(3):
        assert crowd.ask([-1] * CROWD) == [(500, ())] * CROWD
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_errors_do_not_end_the_joining(server):
    crowd = crowd_of(server)
    for _ in range(10):  # more than there are coalescers
        assert crowd.ask([-1] * CROWD) == [(500, ())] * CROWD
    before = calls(server)
    assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
    assert calls(server) - before < CROWD / 2


def test_a_result_of_another_shape_reaches_all_that_came_together(server):
    crowd = crowd_of(server, "narrow")
    for _ in range(3):
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD
        assert crowd.ask([7] * CROWD) == [(200, (7,))] * CROWD
        assert crowd.ask([3] * CROWD) == [(200, (6, 6))] * CROWD


def test_those_whose_joined_result_was_no_row_each_are_calls_of_their_own_from_then_on(
    server, gate
):
    crowd = crowd_of(server, "narrow_once")
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


def test_parameters_of_answers_reach_each_of_those_that_came_together(server):
    crowd = crowd_of(server, "telling")
    for turn in range(3):
        assert crowd.ask([3] * CROWD) == [(200, (3, 3))] * CROWD
        crowd.send([100 * turn + 100 + number for number in range(CROWD)])
        for number, client in enumerate(crowd.clients):
            _, answer, data = client.answer()
            own = 100 * turn + 100 + number
            assert (struct.unpack("<ff", data), answer["parameters"]) == ((own, own), {"own": own})
    assert "parameters" not in crowd.clients[0].ask(struct.pack("<ff", 1, 1))[1]


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


def leave_the_queue(server, gate, leavers, value=None):
    """A crowd of which some left while no helper was free, and by how much the counts grew."""
    crowd = crowd_of(server)
    before = counts(server)
    queued = ("shmgpu_queued", frozenset())
    with servers.Held(server, gate):
        servers.until(lambda: server.pending() == 1, "a helper is busy")
        crowd.send(range(CROWD) if value is None else [value] * CROWD)
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


@pytest.mark.parametrize("leavers", [{3, 4, 11}, set(range(CROWD))])
def test_who_left_before_an_error_is_not_counted_among_the_failed(server, gate, leavers):
    stay = CROWD - len(leavers)
    crowd, (answered, left, _) = leave_the_queue(server, gate, leavers, -1)
    assert crowd.answers(leavers) == [(500, ())] * stay
    assert (answered, left) == (0, len(leavers))


def wait_pending(server, count):
    servers.until(lambda: server.pending() == count, f"{count} requests are pending")


@pytest.mark.parametrize("make", [moody, in_place])
def test_a_full_queue_refuses_those_alike_too(path, gate, make):
    with serving(path, max_queue=2) as server:
        client = make(server)
        for _ in range(ALIKE):
            assert client.ask(bytes(8))[0] == 200
        with servers.Held(server, gate), servers.Held(server, gate):
            wait_pending(server, 2)
            status, said, _ = client.ask(bytes(8))
            assert (status, said["error"]) == (503, "Exceeds maximum queue size")
        assert client.ask(bytes(8))[0] == 200


JOINED_OR_NOT = pytest.mark.parametrize("rows", [1, 8])  # a batch has room for eight


@JOINED_OR_NOT
def test_those_alike_wait_no_longer_than_they_said(server, gate, rows):
    client, data = in_place(server, rows=rows, timeout=500_000), bytes(8 * rows)
    for _ in range(ALIKE):
        assert client.ask(data)[0] == 200
    with servers.Held(server, gate):
        wait_pending(server, 1)
        status, said, _ = client.ask(data)
        assert status == 503
        assert "timeout" in said["error"]
    assert client.ask(data)[0] == 200


@JOINED_OR_NOT
def test_the_priority_of_those_alike_is_kept(path, gate, rows):
    with serving(path) as server:
        plain = in_place(server, "turn", rows)
        # Of another shape: it would go along with the first.
        urgent = Client(server, "turn", [("x", "FP32", [rows, 3], 12 * rows)], ["y"], priority=1)
        for _ in range(ALIKE):
            assert plain.ask(bytes(8 * rows))[0] == urgent.ask(bytes(12 * rows))[0] == 200
        with servers.Held(server, gate):
            wait_pending(server, 1)
            plain.send(bytes(8 * rows))
            wait_pending(server, 2)
            urgent.send(bytes(12 * rows))
            wait_pending(server, 3)
        (later,) = set(np.frombuffer(plain.answer()[2], "f4"))
        (earlier,) = set(np.frombuffer(urgent.answer()[2], "f4"))
        assert earlier < later


def test_those_alike_hear_that_their_model_was_taken_away(path):
    with serving(path, allow_repository=True) as server:
        clients = moody(server), in_place(server)
        for client in clients:
            for _ in range(ALIKE):
                assert client.ask(bytes(8))[0] == 200
        assert server.ask("POST", "/v2/repository/models/moody/unload", b"")[0] == 200
        for client in clients:
            status, said, _ = client.ask(bytes(8))
            assert status == 404
            assert "unknown model" in said["error"]


def test_what_is_kept_for_those_alike_goes_when_its_memory_is_wanted(path):
    with serving(path, arena="1MiB") as server:
        for number in range(120):  # 8 KiB each way
            client = Client(server, "moody", [("x", "FP32", [2048], 8192)], ["y"], number=number)
            for _ in range(4):
                assert client.ask(bytes(8192))[0] == 200
        large = Client(server, "moody", [("x", "FP32", [65536], 262144)], ["y"])
        assert large.ask(bytes(262144))[0] == 200
        assert client.ask(bytes(8192))[0] == 200


def test_those_alike_are_told_that_there_is_no_memory(path, gate):
    with contextlib.ExitStack() as held, serving(path, arena="1MiB") as server:
        first, second, third = (
            Client(server, "moody", [("x", "FP32", [2048], 8192)], ["y"]) for _ in range(3)
        )
        for _ in range(ALIKE):
            assert first.ask(bytes(8192))[0] == second.ask(bytes(8192))[0] == 200
        with servers.Held(server, gate):
            wait_pending(server, 1)
            first.send(bytes(8192))  # takes the only slot
            wait_pending(server, 2)
            fill_arena(server, held)
            status, said, _ = second.ask(bytes(8192))
            assert status == 503
            assert "memory" in said["error"]
            held.close()
        assert first.answer()[0] == third.ask(bytes(8192))[0] == 200


def fill_arena(server, held):
    """Have room made for bodies that do not come, as long as there is any."""
    for size in (1 << 17, 1 << 14, 1 << 11, 1 << 8):
        while True:
            connection = held.enter_context(socket.create_connection((server.host, server.port)))
            connection.sendall(
                b"POST /v2 HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\n"
                b"Content-Length: %d\r\n\r\n" % size
            )
            if not connection.recv(256).startswith(b"HTTP/1.1 100"):
                break


def test_those_that_came_with_others_and_leave_cost_nobody_an_answer(server):
    for leavers in ({3, 4, 11}, set(range(CROWD))):
        crowd = crowd_of(server)
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
        leaver.send(bytes(8))
        leaver.socket.close()
    for number in range(ALIKE):
        value = struct.pack("<ff", number % 5, 2)
        assert client.ask(value)[2] == value
    servers.until(lambda: not server.pending(), "nothing is pending")
