"""mosec: a front end in Rust, the model in Python processes reached over Unix sockets."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import msgpack
import numpy as np
from mosec import Server, Worker

MOST_BYTES = 64 << 20
BATCH_WAIT_MS = 1  # the least that mosec takes; its default is 10


class MosecDouble(Worker):
    """Doubles the float32 items of a raw body."""

    resp_mime_type = "application/octet-stream"

    def deserialize(self, data: bytes) -> Any:
        return np.frombuffer(data, "float32")

    def serialize(self, data: Any) -> bytes:
        return data.data.cast("B")  # type: ignore[no-any-return]

    def forward(self, data: Any) -> Any:
        return data + data


class MosecDoubleBatch(MosecDouble):
    """The same of a list of bodies, in one operation."""

    def forward(self, data: Any) -> Any:
        return np.split(np.concatenate(data) * 2, np.cumsum([len(one) for one in data])[:-1])


class DoubleMsgpack(MosecDouble):
    """Doubles an array that is described: a msgpack map of its type, shape and bytes."""

    def deserialize(self, data: bytes) -> Any:
        given = msgpack.unpackb(data)
        return np.frombuffer(given["data"], given["dtype"]).reshape(given["shape"])

    def serialize(self, data: Any) -> bytes:
        given = {"dtype": data.dtype.name, "shape": data.shape, "data": data.tobytes()}
        return msgpack.packb(given)  # type: ignore[no-any-return]


WORKERS = {"raw": MosecDouble, "batch": MosecDoubleBatch, "msgpack": DoubleMsgpack}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", choices=WORKERS, default="raw")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    # mosec reads its own settings from the command line.
    sys.argv[1:] = ["--port", str(options.port), "--address", "127.0.0.1", "--log-level", "error"]
    sys.argv += ["--max-request-size", str(MOST_BYTES), "--timeout", "30000"]
    server = Server()
    batch = {"max_batch_size": 32, "max_wait_time": BATCH_WAIT_MS}
    server.append_worker(
        WORKERS[options.kind],
        num=options.processes,
        **(batch if options.kind == "batch" else {}),
    )
    server.run()


if __name__ == "__main__":
    main()
