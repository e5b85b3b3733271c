"""Python jobs on several hosts, by `ductile train --hosts` and in a service of several nodes: the bits of one machine,
whatever becomes of agents, networks and nodes; and a host that lacks what the job needs is named."""

import json
import os
import signal
import subprocess
import unittest

import emulated
import support
from support import Case, children, kill, last_step, lines, processes, wait, workers_of
from zygote_test import title, zygotes_of

ARGS = ("--processes", 1)
SLOW = (*ARGS, "--slow", 0.2)  # what is waited for has to come before the job's end


def events_of(run):
    return [line.get("text", "") for line in lines(run, "events.jsonl")]


def agents_of(controller):
    """The launcher commands of a controller, which have become the agents of its hosts."""
    return [pid for pid in children(controller) if "host-agent" in title(pid)]


def data_processes(workers):
    keepers = [keeper for worker in workers for keeper in children(worker)]
    return keepers + [process for keeper in keepers for process in children(keeper)]


def alive(pids):
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


class Emulated(Case):
    def setUp(self):
        super().setUp()
        self.hosts = emulated.Hosts(4)
        self.addCleanup(self.hosts.end)
        self.addCleanup(self.end_all)

    def end_all(self):
        """What a test that failed has left."""
        for pid in processes(self.folder):
            if pid != os.getpid():
                kill(pid)

    def of_one_machine(self):
        return self.quiet(args=ARGS)[1]["digest"]

    def nothing_is_left(self, *pids):
        wait(lambda: not alive(pids) and not processes(self.folder), f"the end of {alive(pids)}, {processes(self.folder)}")


class Train(Emulated):
    def start_on(self, places, **how):
        words = self.command("--out", self.out("run"), "--hosts", self.hosts.listed(places), "--launcher", emulated.LAUNCHER,
                             **how)
        process = subprocess.Popen(self.hosts.at_home(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(support.end, process)
        return process

    def test_has_the_bits_of_one_machine_though_workers_agents_and_networks_are_lost(self):
        quiet, run = self.of_one_machine(), self.out("run")
        process = self.start_on((1, 2), args=(*ARGS, "--slow", 0.5))
        wait(lambda: last_step(run) >= 3 and len(workers_of(run)) == 3, f"three workers: {support.log_of(run)}")
        agents = agents_of(process.pid)
        self.assertEqual(len(agents), 2)
        for agent in agents:  # one for the workers of the job on a host
            self.assertEqual(len(zygotes_of(agent)), 1)
        of_an_agent = [pid for pid in children(agents[0]) if "--worker" in title(pid)]
        zygote, = zygotes_of(agents[0])
        data = data_processes(of_an_agent)
        self.assertTrue(data)
        kill(agents[0])
        wait(lambda: not alive([zygote]), "the end of an agent's zygote")
        self.assertEqual(alive(of_an_agent + data), of_an_agent + data, "workers go on without their agent")
        kill(of_an_agent[0])
        wait(lambda: not alive(data_processes(of_an_agent[:1]) + data[:1]), "data processes end with their worker")
        zygote, = zygotes_of(agents[1])
        before = workers_of(run)
        os.kill(zygote, signal.SIGSTOP)  # which answers nobody any more
        kill([pid for pid in children(agents[1]) if pid in before][0])
        wait(lambda: {*children(agents[1])} & {*workers_of(run)} - {*before}, "a worker without the zygote")
        generations = lambda: [text for text in events_of(run) if text.startswith("generation ")]  # noqa: E731
        wait(lambda: "with 3 of 3 workers" in generations()[-1], "three workers again")
        self.wait_for_step("run", last_step(run) + 1)  # with which that of host 1 has the state, too
        self.hosts.cut(2)
        self.wait_for_step("run", last_step(run) + 2)
        self.hosts.restore(2)
        self.assertEqual(self.finished(process, "run")["digest"], quiet)
        self.nothing_is_left(*agents, *data)

    def test_names_the_host_that_lacks_the_program_or_its_python_and_goes_on(self):
        quiet, run = self.of_one_machine(), self.out("run")
        script, other, python = self.out("train.py"), self.out("other.py"), self.out("python")
        with open(os.path.join(support.HERE, "blobs.py")) as file:
            text = file.read()
        for path, content in ((script, text), (other, text + "# is another one\n"),
                              (python, f'#!/bin/sh\nexec {support.PYTHON} "$@"\n')):
            with open(path, "w") as file:
                file.write(content)
        os.chmod(python, 0o755)
        self.hosts.hide(2, script)
        self.hosts.hide(3, python)
        process = self.start_on((1, 1, 1), job=script + ":Job", args=SLOW, sets=(f"python.interpreter={python}",))
        for host, why in ((2, f"{script}: there is no such file"), (3, f"{python}: not there")):
            at = f"on host {self.hosts.names[host]}: {why}"
            wait(lambda: any(at in event for event in events_of(run)), f"{at}: {events_of(run)}")
        self.assertEqual(self.finished(process, "run")["digest"], quiet)

    def test_ends_where_no_host_has_the_program_of_the_run(self):
        script, other = self.out("train.py"), self.out("other.py")
        with open(os.path.join(support.HERE, "blobs.py")) as file:
            text = file.read()
        for path, content in ((script, text), (other, text + "# is another one\n")):
            with open(path, "w") as file:
                file.write(content)
        self.hosts.replace(1, script, other)
        self.hosts.replace(2, script, other)
        process = self.start_on((1, 1), job=script + ":Job")
        _, err = process.communicate(timeout=support.PATIENCE)
        self.assertEqual(process.returncode, 2, err)
        self.assertRegex(err, r"on host \d+: .*train.py:Job: its files are not those that the run began with")
        self.assertIn("(an error on each of 2 hosts)", err)


class Service(Emulated):
    def setUp(self):
        super().setUp()
        self.at = self.out("service")
        os.mkdir(self.at)
        with open(self.out("cluster.toml"), "w") as file:
            file.write(f'[[nodes]]\ntype = "cpu"\ndevices = 1\nhosts = {json.dumps(self.hosts.names[1:])}\n'
                       f"addresses = {json.dumps([emulated.address(h) for h in (1, 2, 3)])}\n")
        self.start_service()

    def start_service(self):
        words = [support.DUCTILE, "server", self.out("cluster.toml"), "--folder", self.at, "--no-page", "--grace", "2",
                 "--launcher", emulated.LAUNCHER, "--listen", emulated.address(0)]
        with open(self.out("log"), "a") as log:
            self.service = subprocess.Popen(self.hosts.at_home(words), stdout=log, stderr=log)
        self.addCleanup(support.end, self.service)
        wait(lambda: self.ask("jobs").returncode == 0, "a service")

    def ask(self, command, *words):
        return subprocess.run([support.DUCTILE, command, *words, "--folder", self.at], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)

    def submit(self, name, *args, sets=(), python=support.PYTHON, least=1):
        """Its number and its run."""
        words = [word for option in (f"python.interpreter={python}", *sets) for word in ("--set", option)]
        done = subprocess.run([support.DUCTILE, "submit", os.path.join(support.HERE, "blobs.py:Job"), "--folder", self.at,
                               "--name", name, "--min", str(least), *words, "--", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip(), os.path.join(self.at, "runs", f"{done.stdout.strip()}-{name}")

    def why(self, job):
        return self.ask("why", job).stdout

    def wait_for(self, condition, what, job):
        try:
            wait(condition, what)
        except AssertionError as error:
            with open(self.out("log")) as log:
                raise AssertionError(f"{error}; {self.why(job)}; {self.ask('nodes').stdout}; {log.read()[-3000:]}") from None

    def test_of_several_nodes_gives_the_bits_of_one_machine(self):
        quiet = self.of_one_machine()
        job, run = self.submit("blobs", *ARGS, "--slow", 0.3, least=2)
        self.wait_for(lambda: last_step(run) >= 2 and len(workers_of(run)) >= 2, "two workers", job)
        agents, workers = agents_of(self.service.pid), workers_of(run)
        data = data_processes(workers)
        kill(agents[0])
        kill(workers[1])
        self.wait_for(lambda: last_step(run) >= 10, "steps", job)
        kill(self.service.pid)  # its agents end with it, its workers do not
        self.service.wait()
        self.start_service()
        self.hosts.cut(1)  # for longer than the grace
        step = last_step(run)
        self.wait_for(lambda: last_step(run) >= step + 4, "steps", job)
        self.hosts.restore(1)
        self.wait_for(lambda: '"phase": "finished"' in self.ask("why", job, "--json").stdout, "the end of the job", job)
        ends = [line for line in lines(run, "events.jsonl") if line.get("kind") == "end"]
        self.assertEqual(ends[-1]["digest"], quiet)
        self.service.send_signal(signal.SIGINT)
        self.service.wait(120)
        self.nothing_is_left(*agents, *workers, *data)

    def test_says_why_a_node_runs_nothing_of_a_job(self):
        python = self.out("python")
        with open(python, "w") as file:
            file.write(f'#!/bin/sh\nexec {support.PYTHON} "$@"\n')
        os.chmod(python, 0o755)
        self.hosts.hide(2, python)
        job, run = self.submit("blobs", *SLOW, python=python, least=3)
        why = f"on host {self.hosts.names[2]}: {python}: not there, or no program"
        self.wait_for(lambda: why in self.why(job), why, job)
        self.wait_for(lambda: '"phase": "finished"' in self.ask("why", job, "--json").stdout, "the end of the job", job)
        self.assertEqual([line for line in lines(run, "events.jsonl") if line.get("kind") == "end"][-1]["digest"],
                         self.of_one_machine())

    def test_ends_what_a_node_without_a_network_still_runs(self):
        job, run = self.submit("long", *ARGS, "--slow", 0.2, least=3,
                               sets=("train.max_steps=100000", "train.epochs=100000"))
        self.wait_for(lambda: last_step(run) >= 2 and len(workers_of(run)) == 3, "three workers", job)
        lost, = [pid for pid in workers_of(run) if f"--host\0{self.hosts.names[1]}\0" in title(pid)]
        data = data_processes([lost])
        os.kill(lost, signal.SIGSTOP)  # it does not end by itself
        self.hosts.cut(1)
        self.assertEqual(self.ask("cancel", job).returncode, 0)
        self.wait_for(lambda: self.ask("why", job, "--json").stdout.find('"phase": "cancelled"') >= 0, "the cancelled job", job)
        self.hosts.restore(1)
        self.wait_for(lambda: not alive([lost, *data]), "the end of what ran there", job)


if __name__ == "__main__":
    unittest.main()
