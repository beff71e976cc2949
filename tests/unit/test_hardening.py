"""What the compiler and the linker can do against a mistake in the C core is in what they made."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
built = importlib.util.find_spec("shmgpu") and importlib.util.find_spec("shmgpu._core")
COMPILER = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
needs_build = pytest.mark.skipif(
    not built or os.environ.get("SAN") is not None, reason="no extension without sanitizers here"
)
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER.split()[0]) is None, reason="no C compiler, which knows its flags, here"
)

LOAD, DYNAMIC, NOTE_OF_PROPERTIES, STACK, RELRO = 1, 2, 0x6474E553, 0x6474E551, 0x6474E552
STRINGS, STRING_BYTES, BIND_NOW, FLAGS, FLAGS_1 = 5, 10, 24, 30, 0x6FFFFFFB


class Elf:
    """A shared library, as far as its hardening is concerned (elf(5), 64 bits, little-endian)."""

    def __init__(self, path: str) -> None:
        self.data = data = pathlib.Path(path).read_bytes()
        assert data[:6] == b"\x7fELF\x02\x01"
        (at,) = struct.unpack_from("<Q", data, 32)
        size, count = struct.unpack_from("<HH", data, 54)
        # type, flags, offset, address, -, bytes in the file, -, -
        self.parts = [struct.unpack_from("<IIQQQQQQ", data, at + size * i) for i in range(count)]
        (dynamic,) = self.of_type(DYNAMIC)
        pairs = struct.iter_unpack("<QQ", data[dynamic[2] : dynamic[2] + dynamic[5]])
        self.dynamic = dict(pairs)
        begin = self.offset(self.dynamic[STRINGS])
        self.names = data[begin : begin + self.dynamic[STRING_BYTES]].decode().split("\0")

    def of_type(self, kind: int) -> list[tuple[int, ...]]:
        return [part for part in self.parts if part[0] == kind]

    def offset(self, address: int) -> int:
        return next(
            part[2] + address - part[3]
            for part in self.of_type(LOAD)
            if part[3] <= address < part[3] + part[5]
        )

    def is_bound_at_once(self) -> bool:
        found = self.dynamic
        return BIND_NOW in found or bool(found.get(FLAGS, 0) & 8 or found.get(FLAGS_1, 0) & 1)


@pytest.fixture(scope="module")
def hardening():
    """The build's own module, which stands beside the C files."""
    spec = importlib.util.spec_from_file_location("hardening", ROOT / "csrc" / "hardening.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_build
@needs_compiler
@pytest.mark.parametrize("name", ["_core", "_graph", "_draws", "_json", "_quick", "_http2"])
def test_an_extension_is_hardened_as_far_as_the_compiler_can(hardening, name):
    extension = importlib.util.find_spec(f"shmgpu.{name}")  # loading it may need a library
    compiling, linking = hardening.flags(COMPILER)
    elf = Elf(extension.origin)
    if "-Wl,-z,relro,-z,now" in linking:
        assert elf.is_bound_at_once()
        assert elf.of_type(RELRO)
    if "-Wl,-z,noexecstack" in linking:
        assert [part[1] & 1 for part in elf.of_type(STACK)] == [0]
    if "-fstack-protector-strong" in compiling:
        assert "__stack_chk_fail" in elf.names
    if "-U_FORTIFY_SOURCE" in compiling and name == "_core":  # others call nothing of the kind
        assert [name for name in elf.names if re.fullmatch(r"__\w+_chk", name)]
    if "-fcf-protection" in compiling and os.uname().machine == "x86_64":
        # Each function that may be reached by a pointer begins so; a handful comes from elsewhere.
        assert elf.data.count(b"\xf3\x0f\x1e\xfa") > {"_core": 100, "_draws": 8, "_json": 8}.get(
            name, 20
        )


def test_a_compiler_that_lacks_a_flag_is_not_given_it(hardening, tmp_path):
    old = tmp_path / "oldcc"
    old.write_text(
        "#!/bin/sh\nfor word; do case $word in -fcf*|-D_FORTIFY_SOURCE=3|-mbranch*) exit 1;; "
        "esac; done\n"
    )
    old.chmod(0o755)
    compiling, linking = hardening.flags(str(old))
    assert compiling == [
        *("-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
        "-fstack-clash-protection",
    ]
    assert linking == ["-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack"]
    assert hardening.flags(str(tmp_path / "none")) == ([], [])


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_the_library_and_the_c_tests_are_built_as_the_extension_is():
    """By what make would do: building them takes seconds."""
    if not (ROOT / "Makefile").exists() or not (ROOT / "csrc" / "child" / "heap.c").exists():
        pytest.skip("no tree to build")
    done = subprocess.run(
        ["make", "-n", "-B", "build/libshmgpu.so", "build/c-plain/core/child/heap.o", "V="],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env={k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "SAN", "CFLAGS")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    compiled = [line for line in lines if re.search(r" -c csrc/[\w/]+\.c ", line)]
    linked = [line for line in lines if " -shared " in line]
    python = ROOT / "csrc" / "python"  # what speaks to CPython is no part of the library
    files = [path for path in (ROOT / "csrc").rglob("*.c") if python not in path.parents]
    assert len(compiled) > len(files)
    assert [line for line in compiled if "-O2 -g $(sed -n 1p build/hardening)" not in line
            and "-O2 $(sed -n 1p build/hardening)" not in line] == []  # fmt: skip
    assert len(linked) == 1 and "$(sed -n 2p build/hardening)" in linked[0]
