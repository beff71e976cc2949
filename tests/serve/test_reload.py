"""``--reload``: modules that a model's file imports are watched, and imported anew."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pathlib
import signal
import sys

import pytest
from serve import servers

from shmgpu.serve.state.imported_modules import ImportedModules

MODEL = """
import numpy as np
from library.deep import FACTOR
from shmgpu.serve import Tensor, model


@model(inputs=[Tensor("x", "FP32", (1,))], outputs=[Tensor("y", "FP32", (1,))],
       prepare="steps:add", prepared=[Tensor("x", "FP32", (1,))])
def scaled(helper, x):
    return x * np.float32(FACTOR)
"""
STEPS = """
from library import added


def add(x):
    return x + added.MORE
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package in a folder of its own, and a model's file in another that uses it."""
    folder = tmp_path / "elsewhere" / "library"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    edit(folder / "deep.py", "from library.base import BASE\nFACTOR = BASE\n")
    edit(folder / "base.py", "BASE = 2\n")
    edit(folder / "added.py", "MORE = 1\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.py").write_text(MODEL)
    (tmp_path / "models" / "steps.py").write_text(STEPS)
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    return folder


def edit(path, text):
    """Replace a file in one step, as editors do."""
    made = path.with_suffix(".new")
    made.write_text(text)
    os.replace(made, path)


def answer(server):
    status, _, body = server.ask("POST", "/v2/models/scaled/generate", b'{"x": 3}')
    return json.loads(body)["y"] if status == 200 else body


def test_modules_that_are_edited_are_imported_anew(library, tmp_path):
    with servers.serving(tmp_path / "models" / "m.py", workers=2, helpers=2, reload=True) as server:
        assert answer(server) == 8
        edit(library / "base.py", "BASE = 5\n")  # is imported by one that does not change
        servers.until(lambda: answer(server) == 20, "the new module is used")
        edit(library / "base.py", "this is no Python\n")
        edit(library / "added.py", "MORE = 7\n")  # of workers, for prepare
        assert answer(server) in (20, 50)
        edit(library / "base.py", "BASE = 6\n")
        servers.until(lambda: answer(server) == 60, "both are used")


def test_without_the_flag_they_stay_as_they_were_imported(library, tmp_path):
    file = tmp_path / "models" / "m.py"
    with servers.serving(file, workers=1, helpers=1) as server:
        edit(library / "base.py", "BASE = 5\n")
        file.write_text(MODEL.replace("np.float32(FACTOR)", "np.float32(10 * FACTOR)"))
        os.kill(server.process.pid, signal.SIGHUP)
        servers.until(lambda: answer(server) == 80, "the file was loaded anew, and it alone")


@pytest.fixture
def imported(library, monkeypatch):
    """The package, imported here."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(library.parent))
    importlib.import_module("library.deep")
    yield library
    for name in set(sys.modules) - before:
        if name.split(".")[0] == "library":
            del sys.modules[name]


def mine(stamps):
    return sorted(pathlib.Path(path).name for path in stamps if "elsewhere" in path)


def test_only_modules_that_their_author_edits_are_watched(imported):
    stamps = ImportedModules().stamps()
    assert mine(stamps) == ["__init__.py", "base.py", "deep.py"]
    assert not {json.__file__, pytest.__file__, servers.shmgpu.__file__} & stamps.keys()


def test_kept_bytecode_of_the_same_second_and_length_is_not_used(imported, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    modules = ImportedModules()
    modules.stamps()
    others = {name for name in sys.modules if not name.startswith("library")}
    path = imported / "base.py"
    was = os.stat(path)
    importlib.reload(sys.modules["library.base"])  # which keeps its bytecode
    assert pathlib.Path(importlib.util.cache_from_source(str(path))).exists()
    edit(path, "BASE = 7\n")
    second = was.st_mtime_ns // 10**9 * 10**9
    os.utime(path, ns=(second, second + (was.st_mtime_ns == second)))
    kept = {name: sys.modules[name] for name in others}
    # What these tests themselves are made of is its author's, too: it is put back.
    try:
        modules.forget_changed()
        assert "library.deep" not in sys.modules
        assert importlib.import_module("library.deep").FACTOR == 7
    finally:
        sys.modules.update(kept)
    last = sys.modules["library.deep"]
    modules.stamps()
    modules.forget_changed()
    assert sys.modules["library.deep"] is last
