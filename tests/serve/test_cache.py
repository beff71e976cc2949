"""The response cache: the same inputs are answered without a helper, and nothing else is."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from serve import servers

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
grpc_client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
cache = pytest.importorskip("shmgpu.serve.scheduling.cache")


@pytest.fixture(scope="module")
def server():
    with servers.serving(
        servers.MODELS / "cached.py",
        workers=1,
        response_cache="1MiB",
        grpc_port=0,
        allow_repository=True,
    ) as running:
        yield running


def ask(triton, array, model="kept", binary=True):
    x = client.InferInput("x", array.shape, "FP32")
    x.set_data_from_numpy(array.astype("float32"), binary_data=binary)
    answer = triton.infer(model, [x])
    if model == "kept":
        np.testing.assert_array_equal(answer.as_numpy("y"), array * 2)
    return int(answer.as_numpy("run")[0])


def statistics(triton, model="kept"):
    (found,) = triton.get_inference_statistics(model)["model_stats"]
    return found


def test_the_same_inputs_have_the_answer_of_one_execution(triton):
    array = np.arange(6.0).reshape(2, 3)
    first = ask(triton, array)
    before = statistics(triton)
    assert {ask(triton, array) for _ in range(10)} == {first}
    assert ask(triton, array, binary=False) == first, "the bytes count, not their encoding"
    after = statistics(triton)
    grown = {
        part: after["inference_stats"][part]["count"] - before["inference_stats"][part]["count"]
        for part in ("success", "cache_hit", "cache_miss", "compute_infer")
    }
    assert grown == {"success": 11, "cache_hit": 11, "cache_miss": 0, "compute_infer": 0}
    assert after["inference_count"] == before["inference_count"]
    assert after["inference_stats"]["cache_hit"]["ns"] > 0


def test_other_bytes_and_other_shapes_are_other_inputs(triton):
    array = np.arange(12.0)
    runs = {ask(triton, array.reshape(shape)) for shape in ((2, 6), (3, 4), (4, 3))}
    runs.add(ask(triton, array.reshape(2, 6) + 1))
    assert len(runs) == 4


def test_texts_are_kept_too(triton):
    def run(*words):
        text = client.InferInput("text", (len(words),), "BYTES")
        text.set_data_from_numpy(np.array(words, dtype=object))
        answer = triton.infer("texts", [text])
        assert [one.decode() for one in answer.as_numpy("upper")] == [w.upper() for w in words]
        return int(answer.as_numpy("run")[0])

    assert run("ab", "c") == run("ab", "c")
    assert run("ab", "c") != run("a", "bc")


def test_both_front_ends_share_it(server, triton):
    array = np.full((1, 3), 5.0)
    first = ask(triton, array)
    with contextlib.closing(grpc_client.InferenceServerClient(server.grpc_address)) as other:
        x = grpc_client.InferInput("x", array.shape, "FP32")
        x.set_data_from_numpy(array.astype("float32"))
        assert int(other.infer("kept", [x]).as_numpy("run")[0]) == first


def test_a_model_that_does_not_declare_it_is_run_each_time(triton):
    array = np.ones((1, 1))
    assert ask(triton, array, "undeclared") != ask(triton, array, "undeclared")
    assert statistics(triton, "undeclared")["inference_stats"]["cache_miss"]["count"] == 0


def test_a_reload_forgets(triton):
    array = np.full((2, 2), 7.0)
    first = ask(triton, array)
    assert ask(triton, array) == first
    triton.load_model("kept")
    assert ask(triton, array) != first


def test_dashboards_see_it(server, triton):
    array = np.full((2, 2), 8.0)
    ask(triton, array)
    ask(triton, array)
    samples = server.samples()
    kept = frozenset({("model", "kept"), ("version", "1")})
    for name in ("hits", "misses"):
        assert samples[f"nv_cache_num_{name}_per_model", kept] >= 1


def test_it_is_off_unless_asked_for():
    with (
        servers.serving(servers.MODELS / "cached.py", workers=1) as server,
        contextlib.closing(client.InferenceServerClient(server.address)) as triton,
    ):
        array = np.ones((1, 1))
        assert ask(triton, array) != ask(triton, array)


def test_it_stays_within_its_size_and_drops_what_was_not_used():
    kept = cache.Cache(10_000)
    for number in range(100):
        kept.put(1, b"%d" % number, np.full(125, number))  # 1,000 bytes
        assert kept.used_bytes <= 10_000
        kept.get(1, b"0")
    assert len(kept) == 6
    assert kept.get(1, b"0")[0] == 0, "it was used all the time"
    assert kept.get(1, b"50") is None
    kept.put(1, b"large", np.zeros(20_000))
    assert len(kept) == 6


def test_what_is_kept_takes_nothing_of_the_arena():
    with (
        servers.serving(
            servers.MODELS / "cached.py", workers=1, arena="1MiB", response_cache="16MiB"
        ) as server,
        contextlib.closing(client.InferenceServerClient(server.address)) as triton,
    ):
        first = ask(triton, np.zeros((64, 256)))
        for number in range(1, 60):  # 64 KiB each
            ask(triton, np.full((64, 256), number))
        assert ask(triton, np.zeros((64, 256))) == first
