"""The job whose workers bench/python/replace.py kills: each process tells once when it first computes."""

import os
import time


import ductile
from step_job import Job as Plain

_told = []


def _tell():
    """Seconds since this process began, by its parent's fork, and of its processor."""
    with open("/proc/self/stat") as file:
        began = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    line = f"{os.getpid()} {time.clock_gettime(time.CLOCK_BOOTTIME) - began:.3f} {time.process_time():.3f}\n"
    with open(os.environ["DUCTILE_TOLD"], "a") as file:
        file.write(line)


class Job(Plain):
    options = dict(Plain.options, train=dict(Plain.options["train"], virtual_ranks=4, log_every=1, max_steps=100000))

    def loss(self, model, batch):
        if not _told and model.training:
            _told.append(True)
            _tell()
        return super().loss(model, batch)
