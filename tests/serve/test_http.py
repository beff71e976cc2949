"""Infer over HTTP, asked by the stock client."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from shmgpu.serve.scheduling.rows import nearest_delay_ms

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")

NUMPY = {
    "BOOL": np.bool_,
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


def tensor(name, array, datatype=None, binary=True):
    made = client.InferInput(name, array.shape, datatype or client.np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def wanted(*names, binary=True):
    return [client.InferRequestedOutput(name, binary_data=binary) for name in names]


def ab(rows=3):
    a = np.arange(4 * rows, dtype="float32").reshape(rows, 4)
    return a, 10 * a


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tensors_travel_as_binary_or_as_json(triton, binary_in, binary_out):
    a, b = ab()
    inputs = [tensor("b", b, binary=binary_in), tensor("a", a, binary=binary_in)]
    result = triton.infer(
        "add_sub", inputs, outputs=wanted("difference", "sum", binary=binary_out), request_id="r1"
    )
    assert np.array_equal(result.as_numpy("sum"), a + b)
    assert np.array_equal(result.as_numpy("difference"), a - b)
    answer = result.get_response()
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("r1", "add_sub", "1")
    assert [one["name"] for one in answer["outputs"]] == ["difference", "sum"]


def test_only_the_outputs_asked_for_come(triton):
    a, b = ab(1)
    result = triton.infer("add_sub", [tensor("a", a), tensor("b", b)], outputs=wanted("sum"))
    assert result.as_numpy("difference") is None
    assert np.array_equal(result.as_numpy("sum"), a + b)


@pytest.mark.parametrize("datatype", NUMPY)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_every_datatype_comes_back_as_it_went(triton, datatype, binary):
    if datatype == "FP16" and not binary:
        pytest.skip("the client sends FP16 as binary data only")
    array = np.array([0, 1, 1, 0, 1]).astype(NUMPY[datatype])
    result = triton.infer(
        f"echo_{datatype.lower()}",
        [tensor("x", array, datatype, binary)],
        outputs=wanted("y", binary=binary),
    )
    assert np.array_equal(result.as_numpy("y"), array)


def test_bf16_comes_back_as_it_went(triton):
    array = np.array([0, 1, -2.5, 3e38], "float32")
    for binary in (True, False):
        result = triton.infer(
            "echo_bf16", [tensor("x", array, "BF16")], outputs=wanted("y", binary=binary)
        )
        assert np.allclose(np.asarray(result.as_numpy("y"), "float32"), array, rtol=1e-2)


def test_bytes_elements_are_taken_and_given(triton):
    text = np.array([b"one", b"", "zwölf".encode()], dtype=object)
    result = triton.infer("upper", [tensor("text", text, "BYTES")])
    assert result.as_numpy("upper").tolist() == [b"ONE", b"", "zwölf".encode().upper()]


@pytest.mark.parametrize("megabytes", [0.5, 3])
def test_large_tensors_come_back_whole(triton, megabytes):
    array = np.arange(int(megabytes * 2**18), dtype="float32")
    result = triton.infer("scale", [tensor("x", array)])
    assert np.array_equal(result.as_numpy("y"), 2 * array)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_request_may_be_compressed(triton, algorithm):
    a, b = ab()
    result = triton.infer(
        "add_sub",
        [tensor("a", a), tensor("b", b)],
        request_compression_algorithm=algorithm,
    )
    assert np.array_equal(result.as_numpy("sum"), a + b)


def test_a_version_may_be_named(triton):
    x = np.ones(2, "float32")
    result = triton.infer("scale", [tensor("x", x)], model_version="1")
    assert result.get_response()["model_version"] == "1"
    with pytest.raises(client.InferenceServerException, match="version 7") as caught:
        triton.infer("scale", [tensor("x", x)], model_version="7")
    assert caught.value.status() == "404"


@pytest.mark.parametrize(
    ("model", "inputs", "status", "message"),
    [
        ("nobody", [("x", (1,))], "404", "unknown model"),
        ("scale", [("y", (1,))], "400", "unexpected input 'y'"),
        ("scale", [], "400", "input"),
        (
            "add_sub",
            [("a", (1, 4))],
            "400",
            "expected 2 inputs but got 1 inputs",
        ),
        ("add_sub", [("a", (1, 4)), ("b", (1, 5))], "400", "unexpected shape"),
        ("add_sub", [("a", (9, 4)), ("b", (9, 4))], "400", "9 rows"),
        ("add_sub", [("a", (1, 4)), ("b", (2, 4))], "400", "rows"),
        ("echo_int8", [("x", (1,))], "400", "takes INT8"),
        ("fails", [("x", (1,))], "500", "ValueError: these numbers are not liked"),
    ],
)
def test_what_is_wrong_is_said_with_tritons_status(triton, model, inputs, status, message):
    made = [tensor(name, np.ones(shape, "float32")) for name, shape in inputs]
    with pytest.raises(client.InferenceServerException, match=message) as caught:
        triton.infer(model, made)
    assert caught.value.status() == status


def test_health_metadata_and_configuration(triton):
    assert triton.is_server_live() and triton.is_server_ready()
    assert triton.is_model_ready("add_sub") and triton.is_model_ready("add_sub", "1")
    assert not triton.is_model_ready("nobody") and not triton.is_model_ready("add_sub", "2")
    assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
    about = triton.get_model_metadata("add_sub")
    assert about["versions"] == ["1"]
    assert about["inputs"][0] == {"name": "a", "datatype": "FP32", "shape": [-1, 4]}
    config = triton.get_model_config("add_sub")
    assert config["max_batch_size"] == 8
    assert config["output"][1] == {"name": "difference", "data_type": "TYPE_FP32", "dims": [4]}


def test_a_chunked_body_is_read(server):
    body = json.dumps(
        {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
    ).encode()
    pieces = (body[at : at + 7] for at in range(0, len(body), 7))
    status, _, answer = server.ask("POST", "/v2/models/scale/infer", pieces)
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == [2, 4]


def test_requests_of_many_clients_become_batches(server):
    async def flood():
        import tritonclient.http.aio as aio

        async with aio.InferenceServerClient(server.address) as triton:
            x = [tensor("x", np.ones((1, 1), "float32"))]
            return await asyncio.gather(*[triton.infer("rows", x) for _ in range(32)])

    import asyncio

    sizes = [int(one.as_numpy("rows")[0]) for one in asyncio.run(flood())]
    assert max(sizes) > 1, "requests that came together were run one by one"
    assert max(sizes) <= 4, "a batch was larger than the model allows"


def test_statistics_count_what_was_done_whichever_worker_did_it(server):
    counted = []
    for _ in range(6):  # a connection each, so that both workers have some
        with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
            triton.infer("echo_uint8", [tensor("x", np.ones(1, "uint8"))])
            stats = triton.get_inference_statistics("echo_uint8")["model_stats"][0]
            counted.append(stats["inference_count"])
    assert counted == list(range(counted[0], counted[0] + 6))


def raw_request(a, b):
    """A body that repeats but for its tensors' bytes, and the length of its header."""
    tensors = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in (("a", a), ("b", b))
    ]
    header = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return header + a.tobytes() + b.tobytes(), str(len(header))


def test_a_header_that_came_before_is_answered_with_what_is_new(server):
    # More often than there are workers, so that each has seen it before.
    for number in range(12):
        a, b = ab()
        body, length = raw_request(a + number, b)
        status, headers, answer = server.ask(
            "POST", "/v2/models/add_sub/infer", body, Inference_Header_Content_Length=length
        )
        assert status == 200
        at = int(headers["inference-header-content-length"])
        assert [one["name"] for one in json.loads(answer[:at])["outputs"]] == ["sum", "difference"]
        found = np.frombuffer(answer, "float32", offset=at).reshape(2, 3, 4)
        assert np.array_equal(found[0], a + number + b)
        assert np.array_equal(found[1], a + number - b)


def test_a_header_that_came_before_does_not_excuse_a_body_cut_short(server):
    body, length = raw_request(*ab())
    for cut in (body, body, body[:-4], body + b"more", body):
        status, _, _ = server.ask(
            "POST", "/v2/models/add_sub/infer", cut, Inference_Header_Content_Length=length
        )
        assert status == (200 if cut == body else 400)


@pytest.mark.parametrize(
    ("asked", "found"), [(0, 0), (0.5, 1), (1, 1), (3, 2), (49, 20), (200, 200), (999, 500)]
)
def test_a_request_waits_for_company_no_longer_than_its_model_asks_for(asked, found):
    assert nearest_delay_ms(asked) == found
