"""Counters that clients and dashboards see: Prometheus's text, and the protocol's statistics."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from serve import servers

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def server():
    """A server of this file's own: others' requests would be counted, too."""
    with servers.serving(servers.MODELS / "simple.py", workers=3) as running:
        yield running


def of_model(samples, name, model="scale", **labels):
    labels = {"model": model, "version": "1", **labels}
    return samples[name, frozenset(labels.items())]


def ask(server, model="scale", times=1, shape=(3,)):
    for _ in range(times):
        # A connection each: so that every worker has its share of them.
        with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
            one = client.InferInput("x", shape, "FP32")
            one.set_data_from_numpy(np.ones(shape, "float32"))
            triton.infer(model, [one])


def test_requests_are_counted_whichever_worker_had_them(server):
    before = server.samples()
    ask(server, times=9)
    after = server.samples()
    for name in ("request_success", "count", "exec_count"):
        full = f"nv_inference_{name}"
        assert of_model(after, full) - of_model(before, full) == 9
    for part in ("request", "queue", "compute_infer"):
        full = f"nv_inference_{part}_duration_us"
        assert of_model(after, full) >= of_model(before, full) >= 0
    assert of_model(after, "nv_inference_request_duration_us") > 0
    assert of_model(after, "nv_inference_pending_request_count") == 0


def test_durations_add_up_to_the_request(server):
    ask(server, times=3)
    found = server.samples()
    parts = sum(
        of_model(found, f"nv_inference_{part}_duration_us")
        for part in ("queue", "compute_input", "compute_infer", "compute_output")
    )
    assert parts <= of_model(found, "nv_inference_request_duration_us") + 4  # each is rounded


def test_failures_have_their_reasons(server):
    before = server.samples()
    with pytest.raises(client.InferenceServerException):
        ask(server, "fails")
    with pytest.raises(client.InferenceServerException):
        ask(server, "fails", shape=(3, 3))
    after = server.samples()
    name = "nv_inference_request_failure"
    for reason in ("BACKEND", "OTHER"):
        grown = of_model(after, name, "fails", reason=reason) - of_model(
            before, name, "fails", reason=reason
        )
        assert grown == 1, reason
    assert of_model(after, "nv_inference_request_success", "fails") == 0


def test_requests_without_a_place_or_time_are_rejected(tmp_path):
    name, waiting = "nv_inference_request_failure", "nv_inference_pending_request_count"
    file = tmp_path / "go on"
    path = client.InferInput("path", (1,), "BYTES")
    path.set_data_from_numpy(np.array([str(file)], object))
    with servers.serving(servers.MODELS / "simple.py", workers=1, helpers=1, max_queue=1) as server:
        with contextlib.closing(
            client.InferenceServerClient(server.address, concurrency=2)
        ) as triton:
            asked = triton.async_infer("held", [path])
            # This client's loop, which sends the request, runs only while the client is asked.
            servers.until(
                lambda: (
                    triton.is_server_live() and of_model(server.samples(), waiting, "held") == 1
                ),
                "it waits",
            )
            with pytest.raises(client.InferenceServerException, match="maximum queue size"):
                triton.infer("held", [path])
            file.touch()
            assert asked.get_result().as_numpy("pid").size == 1
            file.unlink()
            with pytest.raises(client.InferenceServerException, match="timeout expired"):
                triton.infer("held", [path], timeout=100_000)
        found = server.samples()
        file.touch()
    reasons = {
        reason: of_model(found, name, "held", reason=reason)
        for reason in ("REJECTED", "BACKEND", "CANCELED", "OTHER")
    }
    assert reasons == {"REJECTED": 2, "BACKEND": 0, "CANCELED": 0, "OTHER": 0}


def test_what_only_grows_is_a_counter(server):
    lines = server.ask("GET", "/metrics")[2].decode().splitlines()
    kinds = {name: kind for _, _, name, kind in (s.split() for s in lines if "# TYPE" in s)}
    assert kinds.pop("nv_inference_pending_request_count") == "gauge"
    own = {kind for name, kind in kinds.items() if name.startswith("nv_")}
    assert own == {"counter"}


def test_batches_are_counted_by_their_rows(server):
    ask(server, "rows", shape=(3, 1))
    found = server.samples()
    assert of_model(found, "shmgpu_batch_rows_bucket", "rows", le="2.0") == 0
    assert of_model(found, "shmgpu_batch_rows_bucket", "rows", le="4.0") == 1
    assert of_model(found, "shmgpu_batch_rows_sum", "rows") == 3
    with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
        (stats,) = triton.get_inference_statistics("rows")["model_stats"]
    (batch,) = stats["batch_stats"]
    assert batch["batch_size"] == 3
    assert batch["compute_infer"]["count"] == 1
    assert 0 < batch["compute_infer"]["ns"] <= stats["inference_stats"]["compute_infer"]["ns"]


def test_workers_helpers_and_arenas_are_seen(server):
    found = server.samples()
    assert found["shmgpu_workers", frozenset({("state", "running")})] == 3
    assert found["shmgpu_helpers", frozenset({("state", "ready")})] == 2
    assert found["shmgpu_arena_bytes", frozenset()] == 16 << 20
    assert found["shmgpu_helper_restarts_total", frozenset()] == 0
    for name, least in (("connections", 1), ("connections_accepted_total", 2)):
        of_workers = [found[f"shmgpu_{name}", frozenset({("worker", w)})] for w in "012"]
        assert sum(of_workers) >= least, "the one that asks, and an earlier one"
    assert found["shmgpu_bytes_total", frozenset({("kind", "marshalled")})] == 0
