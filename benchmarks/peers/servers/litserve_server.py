"""LitServe: FastAPI in front, the model in processes behind a queue."""

from __future__ import annotations

import argparse
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body, Response

# A raw body: what is not JSON is handed on as it came.
Raw = Annotated[bytes, Body(media_type="application/octet-stream")]


class LitServeDouble(litserve.LitAPI):
    """Doubles the float32 items of a raw body."""

    def setup(self, device: Any) -> None:
        """Load nothing: the model is an addition."""

    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return np.frombuffer(request, "float32")

    def predict(self, x: Any) -> Any:
        return x + x

    def encode_response(self, output):  # type: ignore[no-untyped-def]
        return Response(output.tobytes(), media_type="application/octet-stream")

    # LitServe reads the annotations as objects, not as the text that this file's future import
    # makes of them.
    decode_request.__annotations__["request"] = Raw
    encode_response.__annotations__["return"] = Response


class LitServeDoubleBatch(LitServeDouble):
    """The same of several bodies of one size, in one operation."""

    def batch(self, inputs: list[Any]) -> Any:
        return np.stack(inputs)

    def unbatch(self, output: Any) -> Any:
        return list(output)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--fast-queue", action="store_true")
    options = parser.parse_args()
    api = (
        LitServeDoubleBatch(max_batch_size=options.batch) if options.batch > 1 else LitServeDouble()
    )
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=2, fast_queue=options.fast_queue
    )
    server.run(
        host="127.0.0.1",
        port=options.port,
        num_api_servers=2,
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )


if __name__ == "__main__":
    main()
