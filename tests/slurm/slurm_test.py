#!/usr/bin/python3
"""Jobs of Ductile in a real Slurm, in a pool of pilots while Slurm fails in every way that it has, and in a batch job.

Usage: tests/slurm/slurm_test.py DUCTILE [SCENARIO ...]

After each scenario the weights have the bits of the same job alone, and no pilot is left. `short`
stands for those of SHORT, of a shorter job. Prints "skipped: WHY" where there is no Slurm (testbed.py).
"""
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from testbed import Service, Skip, Testbed, begins_of, digest_of, until, workers_of  # noqa: E402

POOL = 'name = "lab"\ndevices = 2\nmin = 0\nmax = 2\npartition = "main"\nidle = 3\nnotice = 20\n'
SHORT = ["a_batch_job_trains_on_its_nodes", "the_only_node_is_lost", "a_node_of_a_python_job_is_lost",
         "own_nodes_beside_a_pool"]
STEPS, SHORT_STEPS = 3000, 600
SAVED = 6  # seconds in which slurmctld saves what it was told


def options(steps):
    words = ["data.format=digits", "model.name=cnn", "train.batch_size=64", f"train.max_steps={steps}",
             "train.epochs=100000", "train.virtual_ranks=4", "train.eval_every_epochs=0", "train.log_every=5"]
    return [w for word in words for w in ("--set", word)]


class Scenarios:
    def __init__(self, testbed, ductile, steps=STEPS):
        self.testbed, self.ductile, self.options, self.steps = testbed, ductile, options(steps), steps
        run, begin = pathlib.Path(tempfile.mkdtemp(prefix="alone")) / "run", time.time()
        subprocess.run([ductile, "-q", "train", "--out", run, *self.options], check=True, stdout=subprocess.DEVNULL)
        self.digest, self.seconds = digest_of(run), time.time() - begin

    def begin(self, pool=POOL, least=1):
        """A service, and a job that has done some steps."""
        service = Service(self.testbed, self.ductile, pool)
        job = service.submit("digits", self.options, least, 4)
        until(lambda: service.steps(job) >= 100, 120, "the first steps", service)
        return service, job

    def on_both(self, service):
        """Of a job that needs both: whether more devices than one node has make it faster, the policy measures."""
        until(lambda: all(service.nodes()[n]["jobs"] for n in ("lab-1", "lab-2")), 60, "the job has both", service)

    def pilots(self):
        return sorted(self.testbed.slurm("squeue", "-h", "-t", "R", "-o", "%i %j").splitlines())

    def generations_after(self, run, known, before):
        """Where those after the first `known` began; before the loss the job was at `before` at least."""
        begins = begins_of(run)[known:]
        print(f"   was at {before}, went on from {begins}")
        return begins

    def end(self, service, job):
        done = service.finish(job)
        assert done["phase"] == "finished", done
        assert digest_of(done["run"]) == self.digest, "other bits than those of the job alone"
        service.stop()
        self.none_left(service)

    def none_left(self, service):
        name = (service.folder / "pilots" / "name").read_text()
        until(lambda: f"ductile-{name}" not in self.testbed.slurm("squeue", "-h", "-o", "%j"), 60, "a pilot is left",
              service)

    def node_of(self, service, pool_node="lab-1"):
        name = (service.folder / "pilots" / "name").read_text()
        for line in self.testbed.slurm("squeue", "-h", "-t", "R", "-o", "%j %N").splitlines():
            job, node = line.split()
            if job.startswith(f"ductile-{name}-{pool_node}-"):
                return node
        raise AssertionError("no pilot")

    def a_batch_job_trains_on_its_nodes(self):
        """Without a service, by the launcher of docs/guides/several-hosts.md."""
        run = pathlib.Path(tempfile.mkdtemp(prefix="batch")) / "run"
        words = shlex.join([self.ductile, "-q", "train", "--out", str(run), "--listen", "127.0.0.1", "--launcher",
                            "srun --overlap -N1 -n1 -w {host}", *self.options])
        hosts = "$(scontrol show hostnames | sed 's/$/=127.0.0.1:1/' | paste -sd,)"
        log = run.parent / "log"
        self.testbed.slurm("sbatch", "-J", "batch", "-p", "main", "--nodes=2", "--ntasks-per-node=1", "-o", str(log),
                           "--wrap", f'{words} --hosts "{hosts}"')
        until(lambda: not self.testbed.slurm("squeue", "-h", "-n", "batch").strip(), 300, "the end of the batch job")
        assert (run / "events.jsonl").exists(), log.read_text()
        assert digest_of(run) == self.digest, "other bits than those of the job alone"

    def grows_and_shrinks(self):
        service, job = self.begin()
        until(lambda: len(service.up()) == 2, 60, "two pilots", service)
        done = service.finish(job)
        assert digest_of(done["run"]) == self.digest
        until(lambda: not service.up(), 60, "idle pilots are given back", service)
        self.none_left(service)
        service.stop()

    def pending_is_said(self):
        blocks = [self.testbed.slurm("sbatch", "--parsable", "--exclusive", "-w", f"n{n}", "-p", "main", "--wrap",
                                     "sleep 1000", "-o", "/dev/null").strip() for n in (1, 2, 3, 4)]
        service = Service(self.testbed, self.ductile, POOL)
        job = service.submit("digits", self.options, 1, 4)
        until(lambda: "is pending in partition main: " in service.nodes()["lab-1"]["reason"], 60, "why", service)
        print("  ", service.nodes()["lab-1"]["reason"])
        print("  ", service.job(job)["why"])
        assert "is pending in partition main" in service.job(job)["why"]
        for block in blocks:
            self.testbed.slurm("scancel", block)
        self.end(service, job)

    def slurmctld_is_killed(self):
        service, job = self.begin(least=4)
        self.on_both(service)
        time.sleep(SAVED)
        pilots = self.pilots()
        assert len(pilots) == 2, pilots
        run, before = service.job(job)["run"], service.steps(job)
        known = len(begins_of(run))
        self.testbed.kill("ctl")
        time.sleep(6)
        assert service.steps(job) > before, "the job stands still without slurmctld"
        assert service.up(), "no node counts as up without slurmctld"
        self.testbed.start("ctl")
        time.sleep(SAVED)  # it would end what it does not know
        assert service.job(job)["phase"] != "running" or self.pilots() == pilots, (pilots, self.pilots())
        self.end(service, job)
        assert all(b >= before for b in self.generations_after(run, known, before)), "steps were done again"

    # Before the start of the pilots is on slurmctld's disk. What it does not know it ends.
    def slurmctld_is_killed_at_once(self):
        service, job = self.begin()
        until(lambda: self.checkpoint(service, job) > 0, 60, "the first checkpoint", service)
        run, before, saved = service.job(job)["run"], service.steps(job), self.checkpoint(service, job)
        known = len(begins_of(run))
        self.testbed.kill("ctl")
        self.testbed.start("ctl")
        self.end(service, job)
        assert all(b >= saved for b in self.generations_after(run, known, before)), f"{saved} was saved"

    def checkpoint(self, service, job):
        """The step of the newest, 0 without one."""
        manifests = (pathlib.Path(service.job(job)["run"]) / "checkpoints/manifests").glob("step-*.json")
        return max((int(m.stem.removeprefix("step-")) for m in manifests), default=0)

    def a_node_is_lost(self):
        service, job = self.begin(least=4)
        self.on_both(service)
        until(lambda: workers_of(service.job(job)["run"]) == 4, 60, "the record of all workers", service)
        run, node, before = service.job(job)["run"], self.node_of(service), service.steps(job)
        known = len(begins_of(run))
        self.testbed.kill(node)
        self.end(service, job)
        begins = self.generations_after(run, known, before)
        assert begins and min(begins) >= before - 1, "more than a step was done again"
        self.back(node)

    def the_only_node_is_lost(self):
        service, job = self.begin(POOL.replace("max = 2", "max = 1"))
        until(lambda: self.checkpoint(service, job) >= 50, 60, "a checkpoint", service)
        saved = self.checkpoint(service, job)
        run, node, before = service.job(job)["run"], self.node_of(service), service.steps(job)
        known = len(begins_of(run))
        self.testbed.kill(node)
        self.testbed.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=gone")  # else after 20 s
        self.end(service, job)
        begins = self.generations_after(run, known, before)
        if before < self.steps:  # a busy machine may come when all is done
            assert begins and min(begins) >= saved, f"{saved} was saved"
        self.testbed.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        self.back(node)

    def a_node_of_a_python_job_is_lost(self):
        package = pathlib.Path(self.ductile).parents[1] / "python/ductile"
        if not list(package.glob("_core.*")):
            print("   this build has no Python jobs")
            return
        script = pathlib.Path(__file__).resolve().parents[1] / "python/blobs.py"
        options = [f"{script}:Job", "--set", "python.interpreter=/usr/bin/python3", "--set", "train.max_steps=240", "--",
                   "--processes", "1"]
        alone = pathlib.Path(tempfile.mkdtemp(prefix="alone")) / "run"
        subprocess.run([self.ductile, "-q", "train", "--out", alone, *options], check=True, stdout=subprocess.DEVNULL)
        service = Service(self.testbed, self.ductile, POOL)
        job = service.submit("blobs", [*options, "--slow", "0.1"], 1, 4)
        self.on_both(service)
        run = service.job(job)["run"]
        until(lambda: service.steps(job) >= 10 and self.hosts_of_workers(run) >= {"lab-1", "lab-2"}, 240,
              "workers on both nodes", service)
        node = self.node_of(service)
        self.testbed.kill(node)
        done = service.finish(job)
        assert done["phase"] == "finished", done
        assert digest_of(done["run"]) == digest_of(alone), "other bits than those of the job alone"
        service.stop()
        self.none_left(service)
        until(lambda: not self.hosts_of_workers(run), 60, "workers are left", service)
        self.back(node)

    @staticmethod
    def hosts_of_workers(run):
        """Of the pool's nodes, those that the workers of a Python job were started on."""
        found = set()
        for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = file.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if run in words and "ductile.worker" in words and "--host" in words:
                found.add(words[words.index("--host") + 1])
        return found

    def back(self, node):
        self.testbed.start(node)
        until(lambda: self.testbed.slurm("sinfo", "-h", "-n", node, "-o", "%t").strip() == "idle", 90,
              "the node is back")

    def a_pilot_is_preempted(self):
        self.testbed.slurm("scontrol", "update", "partitionname=main", "gracetime=15")
        service, job = self.begin()
        node = self.node_of(service)
        before = service.steps(job)
        other = self.testbed.slurm("sbatch", "--parsable", "-p", "high", "--exclusive", "-w", node, "--wrap", "sleep 5",
                                   "-o", "/dev/null").strip()
        until(lambda: "takes it back" in service.nodes()["lab-1"]["reason"], 30, "the notice", service)
        until(lambda: self.testbed.slurm("squeue", "-h", "-t", "R", "-j", other).strip(), 40, "who preempts", service)
        assert service.steps(job) >= before
        self.end(service, job)
        self.testbed.slurm("scontrol", "update", "partitionname=main", "gracetime=0")

    # A pilot has half the time that the job took alone: it is not done with it, and each one does a part.
    def the_time_limit_comes(self):
        notice = 60 - round(min(40, max(10, self.seconds / 2)))
        service, job = self.begin(POOL.replace("max = 2", "max = 1").replace("notice = 20", f"notice = {notice}") + "time_limit = 1\n")
        until(lambda: "takes it back" in service.nodes()["lab-1"]["reason"], 90, "the notice", service)
        self.end(service, job)

    def the_service_is_killed(self):
        service, job = self.begin(least=4)
        self.on_both(service)  # else the second pilot may begin meanwhile
        before = self.pilots()
        service.kill()
        time.sleep(3)
        service.start()
        until(lambda: service.up(), 60, "the pilots are taken over", service)
        after = self.pilots()
        assert service.job(job)["phase"] != "running" or before == after, (before, after)
        self.end(service, job)

    def own_nodes_beside_a_pool(self):
        """A node of the service's own takes what it has room for, and the pool the rest."""
        own = '[[nodes]]\ntype = "cpu"\ndevices = 2\nhosts = ["localhost"]\n'
        service = Service(self.testbed, self.ductile, POOL.replace("max = 2", "max = 1") + own)
        small = service.submit("small", self.options, 1, 1)
        until(lambda: service.nodes()["localhost"]["jobs"] or service.job(small)["phase"] == "finished", 60,
              "the job runs on the own node", service)
        self.none_left(service)
        job, held = service.submit("digits", self.options, 4, 4), set()
        until(lambda: held.update(service.job(job)["holdings"]) or service.job(job)["phase"] == "finished", 600,
              "the job has ended", service)
        assert held == {"localhost", "lab-1"}, held
        for number in (small, job):
            done = service.finish(number)
            assert done["phase"] == "finished", done
            assert digest_of(done["run"]) == self.digest, "other bits than those of the job alone"
        until(lambda: service.up() == ["localhost"], 60, "the idle pilot is given back", service)
        self.none_left(service)
        service.stop()


SCENARIOS = ["a_batch_job_trains_on_its_nodes", "grows_and_shrinks", "pending_is_said", "slurmctld_is_killed",
             "slurmctld_is_killed_at_once", "a_node_is_lost", "the_only_node_is_lost",
             "a_node_of_a_python_job_is_lost", "a_pilot_is_preempted", "the_time_limit_comes",
             "the_service_is_killed", "own_nodes_beside_a_pool"]


def main():
    ductile = str(pathlib.Path(sys.argv[1]).resolve())
    try:
        testbed = Testbed(4)
    except Skip as why:
        print(f"skipped: {why}")
        return
    try:
        words = sys.argv[2:]
        scenarios = Scenarios(testbed, ductile, SHORT_STEPS if words == ["short"] else STEPS)
        names = SHORT if words == ["short"] else words or SCENARIOS
        for name in names:
            start = time.time()
            getattr(scenarios, name)()
            print(f"{name}: {time.time() - start:.0f} s", flush=True)
    finally:
        testbed.down()


if __name__ == "__main__":
    main()
