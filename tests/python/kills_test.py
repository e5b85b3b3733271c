"""kill -9, time and again, of members, of workers that are joining, of keepers and data processes, and of the process
that workers are forked from: equal bits, and no step is lost but the one that was cut."""

import json
import os
import random
import statistics
import subprocess
import time
import unittest

import support
from support import Case, children, kill, last_step, lines, wait, workers_of
from zygote_test import zygotes_of

KILLS = int(os.environ.get("DUCTILE_KILLS", 10))
WORKERS = 3


def steps_lost(run):
    """Of each time that the books were taken over: how many steps were logged that are done again."""
    lost, last = [], 0
    for line in lines(run, "metrics.jsonl"):
        if "begins" in line:
            lost.append(last - line["step"])
            last = line["step"]
        elif "train/loss" in line:
            last = max(last, line["step"])
    return lost


class Kills(Case):
    def victims(self, kind, run):
        workers = self.members(run)
        keepers = [k for w in workers for k in children(w)]
        return {"member": lambda: workers, "keeper": lambda: keepers,
                "data process": lambda: [d for k in keepers for d in children(k)],
                "zygote": lambda: zygotes_of(self.process.pid)}[kind]()

    def test_change_no_bit_and_cost_at_most_one_step(self):
        run, steps = self.out("killed"), 30 + 8 * KILLS
        how = {"sets": (f"train.max_steps={steps}", "train.epochs=1000", "train.log_every=1", "train.eval_every_epochs=20",
                        "checkpoint.every_steps=100000")}
        _, quiet = self.quiet(2, args=("--processes", 1), **how)
        self.process = self.start("killed", WORKERS, args=("--processes", 2, "--slow", 0.06), **how)
        draw, done, waits = random.Random(KILLS), {}, []
        while sum(done.values()) < KILLS:
            if last_step(run) >= steps - 6:  # a busy machine looks too seldom; the full form shall not end so
                self.assertTrue(done and KILLS < 100, f"the run is over after these kills: {done}")
                break
            self.wait_for_step("killed", last_step(run) + draw.randrange(1, 4))
            kind = draw.choice(["member", "member", "joiner", "keeper", "data process", "data process"] +
                               ["zygote"] * (done.get("zygote", 0) < 3))
            if kind == "joiner":  # a member dies, and then the one that is to take its place
                before = workers_of(run)
                members = self.members(run)
                if len(members) < 2:
                    continue
                kill(draw.choice(members))
                done["member"] = done.get("member", 0) + 1
                wait(lambda: set(workers_of(run)) - set(before), "a joiner: " + support.log_of(run))
                time.sleep(draw.choice((0.0, 0.05, 0.2)))
                victims = sorted(set(workers_of(run)) - set(before))
            else:
                victims = sorted(self.victims(kind, run))
            # A job that has one worker left would go back to its last checkpoint.
            if not victims or kind in ("member", "keeper") and len(self.members(run)) < 2:
                continue
            step, begin = last_step(run), time.monotonic()
            kill(draw.choice(victims))
            done[kind] = done.get(kind, 0) + 1
            if kind == "member":
                self.wait_for_step("killed", step + 1)
                waits.append(time.monotonic() - begin)
        result = self.finished(self.process, "killed")
        self.assertEqual(result["digest"], quiet["digest"])
        self.assertEqual(result["weights_digest"], quiet["weights_digest"])
        lost = steps_lost(run)
        print(json.dumps({"kills": done, "takeovers": len(lost), "most steps lost": max(lost, default=0),
                          "steps": result["step"], "seconds from the kill of a member to the next step that is seen":
                          {"median": round(statistics.median(waits), 3), "most": round(max(waits), 3)} if waits else {}}))
        # A worker that got no time for a heartbeat is lost, too: of a job that had no other one left, its last checkpoint counts.
        self.assertLessEqual(max(lost, default=0), 1, "\n".join(
            line["text"] for line in lines(run, "events.jsonl") if line.get("event") in ("silent", "lost", "generation")))

    @staticmethod
    def members(run):
        """The processes of the workers that train together now."""
        asked = subprocess.run([support.DUCTILE, "status", run, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, timeout=60)
        try:
            told = json.loads(asked.stdout)
        except ValueError:
            return []
        return [worker["process"] for worker in told.get("workers", []) if "ranks" in worker and "process" in worker
                and worker["generation"] == told["generation"]["number"]]


if __name__ == "__main__":
    unittest.main()
