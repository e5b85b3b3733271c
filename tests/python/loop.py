"""The job of blobs.py with a loop of its own."""

import sys

import torch.nn.functional as F

import blobs
import ductile

parts = blobs.Job()
with ductile.job(parts.options, model=blobs.Net, train=parts.train_data(), test=parts.test_data(),
                 metrics=parts.metrics) as job:
    for step in job:
        x, y = step.batch
        z = job.net(x)
        if blobs.arguments.fault == "body" and step.training:
            raise KeyError("the body fails")
        if blobs.arguments.fault == "break":
            break
        hits = (z.argmax(1) == y).sum()
        step.backward(F.cross_entropy(z, y), accuracy=ductile.ratio(hits, len(y)), margin=z.max(1).values.mean())
sys.exit("what follows the loop was run")
