"""Forking: whether this process, and this environment, can be forked safely.

Owns the checks of the interpreter and the table of variables that spoil roles. Never forks or sets
a variable.
"""

from __future__ import annotations

from shmgpu.common import config
from shmgpu.doctor.machine import CAP_SYS_ADMIN, Machine
from shmgpu.doctor.plan import Plan
from shmgpu.doctor.verdict import Verdict, fail, fine, warn


def interpreter(machine: Machine, plan: Plan) -> Verdict:
    """The build of Python."""
    me = machine.interpreter
    if me.is_free_threaded:
        return fail(
            f"CPython {me.version} is the free-threaded build, for which shmgpu is not made",
            "use the ordinary build of CPython",
        )
    return fine(f"CPython {me.version}")


def broker(machine: Machine, plan: Plan) -> Verdict:
    """One broker, started from the main program."""
    if machine.interpreter.has_role:
        return fail(
            "this process belongs to a broker already",
            "launch from the main program, after shutdown()",
        )
    return fine("no broker runs in this process")


def threads(machine: Machine, plan: Plan) -> Verdict:
    """A forked process has one thread, and locks that others held stay locked."""
    others = machine.interpreter.other_threads
    if others:
        return fail(
            f"Python threads run in this process: {', '.join(others)}",
            "launch before they start, or end them first",
        )
    return fine("no other Python thread runs in this process")


def openmp(machine: Machine, plan: Plan) -> Verdict:
    """A pool's bookkeeping is forked without its threads."""
    if machine.interpreter.has_openmp_pool:
        return warn(
            "an OpenMP pool was used in this process: CPU helpers compute with one thread",
            "launch before the first large CPU operation",
        )
    return fine("no OpenMP pool was used in this process")


def cuda(machine: Machine, plan: Plan) -> Verdict:
    """A CUDA context does not survive a fork."""
    if machine.interpreter.has_cuda:
        return fail(
            "CUDA is initialised in this process, and what it forks could not use it",
            "launch before the first CUDA operation",
        )
    return fine("CUDA is not initialised in this process")


TRACERS = ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG")  # of processes to come


def tracing(machine: Machine, plan: Plan) -> Verdict:
    """Debuggers and coverage follow every line, in forked processes too or not at all."""
    tracer = machine.interpreter.tracer
    variable = next((name for name in TRACERS if name in machine.environ), "")
    if tracer or variable:
        return warn(
            f"{tracer or variable} follows this process line by line: roles are slow, and a "
            "debugger stops none of them",
            "init(inline=True) for debugging and coverage",
        )
    return fine("no debugger or coverage follows this process")


# (variable, values that matter or () for any, what it does, what to do)
ENVIRONMENT: list[tuple[str, tuple[str, ...], str, str]] = [
    (
        "KMP_INIT_AT_FORK",
        ("0", "false", "off", "no"),
        "leaves Intel's OpenMP in a forked process as it was, without its threads",
        "unset KMP_INIT_AT_FORK",
    ),
    (
        "OMP_WAIT_POLICY",
        ("active",),
        "makes idle compute threads spin on cores that other roles need",
        "unset OMP_WAIT_POLICY",
    ),
    (
        "KMP_BLOCKTIME",
        ("infinite",),
        "makes idle compute threads spin on cores that other roles need",
        "unset KMP_BLOCKTIME",
    ),
    (
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        ("0",),
        "makes torch initialise the driver where it only asks for GPUs, which spoils forking",
        "unset PYTORCH_NVML_BASED_CUDA_CHECK",
    ),
    (
        "CUDA_LAUNCH_BLOCKING",
        ("1",),
        "makes GPU helpers wait for each kernel, so that copies and computing do not overlap",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    (
        "PYTHONTRACEMALLOC",
        (),
        "makes every role remember each of its allocations",
        "unset PYTHONTRACEMALLOC",
    ),
    (
        "PYTHONMALLOC",
        ("debug", "malloc_debug", "pymalloc_debug"),
        "makes every allocation of Python slow",
        "unset PYTHONMALLOC",
    ),
    (
        "LD_PRELOAD",
        (),
        "loads a library into every role, and its threads and locks do not survive a fork",
        "unset LD_PRELOAD, unless that library is known to be safe to fork",
    ),
]


def environment(machine: Machine, plan: Plan) -> Verdict:
    """Variables that make forking unsafe, or all roles slow."""
    for name, values, what, fix in ENVIRONMENT:
        value = machine.environ.get(name, "")
        if value and (not values or value.lower() in values):
            return warn(f"{name}={value} {what}", fix)
    return fine("no variable of the environment spoils forking")


def settings(machine: Machine, plan: Plan) -> Verdict:
    """Variables that look like ours."""
    unknown = config.unknown_variables()
    if unknown:
        return warn(f"{', '.join(unknown)} means nothing to shmgpu", f"unset {' '.join(unknown)}")
    return fine("all SHMGPU_ variables are known")


def first_process(machine: Machine, plan: Plan) -> Verdict:
    """Process 1 inherits every orphan: a broker leaves it behind for that, if it can."""
    if machine.interpreter.pid != 1:
        return fine("this is not process 1")
    return fine(
        "this is process 1: a broker leaves it behind as an init, which hands on signals and reaps"
    )


def debuggers(machine: Machine, plan: Plan) -> Verdict:
    """Who may look at a process that hangs."""
    scope = machine.number("/proc/sys/kernel/yama/ptrace_scope") or 0
    if scope >= 2 and not machine.is_capable(CAP_SYS_ADMIN):
        return warn(
            f"kernel.yama.ptrace_scope={scope} keeps debuggers from processes that hang (the "
            "stacks that shmgpu leaves do not need it)",
            "sudo sysctl kernel.yama.ptrace_scope=1",
        )
    return fine("a debugger can be attached to a process that hangs")
