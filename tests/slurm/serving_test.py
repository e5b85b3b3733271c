#!/usr/bin/python3
"""A run is served by replicas on the nodes of pilots, in a real Slurm whose nodes have networks of their own. While a client asks
without a pause, weights change, a node is lost, another one is cut off, and the service is killed: every request is answered, with the
bits of its version, but for those of the moment in which there is no service.

Usage: tests/slurm/serving_test.py DUCTILE
"""
import collections
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from testbed import Service, Skip, Testbed, until  # noqa: E402

# One pilot a machine, which has room for two.
POOL = 'name = "lab"\ndevices = 1\nmin = 0\nmax = 3\npartition = "main"\nidle = 3\nnotice = 20\noptions = ["--exclusive"]\n'
PATIENCE = 180


def ask(url, body):
    """A client's process. Each line that it reads is answered when 50 more answers have come; at the end it tells what it has seen."""
    to, seen, lock, stopped = urllib.parse.urlparse(url), collections.Counter(), threading.Lock(), threading.Event()

    def go_on():
        connection = http.client.HTTPConnection(to.hostname, to.port, timeout=PATIENCE)
        while not stopped.is_set():
            try:
                connection.request("POST", to.path + "/infer", body, {"Inference-Header-Content-Length": "0"})
                answer = connection.getresponse()
                text = answer.read().decode()
                value = json.loads(text)
                found = f"{value['model_version']} {json.dumps(value['outputs'])}" if answer.status == 200 else f"! {text}"
            except Exception as error:  # as bad as a wrong answer
                found = f"! {error!r}"
            with lock:
                seen[found] += 1
            if found.startswith("!"):
                return

    def answers():
        with lock:
            return sum(seen.values())

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in sys.stdin:
        wanted = answers() + 50
        while answers() < wanted and any(thread.is_alive() for thread in threads):
            time.sleep(0.02)
        print("more", flush=True)
    stopped.set()
    for thread in threads:
        thread.join()
    print(json.dumps(sorted(seen)))


class Client:
    """The front's address is one of the machine of the service."""

    def __init__(self, testbed, url, body):
        self.process = subprocess.Popen([*testbed.inside, "/usr/bin/python3", __file__, "--ask", url, body], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def more(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "more\n"

    def versions(self):
        self.process.stdin.close()
        seen = json.loads(self.process.stdout.read())
        self.process.wait()
        assert not [one for one in seen if one.startswith("!")], seen
        versions = [one.split()[0] for one in seen]
        assert len(set(versions)) == len(versions), f"one version has several answers: {seen}"
        return versions


def served_run(ductile, folder):
    """Of 30 steps, with a checkpoint of step 10 besides."""
    for steps in (30, 10):
        subprocess.run([ductile, "-q", "train", "--out", folder / f"run{steps}", "--set", "name=digits", "--set", "model.name=mlp",
                        "--set", f"train.max_steps={steps}", "--set", "data.train_limit=640", "--set", "data.test_limit=64"],
                       check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cp", "-rn", f"{folder}/run10/checkpoints/.", f"{folder}/run30/checkpoints/"], check=True)
    return folder / "run30"


def main():
    ductile, folder = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(tempfile.mkdtemp(prefix="served"))
    body = folder / "image"
    body.write_bytes(os.urandom(2 * 784))
    try:
        testbed = Testbed(3, port=17500, settings={"NETNS": "1"})
    except Skip as why:
        print(f"skipped: {why}")
        return
    try:
        service = Service(testbed, ductile, POOL)
        job = service.submit("api", ["--service", served_run(ductile, folder)], 2, 2)

        def nodes():
            return set(service.job(job).get("serving", {}).get("nodes", {}))

        def machine(node):
            name = (service.folder / "pilots" / "name").read_text()
            lines = testbed.slurm("squeue", "-h", "-t", "R", "-o", "%j %N").splitlines()
            return next((line.split()[1] for line in lines if line.startswith(f"ductile-{name}-{node}-")), "")

        def elsewhere(than):
            """Two replicas, on other machines; a pilot that takes the place of another one has its name."""
            machines = {machine(node) for node in nodes()}
            return len(machines) == 2 and than not in machines and "" not in machines

        until(lambda: len(nodes()) == 2, PATIENCE, "replicas on two pilots", service)
        client = Client(testbed, service.job(job)["serving"]["address"], str(body))
        client.more()

        said = subprocess.run([ductile, "reload", "api", "--checkpoint", "10", "--folder", service.folder], capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        until(lambda: "all replicas have the weights of step 10" in json.dumps(service.get(f"/v1/events?job={job}&limit=1000")),
              PATIENCE, "other weights", service)
        client.more()

        lost = machine(sorted(nodes())[0])
        testbed.kill(lost)
        testbed.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=gone")  # else after 20 s
        client.more()
        until(lambda: elsewhere(lost), PATIENCE, "another replica for that of the lost node", service)
        client.more()
        testbed.slurm("scontrol", "update", f"nodename={lost}", "state=resume")
        testbed.start(lost)

        cut = machine(sorted(nodes())[0])
        testbed.cut(cut)
        client.more()
        until(lambda: elsewhere(cut), PATIENCE, "another replica for that of the node that is cut off", service)
        client.more()
        testbed.heal(cut)
        assert client.versions() == ["10", "30"]

        service.kill()
        service.start()
        until(lambda: elsewhere(cut), PATIENCE, "the replicas are taken over", service)
        client = Client(testbed, service.job(job)["serving"]["address"], str(body))
        client.more()
        assert client.versions() == ["10"]

        subprocess.run([ductile, "-q", "cancel", "api", "--folder", service.folder], check=True)
        until(lambda: service.job(job)["phase"] == "cancelled", PATIENCE, "the end", service)
        service.stop()
        until(lambda: not testbed.slurm("squeue", "-h", "-o", "%j").strip(), PATIENCE, "a pilot is left", service)
    finally:
        testbed.down()


if __name__ == "__main__":
    if sys.argv[1] == "--ask":
        ask(sys.argv[2], pathlib.Path(sys.argv[3]).read_bytes())
    else:
        main()
