"""What is installed is what the tree says: the version, the binding, the light import."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pathlib
import re
import subprocess
import sys

import cffi
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = ROOT / "csrc" / "shmgpu.h"
built = importlib.util.find_spec("shmgpu") and importlib.util.find_spec("shmgpu._core")
needs_core = pytest.mark.skipif(not built, reason="the extension is not built")
needs_package = pytest.mark.skipif(
    not (spec := importlib.util.find_spec("shmgpu")) or spec.origin is None,
    reason="the package has no __init__.py",
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def declared() -> dict[str, object]:
    """What the marked part of the header declares, as cffi understands it."""
    text = HEADER.read_text(encoding="utf-8")
    parser = cffi.FFI()
    parser.cdef(text[text.index("/* CDEF-BEGIN */") : text.index("/* CDEF-END */")])
    return {name: kind for name, (kind, _) in parser._parser._declarations.items()}


@needs_core
def test_the_built_binding_is_made_from_the_present_header():
    from shmgpu import _core

    functions, structs, values = set(), {}, {}
    for name, kind in declared().items():
        space, _, bare = name.partition(" ")
        if space == "function":
            functions.add(bare)
        elif space == "struct" and kind.fldnames is not None:
            structs[f"struct {bare}"] = list(kind.fldnames)
        elif space == "enum":
            values.update(zip(kind.enumerators, kind.enumvalues, strict=True))
    offered = set(dir(_core.lib))
    assert functions - offered == set(), "Rebuild the extension: make setup."
    assert {name: getattr(_core.lib, name, None) for name in values} == values
    for name, fields in structs.items():
        assert [field for field, _ in _core.ffi.typeof(name).fields] == fields, name


@needs_core
def test_the_extension_serves_every_supported_python():
    assert pathlib.Path(built.origin).name == "_core.abi3.so"


def test_every_public_function_of_the_header_is_public_in_the_core():
    """A prototype nobody implements would surface only when somebody calls it."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in HEADER.parent.rglob("*.c"))
    functions = [name.partition(" ")[2] for name in declared() if name.startswith("function ")]
    missing = [name for name in functions if not re.search(rf"(?m)^[\w *]*\b{name}\(", sources)]
    assert not missing


@needs_package
def test_versions_agree():
    import shmgpu

    version = importlib.metadata.version("shmgpu")
    assert shmgpu.__version__ == version
    changelog = ROOT / "CHANGELOG.md"
    if changelog.exists():
        assert version in changelog.read_text(encoding="utf-8")


@pytest.mark.cold
@needs_package
def test_importing_shmgpu_imports_neither_torch_nor_the_demo():
    heavy = "torch", "sklearn", "tqdm", "matplotlib"
    assert run(f"import sys, shmgpu; print({{*{heavy!r}}} & {{*sys.modules}})") == "set()"


@needs_package
def test_the_package_is_typed():
    import shmgpu

    assert (pathlib.Path(shmgpu.__file__).parent / "py.typed").exists()


def test_building_elsewhere_ends_in_a_sentence():
    """setup.py, asked on another system, says why it stops, with no traceback."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.Import) and node.names[0].name != "build_python")
    ]
    functions = ast.unparse(ast.Module(body=kept, type_ignores=[]))
    elsewhere = {
        "sys.platform = 'darwin'": "Linux",
        "platform.release = lambda: '4.19.0-27-amd64'": "5.10",
        "platform.machine = lambda: 'riscv64'": "riscv64",
        "sys.version_info = (3, 9, 1)": "3.10",
        "sys.implementation.name = 'pypy'": "CPython",
        "sysconfig.get_config_var = {'Py_GIL_DISABLED': 1}.get": "free-threaded",
    }
    for change, word in elsewhere.items():
        sentence = run(f"{functions}\n{change}\nprint(why_not_here())")
        assert word in sentence
        assert sentence.endswith(".")
    here = ["", "platform.machine = lambda: 'aarch64'", "platform.machine = lambda: 'x86_64'"]
    here += ["platform.release = lambda: '5.10.0-27-amd64'"]
    here += [f"sys.version_info = (3, {minor}, 0)" for minor in range(10, 15)]
    for change in here:
        assert run(f"{functions}\n{change}\nprint(why_not_here())") == ""
