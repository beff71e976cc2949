"""What makes two programs alike, and what a broker's record of its files says of an edit."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import json
import os
import py_compile
import resource
import subprocess
import sys
import types

import numpy as np
import pytest

import shmgpu
from shmgpu import function_table
from shmgpu.attach import identity, sources


@pytest.fixture(autouse=True)
def few_functions(monkeypatch):
    """Those that a test registers: what hundreds of other tests' refer to takes seconds to read."""
    registered = function_table.of_users
    before = {id(one) for one in registered()}
    monkeypatch.setattr(
        function_table, "of_users", lambda: [one for one in registered() if id(one) not in before]
    )


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


def test_what_a_function_has_closed_over_counts():
    def made(number):
        return "def around(n):\n    def load(helper):\n        return n\n    return load\n" + (
            f"load = around({number})\n"
        )

    first = digest(script(made(1)))
    assert first == digest(script(made(1)))
    assert first != digest(script(made(2)))


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


def test_an_element_of_a_set_may_refer_to_that_set():
    ring = types.SimpleNamespace()
    ring.all = {ring_member := Hashable(ring)}
    assert digest(script(LOAD.format("RING"), RING=ring))
    assert ring_member.of is ring


class Hashable:
    def __init__(self, of):
        self.of = of


def nested(depth):
    value = None
    for _ in range(depth):
        value = types.SimpleNamespace(within=value)
    return value


def test_values_nested_too_deeply_are_like_no_other_program_s():
    load = script(LOAD.format("VALUE"), VALUE=nested(5000))
    assert digest(load) != digest(load)
    assert len(digest(load)) == len(digest(None))
    deep = []
    for _ in range(5000):
        deep = [deep]
    target = types.SimpleNamespace(body=script(LOAD.format("VALUE"), VALUE=deep))
    assert identity.fingerprint(target.body) == ""
    assert not identity.alike(target.body, target.body) and identity.alike(load, load)


def test_a_function_may_refer_to_what_is_not_there_yet():
    made = "def around():\n    def load(helper):\n        return later\n{}    return load\n"
    code = made + "load = around()\n"
    empty = script(code.format("    if False:\n        later = 1\n"))
    assert digest(empty) == digest(script(code.format("    if False:\n        later = 1\n")))
    assert digest(empty) != digest(script(code.format("    later = 1\n")))


class Named:
    """One that is pickled by the name of what it is."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return self.name


class Deep:
    def __reduce__(self):
        raise RecursionError


def test_objects_count_as_they_are_pickled():
    def of(value):
        return digest(script(LOAD.format("VALUE"), VALUE=value))

    assert of(Named("one")) == of(Named("one")) != of(Named("other"))
    objects = [np.array(["a", value], dtype=object) for value in ("b", "b", "c")]
    assert of(objects[0]) == of(objects[1]) != of(objects[2])
    assert of(Deep()) != of(Deep())  # too deep: like no other program's


def test_a_class_without_a_module_counts_by_what_is_in_it():
    def of(value):
        made = type("Made", (), {"__module__": None, "value": value})
        return digest(script(LOAD.format("VALUE"), VALUE=made))

    assert of(1) == of(1) != of(2)


def test_a_number_of_thousands_of_digits_is_a_value_as_any():
    code = LOAD.format("VALUE")
    huge = 10**5000
    assert digest(script(code, VALUE=huge)) == digest(script(code, VALUE=huge))
    assert digest(script(code, VALUE=huge)) != digest(script(code, VALUE=huge + 1))


MANY = [
    ([*range(99), 1], [*range(99), True]),
    (["a"] * 99, ["a"] * 98 + [b"a"]),
    (dict.fromkeys(map(str, range(99)), 1.0), dict.fromkeys(map(str, range(99)), 1)),
    ({*range(99)}, {*range(98), 99.5}),
    ({*map(str, range(99))}, {*map(str, range(98)), b"98"}),
]


@pytest.mark.parametrize("one, other", MANY, ids=lambda value: type(value).__name__)
def test_of_many_plain_values_each_counts(one, other):
    code = LOAD.format("VALUE")
    assert digest(script(code, VALUE=one)) == digest(script(code, VALUE=type(one)(one)))
    assert digest(script(code, VALUE=one)) != digest(script(code, VALUE=other))


def test_one_string_twice_is_as_two_equal_ones():
    """Which of them are one object is chance."""
    word = "".join(["wo", "rd"])
    one, two = [word] * 20, ["".join(["wo", "rd"]) for _ in range(20)]
    code = LOAD.format("VALUE")
    assert digest(script(code, VALUE=one)) == digest(script(code, VALUE=two))


def test_torch_s_tensors_and_modules_count_by_their_elements():
    torch = pytest.importorskip("torch")
    code = LOAD.format("VALUE")

    def of(value):
        return digest(script(code, VALUE=value))

    assert of(torch.ones(3)) == of(torch.ones(3)) != of(torch.zeros(3))
    assert of(torch.ones(3)) != of(torch.ones(3, dtype=torch.float64))
    assert of(torch.ones(4)[:3]) != of(torch.ones(4)[1:])
    made = [torch.nn.Linear(2, 2) for _ in range(2)]
    assert of(made[0]) != of(made[1])
    made[1].load_state_dict(made[0].state_dict())
    assert of(made[0]) == of(made[1])
    assert of(torch.ones(1000).split(1)) == of(torch.ones(1000).split(1))


def test_elements_that_views_share_are_read_once(monkeypatch):
    torch = pytest.importorskip("torch")
    read = []
    real = identity.hashlib.blake2b
    monkeypatch.setattr(
        identity.hashlib, "blake2b", lambda *data, **more: read.append(data) or real(*data, **more)
    )
    digest(script(LOAD.format("VALUE"), VALUE=torch.ones(1000).split(1)))
    assert len([data for data in read if data]) == 1


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
    monkeypatch.setattr(identity.function_table, "of_users", list)  # other tests decorate some
    load = script(LOAD.format(1))
    tensors, functions = digest(None), digest(load)
    monkeypatch.chdir(tmp_path)
    assert (digest(None) == tensors, digest(load) == functions) == (True, False)


def test_it_is_the_same_in_every_process():
    code = (
        "import numpy as np\nfrom shmgpu.attach import identity\n"
        "WORDS, TABLE = {'a', 'b', 'c'}, {'x': np.arange(3)}\n"
        "MANY = {*map(str, range(40))}\n"
        "class C:\n    def f(self, y):\n        return y in {'p', 'q', 'r'}\n"
        "def load(helper):\n    return WORDS, TABLE, C, MANY, helper in {'s', 't', 'u'}\n"
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
def record(tmp_path, monkeypatch):
    for name, one in list(sys.modules.items()):  # of other tests, whose files are gone
        path = getattr(one, "__file__", None)
        if path and not os.path.exists(path):
            monkeypatch.delitem(sys.modules, name)
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


@contextlib.contextmanager
def files_of_at_most(most):
    """Files are as short as on a disk that is full: for a moment, as the tests' log is one, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 10])
def test_a_disk_that_is_full_lets_imports_go_on_and_the_record_vouches_for_nothing(
    record, module, caplog, room
):
    assert sources.changed(record.path, record.instance) == ""
    (module.parent / "of_a_user_too.py").write_text("VALUE = 1\n")
    try:
        with files_of_at_most(record.path.stat().st_size + room):
            value = importlib.import_module("of_a_user_too").VALUE
        assert value == 1
    finally:
        del sys.modules["of_a_user_too"]
    assert sources.changed(record.path, record.instance) == str(record.path)
    assert "cannot be written" in caplog.text


def test_a_module_whose_file_is_gone_counts_as_changed(record, tmp_path):
    record.begin()
    gone = importlib.machinery.ModuleSpec("gone", None, origin=str(tmp_path / "gone.py"))
    gone.has_location = True
    record.note(gone)
    assert sources.changed(record.path, record.instance) == str(tmp_path / "gone.py")


def test_a_record_that_cannot_be_begun_leaves_nothing(tmp_path):
    with files_of_at_most(5), pytest.raises(OSError):
        sources.Record(tmp_path / "record")
    assert list(tmp_path.iterdir()) == []


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
