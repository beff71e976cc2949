"""What makes two programs alike, and what a broker's record of its files says of an edit."""

from __future__ import annotations

import functools
import importlib
import json
import os
import py_compile
import subprocess
import sys
import types

import numpy as np
import pytest

import shmgpu
from shmgpu import identity, sources


def digest(value, **settings):
    return identity.of_program(value, settings)


def script(text, **names):
    """What a script defines, as this process's ``__main__`` would."""
    made = {"__name__": "__main__", **names}
    exec(compile(text, "script.py", "exec"), made)
    return made["load"]


LOAD = "def load(helper):\n    return {}\n"


def test_code_and_all_that_it_refers_to_count_and_where_it_stands_does_not():
    plain = digest(script(LOAD.format(1)))
    assert plain == digest(script("\n\n" + LOAD.format(1)))
    assert plain != digest(script(LOAD.format(2)))
    assert plain != digest(script(LOAD.format("'1'")))


VALUES = [
    (1, 2),
    ("a", b"a"),
    ([1, 2], [2, 1]),
    ((1,), [1]),
    ({"a": 1}, {"a": 2}),
    ({1, 2}, {1, 3}),
    (1.0, 1),
    (True, 1),
    (np.zeros(2), np.zeros(3)),
    (np.zeros(2), np.ones(2)),
    (np.zeros(2, "f4"), np.zeros(2, "f8")),
    (np.float32(1), np.float32(2)),
    (functools.partial(max, 1), functools.partial(max, 2)),
    (types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)),
    (slice(1), slice(2)),
    (json, os),
    (max, min),
    (len, str.lower),
]


@pytest.mark.parametrize("one, other", VALUES, ids=str)
def test_the_values_that_it_refers_to_count(one, other):
    code = LOAD.format("VALUE")
    first = digest(script(code, VALUE=one))
    assert first == digest(script(code, VALUE=one))
    assert first != digest(script(code, VALUE=other))
    assert first != digest(script(code, VALUE=other, UNUSED=one))
    assert first == digest(script(code, VALUE=one, UNUSED=other))


def test_functions_and_classes_that_it_uses_count_as_deeply_as_they_go():
    code = (
        "class Net:\n    size = SIZE\n    def forward(self):\n        return helped(self)\n"
        "def helped(net):\n    def inner():\n        return DEEP\n    return inner\n"
        "def load(helper):\n    return Net()\n"
    )
    first = digest(script(code, SIZE=1, DEEP=1))
    assert first == digest(script(code, SIZE=1, DEEP=1))
    assert first != digest(script(code, SIZE=2, DEEP=1))
    assert first != digest(script(code, SIZE=1, DEEP=2))
    assert first != digest(
        script(code.replace("return helped", "return 1, helped"), SIZE=1, DEEP=1)
    )


def test_what_refers_to_itself_ends():
    ring = []
    ring.append(ring)
    assert digest(script(LOAD.format("load, RING"), RING=ring))


def test_settings_count_as_they_are_read_and_helpers_do_not():
    plain = digest(None)
    assert plain == digest(None, arena="64MiB") == digest(None, helpers=2, idle_timeout=1)
    assert digest(None, arena="1MiB") == digest(None, arena=1 << 20) != plain


def test_variables_that_libraries_read_count(monkeypatch):
    plain = digest(None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert digest(None) != plain
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert digest(None) == plain
    monkeypatch.setenv("SHMGPU_ARENA", "1MiB")
    assert digest(None) == digest(None, arena="1MiB") != plain


def test_only_programs_with_functions_care_where_they_run(monkeypatch, tmp_path):
    monkeypatch.setattr(identity.functions, "of_users", list)  # other tests decorate some
    load = script(LOAD.format(1))
    tensors, functions = digest(None), digest(load)
    monkeypatch.chdir(tmp_path)
    assert (digest(None) == tensors, digest(load) == functions) == (True, False)


def test_it_is_the_same_in_every_process():
    code = (
        "import numpy as np\nfrom shmgpu import identity\n"
        "WORDS, TABLE = {'a', 'b', 'c'}, {'x': np.arange(3)}\n"
        "class C:\n    def f(self, y):\n        return y in {'p', 'q', 'r'}\n"
        "def load(helper):\n    return WORDS, TABLE, C, helper in {'s', 't', 'u'}\n"
        "print(identity.of_program(load, {}))\n"
    )
    path = os.path.dirname(os.path.dirname(shmgpu.__file__))
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": path},
        ).stdout
        for _ in range(2)
    }
    assert len(said) == 1


# ---- the record ------------------------------------------------------------------------------


@pytest.fixture
def record(tmp_path):
    made = sources.Record(tmp_path / "record")
    yield made
    made.end()


@pytest.fixture
def module(tmp_path, monkeypatch, record):
    """A file that the record has, because it was imported."""
    (tmp_path / "of_a_user.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    record.begin()
    importlib.import_module("of_a_user")
    yield tmp_path / "of_a_user.py"
    del sys.modules["of_a_user"]


def test_a_record_names_what_was_changed_since(record, module):
    def changed():
        return sources.changed(record.path, record.instance)

    assert changed() == ""
    os.utime(module)
    assert changed() == ""  # its content is what it was
    found = module.stat()
    module.write_text("VALUE = 2\n")
    assert changed() == str(module)
    module.write_text("VALUE = 1\n")
    assert changed() == ""
    # An editor that renames, and a clock that stands still.
    (module.parent / "next").write_text("VALUE = 3\n")
    os.utime(module.parent / "next", ns=(found.st_atime_ns, found.st_mtime_ns))
    os.replace(module.parent / "next", module)
    assert changed() == str(module)
    module.unlink()
    assert changed() == str(module)


def test_a_record_that_is_anothers_or_unreadable_counts_as_changed(record, module):
    assert sources.changed(record.path, "another") == str(record.path)
    assert sources.changed(record.path.with_name("none"), record.instance)
    with open(record.path, "a") as file:
        file.write("[half of a li")
    assert sources.changed(record.path, record.instance) == str(record.path)


def test_bytecode_of_the_same_second_is_not_taken_for_the_source_s(record, module):
    """Python compares a source's length and whole seconds with what its bytecode notes."""
    found = module.stat()
    kept = py_compile.compile(str(module))
    module.write_text("VALUE = 5\n")
    os.utime(module, ns=(found.st_atime_ns, found.st_mtime_ns))
    os.utime(kept, ns=(found.st_atime_ns, found.st_mtime_ns))
    del sys.modules["of_a_user"]
    assert importlib.import_module("of_a_user").VALUE == 5


def test_no_file_of_python_s_own_is_noted_and_of_an_installed_package_the_first(record, module):
    lines = [json.loads(line) for line in record.path.read_text().splitlines()[1:]]
    files = {line[0]: line[-1] for line in lines}
    assert not any(sources.is_standard(file) for file in files)
    assert files[np.__file__] == ""
    assert not [file for file in files if file.startswith(os.path.dirname(np.__file__) + os.sep)][
        1:
    ]
    assert files[str(module)]
