"""Processors: whether helpers have cores to compute on, and calls take children and servers little.

Owns the checks, and how many threads helpers will have. Never sets a thread count.
"""

from __future__ import annotations

from shmgpu.child import quick
from shmgpu.common.devices import threads_of_helper
from shmgpu.doctor.gpus import devices_of
from shmgpu.doctor.machine import Machine
from shmgpu.doctor.plan import Plan, count
from shmgpu.doctor.verdict import Verdict, fine, warn

CUDA_HELPER_THREADS = 8
_TO_BE_QUICK = {
    quick.NOT_BUILT: "install shmgpu once more with this Python's pip",
    quick.SWITCHED_OFF: "unset SHMGPU_QUICK_CALLS",
    quick.OTHER_ARRAYS: "nothing is lost but speed: report it with the version of NumPy",
}


def _on_cpu(machine: Machine, plan: Plan) -> tuple[int, int]:
    """How many helpers compute on the CPU, and with how many threads each."""
    helpers = devices_of(machine, plan).count("cpu")
    return helpers, plan.threads or threads_of_helper(machine.cores_for_launch(), helpers)


def helper_threads(machine: Machine, plan: Plan) -> int:
    """Threads that all helpers together may have, their main ones included."""
    helpers, threads = _on_cpu(machine, plan)
    return helpers * threads + (plan.helpers - helpers) * (1 + CUDA_HELPER_THREADS)


def cores(machine: Machine, plan: Plan) -> Verdict:
    """Helpers on the CPU compute; the parent and the children need some time, too."""
    helpers, threads = _on_cpu(machine, plan)
    affinity, quota = machine.affinity(), machine.quota()
    have = affinity if quota is None else min(affinity, quota)
    shown = f"{have:.3g} core" + "s" * (have != 1)
    asked = f"{count(helpers, 'CPU helper')} with {count(threads, 'thread')} each"
    better = max(1, int(have) // max(helpers, 1))
    if helpers and threads > better:
        return warn(f"{asked} would share {shown}", f"export SHMGPU_THREADS={better}")
    if helpers > max(have, 1):
        return warn(
            f"{asked} would share {shown}: more of them answer no faster",
            f"helpers={max(1, int(have))}, or more cores (docker run --cpus, CPUQuota=)",
        )
    if have < 2:
        return warn(
            f"parent, helpers and children share {shown}: they take turns",
            "more cores (docker run --cpus, CPUQuota=, taskset)",
        )
    return fine(f"{shown} for {asked}" if helpers else f"{shown}; no helper computes on them")


def quick_calls(machine: Machine, plan: Plan) -> Verdict:
    """Whether a child makes calls like an earlier one in C."""
    reason = machine.interpreter.why_not_quick
    if reason:
        return warn(
            f"small calls go through Python, which takes a child twice the time: {reason}",
            _TO_BE_QUICK[reason],
        )
    return fine("calls like an earlier one are made in C")


def grpc_calls(machine: Machine, plan: Plan) -> Verdict:
    """Whether a server answers clients of gRPC without grpcio."""
    interpreter = machine.interpreter
    if not interpreter.why_no_http2:
        return fine("a server speaks HTTP/2 by libnghttp2")
    told = f"a server would leave HTTP/2 to grpcio ({interpreter.why_no_http2})"
    if not interpreter.has_grpc:
        return fine(f"{told}, which is not installed, either")
    return warn(f"{told}, which takes six times the time", "apt-get install libnghttp2-14")
