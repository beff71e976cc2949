"""Where ``import shmgpu`` finds a source folder that was never built before an installed one."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

import shmgpu
from shmgpu import installed

BUILT = pathlib.Path(shmgpu.__file__).parent

CODE = """
import os
import shmgpu, shmgpu.errors
print(os.path.dirname(shmgpu.__file__), os.path.dirname(shmgpu.errors.__file__))
shmgpu.set_backend("numpy")
print(shmgpu.ones(2).data.tolist())
"""


@pytest.fixture
def checkout(tmp_path):
    """A clone in which nothing was built, in a folder called as the package."""
    folder = tmp_path / "shmgpu"
    built = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(BUILT, folder / "shmgpu", ignore=built)
    (folder / "csrc").mkdir()
    (folder / "csrc" / "build_core.py").touch()
    return folder


def run(*words, cwd, **more):
    """To its end: output and complaints; the package is found on the path, after the folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(BUILT.parent),
        "SHMGPU_AUTO": "start",
        "SHMGPU_ARENA": "1MiB",
        "SHMGPU_IDLE_TIMEOUT": "0.1",
        "SHMGPU_SOCKET": str(cwd / "b"),  # short: a socket's path has 100 bytes
        **more,
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_installed_package_is_used_and_so_is_it_by_the_broker(checkout):
    said, complained = run("-c", CODE, cwd=checkout)
    assert said == f"{BUILT} {BUILT}\n[1.0, 1.0]\n"
    assert complained == ""


def test_who_runs_other_code_than_lies_there_is_warned(checkout):
    with open(checkout / "shmgpu" / "cli" / "main.py", "a") as file:
        file.write("# A change.\n")
    said, complained = run("-c", "import shmgpu\nprint(shmgpu.__file__)", cwd=checkout)
    assert said == f"{BUILT}/__init__.py\n"
    assert f"the installed package {BUILT} is used, whose files differ" in complained


def test_modules_of_it_are_run_as_programs(checkout):
    assert run("-m", "shmgpu", "--version", cwd=checkout) == (f"shmgpu {shmgpu.__version__}\n", "")


def test_where_there_is_no_other_the_sentence_says_what_to_run(checkout, monkeypatch):
    sysconfig.get_config_vars()  # read from a module, once: before the path is replaced
    monkeypatch.setattr(installed, "HERE", str(checkout / "shmgpu"))
    monkeypatch.setattr(sys, "path", [str(checkout)])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:3])
    assert installed._other() is None
    assert f"run `make` in {checkout} and use the Python in its .venv" in installed.what_to_do()
    monkeypatch.setattr(installed, "HERE", str(checkout / "elsewhere" / "shmgpu"))
    assert "install the package with pip" in installed.what_to_do()


def test_in_the_parent_of_a_checkout_the_package_is_found_too(checkout):
    try:
        importlib.metadata.distribution("shmgpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed here, but found on the path")
    code = "import shmgpu\nprint(shmgpu.launch.__module__)"
    assert run("-c", code, cwd=checkout.parent, PYTHONPATH="") == ("shmgpu.broker.launch\n", "")


def test_a_free_threaded_python_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert installed.what_to_do() == (
        "this is a free-threaded Python, on which shmgpu does not run yet: use the ordinary "
        f"build of {version}"
    )


OLDER = """
import importlib.util, sys

[path] = sys.argv[1:]
spec = importlib.util.spec_from_file_location("shmgpu._core", path)
real = importlib.util.module_from_spec(spec)
spec.loader.exec_module(real)

class Older:
    def __getattr__(self, name):
        if name == "shm_port_await":
            name = "shm_there_was_none"
        return getattr(real.lib, name)

class Core:
    ffi, lib = real.ffi, Older()

sys.modules["shmgpu._core"] = Core
import shmgpu
"""


def test_a_core_older_than_its_python_files_is_told_of(tmp_path):
    [path] = BUILT.glob("_core*.so")
    done = subprocess.run(
        [sys.executable, "-c", OLDER, str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(BUILT.parent)},
        capture_output=True,
        text=True,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: shmgpu's compiled core is older than its Python files")
    assert "make" in last, last
