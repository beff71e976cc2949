"""A pytest plugin: writes how long every test took to the file that THROUGH_TIMES names."""

from __future__ import annotations

import json
import os

seconds: dict[str, float] = {}


def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):  # but in the one that hears of all tests
        with open(os.environ["THROUGH_TIMES"], "w") as file:
            json.dump(seconds, file)
