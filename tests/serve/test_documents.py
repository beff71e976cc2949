"""What clients are told of a model: its configuration and its statistics, in Triton's words."""

from __future__ import annotations

import types
from dataclasses import asdict

import pytest

from shmgpu.serve import QueuePolicy, options
from shmgpu.serve.frontend import documents
from shmgpu.serve.protocol.metadata import ModelMetadata, TensorMetadata
from shmgpu.serve.protocol.types import ProtocolError
from shmgpu.serve.scheduling.queues import ModelQueue
from shmgpu.serve.state.counters import (
    BATCH_FIELDS,
    FIELDS,
    INDEX,
    MOST_PARTS,
    MOST_ROWS,
    OWN_FIELDS,
    PART_FIELDS,
    Counters,
    batch_offset,
    part_offset,
)

PLAIN = {
    "platform": "shmgpu_python",
    "parameters": {},
    "streams": False,
    "cuda_graphs": False,
    "max_delay_ms": 0.0,
}


def model(max_batch_size=0, cache=False, sequence=None, version="1", index=0, **declared):
    rows = (-1,) if max_batch_size else ()
    metadata = ModelMetadata(
        "m",
        (version,),
        "shmgpu_python",
        (
            TensorMetadata("x", "FP32", (*rows, 3)),
            TensorMetadata("mask", "BOOL", (*rows, 2, -1), optional=True),
        ),
        (TensorMetadata("y", "BYTES", (*rows, 1)),),
        max_batch_size,
    )
    return types.SimpleNamespace(
        name="m",
        version=version,
        index=index,
        metadata=metadata,
        max_batch_size=max_batch_size,
        cache=cache,
        sequence=sequence,
        devices=["cpu", "cpu"],
        queue=ModelQueue(0, asdict(QueuePolicy())),
        queues={},
        streams=declared.get("streams", False),
        description={**PLAIN, **declared},
    )


def test_a_configuration_is_what_the_model_declares():
    assert documents.config(model()) == {
        "name": "m",
        "platform": "shmgpu_python",
        "backend": "shmgpu_python",
        "version_policy": {"all": {}},
        "max_batch_size": 0,
        "input": [
            {"name": "x", "data_type": "TYPE_FP32", "dims": [3]},
            {"name": "mask", "data_type": "TYPE_BOOL", "dims": [2, -1], "optional": True},
        ],
        "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": [1]}],
        "parameters": {},
        "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 2, "gpus": []}],
        "model_transaction_policy": {"decoupled": False},
    }


@pytest.mark.parametrize(
    ("declared", "added"),
    [
        ({"cache": True}, {"response_cache": {"enable": True}}),
        ({"sequence": object()}, {"sequence_batching": {"direct": {}}}),
        ({"cuda_graphs": True}, {"optimization": {"cuda": {"graphs": True}}}),
        ({"streams": True}, {"model_transaction_policy": {"decoupled": True}}),
        ({"parameters": {"a": "1"}}, {"parameters": {"a": {"string_value": "1"}}}),
        (
            {"max_batch_size": 8, "max_delay_ms": 1.5},
            {
                "max_batch_size": 8,
                "dynamic_batching": {
                    "preferred_batch_size": [],
                    "max_queue_delay_microseconds": 1500,
                },
            },
        ),
    ],
)
def test_what_a_model_may_declare_besides_is_in_its_configuration(declared, added):
    """The dimensions are those of one row, with a batch or without."""
    assert documents.config(model(**declared)) == {**documents.config(model()), **added}


def test_metadata_name_the_versions_that_can_be_asked_for():
    shown = documents.metadata(model(max_batch_size=4), ["1", "2"])
    assert shown["versions"] == ["1", "2"]
    assert shown["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    assert shown["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [-1, 1]}]


@pytest.fixture(scope="module")
def region():
    made = Counters(workers=1, helpers=1)
    yield made
    made.close()


@pytest.fixture
def counters(region):
    for numbers in (region.rows, region.by_rows, region.by_parts, region.memory, region.own):
        numbers[:2, :2] = 0  # the models of these tests
    return region


def count(counters, writer, index, **numbers):
    own = counters.of(writer)
    for name, number in numbers.items():
        own[index * len(FIELDS) + INDEX[name]] = number


def test_statistics_are_sums_over_all_processes(counters):
    count(
        counters, 0, 1,
        success_count=9, success_ns=900, fail_count=2, fail_ns=20, inference_count=12,
        cache_hit_count=4, cache_hit_ns=8, cache_miss_count=5, cache_miss_ns=10,
        call_ns=700, pending_0=1, pending_1=2, last_ms=77,
    )  # fmt: skip
    count(counters, 1, 1, exec_count=3, input_ns=100, infer_ns=300, output_ns=50)
    own = counters.batches_of(1)
    for number in range(len(BATCH_FIELDS)):
        own[batch_offset(1, 4) + number] = 10 + number
    catalog = types.SimpleNamespace(models={"m": {"1": model(index=1)}})
    assert documents.statistics(catalog, counters) == {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": 77,
                "inference_count": 12,
                "execution_count": 3,
                "pending": 3,
                "inference_stats": {
                    "success": {"count": 9, "ns": 900},
                    "fail": {"count": 2, "ns": 20},
                    "queue": {"count": 5, "ns": 250},  # of the calls, what was not computed
                    "compute_input": {"count": 5, "ns": 100},
                    "compute_infer": {"count": 5, "ns": 300},
                    "compute_output": {"count": 5, "ns": 50},
                    "cache_hit": {"count": 4, "ns": 8},
                    "cache_miss": {"count": 5, "ns": 10},
                },
                "batch_stats": [
                    {
                        "batch_size": 4,
                        "compute_input": {"count": 10, "ns": 11},
                        "compute_infer": {"count": 10, "ns": 12},
                        "compute_output": {"count": 10, "ns": 13},
                    }
                ],
                "response_stats": {},
                "memory_usage": [],
            }
        ]
    }


def test_parts_and_memory_are_sums_over_all_helpers(counters):
    for writer in (0, 1):
        own = counters.parts_of(writer)
        for number in range(2 * len(PART_FIELDS)):
            own[part_offset(1, 2) + number] = 10 + number
        counters.memory[writer, 1, [0, 1, 4]] = 5, 0, 7
    own[part_offset(1, MOST_PARTS + 9)] = 3
    models = {"1": model(index=1, streams=True), "2": model(index=1), "3": model(streams=True)}
    catalog = types.SimpleNamespace(models={"m": models})
    shown, plain, idle = documents.statistics(catalog, counters)["model_stats"]
    nothing = {name: {"count": 0, "ns": 0} for name in PART_FIELDS}
    assert shown["response_stats"] == {
        "2": {
            name: {"count": 2 * (10 + 2 * number), "ns": 2 * (11 + 2 * number)}
            for number, name in enumerate(PART_FIELDS)
        },
        str(MOST_PARTS - 1): {**nothing, "compute_infer": {"count": 3, "ns": 0}},
    }
    assert (plain["response_stats"], idle["response_stats"]) == ({}, {})
    used = [{"type": "CPU", "id": 0, "byte_size": 10}, {"type": "GPU", "id": 3, "byte_size": 14}]
    assert (shown["memory_usage"], idle["memory_usage"]) == (used, [])


def test_no_duration_is_below_nothing(counters):
    """Helpers count what they computed before the worker counts the call."""
    count(counters, 1, 0, infer_ns=300)
    catalog = types.SimpleNamespace(models={"m": {"1": model()}})
    (shown,) = documents.statistics(catalog, counters)["model_stats"]
    assert shown["inference_stats"]["queue"] == {"count": 0, "ns": 0}


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("", "", ["m 1", "m 2", "other 1"]),
        ("m", "", ["m 1", "m 2"]),
        ("m", "2", ["m 2"]),
    ],
)
def test_statistics_are_of_all_models_of_one_or_of_a_version(counters, name, version, told):
    models = {"m": {"1": model(), "2": model(version="2")}, "other": {"1": model()}}
    models["other"]["1"].name = "other"

    def find(name, version, status):
        assert status == 400
        return models[name][version or "1"]

    catalog = types.SimpleNamespace(models=models, find=find)
    shown = documents.statistics(catalog, counters, name, version)["model_stats"]
    assert [f"{one['name']} {one['version']}" for one in shown] == told


def test_the_last_request_is_the_latest_of_all_processes(counters):
    count(counters, 0, 0, last_ms=5)
    count(counters, 1, 0, last_ms=9)
    assert counters.total(0)["last_ms"] == 9


def test_executions_of_very_many_rows_are_counted_together(counters):
    own = counters.batches_of(1)
    own[batch_offset(0, MOST_ROWS)] += 1
    own[batch_offset(0, MOST_ROWS + 7)] += 1
    own[batch_offset(1, 1)] += 1
    assert (counters.batches(0), counters.batches(1)) == ({MOST_ROWS: 2}, {1: 1})


def test_what_a_worker_held_that_is_gone_is_neither_pending_nor_open(counters):
    count(counters, 0, 0, pending_0=3, pending_1=4, cache_hit_count=5, call_ns=6)
    count(counters, 1, 0, pending_0=7)
    counters.own[0] = range(1, len(OWN_FIELDS) + 1)
    assert (counters.pending(0, 0), counters.pending(0, 1)) == (10, 4)
    counters.clear_held(0)
    assert (counters.pending(0, 0), counters.pending(0, 1)) == (7, 0)
    assert dict(zip(OWN_FIELDS, counters.own[0], strict=True)) == {
        "is_accepting": 0,
        "connections": 0,
        "accepted": 3,
    }
    total = counters.total(0)
    assert (total["cache_hit_count"], total["call_ns"]) == (5, 6)


def test_the_statistics_of_no_model_are_an_error(counters):
    def find(name, version, status):
        assert status == 400
        raise ProtocolError(404, f"there is no model {name}")

    catalog = types.SimpleNamespace(models={}, find=find)
    with pytest.raises(ProtocolError, match="there is no model gone"):
        documents.statistics(catalog, counters, "gone")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (1023, "1023 bytes"), (1024, "1KiB"), (1536, "1536 bytes"),
        (5 << 19, "2560KiB"), (1 << 20, "1MiB"), (3 << 30, "3072MiB"),
    ],
)  # fmt: skip
def test_a_size_is_shown_as_it_may_be_written(size, shown):
    assert options.in_units(size) == shown
