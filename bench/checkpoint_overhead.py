#!/usr/bin/python3
"""What checkpoints every 10 s cost a training run, end to end.

Pairs of equal runs through `ductile train`, one with checkpoint.every_seconds = 10 and one without,
in alternating order. The cost is the share by which a step takes longer, in wall time and in
core time (which a busy machine disturbs less); both as the median over pairs, with the spread.

  bench/checkpoint_overhead.py --data CIFAR10_FOLDER [--model resnet18] [--rounds 5]
                               [--seconds 60] [--bin build/release/bin]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile


def run(binary, folder, job, saves):
    command = [binary / "ductile", "-q", "train", "--out", folder, "--json"]
    for key, value in job.items():
        command += ["--set", f"{key}={value}"]
    if saves:
        command += ["--set", "checkpoint.every_seconds=10"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)["result"]
    events = [json.loads(line) for line in open(folder / "events.jsonl")]
    written = [e for e in events if e["kind"] == "checkpoint"]
    return {
        "wall": result["cost"]["wall_seconds"],
        "cpu": result["cost"]["core_seconds"],
        "saves": len(written),
        "bytes": max((e["bytes"] for e in written), default=0),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    args = parser.parse_args()
    job = {
        "data.format": "cifar10",
        "data.path": args.data.resolve(),
        "model.name": args.model,
        "optimizer.momentum": 0.9,
        "optimizer.lr": 0.01,
        "train.batch_size": args.batch_size,
        "train.epochs": 1000,
        "train.eval_every_epochs": 0,
        "data.test_limit": 32,
        "checkpoint.every_seconds": 0,
        "checkpoint.at_end": "false",
    }
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        job["train.max_steps"] = 20
        probe = run(args.bin, root / "probe", job, False)
        job["train.max_steps"] = max(20, round(20 * args.seconds / probe["wall"]))
        pairs = []
        for r in range(args.rounds):
            pair = {}
            for saves in [False, True] if r % 2 == 0 else [True, False]:
                folder = root / f"{r}-{saves}"
                pair[saves] = run(args.bin, folder, job, saves)
                subprocess.run(["rm", "-rf", folder], check=True)
            pairs.append(pair)
            print(json.dumps({"without": pair[False], "with": pair[True]}), flush=True)
    for clock in ("wall", "cpu"):
        costs = [100 * (p[True][clock] / p[False][clock] - 1) for p in pairs]
        print(
            f"{clock}: {statistics.median(costs):+.2f} % (pairs {min(costs):+.2f} to "
            f"{max(costs):+.2f} %), {pairs[0][True]['saves']} checkpoints of "
            f"{pairs[0][True]['bytes'] / 1e6:.0f} MB a run of {job['train.max_steps']} steps"
        )


if __name__ == "__main__":
    main()
