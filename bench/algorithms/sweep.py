#!/usr/bin/env python3
"""Training algorithms against each other, in the manner of AlgoPerf.

  sweep.py run OUT --data FOLDER --workloads A,B --submissions C,D [options]
  sweep.py report OUT -o bench/results/NAME [the same options]
  sweep.py text FOLDER

run: every submission on every workload, and its results in OUT. Stopped or killed, it goes on where it
  was when it is called again: a trial with a whole result is not run again, one that was stopped
  resumes its own run directory. A trial has one compute thread.
report: a page, the results with all settings, and the pictures, from what OUT holds.
text: makes the text of the workload gpt_docs in FOLDER/docs, from this repository's documentation and
  that below /usr/share/doc. FOLDER is then the --data of "run".

FOLDER of --data has fashion-mnist/ (the four .gz files), cifar10/ (the binary version) and docs/.
Ruleset "fixed": each submission has its one point on all workloads. Ruleset "tuned": of --trials points,
drawn from the submission's space, the one with the least error at its end is scored on other seeds; a
submission without a space has its one point there, too.
The clock is the CPU time of training: wall times mean nothing on a machine that does other work.
"""
import argparse
import fcntl
import pathlib
import signal
import sys
import textwrap
import time

import experiment
import page
import results
import text
import trials


def positive(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number of at least 1 is wanted")
    return int(text)


def rulesets(text):
    names = text.split(",")
    for name in names:
        if name not in ("fixed", "tuned"):
            raise argparse.ArgumentTypeError(f"\"{name}\" is neither fixed nor tuned")
    return names


def names_in(folder):
    """As help shows them."""
    return textwrap.fill(", ".join(sorted(path.stem for path in folder.glob("*.toml"))), 100)


def flags():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"workloads:\n{names_in(experiment.HERE / 'workloads')}\n\n"
               f"submissions:\n{names_in(experiment.HERE / 'submissions')}")
    parser.add_argument("what", choices=("run", "report", "text"))
    parser.add_argument("out", type=pathlib.Path, help="folder of the results; text: the folder of the data sets")
    parser.add_argument("--data", type=pathlib.Path, help="run: the folder of the data sets")
    parser.add_argument("--workloads", default="fashion_mnist_cnn", help="names with commas (default %(default)s)")
    parser.add_argument("--submissions", default="sgd_cosine,adamw_cosine,nadamw,muon,schedule_free,ademamix,"
                        "knee,lrtuner", help="names with commas (default %(default)s)")
    parser.add_argument("--files", type=pathlib.Path, default=experiment.HERE,
                        help="folder with workloads/ and submissions/")
    parser.add_argument("--rulesets", type=rulesets, default="fixed,tuned", help="fixed, tuned, or both with a comma")
    parser.add_argument("--seeds", type=positive, default=5, help="that are scored (default %(default)s)")
    parser.add_argument("--trials", type=positive, default=5,
                        help="points that the tuned ruleset tries (default %(default)s)")
    parser.add_argument("--draw-seed", type=int, default=experiment.DRAW_SEED,
                        help="of the points of the tuned ruleset (default %(default)s; of results until November "
                             "2026: 20)")
    parser.add_argument("--at-once", type=positive, default=2,
                        help="run: so many trials at a time (default %(default)s)")
    parser.add_argument("--build", type=pathlib.Path, default=experiment.HERE.parent.parent / "build" / "release",
                        help="run: folder of the build whose bin/ductile trains (default: build/release)")
    parser.add_argument("-o", "--output", type=pathlib.Path, help="report: path without .md")
    parser.add_argument("--title", default="Training algorithms")
    parser.add_argument("--note", default="", help="report: a paragraph below the title, such as the machine's load")
    return parser


class Sweep:
    """The trials of a command line and where their results lie."""

    def __init__(self, args):
        self.args = args
        self.out = args.out.resolve()
        self.workloads = [experiment.read_workload(n, args.files / "workloads") for n in args.workloads.split(",")]
        self.submissions = [experiment.read_submission(n, args.files / "submissions", args.draw_seed)
                            for n in args.submissions.split(",")]
        self.known = {}

    def result(self, trial):
        if trial.name not in self.known:
            found, why = results.read_result(self.result_path(trial), trial)
            if why:
                print(f"{why}: the trial's run directory is asked, or it runs again", file=sys.stderr)
            if not found:
                return None
            self.known[trial.name] = found
        return self.known[trial.name]

    def result_path(self, trial):
        return self.out / "results" / f"{trial.name}.json"

    def stages(self, workload):
        """Lists of trials, each made when those before it are over."""
        fixed = "fixed" in self.args.rulesets
        # What has nothing to tune has its one point in both rulesets.
        yield experiment.fixed_trials(workload, [s for s in self.submissions if fixed or not s.space], self.args.seeds)
        if "tuned" in self.args.rulesets:
            yield experiment.tuning_trials(workload, self.submissions, self.args.trials)
            yield experiment.tuned_trials(workload, self.submissions, self.args.seeds, self.args.trials, self.result)


def take(out):
    """One sweep at a time works in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    lock = open(out / "lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise experiment.Wrong(f"{out}: another sweep works there") from None
    return lock


def run(args):
    if args.data is None:
        raise experiment.Wrong("run: --data is missing; it names the folder with the data sets")
    for program in trials.programs_of(args.build):
        if not program.is_file():
            raise experiment.Wrong(f"{program}: no such program; scripts/build release ductile ductile-worker makes it, "
                                   "and --build names the folder of another build")
    sweep = Sweep(args)
    lock = take(sweep.out)
    build = args.build.resolve()
    place = trials.Place(sweep.out / "runs", args.data.resolve(), build, trials.hash_of(build), args.at_once)
    failures = []
    for workload in sweep.workloads:
        for stage in sweep.stages(workload):
            tell_of_other_programs(sweep, stage, place)
            waiting = [t for t in stage if not sweep.result(t)]
            failures += run_all(waiting, place, sweep)
    lock.close()
    for name, why in failures:
        print(f"{name}: {why}", file=sys.stderr)
    return 1 if failures else 0


def tell_of_other_programs(sweep, stage, place):
    """Of results that are kept, though the program that is there now may train otherwise."""
    found = [sweep.result_path(t) for t in stage if sweep.result(t) and
             sweep.result(t).get("programs") != [place.program]]
    if found:
        print(f"results of another build of Ductile than {place.program}, or of none that is recorded, are kept: "
              f"{len(found)}, such as {found[0]}; in another folder all are trained anew", file=sys.stderr)


def run_all(waiting, place, sweep):
    running, failures, left = [], [], len(waiting)
    waiting = list(reversed(waiting))
    try:
        while waiting or running:
            while waiting and len(running) < place.at_once:
                running.append(trials.Running(waiting.pop(), place))
            time.sleep(trials.SAMPLE_EVERY)
            for r in [r for r in running if r.over()]:
                running.remove(r)
                left -= 1
                found, why = r.result()
                if found:
                    results.write_result(sweep.result_path(r.trial), found)
                    last = found["curve"][-1]["accuracy"] if found["curve"] else float("nan")
                    print(f"{r.trial.name}: {found['status']}, accuracy {last:.4f}, "
                          f"{found['core_seconds']:.1f} CPU s; {left} left", flush=True)
                else:
                    failures.append((r.trial.name, why))
    finally:  # stopped: each saves its state
        for r in running:
            r.ask_to_stop()
        for r in running:
            r.wait()
    return failures


def report(args):
    if args.output is None:
        raise experiment.Wrong("report: -o is missing; it names the page without .md")
    sweep = Sweep(args)
    found = {w.name: [[sweep.result(t) for t in stage] for stage in sweep.stages(w)] for w in sweep.workloads}
    flat = [r for stages in found.values() for stage in stages for r in stage if r]
    if not flat:
        raise experiment.Wrong(f"{sweep.out}: has no result of these workloads and submissions")
    page.write(args, sweep.workloads, sweep.submissions, flat)
    return 0


def main():
    args = flags().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return {"run": run, "report": report, "text": text.make}[args.what](args)
    except experiment.Wrong as e:
        print(e, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
