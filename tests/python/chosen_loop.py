"""The job of chosen.py with a loop of its own."""

import blobs
import chosen
import ductile

parts = chosen.Job()
with ductile.job(parts.options, model=blobs.Net, train=parts.train_data(), test=parts.test_data(),
                 metrics=parts.metrics) as job:
    for step in job:
        losses, accuracy = chosen.losses_of(job.net, step.batch)
        step.backward(losses, accuracy=accuracy)
