"""Builds the modules that speak to CPython itself: csrc/python/NAME becomes shmgpu._NAME.

They use the limited API, as the binding of the core does: one wheel serves all versions. setup.py
imports this. A folder more is a module more; each is a part of Python's side that is in C to be
quick, and the package does without it where it was not built.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension

sys.path.insert(0, os.path.abspath("csrc"))
import hardening  # beside this file

sys.path.pop(0)

CSRC = Path("csrc")  # relative to setup.py: setuptools takes no absolute sources
# What only one module needs: vectors of numbers, each rounded once; an older C library's dlopen.
FLAGS = {"draws": ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]}
LIBRARIES = {"http2": ["dl"]}


def modules() -> list[Extension]:
    """One for each folder; SAN=... changes their flags."""
    # What the limited API lacks shall not be found out when the module is loaded.
    lacks = "-Werror=implicit-function-declaration"
    compiling, linking = ["-std=c11", "-O2", "-fvisibility=hidden", lacks], []
    sanitizers = os.environ.get("SAN")
    if sanitizers:
        compiling += ["-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}"]
        linking.append(f"-fsanitize={sanitizers}")
    else:
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        harder = hardening.flags(compiler)
        compiling += harder[0]
        linking += harder[1]
    return [
        Extension(
            f"shmgpu._{folder.name}",
            sources=sorted(path.as_posix() for path in folder.glob("*.c")),
            depends=sorted(path.as_posix() for path in folder.glob("*.h")),
            include_dirs=[CSRC.as_posix()],
            libraries=LIBRARIES.get(folder.name, []),
            define_macros=[("_GNU_SOURCE", "1"), ("Py_LIMITED_API", "0x030a0000")],
            extra_compile_args=compiling + FLAGS.get(folder.name, []),
            extra_link_args=linking,
            py_limited_api=True,
        )
        for folder in sorted(path for path in (CSRC / "python").iterdir() if path.is_dir())
    ]
