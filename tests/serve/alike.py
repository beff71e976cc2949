"""Clients of requests that are alike to the byte, but for their tensors."""

from __future__ import annotations

import http.client
import json
import math
import socket
import struct

from serve import servers


class Client:
    """One connection that sends equal requests, each in one piece: only such take the fast path."""

    def __init__(self, server, model, inputs, outputs, **parameters):
        tensors = [
            {"name": n, "datatype": t, "shape": shape, "parameters": {"binary_data_size": size}}
            for n, t, shape, size in inputs
        ]
        wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        asked = {"inputs": tensors, "outputs": wanted, "parameters": parameters}
        self.target = f"/v2/models/{model}/infer"
        self.header = json.dumps(asked).encode()
        self.socket = socket.create_connection((server.host, server.port), timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, data):
        """All bytes of one that brings these."""
        length = len(self.header)
        head = (
            f"POST {self.target} HTTP/1.1\r\nHost: here\r\nContent-Length: {length + len(data)}\r\n"
            f"Inference-Header-Content-Length: {length}\r\n\r\n"
        )
        return head.encode() + self.header + data

    def ask(self, data):
        """The status, and the JSON and the bytes behind it of the answer."""
        self.send(data)
        return self.answer()

    def send(self, data):
        """Ask, and do not wait for the answer."""
        self.socket.sendall(self.request(data))

    def answer(self):
        """As of :meth:`ask`."""
        with http.client.HTTPResponse(self.socket, method="POST") as response:
            response.begin()
            body = response.read()
        size = int(response.headers.get("Inference-Header-Content-Length", len(body)))
        return response.status, json.loads(body[:size]), body[size:]


class RegionClient(Client):
    """Its tensors lie in two regions; all that it sends is JSON."""

    def __init__(self, server, model, has_length=False, given="in", taken="out", shape=(2,)):
        super().__init__(server, model, [], [])
        parameters = [
            {"shared_memory_region": name, "shared_memory_byte_size": 4 * math.prod(shape)}
            for name in (given, taken)
        ]
        x = {"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters[0]}
        y = {"name": "y", "parameters": parameters[1]}
        self.header = json.dumps({"inputs": [x], "outputs": [y]}).encode()
        self.has_length = has_length

    def request(self, data):
        request = super().request(data)
        if self.has_length:
            return request
        head, _, rest = request.partition(b"Inference-Header-Content-Length")
        return head[:-2] + rest[rest.index(b"\r\n\r\n") :]


class OwnRegionClient(RegionClient):
    """One that has two regions of its own, in ``given`` and ``taken``: asked as any other."""

    def __init__(self, server, opened, model, name, rows=1):
        self.name = name
        self.given, self.taken = (
            opened.enter_context(server.region(f"{name}-{what}", 8 * rows))
            for what in ("in", "out")
        )
        super().__init__(server, model, given=f"{name}-in", taken=f"{name}-out", shape=(rows, 2))

    def send(self, data):
        self.given[:] = data
        self.taken[:] = bytes(len(data))
        super().send(b"")

    def answer(self):
        status, said, _ = super().answer()
        size = 4 * math.prod(said["outputs"][0]["shape"]) if status == 200 else 0
        return status, said, self.taken[:size]


class Crowd:
    """Clients whose requests come in one turn of the worker's loop."""

    def __init__(self, server, clients, rows=1):
        self.worker = server.children()[-1]
        self.rows = rows
        self.clients = clients
        for client in self.clients:
            assert client.ask(struct.pack("<ff", 1, 2) * rows)[0] == 200

    def ask(self, values, leavers=()):
        """What those are answered who stay."""
        self.send(values, leavers)
        return self.answers(leavers)

    def send(self, values, leavers=()):
        """Ask for one value each; the leavers are gone before the worker has read anything."""
        with servers.stopped(self.worker):
            for client, value in zip(self.clients, values, strict=True):
                client.send(struct.pack("<ff", value, value) * self.rows)
            self.leave(leavers)

    def leave(self, leavers):
        """Have some clients go away."""
        for number in leavers:
            self.clients[number].socket.close()

    def answers(self, leavers=()):
        """The status and what lies behind the JSON, for each but those who left."""
        answers = []
        for number, client in enumerate(self.clients):
            if number in leavers:
                continue
            status, _, data = client.answer()
            answers.append((status, struct.unpack(f"<{len(data) // 4}f", data)))
        return answers


def calls(server):
    """That the dispatcher has taken, so far."""
    return server.samples()["shmgpu_calls_total", frozenset()]
