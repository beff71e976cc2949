"""One server for the tests of a file."""

from __future__ import annotations

import contextlib
import gc
import subprocess

import pytest

pytest.importorskip("uvloop", reason="shmgpu[serve] is not installed")

from serve import servers


@pytest.fixture(scope="session", autouse=True)
def gevents_loop():
    """The stock HTTP client's, which stays in the process once it was needed."""
    gevent = pytest.importorskip("gevent", reason="tritonclient[http] is not installed")
    gevent.sleep(0)


@pytest.fixture(scope="session")
def stock_clients():
    """The stock HTTP clients that were made since somebody last emptied the list."""
    client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    kind, made = client.InferenceServerClient, []
    begin = kind.__init__

    def noted(self, *args, **kwargs):
        made.append(True)
        begin(self, *args, **kwargs)

    kind.__init__ = noted
    yield made
    kind.__init__ = begin


@pytest.fixture(autouse=True)
def clients_end_in_this_thread(stock_clients):
    """The stock HTTP client closes itself when collected, which no thread of gRPC's may do."""
    yield
    if stock_clients:
        gc.collect()
        stock_clients.clear()


@pytest.fixture(scope="module")
def server():
    """Two workers, two helpers, and the models of models/simple.py."""
    with servers.serving(servers.MODELS / "simple.py") as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """The flags of a server that has one, and its file, which clients trust."""
    folder = tmp_path_factory.mktemp("certificate")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("there is no openssl to make a certificate with")
    return {"tls_cert": certificate, "tls_key": key}


@pytest.fixture
def triton(server):
    """The stock HTTP client of the file's server."""
    client = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    with contextlib.closing(client.InferenceServerClient(server.address)) as made:
        yield made


@pytest.fixture
def gate(tmp_path):
    """What held requests wait for."""
    return tmp_path / "gate"
