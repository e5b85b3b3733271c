"""The feeder against torch's DataLoader: the same data set, batches and data processes, alternately.

    PYTHONPATH=build/release/python python3 bench/python/feeder.py [--processes 1] [--rounds 5]

The samples are images of 3 x 64 x 64 that are cropped, mirrored and scaled, as in training on images."""

import argparse
import time

import torch
from torch.utils.data import DataLoader, Dataset

from ductile._feeder import Feeder
from ductile._sources import Source


class Images(Dataset):
    def __init__(self, size):
        self.images = (torch.rand(256, 3, 72, 72) * 255).byte()
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        x = self.images[index % 256]
        top, left = torch.randint(0, 9, (2,)).tolist()
        x = x[:, top:top + 64, left:left + 64]
        if torch.rand(()) < 0.5:
            x = x.flip(2)
        return x.float().div_(255).sub_(0.5), index % 10


def by_loader(loader):
    begin = time.perf_counter()
    samples = sum(len(y) for _, y in loader)
    return samples / (time.perf_counter() - begin)


def by_feeder(feeder, epoch, size, batch, ranks):
    begin, samples, each = time.perf_counter(), 0, batch // ranks
    for step in range(size // batch):
        for rank in range(ranks):
            samples += len(feeder.train_batch(epoch, step * batch + rank * each, each, rank)[1])
    return samples / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=12800)
    parser.add_argument("--batch", type=int, default=64)
    a = parser.parse_args()
    torch.set_num_threads(1)
    data = Images(a.size)
    loader = DataLoader(data, batch_size=a.batch, shuffle=True, num_workers=a.processes,
                        persistent_workers=a.processes > 0)
    feeder = Feeder(Source(loader, "train", 1, True), Source(data, "test", 1, False), a.batch, a.ranks, 4)
    feeder.host(0, a.ranks)
    ratios = []
    for epoch in range(a.rounds + 1):
        theirs, ours = by_loader(loader), by_feeder(feeder, epoch, a.size, a.batch, a.ranks)
        if epoch > 0:  # the first one warms up
            ratios.append(ours / theirs)
            print(f"DataLoader {theirs:8.0f} samples/s   feeder {ours:8.0f} samples/s   ratio {ours / theirs:.3f}")
    print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.3f} (at least 0.95 is wanted)")


if __name__ == "__main__":
    main()
