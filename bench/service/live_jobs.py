#!/usr/bin/python3
"""What a service carries of jobs that run, and how fast jobs begin: a real `ductile server` on this machine.

Usage: bench/service/live_jobs.py [--jobs 1000] [--max 1] [--devices N] [--beat 200] [--seconds 60] [--policies ductile,fifo]
                                  [--rounds 3] [--admitted 1000] [--build build/release] [--out FILE]

live       So many jobs, each on a device of its own (with --max 8 on one to eight, so that the policy has a choice; it has more
           of it with more --devices than jobs), all at work: from the first submission until the worker of every
           one has begun its steps; then, while a job is submitted and taken back each second, which makes the service decide, the time
           of its rounds (the policy's, and with all that the service does for it) as its /metrics say, requests,
           processor time and memory of the service.
admission  --admitted jobs that end at once, submitted together, on as many devices: from the first submission to the
           last one that is given devices, and to the last start, as the service's records say. Of jobs of one step, and of
           commands (`true`).

Emulated: the nodes are this machine under other names, with up to 64 devices each; a job has no model, its worker
(ductile_test_worker, to be built with the tests) sleeps --step seconds in place of a step. Real: the service, an
agent for each node, a process for each worker with its connection, heartbeats, steps, run directory and checkpoints,
a keeper for each command. All of them share the cores of this machine, so the jobs tolerate 10 s without a
heartbeat. 1,000 workers take about 2 GB. A run of all takes about 6 minutes for each policy. With --out it goes on
where it stopped. It removes all that it made.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from asking import UnixConnection, ask, figures, megabytes, metrics, processor_seconds  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OF_A_NODE = 64
PATIENCE = 900
JOB = """[train]
max_steps = {steps}
virtual_ranks = {ranks}
batch_size = 64
[elastic]
peer_deadline = 10
"""


class Service:
    """In a folder of its own, which goes with it."""

    def __init__(self, args, policy, devices, work):
        self.folder, self.begun = pathlib.Path(tempfile.mkdtemp(prefix="ductile-live-")), set()
        nodes = -(-devices // OF_A_NODE)
        names = ", ".join(f'"n{i}"' for i in range(nodes))
        (self.folder / "cluster.toml").write_text(
            f'[[nodes]]\ntype = "cpu"\ndevices = {-(-devices // nodes)}\nhosts = [{names}]\n')
        worker = args.build / "src" / "ductile" / "server" / "ductile_test_worker"
        environment = dict(os.environ, DUCTILE_WORKER=str(worker), DUCTILE_TEST_STEP_MS="0",
                           DUCTILE_TEST_BEAT_MS=str(args.beat),
                           DUCTILE_TEST_WORK_MS=str(1000 * work))
        words = [str(args.build / "bin" / "ductile"), "server", str(self.folder / "cluster.toml"), "--launcher",
                 "env NODE={host}", "--listen", "127.0.0.1", "--policy", policy, "--grace", "60", "--no-page",
                 "--quota", "waiting=1", "--folder", str(self.folder / "service")]
        (self.folder / "service").mkdir()
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, env=environment)
        try:
            self.wait(self.nodes_up, nodes, "nodes")
        except BaseException:
            self.end(False)
            raise

    def connection(self):
        return UnixConnection(self.folder / "service" / "api.sock")

    def nodes_up(self):
        try:
            return metrics(self.connection()).get('ductile_nodes{state="up"}', 0)
        except OSError:
            return 0

    def wait(self, count, wanted, what):
        until = time.monotonic() + PATIENCE
        while count() < wanted:
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"not {wanted} {what}: {count() if self.process.poll() is None else 'the service ended'}; "
                         f"it said: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.2)

    def at_work(self):
        """Jobs whose workers have begun: their first generation was formed."""
        for run in (self.folder / "service" / "runs").iterdir():
            events = run / "events.jsonl"
            if run not in self.begun and events.exists() and '"event":"generation"' in events.read_text():
                self.begun.add(run)
        return len(self.begun)

    def submit_all(self, bodies, threads=8):
        def some(first):
            connection = self.connection()
            for body in bodies[first::threads]:
                status, text = ask(connection, "POST", "/v1/jobs", body)
                assert status == 201, text

        all_threads = [threading.Thread(target=some, args=(i,)) for i in range(threads)]
        for thread in all_threads:
            thread.start()
        for thread in all_threads:
            thread.join()

    def granted(self):
        """When each job was given devices for the first time."""
        first, after = {}, 0
        while True:
            page = json.loads(ask(self.connection(), "GET", f"/v1/events?after={after}&limit=1000")[1])
            for event in page["events"]:
                if event["kind"] == "allocation" and event["body"]["nodes"]:
                    first.setdefault(event["job"], event["time"])
            if len(page["events"]) < 1000:
                return list(first.values())
            after = page["after"]

    def records(self):
        out, page = [], "/v1/jobs?limit=1000"
        while page:
            answer = json.loads(ask(self.connection(), "GET", page)[1])
            out += answer["jobs"]
            page = f"/v1/jobs?limit=1000&before={answer['before']}" if "before" in answer else ""
        return out

    def processes(self):
        """The service's own, and all that it started."""
        found, name = [self.process.pid], os.fsencode(str(self.folder))
        for entry in os.listdir("/proc"):
            try:
                words = pathlib.Path("/proc", entry, "cmdline").read_bytes() if entry.isdigit() else b""
            except OSError:
                continue
            if name in words and int(entry) not in found and int(entry) != os.getpid():
                found.append(int(entry))
        return found

    def end(self, kindly):
        """Seconds that it took."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGINT if kindly else signal.SIGKILL)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        took = time.monotonic() - begin
        for pid in self.processes()[1:]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.log.close()
        time.sleep(0.5)  # agents see that it is gone
        shutil.rmtree(self.folder, ignore_errors=True)
        return took


def train_body(name, steps, most=1, **more):
    return {"name": name, "min_devices": 1, "max_devices": most, "spec": {"job": JOB.format(steps=steps, ranks=most)}, **more}


def free_megabytes():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0


def live(args, policy):
    free = free_megabytes()
    service = Service(args, policy, args.devices or args.jobs, args.step)
    kindly = False
    try:
        before = megabytes(service.process.pid)
        begin = time.monotonic()
        service.submit_all([train_body(f"live-{i}", 100_000_000, args.max) for i in range(args.jobs)])
        submitted = time.monotonic() - begin
        service.wait(service.at_work, args.jobs, "jobs at work")
        out = {"jobs": args.jobs, "max": args.max, "devices": args.devices or args.jobs, "beat": args.beat,
               "submitted_seconds": submitted, "live_seconds": time.monotonic() - begin,
               "empty_megabytes": before, "all_megabytes": free - free_megabytes()}
        out.update(watched(args, service))
        out["megabytes"], out["peak_megabytes"] = (megabytes(service.process.pid, w) for w in ("VmRSS", "VmHWM"))
        records = service.records()
        out["anew"] = sum(job["generation"] > 1 for job in records)
        out["held"] = metrics(service.connection()).get("ductile_devices_held")
        kindly = True
    finally:
        took = service.end(kindly)
    out["stop_seconds"] = took
    return out


def watched(args, service):
    connection = service.connection()
    rounds, turns, pages, submissions, seen = [], [], [], [], 0
    work, end, number = processor_seconds(service.process.pid), time.monotonic() + args.seconds, 0
    begin = time.monotonic()

    def timed(where, *words):
        start = time.monotonic()
        status, text = ask(connection, *words)
        where.append(time.monotonic() - start)
        assert status in (200, 201), text
        return json.loads(text)

    while time.monotonic() < end:
        number += 1
        waits = timed(submissions, "POST", "/v1/jobs",
                      dict(train_body(f"waits-{number}", 1), team="waiting", min_devices=2, max_devices=2,
                           spec={"job": JOB.format(steps=1, ranks=2)}))
        for cancels in (False, True):
            time.sleep(0.5)
            if cancels:
                ask(connection, "POST", f"/v1/jobs/{waits['id']}/cancel", {})
            timed(pages, "GET", "/v1/jobs?limit=100")
            now = metrics(connection)
            if now["ductile_rounds_total"] > seen:
                seen = now["ductile_rounds_total"]
                rounds.append(now["ductile_last_round_seconds"])
                turns.append(now["ductile_last_turn_seconds"])
    return {"rounds": rounds, "turns": turns, "pages": figures(pages), "submissions": figures(submissions),
            "processor_share": (processor_seconds(service.process.pid) - work) / (time.monotonic() - begin)}


def admission(args, policy, kind):
    """Jobs begun per second."""
    service = Service(args, policy, args.admitted, 0)
    try:
        if kind == "command":
            spec = {"command": ["/bin/true"], "directory": str(service.folder)}
            bodies = [{"name": f"at-once-{i}", "kind": "command", "min_devices": 1, "max_devices": 1, "spec": spec}
                      for i in range(args.admitted)]
        else:
            bodies = [train_body(f"at-once-{i}", 1) for i in range(args.admitted)]
        service.submit_all(bodies)
        ended = 'ductile_jobs{phase="finished"}'
        service.wait(lambda: metrics(service.connection()).get(ended, 0), args.admitted, "jobs that are done")
        jobs = service.records()
        first = min(job["submitted"] for job in jobs)
        return {"granted_per_second": len(jobs) / (max(service.granted()) - first),
                "per_second": len(jobs) / (max(job["started"] for job in jobs) - first),
                "ends_per_second": len(jobs) / (max(job["ended"] for job in jobs) - first),
                "waited": statistics.median(job["started"] - job["submitted"] for job in jobs)}
    finally:
        service.end(False)


def spread(values, factor=1, digits=1):
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{factor * middle:.{digits}f} ({factor * low:.{digits}f} to {factor * high:.{digits}f}), " \
           f"longest {factor * max(values):.{digits}f}"


def live_table(rows):
    print("\n| policy | jobs live | all at work after | round, ms: median (quartiles) | with all around it, ms | "
          "memory, MB (peak) | share of a core | page of 100, p50 / p99 ms | submission, p50 / p99 ms | "
          "resized or started anew | stop |\n" + "|---" * 11 + "|")
    for policy, r in rows.items():
        print(f"| {policy} | {r['jobs']} | {r['live_seconds']:.0f} s | {spread(r['rounds'], 1000)} | "
              f"{spread(r['turns'], 1000)} | {r['megabytes']:.0f} ({r['peak_megabytes']:.0f}) | "
              f"{r['processor_share']:.2f} | {r['pages']['p50_ms']:.1f} / {r['pages']['p99_ms']:.1f} | "
              f"{r['submissions']['p50_ms']:.1f} / {r['submissions']['p99_ms']:.1f} | {r['anew']} | "
              f"{r['stop_seconds']:.0f} s |")
        for name, value, most in (("longest round, ms", 1000 * max(r["rounds"]), 100),
                                  ("memory, MB", r["peak_megabytes"], 300)):
            print(f"{policy}, {name}: {value:.1f}, wanted below {most}: {'yes' if value < most else 'NO'}",
                  file=sys.stderr)


def admission_table(args, rows):
    print("\n| policy | jobs that end at once | given devices per second: median (lowest to highest) | begun per second | "
          "ended per second | waited, median s | rounds |\n" + "|---" * 7 + "|")
    for (policy, kind), found in rows.items():
        def rate(name):
            rates = [r[name] for r in found]
            return f"{statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"

        print(f"| {policy} | {args.admitted} of kind {kind} | {rate('granted_per_second')} | {rate('per_second')} | "
              f"{statistics.median(r['ends_per_second'] for r in found):.1f} | "
              f"{statistics.median(r['waited'] for r in found):.2f} | {len(found)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--policies", default="ductile,fifo")
    parser.add_argument("--jobs", type=int, default=1000, help="that run; 0: none, only admissions")
    parser.add_argument("--max", type=int, default=1, help="devices that such a job may have")
    parser.add_argument("--devices", type=int, default=0, help="for them (default: as many as jobs)")
    parser.add_argument("--beat", type=int, default=200, help="milliseconds between two heartbeats of a worker")
    parser.add_argument("--step", type=float, default=1.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=60, help="that the live jobs are watched")
    parser.add_argument("--admitted", type=int, default=1000, help="0: none, only live jobs")
    parser.add_argument("--rounds", type=int, default=3, help="of admissions")
    parser.add_argument("--out", type=pathlib.Path, help="keeps what is done")
    args = parser.parse_args()
    args.build = args.build.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    done = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}

    def kept(name, make):
        if name not in done:
            done[name] = make()
            print(f"{name}: {json.dumps(done[name])}", file=sys.stderr, flush=True)
            if args.out:
                args.out.write_text(json.dumps(done, indent=1))
        return done[name]

    print(f"load average {os.getloadavg()[0]:.1f}; command: {' '.join(sys.argv)}", flush=True)
    policies = args.policies.split(",")
    if args.jobs:
        live_table({p: kept(f"live {args.jobs} {p} {args.max} {args.devices} {args.beat}", lambda p=p: live(args, p)) for p in policies})
    if args.admitted:
        admission_table(args, {(p, kind): [kept(f"admission {args.admitted} {p} {kind} {n}",
                                                lambda p=p, kind=kind: admission(args, p, kind))
                                           for n in range(args.rounds)]
                               for p in policies for kind in ("train", "command")})


if __name__ == "__main__":
    main()
