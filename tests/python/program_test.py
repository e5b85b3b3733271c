"""How a user's program is found and recognised: each step in a process of its own, as `ductile train` and workers have it."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

import ductile
from ductile import _files, _program
from support import end, wait

PACKAGE = os.path.dirname(os.path.abspath(ductile.__file__))

JOB = """
import ductile

class Job(ductile.Job):
    options = {"seed": 5}
    def train_data(self):
        from mydata import samples
        return samples
    def model(self):
        from nets import deep
        from nets.parts import block
        return block.Net()
    def test_data(self): pass
    def loss(self, model, batch): pass
"""

# As a worker does before it takes part; it says "same", or what is wrong.
CHECK = """
import json, sys
from ductile import _core, _feeder, _program, _task  # which the one that describes it need not have imported
text, python = sys.argv[1], json.loads(sys.argv[2])
try:
    _program.described(text, [])
    _program.check_same(text, python)
    print("same")
except Exception as error:
    print(error)
"""

DESCRIBE = """
import json, sys
from ductile import worker
try:
    print(json.dumps(worker.describe(sys.argv[1], [])))
except Exception as error:
    print(json.dumps(str(error)))
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ductile-program-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.env = {}

    def write(self, name, text=""):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        return path

    def python(self, code, *words, **env):
        done = subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=300, env={**os.environ, **self.env, **env}, cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def described(self, text, **env):
        return json.loads(self.python(DESCRIBE, text, **env).splitlines()[-1])  # the program may say something

    def checked(self, text, python, **env):
        return self.python(CHECK, text, json.dumps(python), **env)


class Files(Case):
    def job(self, text=JOB):
        self.write("mydata.py", "samples = [1, 2]\n")
        self.write("nets/deep.py")  # a package without an __init__.py
        self.write("nets/parts/__init__.py")
        self.write("nets/parts/block.py", "from .. import base\nfrom ..widths import *\nclass Net: pass\n")
        self.write("nets/base.py")
        self.write("nets/widths.py", "width = 3\n")
        self.write("other.py")  # that nobody imports
        return self.write("train.py", text) + ":Job"

    def names(self, python):
        return python["source"].split(" ")[1:]

    def test_that_methods_import_are_those_of_the_run(self):
        text = self.job()
        python = self.described(text)
        self.assertEqual(self.names(python), ["mydata.py", "nets/base.py", "nets/deep.py", "nets/parts/__init__.py",
                                              "nets/parts/block.py", "nets/widths.py", "train.py"])
        self.assertEqual(self.checked(text, python), "same")
        script, source = text[:-len(":Job")], python["source"]
        self.write("other.py", "print(5)\n")
        self.assertTrue(_files.are_those(script, source))
        for name in ("mydata.py", "nets/widths.py", "train.py"):
            path = os.path.join(self.folder, name)
            with open(path) as file:
                before = file.read()
            self.write(name, before + "more = 1\n")
            self.assertFalse(_files.are_those(script, source), name)
            self.write(name, before)
        self.assertTrue(_files.are_those(script, source))
        os.remove(os.path.join(self.folder, "nets/base.py"))
        self.assertIn("its files are not those that the run began with", self.checked(text, python))

    def test_in_an_archive_are_those_of_the_run(self):
        def archive(text):
            with zipfile.ZipFile(os.path.join(self.folder, "libs.zip"), "w") as file:
                file.writestr("zmod.py", text)

        archive("samples = [1, 2]\n")
        text = self.job("import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'libs.zip'))\n"
                        "import zmod\n" + JOB)
        python = self.described(text)
        self.assertIn("libs.zip", self.names(python))
        self.assertEqual(self.checked(text, python), "same")
        archive("samples = [3, 4]\n")
        self.assertIn("its files are not those that the run began with", self.checked(text, python))

    def test_that_cannot_be_read_now_have_not_changed(self):
        text = self.job()
        python = self.described(text)
        with unittest.mock.patch("builtins.open", side_effect=OSError(errno.EIO, "Input/output error", "mydata.py")):
            with self.assertRaises(OSError):
                _files.are_those(text[:-len(":Job")], python["source"])

    def test_of_a_loop_are_those_of_the_run(self):
        self.job()
        text = self.write("loop.py", "import ductile\nwith ductile.job(model=lambda: None, train=[1], test=[1]) as job:\n"
                                     "    import mydata\n    for step in job: pass\n")
        python = self.described(text)
        self.assertEqual(self.names(python), ["loop.py", "mydata.py"])
        self.assertEqual(self.checked(text, python), "same")

    def test_beside_ductile_itself_are_the_users(self):
        """As in a checkout, and where `pip install --target .` has put it."""
        text = self.job()
        shutil.copytree(PACKAGE, os.path.join(self.folder, "ductile"))
        self.write("torchlike/__init__.py")
        self.write("torchlike-1.0.dist-info/RECORD", "torchlike/__init__.py,sha256=abc,3\n../../bin/torchlike,,\n")
        self.write("train.py", "import torchlike\n" + JOB)
        self.env = {"PYTHONPATH": self.folder}
        python = self.described(text)
        self.assertEqual(len(self.names(python)), 7, python["source"])
        self.assertIn("mydata.py", self.names(python))
        self.assertEqual(self.checked(text, python), "same")

    def test_beside_a_python_are_the_users(self):
        """~/train.py with ~/miniconda3; but not those of a folder of which all of Python is a part."""
        text = self.job("import sys\nsys.base_prefix = sys.argv[0][:-8] + 'conda'\nsys.path.insert(0, sys.base_prefix)\n"
                        "import standard\n" + JOB)
        self.write("conda/standard.py")
        self.assertNotIn("conda/standard.py", self.names(self.described(text)))
        self.write("train.py", "import sys\nsys.base_prefix = sys.prefix = sys.argv[0][:-9]\n" + JOB)
        self.assertIn("mydata.py", self.names(self.described(text)))

    def test_of_a_run_without_a_list_are_looked_for(self):
        text = self.job()
        python = self.described(text)
        python["source"] = python["source"].split(" ")[0]
        self.assertEqual(self.checked(text, python), "same")
        self.write("mydata.py", "samples = [1, 2, 3]\n")
        self.assertFalse(_files.are_those(text[:-len(":Job")], python["source"]))


class Starts(Case):
    """Programs that start a run where workers only read them."""

    def setUp(self):
        super().setUp()
        self.env = {"DUCTILE_PROGRAM": self.write("ductile", "#!/bin/sh\necho started >&2\nexit 1\n")}
        os.chmod(self.env["DUCTILE_PROGRAM"], 0o755)

    def test_of_a_class_without_a_main_guard_are_refused(self):
        for call in ("ductile.train(Job())", "ductile.job(model=None, train=[1], test=[1])"):
            text = self.write("train.py", JOB + call + "\n") + ":Job"
            said = self.described(text)
            self.assertIn("train.py calls " + call.split("(")[0] + "() when it is imported", said)
            self.assertIn('below `if __name__ == "__main__":`', said)

    def test_of_a_program_that_has_no_loop_are_refused(self):
        text = self.write("train.py", JOB + "if __name__ == '__main__': ductile.train(Job())\n")
        self.assertIn(f"name the class of the job: {text}:CLASS", self.described(text))


class Ends(Case):
    """Programs that end themselves where they are only read."""

    OPTIONS = ("import argparse, sys\np = argparse.ArgumentParser()\np.add_argument('--lr', required=True)\n"
               "p.parse_args(['--wdith', '3', '--lr', '1'] if 'typo' in __file__ else ['--help'] if 'help' in __file__ else [])\n")

    def test_say_what_argparse_says(self):
        loop = "import ductile\nwith ductile.job(model=None, train=[1], test=[1]) as job:\n    for step in job: pass\n"
        for rest, name in ((JOB, ":Job"), (loop, "")):
            for stem, words in (("typo", "typo.py: error: unrecognized arguments: --wdith 3"),
                                ("none", "none.py: error: the following arguments are required: --lr")):
                said = self.described(self.write(stem + ".py", self.OPTIONS + rest) + name)
                self.assertIn(words, said)
                self.assertIn("it ends itself in line 4, with exit code 2", said)
                self.assertNotIn("Traceback", said)
            said = self.described(self.write("help.py", self.OPTIONS + rest) + name)
            self.assertIn("has ended in line 4, before there was a job, and says:\nusage: help.py [-h] --lr LR", said)
            self.assertIn("--lr LR", said.splitlines()[-1])  # the end of the help

    def test_name_the_text_that_they_exit_with(self):
        said = self.described(self.write("train.py", "print('reads')\nraise SystemExit('no data in /data')\n" + JOB) + ":Job")
        self.assertIn("train.py cannot be imported: it ends itself in line 2, with exit code 1", said)
        self.assertTrue(said.endswith("reads\nno data in /data"), said)
        self.assertIn("SystemExit: 3", self.described(self.write("quiet.py", "import sys\nsys.exit(3)\n") + ":Job"))

    def test_leave_the_streams_of_the_process_as_they_were(self):
        code = ("import sys\nfrom ductile import _program\nbefore = sys.stdout, sys.stderr\n"
                "_program.described(sys.argv[1], [])\nassert (sys.stdout, sys.stderr) == before\n")
        text = self.write("train.py", JOB + "import sys\nprint('said')\nkept = sys.stdout\n") + ":Job"
        self.assertEqual(self.python(code + "sys.modules['train'].kept.write('later')", text), "said\nlater")


class Methods(Case):
    def test_that_are_missing_are_named(self):
        """Before there is a run."""
        text = self.write("train.py", "import ductile\nclass Job(ductile.Job):\n    def model(self): pass\n"
                                      "    def train_data(self): pass\n") + ":Job"
        said = self.described(text)
        self.assertIn("train.py:Job has no test_data() and no loss(). Write it into the class: test_data() returns a Dataset", said)
        self.assertIn("loss() returns the mean loss of a batch", said)

    def test_that_the_constructor_assigns_are_there(self):
        lines = "".join(f"        self.{name} = lambda *given: None\n" for name in ("model", "train_data", "test_data", "loss"))
        text = self.write("train.py", "import ductile\nclass Job(ductile.Job):\n    def __init__(self):\n" + lines) + ":Job"
        self.assertEqual(self.described(text)["options"], {"train": {}})


class Loops(Case):
    """How often a program with a loop of its own would run it."""

    def said(self, *body):
        return self.described(self.write("loop.py", "import ductile\nwith ductile.job(\n        {}, model=None, train=[1],\n"
                                                    "        test=[1]) as job:\n" + "".join(f"    {line}\n" for line in body)))

    def test_that_would_be_run_twice_are_named(self):
        for body, line in ((("for epoch in range(3):", "    for step in job: pass"), 6),
                           (("while True:", "    if job:", "        for i, step in enumerate(job): pass"), 7),
                           (("for step in job:", "    pass", "for step in job: pass"), 7)):
            self.assertIn(f"loop.py, line {line}: a second loop over the job", self.said(*body))

    def test_that_are_run_once_are_left_alone(self):
        for body in (("for step in job:", "    for part in step.batch: pass"),
                     ("for name in ('a', 'b'): print(name)", "if job: ", "    for step in job: pass", "else:",
                      "    for step in job: pass"),
                     ("for i in range(2):", "    def other(job):", "        for step in job: pass", "for step in job: pass")):
            self.assertEqual(self.said(*body)["options"], {"train": {}}, body)


class Versions(Case):
    def test_name_the_vectors_that_libraries_choose_kernels_by(self):
        more, less = {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"}, {"avx2", "fma", "avx"}
        held = {"ONEDNN_MAX_CPU_ISA": "avx2", "OPENBLAS_CORETYPE": "Haswell"}
        for flags, environment, name in ((more, {}, "AVX-512"), (less, {}, "AVX2"), (more, held, "AVX2"),
                                         (more, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "AVX-512"), ({"sse2"}, {}, os.uname().machine)):
            self.assertEqual(_program.vectors(flags, environment), name)
        here = _program.versions()
        for began, other in ((here, False), ("", False), (here.rpartition(", ")[0], False),
                             (here.rpartition(", ")[0] + ", AVX9", True), (here.replace("Python", "Python 2"), True)):
            python = {"source": "", "versions": began}
            if not other:
                _program.check_same("train.py:Job", python)
                continue
            with self.assertRaises(ductile.Error) as refused:
                _program.check_same("train.py:Job", python)
            self.assertIn(f"this worker has {here}, and the run began with {began}", str(refused.exception))


# A program that trains: it notes each signal, and needs some time to save.
TRAINS = """#!/bin/sh
trap 'echo INT >> $NOTES; sleep 1; echo saved >> $NOTES; exit 130' INT
trap 'echo TERM >> $NOTES; sleep 1; echo saved >> $NOTES; exit 130' TERM
echo ready >> $NOTES
while true; do sleep 0.05; done
"""


class Signals(Case):
    """Whoever is told to end while it trains, in whichever way, lets the run save, and ends."""

    def of(self, tell, trains=TRAINS):
        """(what the program noted, the exit code of the one that trains, its output)."""
        notes = os.path.join(self.folder, "notes")
        with open(notes, "w"):
            pass
        program = self.write("ductile", trains)
        os.chmod(program, 0o755)
        script = self.write("train.py", JOB + "if __name__ == '__main__':\n    try: ductile.train(Job())\n"
                                              "    except KeyboardInterrupt as told: print('interrupted', *told.args)\n")
        process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   start_new_session=True, env={**os.environ, "DUCTILE_PROGRAM": program, "NOTES": notes})
        self.addCleanup(end, process)
        wait(lambda: os.path.getsize(notes) > 0, "a program that trains")
        tell(process.pid)
        out, err = process.communicate(timeout=60)
        with open(notes) as file:
            return file.read().split(), process.returncode, out + err

    def test_reach_the_run_once_and_are_waited_for(self):
        for tell in (lambda pid: os.kill(pid, signal.SIGINT), lambda pid: os.killpg(pid, signal.SIGINT)):
            self.assertEqual(self.of(tell), (["ready", "INT", "saved"], 0, "interrupted\n"))
        for tell in (lambda pid: os.kill(pid, signal.SIGTERM), lambda pid: os.killpg(pid, signal.SIGTERM)):
            self.assertEqual(self.of(tell), (["ready", "TERM", "saved"], -signal.SIGTERM, ""))

    def test_are_answered_with_how_the_run_goes_on(self):
        trains = TRAINS.replace("exit 130' INT", """echo "{\\"resume\\": \\"ductile train --resume runs/a\\"}"; exit 130' INT""")
        _, _, said = self.of(lambda pid: os.kill(pid, signal.SIGINT), trains)
        self.assertEqual(said, "interrupted saved; go on with `ductile train --resume runs/a`\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
