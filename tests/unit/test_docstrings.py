"""Examples in the docstrings of public names answer as they say."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import types
from collections.abc import Iterator

import pytest

import shmgpu

# The others start no process, so nothing of one remains for the next.
STARTS_HELPERS = "init(helpers="
RUN = """
import doctest, json, sys
import numpy as np
import shmgpu
failed = 0
for name, text in json.load(sys.stdin).items():
    names = {"np": np, "shmgpu": shmgpu, "__name__": "example"}
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    failed += doctest.DocTestRunner().run(test).failed
sys.exit(failed)
"""


def objects() -> Iterator[tuple[str, object]]:
    """Each public name and what it is; of classes, their own methods too."""
    modules = [shmgpu, *(getattr(shmgpu, name) for name in dir(shmgpu))]
    for module in [one for one in modules if isinstance(one, types.ModuleType)]:
        for name in dir(module):
            found = getattr(module, name)
            yield f"{module.__name__}.{name}", found
            for inner, method in vars(found).items() if inspect.isclass(found) else ():
                if inspect.isfunction(method) and not inner.startswith("_"):
                    yield f"{module.__name__}.{name}.{inner}", method


def examples() -> dict[str, str]:
    """The docstrings that have any, by name; one that two names share, under the last."""
    texts = {
        inspect.getdoc(one) or "": name
        for name, one in objects()
        if inspect.isclass(one) or inspect.isfunction(one)
    }
    return {name: text for text, name in texts.items() if ">>>" in text}


EXAMPLES = examples()


def test_there_are_examples_of_functions_arrays_tensors_and_layers():
    of = {name.split(".")[1] for name in EXAMPLES}
    assert {"function", "init", "tensor", "arena", "nn", "optim", "errors"} <= of


@pytest.mark.parametrize("starting", [False, True], ids=["inline", "starting helpers"])
def test_examples_of_docstrings_answer_as_shown(starting, tmp_path):
    chosen = {name: text for name, text in EXAMPLES.items() if (STARTS_HELPERS in text) == starting}
    assert chosen
    program = tmp_path / "example.py"
    program.write_text(RUN, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path, input=json.dumps(chosen), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
