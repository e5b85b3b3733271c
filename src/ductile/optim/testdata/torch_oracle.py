"""What PyTorch's optimisers and schedulers compute, as JSON for the tests of this module.

  torch_oracle.py optimizers [--seed 1] [--scale 1]   weights after steps 1, 10 and 100
  torch_oracle.py schedules                           the learning rate of every step

The committed files optimizers.json and schedules.json are these two with default arguments; the
tests also run the first live, with other seeds and sizes, where this interpreter has torch.
Weights and gradients come from an integer hash, which the tests repeat exactly.
"""

import argparse
import json
import math

import torch
from torch.optim import lr_scheduler

STEPS = (1, 10, 100)

CASES = [
    {"name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "lr": 0.1},
    {"name": "sgd", "momentum": 0.0, "nesterov": False, "weight_decay": 5e-3, "lr": 0.1},
    {"name": "sgd", "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "lr": 0.1},
    {"name": "sgd", "momentum": 0.9, "nesterov": False, "weight_decay": 5e-3, "lr": 0.1},
    {"name": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 5e-3, "lr": 0.1},
    {"name": "adam", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "lr": 0.01},
    {"name": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 1e-2, "lr": 0.01},
    {"name": "adamw", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "lr": 0.01},
    {"name": "adamw", "beta1": 0.9, "beta2": 0.98, "eps": 1e-8, "weight_decay": 0.1, "lr": 0.01},
    {"name": "nadamw", "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "lr": 0.01,
     "momentum_decay": 0.004},
    {"name": "nadamw", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.0, "lr": 0.01,
     "momentum_decay": 0.1},
]


def tensors(scale):
    """name, size, whether weight decay applies (the rules bias and norm)."""
    return [
        ("conv.weight", 45 * scale, True),
        ("conv.bias", 5, False),
        ("norm.weight", 11, False),
        ("norm.bias", 11, False),
        ("fc.weight", 33 * scale, True),
        ("fc.bias", 3, False),
    ]


def hashed(n, offset, step, seed, amplitude):
    i = torch.arange(offset, offset + n, dtype=torch.int64)
    h = (i * 2654435761 + step * 40503 + seed * 69069 + 12345) % 2**32
    h = h ^ (h >> 15)
    h = (h * 40503 * 65521) % 2**32
    h = h ^ (h >> 13)
    return (((h >> 8).to(torch.float32) - 2**23) / 2**23) * amplitude


def rate(case, step):
    return case["lr"] * (1 - step / 200)


def make(case, groups):
    decayed, plain = groups
    groups = [
        {"params": decayed, "weight_decay": case["weight_decay"]},
        {"params": plain, "weight_decay": 0.0},
    ]
    if case["name"] == "sgd":
        return torch.optim.SGD(
            groups, lr=case["lr"], momentum=case["momentum"], nesterov=case["nesterov"]
        )
    # torch 1.13 has NAdam with L2 only, so the cases are without decay. Its form for single tensors
    # multiplies one mu into the product twice; the other one, and later versions, do not.
    if case["name"] == "nadamw":
        return torch.optim.NAdam(
            groups, lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"],
            momentum_decay=case["momentum_decay"], foreach=True,
        )
    kind = torch.optim.Adam if case["name"] == "adam" else torch.optim.AdamW
    return kind(groups, lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"])


def run(case, seed, scale):
    params, offset = [], 0
    for _, size, _ in tensors(scale):
        params.append(torch.nn.Parameter(hashed(size, offset, 0, seed, 0.25)))
        offset += size
    decays = [decay for _, _, decay in tensors(scale)]
    optimizer = make(
        case,
        ([p for p, d in zip(params, decays) if d], [p for p, d in zip(params, decays) if not d]),
    )
    snapshots = {}
    for step in range(1, max(STEPS) + 1):
        offset = 0
        for p in params:
            p.grad = hashed(p.numel(), offset, step, seed, 0.125)
            offset += p.numel()
        for group in optimizer.param_groups:
            group["lr"] = rate(case, step)
        optimizer.step()
        if step in STEPS:
            flat = torch.cat([p.detach() for p in params])
            snapshots[str(step)] = [float(f"{x:.9g}") for x in flat.tolist()]
    return {**case, "weights": snapshots}


def optimizers(seed, scale):
    torch.set_num_threads(1)
    return {
        "torch": torch.__version__,
        "seed": seed,
        "tensors": [list(t) for t in tensors(scale)],
        "cases": [run(case, seed, scale) for case in CASES],
    }


def rates(steps, peak, build):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = build(optimizer)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


def warmed(build, warmup, start):
    """LinearLR for `warmup` steps, then the other from its own step 0."""

    def both(optimizer):
        rise = lr_scheduler.LinearLR(optimizer, start_factor=start, total_iters=warmup)
        return lr_scheduler.SequentialLR(optimizer, [rise, build(optimizer)], milestones=[warmup])

    return both


def schedules():
    cases = []

    def add(options, build, steps=60, per_epoch=5, peak=0.4):
        cases.append(
            {
                "options": options,
                "peak": peak,
                "total_steps": steps,
                "steps_per_epoch": per_epoch,
                "rates": rates(steps, peak, build),
            }
        )

    def cosine(steps, floor):
        return lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=steps, eta_min=floor)

    def linear(steps, share):
        return lambda o: lr_scheduler.LinearLR(
            o, start_factor=1.0, end_factor=share, total_iters=steps
        )

    def one_cycle(steps, peak_at, start, final, peak):
        return lambda o: lr_scheduler.OneCycleLR(
            o, max_lr=peak, total_steps=steps, pct_start=peak_at,
            div_factor=1 / start, final_div_factor=start / final, cycle_momentum=False,
        )

    warm = {"warmup_epochs": 2.0, "warmup_start": 0.1}  # 10 steps
    add({"name": "constant"}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0))
    add({"name": "step", "milestones": [4, 9], "gamma": 0.1},
        lambda o: lr_scheduler.MultiStepLR(o, milestones=[20, 45], gamma=0.1))
    add({"name": "cosine"}, cosine(60, 0.0))
    add({"name": "cosine", "final_fraction": 0.05}, cosine(60, 0.02))
    add({"name": "cosine", **warm}, warmed(cosine(50, 0.0), 10, 0.1))
    add({"name": "linear", "final_fraction": 0.25}, linear(60, 0.25))
    add({"name": "linear", "final_fraction": 0.0, **warm}, warmed(linear(50, 0.0), 10, 0.1))
    add({"name": "polynomial", "power": 2.0},
        lambda o: lr_scheduler.PolynomialLR(o, total_iters=60, power=2.0))
    add({"name": "polynomial", "power": 0.5, **warm},
        warmed(lambda o: lr_scheduler.PolynomialLR(o, total_iters=50, power=0.5), 10, 0.1))
    for peak_at in (0.3, 0.5):
        add({"name": "one_cycle", "peak_at": peak_at, "warmup_start": 0.04, "final_fraction": 4e-6},
            one_cycle(60, peak_at, 0.04, 4e-6, 0.4))
    assert all(math.isfinite(x) for case in cases for x in case["rates"])
    return {"torch": torch.__version__, "cases": cases}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["optimizers", "schedules"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=int, default=1, help="size of the larger tensors")
    args = parser.parse_args()
    result = optimizers(args.seed, args.scale) if args.what == "optimizers" else schedules()
    print(json.dumps(result, separators=(",", ":")))


if __name__ == "__main__":
    main()
