"""The examples whose processes join a broker by themselves do what their pages say."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
from attach import brokers
from attach.brokers import until

import shmgpu

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def needs(module: str):
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"needs {module}: make setup"
    )


def test_three_programs_share_two_helpers(tmp_path):
    program = str(EXAMPLES / "multi_user.py")
    environment = brokers.environment(SHMGPU_SOCKET=str(tmp_path / "b.sock"))
    with brokers.up(tmp_path / "b.sock", program, helpers=2):
        copies = [
            subprocess.Popen(
                [sys.executable, program, user], env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for user in ("ann", "bob", "cleo")
        ]  # fmt: skip
        outputs = [copy.communicate(timeout=60) for copy in copies]
    assert [copy.returncode for copy in copies] == [0, 0, 0], outputs
    for user, (out, _) in zip(("ann", "bob", "cleo"), outputs, strict=True):
        assert out.startswith(f"{user}: 200 right answers from helpers ["), out
    assert "0" in "".join(out.split("helpers")[1] for out, _ in outputs)
    assert "1" in "".join(out.split("helpers")[1] for out, _ in outputs)


@pytest.mark.slow
def test_programs_train_models_of_their_own_on_one_broker(tmp_path):
    program = str(EXAMPLES / "tensors_multi_user.py")
    environment = brokers.environment(SHMGPU_SOCKET=str(tmp_path / "b.sock"))
    with brokers.up(tmp_path / "b.sock", str(EXAMPLES / "multi_user.py"), helpers=2):
        copies = [
            subprocess.Popen(
                [sys.executable, program, user], env=environment,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for user in ("ann", "bob")
        ]  # fmt: skip
        outputs = [copy.communicate(timeout=60) for copy in copies]
    for user, (out, errors) in zip(("ann", "bob"), outputs, strict=True):
        assert out.startswith(f"{user}: 40 steps, the loss went from "), errors


@pytest.mark.slow
def test_a_data_loaders_workers_claim_places():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "data_loader.py"], env=brokers.environment(),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "256 samples of 32 features, in 16 calls of 2 workers\n", done.stderr


class OverUnix(http.client.HTTPConnection):
    """To a server that listens at a path."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__("localhost", timeout=20)
        self.path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(path: pathlib.Path) -> int:
    """One request, rightly answered: by the process in which place."""
    connection = OverUnix(path)
    with contextlib.closing(connection):
        connection.request("POST", "/", body="[1, 2, 3, 4]", headers={"Connection": "close"})
        answer = json.loads(connection.getresponse().read())
    assert answer["scores"] == [40, 50]
    return answer["place"]


@contextlib.contextmanager
def server(log: pathlib.Path, *command: object, **more: str):
    """A web server, told to end by SIGTERM; nothing of it may outlive the block."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)], env=brokers.environment(**more),
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) in (0, -signal.SIGTERM), log.read_text()
    except BaseException:
        print(log.read_text())
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(path: pathlib.Path) -> bool:
    """Whether a request is answered, rightly: not while there is no server, or no broker."""
    try:
        ask(path)
    except (OSError, ValueError, http.client.HTTPException):
        return False
    return True


REFUSED = {
    "[1, 2": "JSON list of numbers",
    "": "JSON list of numbers",
    '["a", null]': "JSON list of numbers",
    "[[1], [1, 2]]": "JSON list of numbers",
    "[" * 5000: "JSON list of numbers",
    "[1, 2, 3]": "4 numbers, and its shape is (3,)",
    "5": "4 numbers, and its shape is ()",
}


def bad_requests_are_refused_in_words(path: pathlib.Path) -> None:
    for body, words in REFUSED.items():
        connection = OverUnix(path)
        with contextlib.closing(connection):
            connection.request("POST", "/", body=body, headers={"Connection": "close"})
            response = connection.getresponse()
            assert (response.status, words in json.loads(response.read())["detail"]) == (422, True)


@needs("gunicorn")
def test_gunicorns_workers_claim_places(tmp_path):
    path = tmp_path / "web.sock"
    command = ["gunicorn", "--config", EXAMPLES / "gunicorn_server.py", "--chdir", EXAMPLES]
    command += ["--bind", f"unix:{path}", "--no-control-socket", "gunicorn_server:app"]
    with server(tmp_path / "log", *command) as master:
        until(lambda: path.exists() and answers(path), "the server answers")
        places = set()

        def both_have_answered():
            places.add(ask(path))
            return len(places) == 2

        until(both_have_answered, "two workers answer")
        bad_requests_are_refused_in_words(path)
        workers = [pid for pid in children_of(master.pid) if children_of(pid) == []]
        os.kill(max(workers), signal.SIGKILL)  # one is replaced, and claims anew
        places.clear()
        until(both_have_answered, "two workers answer again")
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text, text


def children_of(pid: int) -> list[int]:
    try:
        text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


@needs("uvicorn")
def test_uvicorns_four_workers_join_a_broker(tmp_path):
    path, program = tmp_path / "web.sock", EXAMPLES / "uvicorn_app.py"
    with (
        brokers.up(tmp_path / "b.sock", str(program), slots=5),
        server(
            tmp_path / "log", "uvicorn", "--workers", 4, "--app-dir", EXAMPLES, "--uds", path,
            "uvicorn_app:app", SHMGPU_SOCKET=str(tmp_path / "b.sock"),
        ),
        shmgpu.connect(tmp_path / "b.sock"),
    ):  # fmt: skip

        def in_places():
            return {row["pid"] for row in shmgpu.stats()["children"] if row["state"] == 1} - {
                os.getpid()
            }

        until(lambda: len(in_places()) == 4, "four workers have joined")
        until(lambda: answers(path), "the server answers")
        bad_requests_are_refused_in_words(path)
        assert all(ask(path) >= 0 for _ in range(40))
        answered = [row for row in shmgpu.stats()["children"] if row["answered"]]
        assert sum(row["answered"] for row in answered) >= 41
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text, text


def ask_fastapi(path: pathlib.Path, rows: list) -> tuple[int, dict]:
    """One request: status, answer."""
    connection = OverUnix(path)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/predict", json.dumps({"rows": rows}), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.slow
@needs("fastapi")
@needs("uvicorn")
def test_fastapi_under_uvicorns_workers_joins_a_broker(tmp_path):
    path, program = tmp_path / "web.sock", EXAMPLES / "fastapi_app.py"
    with (
        brokers.up(tmp_path / "b.sock", str(program), slots=3),
        server(
            tmp_path / "log", "uvicorn", "--workers", 2, "--app-dir", EXAMPLES, "--uds", path,
            "fastapi_app:app", SHMGPU_SOCKET=str(tmp_path / "b.sock"),
        ),
    ):  # fmt: skip
        places = set()

        def both_have_answered():
            try:
                status, answer = ask_fastapi(path, [[1, 2, 3, 4], [0, 0, 0, 1]])
            except OSError:  # it does not listen yet
                return False
            assert status == 200 and answer["scores"] == [[40, 50], [6, 7]]
            places.add(answer["place"])
            return len(places) == 2

        until(both_have_answered, "two workers answer")
        assert ask_fastapi(path, [[1, 2]])[0] == 422
        assert ask_fastapi(path, [])[0] == 422
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text, text


def gunicorn(tmp_path, path, config):
    command = ["gunicorn", "--config", config, "--chdir", EXAMPLES, "--bind", f"unix:{path}"]
    # A worker that is told to end as soon as it is forked hears of it by SIGKILL, after that time.
    command += ["--graceful-timeout", "5", "--no-control-socket", "gunicorn_server:app"]
    return server(tmp_path / "log", *command)


@needs("gunicorn")
def test_gunicorn_starts_another_broker_when_its_own_is_killed(tmp_path):
    path = tmp_path / "web.sock"
    with gunicorn(tmp_path, path, EXAMPLES / "gunicorn_server.py") as master:
        until(lambda: path.exists() and answers(path), "the server answers")
        (broker,) = (pid for pid in children_of(master.pid) if children_of(pid))
        os.kill(broker, signal.SIGKILL)
        until(lambda: broker not in children_of(master.pid), "it has ended")
        until(lambda: all(answers(path) for _ in range(10)), "the server answers again")


# The first worker kills the broker that it is about to join: of the master's children the one that
# has some of its own, its helpers (the other worker may have been forked by then).
KILLS_FIRST = """
import os, pathlib, signal, sys
sys.path.insert(0, {examples!r})
from gunicorn_server import *
import gunicorn_server

def children_of(pid):
    return pathlib.Path(f"/proc/{{pid}}/task/{{pid}}/children").read_text().split()

def post_worker_init(worker):
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if not mark.exists():
        mark.touch()
        (broker,) = (pid for pid in children_of(os.getppid()) if children_of(pid))
        os.kill(int(broker), signal.{end})
    gunicorn_server.post_worker_init(worker)
"""


@needs("gunicorn")
@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM"])
def test_gunicorn_goes_on_when_its_broker_dies_while_a_worker_joins(tmp_path, end):
    path, config = tmp_path / "web.sock", tmp_path / "config.py"
    config.write_text(KILLS_FIRST.format(end=end, examples=str(EXAMPLES)))
    with gunicorn(tmp_path, path, config):
        until(lambda: path.exists() and answers(path), "the server answers")


@needs("uvicorn")
def test_uvicorns_workers_join_the_next_broker(tmp_path):
    path, program = tmp_path / "web.sock", EXAMPLES / "uvicorn_app.py"
    words = ("uvicorn", "--workers", 2, "--app-dir", EXAMPLES, "--uds", path, "uvicorn_app:app")
    with contextlib.ExitStack() as running:
        for _ in range(2):
            with brokers.up(tmp_path / "b.sock", str(program)) as broker:
                if not path.exists():
                    address = str(tmp_path / "b.sock")
                    running.enter_context(server(tmp_path / "log", *words, SHMGPU_SOCKET=address))
                until(lambda: path.exists() and answers(path), "the server answers")
                until(lambda: all(answers(path) for _ in range(10)), "each worker does")
                broker.kill()
