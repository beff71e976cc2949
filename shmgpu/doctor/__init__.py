"""Whether a launch would do well on this machine, and what to do where it would not.

Owns one table of checks. Each looks at a :class:`Machine` and a :class:`Plan` and says, in a
sentence, what is fine, what would only be slow or fragile (a warning), or what would fail; of what
is not fine it names the command that mends it. Never changes or launches anything, never
initialises CUDA.
"""

from __future__ import annotations

from shmgpu.doctor import forking, gpus, kernel, limits, memory, processors
from shmgpu.doctor.machine import Machine
from shmgpu.doctor.plan import Plan
from shmgpu.doctor.verdict import FAILURE, OK, WARNING, Check, Finding

__all__ = [
    "CHECKS",
    "FAILURE",
    "OK",
    "WARNING",
    "Check",
    "Finding",
    "Machine",
    "Plan",
    "examine",
]

CHECKS: list[Check] = [
    Check("kernel", "release", kernel.kernel_release),
    Check(
        "kernel",
        "memory files",
        kernel.feature(
            "memory_file",
            "sealed memory files",
            fix="sudo sysctl vm.memfd_noexec=1 where it is 2; else Linux 5.10 or newer",
        ),
    ),
    Check("kernel", "processes", kernel.feature("process_descriptor", "process descriptors")),
    Check("kernel", "death signal", kernel.feature("death_signal", "a signal at the parent's end")),
    Check("kernel", "futexes", kernel.feature("futex", "futexes")),
    Check(
        "kernel",
        "precise waits",
        kernel.feature(
            "precise_wait",
            "waits of microseconds",
            lost="a batch with max_delay waits for whole milliseconds",
            fix="run on Linux 5.11 or newer",
        ),
    ),
    Check(
        "kernel",
        "population",
        kernel.feature(
            "populate",
            "all pages of an arena by one call",
            lost="prefault touches page after page, which takes longer",
            fix="run on Linux 5.14 or newer",
            is_wanted=lambda plan: plan.prefault,
        ),
    ),
    Check("kernel", "clock", kernel.clock),
    Check("limits", "open files", limits.open_files),
    Check("limits", "files of the system", limits.system_files),
    Check("limits", "user's processes", limits.user_processes),
    Check("limits", "cgroup's processes", limits.cgroup_processes),
    Check("limits", "system's processes", limits.system_processes),
    Check("limits", "pipes", limits.pipes),
    Check("limits", "addresses", limits.address_space),
    Check("limits", "mappings", limits.mappings),
    Check("limits", "file size", limits.file_size),
    Check("limits", "processor time", limits.processor_time),
    Check("limits", "core files", limits.core_files),
    Check("memory", "arenas", memory.arenas),
    Check("memory", "with processes", memory.everything),
    Check("memory", "cgroup", memory.pressure),
    Check("memory", "swap", memory.swap),
    Check("memory", "overcommit", memory.overcommit),
    Check("memory", "huge pages", memory.huge_pages),
    Check("memory", "/dev/shm", memory.shm_mount),
    Check("memory", "out of memory", memory.oom_order),
    Check("processors", "cores", processors.cores),
    Check("processors", "quick calls", processors.quick_calls),
    Check("processors", "gRPC calls", processors.grpc_calls),
    Check("GPUs", "torch", gpus.torch_there),
    Check("GPUs", "device files", gpus.gpu_files),
    Check("GPUs", "visibility", gpus.gpu_visibility),
    Check("GPUs", "memory caps", gpus.gpu_memory),
    Check("GPUs", "compute mode", gpus.gpu_mode),
    Check("GPUs", "locked memory", gpus.locked_memory),
    Check("forking", "interpreter", forking.interpreter),
    Check("forking", "broker", forking.broker),
    Check("forking", "threads", forking.threads),
    Check("forking", "OpenMP", forking.openmp),
    Check("forking", "CUDA", forking.cuda),
    Check("forking", "tracing", forking.tracing),
    Check("forking", "environment", forking.environment),
    Check("forking", "settings", forking.settings),
    Check("forking", "process 1", forking.first_process),
    Check("forking", "debuggers", forking.debuggers),
]


def examine(plan: Plan | None = None, machine: Machine | None = None) -> list[Finding]:
    """Every check's finding, in the order of the table; as the environment has it, unless given.

    Raises:
        ConfigError: a SHMGPU_ variable makes no sense.
    """
    plan = Plan.resolve() if plan is None else plan
    machine = Machine() if machine is None else machine
    found = []
    for check in CHECKS:
        verdict = check.judge(machine, plan)
        found.append(
            Finding(
                verdict.status,
                verdict.sentence,
                verdict.fix,
                group=check.group,
                name=check.name,
            )
        )
    return found
