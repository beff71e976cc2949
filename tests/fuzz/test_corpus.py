"""The fuzz targets on their corpora: what once was found is not found again."""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import tracemalloc
import types

import numpy as np
import pytest
from c_programs import build
from fuzz import make_corpus

from shmgpu import core

HERE = pathlib.Path(__file__).parent
IN_C = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.c"))
IN_PYTHON = sorted(path.stem.removeprefix("fuzz_") for path in HERE.glob("fuzz_*.py"))
MAX_BYTES = 64 << 20  # that one input may take: no forged length allocates gigabytes
NEEDS = {
    "requests": ("orjson", "google.protobuf"),
    "http": ("orjson", "httptools"),
    "http2": ("shmgpu._http2",),  # and what the machine has, libnghttp2
}  # what shmgpu[serve] brings


def need(target: str) -> None:
    """Skip where what a target tests is not installed."""
    for name in NEEDS.get(target, ()):
        pytest.importorskip(name, reason="shmgpu[serve] is not all here", exc_type=ImportError)


def seeds(target: str) -> list[pathlib.Path]:
    found = sorted((HERE / "corpus" / target).iterdir())
    assert found
    return found


@pytest.mark.parametrize("target", IN_C)
def test_f16_a_target_in_c_holds_on_its_corpus(target):
    done = subprocess.run(
        [build(f"fuzz/{target}"), *seeds(target)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(seeds(target))} inputs\n"


@pytest.mark.parametrize("target", IN_PYTHON)
def test_f16_a_target_in_python_holds_on_its_corpus(target):
    need(target)
    module = importlib.import_module(f"fuzz.fuzz_{target}")
    module.set_up()
    for seed in seeds(target):
        replay(module.one_input, seed.read_bytes())


def replay(one_input, data):
    """One input, and how much memory it took at most."""
    tracemalloc.start()
    try:
        one_input(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES, f"an input of {len(data)} bytes took {peak:,}"


def test_the_blocks_that_are_well_formed_are_served():
    blocks = importlib.import_module("fuzz.fuzz_blocks")
    blocks.set_up()
    served = {}
    for seed in seeds("blocks"):
        before = blocks.target.calls
        blocks.target.serve(seed.read_bytes())
        served[seed.name] = blocks.target.calls > before
    assert served["one-array"] and served["declared"] and served["tree"] and served["values"]
    assert not served["elsewhere"] and not served["room-elsewhere"]


def test_the_requests_that_are_well_formed_are_read():
    need("requests")
    requests = importlib.import_module("fuzz.fuzz_requests")
    wrong = {"http-deep", "http-no-elements", "http-promises-much", "http-short"}
    wrong |= {"grpc-long-varint", "grpc-short", "grpc-too-many", "grpc-torn"}
    refused = set()
    for seed in seeds("requests"):
        try:
            requests.read(seed.read_bytes())
        except requests.ProtocolError:
            refused.add(seed.name)
    assert refused == wrong


def test_the_calls_that_are_well_formed_are_told():
    need("http2")
    http2 = importlib.import_module("fuzz.fuzz_http2")
    told, ended = {}, set()
    for seed in seeds("http2"):
        calls = http2.fed(http2.HELLO + seed.read_bytes(), (http2.READ,))
        if calls is None:
            ended.add(seed.name)
        else:
            told[seed.name] = sum(len(messages) for _, messages, _ in calls.values())
    assert ended >= {"http-1", "settings-of-no-length", "swelling-head", "wrong-stream"}
    assert told["call"] == told["head-in-parts"] == told["trailers"] == told["reset"] == 1
    assert (told["calls"], told["two-messages"], told["two-messages-torn"]) == (3, 2, 1)


@pytest.mark.parametrize("target", [*IN_C, *IN_PYTHON])
def test_a_corpus_is_what_its_script_writes_and_small(target):
    need(target)
    make_corpus = importlib.import_module("fuzz.make_corpus")
    made = make_corpus.TARGETS[target]()
    assert {seed.name: seed.read_bytes() for seed in seeds(target)} == made
    assert sum(len(data) for data in made.values()) < 8192


@pytest.mark.parametrize("batched", [False, True])
def test_f16_a_block_that_was_served_is_read_anew_for_another_function_or_child(batched):
    blocks = importlib.import_module("fuzz.fuzz_blocks")
    target = blocks.Target()
    executor, seen = target.executor, []
    executor.reader.refusals = 1 << 40
    for function, mutates in ((1, False), (2, True)):
        made = types.SimpleNamespace(**vars(executor.functions[blocks.ROW]))
        made.mutates, made.body = mutates, lambda helper, x: seen.append(x.flags.writeable) or x
        executor.functions[function] = made
    data = make_corpus.block((np.arange(4.0),))
    target.pages[blocks.BLOCK : blocks.BLOCK + len(data)] = data

    def status_of(function, slot):
        work = (function, blocks.ORIGIN + blocks.BLOCK, len(data), slot, 1, 1)
        if batched:
            return executor.serve_batch([work])[0][0]
        return executor.serve(function, executor.read(*work[1:3]), slot, 1, 1)[0]

    found = [status_of(*one) for one in ((1, 0), (2, 0), (1, 0), (1, 1), (1, 0), (3, 0))]
    good, bad = core.OK, core.EBAD_PARAMS
    assert found == [good, good, good, bad, good, core.EBAD_FUNCTION]
    assert seen == [False, True, False, False]
