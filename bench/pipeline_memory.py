#!/usr/bin/python3
"""The memory of pipeline stages as it is, beside what their plan counts.

Models are profiled, cut into stages that have equal numbers of operators, and run for a few steps by several orders of tasks. A run records
the most bytes that libtorch's allocator has given out for each stage at one time, beside weights, their gradients and the optimiser's
state; `ductile plan --plan` counts the same for the same plan. Bytes depend on neither the clock nor the load of the machine.

  bench/pipeline_memory.py [--models mlp cnn resnet8] [--stages 2 3 4] [--micro-batches 4 8] [--bin build/release/bin] [--output FILE.md]
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

MICRO_BATCH = 8


class Bench:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        # Links as between processes of one machine: while a gradient is under way, its sender holds it.
        (folder / "machine.toml").write_text('[[nodes]]\ntype = "cpu"\ndevices = 8\nmemory = "64 GB"\n'
                                             'intra_bandwidth = "4 GB/s"\nintra_latency = "50 us"\n')

    def ductile(self, *words, sets=()):
        command = [self.binary / "ductile", "-q", *words, *(word for key in sets for word in ("--set", key))]
        return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE).stdout

    def profile(self, model, sets):
        file = self.folder / f"{model}.json"
        self.ductile("profile", "-o", file, "--shares", "1,2,4,8", "--rounds", 1, sets=sets)
        return file

    def measure(self, model, graph, stages, micro_batches, orders, sets):
        """[(bytes of the plan, bytes of the run)] by stage."""
        batch = MICRO_BATCH * micro_batches
        names = [op["name"] for op in json.loads(graph.read_text())["ops"]]
        parts = [names[len(names) * s // stages:len(names) * (s + 1) // stages] for s in range(stages)]
        plan = {"format": "ductile.plan", "version": 1, "batch": batch, "schedule": "zero_bubble" if "W" in orders[0] else "kfkb",
                "stages": [{"ops": ops, "micro_batch": MICRO_BATCH, "order": order, "devices": [s],
                            "in_flight": MICRO_BATCH * in_flight(order)} for s, (ops, order) in enumerate(zip(parts, orders))]}
        given, judged, run = (self.folder / name for name in ("given.json", "judged.json", "run"))
        given.write_text(json.dumps(plan))
        judged.write_bytes(self.ductile("plan", graph, "--devices", self.folder / "machine.toml", "--batch", batch, "--plan", given, "--json"))
        for _ in range(5):
            self.ductile("train", "--out", run, "--workers", stages, "--plan", judged, sets=[
                *sets, f"train.batch_size={batch}", f"data.train_limit={6 * batch}", "data.test_limit=8", "train.epochs=1",
                "train.pipelined.trace_steps=2"])
            step = json.loads((run / "trace.jsonl").read_text().splitlines()[-1])
            subprocess.run(["rm", "-r", run], check=True)
            # A worker may have come late: stages that took turns copied nothing.
            if len({i["worker"] for i in step["intervals"]}) == stages:
                break
        else:
            raise SystemExit(f"{model}: {stages} workers did not come together before the recorded steps, five times")
        evaluation = json.loads(judged.read_text())["evaluation"]["stages"]
        memory = {m["stage"]: m["bytes"] for m in step["memory"]}
        return [(e["peak_memory"] - e["state_memory"], memory[s]) for s, e in enumerate(evaluation)]


def expanded(order):
    """F2B -> FFB"""
    out, i = "", 0
    while i < len(order):
        end = i + 1
        while end < len(order) and order[end].isdigit():
            end += 1
        out += order[i] * int(order[i + 1:end] or 1)
        i = end
    return out


def in_flight(order):
    """Most micro-batches of which something is held."""
    last, held, most = "W" if "W" in order else "B", 0, 0
    for task in expanded(order):
        held += (task == "F") - (task == last)
        most = max(most, held)
    return most


def orders_of(kind, stages, m):
    if kind == "GPipe":
        return [f"F{m}B{m}"] * stages
    if kind == "GPipe, split":
        return [f"F{m}B{m}W{m}"] * stages
    out = []
    for s in range(stages):
        ahead = min(stages - s, m)
        out.append("F" * ahead + "BF" * (m - ahead) + "B" * ahead)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn", "resnet8"])
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.bin.resolve(), pathlib.Path(folder))
        for model in arguments.models:
            sets = [f"model.name={model}", "train.threads=1", "optimizer.name=adamw", "model.hidden=[256, 256, 256]"]
            graph = bench.profile(model, sets)
            for stages in arguments.stages:
                for m in arguments.micro_batches:
                    for kind in ("1F1B", "GPipe", "GPipe, split"):
                        found = bench.measure(model, graph, stages, m, orders_of(kind, stages, m), sets)
                        ratios += [plan / real for plan, real in found]
                        cells = ", ".join(f"{real / 1024:.0f} ({plan / real:.2f})" for plan, real in found)
                        rows.append(f"| {model} | {stages} | {m} | {kind} | {cells} |")
    within = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
    text = (f"# The memory of stages beside their plans\n\n`bench/pipeline_memory.py {' '.join(sys.argv[1:])}`: micro-batches of {MICRO_BATCH} "
            f"samples, adamw, one stage on each worker. What operators take depends on neither the machine's speed nor its load; how many gradients wait does.\n\n"
            "| model | stages | micro-batches | orders | KiB of each stage (the plan's figure, times that) |\n|---|---|---|---|---|\n"
            + "\n".join(rows) + f"\n\n{len(ratios)} stages: the plan counts {min(ratios):.2f} to {max(ratios):.2f} times what is taken, median "
            f"{statistics.median(ratios):.2f}; {within} are within 5 %, and {sum(ratio < 0.95 for ratio in ratios)} take over 5 % more "
            "than the plan says.\n")
    if arguments.output:
        arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
