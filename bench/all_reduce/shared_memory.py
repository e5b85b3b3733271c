#!/usr/bin/python3
"""All-reduce between processes of one host: Ductile against Open MPI and Gloo, alternately.

Usage: bench/all_reduce/shared_memory.py [--build build/release] [--ranks 2,4,8] [--rounds 5]
           [--sizes 4096,1048576,26214400,104857600] [--seconds 0.15] [--realtime 1]
           [--pause 0] [--markdown FILE]

Every round starts each system (and each of its algorithms) once, for a burst of --seconds at each
size; the loop that measures is the same for all (bench/all_reduce/measure.h): float32 sums in
place, results checked, time of the slowest rank. --realtime N runs all of them under `chrt -r N`.

Per size: each algorithm's time is the median over its rounds; a rival is its best algorithm at that
size; the ratio is the median over rounds of (best algorithm of the rival, that round) / ours.
Rivals: Open MPI over shared memory (pml ob1 with btl vader, and pml ucx), with its default choice
and with its allreduce algorithms recursive doubling, ring, segmented ring and Rabenseifner; Gloo
(its TCP transport on loopback: it has no other) with ring, ring_chunked, halving_doubling, bcube.
"""
import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

OPEN_MPI_ALGORITHMS = {"default": 0, "recursive doubling": 3, "ring": 4, "segmented ring": 5,
                       "Rabenseifner": 6}
OPEN_MPI_WIRES = {
    "vader": ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"],
    "ucx": ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any",
            "-x", "UCX_TLS=self,posix,cma"],
}
GLOO_ALGORITHMS = ["ring", "ring_chunked", "halving_doubling", "bcube"]


def contenders(args, ranks):
    """(system, algorithm, command) of all that were built and are installed."""
    programs = pathlib.Path(args.build) / "bench" / "all_reduce"
    tail = [args.sizes, str(args.seconds)]
    yield "ours", "direct", [str(programs / "all_reduce_ours"), str(ranks), *tail]
    mpi, gloo = programs / "all_reduce_open_mpi", programs / "all_reduce_gloo"
    if mpi.exists() and shutil.which("mpirun"):
        for wire, choice in OPEN_MPI_WIRES.items():
            for name, number in OPEN_MPI_ALGORITHMS.items():
                if wire == "ucx" and name == "segmented ring":
                    continue  # never the best there; saves a burst
                algorithm = [] if number == 0 else [
                    "--mca", "coll_tuned_use_dynamic_rules", "1",
                    "--mca", "coll_tuned_allreduce_algorithm", str(number)]
                yield ("Open MPI", f"{wire}, {name}",
                       ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                        "-np", str(ranks), *choice, *algorithm, str(mpi), *tail])
    if gloo.exists():
        for algorithm in GLOO_ALGORITHMS:
            yield "Gloo", algorithm, [str(gloo), str(ranks), *tail, algorithm]


def burst(command, args, num_sizes):
    time.sleep(args.pause)
    prefix = ["chrt", "-r", str(args.realtime)] if args.realtime else []
    done = subprocess.run(prefix + command, capture_output=True, text=True, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    # All figures are out before the end; mpirun sometimes trips over its own shutdown.
    if len(lines) != num_sizes:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    for line in lines:
        if not line["ok"]:
            sys.exit(f"{' '.join(command)}: wrong sums at {line['bytes']} bytes")
    return {line["bytes"]: line["us"] for line in lines}


def human(size):
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--sizes", default="4096,1048576,26214400,104857600")
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--realtime", type=int, default=0, help="round-robin priority; 0: normal")
    parser.add_argument("--pause", type=float, default=0, help="seconds between bursts, for others")
    parser.add_argument("--markdown")
    args = parser.parse_args()
    sizes = [int(s) for s in args.sizes.split(",")]
    lines = ["| ranks | size | ours (us) | Open MPI (us) | its best | Gloo (us) | its best "
             "| best rival / ours |", "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    print("\n".join(lines), flush=True)
    for ranks in [int(r) for r in args.ranks.split(",")]:
        rounds = []  # of {(system, algorithm): {bytes: us}}
        for i in range(args.rounds):
            everyone = list(contenders(args, ranks))
            if i % 2:
                everyone.reverse()
            rounds.append({(system, algorithm): burst(command, args, len(sizes))
                           for system, algorithm, command in everyone})
        for size in sizes:
            cells = [str(ranks), human(size)]
            medians = {key: statistics.median(r[key][size] for r in rounds) for key in rounds[0]}
            own = [r["ours", "direct"][size] for r in rounds]
            cells.append(f"{statistics.median(own):.4g} [{min(own):.4g}, {max(own):.4g}]")
            for system in ("Open MPI", "Gloo"):
                of_it = {a: us for (s, a), us in medians.items() if s == system}
                best = min(of_it, key=of_it.get) if of_it else None
                cells += [f"{of_it[best]:.4g}", best] if best else ["", "not built"]
            ratios = [min(v[size] for (s, _), v in r.items() if s != "ours") /
                      r["ours", "direct"][size] for r in rounds if len(r) > 1]
            if ratios:
                cells.append(f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, "
                             f"{max(ratios):.2f}]")
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    if args.markdown:
        text = [f"Python {platform.python_version()}, {os.cpu_count()} cores; arguments: "
                f"{' '.join(sys.argv[1:])}", "", *lines, ""]
        pathlib.Path(args.markdown).write_text("\n".join(text))


if __name__ == "__main__":
    main()
