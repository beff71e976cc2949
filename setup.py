"""What pyproject.toml cannot say: where shmgpu can be built, and its extension modules."""

import os
import platform
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

sys.path.insert(0, os.path.abspath("csrc"))
import build_python  # beside the C files, and no package

sys.path.pop(0)


def why_not_here() -> str:
    """A sentence when this machine cannot run shmgpu, else nothing."""
    if not sys.platform.startswith("linux"):
        return (
            f"shmgpu needs Linux (memfd, pidfd and futex are its foundation); this is "
            f"{platform.system()}. Use it in a Linux container or virtual machine."
        )
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release and tuple(map(int, release.groups())) < (5, 10):
        return f"shmgpu needs Linux 5.10 or newer; this kernel is {platform.release()}."
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"shmgpu runs on x86-64 and aarch64; this machine is {platform.machine()}."
    if sys.implementation.name != "cpython" or sys.version_info < (3, 10):
        return (
            f"shmgpu needs CPython 3.10 or newer; this is "
            f"{platform.python_implementation()} {platform.python_version()}."
        )
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "shmgpu does not run on a free-threaded Python yet; use the ordinary build of it."
    return ""


reason = why_not_here()
if reason and not {"sdist", "clean", "--version"} & set(sys.argv):
    sys.exit(reason)


class WholeTree(sdist):
    """A source distribution is the tree as a checkout has it: built, tested, benchmarked alike."""

    def make_distribution(self) -> None:
        """Add what setuptools does not know to belong: tests, benchmarks, make's own files."""
        rooms = ("csrc", "shmgpu", "tests", "benchmarks", "examples", ".ci", ".site")
        files = [path for room in rooms for path in Path(room).rglob("*") if path.is_file()]
        files += [Path("Makefile"), Path("constraints.txt"), *Path().glob("*.md")]
        made = {".pyc", ".so", ".o"}
        known = set(self.filelist.files)
        self.filelist.files += sorted(
            path.as_posix()
            for path in files
            if path.suffix not in made
            and "__pycache__" not in path.parts
            and path.as_posix() not in known
        )
        super().make_distribution()


setup(
    cmdclass={"sdist": WholeTree},
    cffi_modules=["csrc/build_core.py:builder"],
    ext_modules=build_python.modules(),
    options={
        "bdist_wheel": {"py_limited_api": "cp310"},
        # The tree's own folder on the search path. Setuptools' importer would be asked after a
        # folder called as the package: in the parent of a checkout, that is the checkout.
        "editable_wheel": {"mode": "compat"},
    },
)
