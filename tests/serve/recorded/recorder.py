"""Records what Triton answers: ``python tests/serve/recorded/recorder.py``.

That starts the tritonserver on the path, or the one that ``make bench-triton`` has made; HOST:PORT
is one that runs, with the recorded models. Rows keep what they say of this server. ``HOST:PORT
--ours`` lists where this server differs from what the table expects, and with ``--enter WHY``
enters it there.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
from collections import deque
from collections.abc import Callable, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from serve.recorded import answers, triton
from serve.recorded.requests import REGION, all_requests

MODELS = pathlib.Path(__file__).with_name("models.py")
PORT = 18333


@contextlib.contextmanager
def region() -> Iterator[None]:
    """The shared memory that requests speak of."""
    path = pathlib.Path("/dev/shm", REGION)
    path.write_bytes(bytes(64))
    try:
        yield
    finally:
        path.unlink()


def ask_all(
    host: str, port: int, start: Callable[[], contextlib.AbstractContextManager[None]] | None = None
) -> dict[str, answers.Answer]:
    """All answers, in order; where one ends the server, ``start`` starts another for the rest."""
    waiting, found = deque(all_requests()), {}
    while waiting:
        with region(), start() if start is not None else contextlib.nullcontext():
            while waiting:
                asked = waiting.popleft()
                found[asked.name] = answer = answers.ask(host, port, asked)
                if not answer.status and start is not None:
                    break
    return found


def record(where: str) -> None:
    known = answers.read() if answers.TABLE.exists() else {}
    host, sign, port = where.rpartition(":")
    if sign:
        found = ask_all(host, int(port))
    else:
        program = triton.program()
        if program is None:
            sys.exit("there is no tritonserver on the path: make bench-triton brings one")
        found = ask_all("127.0.0.1", PORT, lambda: triton.serving(program, PORT))
    lost = [name for name, one in found.items() if not one.status]
    rows = {}
    for name, theirs in found.items():
        ours, why = known[name][1:] if name in known else (None, "")
        rows[name] = answers.Row(theirs, ours, why)
    answers.write(rows)
    print(f"{len(rows)} answers; without one: {', '.join(lost) or 'none'}")


def compare(where: str, why: str) -> None:
    host, _, port = where.rpartition(":")
    rows = answers.read()
    for name, given in ask_all(host, int(port)).items():
        row = rows[name]
        if not answers.fits(given, row.expected):
            print(f"{name}\n    Triton {list(row.theirs)}\n    ours   {list(given)}")
            if why:
                rows[name] = answers.Row(row.theirs, given, why)
    if why:
        answers.write(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("where", metavar="HOST:PORT", nargs="?", default="")
    parser.add_argument("--ours", action="store_true", help="compare this server's answers")
    parser.add_argument("--enter", metavar="WHY", default="", choices=["", *answers.WHY])
    given = parser.parse_args()
    if given.ours:
        compare(given.where, given.enter)
    else:
        record(given.where)


if __name__ == "__main__":
    main()
