"""The job of chosen.py with InfoBatch as a plain PyTorch loop: which samples a run has skipped comes from its record, all
else is computed anew, after Qin et al. (ICLR 2024). Prints the largest difference of a weight to the run's.

Arguments: the run, its record, the share of the samples below the mean that is skipped."""

import json
import sys

import torch

from ductile import _core
from ductile._seeds import seed_all
from ductile._sources import Source


def check(good, what):
    if not good:
        raise AssertionError(what)


def epochs_of(record, size, batch, ratio, epochs):
    """Of each epoch the weight of each sample, and how many steps it has, from the losses of the epoch before."""
    scores, rows = {}, iter(record)
    for epoch in range(epochs):
        weights, kept = {}, size
        if scores and not epoch + 1 > 0.875 * epochs:
            mean = sum(scores.values()) / len(scores)
            below = {n for n, loss in scores.items() if loss < mean}
            num_kept = int((1 - ratio) * len(below))
            kept = size - len(below) + num_kept
            weights = {n: 1 / (1 - ratio) for n in below}
        steps = kept // batch
        seen = []
        for _ in range(steps):
            step = []
            while len(step) < batch:
                row = next(rows)
                check(row["training"] and row["graded"], row)
                step += row["numbers"]
                scores |= zip(row["numbers"], row["losses"])
            seen.append(step)
        flat = [n for step in seen for n in step]
        check(len(flat) == len(set(flat)), f"epoch {epoch} trains a sample twice")
        if weights:
            trained = sum(n in weights for n in flat)
            check(num_kept - batch < trained <= num_kept, f"epoch {epoch}: {trained} of {num_kept} with small losses")
            others = len(flat) - trained
            check(size - len(below) - batch < others, f"epoch {epoch} skips samples with large losses")
        yield epoch, weights, seen
    check(next(rows, None) is None, "more was trained")


def main():
    run, record, ratio = sys.argv[1], sys.argv[2], float(sys.argv[3])
    sys.argv = ["chosen.py"]
    import chosen

    with open(record) as file:
        rows = [json.loads(line) for line in file]
    torch.set_num_threads(1)
    job = chosen.Job()
    seed, ranks = job.options["seed"], job.options["train"]["virtual_ranks"]
    seed_all(seed)
    model = job.model()
    plain = [p for n, p in model.named_parameters() if "bias" in n or n.startswith("bn")]
    rest = [p for n, p in model.named_parameters() if not ("bias" in n or n.startswith("bn"))]
    optimizer = torch.optim.SGD([{"params": rest, "weight_decay": 5e-4}, {"params": plain}], lr=0.05, momentum=0.9)
    data = Source(job.train_data(), "train_data", seed, True)
    each = data.batch_size // ranks
    done = 0
    for epoch, weights, steps in epochs_of(rows, data.size, data.batch_size, ratio, job.options["train"]["epochs"]):
        for samples in steps:
            buffers = [b.clone() for b in model.buffers()]
            means = [torch.zeros_like(b, dtype=torch.float64) for b in model.buffers()]
            optimizer.zero_grad()
            for rank in range(ranks):
                own = tuple(samples[rank * each:(rank + 1) * each])
                batch = data.fetch(epoch, own, each)
                for buffer, before in zip(model.buffers(), buffers):
                    buffer.copy_(before)
                seed_all(_core.mix(_core.mix(seed, done), rank))
                losses, _ = job.loss(model, batch)
                row = rows[done * ranks + rank]
                check(torch.allclose(losses, torch.tensor(row["losses"]), atol=1e-3), f"step {done}, rank {rank}")
                weight = torch.tensor([weights.get(n, 1.0) for n in own])
                ((losses * weight).mean() / ranks).backward()
                for mean, buffer in zip(means, model.buffers()):
                    if buffer.is_floating_point():
                        mean += buffer.double() / ranks
                    elif rank == 0:
                        mean += buffer
            for buffer, mean in zip(model.buffers(), means):
                buffer.copy_(mean)
            optimizer.step()
            done += 1
    saved = _core.tensors(f"{run}/model.safetensors")
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    print(max(float((values[n].double() - saved[n].double()).abs().max()) for n in saved))


if __name__ == "__main__":
    main()
