#!/usr/bin/python3
"""The rival of the training benchmark: PyTorch on the CPU, at its best, data loading included.

  train_rival.py cifar10 --data DIR [--seconds 5] [--repetitions 5]     ResNet-20, batch 128
  train_rival.py cifar10 --model resnet18 --data DIR                    ResNet-18 for small images
  train_rival.py fashion --data DIR --precision bf16                    the cnn

DIR holds CIFAR-10's binary files or Fashion-MNIST's idx .gz files. Prints one JSON line saying what
was chosen, then one a burst: samples, wall and CPU seconds, loss. With --driven a burst runs for
each line "go" (or "go SECONDS") on stdin, so that another program can alternate with it; the end
of stdin ends it. With --ranks N it is one of N processes of DistributedDataParallel over gloo, each
with its own --batch; rank 0 is the one that is driven, and the others follow it.

What is done for speed: the OpenMP waiting policy, no malloc trimming or mmap of tensors, denormals
flushed, data held in memory as bytes and augmented a batch at a time (or a DataLoader: --workers),
gradients set to none; memory format and foreach of the optimiser are the fastest measured in the
first seconds, unless given. Nothing asks for the loss inside a burst.
"""

import argparse
import contextlib
import ctypes
import glob
import gzip
import itertools
import json
import multiprocessing
import os
import sys
import time

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "1000",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0"
    ":glibc.malloc.trim_threshold=4294967296:glibc.malloc.top_pad=67108864",
}


def restart_with_environment(threads):
    """OpenMP and malloc read these when the process starts."""
    wanted = {**ENVIRONMENT, "OMP_NUM_THREADS": str(threads)}
    if any(os.environ.get(k) != v for k, v in wanted.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["cifar10", "fashion"])
    parser.add_argument("--data", required=True, help="folder of the data files")
    parser.add_argument("--model", choices=["resnet20", "resnet18"], default="resnet20",
                        help="for cifar10; resnet18 is torchvision's with a 3x3 stem, not pooled")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--memory-format", choices=["auto", "channels_last", "contiguous"],
                        default="auto")
    parser.add_argument("--foreach", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--workers", type=int, default=0,
                        help="DataLoader processes; 0 = augment whole batches in memory")
    parser.add_argument("--augment", action=argparse.BooleanOptionalAction,
                        help="crop with padding 4, and flip (default: for cifar10)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=5, help="length of a burst")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="processes of DistributedDataParallel")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--rendezvous", default="tcp://127.0.0.1:29501")
    parser.add_argument("--compress", action="store_true", help="gradients travel as fp16")
    parser.add_argument("--core", type=int, help="run on this core only")
    parser.add_argument("--driven", action="store_true", help='one burst a line "go" on stdin')
    args = parser.parse_args()
    if args.augment is None:
        args.augment = args.task == "cifar10"
    if args.ranks > 1 and "auto" in (args.memory_format, args.foreach):
        parser.error("--ranks needs --memory-format and --foreach: ranks must not choose differently")
    return args


ARGS = parse()
restart_with_environment(ARGS.threads)

import torch  # noqa: E402  (after the environment)
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Block(nn.Module):
    """Two 3x3 convolutions beside an identity that is subsampled and zero-padded where the shape
    changes (He et al., CVPR'16, section 4.2, option A)."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.extra = stride, channels - channels_in

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.extra:
            x = F.pad(x[:, :, :: self.stride, :: self.stride],
                      (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(y.add_(x), inplace=True)


class ResNetCifar(nn.Module):
    def __init__(self, blocks=3, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        layers, channels = [], 16
        for stage, width in enumerate((16, 32, 64)):
            for i in range(blocks):
                layers.append(Block(channels, width, 2 if stage > 0 and i == 0 else 1))
                channels = width
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.fc(self.layers(x).mean((2, 3)))


def resnet18():
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(inplace=True), nn.Linear(64, 10))


def read_cifar10(folder):
    """Images as bytes, height x width x channel, and labels."""
    files = sorted(glob.glob(os.path.join(folder, "data_batch_*.bin")))
    if not files:
        sys.exit(f"{folder}: no data_batch_*.bin; give the folder of CIFAR-10's binary files")
    raw = b"".join(open(f, "rb").read() for f in files)
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3073)
    images = records[:, 1:].view(-1, 3, 32, 32).permute(0, 2, 3, 1).contiguous()
    return images, records[:, 0].long()


def read_fashion(folder):
    def idx(name, header):
        with gzip.open(os.path.join(folder, name)) as f:
            return torch.frombuffer(bytearray(f.read()[header:]), dtype=torch.uint8)

    images = idx("train-images-idx3-ubyte.gz", 16).view(-1, 28, 28, 1)
    return images, idx("train-labels-idx1-ubyte.gz", 8).long()


class Pipeline:
    """Bytes to normalised batches: random crop of the padded image, flip, in whole-batch steps."""

    def __init__(self, images, labels, augment, pad=4):
        values = images.float() / 255
        mean, std = values.mean((0, 1, 2)), values.std((0, 1, 2))
        self.scale, self.shift = 1 / (255 * std), -mean / std
        self.labels, self.augment, self.pad, self.side = labels, augment, pad, images.shape[1]
        self.images = F.pad(images, (0, 0, pad, pad, pad, pad)) if augment else images

    def __len__(self):
        return len(self.labels)

    def batch(self, indices):
        """x as N C H W, channels last in memory."""
        n = len(indices)
        if self.augment:
            top, left = torch.randint(0, 2 * self.pad + 1, (2, n))
            windows = self.images.unfold(1, self.side, 1).unfold(2, self.side, 1)
            x = windows[indices, top, left].permute(0, 2, 3, 1)
            x = torch.where((torch.rand(n) < 0.5).view(n, 1, 1, 1), x.flip(2), x)
        else:
            x = self.images[indices]
        x = x.float().mul_(self.scale).add_(self.shift)
        return x.permute(0, 3, 1, 2), self.labels[indices]


class Batches(torch.utils.data.Dataset):
    """For the DataLoader: item i is a whole batch, so that workers too augment batch-wise."""

    def __init__(self, pipeline, batch):
        self.pipeline, self.size = pipeline, batch
        self.order = torch.randperm(len(pipeline))

    def __len__(self):
        return len(self.pipeline) // self.size

    def __getitem__(self, i):
        return self.pipeline.batch(self.order[i * self.size : (i + 1) * self.size])


def batches(pipeline, size, workers):
    """Without end; each epoch in a new order, the short last batch dropped."""
    while True:
        data = Batches(pipeline, size)
        if workers == 0:
            yield from (data[i] for i in range(len(data)))
        else:
            yield from torch.utils.data.DataLoader(
                data, batch_size=None, num_workers=workers, prefetch_factor=4)


class Trainer:
    def __init__(self, stream, channels_last, foreach):
        torch.manual_seed(1)
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        name = ARGS.model if ARGS.task == "cifar10" else "cnn"
        self.model = {"resnet20": ResNetCifar, "resnet18": resnet18, "cnn": cnn}[name]()
        count = sum(p.numel() for p in self.model.parameters())
        assert count == {"resnet20": 269722, "resnet18": 11173962, "cnn": 105914}[name], count
        self.model = self.model.to(memory_format=self.format)
        if ARGS.ranks > 1:
            # Buffers stay each rank's own, as samples/s are best; the order of torch's own buckets.
            self.model = nn.parallel.DistributedDataParallel(
                self.model, broadcast_buffers=False, gradient_as_bucket_view=True)
            if ARGS.compress:
                from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
                self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=ARGS.lr, momentum=0.9,
                                         weight_decay=5e-4, foreach=foreach)
        self.stream, self.loss = stream, None

    def step(self):
        x, y = next(self.stream)
        x = x.contiguous(memory_format=self.format)
        bf16 = ARGS.precision == "bf16"
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            output = self.model(x)
        self.loss = F.cross_entropy(output.float(), y)
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.backward()
        self.optimizer.step()
        return len(y)


def cpu_seconds():
    """Of this process and of the DataLoader's workers that are alive."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            fields = open(f"/proc/{child.pid}/stat").read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def burst(trainer, seconds, steps=0):
    """As many steps as `seconds` allow, or `steps` of them."""
    samples, wall, cpu, done = 0, time.perf_counter(), cpu_seconds(), 0
    while done < steps or (steps == 0 and time.perf_counter() - wall < seconds):
        samples += trainer.step() * ARGS.ranks
        done += 1
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return {"samples": samples, "wall_s": round(wall, 4), "cpu_s": round(cpu, 4),
            "samples_per_s": round(samples / wall, 1), "samples_per_cpu_s": round(samples / cpu, 1),
            "loss": round(float(trainer.loss.detach()), 4)}


def choose(stream):
    """The fastest of the allowed settings, by the least CPU time of a step over alternating trials."""
    formats = {"auto": (True, False), "channels_last": (True,), "contiguous": (False,)}
    foreach = {"auto": (False, True), "on": (True,), "off": (False,)}
    trainers = {setting: Trainer(stream, *setting) for setting in
                itertools.product(formats[ARGS.memory_format], foreach[ARGS.foreach])}
    if len(trainers) == 1:  # named by the caller
        return next(iter(trainers.items()))
    best = {}
    for trial in range(8):
        for setting, trainer in trainers.items():
            begin = time.process_time()
            for _ in range(1 if ARGS.task == "cifar10" else 8):
                trainer.step()
            if trial > 0:  # the first pays for oneDNN's kernels and the allocator
                best[setting] = min(best.get(setting, 1e9), time.process_time() - begin)
    setting = min(best, key=best.get)
    return setting, trainers[setting]


def main():
    torch.set_num_threads(ARGS.threads)
    torch.set_flush_denormal(True)
    if ARGS.core is not None:
        os.sched_setaffinity(0, {ARGS.core})
    if ARGS.ranks > 1:
        dist.init_process_group("gloo", init_method=ARGS.rendezvous, rank=ARGS.rank,
                                world_size=ARGS.ranks)
    libc = ctypes.CDLL(None)
    libc.mallopt(-4, 0)  # M_MMAP_MAX: tensors come from the heap, which keeps its pages
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
    read = read_cifar10 if ARGS.task == "cifar10" else read_fashion
    stream = batches(Pipeline(*read(ARGS.data), ARGS.augment), ARGS.batch, ARGS.workers)
    (channels_last, foreach), trainer = choose(stream)

    def say(record):
        print(json.dumps(record), flush=True)

    say({"torch": torch.__version__, "task": ARGS.task, "precision": ARGS.precision,
         "batch": ARGS.batch, "ranks": ARGS.ranks, "compress": ARGS.compress, "threads": ARGS.threads, "workers": ARGS.workers,
         "augment": ARGS.augment, "channels_last": channels_last, "foreach": foreach})
    if not ARGS.driven:
        for _ in range(ARGS.repetitions):
            say(burst(trainer, ARGS.seconds))
        return
    if ARGS.ranks > 1:
        follow(trainer, say)
        return
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["go"]:
            say(burst(trainer, float(words[1]) if len(words) > 1 else ARGS.seconds))


def follow(trainer, say):
    """Bursts of all ranks: rank 0 says how many steps, 0 of them is the end."""
    steps, rate = torch.zeros(1, dtype=torch.int64), 0.0
    while True:
        if ARGS.rank == 0:
            steps[0] = max(2, int(rate * ARGS.seconds)) if sys.stdin.readline() else 0
        dist.broadcast(steps, 0)
        if not steps[0]:
            return
        record = burst(trainer, 0, int(steps[0]))
        rate = int(steps[0]) / record["wall_s"]
        if ARGS.rank == 0:
            say(record)


if __name__ == "__main__":
    main()
