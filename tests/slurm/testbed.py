"""A real Slurm of several nodes on this machine, and a service of Ductile with a pool in it.

The Slurm is brought up by the program that DUCTILE_SLURM_TESTBED names, or else by slurm-testbed in
../shared/tools beside the repository (`up N DIR`, `kill n1|ctl DIR`, `start n1|ctl DIR`, `exec DIR --
COMMAND`, `down DIR`). It takes root and the packages of Slurm that `scripts/setup --tests` installs.
"""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time


BESIDE = pathlib.Path(__file__).resolve().parents[3] / "shared/tools/slurm-testbed"


class Skip(Exception):
    """The test cannot run here; says why."""


class Testbed:
    def __init__(self, nodes, port=17400, settings=None):
        tool = os.environ.get("DUCTILE_SLURM_TESTBED", str(BESIDE))
        if not os.access(tool, os.X_OK):
            raise Skip(f"{tool} is no program that brings up a Slurm; DUCTILE_SLURM_TESTBED names another one")
        for program in ("slurmctld", "slurmd", "sbatch", "munged"):
            if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
                raise Skip(f"there is no {program} here; scripts/setup --tests installs it")
        if os.geteuid() != 0:
            raise Skip("the Slurm of this test takes root")
        self.tool = tool
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))
        self.folder.rmdir()
        environment = dict(os.environ, PORT=str(port), NOINSTALL="1", **(settings or {}))
        done = self.run("up", str(nodes), str(self.folder), env=environment)
        if done.returncode != 0:
            self.down()
            raise Skip(f"the Slurm did not come up: {done.stdout}{done.stderr}")
        # With NETNS each node has a network of its own, and the service is where slurmctld is.
        known = dict(line.split("=", 1) for line in (self.folder / "settings").read_text().splitlines())
        apart = known["NETNS"].strip("'") != ""
        self.inside = ["nsenter", f"--net=/run/netns/{known['TAG']}-ctl"] if apart else []
        self.address = "10.77.0.1" if apart else "127.0.0.1"
        # Where the machine's own name is not 127.0.0.1, Slurm lives in a namespace.
        self.prefix = [tool, "exec", str(self.folder), "--"]
        self.environment = dict(os.environ, SLURM_CONF=str(self.folder / "slurm.conf"))

    def run(self, *words, **options):
        return subprocess.run([self.tool, *words], capture_output=True, text=True, **options)

    def slurm(self, *words):
        done = subprocess.run([*self.prefix, *words], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def kill(self, what):
        assert self.run("kill", what, str(self.folder)).returncode == 0, what

    def start(self, what):
        done = self.run("start", what, str(self.folder))
        assert done.returncode == 0, (what, done.stdout, done.stderr)

    def cut(self, node):
        assert self.run("cut", node, str(self.folder)).returncode == 0, node

    def heal(self, node):
        assert self.run("heal", node, str(self.folder)).returncode == 0, node

    def down(self):
        self.run("down", str(self.folder))


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


class Service:
    """`ductile server` with one pool; `pool` are the lines of its [[pool]], and what comes after it."""

    def __init__(self, testbed, ductile, pool, policy="ductile", folder=None):
        self.testbed, self.ductile, self.policy = testbed, str(ductile), policy
        self.folder = folder or pathlib.Path(tempfile.mkdtemp(prefix="ductile"))
        self.file = self.folder / "cluster.toml"
        self.file.write_text("[[pool]]\nengine = \"slurm\"\n" + pool)
        self.start()

    def start(self):
        (self.folder / "api.sock").unlink(missing_ok=True)
        self.log = open(self.folder / "server.log", "a")
        self.process = subprocess.Popen(
            [*self.testbed.inside, self.ductile, "server", self.file, "--folder", self.folder, "--listen", self.testbed.address,
             "--grace", "10", "--policy", self.policy],
            stdout=subprocess.DEVNULL, stderr=self.log, env=self.testbed.environment)
        until(lambda: (self.folder / "api.sock").exists(), 60, "the service")

    def get(self, path):
        connection = Connection(self.folder / "api.sock")
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def submit(self, name, options, least=1, most=1):
        done = subprocess.run([self.ductile, "submit", "--folder", self.folder, "--name", name, "--min", str(least),
                               "--max", str(most), *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def job(self, number):
        return self.get(f"/v1/jobs/{number}")

    def nodes(self):
        return {n["node"]: n for n in self.get("/v1/nodes")["nodes"]}

    def up(self):
        return [name for name, node in self.nodes().items() if node["state"] == "up"]

    def steps(self, number):
        """Steps that are in the job's metrics now."""
        run = self.job(number).get("run", "")
        file = pathlib.Path(run) / "metrics.jsonl"
        if not run or not file.exists():
            return 0
        steps = [json.loads(line).get("step", 0) for line in file.read_text().splitlines()
                 if line.endswith("}")]
        return max(steps, default=0)

    def finish(self, number, patience=600):
        until(lambda: "ended" in self.job(number) and self.job(number)["phase"] not in ("queued", "running"),
              patience, f"job {number}", self)
        return self.job(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=120)


def until(holds, patience, what, service=None):
    end = time.time() + patience
    while not holds():
        if time.time() > end:
            log = (service.folder / "server.log").read_text()[-4000:] if service else ""
            raise AssertionError(f"{what}: not in {patience} s\n{log}")
        time.sleep(0.2)


def digest_of(run):
    events = [json.loads(line) for line in (pathlib.Path(run) / "events.jsonl").read_text().splitlines()]
    return [e for e in events if e.get("kind") == "end"][-1]["weights_digest"]


def workers_of(run):
    """Of the generation that began last, by the run's record, which may come a moment later."""
    events = [json.loads(line) for line in (pathlib.Path(run) / "events.jsonl").read_text().splitlines()]
    begun = [e["text"] for e in events if e.get("event") == "generation"]
    return int(begun[-1].split(" with ")[1].split()[0]) if begun else 0


def begins_of(run):
    """The steps from which the generations of a run began, in order."""
    events = [json.loads(line) for line in (pathlib.Path(run) / "events.jsonl").read_text().splitlines()]
    return [int(e["text"].split(" from step ")[1].split()[0]) for e in events if e.get("event") == "generation"]
