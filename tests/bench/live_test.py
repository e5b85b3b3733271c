"""What the programs of bench/live make of times and events, without a service and without a machine of its own."""
import json
import pathlib
import sys
import tempfile
import threading
import time
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench" / "live"))
import goodput_replays  # noqa: E402
import in_service  # noqa: E402
import in_simulator  # noqa: E402
import real_vs_sim  # noqa: E402
import spot_live  # noqa: E402
import spot_rival  # noqa: E402


def write_run(folder, generations, rows):
    """generations: [(first step, slots)]; rows: [(generation, step, time)]"""
    events = [{"event": "generation", "generation": n, "text": f"generation {n} from step {step} with {slots} of 2 workers: x"}
              for n, (step, slots) in enumerate(generations, 1)]
    logged = [{"generation": n, "step": step, "time": seconds, "epoch": 0.5, "train/loss": 1.0} for n, step, seconds in rows]
    for name, lines in (("events", events), ("metrics", logged)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


class Runs(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def test_a_change_of_size_takes_what_no_step_does(self):
        # A step takes 1 s, then 0.5 s; between steps 10 and 20 there are 5 of each, and 3 s of neither.
        run = write_run(self.folder, [(0, 1), (15, 2)], [(1, 5, 105), (1, 10, 110), (2, 20, 120.5), (2, 30, 125.5)])
        self.assertEqual(in_service.pauses(run), [[1, 2, 3.0]])
        self.assertEqual(in_service.measured(run), [[1, 5, 105, 110], [2, 10, 120.5, 125.5]])

    def test_a_line_that_is_being_written_is_not_read(self):
        run = write_run(self.folder, [(0, 1)], [(1, 5, 105), (1, 10, 110)])
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"generation": 1, "st')
        self.assertEqual(len(in_service.logged(run)), 2)

    def test_a_start_does_not_contain_the_wait_for_a_round(self):
        run = write_run(self.folder, [(0, 1)], [(1, 5, 107), (1, 10, 112)])
        record = {"run": str(run), "submitted": 90, "started": 100, "ended": 112.5}
        before = in_service.run_beside, in_service.resized
        in_service.run_beside, in_service.resized = lambda *_: record, lambda *_: [0.25]
        try:
            found = in_service.profile_of(types.SimpleNamespace(slots=2), None, "gpt")
        finally:
            in_service.run_beside, in_service.resized = before
        self.assertEqual((found["start"], found["end"], found["resize"]), (2, 0.5, 0.25))


class Tables(unittest.TestCase):
    def test_what_did_not_run_in_a_turn_is_as_much_slower_as_what_did(self):
        profiles = {"gpt": {"steps": {"1": 1.0, "2": 0.6}, "neighbours": 1.25},
                    "resnet8": {"steps": {"1": 4.0, "2": 2.0}, "neighbours": 1.25}}
        job = {"kind": "gpt", "measured": [[1, 10, 5.0, 20.0]], "granted": [[0.0, 1]], "ended": 21.0}
        during, factor = in_simulator.profiles_during([job], profiles)
        self.assertEqual(factor, 1.5)
        self.assertEqual({k: p["steps"] for k, p in during.items()},
                         {"gpt": {"1": 1.5, "2": 0.6 * 1.5}, "resnet8": {"1": 6.0, "2": 3.0}})

    def test_time_beside_others_counts_as_it_would_have_been_alone(self):
        profiles = {"gpt": {"steps": {"1": 1.0, "2": 0.6}, "neighbours": 1.25}}
        job = {"kind": "gpt", "measured": [[1, 10, 5.0, 20.0]], "granted": [[0.0, 1]], "ended": 21.0}
        # From 0 to 6, from 8 to 10, and, twice over, from 16 to the end: 1 + 2 + 4 of the 15 seconds.
        others = [{"kind": "gpt", "measured": [], "granted": [[0.0, 1], [6.0, 0], [8.0, 1]], "ended": 10.0},
                  {"kind": "gpt", "measured": [], "granted": [[16.0, 1]], "ended": 30.0},
                  {"kind": "gpt", "measured": [], "granted": [[17.0, 1]], "ended": 18.0}]
        self.assertEqual(in_simulator.seconds_beside([job, *others], job, 5.0, 20.0), 7.0)
        during, _ = in_simulator.profiles_during([job, *others], profiles)
        self.assertAlmostEqual(during["gpt"]["steps"]["1"], (8 + 7 / 1.25) / 10)

    def test_the_factor_of_neighbours_weighs_pairs_by_their_work(self):
        times = {kind: {"nobody": 1.0, **dict.fromkeys(in_service.KINDS, 1.2)} for kind in in_service.KINDS}
        profiles = {kind: {"steps": {"1": times[kind], "2": {"nobody": 0.6}}} for kind in times}
        found = in_simulator.in_workload(types.SimpleNamespace(slots=2), "a", profiles)
        self.assertAlmostEqual(found["gpt"]["neighbours"], 1.2)
        self.assertEqual(found["gpt"]["steps"], {"1": 1.0, "2": 0.6})

    def test_another_policy_begins_in_each_round(self):
        args = types.SimpleNamespace(policies=["fifo", "ductile"], sizes=["asked", "one"], workloads=["b"], rounds=2)
        self.assertEqual([label for _, _, label in real_vs_sim.turns_of(args)],
                         ["fifo", "fifo-one", "ductile", "fifo-one", "ductile", "fifo"])

    def test_sizes_are_those_of_the_policy(self):
        args = types.SimpleNamespace(slots=2)
        self.assertEqual([in_service.slots_of(args, label, 2) for label in ("srtf", "srtf-one", "sia")], [(2, 2), (1, 1), (1, 2)])

    def test_intervals(self):
        args = types.SimpleNamespace(intervals=real_vs_sim.intervals("0.5,pollux=1"))
        self.assertEqual([in_service.interval_of(args, label) for label in ("fifo-one", "pollux")], [0.5, 1])

    def test_equal_loss_is_that_of_the_worse_end(self):
        free, own = {"losses": [[[10, 0.9], [20, 0.5]]]}, {"losses": [[[15, 0.7], [30, 0.45], [45, 0.3]]]}
        self.assertEqual(goodput_replays.to_equal_loss(free, own), {"free": 20, "own": 30})


class Spot(unittest.TestCase):
    def test_what_happens_at_one_instant_is_one_event(self):
        self.assertEqual(spot_live.schedule([4, 2, 2, 4], 5.0, 2.0),
                         [(3.0, "notice", [3, 2]), (5.0, "go", [3, 2]), (15.0, "come", [3, 2])])

    def test_a_gang_that_is_told_twice_begins_once_more(self):
        market = types.SimpleNamespace(folder=pathlib.Path("/"), settle=1.5)
        began = []

        class Gang(spot_rival.Gang):
            def start_process(self):
                began.append(set(self.held))
                self.starts += 1

            def ended(self):
                return False

        gang = Gang(market, 0)
        gang.want([0, 1], True)
        gang.start()
        until = time.monotonic() + 30
        while not began and time.monotonic() < until:
            time.sleep(0.01)
        gang.want([2, 3], True)
        time.sleep(0.1)
        gang.want([0], False)
        while len(began) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        gang.want([4], True)
        gang.want([4], False)  # it came and went
        time.sleep(2)
        with gang.changed:
            gang.over = True
            gang.changed.notify()
        gang.join()
        self.assertEqual(began, [{0, 1}, {1, 2, 3}])
        self.assertFalse(threading.active_count() > 1)


if __name__ == "__main__":
    unittest.main()
