import os

import numpy as np


def cut(text):
    rows = [[len(word) for word in one.decode().split()] for one in text]
    if any(len(row) > 4 for row in rows):
        raise ValueError("a text has more than four words")
    if any(row == [13] for row in rows):
        return "nothing that the model takes"
    padded = np.zeros((len(rows), 4), "int64")
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded, np.full(len(rows), os.getpid())
