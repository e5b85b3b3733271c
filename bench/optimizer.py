#!/usr/bin/python3
"""Optimiser steps on ResNet-50's 25.6 M parameters: Ductile, the memory-bandwidth bound, and torch.

  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 bench/optimizer.py [--program build/release/...]

Bursts of a few steps alternate between the sides, so that load from elsewhere hits all alike. For
each rule: median seconds a step of each side, and the median over the rounds of the ratio to the
bound (quartiles in brackets). Torch runs its per-tensor and its foreach variant; its fused variants
are refused on CPU by torch 1.13.
"""

import argparse
import os
import statistics
import subprocess
import time

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch  # noqa: E402  (after the OpenMP policy)


def resnet50_sizes():
    sizes = [64 * 3 * 49, 64, 64]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [channels * width, width, width, width * width * 9, width, width]
            sizes += [width * width * 4, width * 4, width * 4]
            if block == 0:
                sizes += [channels * width * 4, width * 4, width * 4]
            channels = width * 4
    return sizes + [2048 * 1000, 1000]


class Ours:
    def __init__(self, program, threads, sizes):
        self.process = subprocess.Popen(
            [program, str(threads), ",".join(map(str, sizes))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def burst(self, rule, side, steps):
        self.process.stdin.write(f"{rule} {side} {steps}\n")
        self.process.stdin.flush()
        return tuple(float(x) / steps for x in self.process.stdout.readline().split())


class Torch:
    def __init__(self, rule, sizes, foreach):
        generator = torch.Generator().manual_seed(1)
        self.params = []
        for size in sizes:
            p = torch.nn.Parameter(0.1 * (torch.rand(size, generator=generator) - 0.5))
            p.grad = 0.01 * (torch.rand(size, generator=generator) - 0.5)
            self.params.append(p)
        groups = [
            {"params": [p for p in self.params if p.numel() > 2048]},
            {"params": [p for p in self.params if p.numel() <= 2048], "weight_decay": 0.0},
        ]
        if rule in ("sgd", "nesterov"):
            self.optimizer = torch.optim.SGD(
                groups, lr=1e-4, momentum=0.9, weight_decay=5e-4, nesterov=rule == "nesterov",
                foreach=foreach,
            )
        else:
            kind = torch.optim.Adam if rule == "adam" else torch.optim.AdamW
            self.optimizer = kind(groups, lr=1e-4, weight_decay=5e-4, foreach=foreach)

    def burst(self, steps):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.optimizer.step()
        return (time.perf_counter() - wall) / steps, (time.process_time() - cpu) / steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/release/bench/optimizer_bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="steps a burst")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument(
        "--rules",
        default="sgd,nesterov,adam,adamw,lars,lamb,sgd+bf16,sgd+bf16+ema,adamw+bf16+ema",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = resnet50_sizes()
    clock = 0 if args.clock == "wall" else 1
    ours = Ours(args.program, args.threads, sizes)
    print(f"{sum(sizes)} parameters in {len(sizes)} tensors, {args.threads} threads, "
          f"{args.rounds} rounds of {args.steps} steps, {args.clock} milliseconds a step")
    print("| rule | bound | ours | ours / bound | torch | torch / ours | torch foreach "
          "| foreach / ours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for rule in args.rules.split(","):
        rivals = {}
        if rule in ("sgd", "nesterov", "adam", "adamw"):
            rivals = {"torch": Torch(rule, sizes, False), "foreach": Torch(rule, sizes, True)}
        times = {side: [] for side in ("bound", "ours", *rivals)}
        for round_ in range(args.rounds + 1):
            for side in times:
                burst = (rivals[side].burst(args.steps) if side in rivals
                         else ours.burst(rule, side, args.steps))
                if round_ > 0:  # the first warms caches, pages and torch's state
                    times[side].append(burst[clock])

        def ms(side):
            return f"{1e3 * statistics.median(times[side]):.1f}" if side in times else ""

        def ratio(side, to):
            if side not in times:
                return ""
            low, middle, high = statistics.quantiles(
                [a / b for a, b in zip(times[side], times[to])], n=4)
            return f"{middle:.2f} [{low:.2f}, {high:.2f}]"

        print(f"| {rule} | {ms('bound')} | {ms('ours')} | {ratio('ours', 'bound')} | {ms('torch')} "
              f"| {ratio('torch', 'ours')} | {ms('foreach')} | {ratio('foreach', 'ours')} |",
              flush=True)


if __name__ == "__main__":
    main()
