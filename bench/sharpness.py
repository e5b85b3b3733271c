#!/usr/bin/python3
"""How sharp the minima are that small batches, large batches and the knee schedule find.

Usage: bench/sharpness.py --data FASHION_MNIST_FOLDER [--seeds 3] [--epochs 15] [--train-limit 20000]
                          [--recipes small,small-knee,large,large-knee] [--model cnn] [--set KEY=VALUE ...]
                          [--samples 2000] [--build build/release]

Each recipe trains the model without augmentation with SGD of momentum 0.9 for the same number of epochs. Then
`ductile minima` measures the end of each run. Prints a JSON line per run and a Markdown table of means with the least
and the most.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

RECIPES = {
    "small": ["train.batch_size=64", "optimizer.lr=0.02", "schedule.name=cosine"],
    "small-knee": ["train.batch_size=64", "optimizer.lr=0.02", "schedule.name=knee"],
    "large": ["train.batch_size=2048", "optimizer.lr=0.1", "schedule.name=cosine"],
    "large-knee": ["train.batch_size=2048", "optimizer.lr=0.1", "schedule.name=knee"],
}


def ductile(args, *words):
    env = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    return subprocess.run([str(args.build / "bin" / "ductile"), "-q", *words], check=True, text=True,
                          stdout=subprocess.PIPE, env=env).stdout


def measure(args, recipe, seed):
    sets = ["data.format=idx", f"data.path={args.data}", f"data.train_limit={args.train_limit}",
            f"model.name={args.model}", "optimizer.momentum=0.9", "optimizer.weight_decay=0",
            f"train.epochs={args.epochs}", "train.threads=1", "train.virtual_ranks=1", "loader.threads=1",
            "checkpoint.every_seconds=0", "checkpoint.at_end=false", f"seed={seed}", *RECIPES[recipe], *args.set]
    with tempfile.TemporaryDirectory() as folder:
        run = str(pathlib.Path(folder) / "run")
        words = [word for s in sets for word in ("--set", s)]
        ended = json.loads(ductile(args, "train", "--json", "--out", run, *words))["result"]
        found = json.loads(ductile(args, "minima", run, "--json", "--samples", str(args.samples), "--slices", "none"))
    out = {"recipe": recipe, "seed": seed, "updates": ended["updates"], "accuracy": ended["final"]["accuracy"],
           "test_loss": ended["final"]["loss"], "loss": found["loss"], "gradient_norm": found["gradient_norm"],
           "weight_norm": found["weight_norm"], "eigenvalue": found["hessian"]["largest"],
           "residual": found["hessian"]["residual"], "converged": found["hessian"]["converged"],
           "check": found["hessian"]["check"], "cpu_seconds": found["cost"]["core_seconds"]}
    for one in found["sharpness"]:
        out[f"sharpness {one['epsilon']:g}"] = one["value"]
        out[f"halfway {one['epsilon']:g}"] = one["halfway"]
    print(json.dumps(out), flush=True)
    return out


def spread(runs, key, scale=1.0):
    values = [scale * float(r[key]) for r in runs]
    return f"{statistics.mean(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--train-limit", type=int, default=20000)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--recipes", default=",".join(RECIPES))
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="a further setting of every recipe")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    args = parser.parse_args()
    args.data = str(pathlib.Path(args.data).resolve())
    print_table([(recipe, [measure(args, recipe, seed + 1) for seed in range(args.seeds)])
                 for recipe in args.recipes.split(",")])


def print_table(groups):
    keys = [("updates", "updates", 1), ("test accuracy in %", "accuracy", 100), ("training loss", "loss", 1),
            ("gradient's norm", "gradient_norm", 1), ("sharpness 1e-3 in %", "sharpness 0.001", 1),
            ("sharpness 5e-4 in %", "sharpness 0.0005", 1), ("largest eigenvalue", "eigenvalue", 1),
            ("CPU s to measure", "cpu_seconds", 1)]
    print("| recipe | " + " | ".join(head for head, _, _ in keys) + " |")
    print("|---" * (len(keys) + 1) + "|")
    for recipe, runs in groups:
        print(f"| `{recipe}` | " + " | ".join(spread(runs, key, scale) for _, key, scale in keys) + " |")


if __name__ == "__main__":
    main()
