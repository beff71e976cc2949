"""A pytest plugin: writes every test's outcome, as JSON, to the file that MUTANTS_OUTCOMES names.

``failed`` is a test that ran and did not hold; ``broken`` is one that could not run, which proves
nothing.
"""

from __future__ import annotations

import json
import os

outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report):
    before = outcomes.get(report.nodeid)
    if report.failed:
        # The leak guard fails a test in its teardown.
        outcomes[report.nodeid] = "broken" if report.when == "setup" else "failed"
    elif report.skipped:
        outcomes[report.nodeid] = "skipped"
    elif before is None and report.when == "call":
        outcomes[report.nodeid] = "passed"


def pytest_collectreport(report):
    if report.failed:
        outcomes[report.nodeid] = "broken"


def pytest_sessionfinish():
    with open(os.environ["MUTANTS_OUTCOMES"], "w") as file:
        json.dump(outcomes, file)
