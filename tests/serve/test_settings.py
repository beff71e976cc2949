"""Trace and log settings, over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import logging

import pytest
from serve import servers

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

        for change in ({"log_info": 7}, {"log_file": "/etc/passwd"}, {"nothing": 1}):
            with pytest.raises(http.InferenceServerException) as caught:
                over_http.update_log_settings(change)
            assert caught.value.status() == "400"
        with pytest.raises(http.InferenceServerException) as caught:
            over_http.get_trace_settings("nobody")
        assert caught.value.status() == "404"


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
