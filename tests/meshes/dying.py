"""Helpers that die by SIGKILL at a moment of a program that a test names."""

from __future__ import annotations

import os
import pathlib
import signal
import threading
import time

from attach.brokers import until

import shmgpu as gt
from shmgpu.engine import session
from shmgpu.ops import gang


class Deaths:
    """One helper dies by SIGKILL at a moment of its next program, where that is armed.

    Moments are "before", "in the middle" (of the first collective), "at the commit", "after the
    commit" and "after"; and "at N" and "within N" of collectives by number: before it takes part,
    and while it waits there for the others.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def arm(self, moment, helper):
        (self.folder / f"{moment} {helper}").touch()

    def _die(self, moment, helper):
        armed = self.folder / f"{moment} {helper.id}"
        if armed.exists():
            if not (self.folder / "again and again").exists():
                armed.unlink()
            if (self.folder / "late").exists():
                time.sleep(0.2)  # until the next is sent behind it
            os.kill(os.getpid(), signal.SIGKILL)

    def _die_within(self, number, helper):
        """The one that is to die does so soon; the others come only then, so that it waits."""
        for armed in self.folder.glob(f"within {number} *"):
            if armed.name.endswith(f" {helper.id}"):
                threading.Timer(0.02, self._die, (f"within {number}", helper)).start()
            else:
                until(lambda gone=armed: not gone.exists(), "a member died in a collective")

    def session(self, helper):
        """In each helper, and so in each replacement."""
        execute, commit, current = session.Engine.execute, gang.commit, gang.current
        late = self.folder / "late"
        is_late = late.exists()  # it replaces one
        met = 0

        def dying(*args):
            nonlocal met
            met = 0
            if is_late:
                time.sleep(0.2)
            self._die("before", helper)
            try:
                found = execute(*args)
            except Exception:
                if late.exists():
                    time.sleep(0.2)  # until what was sent behind it is aborted as well
                raise
            self._die("after", helper)
            return found

        def meeting():
            nonlocal met
            self._die("in the middle", helper)
            self._die(f"at {met}", helper)
            self._die_within(met, helper)
            met += 1
            return current()

        def committing():
            self._die("at the commit", helper)
            commit()
            self._die("after the commit", helper)

        session.Engine.execute = dying
        gang.commit, gang.current = committing, meeting


def count():
    return sum(row["deaths"] for row in gt.stats()["helpers"])
