#!/usr/bin/env python3
"""Tests of bench/selection.py. Usage: selection_test.py BUILD [-v]"""
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import selection  # noqa: E402

BUILD = HERE.parent.parent / "build" / "release"


class Methods(unittest.TestCase):
    def test_options_belong_to_the_group_of_the_method(self):
        for method, sets in (("plain", ["train.method=plain"]),
                             ("graded:beta=4", ["train.method=graded", "train.graded.beta=4"]),
                             ("infobatch:ratio=0.3+end=0.9", ["train.method=infobatch", "train.infobatch.ratio=0.3",
                                                              "train.infobatch.end=0.9"]),
                             ("stale_selective:beta=2", ["train.method=stale_selective", "train.selective.beta=2"]),
                             ("selective:optimizer.lr=0.2", ["train.method=selective", "optimizer.lr=0.2"])):
            self.assertEqual(selection.sets_of(method), sets)

    def test_ductile_knows_the_options_and_that_they_have_an_effect(self):
        for method in ("graded:beta=4+floor=0.3", "infobatch:ratio=0.3", "selective:beta=2", "stale_selective:beta=2"):
            words = [word for s in selection.sets_of(method) for word in ("--set", s)]
            told = subprocess.run([BUILD / "bin" / "ductile", "config", *words], capture_output=True, text=True)
            self.assertEqual((told.returncode, told.stderr), (0, ""), method)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
