"""Several hundred requests have the answers that Triton gave, but for those that say why not.

``recorded/recorder.py`` made the table from a real one.
"""

from __future__ import annotations

import http.server
import signal
import subprocess
import sys
import threading

import pytest
from serve import servers
from serve.recorded import answers, recorder, triton
from serve.recorded.requests import all_requests

ROWS = answers.read()
# What a reason may stand for: Triton's status and ours.
STATUSES = {
    "fault": lambda theirs, ours: theirs >= 400 and ours == 400,
    "stricter": lambda theirs, ours: theirs == 200 and ours == 400,
    "taken": lambda theirs, ours: theirs >= 400 and ours == 200,
    "document": lambda theirs, ours: theirs == ours == 200,
    "page": lambda theirs, ours: theirs == 404 and ours == 200,
    "ends": lambda theirs, ours: theirs == 0 and ours == 400,
}


def test_every_request_has_the_answer_of_the_table():
    models = recorder.MODELS
    with servers.serving(models, workers=1, helpers=1, allow_client_shm=True) as server:
        given = recorder.ask_all(server.host, server.port)
    wrong = {
        name: (list(answer), list(ROWS[name].expected))
        for name, answer in given.items()
        if not answers.fits(answer, ROWS[name].expected)
    }
    assert not wrong


def test_the_table_has_each_request_once():
    names = [asked.name for asked in all_requests()]
    assert len(names) == len(set(names)) > 500
    assert list(ROWS) == names


@pytest.mark.parametrize("why", answers.WHY)
def test_a_row_that_differs_says_why(why):
    rows = {name: row for name, row in ROWS.items() if row.why == why}
    assert rows
    for name, row in rows.items():
        assert not answers.fits(row.ours, row.theirs), name
        assert STATUSES[why](row.theirs.status, row.ours.status), name


def test_no_row_differs_without_a_reason():
    assert {row.why for row in ROWS.values()} == {"", *answers.WHY}
    assert all((row.ours is None) == (not row.why) for row in ROWS.values())


@pytest.mark.parametrize(
    ("given", "does"),
    [
        (answers.Answer(200, {"a": "n", "b": [2, "s"]}), True),
        (answers.Answer(200, {"a": "n", "b": [2, "s"], "more": "s"}), True),
        (answers.Answer(400, {"a": "n", "b": [2, "s"]}), False),
        (answers.Answer(200, {"a": "n"}), False),
        (answers.Answer(200, {"a": "s", "b": [2, "s"]}), False),
        (answers.Answer(200, {"a": "n", "b": [3, "s"]}), False),
        (answers.Answer(200, ""), False),
    ],
)
def test_an_answer_fits_by_its_status_and_all_that_is_expected(given, does):
    assert answers.fits(given, answers.Answer(200, {"a": "n", "b": [2, "s"]})) == does


def test_a_shape_has_the_keys_and_kinds_of_a_body():
    assert answers.body_shape(b'{"b": [1, 2], "a": [1, "x"]}', None, "") == {
        "a": ["n", "s"],
        "b": [2, "n"],
    }
    assert answers.body_shape(b'{"a": null}1234', "11", "") == {"json": {"a": None}, "bytes": 4}
    events = b'data: {"a": true}\n\ndata: {"a": true}\n\n'
    assert answers.body_shape(events, None, "text/event-stream") == {"events": [{"a": "b"}] * 2}
    assert answers.body_shape(b"<p>", None, "") == "text"


def test_triton_gets_the_same_models(tmp_path):
    triton.write_models(tmp_path)
    told = (tmp_path / "add" / "config.pbtxt").read_text()
    assert '{ name: "a" data_type: TYPE_FP32 dims: [4] }' in told
    assert "max_batch_size: 8" in told
    for name in triton.BODIES:
        compile((tmp_path / name / "1" / "model.py").read_text(), name, "exec")


@pytest.fixture
def other():
    """A server that is ready whatever it is asked; its port."""

    class Ready(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ready) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made.server_address[1]
        made.shutdown()
        thread.join()


def fake(folder, text):
    """A tritonserver that does that."""
    path = folder / "tritonserver"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_another_server_at_that_port_is_not_taken_for_triton(tmp_path, other):
    program = fake(tmp_path, "import signal; signal.pause()")
    with pytest.raises(RuntimeError, match=f"port {other} cannot be used"):
        with triton.serving(program, other):
            pytest.fail("it was taken")


def test_what_answers_for_one_that_has_ended_is_another(other):
    class Ended:
        """Ends while its port is asked."""

        looks = iter([None, 1])

        def poll(self):
            return next(self.looks)

    assert not triton._is_ready(Ended(), other)


def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(triton, "END_S", 0.1)
    text = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([fake(tmp_path, text)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # it is deaf from now on
        triton._end(process)
        assert process.returncode == -signal.SIGKILL
