"""F30: SIGINT and SIGTERM, once and twice, to a broker that is idle, busy or hung."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = pathlib.Path(__file__).with_name("ending.py")


class Ending:
    """One run of ending.py: its process, and the notes its roles leave."""

    def __init__(self, folder, case, grace="20"):
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), case, str(folder), grace],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, name, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not self.has(name):
            has_ended = self.process.poll() is not None
            if time.monotonic() > deadline or (has_ended and not self.has(name)):
                out, err = self.process.communicate(timeout=10)
                raise AssertionError(f"nobody noted {name!r}\n{out}\n{err}")
            time.sleep(0.01)

    def has(self, name):
        return (self.folder / name).exists()

    def note(self, name):
        (self.folder / name).touch()

    def end(self):
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path):
    made = []

    def start(*args):
        made.append(Ending(tmp_path, *args))
        return made[-1]

    start.folder = tmp_path
    yield start
    for ending in made:
        ending.process.kill()
        ending.process.communicate()


SIGNALS = [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)]


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_f30_what_a_helper_executes_is_finished_and_answered_before_children_are_told(
    start, number, code
):
    ending = start("draining")
    ending.wait_for("began")
    ending.process.send_signal(number)
    ending.wait_for("draining")
    ending.wait_for("queued")
    assert not ending.has("second began")  # what was asked for since is not begun
    ending.note("go")
    returned, out, err = ending.end()
    assert ending.has("answered"), err  # the child had its result in hand
    assert ending.has("finally")  # and was then told, in order
    assert returned == code, (out, err)


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_f30_a_second_signal_ends_everything_at_once(start, number, code):
    ending = start("busy")
    ending.wait_for("began")
    ending.process.send_signal(number)
    ending.wait_for("draining")
    start_of_end = time.monotonic()
    ending.process.send_signal(number)
    returned, _, err = ending.end()
    assert returned == code, err
    assert not ending.has("answered") and not ending.has("finally")
    assert time.monotonic() - start_of_end < 15  # of a grace of 20 s


def test_f30_a_whole_process_group_that_is_told_ends_in_order(start):
    """As `timeout` and service managers do it: every role gets the signal, too."""
    for case, note in (("idle", "began"), ("busy", "began")):
        for old in ("began", "began and ended", "finally", "draining", "go"):
            (start.folder / old).unlink(missing_ok=True)
        ending = start(case)
        ending.wait_for(note)
        os.killpg(ending.process.pid, signal.SIGTERM)
        ending.wait_for("draining")
        ending.note("go")
        returned, _, err = ending.end()
        assert returned == 143, err
        assert ending.has("finally")
        assert ending.has("began and ended") == (case == "busy")  # the helper finished its call
        # Nobody is said to have failed, and no helper died.
        assert "child_failed" not in err and "helper_died" not in err


def test_f30_a_hung_helper_holds_the_end_up_for_the_grace_and_no_longer(start):
    ending = start("busy", "1")  # time enough for a child to unwind
    ending.wait_for("began")
    ending.process.send_signal(signal.SIGTERM)
    returned, _, err = ending.end()  # nobody ever says go
    assert returned == 143, err
    assert not ending.has("answered") and ending.has("finally")


def test_f30_a_child_that_does_not_listen_is_killed_after_the_grace(start):
    ending = start("deaf", "0.3")
    ending.wait_for("began")
    ending.process.send_signal(signal.SIGTERM)
    returned, _, err = ending.end()
    assert returned == 143, err


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_f30_an_idle_launch_ends_at_once(start, number, code):
    ending = start("idle")
    ending.wait_for("began")
    ending.process.send_signal(number)
    returned, _, err = ending.end()
    assert returned == code, err
    assert ending.has("finally")


def test_f30_a_child_may_still_call_while_it_unwinds(start):
    ending = start("unwinds")
    ending.wait_for("began")
    ending.process.send_signal(signal.SIGTERM)
    returned, _, err = ending.end()
    assert returned == 143, err
    assert ending.has("called in finally")


def test_f30_ctrl_c_in_an_init_abandons_the_call_and_nothing_else(start):
    ending = start("init")
    ending.wait_for("began")
    pid = int((ending.folder / "helper").read_text())
    ending.process.send_signal(signal.SIGINT)
    ending.wait_for("interrupted")
    os.kill(pid, 0)  # the helper lives
    ending.note("go")
    returned, out, err = ending.end()
    assert returned == 0, err
    assert out.split() == [str(pid), "served"]


def test_f30_sigterm_to_the_parent_of_an_init_drains_and_the_caller_lives_on(start):
    ending = start("init-term")
    ending.wait_for("draining")
    ending.note("go")
    returned, out, err = ending.end()
    assert returned == 0, err
    assert out.split() == ["answered", "BrokerDied"]
