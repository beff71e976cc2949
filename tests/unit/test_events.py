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
