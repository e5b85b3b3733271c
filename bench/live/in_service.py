"""Real jobs in `ductile up` on the slots of this machine: the workloads, the profile of each kind of job, and turns."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "service"))
sys.dont_write_bytecode = True
from asking import UnixConnection, ask  # noqa: E402

FIXED_SIZE = {"fifo", "srtf", "tiresias", "gavel"}  # each job has the slots that it asks for


def parts_of(label):
    """A turn's policy, and whether each job of it asks for one slot: `srtf` is the policy, `srtf-one` is that as well, with
    the smallest size."""
    policy, _, one = label.partition("-")
    return policy, bool(one)


def slots_of(args, label, asked):
    """The least and the most slots of a job under this policy."""
    policy, one = parts_of(label)
    if policy not in FIXED_SIZE:
        return 1, args.slots
    return (1, 1) if one else (asked, asked)


def interval_of(args, label):
    return args.intervals.get(parts_of(label)[0], args.intervals[""])


# Options beside the batch; steps of the shortest job.
KINDS = {
    "digits_cnn": (["data.format=digits", "model.name=cnn", "optimizer.lr=0.05"], 128, 400),
    "fashion_cnn": (["data.format=idx", "data.path={data}/fashion-mnist", "model.name=cnn",
                     "optimizer.lr=0.05", "data.test_limit=512"], 128, 400),
    "resnet8": (["data.format=cifar10", "data.path={data}/cifar10", "model.name=resnet8",
                 "data.test_limit=512"], 128, 150),
    "resnet20": (["data.format=cifar10", "data.path={data}/cifar10", "model.name=resnet20",
                  "data.test_limit=512"], 128, 60),
    "gpt": (["data.format=tokens", "data.path={out}/text.bin", "data.test_path={out}/text_test.bin",
             "data.tokens.type=u16", "data.tokens.sequence_length=64", "data.test_limit=32", "model.name=gpt",
             "model.layers=2", "model.heads=4", "model.dim=64", "optimizer.name=adamw",
             "optimizer.lr=0.001"], 32, 200),
}


def workload(name, slots):
    """(name, kind, length in multiples of the kind's shortest, slots asked for, arrival)."""
    draw = random.Random(f"live {name}")
    jobs, now = [], 0.0
    for number in range(14):
        kind = draw.choice(sorted(KINDS))
        length = draw.choice([1, 1, 2, 2, 3, 5])
        jobs.append((f"{name}-{number}-{kind}", kind, length, draw.choice([1, 1, slots]), now))
        now += draw.expovariate(1 / 8.0)
    return jobs


def options_of(args, kind, length):
    sets, batch, steps = KINDS[kind]
    words = [s.format(data=args.data, out=args.out.resolve()) for s in sets]
    words += [f"train.batch_size={batch}", f"train.max_steps={steps * length}", "train.epochs=100000",
              f"train.virtual_ranks={args.slots}", "train.eval_every_epochs=0", "train.log_every=5"]
    return [w for word in words for w in ("--set", word)]


def get(folder, path):
    connection = UnixConnection(folder / "api.sock", timeout=60)
    connection.request("GET", path)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def records(run, file):
    whole = (run / file).read_text().rpartition("\n")[0]  # another line may be being written
    return [json.loads(line) for line in whole.splitlines()]


def digest_of(run):
    return [r for r in records(run, "events.jsonl") if r.get("kind") == "end"][-1]["weights_digest"]


def train(args, run, kind, length, workers):
    """Starts it; the run's folder is made by it."""
    environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
    words = [args.build / "bin" / "ductile", "-q", "train", "--out", run, "--workers", str(workers),
             "--set", "train.threads=1", *options_of(args, kind, length)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)


class Up:
    """`ductile up` with so many slots under a policy; the jobs that are handed to it."""

    def __init__(self, args, label):
        self.args, self.folder = args, args.out / "service"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.process = subprocess.Popen(
            [args.build / "bin" / "ductile", "up", "--folder", self.folder, "--devices", str(args.slots), "--no-page",
             "--policy", parts_of(label)[0], "--interval", str(interval_of(args, label))],
            env=dict(os.environ, OMP_WAIT_POLICY="PASSIVE"), stdout=subprocess.DEVNULL,
            stderr=open(args.out / "service.log", "a"))
        while not (self.folder / "api.sock").exists():
            time.sleep(0.05)
        time.sleep(0.5)

    def submit(self, name, least, most, kind, length):
        done = subprocess.run([self.args.build / "bin" / "ductile", "submit", "--folder", self.folder, "--name", name,
                               "--min", str(least), "--max", str(most), *options_of(self.args, kind, length)],
                              check=True, capture_output=True, text=True)
        return int(done.stdout)

    def finish(self):
        while get(self.folder, "/v1/jobs?live=1&limit=1000")["jobs"]:
            time.sleep(0.1)

    def cancel(self, pattern):
        subprocess.run([self.args.build / "bin" / "ductile", "cancel", "--folder", self.folder, pattern],
                       capture_output=True)  # nothing left of that name is no fault

    def record(self, number):
        return get(self.folder, f"/v1/jobs/{number}")

    def resize(self, number, slots):
        connection = UnixConnection(self.folder / "api.sock", timeout=60)
        status, text = ask(connection, "POST", f"/v1/jobs/{number}/resize", {"min_devices": slots, "max_devices": slots})
        connection.close()
        assert status == 200, text

    def allocations(self, number):
        """[second since the epoch, slots] at each change of what the job has been granted."""
        after, found = 0, []
        while True:
            page = get(self.folder, f"/v1/events?job={number}&after={after}&limit=1000")
            found += [[e["time"], sum(e["body"]["nodes"].values())] for e in page["events"] if e["kind"] == "allocation"]
            if len(page["events"]) < 1000:
                return found
            after = page["after"]

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()


LENGTH = 2  # of the jobs of a profile
NOBODY = "nobody"


def profile(args):
    """{kind: profile}: {slots: {kind on the other slots, or "nobody": seconds per step}}, the seconds from the moment in which a job
    is given its slots to its first step, those of its end, and those without a step when its size changes while it runs.
    The service has run jobs of all kinds before: a workload has one cold start at most."""
    up = Up(args, "fifo")
    try:
        for kind in KINDS:
            up.submit(f"first-{kind}", 1, 1, kind, 1)
        up.finish()
        kinds = list(KINDS)
        random.Random(f"profile {time.time()}").shuffle(kinds)  # the machine's speed changes meanwhile
        return {kind: profile_of(args, up, kind) for kind in kinds}
    finally:
        up.end()


def profile_of(args, up, kind):
    out, start, end = {}, [], []
    for slots in range(1, args.slots + 1):
        times = out[str(slots)] = {}
        for other in [NOBODY, *KINDS] if slots < args.slots else [NOBODY]:
            record = run_beside(args, up, kind, slots, other)
            rows = [r for r in records(pathlib.Path(record["run"]), "metrics.jsonl") if "train/loss" in r]
            times[other] = (rows[-1]["time"] - rows[0]["time"]) / (rows[-1]["step"] - rows[0]["step"])
            # Not from its submission: a job waits for the next round before that, which the simulator does itself.
            start.append(rows[0]["time"] - times[other] * rows[0]["step"] - record["started"])
            end.append(record["ended"] - rows[-1]["time"])
    resizes = resized(args, up, kind) if args.slots > 1 else [0.0]
    return {"steps": out, "start": statistics.median(start), "end": statistics.median(end),
            "resize": statistics.median(resizes), "resizes": resizes}


def run_beside(args, up, kind, slots, other):
    """The record of a job that ran on so many slots while all others had jobs of another kind, or none."""
    beside = int(other != NOBODY)
    if beside:  # the other one first, so that all of this one is beside it
        up.submit(f"beside-{kind}-{slots}-{other}-0", 1, 1, other, LENGTH)
        while not any(job["phase"] == "running" for job in get(up.folder, "/v1/jobs?live=1&limit=1000")["jobs"]):
            time.sleep(0.05)
    number = up.submit(f"{kind}-{slots}-{other}", slots, slots, kind, LENGTH)
    while (phase := up.record(number)["phase"]) != "finished":
        assert phase in ("queued", "running"), phase
        waiting = [job for job in get(up.folder, "/v1/jobs?live=1&limit=1000")["jobs"] if job["phase"] == "queued"]
        if beside and not waiting:
            up.submit(f"beside-{kind}-{slots}-{other}-{beside}", 1, 1, other, 1)
            beside += 1
        time.sleep(0.2)
    up.cancel(f"beside-{kind}-{slots}-{other}-*")
    up.finish()
    return up.record(number)


def resized(args, up, kind):
    """The seconds without a step at each change of a job that grows and shrinks by turns while it runs."""
    number, slots, seen = up.submit(f"resized-{kind}", 1, 1, kind, 2 * LENGTH), 1, 1
    while (record := up.record(number))["phase"] != "finished":
        assert record["phase"] in ("queued", "running"), record["phase"]
        run = pathlib.Path(record["run"]) if record["run"] else None
        last = logged(run)[-1:] if run and (run / "metrics.jsonl").exists() else []
        if last and last[0]["generation"] == seen and len([r for r in logged(run) if r["generation"] == seen]) > 4:
            slots, seen = (args.slots if slots == 1 else 1), seen + 1
            up.resize(number, slots)
        time.sleep(0.1)
    found = pauses(pathlib.Path(record["run"]))
    assert found, f"the job of kind {kind} was over before its size changed: the machine is too fast for it"
    return [seconds for _, _, seconds in found]


def logged(run):
    return [r for r in records(run, "metrics.jsonl") if "train/loss" in r]


def generations(run):
    """{number: (first step, slots, its rows)} of the generations of a run that logged."""
    out = {}
    for r in records(run, "events.jsonl"):
        if r.get("event") == "generation":
            step, slots = re.search(r"from step (\d+) with (\d+) of", r["text"]).groups()
            out[r["generation"]] = (int(step), int(slots), [])
    for row in logged(run):
        out[row["generation"]][2].append(row)
    return {n: g for n, g in out.items() if g[2]}


def pauses(run):
    """[slots before, slots after, seconds without a step] at each change of a run's size; stops of the whole job are
    among them, where before and after are one process's and another's."""
    found, rate = [], {}
    each = generations(run)
    for n, (_, _, rows) in each.items():
        if len(rows) > 1:
            rate[n] = (rows[-1]["time"] - rows[0]["time"]) / (rows[-1]["step"] - rows[0]["step"])
    for n, (first, slots, rows) in each.items():
        if n not in rate or n - 1 not in rate:
            continue
        before, after = each[n - 1][2][-1], rows[0]
        work = (first - before["step"]) * rate[n - 1] + (after["step"] - first) * rate[n]
        found.append([each[n - 1][1], slots, max(0.0, after["time"] - before["time"] - work)])
    return found


def measured(run):
    """Of a job that has run in a service: [slots, steps, from, to] of each generation that logged twice, in seconds since
    the epoch."""
    return [[slots, rows[-1]["step"] - rows[0]["step"], rows[0]["time"], rows[-1]["time"]]
            for _, slots, rows in generations(run).values() if len(rows) > 1]


def real(args, name, label, digests):
    """One workload under one policy: each job's arrival, start, end, changes, rates, and whether its weights are those of
    the job alone. Before them one job of each kind runs, which does not count."""
    jobs, up = workload(name, args.slots), Up(args, label)
    try:
        for kind in KINDS:
            up.submit(f"first-{kind}", *slots_of(args, label, 1), kind, 1)
        up.finish()
        begin, numbers = time.time(), {}
        for job, kind, length, asked, arrival in jobs:
            time.sleep(max(0.0, begin + arrival - time.time()))
            numbers[job] = up.submit(job, *slots_of(args, label, asked), kind, length)
        up.finish()
        return [facts_of(up, numbers[job[0]], digests, begin, *job) for job in jobs]
    finally:
        up.end()


def facts_of(up, number, digests, begin, job, kind, length, asked, arrival):
    """Times are seconds since the workload began."""
    record = up.record(number)
    run, submitted = pathlib.Path(record["run"]), record["submitted"]
    return {"name": job, "kind": kind, "length": length, "asked": asked, "arrival": arrival,
            "jct": record["ended"] - submitted, "waited": record["started"] - submitted,
            "allocations": record["generation"], "phase": record["phase"], "ended": record["ended"] - begin,
            "measured": [[slots, steps, since - begin, to - begin] for slots, steps, since, to in measured(run)],
            "granted": [[when - begin, slots] for when, slots in up.allocations(number)], "pauses": pauses(run),
            "same_bits": digest_of(run) == digests[f"{kind}-{length}"]}


def alone(args):
    """{kind-length: digest of the weights} of each job, run alone."""
    out = {}
    for kind, length in sorted({(k, n) for w in args.workloads for _, k, n, _, _ in workload(w, args.slots)}):
        run = args.out / "alone" / f"{kind}-{length}"
        shutil.rmtree(run, ignore_errors=True)
        assert train(args, run, kind, length, args.slots).wait() == 0
        out[f"{kind}-{length}"] = digest_of(run)
    return out
