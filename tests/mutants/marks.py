"""A pytest plugin, in a marked tree: writes which marks each test passed through, and its seconds.

THROUGH names the folder. Each worker has a map there, which the processes that its tests start
inherit by name; it is empty when a phase of a test begins.
"""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import pickle
import zlib

import pytest

PLACE = pathlib.Path(os.environ["THROUGH"])
SIZE = int(os.environ["THROUGH_SIZE"])
mine = PLACE / os.environ.get("PYTEST_XDIST_WORKER", "main")
with mine.open("w+b") as file:
    os.chmod(mine, 0o666)  # a test's other user passes through, too
    file.truncate(SIZE)
    seen = mmap.mmap(file.fileno(), SIZE)
os.environ["MUTANTS_MAP"] = str(mine)  # before anything imports what is marked
seconds: dict[str, float] = {}


def tell(phase: str, test: str) -> None:
    """Write what the map holds, and empty it."""
    if any(now := seen[:]):
        with mine.with_suffix(".told").open("ab") as file:
            pickle.dump((phase, test, zlib.compress(now, 1)), file)
        seen[:] = bytes(SIZE)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    seen[:] = bytes(SIZE)
    yield
    tell("import", collector.nodeid)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    seen[:] = bytes(SIZE)
    yield
    tell("setup", item.nodeid)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    seen[:] = bytes(SIZE)
    yield
    tell("call", item.nodeid)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    seen[:] = bytes(SIZE)
    yield
    tell("teardown", item.nodeid)


def pytest_runtest_logreport(report):
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):  # but in the one that hears of all tests
        times = PLACE / "times.json"
        before = json.loads(times.read_text()) if times.exists() else {}
        times.write_text(json.dumps({**before, **seconds}))
