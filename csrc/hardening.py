"""The flags that harden the C build: those of one list that this compiler and machine take.

Both builds ask here: build_core.py for the extension, make for the library and the C tests
(``python csrc/hardening.py CC`` prints what to compile with, and in a second line what to link
with). A flag that a compiler lacks, or takes with a warning, is left out: it must not keep anybody
from building. Needs nothing but the standard library, because it runs before there is an
environment.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile

# In order; of several spellings the first that works. What checks buffers needs optimisation, and a
# distribution may have defined it already. -fcf-protection is x86's, -mbranch-protection aarch64's.
COMPILE = (
    ("-fstack-protector-strong",),
    ("-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3", "-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"),
    ("-fstack-clash-protection",),
    ("-fcf-protection", "-mbranch-protection=standard"),
)
LINK = (("-Wl,-z,relro,-z,now",), ("-Wl,-z,noexecstack",))

# Includes what complains of a level that this C library does not have.
PROGRAM = b'#include <stdio.h>\n#include <string.h>\nint main(void) { return puts("") < 0; }\n'


def flags(compiler: str) -> tuple[list[str], list[str]]:
    """Those to compile with, and those to link with, that this compiler takes without a word."""
    taken: tuple[list[str], list[str]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for choices, into in ((COMPILE, taken[0]), (LINK, taken[1])):
            for spellings in choices:
                good = (one.split() for one in spellings if _is_taken(compiler, one, folder))
                into += next(good, [])
    return taken


def _is_taken(compiler: str, flag: str, folder: str) -> bool:
    words = [*shlex.split(compiler), *("-x", "c", "-O2", "-Wall", "-Werror"), *flag.split(), "-"]
    try:
        done = subprocess.run(
            [*words, "-o", os.path.join(folder, "probe")],
            input=PROGRAM,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:  # there is no such compiler, and the build will say so
        return False
    return done.returncode == 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("Use: python csrc/hardening.py CC")
    compiling, linking = flags(sys.argv[1])
    print(" ".join(compiling))
    print(" ".join(linking))
