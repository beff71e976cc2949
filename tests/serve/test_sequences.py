"""Sequences: requests that belong together reach one helper, in order, and it keeps their state."""

from __future__ import annotations

import contextlib
import os
import queue
import signal

import numpy as np
import pytest
from serve import servers

from shmgpu import core
from shmgpu.serve.models import errors, sequences

client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
grpc_client = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def server():
    """Four helpers and three workers, so that chance alone brings no two requests together."""
    with servers.serving(
        servers.MODELS / "sequences.py", helpers=4, workers=3, grpc_port=0
    ) as running:
        yield running


def ask(server, value, sequence, start=False, end=False, model="total", **more):
    """One request, on a connection of its own: any worker may get it."""
    with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
        x = client.InferInput("x", (1,), "FP32")
        x.set_data_from_numpy(np.array([value], "float32"))
        return triton.infer(
            model, [x], sequence_id=sequence, sequence_start=start, sequence_end=end, **more
        )


def total(answer):
    return float(answer.as_numpy("total")[0])


def test_a_sequence_keeps_its_state_whichever_worker_is_asked(server):
    for sequence in (1, 2, "a name"):
        ask(server, 100, sequence, start=True)
    pids = {}
    for step in range(8):
        for sequence in (1, 2, "a name"):
            answer = ask(server, 1, sequence)
            assert total(answer) == 101 + step
            pids.setdefault(sequence, set()).add(int(answer.as_numpy("pid")[0]))
    assert all(len(one) == 1 for one in pids.values()), "one helper each"
    for sequence in (1, 2, "a name"):
        assert total(ask(server, 1, sequence, end=True)) == 109


def test_sequences_are_spread_over_the_helpers(server):
    pids = {
        int(ask(server, 1, number, start=True, end=True).as_numpy("pid")[0])
        for number in range(1, 41)
    }
    assert len(pids) == 4


def test_a_sequence_that_is_not_there_is_refused_as_triton_does(server):
    with pytest.raises(client.InferenceServerException, match="must specify the START") as caught:
        ask(server, 1, 999)
    assert caught.value.status() == "400"
    ask(server, 1, 50, start=True)
    ask(server, 1, 50, end=True)
    with pytest.raises(client.InferenceServerException, match="must specify the START"):
        ask(server, 1, 50)
    with pytest.raises(client.InferenceServerException, match="correlation ID") as caught:
        ask(server, 1, 0)
    assert caught.value.status() == "400"


def test_a_start_forgets_what_was_before(server):
    ask(server, 5, 60, start=True)
    assert total(ask(server, 7, 60, start=True)) == 7


def test_an_error_in_the_middle_leaves_the_state(server):
    ask(server, 5, 61, start=True)
    with pytest.raises(client.InferenceServerException, match="not this number"):
        ask(server, 666, 61)
    assert total(ask(server, 1, 61, end=True)) == 6
    with pytest.raises(client.InferenceServerException, match="not this number"):
        ask(server, 666, 62, start=True)
    with pytest.raises(client.InferenceServerException, match="must specify the START"):
        ask(server, 1, 62)


def test_one_request_may_be_a_whole_sequence_even_of_torch(server):
    assert total(ask(server, 3, 70, start=True, end=True)) == 3
    ask(server, 3, 71, start=True, model="last")
    assert float(ask(server, 4, 71, model="last").as_numpy("y")[0]) == 3
    assert float(ask(server, 5, 71, end=True, model="last").as_numpy("y")[0]) == 4


def test_requests_of_a_stream_run_in_order_whatever_their_priority(server):
    told = queue.Queue()
    with contextlib.closing(grpc_client.InferenceServerClient(server.grpc_address)) as triton:
        triton.start_stream(lambda result, error: told.put((result, error)))
        letters = "abcdefghijklmnopqrstuvwxyz"
        for place, letter in enumerate(letters):
            text = grpc_client.InferInput("text", (1,), "BYTES")
            text.set_data_from_numpy(np.array([letter], dtype=object))
            triton.async_stream_infer(
                "joined",
                [text],
                sequence_id="letters",
                sequence_start=place == 0,
                sequence_end=place == 25,
                priority=1 + place % 4,
            )
        for place in range(26):
            result, error = told.get(timeout=30)
            assert error is None
            assert result.as_numpy("all")[0].decode() == letters[: place + 1]
        triton.stop_stream()


def test_the_configuration_says_so(server):
    with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
        assert "sequence_batching" in triton.get_model_config("total")
        assert "sequence" in triton.get_server_metadata()["extensions"]


def test_a_sequence_is_lost_with_its_helper(server):
    pid = int(ask(server, 1, 80, start=True).as_numpy("pid")[0])
    os.kill(pid, signal.SIGKILL)
    servers.until(lambda: pid not in server.children(), "it is gone")
    with pytest.raises(client.InferenceServerException, match="was replaced") as caught:
        ask(server, 1, 80)
    assert caught.value.status() == "400"
    assert int(ask(server, 1, 80, start=True).as_numpy("pid")[0]) != pid


def test_they_are_bounded_and_idle_ones_are_dropped():
    with servers.serving(
        servers.MODELS / "sequences.py", helpers=1, max_sequences=2, sequence_idle=3
    ) as server:
        ask(server, 1, 1, start=True)
        ask(server, 1, 2, start=True)
        with pytest.raises(client.InferenceServerException, match="keeps 2 already") as caught:
            ask(server, 1, 3, start=True)
        assert caught.value.status() == "503"
        servers.until(lambda: begins(server, 3), "the idle ones are dropped")
        with pytest.raises(client.InferenceServerException, match="idle too long"):
            ask(server, 1, 1)


def test_those_of_a_model_end_with_it():
    with servers.serving(
        servers.MODELS / "sequences.py", helpers=1, max_sequences=1, allow_repository=True
    ) as server:
        ask(server, 5, 1, start=True)
        ask(server, 7, 1, start=True)  # one that begins anew is no further one
        with contextlib.closing(client.InferenceServerClient(server.address)) as triton:
            triton.load_model("total")
        with pytest.raises(client.InferenceServerException, match="was replaced"):
            ask(server, 1, 1)
        servers.until(lambda: begins(server, 2), "the old model's have left their place")


def test_the_one_that_was_not_asked_for_longest_is_dropped_first(monkeypatch):
    now = 0.0
    monkeypatch.setattr(sequences.time, "monotonic", lambda: now)
    kept = sequences.Sequences(2, 10)
    kept.state((1, "a"), "m", True)["seen"] = 1
    kept.state((1, "b"), "m", True)
    now = 8.0
    kept.state((1, "a"), "m", False)
    now = 12.0
    kept.state((1, "c"), "m", True)
    assert kept.state((1, "a"), "m", False) == {"seen": 1}
    with pytest.raises(errors.SequenceLost):
        kept.state((1, "b"), "m", False)


def test_a_helper_that_was_given_up_gets_none_while_another_serves(monkeypatch):
    given_up = {1, 2}
    states = {True: core.HELPER_GIVEN_UP, False: 1 - core.HELPER_GIVEN_UP}
    monkeypatch.setattr(core, "helper_stats", lambda one: {"state": states[one in given_up]})
    assert sequences.standing([0, 1, 2]) == [0]
    assert sequences.standing([1, 2]) == [1, 2], "the call will say why"


def begins(server, sequence):
    try:
        return ask(server, 1, sequence, start=True)
    except client.InferenceServerException:
        return None
