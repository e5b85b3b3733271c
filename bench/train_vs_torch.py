#!/usr/bin/python3
"""Training throughput: Ductile against python3-torch, alternately in one run.

Usage: bench/train_vs_torch.py --model resnet20|cnn --data DIR [--precision fp32|bf16] [--threads 2]
                               [--rounds 5] [--seconds 20] [--build build/release] [--markdown FILE]
                               [--rival-precision fp32|bf16] [-- RIVAL_ARGUMENT ...]

Both sides train the same model with the same batch (128), precision, thread count and augmentation,
data loading included; the rival is bench/train_rival.py, which picks its
fastest memory format and form of update by the CPU time of a step (torch runs eagerly, without
torch.compile, and loads its data in the same process unless --workers says otherwise). Each
round gives each side one burst of about --seconds, in turns; process start-up and the first
seconds of each burst (thread pools, caches, loader warm-up) are not counted on either side.
On a processor without bf16 arithmetic torch's bf16 is many times slower than its fp32: there
--rival-precision fp32 compares with the rival at its best. What follows -- goes to the rival, for
example --memory-format channels_last --foreach off (no search), --workers 1 (DataLoader processes).
Prints a JSON line a burst and the median ratio of samples/s with its spread.
"""
import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

JOBS = {
    "resnet20": dict(rival="cifar10", format="cifar10", model="resnet20", pad=4, flip=True),
    "cnn": dict(rival="fashion", format="idx", model="cnn", pad=0, flip=False),
}
BATCH = 128
WARM_UP_WINDOWS = 2
LOG_EVERY = 10


def job_file(args, folder, max_steps):
    job = JOBS[args.model]
    text = f"""
[data]
format = "{job['format']}"
path = "{args.data}"
test_limit = 128
[augment]
pad = {job['pad']}
flip = {str(job['flip']).lower()}
[model]
name = "{job['model']}"
[optimizer]
name = "sgd"
lr = 0.01
momentum = 0.9
weight_decay = 5e-4
[train]
epochs = 100000
max_steps = {max_steps}
batch_size = {BATCH}
precision = "{args.precision}"
threads = {args.threads}
eval_every_epochs = 0
log_every = {LOG_EVERY}
[checkpoint]
every_seconds = 0
at_end = false
"""
    (folder / "job.toml").write_text(text)
    for sub in ("checkpoints", "tensorboard"):
        (folder / sub).mkdir()


def ductile_burst(args, max_steps):
    """Samples/s over the burst's metric lines, the first WARM_UP_WINDOWS left out."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job_file(args, folder, max_steps)
        environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="1000",
                           GLIBC_TUNABLES="glibc.malloc.hugetlb=1",
                           OMP_NUM_THREADS=str(args.threads))
        worker = pathlib.Path(args.build) / "bin" / "ductile-worker"
        subprocess.run([worker, "--run", folder], check=True, env=environment)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [line for line in lines if "train/loss" in line]
        first, last = lines[WARM_UP_WINDOWS - 1], lines[-1]
        samples = (last["step"] - first["step"]) * BATCH
        return samples / (last["seconds"] - first["seconds"])


class Rival:
    def __init__(self, args):
        command = ["/usr/bin/python3", HERE / "train_rival.py", JOBS[args.model]["rival"],
                   "--data", args.data, "--precision", args.rival_precision, "--threads", str(args.threads),
                   "--seconds", str(args.seconds), "--driven", *args.rival]
        environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def burst(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline()
            if not line:
                sys.exit("train_vs_torch: the rival ended early")
            answer = json.loads(line)
            if "wall_s" in answer:
                return answer["samples"] / answer["wall_s"], answer

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(JOBS), required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rival-precision", choices=["fp32", "bf16"], help="default: --precision")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--build", default=str(HERE.parent / "build" / "release"))
    parser.add_argument("--markdown", help="append the result to this file")
    parser.add_argument("rival", nargs="*", help="after --: arguments of bench/train_rival.py")
    args = parser.parse_args()
    args.rival_precision = args.rival_precision or args.precision
    args.data = str(pathlib.Path(args.data).resolve())

    rival = Rival(args)
    rival.burst()  # its own warm-up and choice of data path
    probe = ductile_burst(args, 6 * LOG_EVERY)
    steps = max(6 * LOG_EVERY, int(probe * args.seconds / BATCH / LOG_EVERY) * LOG_EVERY)
    ratios, ours_all, theirs_all = [], [], []
    for number in range(args.rounds):
        theirs, detail = rival.burst()
        ours = ductile_burst(args, steps)
        ours_all.append(ours)
        theirs_all.append(theirs)
        ratios.append(ours / theirs)
        print(json.dumps({"round": number, "ductile": round(ours, 1), "torch": round(theirs, 1),
                          "ratio": round(ours / theirs, 3), "rival": detail}), flush=True)
    rival.close()
    median = statistics.median(ratios)
    precision = args.precision
    if args.rival_precision != precision:
        precision = f"{precision} (torch: {args.rival_precision})"
    result = (f"{args.model}, {precision}, batch {BATCH}, {args.threads} threads, "
              f"{args.rounds} rounds of {args.seconds:g} s: Ductile {statistics.median(ours_all):.0f} "
              f"samples/s, torch {statistics.median(theirs_all):.0f} samples/s, ratio {median:.2f} "
              f"(from {min(ratios):.2f} to {max(ratios):.2f})")
    print(result)
    if args.markdown:
        with open(args.markdown, "a") as out:
            command = (f"bench/train_vs_torch.py --model {args.model} --precision {args.precision} "
                       f"--rival-precision {args.rival_precision} --threads {args.threads} "
                       f"--rounds {args.rounds} --seconds {args.seconds:g} -- "
                       + " ".join(args.rival)).removesuffix(" -- ")
            out.write(f"- {result}; {platform.machine()}, command: `{command}`\n")


if __name__ == "__main__":
    main()
