"""What the worker calls of a job, in this process: what loss() may do to its tensors, and what is named."""

import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import ductile
from ductile import worker
from ductile._errors import Error
from ductile._loop import Loop as OwnLoop
from ductile._task import Task

OPTIONS = {"seed": 3, "train": {"virtual_ranks": 2, "batch_size": 8, "eval_batch_size": 0},
           "loader": {"shuffle": True, "prefetch": 2}, "data": {"train_limit": 0, "test_limit": 0}}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 2)
        self.bn = torch.nn.BatchNorm1d(4)
        self.register_buffer("seen", torch.zeros(3))


class Job(ductile.Job):
    """`change`, a function of the job and its model, is what its loss does besides."""

    def __init__(self):
        self.change = lambda job, model: None

    def model(self):
        return Net()

    def train_data(self):
        return DataLoader([(torch.full((4,), i / 40), i % 2) for i in range(40)], batch_size=8, shuffle=True)

    def test_data(self):
        return DataLoader([(torch.full((4,), i / 8), i % 2) for i in range(8)], batch_size=4)

    def loss(self, model, batch):
        self.change(self, model)
        x, y = batch
        return F.cross_entropy(model.fc(model.bn(x)), y)


def task_of(job, **options):
    task = Task(job, {k: dict(v, **options.get(k, {})) if isinstance(v, dict) else v for k, v in OPTIONS.items()},
                "train.py:Job")
    return task, task.make_model(5)


def loss(task, rank=0):
    return task.loss(0, 4 * rank, 4, None, rank, 0, 0.0, 11, False, False)


class Case(unittest.TestCase):
    def refused(self, code, call, *words):
        with self.assertRaises(Error) as caught:
            call()
        for word in words:
            self.assertIn(word, str(caught.exception))
        self.assertEqual(caught.exception.code, code)


class Remedies(unittest.TestCase):
    def test_name_no_python_that_is_in_use(self):
        system = "/usr/bin/python3"
        for here, prefix, base, named in ((system, "/usr", "/usr", "PATH"),
                                          ("/opt/own/bin/python3", "/opt/own", "/opt/own", system),
                                          (system, "/home/user/venv", "/usr", system)):  # a virtual one is a link to it
            with unittest.mock.patch.multiple(sys, executable=here, prefix=prefix, base_prefix=base):
                self.assertEqual(worker._another_python(), f"--set python.interpreter={named}")


class Buffers(Case):
    def test_that_grow_are_named(self):
        for change, now in ((lambda job, model: setattr(model, "seen", torch.zeros(2)), "is torch.float32 [2]"),
                            (lambda job, model: model.seen.resize_(4), "is torch.float32 [4]"),
                            (lambda job, model: model.seen.resize_(2), "is torch.float32 [2]"),
                            (lambda job, model: setattr(model.seen, "data", torch.zeros(9)), "is torch.float32 [9]"),
                            (lambda job, model: setattr(model.seen, "data", torch.zeros(3).int()), "is torch.int32 [3]")):
            job = Job()
            task, _ = task_of(job)
            loss(task)
            job.change = change
            self.refused("conflict", lambda: loss(task), "buffer seen was torch.float32 [3] and " + now)

    def test_keep_their_memory_whatever_is_assigned(self):
        def assigned(job, model):
            model.seen = model.seen + 1
            model.bn.running_mean.data = model.bn.running_mean + 1

        job = Job()
        task, (_, averaged, carried) = task_of(job)
        tensors = {name: tensor for name, tensor, _ in averaged + carried}
        worker = {"seen": tensors["seen"].detach(), "bn.running_mean": tensors["bn.running_mean"].detach()}
        job.change = assigned
        for _ in range(2):
            loss(task)
        self.assertTrue(torch.equal(worker["seen"], torch.full((3,), 2.0)))
        self.assertGreater(float(worker["bn.running_mean"].min()), 1.0)
        before = {name: place.clone() for name, place in worker.items()}
        task.evaluate(lambda count: None)  # what it makes of them is dropped
        for name, place in worker.items():
            self.assertTrue(torch.equal(place, before[name]), name)
            self.assertEqual(dict(task.model.named_buffers())[name].data_ptr(), place.data_ptr())

    def test_that_are_nothing_at_first_are_named(self):
        """A buffer without a place in the state would be lost with its worker, and differ on one that joins."""
        for first in (lambda net: net.register_buffer("late", None), lambda net: None):
            job = Job()
            job.model = lambda: first(made := Net()) or made
            job.change = lambda job, model: model.bn.register_buffer("none", None)
            task, _ = task_of(job)
            loss(task)
            task.evaluate(lambda count: None)
            job.change = lambda job, model: model.register_buffer("late", torch.ones(2))
            self.refused("conflict", lambda: loss(task), "buffer late was nothing when the model was made", "torch.zeros")
            del task.model._buffers["late"]
            job.change = lambda job, model: setattr(model.bn, "none", torch.ones(2))
            self.refused("conflict", lambda: task.evaluate(lambda count: None), "buffer bn.none was nothing")


class Weights(Case):
    def test_that_a_loss_changes_are_named(self):
        def stepped(job, model):
            F.cross_entropy(model.fc(torch.ones(1, 4)), torch.ones(1, dtype=torch.long)).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()

        late = (0, 5)  # losses before it
        for change, words, when in (
                (lambda job, model: setattr(model.fc.weight, "data", model.fc.weight * 0.9), "was given other data", late),
                (lambda job, model: model.fc.weight.data.clamp_(-0.01, 0.01), "was changed", (0,)),
                (lambda job, model: torch.nn.init.zeros_(model.fc.weight), "was changed", late), (stepped, "was changed", late)):
            for before in when:
                job = Job()
                task, _ = task_of(job)
                for _ in range(before):
                    loss(task)
                job.change = change
                self.refused("conflict", lambda: loss(task), f"parameter fc.weight {words} by loss()", "optimizer()")
        job = Job()
        task, _ = task_of(job)
        job.change = lambda job, model: model.fc.weight.data.zero_()
        self.refused("conflict", lambda: task.evaluate(lambda count: None), "parameter fc.weight was changed by loss()")

    def test_and_modes_are_those_of_the_model_in_each_loss(self):
        """Whichever ranks a worker has computed before."""
        seen = []

        def change(job, model):
            seen.append((model.training, model.bn.training, model.fc.bias.requires_grad))
            model.eval()
            model.fc.bias.requires_grad_(False)

        job = Job()
        task, _ = task_of(job)
        task.set_training(True)
        job.change = change
        loss(task)
        loss(task, rank=1)
        task.evaluate(lambda count: None)
        loss(task)
        self.assertEqual(seen, [(True, True, True)] * 2 + [(False, False, True)] * 2 + [(True, True, True)])

    def test_that_optimizer_freezes_stay_so(self):
        def frozen(model):
            model.fc.weight.requires_grad_(False)
            return torch.optim.SGD(model.parameters(), lr=0.1)

        job, seen = Job(), []
        job.optimizer = frozen
        job.change = lambda job, model: seen.append(model.fc.weight.requires_grad)
        task, _ = task_of(job)
        for rank in (0, 1):
            value, _ = loss(task, rank)
            value.backward()
            self.assertIsNone(task.model.fc.weight.grad)
        self.assertEqual(seen, [False, False])


class Helper:
    pass


class Slotted:
    __slots__ = ("mean",)


mean_of_module = None


class State(Case):
    def test_that_is_assigned_anew_elsewhere_is_carried(self):
        """In another object, one without a dictionary, a module, and a function around a function."""
        def closed():
            mean = torch.zeros(3)

            def more():
                nonlocal mean
                mean = mean + 1

            return more, lambda: mean

        def add(of):
            of.mean = of.mean + 1

        def global_add():
            global mean_of_module
            mean_of_module = mean_of_module + 1

        global mean_of_module
        helper, slotted, (more, value) = Helper(), Slotted(), closed()
        helper.mean, slotted.mean, mean_of_module = torch.zeros(3), torch.zeros(3), torch.zeros(3)
        for change, get in ((lambda: add(helper), lambda: helper.mean), (lambda: add(slotted), lambda: slotted.mean),
                            (global_add, lambda: mean_of_module), (more, value)):
            job, registered = Job(), get()
            job.state = lambda model: {"mean": registered}
            task, _ = task_of(job)
            carried = dict(task.state.tensors)["mean"]
            job.change = lambda job, model: change()
            for step in range(1, 3):
                loss(task)
                loss(task, rank=1)  # what it makes of it is dropped
                self.assertEqual(carried.tolist(), [float(step)] * 3)
            task.state.restore()
            self.assertEqual((get().tolist(), get() is registered), ([2.0] * 3, True))

    def task(self, **registered):
        """A job that registers these, and has them as attributes, too."""
        job = Job()
        vars(job).update(registered)
        job.state = lambda model: dict(registered)
        task, (_, _, carried) = task_of(job)
        return job, task, dict(task.state.tensors)

    def test_that_is_assigned_anew_is_carried(self):
        job, task, carried = self.task(mean=torch.zeros(3), counts={"n": 0}, seen=[0])
        mean, counts, seen = job.mean, job.counts, job.seen

        def change(job, model):
            job.mean = job.mean + 1
            job.counts = {"n": job.counts["n"] + 1}
            job.seen = job.seen + [1]

        job.change = change
        for step in range(1, 3):
            loss(task)
            loss(task, rank=1)  # what it makes of them is dropped
            self.assertTrue(torch.equal(carried["mean"], torch.full((3,), float(step))))
        task.state.restore()
        self.assertTrue(job.mean is mean and job.counts is counts and job.seen is seen)
        self.assertEqual((mean.tolist(), counts, seen), ([2.0] * 3, {"n": 2}, [0, 1, 1]))

    def test_that_is_assigned_in_its_dictionary_is_carried(self):
        job = Job()
        registered = {"mean": torch.zeros(3), "counts": {"n": 0}}
        job.state = lambda model: registered
        task, _ = task_of(job)

        def change(job, model):
            registered["mean"] = registered["mean"] + 1
            registered["counts"] = {"n": registered["counts"]["n"] + 1}

        job.change = change
        for rank in (0, 1, 0):
            loss(task, rank)
        task.state.restore()
        self.assertEqual((registered["mean"].tolist(), registered["counts"]), ([2.0] * 3, {"n": 2}))
        self.assertEqual(dict(task.state.tensors)["mean"].tolist(), [2.0] * 3)

    def test_that_changes_its_shape_or_kind_is_named(self):
        for change, words in ((lambda job, model: job.mean.resize_(4), "was torch.float32 [3] and is torch.float32 [4]"),
                              (lambda job, model: setattr(job, "mean", torch.zeros(4)), "and is torch.float32 [4]"),
                              (lambda job, model: setattr(job, "mean", 5.0), "and is float after"),
                              (lambda job, model: setattr(job.mean, "data", torch.zeros(4)), "and is torch.float32 [4]")):
            job, task, _ = self.task(mean=torch.zeros(3))
            job.change = change
            self.refused("conflict", lambda: loss(task), 'state "mean"', words)
        job, task, _ = self.task(counts={})
        job.change = lambda job, model: setattr(job, "counts", 5)
        self.refused("conflict", lambda: loss(task), 'state "counts" was dict and is int')

    def test_that_is_given_other_data_is_carried(self):
        job, task, carried = self.task(mean=torch.zeros(3))
        job.change = lambda job, model: setattr(job.mean, "data", job.mean + 1)
        loss(task)
        self.assertEqual(carried["mean"].tolist(), [1.0] * 3)
        loss(task, rank=1)
        task.state.restore()
        self.assertEqual(job.mean.tolist(), [1.0] * 3)


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.LazyLinear(2)
        self.bn = torch.nn.Identity()


class LazyParameters(Case):
    def test_get_their_sizes_from_a_loss_that_uses_state(self):
        registered = {"mean": torch.zeros(3), "counts": {"n": 0}}

        def change(job, model):
            registered["mean"].add_(1)
            job.counts["n"] += 1

        def state(model):
            job.counts = registered["counts"]
            return registered

        job = Job()
        job.model, job.state, job.change = Lazy, state, change
        task, _ = task_of(job)
        self.assertEqual((registered["mean"].tolist(), registered["counts"]), ([0.0] * 3, {"n": 0}))
        loss(task)
        task.state.restore()
        self.assertEqual((registered["mean"].tolist(), registered["counts"]), ([1.0] * 3, {"n": 1}))

    def test_have_their_sizes_when_state_asks_for_them(self):
        job = Job()
        job.model, job.state = Lazy, lambda model: {"average": torch.zeros_like(model.fc.weight)}
        task, _ = task_of(job)
        self.assertEqual(dict(task.state.tensors)["average"].shape, (2, 4))

    def test_of_batch_norms_are_averaged_as_others(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc, self.bn = torch.nn.LazyLinear(2), torch.nn.LazyBatchNorm1d()

        job = Job()
        job.model = Net
        task, (parameters, averaged, carried) = task_of(job)
        self.assertEqual({name: list(p.shape) for name, p, is_norm in parameters if is_norm}, {"bn.weight": [4], "bn.bias": [4]})
        self.assertEqual([name for name, _, _ in averaged], ["bn.running_mean", "bn.running_var"])
        self.assertEqual([(name, int(b)) for name, b, _ in carried], [("bn.num_batches_tracked", 0)])
        loss(task)
        self.assertEqual(int(task.model.bn.num_batches_tracked), 1)

    def test_of_a_module_that_a_loop_has_made_begin_again(self):
        """A worker that has lost everything makes its model once more."""
        for layers in (lambda: torch.nn.Sequential(torch.nn.LazyBatchNorm1d(), torch.nn.LazyLinear(2)),
                       lambda: torch.nn.LazyLinear(2), lambda: torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 2)),
                       lambda: torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))):
            torch.manual_seed(7)
            net = layers()
            loop = OwnLoop({}, net, Job().train_data(), Job().test_data(), (), {}, None)
            loop.loss = lambda model, batch: F.cross_entropy(net(batch[0]), batch[1])
            task, _ = task_of(loop)
            first = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            for _ in range(3):
                loss(task)
                with torch.no_grad():
                    for p in net.parameters():
                        p.add_(1)
                task.make_model(5)
                self.assertIs(task.model, net)
                self.assertEqual(net.state_dict().keys(), first.keys())
                for name, tensor in net.state_dict().items():
                    self.assertTrue(torch.equal(tensor, first[name]), name)


class Unpicklable:
    def state_dict(self):
        return {"open": lambda: None}

    def load_state_dict(self, saved):
        raise ValueError("not that version")


class Refusals(Case):
    def test_name_state_that_cannot_be_saved_or_loaded(self):
        job = Job()
        job.state = lambda model: {"log": Unpicklable()}
        self.refused("invalid_argument", lambda: task_of(job), 'state "log" cannot be saved', "lambda")
        job.state = lambda model: {"log": value}
        value = Unpicklable()
        value.state_dict = lambda: {}
        task, _ = task_of(job)
        self.refused("conflict", lambda: loss(task), 'state "log", load_state_dict()', "not that version")

    def test_name_metrics_that_are_no_numbers(self):
        for value, words in ((None, "None for the metric accuracy"), ("much", "'much' for the metric"),
                             (torch.zeros(2), "a tensor [2] for the metric"),
                             (ductile.ratio(None, 4), "ductile.ratio(None, 4) for the metric")):
            job = Job()
            job.metrics = ["accuracy"]
            job.loss = lambda model, batch: (F.cross_entropy(model.fc(batch[0]), batch[1]), {"accuracy": value})
            task, _ = task_of(job)
            self.refused("conflict", lambda: loss(task), words)
        for metrics in ("accuracy", [5], 5):
            job.metrics = metrics
            self.refused("invalid_argument", lambda: task_of(job), f"metrics is {metrics!r}", "metrics = (\"accuracy\",)")

    def test_name_a_loss_that_cannot_be_used(self):
        def trained(model, batch):
            return F.cross_entropy(model.fc(batch[0]), batch[1], reduction="none")

        job = Job()
        for given, words in ((lambda model, batch: model.fc(batch[0]), "gives a tensor torch.float32 [4, 2]; a tensor with one"),
                             (lambda model, batch: 5.0, "gives float; a tensor"),
                             (lambda *of: trained(*of).mean().detach(), "depends on no parameter"),
                             (lambda *of: (trained(*of).mean(), {"acuracy": 0.0}), "gives the metrics ['acuracy']")):
            job.loss = given
            task, _ = task_of(job)
            self.refused("conflict", lambda: loss(task), words)

    def test_name_a_loss_that_was_differentiated(self):
        """Return it, and no more; of something else it may be done, as of adversarial samples."""
        def loss_of(model, batch):
            return F.cross_entropy(model.fc(model.bn(batch[0])), batch[1])

        def differentiated(model, batch):
            value = loss_of(model, batch)
            value.backward()
            return value

        def moved(model, batch):
            x = batch[0].clone().requires_grad_()
            loss_of(model, (x, batch[1])).backward()
            return loss_of(model, (x.detach() + x.grad.sign(), batch[1]))

        for given in (differentiated, lambda *of: differentiated(*of) * 2.0):
            job = Job()
            job.loss = given
            task, _ = task_of(job)
            self.refused("conflict", lambda: loss(task), "train.py:Job, loss() of step 0, virtual rank 0: backward() was called on the "
                         "loss that is returned", "do not call backward() on it")
        job.loss = lambda *of: differentiated(*of).detach()
        task, _ = task_of(job)
        self.refused("conflict", lambda: loss(task), "depends on no parameter", "do not call backward()")
        job.loss = moved
        task, _ = task_of(job)
        for _ in range(3):
            loss(task)[0].backward()

    def test_take_the_loss_of_each_sample(self):
        """Where each counts, and in evaluation; their mean alone where nobody chooses by it."""
        job = Job()
        job.loss = lambda model, batch: F.cross_entropy(model.fc(batch[0]), batch[1], reduction="none")
        task, _ = task_of(job)
        each, _ = task.loss(0, 0, 4, [3, 1, 2, 0], 0, 0, 0.0, 11, False, True)
        self.assertEqual((each.shape, each.dtype), ((4,), torch.float32))
        self.assertEqual(loss(task)[0].shape, (4,))
        with torch.no_grad():
            by_hand = job.loss(task.model, (torch.stack([torch.full((4,), i / 40) for i in (3, 1, 2, 0)]),
                                            torch.tensor([1, 1, 0, 0])))
        self.assertTrue(torch.allclose(each, by_hand))
        mean, samples, _ = task.evaluate(lambda done: None)
        job.loss = lambda model, batch: F.cross_entropy(model.fc(batch[0]), batch[1])
        self.assertAlmostEqual(task.evaluate(lambda done: None)[0], mean, places=6)
        self.refused("conflict", lambda: task.loss(0, 0, 4, [3, 1, 2, 0], 0, 0, 0.0, 11, False, True),
                     "train.method goes by the loss of each sample", 'reduction="none"')
        job.loss = lambda model, batch: model.fc(batch[0]).sum(1).bfloat16()
        self.assertEqual(loss(task)[0].dtype, torch.float32)

    def test_keep_nothing_of_a_look(self):
        job = Job()

        def looked(model, batch):
            model.seen.add_(1)
            model.fc.train(not model.fc.training)
            job.kept["looks"] = job.kept.get("looks", 0) + 1
            return F.cross_entropy(model.fc(model.bn(batch[0])), batch[1], reduction="none")

        job.loss, job.kept = looked, {}
        job.state = lambda model: {"kept": job.kept}
        task, _ = task_of(job)
        before = {name: b.clone() for name, b in task.model.named_buffers()}
        pieces = [tensor.clone() for _, tensor in task.state.tensors]
        losses, _ = task.loss(0, 0, 4, [5, 6, 7, 8], 0, 0, 0.0, 11, True, True)
        self.assertFalse(losses.requires_grad)
        self.assertTrue(all(module.training for module in task.model.modules()))
        self.assertTrue(torch.equal(task.model.bn.running_mean, before["bn.running_mean"]))
        for (_, tensor), piece in zip(task.state.tensors, pieces):
            self.assertTrue(torch.equal(tensor, piece))

    def test_name_a_sample_that_cannot_be_fetched(self):
        job = Job()
        job.train_data = lambda: DataLoader(torch.utils.data.Subset([], range(8)), batch_size=8)
        task, _ = task_of(job)
        self.refused("conflict", lambda: loss(task), "train_data(), sample ", "IndexError")

    def test_name_samples_that_are_no_numbers(self):
        job = Job()
        job.train_data = lambda: DataLoader({"a": 1, "b": 2, "c": 3, "d": 4}, batch_size=4, sampler=["a", "b", "c", "d"])
        task, _ = task_of(job)
        self.refused("invalid_argument", lambda: loss(task), "the sampler gives 'a', a str")

    def test_name_what_is_no_job(self):
        here, argv = os.path.dirname(os.path.abspath(__file__)), sys.argv
        self.addCleanup(setattr, sys, "argv", argv)
        for text, words in (("blobs.py:Jab", "blobs.py has no Jab; it has Job"),
                            ("blobs.py:NoJob", "something else than a class of ductile.Job"),
                            ("support.py", "support.py does not come to ductile.job()")):
            self.refused("invalid_argument", lambda: worker.describe(os.path.join(here, text), []), words)

    def test_name_what_is_wrong_while_a_job_is_described(self):
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "train.py")
            for options, words in (("5", "options is int"), ('{"train": 5}', 'options["train"] is 5; a dictionary is needed'),
                                   ("{}", "Job, train_data():\nTraceback")):
                with open(file, "w") as script:
                    script.write(f"import ductile\nclass Job(ductile.Job):\n    options = {options}\n"
                                 "    def train_data(self): return open('/nowhere')\n"
                                 "    model = test_data = loss = train_data\n")
                self.refused("invalid_argument", lambda: worker.describe(file + ":Job", []), words)

    def test_name_the_folder_that_a_path_is_relative_to(self):
        """Workers run elsewhere than the one who submits, or resumes."""
        for path, is_named in (("data/images.bin", True), ("/nowhere/images.bin", False)):
            job = Job()
            job.train_data = lambda: open(path)
            with self.assertRaises(Error) as caught:
                task_of(job)
            self.assertEqual(f"this process runs in {os.getcwd()}:" in str(caught.exception), is_named)

    def test_do_not_blame_a_sampler_for_a_limit(self):
        job = Job()
        data = job.train_data().dataset
        job.train_data = lambda: DataLoader(data, batch_size=8, sampler=torch.utils.data.SubsetRandomSampler(range(30)))
        task, _ = task_of(job, data={"train_limit": 20, "test_limit": 0})
        self.assertEqual(task.train_size, 20)
        loss(task)


# The worker's side of a loop, which asks for three losses, and a body of the loop.
LOOP = """
import os, time, torch, ductile
from ductile._loop import Mode
losses = []

def work():
    try:
        for batch in range(3):
            losses.append(float(job.loss(torch.nn.Identity(), batch)[0]))
    except ductile.Error as error:
        print(error, flush=True)
    return 0

Mode.now, Mode.prepare, Mode.work = "work", lambda loop: None, work
try:
    with ductile.job(model=torch.nn.Identity, train=[0], test=[0]) as job:
        {body}
except SystemExit:
    print(losses)
except ductile.Error as error:
    print(error)
os._exit(0)
"""


class Loop(Case):
    def of(self, *lines):
        code = LOOP.replace("{body}", "\n        ".join(lines))
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_is_answered_however_fast_the_worker_is(self):
        out = self.of("steps = iter(job)", "while job._step is None: time.sleep(0.01)",
                      "for step in steps: step.backward(torch.tensor(2.0 * step.batch))")
        self.assertEqual(out, "[0.0, 2.0, 4.0]\n")

    def test_is_one_for_all_epochs(self):
        nested = ("for epoch in range(2):", "    for step in job: step.backward(torch.tensor(2.0))")
        self.assertIn("a second loop over the job", self.of(*nested))
        left = ("for epoch in range(2):", "    for step in job:", "        step.backward(torch.tensor(2.0))",
                "        break")
        self.assertIn("a second loop over the job", self.of(*left))

    def test_that_is_missing_is_named(self):
        self.assertIn("has no loop `for step in job:`", self.of("pass"))


class Optimizer(unittest.TestCase):
    """Of the job's own; its state is a text and tensors in memory that the worker gives."""

    @staticmethod
    def job(make):
        class Tuned(Job):
            def optimizer(self, model):
                return make(model)

        return Tuned()

    def rule(self, make):
        return task_of(self.job(make))[0].rule

    @staticmethod
    def kept(rule):
        """(text, memory) that a worker would have."""
        text, sizes = rule.kept()
        if sizes is not None:
            rule.memory = {name: torch.zeros((size + 3) // 4) for name, size in sizes.items()}
            rule.move(rule.memory)
        return text, rule.memory

    def test_goes_on_from_a_state_of_another(self):
        rules = torch.optim
        for make in (lambda m: rules.SGD(m.parameters(), lr=0.1, momentum=0.9), lambda m: rules.Adagrad(m.parameters(), lr=0.1),
                     lambda m: (o := rules.Adam(m.parameters()), rules.lr_scheduler.MultiStepLR(o, [2, 3])),
                     lambda m: (o := rules.RMSprop(m.parameters(), momentum=0.5), rules.lr_scheduler.SequentialLR(o, [
                         rules.lr_scheduler.LinearLR(o, total_iters=2), rules.lr_scheduler.ExponentialLR(o, 0.9)], [2]))):
            first, second = self.rule(make), self.rule(make)
            gradients = [torch.full_like(p, 0.1) for p in first.parameters.values()]
            for updates in range(2):
                first.step(gradients, updates)
            text, memory = self.kept(first)
            self.assertIsNone(first.kept()[1])  # it lies in the memory now
            second.memory = {name: array.clone() for name, array in memory.items()}
            second.take(text, second.memory)
            with torch.no_grad():
                for mine, other in zip(second.parameters.values(), first.parameters.values()):
                    mine.copy_(other)
            for updates in range(2, 5):
                first.step(gradients, updates)
                second.step(gradients, updates)
            self.assertEqual(self.kept(first)[0], self.kept(second)[0])
            for name, array in self.kept(first)[1].items():
                self.assertTrue(torch.equal(array, self.kept(second)[1][name]), name)
            for mine, other in zip(second.parameters.values(), first.parameters.values()):
                self.assertTrue(torch.equal(mine, other))
            second.begin()
            self.assertEqual(second.kept()[0], self.rule(make).kept()[0])

    def test_leaves_parameters_alone_that_are_not_trained(self):
        def make(model):
            model.fc.weight.requires_grad_(False)
            return torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)

        rule = self.rule(make)
        before = rule.parameters["fc.weight"].clone()
        rule.step([torch.ones_like(p) for p in rule.parameters.values()], 0)
        self.assertTrue(torch.equal(rule.parameters["fc.weight"], before))
        self.assertIsNone(rule.parameters["fc.bias"].grad)

    def test_is_refused_where_it_cannot_be_kept(self):
        def plateau(model):
            made = torch.optim.SGD(model.parameters(), lr=0.1)
            return made, torch.optim.lr_scheduler.ReduceLROnPlateau(made)

        def odd(model):
            made = torch.optim.SGD(model.parameters(), lr=0.1)
            made.param_groups[0]["lock"] = object()
            return made

        def twice(model):
            made = torch.optim.Adam(model.parameters())
            made.state[model.fc.bias]["a"] = made.state[model.fc.bias]["b"] = torch.ones(3)
            return made

        for make, text in ((lambda m: torch.optim.LBFGS(m.parameters()), "gives LBFGS"),
                           (lambda m: None, "gives NoneType; a torch.optim.Optimizer is needed"),
                           (plateau, "gives the scheduler ReduceLROnPlateau; it has to step without a figure"),
                           (lambda m: torch.optim.SGD([torch.zeros(2)], lr=1), "has a parameter that is none of model()'s"),
                           (lambda m: torch.optim.SGD(m.nothing, lr=1), "optimizer():"),
                           (odd, "optimizer/param_groups/0/lock of the optimiser's state is object"),
                           (twice, "optimizer/state/fc.bias/a and optimizer/state/fc.bias/b")):
            with self.assertRaises(Error) as refused:
                self.rule(make)
            self.assertIn(text, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
