"""--verify, and the faults of users' code: each is handled, or named."""

import os
import unittest

from support import Case


long_form = unittest.skipUnless(os.environ.get("DUCTILE_ALL_SIZES"), "in the long form of this test")


class Faults(Case):
    def named(self, fault, what, workers=2, verify=("--verify", "1")):
        """Fails with a text that says so."""
        text = self.refused("--workers", str(workers), *verify, "--out", self.out(fault), args=("--fault", fault),
                            sets=("train.max_steps=4",), code=3)
        self.assertIn(what, text)
        return text

    def test_the_clock_is_named(self):
        text = self.named("clock", "computed twice by one worker, the gradient of parameter conv.weight is not the same", 1)
        self.assertIn("the clock", text)

    def test_a_generator_without_a_seed_is_named(self):
        self.named("unseeded", "computed twice by two workers, the gradient of parameter conv.weight is not the same")

    @long_form
    def test_a_global_counter_is_named(self):
        self.named("counter", "computed twice by one worker, the gradient of parameter conv.weight", 1)

    @long_form
    def test_an_average_outside_of_the_model_is_named(self):
        self.named("average", "an average or a cache outside of the model and of state()")

    @long_form
    def test_a_set_of_objects_is_named(self):
        self.named("objects", "the order of a set of objects")

    @long_form
    def test_a_stream_that_goes_by_the_process_is_named(self):
        self.named("stream,process", "computed twice by two workers")

    def test_a_fork_after_threads_is_named(self):
        self.named("fork", "a worker has threads, so it cannot be forked any more", 1, ())

    def same(self, fault):
        """As of an undisturbed run of one worker, though two computed all of it twice."""
        how = {"args": ("--fault", fault), "sets": ("train.max_steps=8",)}
        _, alone = self.quiet(1, **how)
        checked = self.train(fault, 2, **dict(how, sets=(*how["sets"], "python.verify_every=1")))
        self.assertEqual(checked["digest"], alone["digest"])

    @long_form
    def test_a_set_of_texts_has_one_order(self):
        self.same("texts")

    @long_form
    def test_assigned_buffers_and_registered_state_are_handled(self):
        self.same("reassigned,state,stream")

    @long_form
    def test_tied_weights_and_lazy_modules_are_handled(self):
        self.same("tied,lazy")


if __name__ == "__main__":
    unittest.main()
