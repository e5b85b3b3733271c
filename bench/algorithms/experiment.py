"""What a sweep consists of: workloads, submissions, and the trials that follow from them.

A workload fixes data, model, batch size, budget and metric. A submission is an optimiser, a schedule or
a step method, with the one point that it has in the ruleset without tuning and the space that the tuned
ruleset draws points from. Both are TOML files; an option of a job is written with its full key.
"""
import dataclasses
import hashlib
import json
import pathlib
import random
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
TUNING_SEED = 1     # of the trials that choose a point
FIRST_SEED = 11     # of those that are scored: 11, 12, ...
# Of the shift of the quasi-random points. With this one the first five lie one in each fifth of each range (of up to
# three), so that five trials leave no part of a range out. Until November 2026 it was 20, by which no rate of five was
# in the upper third of its range.
DRAW_SEED = 169
PRIMES = (2, 3, 5, 7, 11, 13)
OF_EPOCHS = "% of epochs"


class Wrong(Exception):
    """A file that says something impossible; its text names file and key."""


@dataclasses.dataclass(frozen=True)
class Workload:
    name: str
    title: str
    metric: str       # "accuracy" or "loss"
    epochs: int
    samples: int      # of the training data
    targets: tuple    # multiples of the baseline's error
    options: dict

    def error(self, evaluation):
        """Of an evaluation; less is better."""
        return 1 - evaluation["accuracy"] if self.metric == "accuracy" else evaluation["loss"]

    def shown(self, error):
        return f"{100 * (1 - error):.2f} %" if self.metric == "accuracy" else f"{error:.4f}"


@dataclasses.dataclass(frozen=True)
class Submission:
    name: str
    title: str
    baseline: bool    # targets are taken from the best of these
    budget: float     # share of the workload's epochs
    options: dict
    point: dict
    space: dict
    draw_seed: int    # of the points that are drawn from it


@dataclasses.dataclass(frozen=True)
class Trial:
    workload: Workload
    submission: Submission
    stage: str        # "fixed", "tuning" or "tuned"
    number: int       # of the point; 0: the fixed one
    seed: int
    settings: tuple   # (key, value), sorted

    @property
    def name(self):
        """Different settings are a different trial, whatever a file said before."""
        digest = hashlib.sha256(json.dumps(self.settings).encode()).hexdigest()[:8]
        return f"{self.workload.name}/{self.submission.name}/{self.stage}-{self.number}-seed{self.seed}-{digest}"


def read(path, required, optional):
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        near = ", ".join(sorted(p.stem for p in path.parent.glob("*.toml")))
        raise Wrong(f"{path}: no such file; {path.parent.name} there are: {near}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise Wrong(f"{path}: {e}") from None
    for key in required:
        if key not in values:
            raise Wrong(f"{path}: {key} is missing")
    for key in values:
        if key not in required and key not in optional:
            raise Wrong(f"{path}: {key} is none of {', '.join(required + optional)}")
    return values


def read_workload(name, folder=HERE / "workloads"):
    path = folder / f"{name}.toml"
    v = read(path, ("title", "metric", "epochs", "samples", "targets", "job"), ())
    if v["metric"] not in ("accuracy", "loss"):
        raise Wrong(f"{path}: metric = \"{v['metric']}\" is neither accuracy nor loss")
    return Workload(name, v["title"], v["metric"], v["epochs"], v["samples"], tuple(v["targets"]), v["job"])


def read_submission(name, folder=HERE / "submissions", draw_seed=DRAW_SEED):
    path = folder / f"{name}.toml"
    v = read(path, ("title", "job"), ("baseline", "budget", "point", "space"))
    for key, dimension in v.get("space", {}).items():
        if set(dimension) not in ({"choices"}, {"low", "high", "scale"}):
            raise Wrong(f"{path}: space.\"{key}\" needs low, high and scale, or choices")
        if dimension.get("scale", "log") not in ("log", "linear"):
            raise Wrong(f"{path}: space.\"{key}\": scale = \"{dimension['scale']}\" is neither log nor linear")
    if len(v.get("space", {})) > len(PRIMES):
        raise Wrong(f"{path}: at most {len(PRIMES)} dimensions")
    return Submission(name, v["title"], v.get("baseline", False), v.get("budget", 1.0), v["job"],
                      v.get("point", {}), v.get("space", {}), draw_seed)


def radical_inverse(index, base):
    """The digits of `index` behind the point: Halton's sequence in one dimension."""
    out, share = 0.0, 1.0 / base
    while index:
        index, digit = divmod(index, base)
        out += digit * share
        share /= base
    return out


def draw(space, number, seed=DRAW_SEED):
    """Point `number` (from 1) of a space: a Halton sequence with a random shift, the same for all."""
    shift = random.Random(seed)
    out = {}
    for base, (key, d) in zip(PRIMES, space.items()):
        u = (radical_inverse(number, base) + shift.random()) % 1
        if "choices" in d:
            out[key] = d["choices"][int(u * len(d["choices"]))]
        elif d["scale"] == "log":
            out[key] = float(f"{d['low'] * (d['high'] / d['low']) ** u:.4g}")
        else:
            out[key] = float(f"{d['low'] + (d['high'] - d['low']) * u:.4g}")
    return out


def settings_of(workload, submission, point, seed):
    """All options of the job but those of the place where it runs."""
    out = {**workload.options, **submission.options, **point, "seed": seed, "train.epochs": workload.epochs}
    if submission.budget != 1:
        per_epoch = workload.samples // out["train.batch_size"]
        out["train.max_steps"] = round(submission.budget * workload.epochs * per_epoch)
    for key, value in out.items():
        if isinstance(value, str) and value.endswith(OF_EPOCHS):
            share = float(value.removesuffix(OF_EPOCHS)) / 100
            out[key] = float(f"{share * submission.budget * workload.epochs:.6g}")
    return tuple(sorted(out.items()))


def trial(workload, submission, stage, number, seed):
    point = draw(submission.space, number, submission.draw_seed) if number else submission.point
    return Trial(workload, submission, stage, number, seed, settings_of(workload, submission, point, seed))


def fixed_trials(workload, submissions, seeds):
    """By seeds, so that a sweep that is stopped has as many of one submission as of another."""
    return [trial(workload, s, "fixed", 0, FIRST_SEED + i) for i in range(seeds) for s in submissions]


def tuning_trials(workload, submissions, trials):
    return [trial(workload, s, "tuning", n, TUNING_SEED) for n in range(1, trials + 1)
            for s in submissions if s.space]


def best_number(workload, results):
    """Of the tuning results of one submission: the point with the least error at the end."""
    def final(result):
        if result["status"] != "done" or not result["curve"]:
            return float("inf")
        return workload.error(result["curve"][-1])
    return min(results, key=final)["number"] if results else None


def tuned_trials(workload, submissions, seeds, trials, result_of):
    """Of the submissions all of whose tuning trials have a result."""
    best = {}
    for s in submissions:
        found = [result_of(t) for t in tuning_trials(workload, [s], trials)]
        if found and all(found):
            best[s.name] = best_number(workload, found)
    return [trial(workload, s, "tuned", best[s.name], FIRST_SEED + i) for i in range(seeds)
            for s in submissions if s.name in best]
