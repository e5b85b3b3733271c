#!/usr/bin/python3
"""A recipe over several seeds, beside the same recipe in PyTorch: accuracy, and the time to it.

  record.py OUT --data DIR                                     examples/cifar10_airbench.toml, 3 seeds, both in turns
  record.py OUT --data DIR --example examples/cifar10_92.toml --target 0.92 --seeds 5
  record.py OUT --data DIR --ours-only --set train.precision=fp32
  record.py OUT --data DIR --rival-precision bf16              PyTorch's faster form on processors that have bf16
  record.py OUT --data DIR --table-only -o page.md             what is there by now, as Markdown

DIR holds CIFAR-10's binary files. Results lie in the folder OUT, one for each seed and side. Called again, it leaves
out what is done, goes on with a run that was stopped, and begins a PyTorch run that was stopped anew. Options that
change what is trained make other results beside those that are there. Whatever the PyTorch side cannot say of a job
is refused by name; with --ours-only every job is trained.

Ductile's clock is that of the run, from the start of its processes to the end of an evaluation. PyTorch's
(cifar10_torch.py) begins when the files are read. Both end with an evaluation, views included.
"""

import argparse
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import statistics
import subprocess
import sys
import time

import results
import trials
from page import table

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RIVAL = HERE / "cifar10_torch.py"
# What the rival is written with; another value has no twin there. Of options that are named nowhere here it has the
# default.
OF_THE_RIVAL = {
    "data.format": "cifar10", "train.eval_every_epochs": 0,
    "model.name": "airbench", "optimizer.name": "muon", "optimizer.muon.rest": "sgd", "optimizer.muon.steps": 3,
    "optimizer.muon.coefficients": [3.4445, -4.775, 2.0315], "optimizer.muon.nesterov": True,
    "optimizer.muon.adjust_lr": "none", "optimizer.muon.renormalize_every": 1,
    "optimizer.muon.exclude": ["head"], "optimizer.sgd.nesterov": True, "optimizer.no_decay": ["conv"],
    "optimizer.clip_norm": 0, "schedule.name": "linear", "schedule.warmup_epochs": 0, "schedule.final_fraction": 0,
    "augment.pad_mode": "reflect", "augment.flip": True, "augment.flip_mode": "alternating", "train.method": "plain",
    "train.rate_control": "schedule", "train.ema_decay": 0, "train.tail_average": 0, "train.max_steps": 0,
    "train.bn_group": 1, "train.staleness": 0, "tune.online": False,
}
# What rival_arguments() says to it, and of some of these the values that it knows.
SAID = {
    "train.epochs", "train.batch_size", "train.label_smoothing", "optimizer.lr", "optimizer.momentum",
    "optimizer.weight_decay", "optimizer.muon.rest_lr", "optimizer.muon.rest_momentum", "optimizer.lr_factors",
    "optimizer.freeze", "model.width", "model.later_width", "augment.pad", "augment.cutout", "eval.views_share",
}
CHOICES = {"eval.views": ["one", "flip_translate"], "model.activation": ["gelu", "silu"], "model.convolutions": [2, 3],
           "train.precision": ["fp32", "bf16"]}
# What changes place, speed and output of a run alone; seeds and threads have options of their own here.
PLACES = {"name", "runs", "seed", "data.path", "train.threads", "train.log_every", "train.eval_batch_size",
          "loader.threads", "loader.prefetch", "loader.cache_mb"}
PLACE_SECTIONS = ("checkpoint.", "elastic.")


class Wrong(Exception):
    """Something that the caller can put right; its text says how."""


@dataclasses.dataclass(frozen=True)
class Result:
    """Of one seed on one side."""
    seed: int
    curve: tuple         # (seconds, accuracy) of each evaluation
    core_seconds: float  # CPU time of all processes

    @property
    def accuracy(self):
        return self.curve[-1][1]

    @property
    def seconds(self):
        return self.curve[-1][0]

    def seconds_to(self, target):
        """To the first evaluation that reaches it; None where none does."""
        return next((seconds for seconds, accuracy in self.curve if accuracy >= target), None)


# ---- What is run.

def options_of(build, *words):
    """All options as `ductile config` has them: by name, a value and where it is from."""
    done = subprocess.run([str(build / "bin" / "ductile"), "-q", "config", "--json", *words], capture_output=True,
                          text=True)
    if done.returncode != 0:
        raise Wrong(done.stderr.strip())
    return json.loads(done.stdout)


def job_of(example, assignments, build):
    """The values of all options of the job, by their names."""
    words = [word for assignment in assignments for word in ("--set", assignment)]
    return {key: entry["value"] for key, entry in options_of(build, str(example), *words).items()}


def defaults_of(build):
    """Without those that are set for every job, by a file of the user's or in the environment."""
    return {key: entry["value"] for key, entry in options_of(build).items() if entry["origin"] == "default"}


def check_rival(job, defaults):
    """Throws where the rival would train another job than this one."""
    for key, value in job.items():
        if key in SAID or key in PLACES or key.startswith(PLACE_SECTIONS):
            continue
        known = CHOICES.get(key, [OF_THE_RIVAL.get(key, defaults.get(key))])
        if value not in known:
            told = " and ".join(json.dumps(k) for k in known) if known != [None] else "its default"
            raise Wrong(f"the PyTorch side knows {key} = {told} alone, and the job has {json.dumps(value)}; "
                        "use --ours-only")


def factor_of(job, option, name):
    """The number that a list of "NAME:NUMBER" has for the only name that the rival knows there."""
    rules = dict(rule.split(":") if ":" in rule else (rule, "0") for rule in job[option])
    if set(rules) - {name}:
        raise Wrong(f"the PyTorch side knows {option} for {name} alone, and the job has {job[option]}; use --ours-only")
    return rules.get(name)


def rival_arguments(job, threads, defaults):
    """The options of cifar10_torch.py that say what the job says."""
    check_rival(job, defaults)
    batch = job["train.batch_size"]
    # Losses are summed there, so what is a rate here is divided by the batch.
    bias_rate = job["optimizer.lr"] * job["optimizer.muon.rest_lr"] / batch
    head = float(factor_of(job, "optimizer.lr_factors", "head") or 1)
    warm = factor_of(job, "optimizer.freeze", "whiten.bias")
    decay = job["optimizer.weight_decay"] * bias_rate
    values = {
        "epochs": job["train.epochs"], "batch": batch, "threads": threads, "precision": job["train.precision"],
        "lr": job["optimizer.lr"], "momentum": job["optimizer.momentum"], "bias-lr": f"{bias_rate:.6g}",
        "head-lr": f"{bias_rate * head:.6g}", "rest-momentum": job["optimizer.muon.rest_momentum"],
        "decay": f"{decay:.6g}", "smoothing": job["train.label_smoothing"],
        "whiten-bias-epochs": job["train.epochs"] if warm is None else warm, "width": job["model.width"] or 64,
        "later-width": job["model.later_width"], "pad": job["augment.pad"], "cutout": job["augment.cutout"],
        "activation": job["model.activation"],
        "views-share": job["eval.views_share"] if job["eval.views"] != "one" else 0,
    }
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return words + (["--deep"] if job["model.convolutions"] == 3 else [])


def end_of(words, **how):
    """Runs a program to its end, which it reaches by itself when the terminal interrupts both; (code, stdout)."""
    with subprocess.Popen(words, text=True, preexec_fn=trials.end_with_parent, **how) as process:
        try:
            output, _ = process.communicate()
        except KeyboardInterrupt:
            process.wait()
            raise
        return process.returncode, output


def digest_of(words):
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8]


class Ours:
    title = "Ductile"

    def __init__(self, args):
        self.out = args.out
        self.words = [str(args.build / "bin" / "ductile"), "-q", "train"]
        self.example = args.example
        self.settings = [*args.set, f"train.threads={args.threads}", "checkpoint.at_end=false"]
        # Where the data lie does not change what is trained.
        self.digest = digest_of([self.example.read_text(), self.settings])
        self.data = args.data

    def folder(self, seed):
        return self.out / f"ours-seed{seed}-{self.digest}"

    def command(self):
        settings = "".join(f" --set {shlex.quote(s)}" for s in self.settings)
        return f"ductile train {self.example.name}{settings}"

    def result(self, seed):
        status, end = results.ended(self.folder(seed))
        if status != "done":
            return None
        curve = {}  # by step: what was evaluated again after a resumption counts once
        for event in results.lines_of(self.folder(seed) / "events.jsonl"):
            if event.get("kind") == "evaluation":
                curve.setdefault(event["step"], (event["seconds"], results.number(event["accuracy"])))
        return Result(seed, tuple(sorted(curve.values())), end["cost"]["core_seconds"])

    def words_of(self, seed):
        """The command that begins a run, or goes on with it."""
        folder = self.folder(seed)
        if (folder / "job.toml").exists():
            return [*self.words, "--resume", str(folder)]
        words = [*self.words, str(self.example), "--out", str(folder)]
        for assignment in (*self.settings, f"seed={seed}", f"data.path={self.data}"):
            words += ["--set", assignment]
        return words

    def run(self, seed):
        folder = self.folder(seed)
        give_up_at = time.monotonic() + trials.LOCK_WAIT
        while not trials.is_free(folder / "run.lock") and time.monotonic() < give_up_at:
            time.sleep(0.1)  # what was killed with the last record.py still saves its state
        if not (folder / "job.toml").exists():
            shutil.rmtree(folder, ignore_errors=True)  # killed before the job was in it
        if end_of(self.words_of(seed), stdout=subprocess.DEVNULL)[0] != 0:
            raise Wrong(f"seed {seed} did not end; its run is {folder}")


class Rival:
    title = "PyTorch"

    def __init__(self, args, job):
        self.out = args.out
        self.words = rival_arguments(job, args.threads, defaults_of(args.build))
        self.digest = digest_of(self.words)
        self.data = args.data

    def file(self, seed):
        return self.out / f"pytorch-seed{seed}-{self.digest}.json"

    def command(self):
        return f"cifar10_torch.py {shlex.join(self.words)}"

    def result(self, seed):
        try:
            line = json.loads(self.file(seed).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return Result(seed, ((line["seconds"], line["accuracy"]),), line["cpu_seconds"])

    def run(self, seed):
        words = ["/usr/bin/python3", str(RIVAL), "--data", str(self.data), "--seed", str(seed), *self.words]
        code, output = end_of(words, stdout=subprocess.PIPE)
        if code != 0:
            raise Wrong(f"{shlex.join(words)} ended with {code}")
        new = self.file(seed).with_suffix(".new")
        new.write_text(output.splitlines()[-1] + "\n")
        os.replace(new, self.file(seed))


# ---- What is printed.

def spread(values, shown):
    """The median, and the least and the largest value where there are several."""
    if not values:
        return "-"
    text = shown(statistics.median(values))
    return text if len(values) == 1 else f"{text} ({shown(min(values))} to {shown(max(values))})"


def percent(share):
    return f"{100 * share:.2f} %"


def one_digit(value):
    return f"{value:,.1f}"


def summary_row(title, found, target):
    reached = [s for s in (r.seconds_to(target) for r in found) if s is not None]
    return [title, str(len(found)), percent(statistics.mean(r.accuracy for r in found)),
            spread([r.accuracy for r in found], percent), f"{len(reached)} of {len(found)}", spread(reached, one_digit),
            spread([r.seconds for r in found], one_digit), spread([r.core_seconds for r in found], one_digit)]


def seed_rows(title, found, target):
    def to(result):
        seconds = result.seconds_to(target)
        return "-" if seconds is None else one_digit(seconds)

    return [[title, str(r.seed), percent(r.accuracy), to(r), one_digit(r.seconds), one_digit(r.core_seconds)]
            for r in found]


def comparison(ours, theirs):
    """How much faster, by the seeds that both sides have."""
    pairs = [(a.seconds, b.seconds) for a in ours for b in theirs if a.seed == b.seed]
    if not pairs:
        return []
    ratios = spread([b / a for a, b in pairs], lambda ratio: f"{ratio:.2f}")
    return ["", f"PyTorch's seconds to the last evaluation, divided by Ductile's of the same seed: {ratios}."]


def processor():
    names = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return f"{names[0] if names else os.uname().machine}, {len(os.sched_getaffinity(0))} cores for this process"


def place_of(args):
    """Where the results of a folder are made, and with which build: one place for all, since they stand in one table."""
    file = args.out / "place.json"
    then = json.loads(file.read_text()) if file.exists() else None
    if args.table_only:
        return then or {"processor": "a processor that is not recorded", "build": "not recorded"}
    now = {"processor": processor(), "build": trials.hash_of(args.build)}
    if then is None:
        file.write_text(json.dumps({**now, "date": str(datetime.date.today())}) + "\n")
    elif any(then[key] != value for key, value in now.items()):
        raise Wrong(f"{args.out} has results of {then['processor']}, build {then['build']}, and here are "
                    f"{now['processor']}, build {now['build']}; name another folder, or use --table-only")
    return json.loads(file.read_text())


def markdown(title, target, sides, found, where):
    """The page: one row for each side, how they compare, and one row for each run."""
    lines = [f"## {title}", "", where, ""]
    lines += [f"- {side.title}: `{side.command()}`" for side in sides]
    head = ["", "seeds", "mean accuracy", "median accuracy", f"reach {percent(target)}", f"seconds to {percent(target)}",
            "seconds to the last evaluation", "core-seconds"]
    there = [side for side in sides if found[side.title]]
    lines += ["", *table(head, [summary_row(side.title, found[side.title], target) for side in there])]
    lines += comparison(found.get(Ours.title, []), found.get(Rival.title, []))
    head = ["", "seed", "accuracy", f"seconds to {percent(target)}", "seconds", "core-seconds"]
    lines += ["", *table(head, [row for side in there for row in seed_rows(side.title, found[side.title], target)])]
    return "\n".join(lines) + "\n"


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--data", type=pathlib.Path, help="folder of CIFAR-10's binary files")
    parser.add_argument("--example", type=pathlib.Path, default=ROOT / "examples" / "cifar10_airbench.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="on both sides")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--target", type=float, default=0.92, help="accuracy")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rival-precision", choices=CHOICES["train.precision"],
                        help="of PyTorch; without it: the job's")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="the page; without it: stdout")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--ours-only", action="store_true")
    which.add_argument("--rival-only", action="store_true")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    args = parser.parse_args(words)
    if args.seeds < 1:
        parser.error("--seeds: at least 1")
    if args.data is None and not args.table_only:
        parser.error("--data: the folder of CIFAR-10's binary files")
    args.data = args.data.resolve() if args.data else None
    args.out, args.build = args.out.resolve(), args.build.resolve()
    return args


def record(args):
    place = place_of(args)
    where = (f"{place['processor']}, {args.threads} threads, build {place['build']} of Ductile, begun "
             f"{place.get('date', 'on a day that is not recorded')}.")
    sides = [] if args.rival_only else [Ours(args)]
    if not args.ours_only:
        job = job_of(args.example, args.set, args.build)
        ours = job["train.precision"]
        theirs = args.rival_precision or ours
        sides.append(Rival(args, {**job, "train.precision": theirs}))
        where += f" Ductile trains in {ours}, PyTorch in {theirs}."
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for seed in seeds if not args.table_only else ():
        for side in sides:  # in turns, so that both meet the same machine
            if side.result(seed) is None:
                print(f"{side.title}, seed {seed}", file=sys.stderr, flush=True)
                side.run(seed)
    found = {side.title: [r for r in map(side.result, seeds) if r is not None] for side in sides}
    if not any(found.values()):
        raise Wrong(f"{args.out}: no result of these options yet")
    page = markdown(args.example.stem, args.target, sides, found, where)
    if args.output:
        args.output.write_text(page)
    else:
        print(page, end="")


def main(words=None):
    args = parse(words)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        with open(args.out / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Wrong(f"{args.out}: another record.py works there") from None
            record(args)
    except (Wrong, OSError) as e:
        print(f"record.py: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("record.py: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
