"""What the log tells of the broker's events: each is one line, with its role and what is done."""

from __future__ import annotations

import logging

import pytest

from shmgpu import core
from shmgpu.broker import events

OF_CHILDREN = {
    events.child_left: ("child_left", logging.INFO, "its slot is cleaned"),
    events.child_refused: ("child_refused", logging.WARNING, "sent away"),
    events.child_protocol: ("child_protocol", logging.ERROR, "killed"),
}


@pytest.mark.parametrize("tell", OF_CHILDREN, ids=lambda one: one.__name__)
def test_what_a_child_did_is_one_line_with_what_is_done_about_it(tell, caplog):
    kind, level, action = OF_CHILDREN[tell]
    event = {"index": 3, "pid": 41, "generation": 2, "exit_status": core.EWINDOW}
    with caplog.at_level(logging.DEBUG):
        tell(event)
    (record,) = caplog.records
    assert (record.levelno, record.event["kind"], record.event["action"]) == (level, kind, action)


PLAIN = {
    "index": 3, "pid": 41, "generation": 2, "exit_status": 0, "reason": 0, "deaths": 5,
    "attempts": 0, "is_final": 0, "is_failure": 0, "function": 0, "delay_ns": 0,
}  # fmt: skip
AT_ONCE, LATER, FINAL = {}, {"delay_ns": 1_500_000_000}, {"is_final": 1}
INFO, ERROR, WARNING, DEBUG = logging.INFO, logging.ERROR, logging.WARNING, logging.DEBUG
# Of each writer: what the event holds besides, what the writer is given, the level, and fields.
TOLD = [
    ("helper_started", {}, {}, INFO, {"kind": "helper_respawned", "deaths": 5}),
    ("helper_started", {"generation": 1}, {}, None, {}),
    ("helper_ready", {}, {}, INFO,
     {"kind": "helper_ready", "role": "helper 3", "pid": 41, "generation": 2}),
    ("helper_unloaded", {}, {}, INFO,
     {"kind": "helper_unloaded", "role": "helper 3", "cause": "no call had come for long"}),
    ("helper_ready", {"pid": 0, "generation": 0}, {}, INFO, {"pid": None, "generation": None}),
    ("helper_failed", {}, {"cause": "it raised"}, ERROR,
     {"cause": "could not make its session: it raised", "action": "replaced at once"}),
    ("helper_failed", {"attempts": 1, **LATER}, {"cause": "it raised"}, ERROR,
     {"action": "given up, and tried again in 1.5 s"}),
    ("helper_failed", FINAL, {"cause": "it raised"}, ERROR,
     {"action": "not replaced: the launch ends"}),
    ("helper_died", {}, {"cause": "c", "stack": ""}, ERROR,
     {"cause": "c", "deaths": 5, "action": "replaced at once", "stack": "none was left",
      "function": None}),
    ("helper_died", {"attempts": events.LET_GO}, {"cause": "c", "stack": ""}, ERROR,
     {"action": "not replaced: its pool needs fewer"}),
    ("helper_died", LATER, {"cause": "c", "stack": "frames"}, ERROR,
     {"action": "replaced in 1.5 s", "stack": "next record"}),
    ("helper_hung", {}, {}, ERROR,
     {"cause": "a call exceeded its function's hang_after", "stack": "with its death"}),
    ("child_started", {}, {}, None, {}),
    ("child_started", {"attempts": 2}, {}, INFO,
     {"kind": "child_restarted", "role": "child 3", "restarts": 2}),
    ("child_ended", {}, {"cause": "c", "stack": "", "restarts_left": 0, "is_told": True}, DEBUG,
     {"kind": "child_ended", "cause": "c", "action": None}),
    ("child_ended", {"is_failure": 1, **FINAL},
     {"cause": "c", "stack": "", "restarts_left": 0, "is_told": True}, ERROR,
     {"kind": "child_failed", "action": "the launch ends", "stack": "with the ChildError"}),
    ("child_ended", {"is_failure": 1, **FINAL},
     {"cause": "c", "stack": "", "restarts_left": 0, "is_told": False}, ERROR,
     {"stack": "none was left"}),
    ("child_ended", {"is_failure": 1, **FINAL},
     {"cause": "c", "stack": "frames", "restarts_left": 0, "is_told": True}, ERROR,
     {"stack": "next record"}),
    ("child_ended", {"is_failure": 1, **LATER},
     {"cause": "c", "stack": "", "restarts_left": 7, "is_told": True}, ERROR,
     {"action": "restarted in 1.5 s, as soon as its arena is cleared; 7 restarts left",
      "stack": "none was left"}),
    ("helper_delayed", {"attempts": 4, **LATER}, {}, WARNING,
     {"kind": "helper_delayed", "role": "helper 3", "attempts": 4,
      "action": "tried again in 1.5 s"}),
    ("child_delayed", {"attempts": 4}, {}, WARNING,
     {"kind": "child_delayed", "role": "child 3", "action": "tried again at once"}),
    ("child_cleared", {}, {}, DEBUG, {"kind": "child_cleared", "role": "child 3"}),
    ("child_joined", {}, {}, INFO, {"kind": "child_joined", "role": "child 3"}),
    ("draining", {"exit_status": core.ESIGNALLED}, {}, INFO,
     {"role": "parent",
      "action": "what helpers hold is finished, then children are told to end"}),
    ("draining", {"exit_status": core.EHELPER_DIED}, {}, INFO,
     {"action": "children are told to end"}),
    ("idle", LATER, {}, INFO, {"cause": "nobody has been joined for 1.5 s"}),
    ("helper_retired", {}, {}, INFO,
     {"role": "helper 3", "action": "it finished what it held, and ended"}),
    ("scaled", {"attempts": 4}, {"pool": "p"}, INFO, {"pool": "p", "helpers": 4, "before": 5}),
    ("scale_refused", {"attempts": 4, "exit_status": core.ETIMEOUT}, {"pool": "p"}, WARNING,
     {"pool": "p", "helpers": 4}),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "more", "given", "level", "fields"), TOLD)
def test_an_event_is_told_with_what_is_known_of_it(writer, more, given, level, fields, caplog):
    with caplog.at_level(logging.DEBUG):
        events.WRITERS[writer]({**PLAIN, **more}, **given)
    if level is None:
        assert caplog.records == [], "no news"
        return
    record = caplog.records[0]
    assert record.levelno == level
    assert {name: record.event.get(name) for name in fields} == fields
    stacks = [one.event["stack"] for one in caplog.records[1:]]
    assert stacks == ([given["stack"]] if given.get("stack") else [])


def test_a_line_is_one_line_whatever_its_values_hold():
    event = {
        "kind": "k",
        "n": 3,
        "empty": "",
        "a": "x y",
        "b": 'q"\\',
        "c": "two\nlines\x1b",
        "e": "x=1",
    }
    assert events.line(event) == (
        'k n=3 empty="" a="x y" b="q\\"\\\\" c="two\\nlines\\x1b" e="x=1"'
    )


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"exit_status": 3}, "exit status 3"),
        ({"exit_status": 0}, "exit status 0"),
        ({"exit_status": 0, "is_failure": 1}, "exit status 0 before its main had ended"),
        ({"exit_status": -11}, "killed by SIGSEGV"),
        ({"exit_status": -63}, "killed by signal 63"),
        ({"exit_status": -9, "reason": core.REASON_HUNG},
         "a call exceeded its function's hang_after: killed by SIGKILL"),
        ({"exit_status": -9, "reason": core.REASON_PROTOCOL},
         "it broke the protocol again and again: killed by SIGKILL"),
        ({"exit_status": 0, "is_failure": 1, "reason": core.REASON_ENDING},
         "told to end: exit status 0"),
        ({"exit_status": -9}, "killed by SIGKILL"),
    ],
)  # fmt: skip
def test_why_a_process_ended_is_said_in_words(more, cause):
    assert events.Causes().of({**PLAIN, **more}) == cause


def test_who_was_killed_while_the_kernel_wanted_memory_was_likely_one_of_those(
    tmp_path, monkeypatch
):
    counted = tmp_path / "vmstat"
    monkeypatch.setattr(events, "VMSTAT", str(counted))
    counted.write_text("nr_free 7\noom_kill 4\noom_kill_more 9\n")
    causes, killed = events.Causes(), {**PLAIN, "exit_status": -9}
    assert causes.of(killed) == "killed by SIGKILL", "those four were before"
    counted.write_text("nr_free 7\noom_kill 6\noom_kill_more 9\n")
    assert causes.of({**PLAIN, "exit_status": -11}) == "killed by SIGSEGV"
    assert causes.of(killed) == "killed by SIGKILL, likely out of memory"
    assert causes.of(killed) == "killed by SIGKILL", "said once"
    counted.unlink()
    assert events.MemoryKills().rose() is False
