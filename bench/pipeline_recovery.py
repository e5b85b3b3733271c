#!/usr/bin/python3
"""What losing workers costs a job that trains by stages, and under which plans its checkpoints go on.

A model in stages, one on each worker, while workers are killed (SIGKILL): how long until the next
step is committed, whether a committed step was done again, and whether the weights at the end have the bits
of a run of one worker that nobody disturbed. No checkpoint is written meanwhile, which would hide a
loss. Then a shorter job is preempted in the middle, and copies of its run go on under
three other plans, each to the bits of the undisturbed one.

  bench/pipeline_recovery.py [--stages 4] [--kills 100] [--set KEY=VALUE ...]
                             [--bin build/release/bin] [--output FILE.md]

Exit code 1: a step was done again, or bits differ.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import elastic_recovery as base  # noqa: E402

BATCH, MICRO_BATCHES = 32, 4


def tensors(file):
    """Names, types, places and bytes of a safetensors file, without what is said of them."""
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    return header, data[end:]


class Bench:
    def __init__(self, binary, folder, stages, sets):
        self.binary, self.folder, self.stages = binary, folder, stages
        self.sets = [f"train.batch_size={BATCH}", "train.threads=1", "model.name=resnet8", "augment.pad=2",
                     "data.train_limit=1024", "data.test_limit=64", "schedule.name=constant",
                     "train.eval_every_epochs=0", "train.log_every=1", "train.shard_optimizer=false", *sets]

    def ductile(self, *words, sets=()):
        command = [self.binary / "ductile", "-q", *words]
        for key in [*self.sets, *sets] if words[0] in ("train", "profile") and "--resume" not in words else ():
            command += ["--set", key]
        return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE)

    def operators(self):
        graph = self.folder / "graph.json"
        self.ductile("profile", "-o", graph, "--shares", "1", "--rounds", "1")
        return [op["name"] for op in json.loads(graph.read_text())["ops"] if op["name"] != "loss"]

    def plan(self, name, cuts, order, recompute=()):
        """A plan of the operators between `cuts`, as a file."""
        names = self.operators()
        edges = [0, *cuts, len(names)]
        stages = []
        for first, last in zip(edges, edges[1:]):
            own = names[first:last]
            stages.append({"ops": own, "micro_batch": BATCH // MICRO_BATCHES, "order": order,
                           "recompute": [op for op in own if op in recompute]})
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps({"format": "ductile.plan", "version": 1, "batch": BATCH, "stages": stages}))
        return file

    def plans(self):
        """Even; all in the first stage, the others empty; uneven, weights last; everything recomputed."""
        names, n = self.operators(), self.stages
        m = MICRO_BATCHES
        even = [len(names) * s // n for s in range(1, n)]
        uneven = sorted(random.Random(2).sample(range(1, len(names)), n - 1))
        return [self.plan("even", even, f"F{m}B{m}"), self.plan("one", [len(names)] * (n - 1), f"F{m}B{m}"),
                self.plan("uneven", uneven, f"F{m}B{m}W{m}"), self.plan("again", even, f"F{m}B{m}", names)]

    def undisturbed(self, name, plan, *sets):
        run = self.folder / name
        self.ductile("train", "--out", run, "--workers", "1", "--plan", plan, sets=sets)
        return tensors(run / "model.safetensors")


def steps_done_again(run):
    """By generation: committed steps, before it began, that it began before."""
    again = []
    steps = [(m["time"], m["step"]) for m in base.lines(run / "metrics.jsonl") if "train/loss" in m]
    for event in base.lines(run / "events.jsonl"):
        if event.get("event") != "generation":
            continue
        begin = int(re.search(r"from step (\d+)", event["text"]).group(1))
        done = max((step for when, step in steps if when < event["time"]), default=0)
        again.append(max(0, done - begin))
    return again


def kill(bench, kills, plan, rows):
    """Returns the steps that were done again by generation, and whether the bits are those of one worker."""
    rng = random.Random(1)
    sets = [*bench.sets, "train.epochs=100000", "checkpoint.every_seconds=0"]
    job = base.Job(bench.binary, bench.folder, bench.stages, sets, ("--plan", plan))
    try:
        for _ in range(kills):
            if not job.wait_for(bench.stages):
                sys.exit("the job ended early")
            time.sleep(rng.uniform(0.1, 0.3))
            _, pid = rng.choice(sorted(job.workers().items()))
            begin = time.time()
            os.kill(pid, signal.SIGKILL)
            times = job.after(begin)
            if times is None:
                sys.exit("no step after a loss")
            noted, formed, step = times
            rows.setdefault("until a kill is noticed", []).append(noted - begin)
            rows.setdefault("from there to the next generation", []).append(formed - noted)
            rows.setdefault("until the next committed step, in all", []).append(step - begin)
        if not job.wait_for(bench.stages):
            sys.exit("the job ended early")
        times = [m["time"] for m in base.lines(job.run / "metrics.jsonl")][-100:]
        rows["for comparison: one step"] = [second - first for first, second in zip(times, times[1:])]
        bench.ductile("preempt", job.run)
        job.process.wait()
    finally:
        job.end()
    again = steps_done_again(job.run)
    listed = json.loads(bench.ductile("ckpt", "list", job.run, "--json").stdout)
    last = max(c["step"] for c in listed)
    weights = bench.folder / "killed.safetensors"
    bench.ductile("ckpt", "export", job.run, "-o", weights)
    want = bench.undisturbed("alone", plan, "train.epochs=100000", f"train.max_steps={last}", "checkpoint.every_seconds=0")
    return again, last, tensors(weights) == want


def restore(bench, plans):
    """(plan, whether its bits are those of the undisturbed run) of three plans that go on from a fourth one's checkpoint."""
    sets = ["train.epochs=4", "checkpoint.every_seconds=0"]
    want = bench.undisturbed("short", plans[0], *sets)
    place = bench.folder / "preempted"
    place.mkdir()
    job = base.Job(bench.binary, place, bench.stages, [*bench.sets, *sets], ("--plan", plans[0]))
    try:
        while not [m for m in base.lines(job.run / "metrics.jsonl") if m["step"] >= 20]:
            if job.process.poll() is not None:
                sys.exit("the job ended early")
            time.sleep(0.01)
        bench.ductile("preempt", job.run)
        job.process.wait()
    finally:
        job.end()
    out = []
    for plan in plans[1:]:
        copy = bench.folder / f"under-{plan.stem}"
        shutil.copytree(job.run, copy)
        bench.ductile("train", "--resume", copy, "--plan", plan, "--workers", bench.stages)
        out.append((plan.stem, tensors(copy / "model.safetensors") == want))
    return out


def main():
    arguments = base.options(__doc__, ("stages", 4), ("kills", 100)).parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(arguments.bin.resolve(), pathlib.Path(folder), arguments.stages, arguments.sets)
        plans = bench.plans()
        again, last, same = kill(bench, arguments.kills, plans[0], rows)
        restored = restore(bench, plans)
    word = {True: "the same bits", False: "OTHER BITS"}
    text = (f"# Losing workers of a pipeline\n\n`bench/pipeline_recovery.py {' '.join(sys.argv[1:])}`: "
            f"{arguments.stages} stages on as many workers, {' '.join(bench.sets)}.\n{base.machine()}\n\n{base.table(rows)}\n"
            f"{arguments.kills} kills in {last} steps, in {len(again)} generations; committed steps that were done again: "
            f"{sum(again)}; the weights have {word[same]} as those of one worker that nobody disturbed.\n\n"
            "| a checkpoint of the plan `even` goes on under | its weights at the end, beside those of an undisturbed run |\n|---|---|\n"
            + "".join(f"| `{name}` | {word[equal]} |\n" for name, equal in restored))
    if arguments.output:
        arguments.output.write_text(text)
    print(text)
    return 0 if same and not sum(again) and all(equal for _, equal in restored) else 1


if __name__ == "__main__":
    sys.exit(main())
