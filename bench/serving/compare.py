#!/usr/bin/python3
"""Requests per second and latency of `ductile serve` beside python3-torch, alternately in one run.

Usage: bench/serving/compare.py [--rounds 3] [--seconds 5] [--threads 1] [--clients 1,8,64]
                                [--build build/release] [--markdown FILE]

Both sides serve the same ResNet-20 with the same weights; each request has one image of 32 x 32 x 3 as raw
pixels, and each answer its class and probabilities in JSON. Clients send their next request when they
have their answer (bench/serving/load.cc). All servers live through the whole run; only one is asked at a
time, in turns. Servers are bound to the first --threads cores and the clients to the others, so that a server
that answers each client in a thread of its own has no more cores than the others. The processor time of a
request tells the servers apart where other programs keep the machine busy. The answers of both are compared first.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SIDE = 32 * 32 * 3


def make_run(args, folder):
    """A short training on random images: how good the weights are changes no time."""
    draw = random.Random(1)
    data = folder / "cifar"
    data.mkdir()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        rows = b"".join(bytes([i % 10]) + draw.randbytes(SIDE) for i in range(100))
        (data / f"{name}.bin").write_bytes(rows)
    subprocess.run([args.build / "bin/ductile", "-q", "train", "--out", folder / "run", "--set", "data.format=cifar10",
                    "--set", f"data.path={data}", "--set", "model.name=resnet20", "--set", "train.max_steps=4",
                    "--set", "train.batch_size=100"], check=True, stdout=subprocess.DEVNULL)
    return folder / "run"


class Server:
    def __init__(self, command, path, head, environment, cores):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                        env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        self.port = int(re.search(r"(\d+)(/.*)?$", self.process.stdout.readline().strip().split("//")[-1]).group(1))
        self.path, self.head = path, head

    def cpu_seconds(self):
        """Of the process and its children."""
        total, todo = 0, [self.process.pid]
        while todo:
            pid = todo.pop()
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
            todo += map(int, pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return total / os.sysconf("SC_CLK_TCK")

    def request(self, body):
        return (f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\n{self.head}Content-Length: {len(body)}\r\n\r\n"
                .encode() + body)

    def ask(self, body):
        headers = dict([line.split(": ") for line in self.head.split("\r\n") if line])
        headers["Content-Type"] = "application/octet-stream"
        url = f"http://127.0.0.1:{self.port}{self.path}"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            return json.load(answer)

    def end(self):
        self.process.terminate()
        self.process.wait()


def burst(args, server, clients, folder, body):
    file = folder / "request"
    file.write_bytes(server.request(body))
    cores = sorted(os.sched_getaffinity(0))[args.threads:]
    before = server.cpu_seconds()
    out = subprocess.run([args.build / "bin/serving_load", str(server.port), str(clients), str(args.seconds), "0.5", file],
                         check=True, capture_output=True, text=True,
                         preexec_fn=lambda: os.sched_setaffinity(0, cores) if cores else None)
    got = json.loads(out.stdout)
    got["cpu_ms"] = round(1000 * (server.cpu_seconds() - before) / max(1, got.pop("answers")), 3)
    return got


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--build", type=lambda p: pathlib.Path(p).resolve(), default=pathlib.Path("build/release"))
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args()
    args.build = args.build.resolve()
    cores = sorted(os.sched_getaffinity(0))
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="PASSIVE")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = make_run(args, folder)
        ductile = [args.build / "bin/ductile", "serve", run, "--threads", str(args.threads)]
        rival = ["/usr/bin/python3", HERE / "rival.py", "--weights", run / "model.safetensors", "--threads",
                 str(args.threads)]
        head = "Inference-Header-Content-Length: 0\r\n"
        path = "/v2/models/job/infer"
        commands = {
            "ductile": (ductile, path, head),
            "ductile, batches of one": (ductile + ["--max-batch", "1"], path, head),
            "torch": (rival, "/", ""),
            "torch, batching": (rival + ["--batching", "on"], "/", ""),
        }
        servers = {}
        try:
            for side, (command, at, more) in commands.items():
                servers[side] = Server(command, at, more, environment, cores[:args.threads])
            body = random.Random(2).randbytes(SIDE)
            ours = servers["ductile"].ask(body)["outputs"][1]["data"]
            theirs = servers["torch"].ask(body)["probabilities"]
            apart = max(abs(a - b) for a, b in zip(ours, theirs))
            assert apart < 1e-4, f"the answers are {apart} apart"
            results = {}
            for _ in range(args.rounds):
                for clients in map(int, args.clients.split(",")):
                    for side, server in servers.items():
                        got = burst(args, server, clients, folder, body)
                        print(json.dumps({"clients": clients, "side": side, **got}), flush=True)
                        results.setdefault((clients, side), []).append(got)
        finally:
            for server in servers.values():
                server.end()
    lines = ["| Clients | Server | Requests/s (least to most) | p50 ms | p99 ms | processor ms per request | refused |", "|---|---|---|---|---|---|---|"]
    for (clients, side), bursts in results.items():
        of = lambda key: [b[key] for b in bursts]
        rate = of("requests_per_second")
        lines.append(f"| {clients} | {side} | {statistics.median(rate):.0f} ({min(rate):.0f} to {max(rate):.0f}) | "
                     f"{statistics.median(of('p50_ms')):.2f} | {statistics.median(of('p99_ms')):.2f} | "
                     f"{statistics.median(of('cpu_ms')):.2f} | {sum(of('failed'))} |")
    print("\n".join(lines))
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
