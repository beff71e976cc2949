"""A decorated function type-checks as it is called: without the helper, with its result's type."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

import shmgpu

if importlib.util.find_spec("mypy") is None:
    pytest.skip("mypy is not installed", allow_module_level=True)

PROGRAM = """
    from __future__ import annotations
    from typing import Any
    import concurrent.futures
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import assert_type
    import shmgpu

    @shmgpu.function
    def plain(helper: shmgpu.Helper, x: NDArray[np.float32], k: int = 1) -> NDArray[np.float32]:
        return x * k

    @shmgpu.function(batch=shmgpu.Batch(max_size=8), arrays="numpy", mutates=True)
    def batched(helper: shmgpu.Helper, text: str) -> dict[str, int]:
        return {text: helper.id}

    def main(rank: int) -> None:
        x = shmgpu.arena.zeros(3)
        assert_type(plain(x), NDArray[np.float32])
        assert_type(plain(x, k=2), NDArray[np.float32])
        assert_type(batched("a"), dict[str, int])
        assert_type(batched.submit("a").result(), dict[str, int])
        assert_type(batched.options(timeout=1.0)("a"), dict[str, int])
        assert_type(next(batched.map(["a"])), dict[str, int])
        assert_type(plain.broadcast(x, k=2), int)
        assert_type(shmgpu.broadcast(batched, "a"), int)
        assert_type(batched.options(timeout=1.0).broadcast("a"), int)
        assert_type(plain.version, int)

    async def amain() -> None:
        assert_type(await batched.aio("a"), dict[str, int])

    shmgpu.launch(main, children=2)
    with shmgpu.init(helpers=1):
        pass
"""

WRONG = {
    "plain(shmgpu.arena.zeros(3), 'two')": "arg-type",
    "plain()": "call-arg",
    "batched(None, 'a')": "call-arg",
    "batched.submit(5)": "arg-type",
    "batched.broadcast(5)": "arg-type",
    "shmgpu.broadcast(batched, 5)": "arg-type",
    "shmgpu.function(arrays='jax')": "call-overload",
    "shmgpu.function(mutates='yes')": "call-overload",
}


def check(tmp_path: pathlib.Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(text))
    environment = dict(os.environ)
    root = pathlib.Path(shmgpu.__file__).resolve().parents[1]
    if root.name != "site-packages":  # a checkout: mypy finds installed packages by itself
        environment["MYPYPATH"] = str(root)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_decorated_call_type_checks_without_the_helper(tmp_path):
    lines = "".join(f"\n    {call}  # wrong\n" for call in WRONG)
    out = check(tmp_path, PROGRAM + lines)
    errors = [
        line for line in out.splitlines() if line.startswith("program.py:") and ": error:" in line
    ]
    source = textwrap.dedent(PROGRAM + lines).splitlines()
    found: dict[str, set[str]] = {}
    for line in errors:
        number = int(line.split(":")[1])
        code = line.rsplit("[", 1)[-1].rstrip("]")
        found.setdefault(source[number - 1].partition("  #")[0], set()).add(code)
    assert {call: WRONG[call] in found.get(call, ()) for call in WRONG} == dict.fromkeys(
        WRONG, True
    )
    assert set(found) == set(WRONG), out
