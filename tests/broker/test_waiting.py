"""How helpers' compute threads wait: asleep, whatever was imported before the broker began."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from shmgpu.broker.launch_config import LaunchConfig
from shmgpu.common import devices, wait_policy

# What the threads beside the main one burn in all, in 20 pauses after a parallel region of torch's
# and of NumPy's. Spinning OpenMP threads take some milliseconds a pause where a core is free,
# OpenBLAS's about 20; those that sleep are done before the pause begins.
PROGRAM = """
import json, os, sys, time

{first}
import numpy as np
import shmgpu


def load(helper):
    import torch

    def of_torch(x=torch.ones(200_000)):
        x + 1

    def of_numpy(x=np.ones((128, 128), "f4")):
        x @ x

    return {{"torch": of_torch, "numpy": of_numpy}}


def ran_ms():
    total = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{{task}}/schedstat") as file:
                total += int(file.read().split()[0])
    return total / 1e6


@shmgpu.function(arrays="numpy")
def burnt_ms(helper, kind):
    work = helper.session[kind]
    work()
    burnt = 0.0
    for _ in range(20):
        work()
        before = ran_ms()
        time.sleep(0.02)
        burnt += ran_ms() - before
    return burnt, len(os.listdir("/proc/self/task"))


def main(rank):
    return {{kind: burnt_ms(kind) for kind in ("torch", "numpy")}}


if __name__ == "__main__":
    {settle}
    print(json.dumps(shmgpu.launch(main, children=1, session=load, threads=2, devices="cpu")[0]))
"""
SPINNING_MS = 20


def run(first: str = "", settle: str = "pass", **said: str) -> dict[str, list[float]]:
    env = {k: v for k, v in os.environ.items() if k not in wait_policy.VARIABLES} | said
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first, settle=settle)],
        capture_output=True,
        text=True,
        env=env,
        timeout=100,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.mark.cold
@pytest.mark.parametrize("first", ["import torch", "import os"], ids=["before", "by the session"])
def test_compute_threads_sleep_while_they_wait_whenever_torch_was_imported(first):
    for kind, (burnt_ms, threads) in run(first).items():
        assert threads > 1, f"{kind} had no thread that could have waited"
        assert burnt_ms < SPINNING_MS, kind


@pytest.mark.slow  # that the others would see it
def test_the_processor_time_of_threads_that_spin_is_seen():
    said = {"OMP_WAIT_POLICY": "active", "OPENBLAS_THREAD_TIMEOUT": "30"}
    for kind, (burnt_ms, _) in run("import torch", **said).items():
        assert burnt_ms > SPINNING_MS, kind


SAID_AND_WISHED = [
    ({}, {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}),
    ({"OMP_WAIT_POLICY": "active"}, {"OPENBLAS_THREAD_TIMEOUT": "4"}),
    ({"GOMP_SPINCOUNT": "9"}, {"KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}),
    ({"KMP_BLOCKTIME": "9", "OPENBLAS_THREAD_TIMEOUT": "26"}, {"OMP_WAIT_POLICY": "PASSIVE"}),
]


@pytest.mark.parametrize(("said", "wished"), SAID_AND_WISHED)
def test_what_the_user_said_about_waiting_stands(monkeypatch, said, wished):
    for name in wait_policy.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert wait_policy.wishes() == wished


def test_an_openmp_whose_variables_are_not_as_expected_is_left_alone(tmp_path):
    library = built(
        tmp_path / "libgomp.so.1",
        "unsigned long long one = 300000, other = 300000, third = 100; int omp_x(void) {return 0;}",
    )
    assert in_a_fork(
        lambda: loads(library) and (wait_policy.spin_counts(library), wait_policy.calm())
    ) == [
        None,
        False,
    ]


def test_spin_counts_that_lie_where_only_they_can_are_set_to_zero(tmp_path):
    library = built(
        tmp_path / "libgomp.so.1",
        "unsigned long long pad[600], many = 100, spins = 300000, more = 7;"
        "int look(void) { return (int)(many + spins + more); }",
    )
    assert in_a_fork(
        lambda: (loads(library).look(), wait_policy.calm(), loads(library).look())
    ) == [
        300107,
        True,
        7,
    ]


@pytest.mark.parametrize("name", ["libiomp5.so", "libomp.so"])
def test_llvms_and_intels_openmp_are_told_by_their_own_call(tmp_path, name):
    library = built(
        tmp_path / name,
        "static int block_ms = 200; void kmp_set_blocktime(int ms) { block_ms = ms; }"
        "int look(void) { return block_ms; }",
    )
    assert in_a_fork(lambda: loads(library).look()) == 200
    assert in_a_fork(lambda: (loads(library), wait_policy.calm()) and loads(library).look()) == 0


def built(path: pathlib.Path, source: str) -> str:
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-xc", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return str(path)


def loads(path: str):
    import ctypes

    return ctypes.CDLL(path)


def in_a_fork(ask):
    """What ``ask`` returns in a process that may be spoilt, as JSON gives it back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, json.dumps(ask()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        said = file.read()
    os.waitpid(pid, 0)
    assert said, "it raised"
    return json.loads(said)


@pytest.mark.parametrize(
    ("cores", "helpers", "threads"),
    [(1, 1, 1), (2, 1, 1), (2, 2, 1), (8, 1, 7), (8, 2, 3), (64, 4, 15), (4, 9, 1), (1.5, 0, 1)],
)
def test_helpers_leave_one_core_to_those_who_call(monkeypatch, cores, helpers, threads):
    assert devices.threads_of_helper(cores, helpers) == threads
    if helpers:
        monkeypatch.setattr(devices, "cores", lambda: cores)
        monkeypatch.setattr(devices, "openmp_pool_is_used", lambda forks: False)
        plan = LaunchConfig(children=1, helpers=helpers)
        assert {setup.threads for setup in plan.setups if setup.device == "cpu"} == {threads}


def test_one_thread_each_is_no_loss_to_tell_of(monkeypatch, caplog):
    monkeypatch.setattr(devices, "openmp_pool_is_used", lambda forks: True)
    LaunchConfig(children=1, threads=1, devices="cpu")
    assert not caplog.records
    LaunchConfig(children=1, threads=2, devices="cpu")
    assert "compute with one thread" in caplog.text


BESIDE = """
import ctypes, hashlib, sys, threading
from shmgpu.common import devices

ctypes.CDLL(sys.argv[1])  # OpenMP's library is there, and nobody has used its threads
stop = threading.Event()

def turn():
    while not stop.is_set():
        hashlib.sha256(bytes(16 << 20))  # without the interpreter, for some ten milliseconds

thread = threading.Thread(target=turn)
thread.start()
try:
    print(devices.openmp_pool_is_used())
finally:
    stop.set()
    thread.join()
"""


def test_a_thread_of_pythons_that_runs_is_not_taken_for_one_of_openmp():
    """Beside one that was busy, helpers computed with one thread each, and a warning said why."""
    torch = pytest.importorskip("torch")
    [library] = pathlib.Path(torch.__file__).parent.parent.glob("torch/lib/libgomp*")
    done = subprocess.run(
        [sys.executable, "-c", BESIDE, library], capture_output=True, text=True, timeout=100
    )
    assert done.stdout == "False\n", done.stderr


AFTER_LINEAR_ALGEBRA = """
import ctypes, sys
import numpy as np
from shmgpu.common import devices

ctypes.CDLL(sys.argv[1])
x = np.ones((256, 256), "f4")
print(int((x @ x)[0].sum()), devices.openmp_pool_is_used(forks=True), int((x @ x).sum()))
"""


def test_threads_of_numpys_linear_algebra_that_spin_are_not_taken_for_openmps():
    """After a matrix product, or another launch, helpers computed with one thread each."""
    torch = pytest.importorskip("torch")
    [library] = pathlib.Path(torch.__file__).parent.parent.glob("torch/lib/libgomp*")
    spins = {"OPENBLAS_THREAD_TIMEOUT": "30", "OPENBLAS_NUM_THREADS": "2"}  # 2**30 ticks
    done = subprocess.run(
        [sys.executable, "-c", AFTER_LINEAR_ALGEBRA, library],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **spins},
    )
    assert done.stdout == "65536 False 16777216\n", done.stderr
