#!/usr/bin/python3
"""What a service carries: submissions, pages and event streams, against a real one (`ductile up`) on this machine.

A store with many ended jobs and a long queue of training jobs of one device each, behind whatever holds the devices
(--node, several are measured one after the other):

drained    the only node is drained: all wait, and each round finds that nothing can begin.
open       jobs run on both devices, and when one ends another begins: they are what `ductile submit` hands in
           without a file, the built-in example. They take processors of this machine; with DUCTILE_WORKER=ductile_test_worker
           (of the tests) workers do next to nothing.

Measured: the start until the first answer, submissions at a fixed rate, pages of the list; then for --beside seconds in
pieces of ten, at once, event streams that are read, submissions at that rate, one page at a time without a pause, and the
scheduler's rounds (each that is seen by asking ten times a second). What was submitted is taken back between the pieces, so
that the queue is as long as was asked; and the most memory that the service had, and its
zygote (VmHWM; the zygote's counts what it shares with the service's files). Prints JSON, with how many jobs were
in which phase, and one line for each demand.

Who submits, who asks for pages, and who reads the streams are processes of their own, so that no client waits for another
one's turn in one interpreter. With --client threads all are threads of one process, as until November 2026: what differs
between the two is the client's own.
"""
import argparse
import json
import multiprocessing
import os
import re
import resource
import selectors
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
from asking import UnixConnection, ask, figures, megabytes, metrics, processor_seconds  # noqa: E402


class Service:
    def __init__(self, ductile, folder, policy):
        self.folder = folder
        self.command = [ductile, "up", "--devices", "2", "--folder", folder, "--policy", policy]
        self.socket = os.path.join(folder, "api.sock")

    def start(self, patience=600):
        self.log = open(os.path.join(self.folder, "up.log"), "a")
        begin = time.monotonic()
        self.process = subprocess.Popen(self.command, stderr=self.log)
        while True:
            try:
                status, _ = ask(UnixConnection(self.socket), "GET", "/v1/jobs?limit=1")
                if status == 200:
                    return time.monotonic() - begin
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > begin + patience:
                sys.exit("the service did not start: see " + self.log.name)
            time.sleep(0.005)

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()

    def end(self, kindly):
        """Where jobs run, they are saved first: their processes would outlive the service's."""
        if kindly:
            return self.stop()
        self.process.kill()
        self.process.wait()

    def megabytes(self):
        """The most that the service had, and that its zygotes had, until now."""
        return {"service": megabytes(self.process.pid, "VmHWM"),
                "zygote": sum(megabytes(pid, "VmHWM") for pid in children(self.process.pid, b"zygote"))}

    def seconds(self):
        return processor_seconds(self.process.pid)

    def phases(self):
        """How many jobs are in which phase, and how many devices are held."""
        return {name: value for name, value in metrics(UnixConnection(self.socket)).items()
                if name.startswith(("ductile_jobs{", "ductile_devices_held"))}


def children(parent, word):
    """Those whose command line has this word."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and word in open(f"/proc/{entry}/cmdline", "rb").read():
                if int(open(f"/proc/{entry}/stat").read().rsplit(") ", 1)[1].split()[1]) == parent:
                    found.append(int(entry))
        except OSError:  # gone
            continue
    return found


def spec_of(spec, i, same):
    """Of job i: its seed is its own, since a service reads jobs of one text once."""
    return spec if same else {**spec, "job": re.sub(r"(?m)^seed = \d+$", f"seed = {i}", spec["job"], count=1)}


def fill(folder, spec, queued, ended, same):
    """Jobs as the service would have written them, in one transaction."""
    store = sqlite3.connect(os.path.join(folder, "store.db"))
    first = store.execute("SELECT max(id) FROM jobs").fetchone()[0] + 1
    seq = store.execute("SELECT max(seq) FROM events").fetchone()[0]
    begin = time.time() - queued - ended - first - 60  # young enough to be kept
    for job in range(first, first + queued + ended):
        done = job < first + ended
        seq += 1
        last = seq + 1 if done else seq
        store.execute(
            "INSERT INTO jobs (id, name, owner, team, tier, kind, min_devices, max_devices, phase, wish, reason, "
            "run, submitted, started, ended, generation, revision) "
            "VALUES (?,?,?,?,'standard','train',1,1,?,'run',?,'',?,?,?,0,?)",
            (job, f"job-{job}", f"user-{job % 50}", f"team-{job % 7}",
             "finished" if done else "queued", "It is done." if done else "It was just submitted.",
             begin + job, begin + job if done else None, begin + job + 9 if done else None, last))
        store.execute("INSERT INTO specs (job, spec) VALUES (?,?)", (job, json.dumps(spec_of(spec, job, same))))
        event = "INSERT INTO events (seq, time, job, kind, body) VALUES (?,?,?,?,'{}')"
        store.execute(event, (seq, begin + job, job, "submitted"))
        if done:
            seq += 1
            store.execute(event, (seq, begin + job + 9, job, "finished"))
    store.commit()
    store.close()


def submit_some(path, spec, same, rate, indices, begin):
    """Seconds of each, from when it was due, and its number."""
    took = []
    connection = UnixConnection(path)
    connection.connect()
    for i in indices:
        due = begin + i / rate
        body = {"name": f"load-{i}", "spec": spec_of(spec, i, same)}
        time.sleep(max(0, due - time.monotonic()))
        status, text = ask(connection, "POST", "/v1/jobs", body)
        assert status == 201, text
        took.append((time.monotonic() - due, json.loads(text)["id"]))
    return took


def take_back(path, jobs):
    connection = UnixConnection(path)
    for job in jobs:
        status, text = ask(connection, "POST", f"/v1/jobs/{job}/cancel", {})
        assert status == 200, text
        time.sleep(0.01)  # a user has 1,000 requests a second


class Client:
    """A call in a process (or a thread) of its own; result() gives what it returned."""

    def __init__(self, own_process, call, *arguments):
        self.ours, theirs = multiprocessing.Pipe(duplex=False)
        kind = multiprocessing.get_context("fork").Process if own_process else threading.Thread
        self.runner = kind(target=lambda: theirs.send(call(*arguments)))
        self.runner.start()
        if own_process:
            theirs.close()

    def result(self):
        try:
            out = self.ours.recv()
        except EOFError:
            sys.exit("a client ended before it was done")
        self.runner.join()
        return out


def submit_at(service, spec, same, rate, count, clients=4, processes=True):
    """Submissions at a fixed rate; the seconds of each count from when it was due. All are taken back after the last."""
    begin = time.monotonic() + 0.3  # all have begun
    running = [Client(processes, submit_some, service.socket, spec, same, rate, range(i, count, clients), begin)
               for i in range(clients)]
    took, jobs = zip(*(pair for client in running for pair in client.result()))
    for client in [Client(processes, take_back, service.socket, jobs[i::clients]) for i in range(clients)]:
        client.result()
    return list(took)


PIECE = 10  # seconds of submissions after which they are taken back, so that the queue stays as long as it is to be


def pages(path_of_socket, count=1 << 60, seconds=1e9):
    """Seconds of each page; so many, or for so long."""
    took, end = [], time.monotonic() + seconds
    connection = UnixConnection(path_of_socket)
    for i in range(count):
        if time.monotonic() > end:
            break
        path = ["/v1/jobs?limit=100", "/v1/jobs?limit=100&live=1",
                "/v1/jobs?limit=100&owner=user-7", f"/v1/jobs?limit=100&before={500 + 97 * i % 50000}"][i % 4]
        begin = time.monotonic()
        status, _ = ask(connection, "GET", path)
        took.append(time.monotonic() - begin)
        assert status == 200
    return took


def rounds(path_of_socket, seconds):
    """Seconds of the scheduler's rounds, of the policy alone and with all around it: each that could be seen. How many there
    were."""
    alone, whole, first, seen, end = [], [], None, None, time.monotonic() + seconds
    connection = UnixConnection(path_of_socket)
    while time.monotonic() < end:
        now = metrics(connection)
        if first is None:
            first = seen = now["ductile_rounds_total"]
        if now["ductile_rounds_total"] > seen:
            seen = now["ductile_rounds_total"]
            alone.append(now["ductile_last_round_seconds"])
            whole.append(now["ductile_last_turn_seconds"])
        time.sleep(0.1)
    return alone, whole, (seen or 0) - (first or 0)


def open_streams(service, count, of_one):
    port = None
    names = []
    for i in range(0, count, of_one):
        status, text = ask(UnixConnection(service.socket), "POST", "/v1/tokens",
                           {"name": f"watcher-{i}", "role": "read"})
        assert status == 201, text
        answer = json.loads(text)
        port = int(answer["address"].rsplit(":", 1)[1])
        names.append(answer["token"])
    last = json.loads(ask(UnixConnection(service.socket), "GET", "/v1/events?newest=1")[1])["after"]
    streams = []
    for i in range(count):
        stream = socket.create_connection(("127.0.0.1", port))
        stream.sendall(f"GET /v1/events?after={last} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                       f"Accept: text/event-stream\r\nAuthorization: Bearer {names[i // of_one]}"
                       "\r\n\r\n".encode())
        assert stream.recv(4096).startswith(b"HTTP/1.1 200"), "a stream was refused"
        stream.setblocking(False)
        streams.append(stream)
    return streams


def watch(streams, seconds):
    """Reads all streams, but every tenth, whose clients are slow; bytes that came."""
    selector = selectors.DefaultSelector()
    for i, stream in enumerate(streams):
        if i % 10:
            selector.register(stream, selectors.EVENT_READ)
    end, total = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for key, _ in selector.select(0.1):
            got = len(key.fileobj.recv(1 << 16))
            assert got, "a stream ended"
            total += got
    return total


def measure(arguments, node, folder):
    """With the only node drained, or open."""
    service = Service(arguments.ductile, folder, arguments.policy)
    out = {"empty_start_seconds": service.start()}
    nodes = []
    while not nodes:  # they are written after the start
        nodes = json.loads(ask(UnixConnection(service.socket), "GET", "/v1/nodes")[1])["nodes"]
    name = nodes[0]["node"]
    ask(UnixConnection(service.socket), "POST", f"/v1/nodes/{name}/drain", {})
    subprocess.run([arguments.ductile, "-q", "submit", "--folder", folder, "--name", "first"],
                   check=True, stdout=subprocess.DEVNULL)
    text = json.loads(ask(UnixConnection(service.socket), "GET", "/v1/jobs/1")[1])["spec"]
    service.stop()
    fill(folder, text, arguments.queued, arguments.ended, arguments.same)
    out["start_seconds"] = service.start()
    out["start_megabytes"] = service.megabytes()
    if node == "open":
        ask(UnixConnection(service.socket), "POST", f"/v1/nodes/{name}/undrain", {})
        until = time.monotonic() + 60
        while service.phases().get("ductile_devices_held", 0) < 2 and time.monotonic() < until:
            time.sleep(0.2)
    try:
        out["jobs_at_the_start"] = service.phases()
        print(json.dumps(out, indent=1), flush=True)
        out |= carried(arguments, service, text)
        out["jobs_at_the_end"] = service.phases()
        out["megabytes"] = service.megabytes()
    finally:
        service.end(node == "open")
    return out


def carried(arguments, service, text):
    out = {"pages": figures(pages(service.socket, 400))}
    processes = arguments.client == "processes"
    count = int(arguments.rate * arguments.seconds)
    before = service.seconds()
    out["submissions"] = figures(
        submit_at(service, text, arguments.same, arguments.rate, count, processes=processes))
    out["cpu_seconds_alone"] = service.seconds() - before
    took = submit_at(service, text, arguments.same, 1e9, 1000, clients=8, processes=processes)
    out["submissions_per_second"] = len(took) / max(took)
    streams = open_streams(service, arguments.streams, 50)
    before = service.seconds()
    took, paged, alone, whole, out["rounds_total"], out["stream_bytes"] = [], [], [], [], 0, 0
    for _ in range(max(1, round(arguments.beside / PIECE))):
        reader = Client(processes, watch, streams, PIECE + 1)
        asker = Client(processes, pages, service.socket, 1 << 60, PIECE)
        looker = Client(processes, rounds, service.socket, PIECE)
        took += submit_at(service, text, arguments.same, arguments.rate, int(arguments.rate * PIECE), processes=processes)
        paged += asker.result()
        for all_of, some in zip((alone, whole), (seen := looker.result())):
            all_of += some
        out["rounds_total"] += seen[2]
        out["stream_bytes"] += reader.result()
    out["submissions_beside_streams"], out["pages_beside_streams"] = figures(took), figures(paged)
    out["cpu_seconds_beside_streams"] = service.seconds() - before
    if alone:
        out["rounds"], out["rounds_with_all_around"] = figures(alone), figures(whole)
    return out


def print_demands(node, out):
    for name, value, most in (
            ("submit p99 at the rate", out["submissions"]["p99_ms"], 20),
            ("submit p99 beside the streams", out["submissions_beside_streams"]["p99_ms"], 20),
            ("list page p99", out["pages"]["p99_ms"], 50),
            ("list page p99 beside the streams", out["pages_beside_streams"]["p99_ms"], 50),
            ("round p99, with all around it, ms", out.get("rounds_with_all_around", {}).get("p99_ms", float("nan")), 100),
            ("megabytes, with the zygote's", sum(out["megabytes"].values()), 300)):
        print(f"{node}: {name}: {value:.1f}, wanted below {most}: {'yes' if value < most else 'NO'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ductile", default="build/release/bin/ductile")
    parser.add_argument("--policy", default="ductile")
    parser.add_argument("--node", default="drained,open")
    parser.add_argument("--queued", type=int, default=10000)
    parser.add_argument("--ended", type=int, default=90000)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=20, help="of submissions without streams")
    parser.add_argument("--beside", type=float, default=60, help="seconds beside the streams")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--client", choices=["processes", "threads"], default="processes")
    parser.add_argument("--same", action="store_true", help="all jobs have one text, which a service reads once")
    arguments = parser.parse_args()
    if not set(arguments.node.split(",")) <= {"drained", "open"}:
        parser.error("--node has drained and open")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    done = {}
    for node in arguments.node.split(","):
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(prefix="ductile-load-") as folder:
            done[node] = {"load_average": load, **measure(arguments, node, folder)}
    print(json.dumps(done, indent=1))
    for node, out in done.items():
        print_demands(node, out)


main()
