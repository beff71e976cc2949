"""The kernel: what it must be able to do, tried out, and how it tells the time.

Owns the checks of features; the trying is done in probes.py. Never judges by a release number what
a probe can try.
"""

from __future__ import annotations

from collections.abc import Callable

from shmgpu.doctor.machine import Machine
from shmgpu.doctor.plan import Plan
from shmgpu.doctor.verdict import Verdict, fail, fine, warn

OLDEST_KERNEL = (5, 10)


SECCOMP_FIX = (
    "let the seccomp filter allow it (for a trial: docker run --security-opt seccomp=unconfined)"
)


def kernel_release(machine: Machine, plan: Plan) -> Verdict:
    """The oldest kernel that shmgpu is written for."""
    oldest = ".".join(map(str, OLDEST_KERNEL))
    parts = machine.release.replace("-", ".").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return warn(
            f"the kernel's release {machine.release!r} cannot be read; {oldest} is needed",
            "uname -r",
        )
    if (int(parts[0]), int(parts[1])) < OLDEST_KERNEL:
        return fail(
            f"Linux {machine.release} is older than {oldest}",
            f"install a kernel of {oldest} or newer, and reboot",
        )
    return fine(f"Linux {machine.release}; {oldest} or newer is needed")


def feature(
    probe: str,
    what: str,
    lost: str = "",
    fix: str = "run on Linux 5.10 or newer, outside of a sandbox that emulates it",
    is_wanted: Callable[[Plan], bool] = lambda plan: True,
) -> Callable[[Machine, Plan], Verdict]:
    """A check that a probe works; ``lost``: what is lost without it, unless all is."""

    def judge(machine: Machine, plan: Plan) -> Verdict:
        why = machine.why_refused(probe)
        if not why:
            return fine(f"{what} is available")
        if not is_wanted(plan):
            return fine(f"{what} is not available ({why}), and nothing asks for it")
        remedy = SECCOMP_FIX if machine.is_filtered else fix
        said = f"{what} is not available ({why})"
        return warn(f"{said}: {lost}", remedy) if lost else fail(said, remedy)

    return judge


GOOD_CLOCKS = {"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"}


def clock(machine: Machine, plan: Plan) -> Verdict:
    """Deadlines and the trace read the clock for every message."""
    directory = "/sys/devices/system/clocksource/clocksource0"
    source = machine.text(f"{directory}/current_clocksource")
    if not source or source in GOOD_CLOCKS:
        return fine(f"the clock is read without a system call ({source or 'its source is hidden'})")
    better = GOOD_CLOCKS & set(machine.text(f"{directory}/available_clocksource").split())
    fix = (
        f"echo {sorted(better)[0]} | sudo tee {directory}/current_clocksource"
        if better
        else "boot with clocksource=tsc tsc=reliable, if the processor's counter is sound"
    )
    return warn(f"the clock source {source} makes every reading of the time a system call", fix)
