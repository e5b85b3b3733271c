"""The process that workers are forked from: the same bits with and without it, whatever becomes of it."""

import os
import signal
import subprocess
import unittest

import support
from support import Case, kill, processes, wait, workers_of


def zygotes_of(pid):
    return [child for child in support.children(pid) if title(child).startswith("ductile zygote")]


def title(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().rstrip(b"\0").decode()
    except OSError:
        return ""


def place_of_torch(pid):
    """Where a process has libtorch: each process that was not forked has it elsewhere."""
    with open(f"/proc/{pid}/maps") as file:
        return next(line.split("-")[0] for line in file if "libtorch_cpu" in line)


def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


class Zygote(Case):
    def start_run(self, workers=2, **how):
        process = self.start("run", workers, args=("--slow", 0.1), **how)
        self.wait_for_step("run", 5)
        return process

    def workers(self):
        return sorted(workers_of(self.out("run")))

    def replaced(self, workers):
        """The worker that took the place of one of these."""
        wait(lambda: set(self.workers()) - set(workers), "a new worker")
        return (set(self.workers()) - set(workers)).pop()

    def same_bits(self, process):
        digest = self.finished(process, "run")["digest"]
        os.environ["DUCTILE_ZYGOTE"] = "off"
        try:
            self.assertEqual(digest, self.quiet(1)[1]["digest"])
        finally:
            del os.environ["DUCTILE_ZYGOTE"]

    def test_forks_all_workers_as_children_of_their_launcher(self):
        process = self.start_run()
        zygote, = zygotes_of(process.pid)
        before = self.workers()
        kill(before[0])
        workers = [*before[1:], self.replaced(before)]
        for pid in workers:
            self.assertEqual((place_of_torch(pid), parent_of(pid)), (place_of_torch(zygote), process.pid))
            self.assertEqual(os.getpgid(pid), pid)
            words = title(pid).split("\0")
            self.assertEqual((words[0], words[1:3]), (support.PYTHON, ["-m", "ductile.worker"]))
            self.assertEqual(words[words.index("--run") + 1], self.out("run"))
        self.same_bits(process)
        wait(lambda: not os.path.exists(f"/proc/{zygote}"), "its end")
        self.assertEqual(processes(self.out("run")), [])

    def test_that_answered_what_the_job_is_forks_its_workers_too(self):
        """So a job's start imports torch once: each start of its Python is written down."""
        starts, python = self.out("starts"), self.out("python")
        with open(python, "w") as file:
            file.write(f'#!/bin/sh\necho "$@" >>{starts}\nexec {support.PYTHON} "$@"\n')
        os.chmod(python, 0o755)

        def start(run, *words):
            if os.path.exists(starts):
                os.remove(starts)
            subprocess.run([support.DUCTILE, "train", os.path.join(support.HERE, "blobs.py:Job"), "--out", self.out(run),
                            "--set", f"python.interpreter={python}", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True,
                           timeout=240)
            with open(starts) as file:
                return [line.split()[2] for line in file]

        self.assertEqual(start("one"), ["--interpreter"])
        self.assertEqual(start("two", "--set", "train.threads=2"), ["--interpreter"])
        os.environ["DUCTILE_ZYGOTE"] = "off"
        self.addCleanup(os.environ.pop, "DUCTILE_ZYGOTE", None)
        self.assertEqual(start("three"), ["--interpreter", "--run"])

    def test_that_was_killed_is_replaced(self):
        process = self.start_run()
        zygote, = zygotes_of(process.pid)
        kill(zygote)
        before = self.workers()
        kill(before[1])
        self.replaced(before)
        other, = zygotes_of(process.pid)
        self.assertNotEqual(other, zygote)
        self.same_bits(process)

    def test_that_is_stopped_is_killed_and_workers_start_without_it(self):
        process = self.start("run", 2, args=("--slow", 0.1))
        self.wait_for_step("run", 5)
        zygote, = zygotes_of(process.pid)
        os.kill(zygote, signal.SIGSTOP)
        before = self.workers()
        kill(before[1])
        replacement = self.replaced(before)
        self.assertFalse(os.path.exists(f"/proc/{zygote}"))
        self.assertEqual(parent_of(replacement), process.pid)
        self.same_bits(process)

    def test_ends_with_its_launcher_and_the_workers_go_on(self):
        process = self.start("run", 1, args=("--slow", 0.1))
        self.wait_for_step("run", 5)
        zygote, = zygotes_of(process.pid)
        worker, = self.workers()
        self.addCleanup(kill, worker)
        kill(process.pid)
        wait(lambda: not os.path.exists(f"/proc/{zygote}"), "its end")
        self.assertTrue(os.path.exists(f"/proc/{worker}"))

    def test_of_a_python_without_torch_says_nothing_and_a_worker_does(self):
        fake = self.out("python")
        with open(fake, "w") as file:  # the question what the job is finds torch, and nothing after it does
            file.write("#!/bin/sh\ncase $* in *--describe-job*) ;; *) set -- -S \"$@\" ;; esac\n"
                       f'exec {support.PYTHON} "$@"\n')
        os.chmod(fake, 0o755)
        done = subprocess.run([support.DUCTILE, "train", os.path.join(support.HERE, "blobs.py:Job"), "--out", self.out("run"),
                               "--set", f"python.interpreter={fake}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=120)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cannot import torch", done.stderr)
        self.assertNotIn("Traceback", support.log_of(self.out("run")))

    def test_is_not_there_where_it_is_not_wanted(self):
        os.environ["DUCTILE_ZYGOTE"] = "off"
        self.addCleanup(os.environ.pop, "DUCTILE_ZYGOTE", None)
        process = self.start_run()
        self.assertEqual(zygotes_of(process.pid), [])
        one, other = self.workers()
        self.assertNotEqual(place_of_torch(one), place_of_torch(other))
        self.finished(process, "run")


if __name__ == "__main__":
    unittest.main()
