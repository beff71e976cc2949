"""What test_endings.py signals: ``ending.py CASE FOLDER GRACE``. Roles leave notes in FOLDER."""

from __future__ import annotations

import logging
import os
import pathlib
import signal
import sys
import threading
import time

import shmgpu

CASE, FOLDER, GRACE = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])


def note(name: str, text: str = "") -> None:
    """Whole or not at all: somebody waits for it."""
    (FOLDER / f".{name}").write_text(text)
    (FOLDER / f".{name}").rename(FOLDER / name)


class NoteDraining(logging.Handler):
    """The parent says when it drains."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", {}).get("kind") == "draining":
            note("draining")


@shmgpu.function(arrays="numpy")
def wait_for_go(helper, name: str) -> str:
    note("helper", str(os.getpid()))
    note(name)
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    note(f"{name} and ended")
    return "answer"


@shmgpu.function(arrays="numpy")
def echo(helper, text: str) -> str:
    return text


def busy(rank: int) -> None:
    try:
        if wait_for_go("began") == "answer":
            note("answered")
        wait_for_go("second began")
    finally:
        note("finally")


def asks_meanwhile(rank: int) -> None:
    """A call that is made in the drain waits, though one of two helpers has nothing to do."""
    while not (FOLDER / "draining").exists():
        time.sleep(0.005)
    wait_for_go.submit("second began")
    while shmgpu.stats()["broker"]["queued"] == 0:
        time.sleep(0.005)
    note("queued")
    threading.Event().wait()


def idle(rank: int) -> None:
    try:
        note("began")
        threading.Event().wait()
    finally:
        note("finally")


def deaf(rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("began")
    while True:
        time.sleep(1)


def unwinds(rank: int) -> None:
    try:
        note("began")
        threading.Event().wait()
    finally:
        if echo("still here") == "still here":
            note("called in finally")


def init() -> None:
    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB"):
        try:
            wait_for_go("began")
        except KeyboardInterrupt:
            note("interrupted")
        served = echo("served")
        print(shmgpu.stats()["helpers"][0]["pid"], served)


def init_term() -> None:
    session = shmgpu.init(helpers=1, devices="cpu", arena="1MiB")
    future = wait_for_go.submit("began")
    while not (FOLDER / "began").exists():
        time.sleep(0.005)
    os.kill(shmgpu.stats()["broker"]["parent_pid"], signal.SIGTERM)
    print("answered" if future.result(20) == "answer" else "lost")
    try:
        for _ in range(1000):
            echo("x")
            time.sleep(0.01)
    except shmgpu.BrokerDied as error:
        print(type(error).__name__)
    session.shutdown()


if __name__ == "__main__":
    # A shell that put this into the background would have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shmgpu.common.logs.logger.setLevel(logging.INFO)
    shmgpu.common.logs.logger.addHandler(NoteDraining())
    if CASE == "init":
        init()
    elif CASE == "init-term":
        init_term()
    else:
        mains = {
            "busy": [busy],
            "draining": [busy, asks_meanwhile],
            "idle": [idle],
            "deaf": [deaf],
            "unwinds": [unwinds],
        }[CASE]
        helpers = len(mains)
        shmgpu.launch(mains, helpers=helpers, devices="cpu", arena="1MiB", grace=GRACE)
