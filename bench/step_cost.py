#!/usr/bin/python3
"""What a training step costs beside its kernels: CPU time per sample, and who spends it.

Usage: bench/step_cost.py [--models mlp,cnn,resnet8,gpt] [--threads 1,2] [--workers 1,2]
                          [--rounds 3] [--batch 128] [--build build/release] [--old OTHER_BUILD]

Each burst is a whole job; a job of a quarter of its steps is run beside it and the difference of the
two counts, so that starting processes and loading data do not. CPU time is that of all processes of
the job. With --old the two builds take turns, and the ratio of each round is printed too.

Where `perf` may be used, a further job of each kind is sampled. Kernels are the functions that do a
model's arithmetic: ours, libtorch's operators, BLAS and oneDNN. What is left is what a step costs
beside them: threads that wait or are made, memory, the exchange, the loader, the system. Shares of
samples do not depend on how busy the machine is otherwise. Prints a JSON line for each combination,
then a table; the highest symbols outside the kernels are named with --symbols N.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import shutil
import statistics
import subprocess
import tempfile

# By symbol, where it is known; a library that holds nothing but kernels goes by its name.
KERNELS = re.compile(
    r"ductile::(nn::kernels|optim::kernels|data::|comm::(avx|.*reduce))|at::(native|vec|_ops)|dnnl|"
    r"gemm|gemv|cblas|omp_fn|vectorized_|cascade|xnn_|mkldnn|_kernel|sleef|exp|tanh|log_softmax")
KERNEL_LIBRARIES = ("openblas", "libblas", "libdnnl", "sleef", "libm.so")
WAITING = ("libgomp", "libpthreadpool")


def job_words(args, build, model, threads, workers, steps, run):
    sets = [f"train.max_steps={steps}", f"train.batch_size={args.batch}", "train.virtual_ranks=4",
            "train.epochs=1000000", "train.eval_every_epochs=0", "data.test_limit=16",
            "optimizer.lr=0.001", "checkpoint.every_seconds=0", "checkpoint.at_end=false",
            f"train.threads={threads}", "loader.threads=1", f"model.name={model}"]
    if model == "gpt":
        sets += ["data.format=tokens", f"data.path={args.tokens}", f"data.test_path={args.tokens}",
                 "data.tokens.sequence_length=64", "model.layers=2", "model.heads=4", "model.dim=64",
                 "model.vocab_size=64"]
    words = [str(build / "bin" / "ductile"), "-q", "train", "--out", str(run)]
    if workers > 1:
        words += ["--workers", str(workers)]
    for s in sets:
        words += ["--set", s]
    return words


def burst(args, *kind):
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(job_words(args, *kind, pathlib.Path(folder) / "run"), check=True,
                       stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def micros_per_sample(args, build, model, threads, workers):
    steps = args.steps
    kind = (build, model, threads, workers)
    more = burst(args, *kind, steps) - burst(args, *kind, steps // 4)
    return 1e6 * more / ((steps - steps // 4) * args.batch)


def sampled(args, build, model, threads, workers):
    """Shares of samples in percent, and the highest symbols that are no kernels."""
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder) / "perf.data"
        subprocess.run(["perf", "record", "-q", "-F", "499", "-o", str(data), "--",
                        *job_words(args, build, model, threads, workers, args.steps,
                                   pathlib.Path(folder) / "run")],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        text = subprocess.run(["perf", "report", "-i", str(data), "--stdio", "-q", "--comm",
                               "ductile-worker", "--sort", "dso,symbol", "-F", "overhead,dso,symbol"],
                              check=True, capture_output=True, text=True).stdout
    shares = {"kernels": 0.0, "waiting": 0.0, "system": 0.0, "other": 0.0}
    outside = []
    for line in text.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(\S+)\s+\[(.)\]\s+(.*)", line)
        if not found:
            continue
        share, library, space, symbol = float(found[1]), found[2], found[3], found[4].strip()
        if space == "k":
            kind = "system"
        elif library.startswith(WAITING):
            kind = "waiting"
        elif any(name in library for name in KERNEL_LIBRARIES) or KERNELS.search(symbol):
            kind = "kernels"
        else:
            kind = "other"
        shares[kind] += share
        if kind != "kernels":
            outside.append((share, f"{share:.1f} {library} {symbol[:70]}"))
    total = sum(shares.values()) or 1
    return {k: round(100 * v / total, 1) for k, v in shares.items()}, [
        text for _, text in sorted(outside, reverse=True)[:args.symbols]]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp,cnn,resnet8,gpt")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--symbols", type=int, default=0)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--old", type=pathlib.Path)
    args = parser.parse_args()
    builds = {"new": args.build} | ({"old": args.old} if args.old else {})
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        args.tokens = pathlib.Path(folder) / "tokens.bin"
        args.tokens.write_bytes(b"".join(bytes([(i * 5 + i // 7) % 64, 0]) for i in range(200000)))
        for model in args.models.split(","):
            for threads in map(int, args.threads.split(",")):
                for workers in map(int, args.workers.split(",")):
                    kind = (model, threads, workers)
                    times = {name: [] for name in builds}
                    for _ in range(args.rounds):
                        for name, build in builds.items():
                            times[name].append(micros_per_sample(args, build, *kind))
                    row = {"model": model, "threads": threads, "workers": workers}
                    for name, build in builds.items():
                        t = times[name]
                        row[name] = {"us": round(statistics.median(t), 1),
                                     "least": round(min(t), 1), "most": round(max(t), 1)}
                        if shutil.which("perf"):
                            row[name]["shares"], symbols = sampled(args, build, *kind)
                            if args.symbols:
                                row[name]["outside"] = symbols
                    if args.old:
                        row["ratio"] = round(statistics.median(
                            n / o for n, o in zip(times["new"], times["old"])), 3)
                    print(json.dumps(row), flush=True)
                    rows.append(row)
    head = "| model | threads | workers |" + "".join(
        f" {n}: us of CPU a sample | kernels | waiting | system | other |" for n in builds)
    print("\n" + head + (" new / old |" if args.old else ""))
    print("|" + "---|" * (3 + 5 * len(builds) + bool(args.old)))
    for row in rows:
        line = f"| {row['model']} | {row['threads']} | {row['workers']} |"
        for name in builds:
            r = row[name]
            line += f" {r['us']} ({r['least']} to {r['most']}) |"
            line += "".join(f" {r['shares'][k]} % |" if "shares" in r else " |"
                            for k in ("kernels", "waiting", "system", "other"))
        print(line + (f" {row['ratio']} |" if args.old else ""))


if __name__ == "__main__":
    main()
