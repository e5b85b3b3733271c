"""The wheel and the sdist: what they hold, and that the tutorial's script trains with an installed wheel."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

import support

ROOT = os.path.dirname(os.path.dirname(support.HERE))
LONG = bool(os.environ.get("DUCTILE_ALL_SIZES"))


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="ductile-wheel-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)

    def run_here(self, *command, **how):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**environment, "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **how.pop("env", {})},
                              **how)
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        return done.stdout

    def sdist(self):
        program = f"import ductile_build; print(ductile_build.build_sdist({self.folder!r}))"
        name = self.run_here(sys.executable, "-c", program, cwd=os.path.join(ROOT, "packaging"))
        with tarfile.open(os.path.join(self.folder, name.split()[-1])) as file:
            names = file.getnames()
            file.extractall(self.folder)
        return os.path.join(self.folder, names[0].split("/")[0]), names

    def check(self, source, *settings):
        """Builds a wheel of `source`, installs it, and trains with it."""
        place = tempfile.mkdtemp(dir=self.folder)
        words = [word for setting in settings for word in ("--config-settings", setting)]
        self.run_here(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", place, *words, source)
        wheel, = (os.path.join(place, name) for name in os.listdir(place))
        with zipfile.ZipFile(wheel) as file:
            names = file.namelist()
        for part in ("ductile/__init__.py", "ductile/ckpt.pyi", "ductile/py.typed", ".data/scripts/ductile-worker",
                     ".dist-info/RECORD"):
            self.assertTrue(any(name.endswith(part) for name in names), f"{part} in {names}")
        self.assertEqual(len([name for name in names if name.endswith(".so")]), 2)
        site = os.path.join(place, "site")
        self.run_here(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel)
        environment = {"PYTHONPATH": site, "PATH": os.path.join(site, "bin") + ":/usr/bin:/bin"}
        told = self.run_here("ductile", "train", os.path.join(ROOT, "examples", "python_job.py:Job"), "--json", "--workers", "2",
                             "--out", os.path.join(place, "run"), "--set", "train.max_steps=4",
                             "--set", f"python.interpreter={sys.executable}", env=environment, cwd=place)
        self.assertEqual(json.loads(told)["status"], "done")
        self.run_here(sys.executable, "-c", "import ductile; run = ductile.sim.run(jobs=3); assert len(run['jobs']) == 3; "
                      "assert not ductile.load('run').training", env=environment, cwd=place)

    def test_of_a_build_that_is_there_trains_the_script_of_the_tutorial(self):
        self.check(ROOT, f"build-dir={support.BUILD}", "ready=1")

    def test_sdist_holds_the_sources_and_nothing_else(self):
        _, names = self.sdist()
        inside = {name.split("/", 1)[1] for name in names}
        self.assertLessEqual({"pyproject.toml", "CMakeLists.txt", "packaging/ductile_build.py", "PKG-INFO",
                              "src/ductile/python/core.cc"}, inside)
        self.assertFalse([name for name in inside if name.startswith(("build/", "runs/", ".git/"))])

    @unittest.skipUnless(LONG, "it takes as long as a build")
    def test_of_an_sdist_is_built_from_it(self):
        source, _ = self.sdist()
        self.check(source)


if __name__ == "__main__":
    unittest.main(verbosity=2)
