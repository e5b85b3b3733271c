"""The stubs of the package say what the modules have: mypy's stubtest compares the two."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import ductile

PACKAGE = os.path.dirname(os.path.abspath(ductile.__file__))
STUBTEST = shutil.which("stubtest", path="/usr/bin")
ANYTHING = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"  # a stub of a module with any name in it


@unittest.skipIf(STUBTEST is None, "stubtest is not installed (scripts/setup --tests)")
class Stubs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ductile-stubs-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.package = os.path.join(self.folder, "ductile")
        shutil.copytree(PACKAGE, self.package)
        private = {name.split(".")[0] for name in os.listdir(PACKAGE) if name.startswith("_") and name[1] != "_"} | {"worker"}
        for name in private:  # which mypy would check, and has nothing to compare with
            with open(os.path.join(self.package, name + ".pyi"), "w") as file:
                file.write(ANYTHING)
        # mypy would read all of torch, which takes most of a minute each time. What stubs name of it has a test of its own.
        self.elsewhere = os.path.join(self.folder, "elsewhere")
        for name in ("torch", "torch/utils", "torch/utils/data"):
            os.makedirs(os.path.join(self.elsewhere, name))
            with open(os.path.join(self.elsewhere, name, "__init__.pyi"), "w") as file:
                file.write(ANYTHING)
        self.modules = ["ductile", *sorted(f"ductile.{name[:-4]}" for name in os.listdir(PACKAGE)
                                           if name.endswith(".pyi") and name != "__init__.pyi")]

    def check(self):
        allowed = os.path.join(self.folder, "allowed")
        with open(allowed, "w") as file:
            file.write("ductile\\._.*\nductile\\.worker.*\n")
        return subprocess.run([sys.executable, STUBTEST, "--ignore-unused-allowlist", "--allowlist", allowed, "ductile"],
                              cwd="/", env={**os.environ, "PYTHONPATH": self.folder,
                                            "MYPYPATH": os.pathsep.join([self.elsewhere, self.folder])},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1500)

    def test_of_every_public_module_are_there(self):
        public = {name[:-3] for name in os.listdir(PACKAGE) if name.endswith(".py") and not name.startswith("_")} - {"worker"}
        self.assertEqual({module[len("ductile."):] for module in self.modules[1:]}, public)

    def test_name_nothing_that_torch_lacks(self):
        import torch

        named = set()
        for file in (name for name in os.listdir(PACKAGE) if name.endswith(".pyi")):
            with open(os.path.join(PACKAGE, file)) as stub:
                text = stub.read()
            named |= set(re.findall(r"\btorch(?:\.\w+)+", text))
            for module, names in re.findall(r"^from (torch[\w.]*) import (.+)$", text, re.MULTILINE):
                named |= {f"{module}.{name.split()[0]}" for name in names.split(",")}
        self.assertLessEqual({"torch.Tensor", "torch.nn.Module", "torch.utils.data.DataLoader"}, named)
        for name in named:
            found = torch
            for part in name.split(".")[1:]:
                self.assertTrue(hasattr(found, part), name)
                found = getattr(found, part)

    def test_say_what_there_is(self):
        done = self.check()
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_that_are_wrong_are_found(self):
        with open(os.path.join(self.package, "sched.pyi"), "a") as file:
            file.write("def absent() -> int: ...\n")
        done = self.check()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("ductile.sched.absent", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
