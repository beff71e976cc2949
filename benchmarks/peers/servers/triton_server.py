"""tritonserver with its Python backend, where it is on the path: the same protocol as shmgpu's."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

MODEL = """
import os, sys

sys.path[:0] = filter(None, [os.environ.get("TRITON_SITE")])  # see .ci/triton-tools
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb.get_input_tensor_by_name(request, "x").as_numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("y", x + x)]))
        return answers
"""
CONFIGURATION = """
name: "double"
backend: "python"
max_batch_size: 64
dynamic_batching { }
input [{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }]
instance_group [{ count: 2 kind: KIND_CPU }]
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, help="listens for gRPC, too")
    options = parser.parse_args()
    repository = Path(tempfile.mkdtemp(prefix="triton-"))
    (repository / "double" / "1").mkdir(parents=True)
    (repository / "double" / "1" / "model.py").write_text(MODEL)
    (repository / "double" / "config.pbtxt").write_text(CONFIGURATION)
    command = ["tritonserver", f"--model-repository={repository}", f"--http-port={options.port}"]
    command += ["--http-address=127.0.0.1", "--allow-metrics=false"]
    if options.grpc_port is None:
        command += ["--allow-grpc=false"]
    else:
        command += ["--grpc-address=127.0.0.1", f"--grpc-port={options.grpc_port}"]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
