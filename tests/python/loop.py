"""The job of blobs.py with a loop of its own."""

import sys

import torch.nn.functional as F

import blobs
import ductile

tuned = "tuned" in blobs.arguments.fault
parts = blobs.Tuned() if tuned else blobs.Job()
with ductile.job(parts.options, model=blobs.Net, train=parts.train_data(), test=parts.test_data(),
                 metrics=parts.metrics, optimizer=blobs.own_optimizer if tuned else None) as job:
    for step in job:
        x, y = step.batch
        z = job.net(x)
        if "body" in blobs.arguments.fault and step.training:
            raise KeyError("the body fails")
        if "break" in blobs.arguments.fault:
            break
        hits = (z.argmax(1) == y).sum()
        step.backward(F.cross_entropy(z, y), accuracy=ductile.ratio(hits, len(y)), margin=z.max(1).values.mean())
sys.exit("what follows the loop was run")
