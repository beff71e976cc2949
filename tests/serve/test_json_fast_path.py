"""Requests of numbers in JSON that are alike but for the numbers: each gets its own answer."""

from __future__ import annotations

import http.client
import json
import re
import socket
import types

import numpy as np
import pytest
from serve import servers
from serve.test_fast_path import ALIKE, MODEL

from shmgpu.serve.frontend.fast_path import FastPath
from shmgpu.serve.frontend.grpc_fast_path import KnownMessage
from shmgpu.serve.frontend.json_fast_path import JsonFastPath


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("json_fast_path") / "models.py"
    path.write_text(MODEL)
    files = path, servers.MODELS / "simple.py"
    with servers.serving(*files, workers=1, helpers=1) as running:
        yield running


class Asking:
    """One connection that sends equal requests to a model but for what stands as numbers.

    Each in one piece: only such take the fast path.
    """

    def __init__(self, server, model, shape, datatype="FP32", name="7", before=""):
        self.name = name
        self.after = "}]}"
        self.path = f"/v2/models/{model}/infer"
        self.before = (
            f'{{"id": "{name}", {before}"inputs": [{{"name": "x", "datatype": "{datatype}", '
            f'"shape": {json.dumps(shape)}, "data": '
        )
        self.socket = socket.create_connection((server.host, server.port), timeout=30)

    def __call__(self, numbers):
        """The status, and the answer's only output or its error."""
        text = numbers if isinstance(numbers, str) else json.dumps(numbers)
        body = self.before + text + self.after
        head = f"POST {self.path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
        self.socket.sendall((head + body).encode())
        with http.client.HTTPResponse(self.socket, method="POST") as response:
            response.begin()
            said = json.loads(response.read())
            assert response.getheader("content-type") == "application/json"
            assert response.getheader("inference-header-content-length") is None
        if response.status != 200:
            return response.status, said["error"]
        (output,) = said["outputs"]
        assert said["id"] == self.name
        return 200, output


@pytest.mark.parametrize(
    ("model", "shape", "is_nested"),
    [
        *(("in_place", [1, 3], False), ("in_place", [1, 3], True), ("in_place", [3, 1], True)),
        ("scale", [3], False),
    ],
)
def test_each_of_many_alike_is_answered_with_its_own(server, model, shape, is_nested):
    """Of all lengths as text; alone, and together, where rows of several go as one message."""
    wrong = []

    def run(seed):
        random = np.random.default_rng(seed)
        ask = Asking(server, model, shape)
        for number in range(100):
            x = (random.random(3) * 10.0 ** random.integers(0, 9)).astype("f4")
            given = [int(one) for one in x] if number % 5 == 0 else x.tolist()
            status, said = ask(np.reshape(given, shape).tolist() if is_nested else given)
            expected = (2 * np.array(given, "f4")).tolist()
            found = status, said["shape"], said["datatype"], np.float32(said["data"]).tolist()
            if found != (200, shape, "FP32", expected):
                wrong.append((given, said))

    run(7)
    servers.at_once(run, range(6))
    assert not wrong


@pytest.mark.parametrize(
    "odd",
    ["[1, 2, 3]", "[1]", "[]", "[true, 2]", '["1", "2"]', "[null, 1]", "[[1, 2]]", "[1, 2,]", "{}",
     "[1e99, 1]", "[NaN, 1]", "[1, [2]]", "[1, 2], \"data\": [1, 2]", "[01, 2]"],
)  # fmt: skip
def test_what_is_odd_among_many_alike_is_answered_as_ever(server, odd):
    """As where nothing is known: nobody has named that key before."""
    never = f'"never": {json.dumps(odd)}, '
    ask, other = Asking(server, "scale", [2]), Asking(server, "scale", [2], before=never)
    for number in range(ALIKE):
        assert ask([number, 1])[1]["data"] == [2 * number, 2]
    found, expected = (re.sub(r"(column|char) \d+", "", repr(one(odd))) for one in (ask, other))
    assert found == expected
    assert ask([4, 1])[1]["data"] == [8, 2]


@pytest.mark.parametrize(
    ("one", "other", "is_alike"),
    [
        ("[1, 2]", "[3.5,1e9]", True),
        ("[[1, 2]]", "[[3.5,1e9]]", True),
        ("[[[1]]]", "[[[2]]]", True),
        ("[[1, 2]]", "[1, 2]", False),
        ("[[1, 2]]", "[[1, 2]", False),
        ("[[1, 2], [3, 4]]", "[[1, 2], [3, 5]]", True),
        ("[[1, 2], [3, 4] ]", "[[1, 2], [3, 5] ]", None),  # an end that is not looked for
        ("[" * 3000 + "1]", "[" * 3000 + "1]", None),
    ],
)
def test_what_requests_are_known_by_holds_all_but_their_numbers(one, other, is_alike):
    def known_by(text):
        body = b'{"inputs": [{"data": %s}]}' % text.encode()
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        path = object.__new__(JsonFastPath)
        path._text = bytearray(head + body + bytes(50))
        return path._key(head, len(head) + len(body))

    keys = known_by(one), known_by(other)
    assert keys == (None, None) if is_alike is None else (keys[0] == keys[1]) == is_alike


def test_nested_numbers_do_not_have_what_is_no_json_answered(server):
    ask = Asking(server, "in_place", [1, 3])
    assert ask("[1, 2, 3]]")[0] == 400
    for _ in range(ALIKE):
        assert ask("[[1, 2, 3]]")[1]["data"] == [2, 4, 6]
        assert ask("[1, 2, 3]]")[0] == 400


def test_an_error_and_a_result_of_another_shape_among_many_alike_are_told(server):
    ask = Asking(server, "moody", [2])
    for _ in range(3):
        for number in range(ALIKE):
            status, said = ask([number % 5, 2.5])
            assert (status, said["shape"], said["data"]) == (200, [2], [number % 5, 2.5])
        assert ask([-1, 2])[0] == 500
        status, said = ask([7, 2])
        assert (status, said["shape"], said["data"]) == (200, [1], [7])
        status, said = ask([9, 2])
        assert status == 500
        assert "returned float64" in said


def test_requests_of_one_connection_that_end_otherwise_are_not_taken_for_the_last(server):
    """They begin alike to the byte and are as long; their ids, behind the numbers, differ."""
    ask = Asking(server, "in_place", [1, 2])
    ask.before = '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": '
    for number in range(ALIKE):
        for name in "abba":
            ask.name, ask.after = name, f'}}], "id": "{name}"}}'
            assert ask([number, 1])[1]["data"] == [2 * number, 2]


class Prepared:
    version = 1
    template = types.SimpleNamespace(total=8)
    is_closed = False

    def close(self):
        self.is_closed = True


def opened_over(kind, one, other):
    """What two requests alike that were learnt at once leave there."""
    if kind is KnownMessage:
        known = KnownMessage(None, None, 0, [])
        known.use(one)
        known.use(other)
        return 1
    path = kind.__new__(kind)
    path._table = types.SimpleNamespace(version=1)
    path._version, path._count = 1, 0
    path._known, path._heads, path._lately = {}, {}, {}
    for prepared in (one, other):
        if kind is JsonFastPath:
            path._open((b"", b"", b"", b""), types.SimpleNamespace(prepared=prepared))
        else:
            path.open(b"head", b"{}", prepared)
    return len(path._known) + path._count


@pytest.mark.parametrize("kind", [FastPath, JsonFastPath, KnownMessage])
def test_what_is_kept_for_a_request_goes_when_another_takes_its_place(kind):
    """Else its memory would be had until garbage is collected."""
    one, other = Prepared(), Prepared()
    assert opened_over(kind, one, other) == 1
    assert (one.is_closed, other.is_closed) == (True, False)


def test_numbers_that_are_not_finite_are_answered(server):
    """As no parser of the fast path reads them, and as it writes them: 3e38 doubled."""
    ask = Asking(server, "scale", [2])
    for _ in range(ALIKE):
        assert ask([1, 2])[1]["data"] == [2, 4]
        assert ask([3e38, 1])[1]["data"] == [float("inf"), 2]


@pytest.mark.parametrize("key", ["no", 'a\\"data'])
def test_numbers_that_are_not_the_inputs_are_none(server, key):
    """They stand where the input's would be looked for, and those are the same each time."""
    value = '{"data": [%d, 1]}' if key == "no" else "[%d, 1]"
    for number in range(ALIKE):
        before = f'"{key}": {value % number}, '
        assert Asking(server, "scale", [2], before=before)([1, 2])[1]["data"] == [2, 4]


def test_the_same_numbers_for_another_model_or_shape_are_that_ones(server):
    """A name that is data, a shape where numbers would be looked for, and other heads."""
    asks = [
        (Asking(server, "scale", [2]), [2, 4]),
        (Asking(server, "moody", [2]), [1, 2]),
        (Asking(server, "in_place", [1, 2]), [2, 4]),
        (Asking(server, "echo_int64", [2], "INT64"), [1, 2]),
        (Asking(server, "scale", [2], before='"parameters": {"data": "a"}, '), [2, 4]),
        (Asking(server, "scale", [2], name="8"), [2, 4]),
    ]
    for _ in range(ALIKE):
        for ask, expected in asks:
            status, said = ask([1, 2])
            assert (status, said["data"]) == (200, expected)
