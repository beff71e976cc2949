"""NVIDIA's perf_analyzer runs to its end against the server, over each way it has."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import pytest
from serve import servers

MADE = pathlib.Path(__file__).resolve().parents[2] / ".venv-triton" / "bin" / "perf_analyzer"
LIMIT_S = 110
# Whatever it measures is stable enough: on a busy machine nothing else would be.
QUICK = ["--measurement-interval", "500", "--max-trials", "4", "--stability-percentage", "999"]


@pytest.fixture(scope="module")
def program():
    """On the path, or what ``make bench-triton`` has made."""
    found = shutil.which("perf_analyzer") or (MADE.exists() and str(MADE))
    if not found:
        pytest.skip("there is no perf_analyzer here: make bench-triton brings one")
    return found


@pytest.fixture(scope="module")
def server():
    model = servers.MODELS / "simple.py"
    with servers.serving(model, workers=1, helpers=1, grpc_port=0, allow_client_shm=True) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 8, 32])
@pytest.mark.parametrize("memory", ["none", "system"])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_measures_to_its_end(program, server, protocol, memory, concurrency):
    address = server.grpc_address if protocol == "grpc" else server.address
    words = [program, "-m", "add_sub", "-u", address, "-i", protocol]
    words += ["--concurrency-range", f"{concurrency}"]
    if memory == "system":
        words += ["--shared-memory", "system", "--output-shared-memory-size", "4096"]
    before = server.statistics("add_sub")["inference_stats"]["success"]["count"]
    done = subprocess.run([*words, *QUICK], capture_output=True, text=True, timeout=LIMIT_S)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(rf"Concurrency: {concurrency}, throughput: [1-9][\d.]* infer/sec", said), said
    served = server.statistics("add_sub")["inference_stats"]
    assert served["success"]["count"] > before + 10
    assert served["fail"]["count"] == 0
    assert server.ask("GET", "/v2/systemsharedmemory/status")[2] == b"[]", "it left regions"
