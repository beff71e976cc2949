"""A DataLoader's workers prepare batches in arenas of their own and have a helper encode them.

Each worker is a process that the loader forked. It claims a place when it starts; ``collate_fn``
writes the samples into that arena, where the helper reads them.
"""

from __future__ import annotations

import torch

import shmgpu

SAMPLES, FEATURES, BATCH, WORKERS = 256, 32, 16, 2


class Noise(torch.utils.data.Dataset):
    """Samples as they might come from files: made on demand, the same each time."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(index))


def load(helper):  # the encoder is in the helper only, once for all workers
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, FEATURES))
    return model.to(helper.device).eval()


@shmgpu.function
def encode(helper, images):
    with torch.inference_mode():
        return helper.session(images)


def claim_place(worker):  # worker_init_fn: in each worker, once
    shmgpu.claim(wait=10)


def collate(samples):  # in a worker, for each batch
    images = torch.from_numpy(shmgpu.arena.empty((len(samples), 3, 8, 8)))
    torch.stack(samples, out=images)  # written where the helper reads it
    return encode(images).clone()  # the arena is the worker's: what leaves it is a copy


def main():
    with shmgpu.init(helpers=1, session=load, devices="cpu", arena="16MiB", slots=WORKERS):
        loader = torch.utils.data.DataLoader(
            Noise(),
            batch_size=BATCH,
            num_workers=WORKERS,
            worker_init_fn=claim_place,
            collate_fn=collate,
        )
        features = torch.cat(list(loader))
        images = torch.stack([Noise()[index] for index in range(BATCH)])
        assert torch.allclose(features[:BATCH], encode(images), atol=1e-5)
        calls = sum(child["submitted"] for child in shmgpu.stats()["children"][1:])
    print(f"{len(features)} samples of {FEATURES} features, in {calls} calls of {WORKERS} workers")


if __name__ == "__main__":
    main()
