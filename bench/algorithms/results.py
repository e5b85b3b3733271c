"""Results of trials: read from the run directory that a trial left, and kept in files of their own."""
import bisect
import hashlib
import json
import os
import pathlib


def lines_of(path):
    """The lines of a diary that count: torn ones, and those of a replaced writer, do not."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    out, generation = [], 0
    for raw in text.split(b"\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if not isinstance(line, dict) or line.get("generation", generation) < generation:
            continue
        generation = line.get("generation", generation)
        out.append(line)
    return out


class Clock:
    """CPU seconds of a run's workers at a time, from samples (time, CPU seconds) of each launch.

    Behind a launch's last sample they go on at the pace of its last second: where the sweep was killed,
    nobody looks while the workers go on until their state is saved.
    """

    def __init__(self, samples):
        self.samples = []
        for s in samples:
            if not self.samples or s["launch"] != self.samples[-1]["launch"]:
                # What a new launch has spent before its first sample is not that of the one before.
                self.samples.append({"launch": s["launch"], "time": s["launch"], "cpu": 0.0})
            self.samples.append(s)
        self.times = [s["time"] for s in self.samples]

    def at(self, time):
        i = bisect.bisect_right(self.times, time)
        if i == 0:
            return 0.0
        before = self.samples[i - 1]
        if i == len(self.samples) or self.samples[i]["launch"] != before["launch"]:
            return before["cpu"] + self.pace(i - 1) * (time - before["time"])
        return before["cpu"] + pace_of(before, self.samples[i]) * (time - before["time"])

    def pace(self, last):
        """CPU seconds per second, in the last second of a launch whose last sample has this index."""
        first = last
        while (first > 0 and self.samples[first - 1]["launch"] == self.samples[last]["launch"]
               and self.times[last] - self.times[first] < 1):
            first -= 1
        return pace_of(self.samples[first], self.samples[last])


def pace_of(before, after):
    return (after["cpu"] - before["cpu"]) / max(after["time"] - before["time"], 1e-9)


def curve_of(events, samples):
    """One point per evaluation: step, epoch, figures, and the CPU seconds of training until then.

    Neither the start of the processes nor evaluations count. A run that was stopped goes on from a
    checkpoint: what it had done after that is done again, and counts once.
    """
    clock = Clock(samples)
    curve, spent, mark, at_step = [], 0.0, None, {}
    for e in events:
        kind = e.get("kind")
        if kind in ("start", "resume"):
            step = e.get("step", 0) if kind == "resume" else 0
            spent, mark = at_step.get(step, 0.0 if step == 0 else spent), clock.at(e["time"])
            curve = [c for c in curve if c["step"] <= step]
        elif kind == "checkpoint" and mark is not None:
            begin = clock.at(e["time"] - e.get("write_seconds", 0.0))
            at_step[e["step"]] = spent + max(0.0, begin - mark)
        elif kind == "evaluation" and mark is not None:
            if curve and curve[-1]["step"] == e["step"]:
                continue  # of a checkpoint at the same step
            spent += max(0.0, clock.at(e["time"] - e.get("duration", 0.0)) - mark)
            mark = clock.at(e["time"])
            curve.append({"step": e["step"], "epoch": e["epoch"], "cpu": round(spent, 3),
                          "accuracy": number(e["accuracy"]), "loss": number(e["loss"])})
    return curve


def number(value):
    """JSON has no NaN: such a value is a string, and worse than every figure."""
    return value if not isinstance(value, str) else (float("-inf") if value == "-Infinity" else float("inf"))


def ended(run):
    """"done", "diverged", "failed" or "unfinished", and the event that says so."""
    end = None
    for e in lines_of(run / "events.jsonl"):
        if e.get("kind") == "end":
            end = e
        elif e.get("kind") in ("start", "resume"):
            end = None
    if end is None or end["status"] == "interrupted":
        return "unfinished", end
    if end["status"] == "failed":
        return ("diverged" if "diverged" in end.get("message", "") else "failed"), end
    return "done", end


def different(values):
    """Each value once, in the order in which they came, without what was not recorded."""
    out = []
    for value in values:
        if value is not None and value not in out:
            out.append(value)
    return out


def result_of_run(trial, run):
    """What a run directory says of a trial that has ended.

    A trial that was resumed may have several hosts, programs (trials.hash_of) and numbers of trials at once.
    """
    status, end = ended(run)
    events = lines_of(run / "events.jsonl")
    samples = lines_of(run / "clock.jsonl")
    out = {"workload": trial.workload.name, "submission": trial.submission.name, "stage": trial.stage,
           "number": trial.number, "seed": trial.seed, "settings": dict(trial.settings), "status": status,
           "hosts": different(e.get("host") for e in events if e.get("kind") in ("start", "resume")),
           "programs": different(s.get("program") for s in samples),
           "at_once": different(s.get("at_once") for s in samples),
           "curve": curve_of(events, samples), "core_seconds": end["cost"]["core_seconds"]}
    for key in ("step", "updates", "samples", "samples_forward", "flops", "digest"):
        out[key] = end.get(key)
    return out


def packed(result):
    return json.dumps(result, sort_keys=True)


def write_result(path, result):
    """All of it or nothing: whoever reads the file finds its own hash in it."""
    body = packed(result)
    text = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "result": result}, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    with open(new, "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def read_result(path, trial):
    """The result, or why there is none: (result, "") or (None, text); an empty text: no such file."""
    path = pathlib.Path(path)
    try:
        whole = json.loads(path.read_bytes())
        result = whole["result"]
        if hashlib.sha256(packed(result).encode()).hexdigest() != whole["sha256"]:
            return None, f"{path}: its contents do not have the hash that it names"
    except FileNotFoundError:
        return None, ""
    except (ValueError, KeyError, TypeError) as e:
        return None, f"{path}: no whole result ({type(e).__name__})"
    if result["settings"] != dict(trial.settings):
        return None, f"{path}: of other settings"
    return result, ""
