"""Which line of the source is each row's protection, what switches it off, which test must see it.

A row is one `Mutant(...)`: the row's number, the file, the text that protects (it must stand there
exactly once), what to put in its place, and the test that must fail then. The matrix needs no rows
here: it is held by those of the rows that it crosses.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One protection, switched off."""

    row: str
    file: str
    text: str
    off: str
    test: str


HELPER_DEATHS = "tests/crash/test_helper_deaths.py::"
HANGS = "tests/crash/test_hangs.py::"
DEVICE_FAILURES = "tests/crash/test_device_failures.py::"

CHILDREN = "tests/crash/test_children.py::"
ENDINGS = "tests/crash/test_endings.py::"

MUTANTS = [
    Mutant(
        "F01",
        "csrc/dispatch.c",
        "(!was_executing ||",
        "(0 ||",
        HELPER_DEATHS + "test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once",
    ),
    Mutant(
        "F01",
        "csrc/dispatch.c",
        "r->attempts < 2",
        "r->attempts < 3",
        HELPER_DEATHS + "test_f01_an_idempotent_call_is_made_once_more_and_never_a_third_time",
    ),
    Mutant(
        "F01",
        "csrc/supervise.c",
        "(uint64_t)BACKOFF_FIRST_MS << doublings",
        "(uint64_t)BACKOFF_FIRST_MS >> (doublings + 8)",
        HELPER_DEATHS + "test_f01_a_replacement_comes_after_pauses_that_double",
    ),
    Mutant(
        "F01",
        "csrc/supervise.c",
        "int given_up = helper->short_deaths >= crew.config.max_deaths;",
        "int given_up = 0;",
        HELPER_DEATHS + "test_f01_five_quick_deaths_end_the_launch_with_the_reason",
    ),
    Mutant(
        "F02",
        "csrc/dispatch.c",
        "  if (child->in_flight == 0) leave_quarantine(d, slot);",
        "  leave_quarantine(d, slot);",
        CHILDREN
        + "test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero",
    ),
    Mutant(
        "F02",
        "csrc/dispatch.c",
        "if (child->wants_clearing) {",
        "if (0) {",
        CHILDREN
        + "test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero",
    ),
    Mutant(
        "F04",
        "shmgpu/roles.py",
        "faulthandler.enable(self.helper_stacks.descriptor(helper_number))",
        "faulthandler.disable()",
        HELPER_DEATHS + "test_f04_any_end_inside_a_call_is_a_death",
    ),
    Mutant(
        "F05",
        "shmgpu/device.py",
        "            self.empty_cache()\n            return False",
        "            return True",
        DEVICE_FAILURES + "test_f05_out_of_device_memory_is_the_callers_error_and_the_helper_lives",
    ),
    Mutant(
        "F05",
        "shmgpu/device.py",
        "return is_of_device(error) and self.is_beyond_use()",
        "return False",
        DEVICE_FAILURES
        + "test_f05_after_a_sticky_error_the_caller_is_answered_and_the_helper_replaced",
    ),
    Mutant(
        "F05",
        "csrc/role.c",
        "shmi_process_offer_to_oom();",
        "",
        DEVICE_FAILURES + "test_f05_the_kernel_takes_a_role_before_the_parent",
    ),
    Mutant(
        "F05",
        "shmgpu/events.py",
        "self._memory.rose()",
        "False",
        DEVICE_FAILURES + "test_f05_a_kill_that_the_kernel_counts_is_told_as_want_of_memory",
    ),
    Mutant(
        "F06",
        "csrc/dispatch.c",
        "if (due <= now_ns) hung |= UINT64_C(1) << h;",
        "if (due <= now_ns) continue;",
        HANGS + "test_f06_a_call_beyond_its_hang_after_ends_its_helper",
    ),
    Mutant(
        "F06",
        "csrc/supervise.c",
        "helper->kill_ns = at_ns + HANG_GRACE_MS * MS;",
        "helper->kill_ns = 0;",
        HANGS + "test_f06_a_call_beyond_its_hang_after_ends_its_helper",
    ),
    Mutant(
        "F06",
        "csrc/dispatch.c",
        "r->function->hang_after_ns == 0) continue;",
        "0) continue;",
        HANGS + "test_f06_a_function_without_hang_after_may_take_as_long_as_it_likes",
    ),
    Mutant(
        "F06",
        "shmgpu/port.py",
        "            self._keep(call, int(reply.sequence), args)\n            raise",
        "            raise",
        HANGS + "test_f06_a_deadline_frees_its_caller_and_nothing_else_happens",
    ),
    Mutant(
        "F30",
        "csrc/supervise.c",
        "    enter_phase(DRAINING);\n    shmi_dispatch_hold(crew.dispatch, 1);",
        "    begin_ending(SIGTERM);",
        ENDINGS
        + "test_f30_what_a_helper_executes_is_finished_and_answered_before_children_are_told",
    ),
    Mutant(
        "F30",
        "csrc/supervise.c",
        "if (!is_first) kill_all();",
        "(void)is_first;",
        ENDINGS + "test_f30_a_second_signal_ends_everything_at_once",
    ),
    Mutant(
        "F33",
        "csrc/dispatch.c",
        "if (child->state != SHMI_PEER_UP || child->generation != r->frame.generation) {",
        "if (0) {",
        CHILDREN + "test_f33_a_reply_of_an_old_generation_is_dropped_and_counted",
    ),
    Mutant(
        "F36",
        "csrc/dispatch.c",
        "if (atomic_load_explicit(&outcome->delivery, memory_order_acquire) == delivery) {",
        "if (0) {",
        HELPER_DEATHS + "test_f36_a_reply_that_died_with_its_helper_is_answered_exactly_once",
    ),
]

# Rows that nothing in the source switches on: each with the reason.
NO_SWITCH: dict[str, str] = {}

# Rows whose test and switch are still to be entered above.
PENDING = (
    "F03 F07 F08 F09 F10 F11 F12 F13 F14 F15 F16 F17 F18 F19 F20 F21 F22 F23 F24 F25 F26 F27 "
    "F28 F29 F31 F32 F34 F35 F37"
).split()
