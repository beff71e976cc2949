"""A second user: let in by group or not at all, and never one who commands."""

from __future__ import annotations

import os
import pathlib
import tempfile

import numpy as np
import pytest
from attach import brokers, served
from attach.brokers import as_nobody, needs_root, said

import shmgpu

GROUP = 12345

CALL = """
import sys, numpy, shmgpu
from attach import served
try:
    with shmgpu.connect({!r}):
        print(served.add_one(numpy.zeros(1)).tolist())
except shmgpu.ShmError as error:
    print(type(error).__name__, error)
"""


COMMAND = """
import sys
from shmgpu.cli import main as cli
sys.exit(cli.main({!r}))
"""


@pytest.fixture
def open_folder():
    """Where everybody may look: pytest keeps its own folders from other users."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder)


@needs_root
def test_another_user_is_refused(open_folder):
    path = open_folder / "b.sock"
    with brokers.up(path, helpers=1):
        assert path.stat().st_mode & 0o777 == 0o600
        out = said(CALL.format(str(path)), before=as_nobody())
        assert out.startswith("ConfigError") and "belongs to another user" in out
        path.chmod(0o666)  # the file lets everybody connect: the broker itself still looks
        out = said(CALL.format(str(path)), before=as_nobody())
        assert out.startswith("LaunchError") and "belongs to another user" in out
    with brokers.up(path, helpers=1, group=GROUP):
        assert path.stat().st_mode & 0o777 == 0o660
        assert (path.stat().st_uid, path.stat().st_gid) == (os.geteuid(), GROUP)
        assert said(CALL.format(str(path)), before=as_nobody(str(GROUP))) == "[1.0]"
        out = said(CALL.format(str(path)), before=as_nobody())
        assert "belongs to another user" in out


@needs_root
@pytest.mark.parametrize("how", ["primary", "supplementary", "one of many", "another"])
def test_a_member_is_let_in_whether_the_group_is_its_first_or_one_of_its_others(open_folder, how):
    path = open_folder / "b.sock"
    first, *groups = {
        "primary": [str(GROUP)],
        "supplementary": ["65534", "4711", str(GROUP)],
        "one of many": ["65534", *map(str, range(20_000, 20_999)), str(GROUP)],
        "another": ["65534", "4711"],
    }[how]
    with brokers.up(path, helpers=1, group=GROUP):
        path.chmod(0o666)  # so that it is the broker that looks
        out = said(CALL.format(str(path)), before=as_nobody(*groups, first=first))
        assert (out == "[1.0]") is (how != "another"), out


@needs_root
@pytest.mark.parametrize(
    ("group", "command", "sentence"),
    [
        (None, "scale", "belongs to another user, who has not let you in"),
        (None, "down", "belongs to another user, who has not let you in"),
        (GROUP, "scale", "belongs to another user, who alone may scale it"),
        (GROUP, "pause", "belongs to another user, who alone may pause it"),
        (GROUP, "down", "is another user's: only they and root can end it"),
    ],
)
def test_another_user_can_neither_scale_a_broker_nor_end_it(open_folder, group, command, sentence):
    path = open_folder / "b.sock"
    groups = () if group is None else (str(group),)
    words = [command, *(["2"] if command == "scale" else []), "--path", str(path)]
    with brokers.up(path, helpers=1, max_helpers=2, group=group) as broker:
        done = brokers.program(COMMAND.format(words), before=as_nobody(*groups))
        assert done.returncode == 1 and sentence in done.stderr, done.stderr
        assert broker.poll() is None
        with shmgpu.connect(path):
            assert served.add_one(np.zeros(1)).tolist() == [1]
            assert [row["pid"] > 0 for row in shmgpu.stats()["helpers"]] == [True, False]


BROADCAST = """
import numpy, shmgpu
from attach import served
with shmgpu.connect({!r}):
    print(served.add_one(numpy.zeros(1)).tolist())
    try:
        print(served.set_weights.broadcast(numpy.ones(1)))
    except shmgpu.NotAllowed as error:
        print(error)
"""


@needs_root
@pytest.mark.parametrize("trusts", [False, True])
def test_another_user_calls_functions_and_broadcasts_none(open_folder, trusts):
    path = open_folder / "b.sock"
    with brokers.up(path, helpers=1, group=GROUP, trust_group=trusts):
        out = said(BROADCAST.format(str(path)), before=as_nobody(str(GROUP))).splitlines()
        assert out[0] == "[1.0]"
        if trusts:
            assert out[1] == "1"
        else:
            assert "belongs to another user" in out[1] and "--trust-group" in out[1]
        with shmgpu.connect(path):
            assert served.set_weights.broadcast(np.ones(1)) == (2 if trusts else 1)
