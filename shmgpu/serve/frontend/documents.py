"""Metadata, configuration and statistics in the protocol's terms, for both front ends.

Owns these documents. Never writes an answer.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

from shmgpu.serve.models.queue_policy import LEVELS
from shmgpu.serve.protocol.datatypes import DATATYPES
from shmgpu.serve.protocol.metadata import TensorMetadata
from shmgpu.serve.scheduling.catalog import Catalog, ServedModel
from shmgpu.serve.state.counters import Counters

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "generate",
    "logging",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
    "system_shared_memory",
    "trace",
)


def server() -> dict[str, Any]:
    """What the server is."""
    return {
        "name": "shmgpu",
        "version": importlib.metadata.version("shmgpu"),
        "extensions": list(EXTENSIONS),
    }


def metadata(served: ServedModel, versions: list[str]) -> dict[str, Any]:
    """A model's inputs and outputs."""
    return replace(served.metadata, versions=tuple(versions)).show()


def config(served: ServedModel) -> dict[str, Any]:
    """A model's configuration, in the words of Triton's ModelConfig."""
    first = 1 if served.max_batch_size else 0
    made: dict[str, Any] = {
        "name": served.name,
        "platform": served.description["platform"],
        "backend": served.description["platform"],
        "version_policy": {"all": {}},
        "max_batch_size": served.max_batch_size,
        "input": [_configured(one, first) for one in served.metadata.inputs],
        "output": [_configured(one, first) for one in served.metadata.outputs],
        "parameters": {
            key: {"string_value": value}
            for key, value in (served.description["parameters"] or {}).items()
        },
        "instance_group": _instance_group(served.name, served.devices),
        "model_transaction_policy": {"decoupled": served.description["streams"]},
    }
    if served.cache:
        made["response_cache"] = {"enable": True}
    if served.sequence:
        made["sequence_batching"] = {"direct": {}}
    if served.description["cuda_graphs"]:
        made["optimization"] = {"cuda": {"graphs": True}}
    if served.max_batch_size:
        made["dynamic_batching"] = {
            "preferred_batch_size": [],
            "max_queue_delay_microseconds": int(served.description["max_delay_ms"] * 1000),
        }
        if served.queue.most or served.queue.default_timeout:
            made["dynamic_batching"]["default_queue_policy"] = served.queue.show()
        if served.queues:
            made["dynamic_batching"] |= {
                "priority_levels": LEVELS,
                "default_priority_level": LEVELS,
                "priority_queue_policy": {
                    str(level): queue.show() for level, queue in served.queues.items()
                },
            }
    return made


def _instance_group(name: str, devices: list[str]) -> list[dict[str, Any]]:
    """Where a model's helpers are, in the words of Triton's ModelInstanceGroup."""
    shown = []
    for number, device in enumerate(dict.fromkeys(devices)):
        group = {"name": f"{name}_{number}", "count": devices.count(device)}
        kind, _, index = device.partition(":")
        if kind == "cpu":
            shown.append({**group, "kind": "KIND_CPU", "gpus": []})
        else:
            shown.append({**group, "kind": "KIND_GPU", "gpus": [int(index)]})
    return shown


def _configured(one: TensorMetadata, first: int) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": one.name,
        "data_type": DATATYPES[one.datatype].config,
        "dims": list(one.shape[first:]),
    }
    if one.optional:
        shown["optional"] = True
    return shown


def statistics(
    catalog: Catalog, counters: Counters, name: str = "", version: str = ""
) -> dict[str, Any]:
    """What was counted of one model, or of all."""
    if name:
        chosen = [catalog.find(name, version, status=400)]
        if not version:
            chosen = list(catalog.models[name].values())
    else:
        chosen = [one for versions in catalog.models.values() for one in versions.values()]
    return {"model_stats": [_statistics(one, counters) for one in chosen]}


def _statistics(served: ServedModel, counters: Counters) -> dict[str, Any]:
    total = counters.total(served.index)
    calls = total["success_count"] - total["cache_hit_count"]
    computed = total["input_ns"] + total["infer_ns"] + total["output_ns"]

    def duration(ns: int, count: int = calls) -> dict[str, int]:
        return {"count": count, "ns": max(ns, 0)}

    return {
        "name": served.name,
        "version": served.version,
        "last_inference": total["last_ms"],
        "inference_count": total["inference_count"],
        "execution_count": total["exec_count"],
        "pending": total["pending_0"] + total["pending_1"],
        "inference_stats": {
            "success": duration(total["success_ns"], total["success_count"]),
            "fail": duration(total["fail_ns"], total["fail_count"]),
            "queue": duration(total["call_ns"] - computed),
            "compute_input": duration(total["input_ns"]),
            "compute_infer": duration(total["infer_ns"]),
            "compute_output": duration(total["output_ns"]),
            "cache_hit": duration(total["cache_hit_ns"], total["cache_hit_count"]),
            "cache_miss": duration(total["cache_miss_ns"], total["cache_miss_count"]),
        },
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": duration(sums["input_ns"], sums["exec_count"]),
                "compute_infer": duration(sums["infer_ns"], sums["exec_count"]),
                "compute_output": duration(sums["output_ns"], sums["exec_count"]),
            }
            for rows, sums in counters.batch_totals(served.index).items()
        ],
        "response_stats": {
            str(place): {name: duration(ns, count) for name, (count, ns) in sums.items()}
            for place, sums in counters.part_totals(served.index).items()
        }
        if served.streams
        else {},
        "memory_usage": [
            {"type": kind, "id": number, "byte_size": nbytes}
            for kind, number, nbytes in _memory(served, counters)
            if nbytes
        ],
    }


def _memory(served: ServedModel, counters: Counters) -> list[tuple[str, int, int]]:
    """Kind, number and bytes of what loading a model took."""
    own, gpus = counters.memory_totals(served.index)
    return [("CPU", 0, own), *(("GPU", number, nbytes) for number, nbytes in gpus.items())]
