#!/usr/bin/python3
"""Real jobs under each policy on the slots of this machine, and the same workload in the simulator.

Usage: bench/live/real_vs_sim.py OUT [--policies fifo,tiresias,pollux,sia,ductile] [--sizes asked] [--workloads a,b]
                                 [--slots 2] [--rounds 1] [--interval 0.5,pollux=1] [--profiles before,after]
                                 [--jitter 0] [--budget exact] [--data FOLDER] [--build build/release]

1. Each kind of job runs in a service on each number of slots, alone and beside jobs of each kind on the others, which
   slow it down more or less: its time per step, and the seconds that a start (from the moment in which it is given its
   slots), an end, and a change of size while it runs take (the profile). The simulator is told the time alone, and
   one factor for the time during which others run (`ductile sim --neighbours`): each kind beside each, as often as the
   workload has work of both.
   By default profiles are taken before the first workload and after the last one, and their means count.
   The machine's speed changes within an hour, so the jobs of each turn (one workload under one policy) are
   measured as they run as well, and the simulator is given those times too: what is left is its own error.
2. Each workload runs under each policy with `ductile up`, jobs arriving when they should. Policies
   take turns, and another one begins in each round.
3. The same workload runs in `ductile sim` with the profile. Its rounds are those of the service. A change of
   size costs what it took in the profile if `ductile sim` has --resize, and else as much as a start.
   With --jitter N it runs N times more, each job coming up to half a second sooner or later and each kind of step
   taking up to 3 % more or less, as it is in reality: some policies decide quite otherwise then, and the table
   gives the range that nine in ten of these runs have beside the real mean.
4. Each kind of job runs alone to its end; the weights of every job must have that digest.

Who knows what. Each turn, real and simulated, begins with one job of each kind that does not count, so that a
service has seen each kind on some number of slots, and how long one of its jobs was: `ductile` shares what jobs of one
kind measured, in both. Policies that reckon with the speed of a job before it has run (`srtf`, `optimus`,
`gavel`) are told it beforehand by the simulator; what a service knows of it, it has of such jobs before. `pollux` and
`sia` learn each job's speed from that job alone, as published. All jobs declare their steps (`train.max_steps`,
really; --budget exact, simulated), to whoever asks for that. --budget exact,none simulates the turns without
that as well; the service cannot hide it. Batches are fixed.

Who decides when. In the service, `ductile` decides at arrivals and ends as well, the others at rounds, and at once
where nothing runs; no option gives them that. So rounds are short here (--interval), which leaves
them half a round of waiting on average. `pollux` has longer ones, since its search would take a good part of a
processor. --information full lets all decide at events in the simulator (and lets
those that measure their jobs share it): that is not what the service does.

Policies that do not resize jobs run each with the slots that it asks for; the others may give it from one slot to all.
The sizes that users ask for are the largest handicap of the former, so --sizes asked,one runs them a second time with
one slot for each job (`srtf-one`).

FOLDER has fashion-mnist and cifar10 as `ductile data` takes them. Workload a was there while this was
written; b was kept apart. It wants a quiet machine, and resumes where it stopped: what lies in OUT is not run again.
Writes OUT/report.json, with each job's grants, real and simulated, and prints a table: of the rounds of a workload under
a policy the median, and the lowest and highest. "At the profile's speed" is the real mean divided by how many times as
long as in the profile the steps of its turn took. The order of policies is compared by that and by the profile.
"""
import argparse
import array
import json
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
from in_service import FIXED_SIZE, KINDS, ROOT, alone, profile, real  # noqa: E402
from in_simulator import in_workload, jittered, mean_jct, mean_of, profiles_during, simulated  # noqa: E402


def kept(path, make):
    """What lies there, or is made now."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = make()
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(value, indent=1))
        temporary.rename(path)
    return json.loads(path.read_text())


def write_text(args):
    text = b"".join(f.read_bytes() for f in sorted(ROOT.glob("docs/**/*.md")))
    numbers = array.array("H", list(text))
    (args.out / "text.bin").write_bytes(numbers[:len(text) * 9 // 10].tobytes())
    (args.out / "text_test.bin").write_bytes(numbers[len(text) * 9 // 10:].tobytes())


def turns_of(args):
    """(round, workload, policy with its sizes)"""
    labels = [policy + ("" if size == "asked" else "-one") for policy in args.policies for size in args.sizes
              if size == "asked" or policy in FIXED_SIZE]
    if "asked" not in args.sizes:  # those that resize have no other sizes
        labels += [policy for policy in args.policies if policy not in FIXED_SIZE]
    return [(n, name, label) for n in range(args.rounds) for name in args.workloads
            for label in labels[n % len(labels):] + labels[:n % len(labels)]]


def row_of(args, turn, jobs, profiles):
    """One turn: reality, and the simulator with the profile and with the times of the turn."""
    round_number, name, label = turn
    expected = in_workload(args, name, profiles)
    during, factor = profiles_during(jobs, expected)
    found = {"sim": expected, "sim_during": during}
    simulations = {key: simulated(args, name, label, p) for key, p in found.items()}
    row = {"workload": name, "policy": label, "round": round_number, "real": mean_jct(jobs), "factor": factor,
           **{key: mean_jct(sim) for key, sim in simulations.items()},
           "allocations": sum(j["allocations"] for j in jobs),
           "finished": sum(j["phase"] == "finished" for j in jobs),
           "same_bits": sum(j["same_bits"] for j in jobs), "jobs": len(jobs),
           "jittered": jittered(args, name, label, during), "real_jobs": jobs,
           **{f"{key}_jobs": sim for key, sim in simulations.items()}}
    row["at_speed"] = row["real"] / factor
    row["ratio"], row["ratio_during"] = row["at_speed"] / row["sim"], row["real"] / row["sim_during"]
    if row["jittered"]:
        row["ratio_jittered"] = row["real"] / row["jittered"][1]
    if "none" in args.budget:
        row["sim_none"] = mean_jct(simulated(args, name, label, expected, budget="none"))
    return row


def spread(values, digits=1):
    middle = f"{statistics.median(values):.{digits}f}"
    return middle + (f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else "")


COLUMNS = [("real s", "real", 1), ("turn / profile", "factor", 2), ("real at the profile's speed, s", "at_speed", 1),
           ("simulated s", "sim", 1), ("real at that speed / simulated", "ratio", 3),
           ("simulated with the times of the turn, s", "sim_during", 1), ("real / simulated", "ratio_during", 3)]


def print_table(args, rows):
    columns = COLUMNS + [("simulated without known lengths, s", "sim_none", 1)] * ("none" in args.budget) \
        + [("real / jittered median", "ratio_jittered", 3)] * (args.jitter > 0)
    print("\n| workload | policy | " + " | ".join(title for title, *_ in columns) + " | allocations | same bits |")
    print("|---" * (len(columns) + 4) + "|")
    for name in args.workloads:
        groups = {}
        for r in rows:
            if r["workload"] == name:
                groups.setdefault(r["policy"], []).append(r)

        def order(key):
            return sorted(groups, key=lambda label: statistics.median(r[key] for r in groups[label]))

        for label in order("at_speed"):
            of = groups[label]
            print(f"| {name} | {label} | " + " | ".join(spread([r[key] for r in of], d) for _, key, d in columns) +
                  f" | {spread([r['allocations'] for r in of], 0)} | {sum(r['same_bits'] for r in of)} of "
                  f"{sum(r['jobs'] for r in of)} |")
        print(f"\n{name}: order at the profile's speed: {', '.join(order('at_speed'))}; simulated with the profile: "
              f"{', '.join(order('sim'))}\n", file=sys.stderr)


def intervals(text):
    """{policy, or nothing for all others: seconds}"""
    return {policy: float(seconds) for policy, _, seconds in (word.rpartition("=") for word in text.split(","))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    words = str.split
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--policies", default="fifo,tiresias,pollux,sia,ductile", type=lambda t: words(t, ","))
    parser.add_argument("--sizes", default="asked", type=lambda t: words(t, ","),
                        help="of jobs under policies that do not resize them: asked, one, or both")
    parser.add_argument("--workloads", default="a,b", type=lambda t: words(t, ","))
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--interval", dest="intervals", type=intervals, default="0.5,pollux=1",
                        help="seconds between the rounds of policies; of some others with their names")
    parser.add_argument("--profiles", default="before,after", type=lambda t: words(t, ","))
    parser.add_argument("--jitter", type=int, default=0)
    parser.add_argument("--budget", default="exact", type=lambda t: words(t, ","),
                        help="exact,none: simulate also without known lengths")
    parser.add_argument("--information", default="own", help="that of `ductile sim`")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "data")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    args = parser.parse_args()
    if not set(args.sizes) <= {"asked", "one"} or not set(args.budget) <= {"exact", "none"} or "" not in args.intervals:
        parser.error("--sizes has asked and one, --budget exact and none, --interval a number without a name")
    args.data, args.build = args.data.resolve(), args.build.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args)

    def profiles_of(when):
        return [kept(args.out / f"profile-{when}.json", lambda: profile(args))] if when in args.profiles else []

    profiled = profiles_of("before")
    digests = kept(args.out / "alone.json", lambda: alone(args))
    done = {turn: kept(args.out / f"real-{turn[1]}-{turn[2]}-{turn[0]}.json",
                       lambda turn=turn: real(args, *turn[1:], digests)) for turn in turns_of(args)}
    profiled += profiles_of("after")
    profiles = {k: mean_of([p[k] for p in profiled]) for k in KINDS}
    rows = [row_of(args, turn, jobs, profiles) for turn, jobs in done.items()]
    (args.out / "report.json").write_text(json.dumps({"profiles": profiled, "rows": rows}, indent=1))
    print_table(args, rows)


if __name__ == "__main__":
    main()
