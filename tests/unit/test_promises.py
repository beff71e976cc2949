"""What the pages promise of errors, deaths and limits is kept: each promise names its test.

Whoever adds a sentence or a row to one of those sections adds it below, with the test that fails
when it is not so. Code blocks are not looked at here: test_pages.py runs them.
"""

from __future__ import annotations

import functools
import pathlib
import re

import pytest

from shmgpu import core

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECTIONS = {  # where each section stands: its page and its heading
    "errors": ("shmgpu/ERRORS.md", "When something goes wrong"),
    "deaths": ("shmgpu/broker/README.md", "When processes die"),
    "limits": ("shmgpu/broker/README.md", "Limits"),
}

# A phrase of the section, then its tests. Tests in C are tests/c/FILE.c::NAME.
PROMISES = {
    "errors": """
An exception in a function reaches its caller as `RemoteError`, with the original type's name, the
message and the helper's traceback as text. The helper lives on.
  tests/broker/test_calls.py::test_exceptions_bring_type_message_and_traceback

A call waits as long as it takes, unless it has a deadline:
  tests/crash/test_hangs.py::test_f06_a_function_without_hang_after_may_take_as_long_as_it_likes

`@shmgpu.function(timeout=30)`, or `predict.options(timeout=0.5)(x)` for one call.
  tests/broker/test_futures.py::test_a_deadline_releases_the_caller_and_the_late_result_its_memory

At the deadline the caller gets `CallTimeout` and continues; the function is not interrupted, and
the memory of the call stays untouched until it ends.
  tests/crash/test_hangs.py::test_f06_a_deadline_frees_its_caller_and_nothing_else_happens
  tests/hostile/test_children.py::test_f37_a_late_result_lands_in_memory_that_is_still_the_calls_and_is_freed_then

A call that had not begun leaves the queue;
  tests/broker/test_order.py::test_calls_whose_time_is_over_keep_no_place

so does one whose caller is interrupted by Ctrl-C.
  tests/broker/test_interrupted.py::test_an_interrupted_call_leaves_the_queue

To have a hung helper replaced, set `hang_after=60`: when a call executes for longer, the broker
writes the helper's stack to the log, ends the helper, and starts another.
  tests/crash/test_hangs.py::test_f06_a_call_beyond_its_hang_after_ends_its_helper

When a helper dies, only the caller whose call was executing gets `HelperDied`; finished calls are
answered, waiting calls go to other helpers, and a replacement is forked.
  tests/crash/test_helper_deaths.py::test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once
  tests/crash/test_helper_deaths.py::test_f36_a_reply_that_died_with_its_helper_is_answered_exactly_once

A function declared with `idempotent=True` is tried once more before its caller gets the error.
  tests/crash/test_helper_deaths.py::test_f01_an_idempotent_call_is_made_once_more_and_never_a_third_time

`RemoteError` | the function raised, or returned what cannot be carried (`.traceback_text` is empty then):
`.type_name`, `.message`, `.traceback_text`; `.matches(ValueError)` tells whether that was its type
  tests/broker/test_calls.py::test_exceptions_bring_type_message_and_traceback

`BroadcastError` | the function raised in one of the helpers that a [broadcast](child/README.md#broadcasts)
was for: a `RemoteError` with `.helper`, and `.has_effect`, which says whether the broadcast stands
  tests/crash/test_broadcasts.py::test_f44_the_first_helper_raises_and_nothing_has_changed

fix the function or its arguments; that helper is replaced
  tests/crash/test_broadcasts.py::test_f44_another_helper_raises_the_broadcast_stands_and_that_one_is_replaced

`NotAllowed` | a program of another user broadcast | call the function instead, or have the broker
started with `--trust-group`
  tests/attach/test_other_users.py::test_another_user_calls_functions_and_broadcasts_none

`RateExceeded` | the broker's quotas allow this program no more calls a second | call again later, or
less often, or have its `rate` raised
  tests/attach/test_quotas.py::test_calls_beyond_a_rate_are_refused_and_those_within_it_are_not

`QueueFull` | as many calls of the function wait as its `max_queue` says | call again later, or less
often
  tests/broker/test_order.py::test_one_call_more_than_may_wait_is_refused

`CallTimeout` | the deadline passed; the call may still run
  tests/crash/test_hangs.py::test_f06_a_deadline_frees_its_caller_and_nothing_else_happens

`GangAborted` | a call on several helpers was given up before any of it took effect: its helpers
waited for each other
  tests/crash/test_gangs.py::test_f40_members_that_disagree_or_wait_for_each_other_are_told_and_do_not_hang

`HelperDied` | the helper died while it executed this call
  tests/crash/test_helper_deaths.py::test_f04_any_end_inside_a_call_is_a_death

`NoHelpers` | a helper died five times in a row, each within ten seconds of its start (successful
calls in between do not matter), and is given up; the launch ends with that sentence, as a
`LaunchError`.
  tests/crash/test_helper_deaths.py::test_f01_five_quick_deaths_end_the_launch_with_the_reason

Or `shmgpu scale` removed the helper that the call was bound to
  tests/attach/test_scale.py::test_a_call_bound_to_one_that_is_gone_fails_and_names_the_reason

A broker of `shmgpu up` keeps running: call again later.
  tests/attach/test_crashes.py::test_helpers_that_die_again_and_again_do_not_end_a_broker_that_stands_by_itself

Bind the call to another helper, or to none
  tests/broker/test_placement.py::test_a_call_goes_to_the_helper_that_it_is_bound_to
  tests/broker/test_placement.py::test_a_call_without_options_has_nothing_of_the_one_before_it

`BrokerDied` | the parent is gone.
  tests/crash/test_orphans.py::test_f03_the_caller_of_an_init_lives_on_and_every_way_to_call_is_broker_died

Children that it forked are killed with it, mostly before they could see this: no `finally` of theirs
is sure to run | end; launch again.
  tests/crash/test_orphans.py::test_f03_when_the_parent_of_a_launch_is_killed_every_role_is_gone_within_two_seconds

After `connect()`: call `connect()` again (a program that joined with its first call just calls again)
  tests/attach/test_restart.py::test_who_had_joined_hears_what_to_do_and_does_it
  tests/attach/test_restart.py::test_who_joined_by_a_first_call_is_in_the_next_broker_with_the_next

`ArenaFull` | no free block of that size: `.asked_bytes`, `.free_bytes`, `.largest_bytes`
  tests/hostile/test_children.py::test_f09_an_array_that_cannot_be_had_says_what_was_asked_and_what_is_free
  tests/broker/test_calls.py::test_an_argument_larger_than_the_arena_says_what_was_asked_and_free

drop arrays, or enlarge the arena as the error says: `arena=`, `SHMGPU_ARENA`, `shmgpu up --arena`
  tests/broker/test_calls.py::test_memory_returns_when_results_are_garbage
  tests/broker/test_launch.py::test_a_child_whose_arena_is_full_is_told_of_launchs_setting
  tests/attach/test_sentences.py::test_who_needs_a_larger_arena_is_told_how_this_program_gets_one
  tests/attach/test_quotas.py::test_a_program_whose_quota_is_used_up_is_told_of_the_quota

`ResultTooLarge` | a result is larger than a helper keeps while it waits for room | declare it with
`out=`, or raise `SHMGPU_PARKED`
  tests/broker/test_output_buffers.py::test_a_result_larger_than_a_helper_keeps_is_refused_and_can_be_had_otherwise

`BadParams` | an argument or result cannot be carried, or there are more than 4,096 arrays in it;
  tests/broker/test_calls.py::test_a_call_and_its_result_have_a_bounded_number_of_arrays

the sentence says which | pass arrays and plain values, or `pickle=True`
  tests/broker/test_calls.py::test_what_cannot_be_put_in_the_arena_is_refused_in_a_sentence
  tests/broker/test_calls.py::test_objects_are_refused_unless_pickle_was_asked_for

`BadFunction` | the function was decorated after the start,
  tests/broker/test_launch.py::test_a_function_decorated_too_late_is_refused

the broker of `shmgpu up` serves other modules,
  tests/attach/test_connect.py::test_a_function_that_the_broker_lacks_is_an_error_that_names_what_it_has

the function refers to something that cannot be carried (a lock),
  tests/attach/test_sentences.py::test_a_function_that_could_not_be_carried_says_what_it_refers_to

or its pool does not exist
  tests/broker/test_launch.py::test_pools_have_their_own_helpers_and_sessions

`BadFree` | a block was freed twice, or the address is not a block
  tests/broker/test_arena.py::test_frees_of_what_is_no_block_are_refused_and_change_nothing
  tests/broker/test_arena.py::test_a_block_is_freed_by_its_address_as_by_itself

`NotRunning` | a call outside a child;
  tests/broker/test_launch.py::test_calls_without_a_broker_are_refused

or after `shutdown`, `disconnect` or the `with` block of either | call inside `launch`'s main, or
after `init`; continue with `ensure()`
  tests/broker/test_launch.py::test_use_after_shutdown_is_refused_and_arrays_stay_readable
  tests/attach/test_restart.py::test_who_joined_by_a_first_call_is_in_the_next_broker_with_the_next
  tests/attach/test_sentences.py::test_who_has_left_on_purpose_stays_outside_and_is_told_the_way_back

`ChildError` | a child's main raised, was killed, or returned what cannot be returned: `.rank`,
`.traceback_text`
  tests/broker/test_launch.py::test_a_child_that_raises_is_an_error_with_its_traceback
  tests/broker/test_launch.py::test_a_child_that_is_killed_is_an_error_that_names_the_signal
  tests/broker/test_launch.py::test_what_cannot_be_returned_is_an_error_in_a_sentence

`SessionError` | a session function raised, at the start or in a replacement
  tests/crash/test_start.py::test_f31_a_session_that_raises_at_any_helper_is_the_error
  tests/crash/test_helper_deaths.py::test_f01_replacements_that_cannot_make_their_session_end_the_launch_with_that

`LaunchError` | the broker could not start (memory, threads, CUDA in use), or could not continue
  tests/broker/test_launch.py::test_more_memory_than_there_is_is_refused_before_it_is_touched
  tests/crash/test_start.py::test_f28_a_start_with_threads_running_is_refused_and_names_them
  tests/crash/test_start.py::test_f29_a_start_after_cuda_was_initialised_is_refused_in_a_sentence
  tests/crash/test_helper_deaths.py::test_f01_five_quick_deaths_end_the_launch_with_the_reason

`ConfigError` | a setting is out of range
  tests/broker/test_launch.py::test_settings_out_of_range_are_refused_in_a_sentence

Every message is a sentence that says what was wrong and what to do.
  tests/unit/test_functions.py::test_errors_form_one_tree
  tests/unit/test_variables.py::test_a_status_has_a_name_and_a_sentence
  tests/broker/test_nonsense.py::test_what_starts_or_joins_a_broker_refuses_nonsense_in_a_sentence
  tests/broker/test_nonsense.py::test_settings_of_a_call_refuse_nonsense_in_a_sentence
""",  # noqa: E501
    "deaths": """
A helper that dies costs the one call, or batch, that it was executing (or none, if the function is
declared `idempotent=True`: that is made once more on another helper).
  tests/crash/test_helper_deaths.py::test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once
  tests/crash/test_helper_deaths.py::test_f01_an_idempotent_call_is_made_once_more_and_never_a_third_time

Calls it had finished are answered, calls it had not begun are queued again, and a replacement is
forked.
  tests/crash/test_helper_deaths.py::test_f36_a_reply_that_died_with_its_helper_is_answered_exactly_once
  tests/crash/test_helper_deaths.py::test_f01_only_the_executing_call_fails_and_every_other_runs_exactly_once
  tests/crash/test_helper_deaths.py::test_f01_a_replacement_comes_after_pauses_that_double

Each event is one [line of the log](#what-the-log-says), with the cause, the action taken, and the
stack.
  tests/crash/test_children.py::test_every_death_is_one_line_with_cause_action_and_where_the_stack_is

[The whole list](../../tests/crash/README.md) has 45 rows, and a test for each.
  tests/unit/test_promises.py::test_numbers_of_the_pages_are_those_of_the_code
  tests/unit/test_faults.py::test_every_row_has_a_test_and_every_test_a_row

A child that fails ends the launch: the other children get SIGTERM, so their `finally` blocks run,
and then `launch` raises `ChildError`.
  tests/broker/test_launch.py::test_finally_blocks_of_other_children_run_when_one_fails
  tests/broker/test_launch.py::test_a_child_that_raises_is_an_error_with_its_traceback

With `launch(..., restart="on-failure")` the child is restarted instead, up to `max_restarts` times
in a row
  tests/crash/test_children.py::test_a_restarted_childs_result_is_its_last_life_s
  tests/crash/test_children.py::test_a_child_that_fails_again_and_again_ends_the_launch_at_the_bound

(a life of ten seconds or more resets the count).
  tests/c/test_limits.c::a_life_that_was_long_begins_the_count_of_restarts_anew
  tests/crash/test_helper_deaths.py::test_f01_five_quick_deaths_end_the_launch_with_the_reason

First no helper may be able to write to its arena any more;
  tests/crash/test_children.py::test_f02_an_arena_is_kept_from_use_until_no_helper_can_write_to_it_and_then_is_zero
  tests/crash/test_children.py::test_f02_a_dead_helper_does_not_run_calls_of_a_dead_child_again

then that memory is given back, and the next life gets other memory.
  tests/crash/test_descendants.py::test_f02_an_arena_is_given_back_though_a_daemon_of_its_dead_child_keeps_it
  tests/crash/test_descendants.py::test_f02_a_helper_that_was_busy_when_a_place_changed_hands_serves_the_new_memory

Processes that the dead child had forked cannot reach that memory.
  tests/crash/test_descendants.py::test_f02_what_a_dead_child_forked_never_writes_into_its_successors_arena

Ctrl-C, SIGTERM or a closed terminal (SIGHUP, unless your program handles or ignores it) ends a
launch in order:
  tests/broker/test_launch.py::test_a_signal_ends_a_launch_in_order

helpers finish the calls they hold and those are answered
  tests/crash/test_endings.py::test_f30_a_second_signal_ends_everything_at_once
  tests/crash/test_endings.py::test_f30_what_a_helper_executes_is_finished_and_answered_before_children_are_told

(for at most `grace` seconds),
  tests/crash/test_endings.py::test_f30_a_hung_helper_holds_the_end_up_for_the_grace_and_no_longer

children get SIGTERM, and `launch` raises `KeyboardInterrupt`, `SystemExit(143)` or
`SystemExit(129)`.
  tests/crash/test_endings.py::test_f30_an_idle_launch_ends_at_once
  tests/broker/test_launch.py::test_a_signal_ends_a_launch_in_order

A second signal ends everything at once.
  tests/crash/test_endings.py::test_f30_a_second_signal_ends_everything_at_once

If the whole process group gets SIGTERM (`timeout`, service managers), children begin to end by
themselves, and helpers still finish what they hold.
  tests/crash/test_endings.py::test_f30_a_whole_process_group_that_is_told_ends_in_order
""",
    "limits": """
**Linux only**, 5.10 or newer.
  tests/unit/test_packaging.py::test_building_elsewhere_ends_in_a_sentence

where a system call of 5.11 or 5.14 serves better, it is used if present, and an older one
otherwise.
  tests/c/test_faults.c::where_a_filter_refuses_the_precise_wait_a_coarse_one_does
  tests/c/test_arena.c::before_linux_5_14_prefault_touches_each_page_and_changes_nothing

On another system the installation ends with a sentence that says so.
  tests/unit/test_packaging.py::test_building_elsewhere_ends_in_a_sentence

**CPython 3.10 to 3.14**, on x86-64 and aarch64, one wheel for all of them (not the free-threaded
build).
  tests/unit/test_packaging.py::test_building_elsewhere_ends_in_a_sentence
  tests/unit/test_packaging.py::test_the_extension_serves_every_supported_python
  tests/unit/test_installed.py::test_a_free_threaded_python_is_refused_in_a_sentence

**One machine**: up to 4,096 children, 64 helpers in 16 pools, 4,096 functions (in Python, nine are
its own), 896 messages in flight for each child.
  tests/unit/test_promises.py::test_numbers_of_the_pages_are_those_of_the_code
  tests/broker/test_launch.py::test_as_many_helpers_pools_and_messages_as_there_may_be_are_served
  tests/c/test_launch.c::settings_out_of_range_are_refused_with_a_sentence_and_nothing_is_left
  tests/broker/test_launch.py::test_as_many_functions_as_there_may_be_are_served_and_one_more_is_refused
  tests/c/test_function_table.c::every_row_can_be_filled_and_found_and_one_more_is_refused

Call `launch` from the main thread,
  tests/crash/test_start.py::test_f28_a_launch_outside_the_main_thread_is_refused

before other Python threads run,
  tests/crash/test_start.py::test_f28_a_start_with_threads_running_is_refused_and_names_them

before CUDA is initialised in that process,
  tests/crash/test_start.py::test_f29_a_start_after_cuda_was_initialised_is_refused_in_a_sentence

and before its first large CPU tensor operation: a thread pool does not survive a fork (helpers then
compute with one thread, and a warning says so).
  tests/crash/test_start.py::test_f28_after_a_used_openmp_pool_helpers_compute_with_one_thread_and_a_warning

Decorate all functions first.
  tests/broker/test_launch.py::test_a_function_decorated_too_late_is_refused

Each refusal is a sentence that says what to do.
  tests/crash/test_start.py::test_f28_a_launch_outside_the_main_thread_is_refused
  tests/attach/test_sentences.py::test_a_launch_beside_threads_names_them_and_says_why_they_matter
  tests/attach/test_sentences.py::test_a_launch_in_a_notebook_says_what_works_there_instead

`init` starts a fresh interpreter in these cases, which takes as long as its imports do.
  tests/attach/test_start.py::test_init_beside_a_running_thread_does_what_init_does
  tests/attach/test_start.py::test_init_in_a_thread_works_too
  tests/crash/test_start.py::test_f28_an_init_after_a_used_openmp_pool_starts_afresh_and_helpers_have_their_threads
  tests/crash/test_start.py::test_f29_a_start_after_cuda_was_initialised_is_refused_in_a_sentence

An arena protects other children from one child's faults: a child can reach no arena but its own,
  tests/c/test_arena.c::a_child_sees_its_own_arena_and_hits_a_wall_everywhere_else
  tests/hostile/test_children.py::test_f11_random_bytes_over_the_whole_arena_harm_nobody_else

function pointers and addresses are checked,
  tests/hostile/test_children.py::test_f12_an_address_that_is_no_functions_row_is_never_called
  tests/hostile/test_children.py::test_f13_parameters_that_are_not_a_block_of_ones_own_arena_are_refused
  tests/hostile/test_children.py::test_f14_arrays_and_results_in_another_childs_arena_are_refused

and nothing that a call carries is unpickled unless the function asks for it.
  tests/hostile/test_children.py::test_f16_a_pickle_in_a_block_is_never_loaded

What a child's main returns is pickled on its way to `launch`'s caller.
  tests/broker/test_launch.py::test_what_cannot_be_returned_is_an_error_in_a_sentence
""",
}

# Advice, reasons, and what was seen on some day: nothing that a test could find broken.
NO_PROMISES = {
    "errors": """
fix the function or its input

allow more time, or call again later

look at the log; call again if that is safe

look at what each of them runs; call again

fix what kills it (the log says what) and launch again.

decorate before `launch`; otherwise as the error says

free each block once

fix the child

fix the session function

do what the sentence says
""",
    "deaths": """
Over weeks of running, processes die: the kernel kills them for want of memory, native code crashes,
a driver hangs. shmgpu treats this as normal.
""",
    "limits": """
shmgpu needs sealed memory files, process descriptors, `epoll` and futexes, which no other system
has. 5.10 is the oldest kernel that it supports;

Tested so far: x86-64 on Linux 6.18; the whole suite and the wheel under CPython 3.10, 3.11,
3.12 and 3.13. 3.14 and aarch64 are expected to work, but are not tested yet.

**It forks.**

**Faults, not attackers.** All processes run as one user.

But processes of one user can always reach each other in other ways, so do not run hostile code in a
child. [Who must trust whom](../TRUST.md) has the details.
""",
}


def joined(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def text_of(section: str) -> str:
    """A section's source, without blocks of code."""
    page, heading = SECTIONS[section]
    path = ROOT / page
    if not path.exists():
        pytest.skip("the pages are not beside these tests")
    text = re.sub(r"(?ms)^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"))
    found = re.search(rf"(?ms)^(#+) {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text)
    assert found, f"{page} has no section {heading!r}: say in SECTIONS where it stands"
    return found[2]


@functools.cache
def pieces(section: str) -> tuple[str, ...]:
    """Its paragraphs, items of lists and rows of tables, each in one line."""
    text = re.sub(r"(?m)^\|.*\n\|[-|: ]+\|$", "", text_of(section))  # heads of tables
    text = re.sub(r"(?m)^\| *(.*?) *\|$", r"\n\1\n", text)
    text = re.sub(r"(?m)^- ", "\n", text)
    return tuple(joined(piece) for piece in text.split("\n\n") if piece.strip())


def promises(section: str) -> list[tuple[str, list[str]]]:
    found = []
    for entry in PROMISES[section].strip().split("\n\n"):
        phrase, *tests = re.split(r"\n {2}", entry)
        found.append((joined(phrase), tests))
    return found


def unpromised(section: str) -> list[str]:
    return [joined(entry) for entry in NO_PROMISES[section].strip().split("\n\n")]


def uncovered(piece: str, phrases: list[str]) -> list[str]:
    """Its clauses (what ends in a stop, a colon, a semicolon or a cell) that no phrase touches."""
    covered = [
        (found.start(), found.end())
        for phrase in phrases
        for found in re.finditer(re.escape(phrase), piece)
    ]
    return [
        clause[0].strip(" |")
        for clause in re.finditer(r"\S.*?(?:[.:;](?= )| \| |$)", piece)
        if not any(start < clause.end() and clause.start() < end for start, end in covered)
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_each_phrase_stands_on_its_page(section):
    for phrase in [*(phrase for phrase, _ in promises(section)), *unpromised(section)]:
        assert any(phrase in piece for piece in pieces(section)), (
            f"{SECTIONS[section]} does not say {phrase!r}: mend the table, or the page"
        )


@pytest.mark.parametrize("section", SECTIONS)
def test_each_promise_names_tests_that_there_are(section):
    for phrase, tests in promises(section):
        assert tests, f"no test is named for {phrase!r}: write one that fails when it is not so"
        for test in tests:
            file, name = test.split("::")
            source = (ROOT / file).read_text(encoding="utf-8")
            kind = r"(?m)^(?:async )?def " if file.endswith(".py") else r"(?m)^TEST\w*\("
            assert re.search(rf"{kind}{name}\b", source), f"{file} has no {name}: name one it has"


@pytest.mark.parametrize("section", SECTIONS)
def test_each_sentence_of_the_pages_names_its_test(section):
    phrases = [*(phrase for phrase, _ in promises(section)), *unpromised(section)]
    left = [clause for piece in pieces(section) for clause in uncovered(piece, phrases)]
    assert not left, f"name the tests that fail if this of {SECTIONS[section]} is not so: {left}"


def test_a_sentence_that_is_added_is_noticed():
    phrases = ["a call waits", "`BadFree` | a block"]
    assert uncovered("a call waits; it is answered twice.", phrases) == ["it is answered twice."]
    assert uncovered("a call waits for 0.5 s", phrases) == []
    assert uncovered("`BadFree` | a block was freed | say so", phrases) == ["say so"]


def test_numbers_of_the_pages_are_those_of_the_code():
    rows = re.findall(r"(?m)^\| F\d\d \|", (ROOT / "tests/crash/README.md").read_text("utf-8"))
    assert f"has {len(rows)} rows" in joined(text_of("deaths"))
    assert (
        f"up to {core.MAX_CHILDREN:,} children, {core.MAX_HELPERS} helpers in {core.MAX_POOLS} "
        f"pools, {core.MAX_FUNCTIONS:,} functions (in Python, nine are its own), "
        f"{core.MAX_WINDOW} messages in flight"
    ) in joined(text_of("limits"))
