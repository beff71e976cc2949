"""Load on a gRPC server: one message sent again and again over so many connections, by h2load.

h2load is to HTTP/2 what wrk is to HTTP/1.1, a closed loop in C. It knows nothing of gRPC: a call
that fails is answered like any other, but carries no message. So the bytes that came are held
against those of the answer that was right.

``ask`` makes one call and returns the answer, for whoever wants to check it.
"""

from __future__ import annotations

import re
import shutil
import tempfile

from benchmarks.measure.figures import ProbeFailed, Unavailable
from benchmarks.measure.httpload import ANSWER_LIMIT_S, HOST, Answer, HttpRequest
from benchmarks.measure.native import run_text

PREFIX_BYTES = 5  # before a message: whether it is compressed, and its length
LIMIT_S = 30.0


def framed(message: bytes) -> bytes:
    """Return a message as it stands in a stream's data."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def ask(port: int, request: HttpRequest) -> Answer:
    """Make one call over a channel of its own; ProbeFailed unless it succeeds."""
    import grpc

    with grpc.insecure_channel(f"{HOST}:{port}") as channel:
        try:
            body = channel.unary_unary(request.path)(request.body, timeout=ANSWER_LIMIT_S)
        except grpc.RpcError as error:
            raise ProbeFailed(f"the server answered {error.code()}: {error.details()}") from None
    return Answer(body, {})


def drive(
    port: int, request: HttpRequest, answer: Answer, connections: int, warm_s: float, seconds: float
) -> float:
    """Load the server for ``seconds`` once it is warm; answered calls a second.

    Raises Unavailable where there is no h2load, ProbeFailed where calls fail.
    """
    if shutil.which("h2load") is None:
        raise Unavailable("there is no h2load (Debian's package nghttp2-client)")
    with tempfile.NamedTemporaryFile(prefix="shmgpu-bench-body-") as body:
        body.write(framed(request.body))
        body.flush()
        command = ["h2load", "-t1", "-m1", f"-c{connections}", f"-D{round(seconds * 1e3)}ms"]
        command += [f"--warm-up-time={round(warm_s * 1e3)}ms", "-d", body.name]
        for name, value in request.headers.items():
            command += ["-H", f"{name}: {value}"]
        said = run_text([*command, f"http://{HOST}:{port}{request.path}"], LIMIT_S + seconds)
    return _rate(said, PREFIX_BYTES + len(answer.body), seconds)


def _rate(said: str, answer_bytes: int, seconds: float) -> float:
    """Return calls a second from what h2load prints at its end."""
    counts = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", said)
    data = re.search(r"\((\d+)\) data", said)
    if counts is None or data is None:
        raise ProbeFailed(f"h2load ended with: {said[-300:]}")
    answered, *others = map(int, counts.groups())
    if any(others) or not answered:
        raise ProbeFailed(f"{answered} calls answered, {sum(others)} not")
    if int(data[1]) < answered * answer_bytes:
        raise ProbeFailed("calls were answered without a message")
    return answered / seconds
