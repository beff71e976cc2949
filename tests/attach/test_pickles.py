"""What is unpickled is a program: only those run whose senders were trusted in words."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

import pytest
from attach import brokers
from attach.brokers import as_nobody, needs_root, said

import shmgpu
from shmgpu.attach.manifest import Manifest
from shmgpu.broker import daemon

GROUP = 12345
SERVED = """
import os, shmgpu

class Late:
    '''It makes its file where it is read, not where it is written.'''
    def __init__(self, path):
        self.path = path
    def __reduce__(self):
        return os.mkdir, (self.path,)

@shmgpu.function(arrays="numpy", pickle=True)
def kind(helper, thing):
    return type(thing).__name__

@shmgpu.function(arrays="numpy", pickle=True)
def forged(helper, path):
    return Late(path)
"""
CALL = """
import os, shmgpu, pickling
try:
    with shmgpu.connect({path!r}{more}):
        print({call})
except shmgpu.ShmError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def place(monkeypatch):
    """Where everybody may write, with the module beside the socket."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        found = pathlib.Path(folder)
        (found / "pickling.py").write_text(SERVED)
        monkeypatch.setenv("PYTHONPATH", folder)
        monkeypatch.setenv("HOME", folder)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        yield found


def call(place, expression, more=""):
    return CALL.format(path=str(place / "b.sock"), call=expression, more=more)


@pytest.mark.parametrize("detach", [[], ["--detach"]], ids=["here", "detached"])
def test_a_broker_for_a_group_refuses_functions_that_unpickle(place, detach):
    words = ["up", "--group", str(GROUP), "--path", str(place / "b.sock"), *detach]
    done = subprocess.run(  # where no other test's functions are
        [sys.executable, "-m", "shmgpu", *words, "--devices", "cpu", str(place / "pickling.py")],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    refused = done.stderr
    assert "whoever calls pickling:kind, pickling:forged could run any code as you" in refused
    assert "--trust-group (trust_group=True)" in refused
    assert not (place / "b.sock").exists()


def test_trust_in_a_group_that_is_not_named_is_refused():
    with pytest.raises(shmgpu.ConfigError, match="no group may join: name it, too"):
        daemon.up(["attach.served"], trust_group=True)
    with pytest.raises(shmgpu.ConfigError, match="trust_group='perhaps' is neither"):
        daemon.up(["attach.served"], group=GROUP, trust_group="perhaps")


@needs_root
def test_whom_the_broker_trusts_in_words_may_send_it_pickles(place):
    groups = as_nobody(str(GROUP))
    with brokers.up(place / "b.sock", "pickling", helpers=1, group=GROUP, trust_group=True):
        os.chown(place / "b.sock", 0, GROUP)
        # A broker of root's: who may be anybody is trusted with one's own rights.
        assert said(call(place, "pickling.kind({1})"), before=groups) == "set"


@needs_root
def test_what_another_users_broker_answers_is_not_unpickled(place):
    """Root joins: whoever it is that was let in, the broker's user must not become them."""
    made = place / "made"
    asked = f"pickling.forged({str(made)!r})"
    with brokers.up(place / "b.sock", "pickling", helpers=1, before=as_nobody()):
        refused = said(call(place, asked))
        assert refused.startswith("BadFunction the broker at ") and not made.exists()
        assert "is another user's, and forged has pickle=True: its answers could" in refused
        assert said(call(place, asked, ", trust_broker=True")) == "None"
        assert made.stat().st_uid == 0  # that is what was trusted


def test_a_pickle_that_the_brokers_own_function_would_not_make_is_not_read(place):
    """It could come only from somebody who forges its answers."""
    (place / "pickling.py").write_text(SERVED.replace(", pickle=True", ""))
    mine = place / "mine"
    mine.mkdir()
    (mine / "pickling.py").write_text(SERVED)
    with brokers.up(place / "b.sock", "pickling", helpers=1):
        refused = said(call(place, "pickling.kind(1)"), PYTHONPATH=f"{mine}:{brokers.TESTS}")
    assert refused.startswith("BadFunction this program has kind with pickle=True, but the broker")
    assert "serves it without: end that broker (shmgpu down)" in refused


def test_a_manifest_says_whose_arguments_are_pickled():
    known = Manifest({"m:f": 3, "m:g": 4}, {"default": 0}, {}, frozenset([4]))
    descriptor = known.write()
    try:
        assert Manifest.read(descriptor) == known
    finally:
        os.close(descriptor)
