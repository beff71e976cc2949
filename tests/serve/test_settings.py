"""Trace and log settings, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types

import numpy as np
import pytest
from serve import servers

from shmgpu.serve.protocol.types import ProtocolError

http = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")

MODEL = servers.MODELS / "simple.py"


@contextlib.contextmanager
def both(server):
    with (
        contextlib.closing(http.InferenceServerClient(server.address)) as over_http,
        contextlib.closing(grpc.InferenceServerClient(server.grpc_address)) as over_grpc,
    ):
        yield over_http, over_grpc


def test_settings_are_the_same_over_http_and_grpc_and_can_be_changed_where_allowed():
    with (
        servers.serving(MODEL, grpc_port=0, allow_settings=True) as server,
        both(server) as (over_http, over_grpc),
    ):
        assert over_http.get_log_settings()["log_info"] is True
        over_http.update_log_settings({"log_info": False, "log_verbose_level": 2})
        found = over_grpc.get_log_settings(as_json=True)["settings"]
        assert found["log_verbose_level"] == {"uint32_param": 2}
        over_grpc.update_log_settings({"log_verbose_level": 0})
        assert over_http.get_log_settings()["log_verbose_level"] == 0

        assert over_http.get_trace_settings()["trace_level"] == ["OFF"]
        over_grpc.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})
        over_http.update_trace_settings("scale", {"trace_rate": "5"})
        assert over_http.get_trace_settings("scale")["trace_rate"] == "5"
        assert over_http.get_trace_settings("scale")["trace_level"] == ["TIMESTAMPS"]
        assert over_http.get_trace_settings("add_sub")["trace_rate"] == "1000"
        over_http.update_trace_settings("scale", {"trace_rate": None})
        assert over_http.get_trace_settings("scale")["trace_rate"] == "1000"

        same = {"log_file": "", "log_format": "default", "log_info": False}
        assert over_http.update_log_settings(same)["log_format"] == "default"
        over_http.update_trace_settings(settings={"trace_mode": "triton", "trace_file": ""})
        large = {"log_verbose_level": 1 << 32}
        for change in ({"log_info": 7}, {"log_file": "/etc/passwd"}, {"nothing": 1}, large):
            with pytest.raises(http.InferenceServerException) as caught:
                over_http.update_log_settings(change)
            assert caught.value.status() == "400"
        with pytest.raises(http.InferenceServerException) as caught:
            over_http.get_trace_settings("nobody")
        assert caught.value.status() == "400"
        with pytest.raises(grpc.InferenceServerException) as caught:
            over_grpc.get_trace_settings("nobody")
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "change",
    [
        {"trace_level": ["OFF"] * 10_000},
        {"trace_level": [["OFF"]]},
        {"trace_level": []},
        {"trace_rate": "1" * 100},
        {"trace_mode": "opentelemetry"},
        {"trace_rate": 10**80},
        {"log_format": "default"},
        {"log_file": None},
    ],
)
def test_trace_settings_have_sizes(change):
    from shmgpu.serve.state import log_settings
    from shmgpu.serve.state.control_table import ControlTable

    with contextlib.closing(ControlTable({"settings": {}})) as table:
        with pytest.raises(ProtocolError) as refused:
            log_settings.change_trace(table, True, change)
        assert refused.value.status == 400
        assert len(refused.value.sentence) < 200
        assert log_settings.trace(table) == log_settings.TRACE


def test_what_a_model_raises_is_told_unless_it_is_hidden():
    asked = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
    for flags, is_told in (({}, True), ({"hide_errors": True}, False)):
        with servers.serving(MODEL, workers=1, helpers=1, **flags) as server:
            status, _, body = server.ask("POST", "/v2/models/fails/infer", asked)
            assert status == 500
            assert (b"these numbers are not liked" in body) == is_told
        assert "these numbers are not liked" in server.said


def test_settings_are_told_but_not_changed_unless_allowed():
    with servers.serving(MODEL, grpc_port=0) as server, both(server) as (over_http, over_grpc):
        with pytest.raises(http.InferenceServerException, match="allow-settings") as caught:
            over_http.update_log_settings({"log_info": False})
        assert caught.value.status() == "403"
        with pytest.raises(http.InferenceServerException, match="allow-settings"):
            over_grpc.update_trace_settings(settings={"trace_rate": "1"})
        assert over_http.get_log_settings()["log_info"] is True
        assert over_http.get_trace_settings()["trace_rate"] == "1000"


def test_log_settings_decide_what_is_logged():
    from shmgpu.common.logs import logger
    from shmgpu.serve.state import log_settings
    from shmgpu.serve.state.control_table import ControlTable

    before = logger.level
    with contextlib.closing(ControlTable({"settings": {}})) as table:
        try:
            log_settings.apply_log(table)
            assert logger.level == before, "what nobody changed stays"
            for change, level in [
                ({"log_info": False}, logging.WARNING),
                ({"log_warning": False}, logging.ERROR),
                ({"log_error": False}, logging.CRITICAL),
                ({"log_verbose_level": 1}, logging.DEBUG),
            ]:
                log_settings.change_log(table, True, change)
                log_settings.apply_log(table)
                assert logger.level == level
        finally:
            logger.setLevel(before)


def test_each_worker_takes_up_log_settings_that_another_one_was_told(monkeypatch):
    from shmgpu.common.logs import logger
    from shmgpu.serve import worker as workers
    from shmgpu.serve.frontend.acceptor import Connections
    from shmgpu.serve.state import log_settings
    from shmgpu.serve.state.control_table import ControlTable

    looked = []

    async def reload_when_asked():
        looked.append(logger.level)

    async def tend(worker):
        task = asyncio.create_task(worker._tend())
        for change, level in [
            ({"log_info": False}, logging.WARNING),
            ({"log_warning": False}, logging.ERROR),
        ]:
            log_settings.change_log(worker.plan.table, True, change)
            looked.clear()
            while level not in looked:
                await asyncio.sleep(0)
                assert len(looked) < 100
        task.cancel()

    monkeypatch.setattr(workers, "TEND_S", 0)
    before = logger.level
    with contextlib.closing(ControlTable({"settings": {}})) as table:
        worker = object.__new__(workers._Worker)
        worker.plan = types.SimpleNamespace(table=table)
        worker.connections = Connections(np.zeros((1, 8), np.uint64), 0)
        worker.calls = types.SimpleNamespace(spans=None)
        worker.front = types.SimpleNamespace(
            lifecycle=types.SimpleNamespace(reload_when_asked=reload_when_asked)
        )
        worker.access = worker.watch = None
        worker.settings_of = -1
        try:
            asyncio.run(tend(worker))
        finally:
            logger.setLevel(before)
