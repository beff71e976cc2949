"""Tests of the core in C that hold a promise by themselves, each under its own name.

All of them are run by ``make ctest``, plain and under the sanitizers; these are those that a
protection of the core is tried with (``make mutants``).
"""

from __future__ import annotations

import functools
import pathlib
import re
import subprocess
from collections.abc import Callable

from c_programs import build

HERE = pathlib.Path(__file__).resolve().parents[1] / "c"

# By program; None: all that it has.
ROOMS: dict[str, list[str] | None] = {
    "collective": [
        "and_in_many_small_pieces_through_small_regions",
        "and_of_several_children_at_once",
    ],
    "dispatch": None,
    "gang_words": None,
    "helper_port": None,
    "scoreboard": ["a_scoreboard_that_is_destroyed_stays_until_those_who_read_it_have_ended"],
    "port": [
        "a_call_waits_for_answers_that_others_have_not_taken_yet_where_they_fill_the_table",
        "a_call_that_waits_for_others_to_make_room_has_a_deadline",
        "a_wait_beside_a_descriptor_ends_where_that_is_readable_and_no_reply_is",
        "nobody_who_watches_a_descriptor_follows_another_thread",
        "a_thread_that_was_left_behind_changes_nothing_where_the_next_calls_are",
        "calls_that_a_child_left_behind_are_not_out_for_ever",
        "room_that_is_offered_late_is_not_taken_for_what_is_asked_since",
        "of_several_that_drain_none_sleeps_on_when_one_has_what_it_wanted",
        "threads_that_await_submitted_calls_each_hear_of_their_own_alone",
        "the_end_of_a_submitted_call_comes_to_who_drains_when_nobody_awaits_it_any_more",
        "whoever_was_to_read_for_others_and_has_its_answer_has_another_read",
        "who_waits_for_a_place_reads_when_the_one_that_read_leaves",
        "who_waits_for_a_place_serves_a_call_that_asks_for_room_while_others_wait_for_answers",
    ],
    "listener": [
        "a_crowd_that_waits_locks_nobody_out_who_only_asks",
        "a_client_that_has_no_number_in_the_brokers_namespace_is_refused_and_costs_nothing",
        "without_descriptors_a_connection_waits_and_the_parent_sleeps",
    ],
}


@functools.cache
def program(room: str) -> pathlib.Path:
    return build(f"tests/test_{room}")


def run_in_c(room: str, name: str) -> Callable[[], None]:
    def test() -> None:
        done = subprocess.run(
            [program(room), name], capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr

    return test


for room, names in ROOMS.items():
    text = (HERE / f"test_{room}.c").read_text()
    for found in names or re.findall(r"^TEST\w*\((\w+)", text, re.M):
        globals()[f"test_{found}"] = run_in_c(room, found)
