"""The scheduling policies and the models under them, without torch.

    import ductile
    [policy["name"] for policy in ductile.sched.policies()]
    perf = ductile.sched.fit([(1, 1, 32, 0.05, 0.05), (1, 2, 32, 0.05, 0.06), (2, 4, 32, 0.05, 0.09)])
    ductile.sched.step_seconds(perf, nodes=2, replicas=8, local_batch=32)

ductile.sim runs a policy on a workload.
"""

from ductile._native import base, named_or_tree, parsed, text_of

__all__ = ["best_batch", "cluster", "fit", "policies", "step_seconds"]


def policies():
    """The policies that there are: a list of dictionaries with `name`, `help` and `interval`, the seconds between its
    rounds as published."""
    return parsed(base.policies())


def cluster(cluster=None):
    """What a policy knows of a cluster: a dictionary that ductile.sim.run() takes.

    cluster   the name of a cluster file, a dictionary with what such a file says, or None: 16 nodes with 4 T4 each

    Raises RefusalError, which names file, line and key."""
    return parsed(base.cluster(named_or_tree(cluster, "cluster")))


def fit(measurements, least_gain=0.0):
    """The parameters of Pollux's model of step times (Qiao et al., OSDI'21, section 4.1) that fit the measurements best.

    measurements   rows (nodes, replicas, samples of a replica, seconds of a gradient, seconds of a step)
    least_gain     ends the search with the first iteration that gains less; 0: at the optimum

    Returns a dictionary: alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r (seconds), gamma (1 to 10). Raises RefusalError
    if there are no rows, or a time is not above 0."""
    return parsed(base.fit([tuple(row) for row in measurements], least_gain))


def step_seconds(perf, nodes, replicas, local_batch, accumulation=0):
    """Seconds of a step of `replicas` devices on `nodes` nodes, each with `local_batch` samples and `accumulation` micro-
    batches before the last one, by the parameters of fit()."""
    return base.step_seconds(text_of(perf, "perf"), nodes, replicas, local_batch, accumulation)


def best_batch(perf, noise, nodes, replicas, *, init_batch, max_batch, max_local, min_local=1):
    """The batch of the best goodput: progress per second, in samples of batch `init_batch` (Pollux, section 3.1).

    perf        the parameters of fit()
    noise       (|g|^2, variance of the gradient), both for batch `init_batch`: of metrics.jsonl
    init_batch, max_batch   of the whole batch
    min_local, max_local    samples of a device and micro-batch

    Returns a dictionary: `goodput` (0: nothing fits), `local_batch`, `accumulation` (micro-batches after the first)."""
    sqr, var = noise
    found = base.best_batch(text_of(perf, "perf"), sqr, var, init_batch, max_batch, min_local, max_local, nodes, replicas)
    return dict(zip(("goodput", "local_batch", "accumulation"), found))
