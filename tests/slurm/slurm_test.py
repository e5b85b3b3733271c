#!/usr/bin/python3
"""Jobs of Ductile in a pool of pilots, in a real Slurm, while Slurm fails in every way that it has.

Usage: tests/slurm/slurm_test.py DUCTILE [SCENARIO ...]

After each scenario the weights have the bits of the same job alone, and no pilot is left. Prints
"skipped: WHY" where there is no Slurm (testbed.py).
"""
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from testbed import Service, Skip, Testbed, digest_of, until  # noqa: E402

POOL = 'name = "lab"\ndevices = 2\nmin = 0\nmax = 2\npartition = "main"\nidle = 3\nnotice = 20\n'
STEPS = 3000


def options(steps=STEPS):
    words = ["data.format=digits", "model.name=cnn", "train.batch_size=64", f"train.max_steps={steps}",
             "train.epochs=100000", "train.virtual_ranks=4", "train.eval_every_epochs=0", "train.log_every=5"]
    return [w for word in words for w in ("--set", word)]


class Scenarios:
    def __init__(self, testbed, ductile):
        self.testbed, self.ductile = testbed, ductile
        run = pathlib.Path(tempfile.mkdtemp(prefix="alone")) / "run"
        subprocess.run([ductile, "-q", "train", "--out", run, *options()], check=True, stdout=subprocess.DEVNULL)
        self.digest = digest_of(run)

    def begin(self, pool=POOL):
        """A service, and a job that has done some steps."""
        service = Service(self.testbed, self.ductile, pool)
        job = service.submit("digits", options(), 1, 4)
        until(lambda: service.steps(job) >= 100, 120, "the first steps", service)
        return service, job

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
        job = service.submit("digits", options(), 1, 4)
        until(lambda: "is pending in partition main: " in service.nodes()["lab-1"]["reason"], 60, "why", service)
        print("  ", service.nodes()["lab-1"]["reason"])
        print("  ", service.job(job)["why"])
        assert "is pending in partition main" in service.job(job)["why"]
        for block in blocks:
            self.testbed.slurm("scancel", block)
        self.end(service, job)

    def slurmctld_is_killed(self):
        service, job = self.begin()
        self.testbed.kill("ctl")
        before = service.steps(job)
        time.sleep(6)
        assert service.steps(job) > before, "the job stands still without slurmctld"
        assert service.up(), "no node counts as up without slurmctld"
        self.testbed.start("ctl")
        self.end(service, job)

    def a_node_is_lost(self):
        service, job = self.begin()
        node = self.node_of(service)
        self.testbed.kill(node)
        self.end(service, job)
        self.testbed.start(node)
        until(lambda: self.testbed.slurm("sinfo", "-h", "-n", node, "-o", "%t").strip() == "idle", 90, "the node is back")

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

    def the_time_limit_comes(self):
        service, job = self.begin(POOL.replace("max = 2", "max = 1") + "time_limit = 1\n")
        until(lambda: "takes it back" in service.nodes()["lab-1"]["reason"], 90, "the notice", service)
        self.end(service, job)

    def the_service_is_killed(self):
        service, job = self.begin()
        before = self.testbed.slurm("squeue", "-h", "-t", "R", "-o", "%i")
        service.kill()
        time.sleep(3)
        service.start()
        until(lambda: service.up(), 60, "the pilots are taken over", service)
        after = self.testbed.slurm("squeue", "-h", "-t", "R", "-o", "%i")
        assert sorted(before.split()) == sorted(after.split()), (before, after)
        self.end(service, job)


def main():
    ductile = str(pathlib.Path(sys.argv[1]).resolve())
    try:
        testbed = Testbed(4)
    except Skip as why:
        print(f"skipped: {why}")
        return
    try:
        scenarios = Scenarios(testbed, ductile)
        names = sys.argv[2:] or [n for n in vars(Scenarios) if not n.startswith("_") and
                                 n not in ("begin", "end", "none_left", "node_of")]
        for name in names:
            start = time.time()
            getattr(scenarios, name)()
            print(f"{name}: {time.time() - start:.0f} s", flush=True)
    finally:
        testbed.down()


if __name__ == "__main__":
    main()
