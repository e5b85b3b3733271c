#!/usr/bin/python3
"""A run is served by replicas with libtorch on nodes that have networks of their own. While clients ask without a pause, weights
change, a replica is killed and a node is drained: every request is answered, with the bits of its version.

Usage: tests/service/serving_nodes_test.py BUILD
"""
import collections
import ctypes
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

BUILD = pathlib.Path(sys.argv[1]).resolve()
DUCTILE = str(BUILD / "bin" / "ductile")
PATIENCE = 180
CLONE_NEWNET = 0x40000000


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)


def run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)


class Hosts:
    """Network namespaces, joined by a bridge in one more; host 0 is the service's."""

    def __init__(self, count):
        self.holders = [subprocess.Popen(["unshare", "--net", "sleep", "1000000"]) for _ in range(count + 1)]
        own = os.readlink("/proc/self/ns/net")
        for holder in self.holders:
            until(lambda: holder.poll() is None and os.readlink(f"/proc/{holder.pid}/ns/net") != own, "a namespace")
        hub = self.inside(count)
        run(*hub, "ip", "link", "add", "hub", "type", "bridge")
        run(*hub, "ip", "link", "set", "hub", "up")
        for host in range(count):
            here = self.inside(host)
            run(*hub, "ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", self.holders[host].pid)
            run(*hub, "ip", "link", "set", f"port{host}", "master", "hub", "up")
            run(*here, "ip", "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            run(*here, "ip", "link", "set", "eth0", "up")
            run(*here, "ip", "link", "set", "lo", "up")

    def inside(self, host):
        return ["nsenter", "-t", str(self.holders[host].pid), "-n"]

    def address(self, host):
        return f"10.78.0.{host + 1}"

    def enter(self, host):
        """Moves the calling thread there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/proc/{self.holders[host].pid}/ns/net") as space:
            if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def end(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()


class Clients:
    def __init__(self, hosts, url, body, count=3):
        self.hosts, self.url, self.body = hosts, urllib.parse.urlparse(url), body
        self.seen, self.lock, self.stopped = collections.Counter(), threading.Lock(), False
        self.threads = [threading.Thread(target=self.ask) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        self.hosts.enter(0)
        to = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=PATIENCE)
        while not self.stopped:
            try:
                to.request("POST", self.url.path + "/infer", self.body, {"Inference-Header-Content-Length": "0"})
                answer = to.getresponse()
                text = answer.read().decode()
                value = json.loads(text)
                seen = (value["model_version"], json.dumps(value["outputs"])) if answer.status == 200 else ("", text)
            except Exception as error:  # as bad as a wrong answer
                seen = ("", repr(error))
            with self.lock:
                self.seen[seen] += 1
            if not seen[0]:
                break
        to.close()

    def answers(self):
        with self.lock:
            return sum(self.seen.values())

    def more(self):
        until_then = self.answers() + 50
        until(lambda: self.answers() >= until_then or any(not version for version, _ in list(self.seen)), "answers")

    def stop(self):
        self.stopped = True
        for thread in self.threads:
            thread.join()
        return sorted(self.seen)


class Serving(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ductile-serving-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def ask(self, *words):
        return subprocess.run([DUCTILE, "-q", *words, "--folder", str(self.folder / "service")], capture_output=True, text=True)

    def job(self):
        return json.loads(self.ask("why", "api", "--json").stdout or "{}")

    def nodes(self):
        return self.job().get("serving", {}).get("nodes", {})

    def replicas(self):
        out = []
        for entry in os.listdir("/proc"):
            try:
                words = pathlib.Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "--serve" in words and any(str(self.folder) in word for word in words):
                out.append(int(entry))
        return sorted(out)

    def train(self):
        for steps in (30, 10):
            run(DUCTILE, "-q", "train", "--out", self.folder / f"run{steps}", "--set", "name=digits", "--set", "model.name=mlp",
                "--set", f"train.max_steps={steps}", "--set", "data.train_limit=640", "--set", "data.test_limit=64")
        run("cp", "-rn", f"{self.folder}/run10/checkpoints/.", f"{self.folder}/run30/checkpoints/")
        return self.folder / "run30"

    def test_replicas_on_other_nodes_answer_with_the_bits_of_their_version(self):
        hosts = Hosts(4)
        self.addCleanup(hosts.end)
        served = self.train()
        names = ", ".join(f'"{hosts.holders[host].pid}"' for host in (1, 2, 3))
        addresses = ", ".join(f'"{hosts.address(host)}"' for host in (1, 2, 3))
        (self.folder / "cluster.toml").write_text(
            f'[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = [{names}]\naddresses = [{addresses}]\n')
        with open(self.folder / "log", "w") as log:
            service = subprocess.Popen(
                [*hosts.inside(0), DUCTILE, "server", str(self.folder / "cluster.toml"), "--folder", str(self.folder / "service"),
                 "--launcher", "nsenter -t {host} -n", "--listen", hosts.address(0), "--no-page"], stdout=log, stderr=log)
        self.addCleanup(service.wait)
        self.addCleanup(service.send_signal, signal.SIGINT)
        until(lambda: self.ask("jobs").returncode == 0, "a service")
        submitted = self.ask("submit", "--service", str(served), "--name", "api", "--min", "2", "--max", "2")
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        until(lambda: len(self.nodes()) == 2, "replicas on two nodes")
        clients = Clients(hosts, self.job()["serving"]["address"], os.urandom(2 * 784))
        clients.more()

        self.assertEqual(self.ask("reload", "api", "--checkpoint", "10").returncode, 0)
        until(lambda: "all replicas have the weights of step 10" in self.ask("events", "api").stdout, "other weights")
        clients.more()

        before = self.replicas()
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(self.nodes()) == 2 and len(self.replicas()) == 2 and before[0] not in self.replicas(), "another replica")
        clients.more()

        node = sorted(self.nodes())[0]
        self.assertEqual(self.ask("drain", node).returncode, 0)
        until(lambda: len(self.nodes()) == 2 and node not in self.nodes(), "an empty node")
        clients.more()
        seen = clients.stop()
        self.assertEqual([version for version, _ in seen], ["10", "30"], seen)

        self.assertEqual(self.ask("cancel", "api").returncode, 0)
        until(lambda: self.job().get("phase") == "cancelled" and not self.replicas(), "the end")


if __name__ == "__main__":
    if os.geteuid() != 0 or not shutil.which("nsenter") or not shutil.which("ip"):
        print("skipped: network namespaces take root, nsenter and ip")
        sys.exit(0)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
