"""What each call of the gRPC service asks of the server, which is played."""

from __future__ import annotations

import asyncio
import types

import pytest

from shmgpu.serve.protocol.types import ProtocolError

pytest.importorskip("google.protobuf")
grpc_calls = pytest.importorskip("shmgpu.serve.frontend.grpc_calls")


class Front:
    """A server that has the model ``m``; notes what it is asked to do."""

    def __init__(self, allows=True, is_ready=True):
        self.is_ready = is_ready
        self.options = types.SimpleNamespace(allow_repository=allows)
        self.told = []
        self.catalog = self.lifecycle = self.regions = self

    def find(self, name, version=""):
        if name != "m":
            raise ProtocolError(404, "no such model")
        return name

    def index(self, ready):
        return [{"name": "m", "ready": ready}]

    async def load(self, name):
        self.told.append(("load", name))

    async def unload(self, name):
        self.told.append(("unload", name))

    def status(self, name):
        return [{"name": name or "r", "key": "/r"}]

    def register(self, *told):
        self.told.append(("register", *told))

    def unregister(self, name):
        self.told.append(("unregister", name))


def asks(**said):
    return types.SimpleNamespace(**said)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_server_and_a_model_say_whether_they_are_ready(is_ready):
    front = Front(is_ready=is_ready)
    assert grpc_calls.live(front, asks()) == {"live": True}
    assert grpc_calls.ready(front, asks()) == {"ready": is_ready}
    assert grpc_calls.model_ready(front, asks(name="m", version="")) == {"ready": is_ready}
    assert grpc_calls.model_ready(front, asks(name="x", version="")) == {"ready": False}
    assert grpc_calls.index(front, asks(ready=True)) == {"models": [{"name": "m", "ready": True}]}


@pytest.mark.parametrize(
    ("name", "call"), [("load", grpc_calls.load), ("unload", grpc_calls.unload)]
)
def test_models_are_loaded_and_taken_away_where_that_is_allowed(name, call):
    front = Front()
    assert asyncio.run(call(front, asks(model_name="m", parameters={}))) == {}
    assert front.told == [(name, "m")]
    shut = Front(allows=False)
    with pytest.raises(
        ProtocolError, match="explicit model load / unload is not allowed"
    ) as caught:
        asyncio.run(call(shut, asks(model_name="m", parameters={})))
    assert caught.value.status == 503 and not shut.told


def test_a_model_is_loaded_as_it_lies_there():
    front = Front()
    with pytest.raises(ProtocolError) as caught:
        asyncio.run(grpc_calls.load(front, asks(model_name="m", parameters={"config": "{}"})))
    assert caught.value.status == 400 and not front.told


def test_regions_are_registered_listed_and_forgotten():
    front = Front()
    region = asks(name="r", key="/r", offset=8, byte_size=64)
    assert grpc_calls.register(front, region) == {} == grpc_calls.unregister(front, asks(name="r"))
    assert front.told == [("register", "r", "/r", 8, 64), ("unregister", "r")]
    listed = grpc_calls.shared_memory(front, asks(name=""))
    assert listed == {"regions": {"r": {"name": "r", "key": "/r"}}}


def test_memory_of_devices_is_not_to_be_had():
    front = Front()
    assert grpc_calls.cuda_shared_memory(front, asks(name="")) == {}
    assert grpc_calls.unregister_cuda(front, asks(name="r")) == {}
    for call, status in ((grpc_calls.cuda_shared_memory, 404), (grpc_calls.register_cuda, 501)):
        with pytest.raises(ProtocolError) as caught:
            call(front, asks(name="r"))
        assert caught.value.status == status
