"""Requests to a service by its unix socket, and what benchmarks make of times."""
import http.client
import json
import os
import pathlib
import socket
import sys
import time


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=120):
        super().__init__("localhost", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def ask(connection, method, path, body=None, headers=None):
    text = None if body is None else json.dumps(body)
    connection.request(method, path, text, headers or {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def wait(condition, what, patience, pause):
    """What the condition gives once it is true; looked at every `pause` seconds. The benchmark ends after `patience`."""
    until = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > until:
            sys.exit(f"not within {patience} s: {what}")
        time.sleep(pause)


def metrics(connection):
    """{series: value}, of series as they stand in /metrics, with their labels."""
    _, text = ask(connection, "GET", "/metrics")
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def figures(seconds):
    return {"count": len(seconds), "p50_ms": 1000 * quantile(seconds, 0.5),
            "p99_ms": 1000 * quantile(seconds, 0.99), "worst_ms": 1000 * max(seconds)}


def megabytes(pid, what="VmRSS"):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
