"""What a loop of the user's own costs beside a class: microseconds from the engine's question to its answer.

    PYTHONPATH=build/release/python python3 bench/python/handover.py [--rounds 9] [--steps 5000]

The engine's thread asks for the loss of a rank, and the main thread answers it from a loop whose body does nothing;
beside it, alternately, two threads that pass a lock to and fro, which is what Python itself needs."""

import argparse
import _thread
import statistics
import threading
import time

import torch

from ductile import _loop


def of_the_loop(steps):
    seconds = []

    def engine():
        for _ in range(steps):
            begin = time.perf_counter()
            job.loss(None, None)
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
    for run in (of_the_loop, of_python):
        run(200)
    rows = {"the loop": [], "two locks": []}
    for _ in range(a.rounds):
        for name, run in zip(rows, (of_the_loop, of_python)):
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
