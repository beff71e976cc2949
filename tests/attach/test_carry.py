"""Programs whose modules a broker that is started by exec finds, or does not: any answer is theirs.

Each program runs in a directory of its own, without ``PYTHONPATH``: what it finds, it finds as a
user's program does.
"""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import textwrap
import zipfile

import numpy as np
import pytest
from attach.commands import starting_by_themselves

import shmgpu
from shmgpu import function_table, functions
from shmgpu.attach import carry
from shmgpu.child import runtime

PACKAGE = str(pathlib.Path(shmgpu.__file__).parent)

# As an editable install has it: an importer that knows where one package lies. Other interpreters
# of this environment do not have this one.
FINDER = f"""
import importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "shmgpu":
            return importlib.util.spec_from_file_location(name, {PACKAGE!r} + "/__init__.py")

sys.meta_path.insert(0, Finder)
"""

FUNCTIONS = """
import numpy as np, shmgpu

def load(helper):
    return 3

@shmgpu.function(arrays="numpy")
def triple(helper, x):
    return helper.session * x
"""
CALLS = "print(triple(np.ones(2)).tolist())\n"


@pytest.fixture
def place(tmp_path):
    # Nothing but the package, and no other module of the tests.
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "shmgpu").symlink_to(PACKAGE)
    with starting_by_themselves(tmp_path, PYTHONPATH=str(tmp_path / "found")) as made:
        yield made


def says(place, *words, **more):
    status, said, complained = place.run(*words, **more)
    assert status == 0, complained
    return said


def test_a_program_of_two_lines_computes_with_tensors_however_it_found_the_package(place):
    code = "import shmgpu as gt\ngt.set_backend('numpy')\nprint(gt.ones(2, 2).data.tolist())\n"
    (place.directory / "two_lines.py").write_text(FINDER + code)
    assert says(place, "two_lines.py", PYTHONPATH="") == "[[1.0, 1.0], [1.0, 1.0]]\n"


def test_the_package_s_own_functions_are_never_carried():
    carried = carry.pack({"session": None})
    for target in function_table.by_row.values():
        if target not in function_table.of_users():
            assert target.name.encode() not in carried, target


def test_a_module_that_an_importer_of_the_program_s_own_makes_goes_by_value(place):
    (place.directory / "program.py").write_text(
        textwrap.dedent(
            f"""
            import importlib.abc, importlib.util, sys

            SOURCES = {{"made": {FUNCTIONS!r} + "import deeper\\nfrom deeper import less\\n"
                        "@shmgpu.function(arrays='numpy')\\n"
                        "def fewer(helper, x):\\n    return less(x)\\n",
                        "deeper": "def less(x):\\n    return x - 1\\n"}}

            class Loader(importlib.abc.Loader):
                def exec_module(self, module):
                    exec(SOURCES[module.__name__], module.__dict__)

            class Finder:
                @staticmethod
                def find_spec(name, path=None, target=None):
                    if name in SOURCES:
                        return importlib.util.spec_from_loader(name, Loader())

            sys.meta_path.append(Finder)
            import numpy as np
            from made import fewer, triple
            print(triple(np.ones(2)).tolist(), fewer(np.ones(1)).tolist())
            """
        )
    )
    assert says(place, "program.py") == "[3.0, 3.0] [0.0]\n"


def archive(place, name, **files):
    with zipfile.ZipFile(place.directory / name, "w") as made:
        for file, text in files.items():
            made.writestr(file + ".py", text)


def test_a_program_in_an_archive_is_served(place):
    archive(place, "app.zip", __main__=FUNCTIONS + CALLS)
    assert says(place, "app.zip") == "[3.0, 3.0]\n"


def test_a_module_in_an_archive_is_served(place):
    archive(place, "modules.zip", models=FUNCTIONS)
    (place.directory / "program.py").write_text(
        "import sys\nsys.path.insert(0, 'modules.zip')\nfrom models import *\n" + CALLS
    )
    assert says(place, "program.py") == "[3.0, 3.0]\n"


NAMED_ONLY = """
import functools, sys, typing
import shmgpu

Number = typing.NewType("Number", int)
P = typing.ParamSpec("P")
Alias = Pack = int
if sys.version_info >= (3, 11):
    Pack = typing.TypeVarTuple("Pack")
if sys.version_info >= (3, 12):
    exec("type Alias = int")

@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

class Rows:
    @functools.lru_cache(maxsize=7)
    def more(self, n):
        return n + 1

@shmgpu.function(arrays="numpy")
def numbers(helper, n: Number, one: P = None, two: Pack = None, three: Alias = None) -> Alias:
    rows = Rows()
    return [fib(n), fib.cache_info().misses, rows.more(n), Rows.more.cache_parameters()["maxsize"]]

@shmgpu.function(arrays="numpy")
def other(helper, x):
    return x

print(numbers(30), other(2))
"""


def test_what_pickle_knows_by_name_alone_goes_by_value_from_a_script(place):
    """Caches of functions, and types that annotations name."""
    (place.directory / "program.py").write_text(NAMED_ONLY)
    assert says(place, "program.py") == "[832040, 31, 31, 7] 2\n"
    edited = NAMED_ONLY.replace("fib(n - 2)", "fib(n - 2) + 1").replace("n + 1", "n + 5")
    (place.directory / "program.py").write_text(edited)
    assert says(place, "program.py") == "[2178308, 31, 35, 7] 2\n"


def test_what_another_process_finds_by_its_name_goes_by_that():
    cached = functools.lru_cache(len)
    cached.__module__, cached.__qualname__ = __name__, "FOUND"
    globals()["FOUND"] = cached
    for one in (carry.obstacle, cached):
        assert pickle.loads(carry._dumps(one)) is one


@pytest.mark.parametrize("how", ["-m project", "-m project.run", "project", "link.py"])
def test_a_program_is_served_in_whatever_way_it_is_started(place, how):
    package = place.directory / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in ("__main__", "run"):
        (package / f"{name}.py").write_text(FUNCTIONS + CALLS)
    (place.directory / "link.py").symlink_to(package / "run.py")
    assert says(place, *how.split()) == "[3.0, 3.0]\n"


def test_a_call_that_the_helper_cannot_read_says_so_and_not_where_its_block_lies():
    @shmgpu.function(arrays="numpy")
    def plain(helper, x):
        return x

    with shmgpu.init(helpers=1, devices="cpu", arena="1MiB", threads=1):
        port = runtime.require_port()
        raw = port.arguments.raw_call(plain, 0, 1)
        raw.fill(b"no call", b"", [], 64, port.arena)
        with pytest.raises(
            shmgpu.BadParams, match="is not a call of this function there"
        ) as caught:
            functions.post(port, raw, None).result()
        assert "arena" not in str(caught.value)
        assert plain(np.ones(1)).tolist() == [1]


def test_marks_of_importers_on_the_search_path_stay_as_they_are(place, monkeypatch):
    from shmgpu.attach import spawn

    monkeypatch.chdir(place.directory)
    assert spawn._as_it_was("__editable__.mine.finder.__path_hook__").startswith("__editable__")
    assert spawn._as_it_was("") == os.getcwd() and spawn._as_it_was("found") == os.path.abspath(
        "found"
    )
