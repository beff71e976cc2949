"""A tritonserver with the recorded models: on the path, or from ``make bench-triton``.

Owns how it is started; never says what it answers.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from serve.recorded.models import DECLARED

START_S = 60
END_S = 10
TRIES = 3  # one start in many aborts
BODIES = {
    "add": "[('sum', a['a'] + a['b']), ('same', a['a'])]",
    "types": "[('count', np.array([sum(x.size for x in a.values())]))]",
    "text": "[('echo', a['text'])]",
    "labels": "[('scores', a['x'])]",
}
MODEL = """\
import os, sys
sys.path[:0] = filter(None, [os.environ.get("TRITON_SITE")])  # see .ci/triton-tools
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            a = {{one.name(): one.as_numpy() for one in request.inputs()}}
            answers.append(pb.InferenceResponse([pb.Tensor(n, x) for n, x in {outputs}]))
        return answers
"""


def _dims(name: str, datatype: str, shape: tuple[int, ...], more: str = "") -> str:
    kind = "STRING" if datatype == "BYTES" else datatype
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: {list(shape)} {more}}}'


def write_models(folder: pathlib.Path) -> None:
    """The models as Triton's Python backend reads them."""
    for one in DECLARED:
        first = 1 if one.max_batch_size else 0
        inputs = [
            _dims(x.name, x.datatype, x.shape[first:], "optional: true " if x.optional else "")
            for x in one.inputs
        ]
        outputs = [
            _dims(
                x.name, x.datatype, x.shape[first:], 'label_filename: "l.txt" ' if x.labels else ""
            )
            for x in one.outputs
        ]
        inside = folder / one.name / "1"
        inside.mkdir(parents=True)
        (inside / "model.py").write_text(MODEL.format(outputs=BODIES[one.name]))
        (folder / one.name / "l.txt").write_text("\n".join(("no", "maybe", "yes")))
        (folder / one.name / "config.pbtxt").write_text(
            f'name: "{one.name}"\nbackend: "python"\nmax_batch_size: {one.max_batch_size}\n'
            f"input [{', '.join(inputs)}]\noutput [{', '.join(outputs)}]\n"
            "instance_group [{ kind: KIND_CPU count: 1 }]\n"
        )


def program() -> str | None:
    """The tritonserver of this machine: on the path, or what ``make bench-triton`` has made."""
    made = pathlib.Path(__file__).resolve().parents[3] / ".venv-triton" / "bin" / "tritonserver"
    return shutil.which("tritonserver") or (str(made) if made.exists() else None)


@contextlib.contextmanager
def serving(program: str, port: int) -> Iterator[None]:
    """A tritonserver with the recorded models, at that port of this machine.

    Raises:
        RuntimeError: it does not start, or another server has that port.
    """
    _check_free(port)
    with tempfile.TemporaryDirectory(prefix="triton-") as place:
        write_models(pathlib.Path(place))
        words = [
            f"--model-repository={place}",
            "--http-address=127.0.0.1",
            f"--http-port={port}",
            "--allow-grpc=false",
            "--allow-metrics=false",
            "--exit-timeout-secs=1",
        ]
        for _ in range(TRIES):
            process = subprocess.Popen(
                [program, *words],
                stdout=subprocess.DEVNULL,
                stderr=sys.stderr if os.environ.get("VERBOSE") else subprocess.DEVNULL,
            )
            try:
                if _is_ready(process, port):
                    yield
                    return
            finally:
                _end(process)
        raise RuntimeError(f"{program} does not start: VERBOSE=1 shows why")


def _check_free(port: int) -> None:
    """What listens there already would answer in its place."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError as error:
            raise RuntimeError(f"port {port} cannot be used ({error}): end what has it") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_ready(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with (
            contextlib.suppress(OSError, http.client.HTTPException),
            contextlib.closing(connection),
        ):
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return process.poll() is None  # else it is another server's
        time.sleep(0.2)
    return False
