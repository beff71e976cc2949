"""Reports: what a role leaves behind, of any size, or a sentence why not."""

from __future__ import annotations

import contextlib
import json
import os

import numpy as np
import pytest

from shmgpu.broker.exit_reports import ExitReport, Reports
from shmgpu.broker.spawn_main import StartReport
from shmgpu.errors import LaunchError, SessionError


def open_files(name):
    """How many descriptors there are of reports of that name: others come and go."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(f"memfd:shmgpu-{name}" in one for one in found)


def through(value):
    reports = Reports("test", 2)
    try:
        reports.write(1, ExitReport("result", value))
        return reports.read(0), reports.read(1)
    finally:
        reports.close()


def test_a_result_is_read_back_and_nothing_is_nothing():
    nothing, report = through({"a": np.arange(3)})
    assert nothing is None
    assert report.kind == "result" and report.value["a"].tolist() == [0, 1, 2]


def test_what_has_no_pickle_is_a_sentence():
    _, report = through(lambda: 0)
    assert report.kind == "unreturnable" and "function" in report.message


def test_a_later_report_replaces_a_longer_one():
    reports = Reports("test", 1)
    reports.write(0, ExitReport("result", "x" * 100_000))
    reports.write(0, ExitReport("result", "y"))
    assert reports.read(0).value == "y"
    reports.close()


def test_a_report_may_have_the_number_of_a_closed_standard_input(monkeypatch):
    reports = Reports("zero", 3)
    own = reports._descriptors
    closed = []
    monkeypatch.setattr(os, "closerange", lambda low, high: closed.extend(range(low, high)))
    reports._descriptors = [0, 7, 8]
    reports.keep_only(1)
    assert closed == [0, 8]
    monkeypatch.undo()
    reports._descriptors = own
    reports.close()


def test_a_role_keeps_only_its_own():
    reports = Reports("kept", 5)
    assert open_files("kept") == 5
    reports.keep_only(3)
    assert open_files("kept") == 1
    reports.close()
    reports.close()
    assert open_files("kept") == 0


FAILED = {
    LaunchError("no room"): {"error": "LaunchError", "message": "no room"},
    ValueError("no"): {"error": "ValueError", "message": "ValueError: no"},
    SessionError("no model", 2, "where"): {
        "error": "SessionError", "message": "no model", "helper": 2, "traceback": "where",
    },
    ModuleNotFoundError("none", name="lib"): {
        "error": "ModuleNotFoundError", "message": "ModuleNotFoundError: none", "module": "lib",
    },
    ModuleNotFoundError("none"): {
        "error": "ModuleNotFoundError", "message": "ModuleNotFoundError: none",
    },
}  # fmt: skip


@pytest.mark.parametrize("error", FAILED, ids=repr)
def test_a_start_that_failed_says_of_an_error_of_ours_its_sentence_and_of_others_their_type(error):
    reading, writing = os.pipe()
    with open(reading) as pipe:
        report = StartReport(writing)
        report.failed(error)
        report.ready()  # once is enough
        assert list(map(json.loads, pipe)) == [FAILED[error]]


def test_a_start_that_nobody_waits_for_any_more_goes_on():
    reading, writing = os.pipe()
    os.close(reading)
    report = StartReport(writing)
    report.ready()
    assert report.descriptor == -1
