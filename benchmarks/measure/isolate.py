"""Running a Python function in a fresh interpreter.

A probe that forks children, imports a framework or might hang must not leave a trace in the process
that measures the next one: ``call`` runs ``module:function`` in a new interpreter, in a session of
its own that is killed as a whole when it overruns, and returns what the function returned. What
it puts into the folder for temporary files, or into ``/dev/shm`` under that folder's name, is
removed however it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure.figures import Unavailable
from benchmarks.measure.native import run_text

UNAVAILABLE = "unavailable"
SHARED = Path("/dev/shm")


def call(target: str, timeout_s: float, **arguments: Any) -> Any:
    """Return ``module:function(**arguments)`` of a fresh interpreter; both ways are JSON.

    Raises Unavailable where the function does, ProbeFailed when the interpreter fails or overruns.
    """
    # What a killed framework's own daemons still write must not make the removal fail.
    with tempfile.TemporaryDirectory(prefix="shmgpu-bench-", ignore_cleanup_errors=True) as folder:
        # A file and not stdout, which the function's own processes are free to write to.
        answer = Path(folder) / "answer.json"
        command = [
            sys.executable,
            "-m",
            "benchmarks.measure.isolate",
            target,
            json.dumps(arguments),
        ]
        try:
            run_text([*command, answer], timeout_s)
            result = json.loads(answer.read_text())
        finally:
            for left in SHARED.glob(f"{Path(folder).name}*"):
                left.unlink(missing_ok=True)
    if UNAVAILABLE in result:
        raise Unavailable(result[UNAVAILABLE])
    return result["value"]


def main(arguments: list[str]) -> int:
    """Do the other side of ``call``: TARGET ARGUMENTS-AS-JSON ANSWER-FILE."""
    target, given, answer = arguments
    module, _, function = target.partition(":")
    tempfile.tempdir = os.environ["TMPDIR"] = str(Path(answer).parent)
    try:
        value = getattr(importlib.import_module(module), function)(**json.loads(given))
        result = {"value": value}
    except Unavailable as reason:
        result = {UNAVAILABLE: str(reason)}
    Path(answer).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
