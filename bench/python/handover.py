"""What a loop of the user's own costs beside a class: microseconds from the engine's question to its answer.

    PYTHONPATH=build/release/python python3 bench/python/handover.py [--rounds 9] [--steps 5000]

The engine's thread asks for the loss of a rank, and the main thread answers it from a loop whose body does nothing;
beside it, alternately, the same with Python's locks in place of Turns (python/turns.h), and two threads that pass a
lock to and fro and do nothing else."""

import argparse
import _thread
import statistics
import threading
import time

import torch

from ductile import _core, _loop


class Locks:
    """Turns (python/turns.h) of Python's own locks: who waits for one wakes once more for the interpreter."""

    def __init__(self):
        self.asked, self.answered = _thread.allocate_lock(), _thread.allocate_lock()
        self.asked.acquire()
        self.answered.acquire()
        self.ask, self.answer, self.wait_for_question = self.asked.release, self.answered.release, self.asked.acquire

    def ask_and_wait(self):
        self.asked.release()
        self.answered.acquire()

    def answer_and_wait(self):
        self.answered.release()
        self.asked.acquire()


def of_locks(steps, turns=_core.Turns):
    _core.Turns = Locks
    try:
        return of_the_loop(steps)
    finally:
        _core.Turns = turns


def of_the_loop(steps):
    seconds, model = [], torch.nn.Identity()

    def engine():
        for _ in range(steps):
            begin = time.perf_counter()
            job.loss(model, None)
            seconds.append(time.perf_counter() - begin)
        return 0

    job = _loop.Loop({}, torch.nn.Identity, None, None, (), {}, None)
    _loop.Mode.prepare = lambda loop: None
    _loop.Mode.work = engine
    loss = torch.zeros(())
    before = time.process_time()
    try:
        with job:
            for step in job:
                step.backward(loss)
    except SystemExit:
        pass
    return seconds, time.process_time() - before


def of_python(steps):
    seconds, ask, answer = [], _thread.allocate_lock(), _thread.allocate_lock()
    ask.acquire()
    answer.acquire()

    def engine():
        for _ in range(steps):
            begin = time.perf_counter()
            ask.release()
            answer.acquire()
            seconds.append(time.perf_counter() - begin)

    thread = threading.Thread(target=engine)
    before = time.process_time()
    thread.start()
    for _ in range(steps):
        ask.acquire()
        answer.release()
    thread.join()
    return seconds, time.process_time() - before


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5000)
    a = parser.parse_args()
    runs = {"the loop": of_the_loop, "the loop with Python's locks": of_locks, "two locks": of_python}
    for run in runs.values():
        run(200)
    rows = {name: [] for name in runs}
    for _ in range(a.rounds):
        for name, run in runs.items():
            seconds, cpu = run(a.steps)
            seconds.sort()
            rows[name].append((1e6 * seconds[a.steps // 20], 1e6 * seconds[a.steps // 2], 1e6 * cpu / a.steps))
    for name, row in rows.items():
        columns = [sorted(column) for column in zip(*row)]
        shown = [f"{what} {statistics.median(c):.1f} ({c[0]:.1f} to {c[-1]:.1f})"
                 for what, c in zip(("fastest 5 %", "median", "processor time"), columns)]
        print(f"{name}: us, medians of {a.rounds} rounds (least to most): " + "; ".join(shown))


if __name__ == "__main__":
    main()
