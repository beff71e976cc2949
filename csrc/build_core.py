"""Builds the extension module ``shmgpu._core``: csrc/**/*.c and its cffi binding.

What Python sees is declared once, in C: the text between CDEF-BEGIN and CDEF-END in shmgpu.h, and
the callbacks between the same markers in callbacks.h. setup.py runs this file; ``python
csrc/build_core.py --emit FILE`` writes the generated binding, for a look or a comparison.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path

from cffi import FFI

sys.path.insert(0, os.path.abspath("csrc"))
import hardening  # beside this file, which cffi runs as text

sys.path.pop(0)

CSRC = Path("csrc")  # relative to setup.py: setuptools takes no absolute sources


def read_cdef(header: Path) -> str:
    """The declarations between the markers of ``header``."""
    found = re.search(
        r"/\* CDEF-BEGIN.*?\*/\n(.*?)/\* CDEF-END", header.read_text(encoding="utf-8"), re.DOTALL
    )
    if found is None:
        raise SystemExit(f"{header} must mark what Python sees with CDEF-BEGIN and CDEF-END.")
    return found.group(1)


def _files(pattern: str) -> list[str]:
    """The core's own: what speaks to CPython itself is built by build_python.py."""
    python = CSRC / "python"
    return sorted(path.as_posix() for path in CSRC.rglob(pattern) if python not in path.parents)


def make_builder() -> FFI:
    """The binding's recipe; SHMGPU_BUILD_FAULTS=1 and SAN=... change its flags."""
    builder = FFI()
    includes = ['#include "shmgpu.h"']
    builder.cdef(read_cdef(CSRC / "shmgpu.h"))
    callbacks = CSRC / "callbacks.h"
    if callbacks.exists():
        builder.cdef(read_cdef(callbacks))

    compile_args = ["-std=c11", "-O2", "-fvisibility=hidden", "-pthread"]
    link_args = ["-pthread"]
    macros = [("_GNU_SOURCE", "1"), ("Py_LIMITED_API", "0x030a0000")]
    if os.environ.get("SHMGPU_BUILD_FAULTS") == "1":
        macros.append(("SHM_FAULTS", "1"))
        builder.cdef(read_cdef(CSRC / "base" / "fault.h"))
        includes.append('#include "base/fault.h"')
    sanitizers = os.environ.get("SAN")
    if sanitizers:
        compile_args += ["-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}"]
        link_args.append(f"-fsanitize={sanitizers}")
    else:  # which look at more, and at the same functions
        compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
        compiling, linking = hardening.flags(compiler)
        compile_args += compiling
        link_args += linking

    builder.set_source(
        "shmgpu._core",
        "\n".join(includes),
        sources=_files("*.c"),
        depends=_files("*.h"),
        include_dirs=[CSRC.as_posix()],
        define_macros=macros,
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        py_limited_api=True,
    )
    return builder


builder = make_builder()

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--emit":
        raise SystemExit("Use: python csrc/build_core.py --emit FILE, in the root of the tree.")
    builder.emit_c_code(sys.argv[2])
