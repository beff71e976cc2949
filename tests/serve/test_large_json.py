"""Large JSON: bounded before it is parsed, read in steps beside the loop, and answered likewise."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import math
import threading
import time
from concurrent import futures
from functools import partial
from random import Random
from types import SimpleNamespace

import numpy as np
import orjson
import pytest
from serve import servers

from shmgpu.serve.frontend import aside, routes
from shmgpu.serve.frontend.routes import Front
from shmgpu.serve.protocol import (
    classification,
    datatypes,
    http_codec,
    json_numbers,
    json_reader,
)
from shmgpu.serve.protocol.types import (
    DEFAULT_LIMITS,
    InferRequest,
    InferResponse,
    OutputTensor,
    ProtocolError,
    RequestedOutput,
    RequestLimits,
)
from shmgpu.serve.scheduling.inference import Calls

INFER = "/v2/models/scale/infer"


@pytest.fixture(scope="module")
def server():
    """One worker, so that whatever holds it up is seen."""
    with servers.serving(
        servers.MODELS / "simple.py", workers=1, helpers=1, arena="128MiB", grpc_port=0
    ) as running:
        yield running


def request(data, shape, datatype="FP32", before=""):
    """One input whose data are written as given."""
    return (
        f'{{{before}"inputs": [{{"name": "x", "datatype": "{datatype}", '
        f'"shape": {json.dumps(shape)}, "data": {data}}}]}}'
    ).encode()


def health_answers_while(server, body, **headers):
    """How often health was asked and answered while the server had all of a request and did not
    answer it; and the answer."""
    sent, answered, found = threading.Event(), threading.Event(), []

    def ask():
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        with contextlib.closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("POST", INFER, body, named)
            sent.set()
            response = connection.getresponse()
            answered.set()
            found.append((response.status, response.read()))

    thread = threading.Thread(target=ask)
    thread.start()
    sent.wait()
    answers = 0
    while not answered.is_set():
        assert server.ask("GET", "/v2/health/live")[0] == 200
        answers += not answered.is_set()
    thread.join()
    return answers, *found[0]


def test_health_is_answered_while_millions_of_numbers_are_read(server):
    """The last of them is none, so that no helper gets any."""
    count = 6_000_000
    body = request("[" + "0.5," * (count - 1) + "null]", [count])
    answers, status, answer = health_answers_while(server, body)
    assert status == 400, answer[:200]
    assert "null" in json.loads(answer)["error"]
    assert answers > 5  # of some hundred; one or two where the loop reads them


def longest_wait(server, model, ask):
    """The longest that health took after a helper had run a request and until its answer, as a
    share of that time; and the answer. Nearly 1 where the loop writes it."""
    before = server.statistics(model)["execution_count"]
    with futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask)
        while server.statistics(model)["execution_count"] == before:
            assert not asked.done()
        waits, begun = [], time.monotonic()
        while not asked.done():
            asked_at = time.monotonic()
            assert server.ask("GET", "/v2/health/live")[0] == 200
            waits.append(time.monotonic() - asked_at)
        return max(waits) / (time.monotonic() - begun), asked.result()


def test_health_is_answered_while_millions_of_numbers_are_written(server):
    count = 8_000_000
    x = {"name": "x", "datatype": "FP32", "shape": [count]}
    head = {"inputs": [{**x, "parameters": {"binary_data_size": 4 * count}}]}
    header = json.dumps(head).encode()
    body = header + np.full(count, 0.5, "f4").tobytes()
    length = str(len(header))
    ask = partial(server.ask, "POST", INFER, body, Inference_Header_Content_Length=length)
    share, (status, _, answer) = longest_wait(server, "scale", ask)
    assert status == 200
    assert answer.count(b"1.0") == count
    assert share < 0.8


CLASSES = 1 << 19
SCORES = np.linspace(0, 1, 2 * CLASSES, dtype="f4").tobytes()


def test_health_is_answered_while_many_classes_are_told(server):
    x = {"name": "x", "datatype": "FP32", "shape": [2 * CLASSES]}
    inputs = [{**x, "parameters": {"binary_data_size": len(SCORES)}}]

    def ask(classes=CLASSES):
        outputs = [{"name": "y", "parameters": {"classification": classes}}]
        header = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
        length = str(len(header))
        body = header + SCORES
        return server.ask("POST", INFER, body, Inference_Header_Content_Length=length)

    share, (status, _, answer) = longest_wait(server, "scale", ask)
    assert status == 200
    assert len(json.loads(answer)["outputs"][0]["data"]) == CLASSES
    assert share < 0.8


def test_health_is_answered_while_many_classes_are_told_over_grpc(server):
    grpc = pytest.importorskip("grpc")
    messages = pytest.importorskip("shmgpu.serve.protocol.grpc_codec").MESSAGES
    asked = messages["ModelInferRequest"](model_name="scale", raw_input_contents=[SCORES])
    asked.inputs.add(name="x", datatype="FP32", shape=[2 * CLASSES])
    asked.outputs.add(name="y").parameters["classification"].int64_param = CLASSES
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.grpc_address, options) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        data = asked.SerializeToString()
        share, answer = longest_wait(server, "scale", lambda: call(data, timeout=60))
    assert list(messages["ModelInferResponse"].FromString(answer).outputs[0].shape) == [CLASSES]
    assert share < 0.8


def test_no_more_classes_are_told_than_the_limit():
    scores = np.zeros(classification.MOST_TEXTS + 1, "f4")
    output = OutputTensor("y", "FP32", scores.shape, scores)
    with pytest.raises(ValueError, match="ask for fewer"):
        classification.best_classes(output, len(scores))


def test_a_message_of_many_texts_is_read_aside_and_refused_as_ever(server):
    grpc = pytest.importorskip("grpc")
    messages = pytest.importorskip("shmgpu.serve.protocol.grpc_codec").MESSAGES
    count = 100_000
    with grpc.insecure_channel(server.grpc_address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        def ask(**raw):
            asked = messages["ModelInferRequest"](model_name="upper", **raw)
            given = asked.inputs.add(name="text", datatype="BYTES", shape=[count])
            if not raw:
                given.contents.bytes_contents.extend([b"abc"] * count)
            return call(asked.SerializeToString(), timeout=60)

        element = b"\3\0\0\0abc"
        upper = b"\3\0\0\0ABC" * count
        for answer in (ask(), ask(raw_input_contents=[element * count])):
            said = messages["ModelInferResponse"].FromString(answer)
            assert said.raw_output_contents[0] == upper
        with pytest.raises(grpc.RpcError, match="more than the 100000 elements"):
            ask(raw_input_contents=[element * (count + 1)])


def test_texts_are_put_together_where_they_are_read_and_taken_apart_where_they_are_written():
    """Which is beside the loop, where there are many: the loop only hands bytes on."""
    body = request('["a", "bc"]', [2], "BYTES")
    model = SimpleNamespace(metadata=None, prepare=None, steps=None)
    front = SimpleNamespace(options=None, limits=DEFAULT_LIMITS)
    asked = SimpleNamespace(headers={}, header_length=None)
    (read,) = Front._read(front, asked, body, model).inputs
    assert bytes(read.data) == b"\1\0\0\0a\2\0\0\0bc"
    assert read.array().tolist() == [b"a", b"bc"]

    declared = SimpleNamespace(name="y", labels=(), fits=lambda shape: shape == (2,))
    model = SimpleNamespace(
        outputs=[datatypes.DATATYPES["BYTES"]],
        output_index={"y": 0},
        metadata=SimpleNamespace(outputs=[declared]),
    )
    result = [2], np.frombuffer(read.data, "u1")
    (given,) = Calls.response(object.__new__(Calls), model, InferRequest(), result).outputs
    assert bytes(given.array) == bytes(read.data)


def test_long_inputs_of_bytes_are_read_aside(server):
    elements = 100_000
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "text",
                    "datatype": "BYTES",
                    "shape": [elements],
                    "parameters": {"binary_data_size": 5 * elements},
                }
            ]
        }
    ).encode()
    body = header + b"\1\0\0\0a" * elements
    status, _, answer = server.ask(
        "POST", "/v2/models/upper/infer", body, Inference_Header_Content_Length=str(len(header))
    )
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == ["A"] * elements


def test_health_is_answered_while_a_bomb_is_looked_at(server):
    """Sixty megabytes of arrays in a key that means nothing, in less than a thousandth of that."""
    body = gzip.compress(request("[1]", [1], before='"no": [' + "[]," * (20 << 20) + "[]],"), 9)
    assert len(body) < 1 << 17
    answers, status, answer = health_answers_while(server, body, Content_Encoding="gzip")
    assert status == 400
    assert "arrays and objects" in json.loads(answer)["error"]
    assert answers > 2


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ("[]," * 300_000 + "[]", "arrays and objects"),
        ('"",' + "{}," * 300_000 + "{}", "arrays and objects"),
        ('"",' + "1," * 1_100_000 + "1", "values"),
        (",".join('{"k":1}' for _ in range(70_000)), "keys"),
        ('"' + "[" * 300_000 + '",' + "[1]," * 300_000 + "1", "arrays and objects"),
    ],
)
@pytest.mark.parametrize("key", ["no", "data"])
def test_what_costs_more_than_its_bytes_is_refused_unparsed(monkeypatch, hostile, said, key):
    parsed = []
    monkeypatch.setattr(json_reader.orjson, "loads", parsed.append)
    with pytest.raises(ProtocolError, match=said) as refused:
        http_codec.parse_infer(request("[1]", [1], before=f'"{key}": [{hostile}],'), None)
    assert refused.value.status == 400
    assert not parsed


def test_no_more_than_a_step_of_numbers_is_parsed_at_once_where_the_interpreter_is_held(
    monkeypatch,
):
    monkeypatch.setattr(json_numbers, "_READ", {})  # which lets it go
    most = []
    real = orjson.loads

    def loads(text):
        most.append(len(text))
        return real(text)

    monkeypatch.setattr(orjson, "loads", loads)
    count = 300_000
    values = np.random.default_rng(7).standard_normal(count).astype("f4")
    body = request(json.dumps(values.tolist()), [count])
    (found,) = http_codec.parse_infer(body, None).inputs
    assert np.array_equal(found.array(), values)
    assert max(most) <= datatypes.STEP + 100
    assert len(most) > 10


def test_long_text_is_refused_unparsed_and_numbers_do_not_count(monkeypatch):
    numbers, count = long(["1"])
    body = request(numbers, [count], before='"no": "' + "a" * 50_000 + '",')
    limits = RequestLimits(json_text=51_000)
    assert http_codec.parse_infer(body, None, limits).inputs[0].shape == (count,)
    monkeypatch.setattr(json_reader.orjson, "loads", None)
    with pytest.raises(ProtocolError, match="bytes outside of flat arrays") as refused:
        http_codec.parse_infer(body, None, RequestLimits(json_text=50_000))
    assert refused.value.status == 400


@pytest.mark.parametrize(("count", "is_refused"), [(499, False), (500, True)])
def test_more_texts_than_the_limit_are_refused_unparsed(monkeypatch, count, is_refused):
    """Beside five names and two words; quotation marks inside a text are none of its ends."""
    text = json.dumps(['"' * 40] * count)
    body = request(text, [count], "BYTES")
    limits = RequestLimits(json_texts=506)
    if not is_refused:
        assert http_codec.parse_infer(body, None, limits).inputs[0].shape == (count,)
        return
    monkeypatch.setattr(json_reader.orjson, "loads", None)
    with pytest.raises(ProtocolError, match="more than 506 texts") as refused:
        http_codec.parse_infer(body, None, limits)
    assert refused.value.status == 400


@pytest.mark.parametrize("most", [300_000, 300_001])
def test_brackets_in_text_are_no_arrays(most):
    text = json.dumps(["[" * 299_000, 'a"[\\', "\\" * 5 + '"[' * 9])
    body = request(text, [3], "BYTES")
    limits = RequestLimits(json_containers=most - 299_990)
    (found,) = http_codec.parse_infer(body, None, limits).inputs
    assert found.array()[1] == b'a"[\\'


@pytest.mark.parametrize("seed", range(20))
def test_counts_outside_of_text_agree_with_a_parser(seed, monkeypatch):
    """Whatever piece a string or a backslash falls into."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr(json_reader, "STEP", int(random.integers(2, 40)))
    signs = ['"', "\\", "[", ":", "a", ",", "{"]
    texts = ["".join(random.choice(signs, random.integers(0, 12))) for _ in range(30)]
    text = json.dumps([{one: number} for number, one in enumerate(texts)]).encode()
    assert json_reader._outside(text, b":") == len(texts)
    assert json_reader._outside(text, b"[") == 1
    assert json_reader._outside(text, b"[{") == len(texts) + 1
    # A bound is passed as soon as there is one more, wherever that one stands.
    assert json_reader._outside(text, b"[{", len(texts)) == len(texts) + 1


def long(values):
    """As JSON of so many bytes that it is read in steps."""
    return "[" + ", ".join(values * (json_reader.LONG_BYTES // 2)) + "]", len(values) * (
        json_reader.LONG_BYTES // 2
    )


@pytest.mark.parametrize(
    ("values", "datatype", "first"),
    [
        (["1", "-2", "3"], "INT8", 1),
        (["1.5", "NaN", "-Infinity"], "FP64", 1.5),
        (["true", "false"], "BOOL", True),
        (["18446744073709551615"], "UINT64", 2**64 - 1),
        (["2"], "FP32", 2.0),
    ],
)
def test_long_arrays_are_read_as_short_ones_are(values, datatype, first):
    text, count = long(values)
    (found,) = http_codec.parse_infer(request(text, [count // 2, 2], datatype), None).inputs
    array = found.array()
    assert array.shape == (count // 2, 2)
    assert array[0, 0] == first
    short = json.dumps([json.loads(one) for one in values])
    (again,) = http_codec.parse_infer(request(short, [len(values)], datatype), None).inputs
    assert np.array_equal(
        array.reshape(-1)[: len(values)], again.array(), equal_nan=datatype == "FP64"
    )


@pytest.mark.parametrize(
    ("spoil", "datatype", "said"),
    [
        (lambda text: text[:-1] + ",]", "FP32", "elements in 'data'"),
        (lambda text: text.replace("1", "", 1), "FP32", "not JSON"),
        (lambda text: text.replace("1", "01", 1), "FP32", "not JSON"),
        (lambda text: text.replace("1", "null", 1), "FP32", "null"),
        (lambda text: text.replace("1", "1 2", 1), "FP32", "not JSON"),
        (lambda text: text.replace("1", "999", 1), "INT8", "outside INT8"),
        (lambda text: text.replace("1", "1.5", 1), "INT8", "numbers with a point"),
        (lambda text: text.replace("1", "1]", 1), "INT8", "not JSON"),
        (lambda text: text.replace("1", "[1]", 1), "INT8", "arrays nested deeper"),
    ],
)
def test_long_arrays_that_are_wrong_are_refused(spoil, datatype, said):
    text, count = long(["1"])
    with pytest.raises(ProtocolError, match=said) as refused:
        http_codec.parse_infer(request(spoil(text), [count], datatype), None)
    assert refused.value.status == 400


def read_or_refused(body):
    try:
        (found,) = http_codec.parse_infer(body, None).inputs
    except ProtocolError as error:
        return error.status, str(error)
    array = found.array()
    elements = array.tolist() if array.dtype.hasobject else array.tobytes()
    return str(array.dtype), array.shape, elements


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "FP64", "INT8", "UINT64", "BOOL"])
@pytest.mark.parametrize(
    ("shape", "spoil"),
    [
        ([300, 10, 3], None),
        ([9000], None),
        ([300, 30], None),
        ([300, 10, 3, 1], None),
        ([299, 10, 3], None),
        ([300, 10, 3], ("1", "null")),
        ([300, 10, 3], ("1", "300")),
        ([300, 10, 3], ("1", "1.5")),
        ([300, 10, 3], ("1", "NaN")),
        ([300, 10, 3], ("1, ", "")),
        ([300, 10, 3], ("[1, 0, 1]", "[]")),
        ([300, 10, 3], ("1", "[1]")),
        ([300, 10, 3], ("1", "1e400")),
    ],
)
def test_long_nested_arrays_are_read_as_if_they_were_short(
    monkeypatch, shape, spoil, datatype, is_built
):
    if not is_built:
        monkeypatch.setattr(json_numbers, "_READ", {})
    values = (np.arange(9000) % 2 == 0).reshape(300, 10, 3)
    text = json.dumps((values if datatype == "BOOL" else values.astype(int)).tolist())
    if spoil is not None:
        text = text.replace(*spoil, 1)
    assert len(text) > json_reader.LONG_BYTES
    body = request(text, shape, datatype)
    found = read_or_refused(body)
    monkeypatch.setattr(json_reader, "LONG_BYTES", len(body) + 1)
    wanted = read_or_refused(body)
    assert found == wanted or (found[0] == wanted[0] == 400 and "not JSON" in found[1] + wanted[1])


def nested(random, shape):
    if not shape:
        return random.choice([1, 2, -3, 0.5, 1e30, 255])
    return [nested(random, shape[1:]) for _ in range(shape[0])]


def test_whatever_arrays_look_like_it_is_no_matter_how_long_they_are(monkeypatch):
    """Nested ones with a few signs changed: what is refused may be so in other words."""
    random, taken = Random(7), 0
    for _ in range(3_000):
        shape = [random.randint(1, 4) for _ in range(random.randint(1, 4))]
        text = json.dumps(nested(random, shape))
        for _ in range(random.choice([0, 0, 1, 2])):
            at = random.randrange(len(text))
            sign = random.choice(["", "[", "]", ",", "1", "NaN", "null", "]]", "[[", " ", '"', "e"])
            text = text[:at] + sign + text[at + random.randint(0, 1) :]
        body = request(text, shape, random.choice(["FP32", "FP16", "INT8", "BOOL", "BYTES"]))
        monkeypatch.setattr(json_reader, "LONG_BYTES", random.choice([1, 3, 16]))
        found = read_or_refused(body)
        monkeypatch.setattr(json_reader, "LONG_BYTES", len(body) + 1)
        wanted = read_or_refused(body)
        assert found == wanted or found[0] == wanted[0] == 400, body
        taken += wanted[0] != 400
    assert taken > 300


def test_nested_arrays_are_read_in_c_and_let_the_interpreter_go(monkeypatch):
    monkeypatch.setattr(datatypes.NumberText, "parsed", None)
    text = json.dumps(np.ones((50, 40, 4)).tolist())
    (found,) = http_codec.parse_infer(request(text, [50, 40, 4]), None).inputs
    assert found.array().shape == (50, 40, 4) and found.array().min() == 1


@pytest.mark.parametrize(
    "inside", ["[" * 20_000, "[[1], " * 9_000 + "[N]", "[1], " * 9_000 + "NaN"]
)
@pytest.mark.parametrize("depth", [2, 64, 65, 5_000])
def test_arrays_that_are_nested_to_no_end_are_refused(inside, depth):
    for end in ("", "]" * 20_000):
        body = request("[" * depth + inside + end + "]" * depth, [20_000, 1])
        assert read_or_refused(body)[0] == 400


def test_long_nested_arrays_that_are_no_inputs_are_refused():
    text = json.dumps(np.ones((50, 40, 4)).tolist())
    body = request("[1]", [1], before=f'"parameters": {{"data": {text}}},')
    with pytest.raises(ProtocolError) as refused:
        http_codec.parse_infer(body, None)
    assert refused.value.status == 400


def test_a_trailing_comma_is_no_element():
    text, count = long(["1"])
    body = request(text[:-1] + ",]", [count + 1])
    with pytest.raises(ProtocolError, match="not JSON"):
        http_codec.parse_infer(body, None)


def test_data_that_is_no_inputs_is_refused():
    text, _ = long(["1"])
    body = request("[1]", [1], before=f'"parameters": {{"data": {text}}},')
    with pytest.raises(ProtocolError, match="outside of its 'inputs'"):
        http_codec.parse_infer(body, None)
    escaped = request("[1]", [1], before=f'"a\\"data": {text},')
    assert len(http_codec.parse_infer(escaped, None).inputs) == 1


@pytest.mark.parametrize("datatype", ["INT32", "FP16", "FP32", "BF16", "BOOL", "UINT64"])
def test_long_outputs_are_written_as_one_array(datatype):
    row = datatypes.DATATYPES[datatype]
    count = 3 * datatypes.AT_ONCE + 5
    array = (np.arange(count) % 2).astype(row.storage)
    if datatype == "BF16":
        array = datatypes.round_bf16(np.arange(count).astype("f4") % 2)
    assert orjson.loads(datatypes.to_json(row, array)) == (np.arange(count) % 2).tolist()
    if row.kind == "float" and datatype != "BF16":
        array[-1] = math.inf
        assert json.loads(datatypes.to_json(row, array))[-1] == math.inf


def test_a_client_that_leaves_while_its_request_is_read_is_forgotten(server):
    body = request("[" + "0.5," * 999_999 + "0.5]", [1_000_000])
    for after_s in (0.001, 0.01, 0.03):
        _left(server, body, after_s)
    servers.until(lambda: server.pending() == 0, "nothing is pending")
    assert server.ask("POST", INFER, request("[1]", [1]))[0] == 200


def _left(server, body, after_s):
    with contextlib.closing(http.client.HTTPConnection(server.host, server.port)) as connection:
        connection.request("POST", INFER, body)
        connection.sock.settimeout(after_s)
        with contextlib.suppress(TimeoutError):  # a quick machine may answer the last one
            connection.getresponse()


def test_what_changes_the_state_has_small_bodies(server):
    body = json.dumps({"settings": "x" * (1 << 19)}).encode()
    status, _, answer = server.ask("POST", "/v2/logging", body)
    assert (status, b"send less at once" in answer) == (413, True)


def test_a_long_generate_is_read_aside(server):
    body = json.dumps({"x": [0.5] * 200_000}).encode()
    status, _, answer = server.ask("POST", "/v2/models/scale/generate", body)
    assert status == 200
    assert json.loads(answer)["y"] == [1.0] * 200_000


def test_a_long_answer_is_compressed_as_a_short_one(server):
    body = request("[" + "0.5," * 199_999 + "0.5]", [200_000])
    status, headers, answer = server.ask("POST", INFER, body, Accept_Encoding="gzip")
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(answer))["outputs"][0]["data"] == [1.0] * 200_000


def test_the_limits_are_what_the_page_says():
    assert (DEFAULT_LIMITS.json_values, DEFAULT_LIMITS.json_containers) == (1 << 20, 1 << 18)


@pytest.mark.parametrize(("workers", "threads"), [(1, 2), (2, 1), (3, 1)])
def test_threads_beside_the_loop_end_with_it_and_take_nothing_that_still_waits(workers, threads):
    begun, go_on, done = threading.Semaphore(0), threading.Event(), []

    def holds_on():
        begun.release()
        return go_on.wait(20)

    async def course():
        beside = aside.AsideThreads(workers)
        thread = await beside.run(threading.current_thread)
        first = [asyncio.ensure_future(beside.run(holds_on)) for _ in range(threads)]
        second = asyncio.ensure_future(beside.run(done.append, 1))
        for _ in range(threads):
            while not begun.acquire(blocking=False):
                await asyncio.sleep(0.001)
        threading.Timer(0.05, go_on.set).start()
        beside.close()
        assert not thread.is_alive() and all([await one for one in first])
        second.cancel()

    asyncio.run(course())
    assert done == []


LONG, SHORT = np.zeros(routes.LONG_BYTES + 1, np.uint8), np.zeros(routes.LONG_BYTES, np.uint8)


@pytest.mark.parametrize(
    ("outputs", "binary", "wanted", "is_long"),
    [
        ({"y": LONG}, False, {}, True),
        ({"y": SHORT}, False, {}, False),
        ({"y": LONG}, True, {}, False),
        ({"y": LONG}, False, {"y": {"binary": True}}, False),
        ({"y": LONG}, False, {"y": {}}, True),
        ({"y": LONG}, True, {"y": {}}, True),
        ({"y": LONG}, False, {"y": {"binary": True, "classification": 2}}, True),
        ({"y": LONG, "z": SHORT}, False, {"y": {"binary": True}, "z": {}}, False),
        ({"y": SHORT, "z": LONG}, False, {"y": {"binary": True}, "z": {}}, True),
    ],
)
def test_what_is_long_and_no_bytes_is_written_beside_the_loop(outputs, binary, wanted, is_long):
    asked = InferRequest(
        outputs=[RequestedOutput(name, **said) for name, said in wanted.items()],
        binary_output=binary,
    )
    made = [OutputTensor(name, "UINT8", one.shape, one) for name, one in outputs.items()]
    assert routes.takes_long(asked, InferResponse(made)) == is_long


@pytest.mark.parametrize(
    ("size", "header", "is_long"),
    [(1, None, True), (0, None, False), (1, 1, True), (1, 0, False), (9, 0, False)],
)
def test_json_that_is_long_is_read_beside_the_loop(size, header, is_long):
    length = None if header is None else routes.LONG_BYTES + header
    assert routes.is_long(bytes(routes.LONG_BYTES + size), length) == is_long


class Told:
    """A request over gRPC that waits for its answer."""

    def __init__(self):
        self.told = []
        self.answered = asyncio.get_running_loop().create_future()

    def _answer(self, buffers):
        self.told.append(buffers)

    _failed = _answer


@pytest.mark.parametrize("has_left", [False, True])
@pytest.mark.parametrize("error", [None, ValueError("too many classes")])
def test_an_answer_that_is_written_beside_the_loop_is_told_to_who_still_waits(has_left, error):
    grpc_inference = pytest.importorskip("shmgpu.serve.frontend.grpc_inference")
    retracted = []

    def write():
        if error is not None:
            raise error
        return ["bytes"]

    async def answer():
        front = SimpleNamespace(
            aside=aside.AsideThreads(),
            calls=SimpleNamespace(accounting=SimpleNamespace(retract=retracted.append)),
        )
        one = Told()
        if has_left:
            one.answered.cancel()
        kinds = [kind for kind in vars(grpc_inference).values() if hasattr(kind, "_answer_aside")]
        await kinds[0]._answer_aside(one, front, "model", write)
        front.aside.close()
        return one.told

    told = asyncio.run(answer())
    assert told == ([] if has_left else [error or ["bytes"]])
    assert retracted == ([] if error is None else ["model"])
