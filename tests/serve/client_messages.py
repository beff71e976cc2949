"""Requests over gRPC as Triton's client writes them, as bytes."""

from __future__ import annotations

from typing import Any


def built(inputs: Any, **given: Any) -> bytes:
    """A ModelInferRequest with these inputs, and what else is given."""
    from tritonclient.grpc._utils import _get_inference_request

    blank = {
        "model_name": "m",
        "model_version": "",
        "request_id": "",
        "outputs": None,
        "sequence_id": 0,
        "sequence_start": False,
        "sequence_end": False,
        "priority": 0,
        "timeout": None,
        "parameters": None,
    }
    return _get_inference_request(inputs=inputs, **{**blank, **given}).SerializeToString()
