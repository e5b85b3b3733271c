"""Targets, times to them, and performance profiles."""
import math
import statistics

MOST_RATIO = 4  # of AlgoPerf: profiles are drawn and integrated up to four times the best time


def final_errors(workload, results):
    """Of each seed, at the end of its run; a run that diverged has none."""
    return [workload.error(r["curve"][-1]) if r["status"] == "done" and r["curve"] else math.inf for r in results]


def baseline_error(workload, groups):
    """The least median error among the baselines' groups of results (one group per submission)."""
    medians = [statistics.median(final_errors(workload, g)) for g in groups if g]
    return min(medians) if medians else None


def time_to(workload, result, target, key="cpu"):
    """CPU seconds (or steps) until the first evaluation with at most this error; inf: never."""
    for point in result["curve"]:
        if workload.error(point) <= target * (1 + 1e-9):  # 1 - 0.7 is not 0.3
            return point[key]
    return math.inf


def median_time(workload, results, target, key="cpu"):
    return statistics.median([time_to(workload, r, target, key) for r in results]) if results else math.inf


def ratios(times):
    """times[submission] has a time per problem; the ratio of each to the best of all on that problem."""
    size = len(next(iter(times.values())))
    best = [min(t[i] for t in times.values()) for i in range(size)]
    return {name: [t[i] / best[i] if math.isfinite(t[i]) and best[i] > 0 else
                   (1.0 if t[i] == best[i] and math.isfinite(t[i]) else math.inf) for i in range(size)]
            for name, t in times.items()}


def profile(ratio_list, most=MOST_RATIO):
    """(tau, share of problems with a ratio of at most tau): where the step function changes, from 1 on."""
    points = [(1.0, sum(r <= 1 for r in ratio_list) / len(ratio_list))]
    for tau in sorted({r for r in ratio_list if 1 < r <= most}):
        points.append((tau, sum(r <= tau for r in ratio_list) / len(ratio_list)))
    return points


def score(ratio_list, most=MOST_RATIO):
    """AlgoPerf's B: the integral of the profile from 1 to `most`, divided by its length."""
    points = profile(ratio_list, most) + [(most, None)]
    return sum(share * (after[0] - tau) for (tau, share), after in zip(points, points[1:])) / (most - 1)
