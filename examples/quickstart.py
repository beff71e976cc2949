import numpy as np
import torch

import shmgpu


def load(helper):  # runs once in each helper
    torch.manual_seed(0)  # in place of a file: weights must be equal in all helpers
    return torch.nn.Linear(64, 10).to(helper.device).eval()


@shmgpu.function(batch=shmgpu.Batch(max_size=32))
def classify(helper, images):  # runs in a helper, on the rows of several children at once
    with torch.inference_mode():
        return helper.session(images)


def worker(rank):  # runs in each child
    images = shmgpu.arena.empty((4, 64), "float32")  # an array where helpers can read it
    np.random.default_rng(rank).standard_normal(dtype="float32", out=images)
    scores = classify(images)  # waits; the answer lies in this child's arena, too
    return scores.argmax(axis=1).tolist()


if __name__ == "__main__":
    answers = shmgpu.launch(worker, children=32, helpers=2, session=load)
    print(f"{len(answers)} children were answered; the first: {answers[0]}")
