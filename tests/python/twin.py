"""The job of blobs.py as a plain PyTorch loop: no elasticity, no feeder, torch's own SGD, or the job's own
optimiser. Prints the
largest difference of a weight to a run's."""

import sys

import torch

from ductile import _core
from ductile._seeds import seed_all
from ductile._sources import Source


def main(tuned=False):
    run, sys.argv = sys.argv[1], ["blobs.py"]
    import blobs

    torch.set_num_threads(1)
    job = blobs.Tuned() if tuned else blobs.Job()
    seed, ranks, steps = job.options["seed"], job.options["train"]["virtual_ranks"], job.options["train"]["max_steps"]
    seed_all(seed)
    model = job.model()
    # Ductile decays no biases and norms, and its learning rate falls with half a cosine.
    plain = [p for n, p in model.named_parameters() if "bias" in n or n.startswith("bn")]
    rest = [p for n, p in model.named_parameters() if not ("bias" in n or n.startswith("bn"))]
    optimizer = torch.optim.SGD([{"params": rest, "weight_decay": 5e-4}, {"params": plain}], lr=0.05, momentum=0.9)
    if tuned:
        optimizer, scheduler = job.optimizer(model)
    data = Source(job.train_data(), "train_data", seed, True)
    each = data.batch_size // ranks
    per_epoch = data.size // data.batch_size
    total = 10 * per_epoch
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        sums = [torch.zeros_like(p) for p in model.parameters()]
        buffers = [b.clone() for b in model.buffers()]
        means = [torch.zeros_like(b, dtype=torch.float64) for b in model.buffers()]
        for rank in range(ranks):
            batch = data.fetch(epoch, place * data.batch_size + rank * each, each)
            for buffer, before in zip(model.buffers(), buffers):
                buffer.copy_(before)
            seed_all(_core.mix(_core.mix(seed, step), rank))
            loss, _ = job.loss(model, batch)
            model.zero_grad()
            loss.backward()
            for total_gradient, p in zip(sums, model.parameters()):
                total_gradient += p.grad
            for mean, buffer in zip(means, model.buffers()):
                if buffer.is_floating_point():
                    mean += buffer.double() / ranks
                elif rank == 0:  # counters are those of the first rank
                    mean += buffer
        for p, gradient in zip(model.parameters(), sums):
            p.grad = gradient / ranks
        for buffer, mean in zip(model.buffers(), means):
            buffer.copy_(mean)
        for group in optimizer.param_groups if not tuned else ():
            group["lr"] = rate_of(step, min(total, steps))
        optimizer.step()
        if tuned:
            scheduler.step()
    saved = _core.tensors(f"{run}/model.safetensors")
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    print(max(float((values[n].double() - saved[n].double()).abs().max()) for n in saved))


def rate_of(step, total):
    """A cosine from the rate to 0."""
    import math

    return 0.05 * 0.5 * (1 + math.cos(math.pi * step / total))
