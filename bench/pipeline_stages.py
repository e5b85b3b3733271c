#!/usr/bin/python3
"""Two real stages on two cores: beside their prediction, beside two independent processes, and with and without zero-bubble.

In each round, one after the other, so that a machine which changes its speed changes it for all of them:
  1. a profile; alone, and two of them at once, a core each, since the cores will be as busy in the run
  2. a plan of two stages from the latter, with 1F1B and with the zero-bubble order that the judge likes best for the same cut
  3. a run of each; of some steps the tasks are recorded, of others only the ends
  4. two independent jobs at once, a core each, of one process each: with the plan's micro-batches, as a pipeline of one stage and as virtual
     ranks of the plain method, and with whole batches
A pipeline with m micro-batches cannot exceed m / (m + 1) of what 4 does. Only a quiet machine with two cores gives figures that mean anything.

  bench/pipeline_stages.py [--models mlp gpt resnet20] [--rounds 3] [--micro-batches 8] [--bin build/release/bin] [--output FILE.md]
"""
import argparse
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import elastic_recovery as base  # noqa: E402

RECORDED, TIMED, FIRST = 12, 16, 3  # steps that are recorded, steps that are not, steps before either
MODELS = {  # samples of a micro-batch, options
    "mlp": (64, ["model.hidden=[1024, 1024, 1024, 1024, 1024, 1024, 1024]"]),
    "gpt": (2, ["model.layers=6", "model.dim=256", "model.heads=4", "model.vocab_size=256", "data.format=tokens",
                "data.tokens.sequence_length=64"]),
    "resnet20": (8, []),
    "cnn": (64, []),
}


def orders_1f1b(m):
    return ["F" * min(2, m) + "BF" * max(0, m - 2) + "B" * min(2, m), "FB" * m]


def zero_bubble(m, ahead, lag):
    """A stage's order: `ahead` forward tasks, then one backward and one forward in turn, each W `lag` backward tasks after its own."""
    order, forward, weights = "F" * ahead, ahead, 0
    for done in range(m):
        order += "B"
        if done >= lag:
            order, weights = order + "W", weights + 1
        if forward < m:
            order, forward = order + "F", forward + 1
    return order + "W" * (m - weights)


def step_times(run, skipped):
    """When each step was committed, but for the first ones."""
    return [m["time"] for m in base.lines(run / "metrics.jsonl") if "train/loss" in m][skipped:]


def seconds_per_step(times):
    return (times[-1] - times[0]) / (len(times) - 1)


class Bench:
    def __init__(self, arguments, folder, model):
        self.binary, self.folder, self.model = arguments.bin.resolve(), folder, model
        self.m = arguments.micro_batches
        self.micro_batch, sets = MODELS[model]
        self.batch = self.m * self.micro_batch
        self.devices = folder / "machine.toml"
        self.devices.write_text('[[nodes]]\ntype = "cpu"\ndevices = 2\nmemory = "16 GB"\nintra_bandwidth = "4 GB/s"\nintra_latency = "50 us"\n')
        self.sets = [f"model.name={model}", f"train.batch_size={self.batch}", "train.threads=1", "loader.threads=1", *sets]
        if model == "gpt":
            tokens = folder / "tokens.bin"
            numbers = random.Random(1)
            tokens.write_bytes(b"".join(struct.pack("<H", numbers.randrange(256)) for _ in range(64 * 1100)))
            self.sets += [f"data.path={tokens}", f"data.test_path={tokens}"]
        self.count = itertools.count()

    def command(self, *words, sets=(), core=None):
        pinned = [] if core is None else ["taskset", "-c", str(core)]
        return [*pinned, *(str(w) for w in (self.binary / "ductile", "-q", *words)), *(w for key in sets for w in ("--set", key))]

    def ductile(self, *words, sets=()):
        return subprocess.run(self.command(*words, sets=sets), check=True, stdout=subprocess.PIPE).stdout

    def at_once(self, commands):
        processes = [subprocess.Popen(c, stdout=subprocess.DEVNULL) for c in commands]
        if any([p.wait() for p in processes]):
            sys.exit("a command failed")

    def profiles(self):
        """Measured alone, and with as much at work on the other core."""
        files = [self.folder / f"{name}.json" for name in ("alone", "beside", "other")]
        words = [self.command("profile", "-o", f, "--shares", f"{self.micro_batch // 2},{self.micro_batch}", sets=self.sets, core=int(i == 2))
                 for i, f in enumerate(files)]
        self.at_once(words[:1])
        self.at_once(words[1:])
        return files[:2]

    def judge(self, graph, stages, orders):
        """(seconds of an iteration, samples held, file) of a plan of these operators and orders."""
        given, judged = self.folder / "given.json", self.folder / f"plan{next(self.count)}.json"
        held = [max(itertools.accumulate({"F": 1, "B": 0 if "W" in o else -1, "W": -1}[task] for task in o)) for o in orders]
        given.write_text(json.dumps({
            "format": "ductile.plan", "version": 1, "batch": self.batch, "schedule": "zero_bubble" if "W" in orders[0] else "kfkb",
            "stages": [{"ops": ops, "micro_batch": self.micro_batch, "order": order, "devices": [s], "in_flight": self.micro_batch * n}
                       for s, (ops, order, n) in enumerate(zip(stages, orders, held))]}))
        judged.write_bytes(self.ductile("plan", graph, "--devices", self.devices, "--batch", self.batch, "--plan", given, "--json"))
        return json.loads(judged.read_text())["evaluation"]["seconds"], self.micro_batch * sum(held), judged

    def plans(self, graph):
        """The operators of the two stages, the plan with 1F1B and the best zero-bubble one."""
        found = json.loads(self.ductile("plan", graph, "--devices", self.devices, "--batch", self.batch, "--micro-batch", self.micro_batch,
                                        "--runnable", "--replicas", 1, "--json"))
        stages = [s["ops"] for s in found["plan"]["stages"]]
        if len(stages) != 2:
            sys.exit(f"{self.model}: the plan has {len(stages)} stages")
        candidates = {(zero_bubble(self.m, a, x), zero_bubble(self.m, b, y))
                      for a, b in itertools.product((2, 3, 4), (1, 2)) if a <= self.m
                      for x, y in itertools.product((0, 1, 2, self.m), repeat=2)}
        judged = [self.judge(graph, stages, list(c)) for c in sorted(candidates)]
        least = min(seconds for seconds, _, _ in judged)
        best = min((j for j in judged if j[0] <= 1.001 * least), key=lambda j: j[1])  # of equals, the one that holds least
        return stages, self.judge(graph, stages, orders_1f1b(self.m)), best

    def job(self):
        return [*self.sets, f"data.train_limit={8 * self.batch}", "data.test_limit=8", "train.epochs=100000", "train.log_every=1",
                f"train.max_steps={FIRST + RECORDED + TIMED + 2}", "train.eval_every_epochs=0", "checkpoint.every_seconds=0"]

    def run(self, plan):
        """(seconds of the recorded tasks of a step, seconds of a step), medians and means."""
        run = self.folder / "run"
        self.ductile("train", "--out", run, "--workers", 2, "--plan", plan,
                     sets=[*self.job(), f"train.pipelined.trace_steps={RECORDED}", "train.shard_optimizer=true", "train.shard_copies=1"])
        lengths = [max(i["end"] for i in step["intervals"]) for step in base.lines(run / "trace.jsonl")]
        out = statistics.median(lengths), seconds_per_step(step_times(run, FIRST + RECORDED + 1))
        shutil.rmtree(run)
        return out

    def independent(self, *sets):
        """Seconds in which two jobs together do one step, while both are at work."""
        runs = [self.folder / f"run{core}" for core in (0, 1)]
        self.at_once([self.command("train", "--out", run, "--workers", 1, sets=[*self.job(), *sets], core=core)
                      for core, run in enumerate(runs)])
        times = [step_times(run, FIRST) for run in runs]
        begin, end = max(t[0] for t in times), min(t[-1] for t in times)
        both = [[t for t in own if begin <= t <= end] for own in times]
        if min(map(len, both)) < 5:
            sys.exit("the two processes hardly ran at the same time")
        for run in runs:
            shutil.rmtree(run)
        return 1 / sum(1 / seconds_per_step(t) for t in both)


def measure(bench, rounds):
    names = ("predicted, alone", "predicted, both cores busy", "tasks", "step", "predicted, zero-bubble", "tasks, zero-bubble",
             "step, zero-bubble", "two processes, one stage", "two processes, virtual ranks", "two processes, whole batches")
    rows = []
    for _ in range(rounds):
        alone, beside = bench.profiles()
        stages, (predicted, _, plan), (predicted_zero, _, plan_zero) = bench.plans(beside)
        predicted_alone, _, _ = bench.judge(alone, stages, orders_1f1b(bench.m))
        rows.append(dict(zip(names, (predicted_alone, predicted, *bench.run(plan), predicted_zero, *bench.run(plan_zero),
                                     bench.independent("train.method=pipelined", f"train.pipelined.micro_batches={bench.m}"),
                                     bench.independent(f"train.virtual_ranks={bench.m}"), bench.independent()))))
        print(bench.model, {k: f"{1e3 * v:.1f}" for k, v in rows[-1].items()}, "ms, load", f"{os.getloadavg()[0]:.1f}",
              file=sys.stderr, flush=True)
    return rows


def report(model, m, rows):
    median = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    ratio = {k: statistics.median(f(r) for r in rows) for k, f in {
        "error": lambda r: r["tasks"] / r["predicted, both cores busy"] - 1,
        "error of the step": lambda r: r["step"] / r["predicted, both cores busy"] - 1,
        "error, alone": lambda r: r["tasks"] / r["predicted, alone"] - 1,
        "error, zero-bubble": lambda r: r["tasks, zero-bubble"] / r["predicted, zero-bubble"] - 1,
        "share": lambda r: r["two processes, one stage"] / r["step"] / (m / (m + 1)),
        "share of virtual ranks": lambda r: r["two processes, virtual ranks"] / r["step"] / (m / (m + 1)),
        "share of whole batches": lambda r: r["two processes, whole batches"] / r["step"] / (m / (m + 1)),
        "zero-bubble share": lambda r: r["two processes, one stage"] / r["step, zero-bubble"] / (m / (m + 1)),
        "gain": lambda r: r["step"] / r["step, zero-bubble"],
        "predicted gain": lambda r: r["predicted, both cores busy"] / r["predicted, zero-bubble"]}.items()}
    text = f"## {model}\n\n| | ms (median of {len(rows)}) | each round |\n|---|---|---|\n"
    for k in rows[0]:
        text += f"| {k} | {1e3 * median[k]:.2f} | {', '.join(f'{1e3 * r[k]:.1f}' for r in rows)} |\n"
    return text + (
        f"\n- Prediction (10 % asked): the recorded tasks take {ratio['error']:+.1%} of what was predicted with both cores busy, "
        f"{ratio['error, alone']:+.1%} of what was predicted alone; the whole step {ratio['error of the step']:+.1%}; zero-bubble {ratio['error, zero-bubble']:+.1%}.\n"
        f"- Of two processes side by side, times m / (m + 1) (90 % asked): {ratio['share']:.1%} of one stage with the same micro-batches, "
        f"{ratio['share of virtual ranks']:.1%} of as many virtual ranks, {ratio['share of whole batches']:.1%} of whole batches; zero-bubble {ratio['zero-bubble share']:.1%}.\n"
        f"- Zero-bubble over 1F1B (1.05 asked): {ratio['gain']:.3f}, predicted {ratio['predicted gain']:.3f}.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["mlp", "gpt", "resnet20"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    text = (f"# Two real stages\n\n`bench/pipeline_stages.py {' '.join(sys.argv[1:])}`: {arguments.micro_batches} micro-batches, one stage on each "
            f"worker, one thread each, the state by stage. Medians of rounds; ratios are medians of those of each round.\n{base.machine()}\n")
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Bench(arguments, pathlib.Path(folder), model), arguments.rounds)
        text += f"\n{report(model, arguments.micro_batches, rows)}"
        if arguments.output:
            arguments.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
