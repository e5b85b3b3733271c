"""The page of a sweep: tables in Markdown, all results with their settings in JSON, pictures in SVG."""
import collections
import datetime
import json
import math
import shlex
import statistics

import experiment
import results
import scoring

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f",
           "#bcbd22", "#393b79", "#637939")
RULESETS = (("fixed", "no tuning: one point for all workloads"), ("tuned", "tuned"))


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(r) + " |" for r in rows]


def figure(value, digits=1):
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


class Scores:
    """The results of one ruleset on one workload, by submission."""

    def __init__(self, workload, submissions, found, ruleset):
        self.workload = workload
        self.groups = {}
        for s in submissions:
            # What has nothing to tune is the same in both rulesets.
            stage = ruleset if s.space else "fixed"
            group = [r for r in found if (r["workload"], r["submission"], r["stage"]) ==
                     (workload.name, s.name, stage)]
            if group:
                self.groups[s.name] = sorted(group, key=lambda r: r["seed"])


def baseline_of(workload, submissions, found):
    """From the tuned baselines; where nothing was tuned, from their fixed points."""
    names = [s.name for s in submissions if s.baseline]
    for ruleset in ("tuned", "fixed"):
        groups = Scores(workload, submissions, found, ruleset).groups
        error = scoring.baseline_error(workload, [groups[n] for n in names if n in groups])
        if error is not None and math.isfinite(error):
            return error, ruleset
    return None, None


def result_rows(scores, submissions, targets):
    rows = []
    for s in submissions:
        group = scores.groups.get(s.name)
        if not group:
            continue
        w = scores.workload
        errors = scoring.final_errors(w, group)
        row = [s.name, str(len(group)), f"{w.shown(statistics.median(errors))} ({w.shown(max(errors))} to "
               f"{w.shown(min(errors))})"]
        row.append(figure(statistics.median([r["curve"][-1]["cpu"] if r["curve"] else math.inf for r in group])))
        row.append(figure(statistics.median([r["core_seconds"] for r in group])))
        for target in targets:
            times = [scoring.time_to(w, r, target) for r in group]
            steps = scoring.median_time(w, group, target, "step")
            row.append(f"{sum(map(math.isfinite, times))}: {figure(statistics.median(times))} s, "
                       f"{figure(steps, 0)}")
        rows.append(row)
    return rows


def workload_part(workload, submissions, found, profiles):
    baseline, source = baseline_of(workload, submissions, found)
    if baseline is None:
        return [f"## {workload.title}", "", "No baseline has a result."]
    targets = [baseline * m for m in workload.targets]
    there = Scores(workload, submissions, found, source).groups
    names = [s.name for s in submissions if s.baseline and s.name in there]
    out = [f"## {workload.title}", "",
           f"Targets: the best median of {' and '.join(f'`{n}`' for n in names)} ({source}) is "
           f"{workload.shown(baseline)}; the others allow its error times "
           f"{', '.join(f'{m:g}' for m in workload.targets[1:])}. Of each target: seeds that reached it, then the "
           "medians over all seeds of the CPU seconds of training and of steps (passes over a batch: looks and "
           "probes count) until the first evaluation that does.", ""]
    for ruleset, told in RULESETS:
        scores = Scores(workload, submissions, found, ruleset)
        if not scores.groups:
            continue
        if ruleset == "tuned" and not any(r["stage"] == "tuned" for g in scores.groups.values() for r in g):
            continue
        head = ["submission", "seeds", "at the end: median (worst to best)", "CPU s of training", "core-seconds in all"]
        head += [f"to {workload.shown(t)}" for t in targets]
        out += [f"### {told.capitalize()}", ""] + table(head, result_rows(scores, submissions, targets)) + [""]
        times = {n: [scoring.median_time(workload, g, t) for t in targets] for n, g in scores.groups.items()}
        for n, t in times.items():
            profiles.setdefault(ruleset, {}).setdefault(n, {})[workload.name] = t
    return out


def profile_part(profiles, workloads, chart):
    out = ["## Performance profiles", "",
           "As AlgoPerf defines them: r is a submission's median time to a target over the best one's, rho(tau) the "
           "share of the workloads with r at most tau, B the mean of rho for tau from 1 to 4. By target, from "
           "the hardest; the last column counts each target of each workload as a problem.", ""]
    for ruleset, told in RULESETS:
        by_name = profiles.get(ruleset)
        if not by_name:
            continue
        used = [w for w in workloads if any(w.name in t for t in by_name.values())]
        levels = min(len(w.targets) for w in used)

        def ratio_lists(pick):
            none = [math.inf] * levels
            return scoring.ratios({n: [x for w in used for x in pick(t.get(w.name, none)[:levels])]
                                   for n, t in by_name.items()})
        columns = [ratio_lists(lambda t, i=i: [t[i]]) for i in range(levels)] + [ratio_lists(lambda t: t)]
        order = sorted(by_name, key=lambda n: -scoring.score(columns[-1][n]))
        rows = [[n] + [f"{scoring.score(c[n]):.3f}" for c in columns] for n in order]
        head = ["submission"] + [f"B, target {i + 1}" for i in range(levels)] + ["B, all"]
        out += [f"### {told.capitalize()} ({len(used)} workload{'s' if len(used) > 1 else ''})", ""]
        out += table(head, rows) + [""]
        file = chart(f"profile_{ruleset}", steps_chart(
            f"Performance profile, {told}: all targets", [(n, scoring.profile(columns[-1][n])) for n in order]))
        out += [f"![Performance profile]({file})", ""]
    return out


def settings_part(submissions, found):
    """The points that were chosen, and what a submission always has; the JSON file has all options of all trials."""
    rows, seen = [], set()
    for s in submissions:
        for r in found:
            key = (r["workload"], s.name, r["number"])
            if r["submission"] != s.name or r["stage"] == "tuning" or key in seen:
                continue
            seen.add(key)
            keys = sorted(k for k in {**s.options, **s.point, **s.space} if k in r["settings"])
            told = ", ".join(f"`{k} = {r['settings'][k]}`" for k in keys)
            rows.append([r["workload"], s.name, f"point {r['number']}" if r["number"] else "fixed", told])
    return ["## Settings", ""] + table(["workload", "submission", "point", "options"], rows) + [""]


# ---- Pictures.

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 420, 60, 210, 40, 50


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def frame(title, x_label, y_label, x_of, y_of, x_ticks, y_ticks, lines):
    """An SVG with axes; lines are (name, [(x, y)])."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="12"><rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{escaped(title)}</text>',
           f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 10}" text-anchor="middle">{escaped(x_label)}</text>',
           f'<text transform="translate(16 {(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
           f'{escaped(y_label)}</text>']
    for x, told in x_ticks:
        out.append(f'<path d="M{x_of(x):.1f} {TOP}V{bottom}" stroke="#ddd"/>'
                   f'<text x="{x_of(x):.1f}" y="{bottom + 18}" text-anchor="middle">{told}</text>')
    for y, told in y_ticks:
        out.append(f'<path d="M{LEFT} {y_of(y):.1f}H{right}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y_of(y) + 4:.1f}" text-anchor="end">{told}</text>')
    names = sorted(name for name, _ in lines)  # the same colour in each picture of the same submissions
    for i, (name, points) in enumerate(lines):
        place = names.index(name)
        colour = COLOURS[place % len(COLOURS)]
        dash = ' stroke-dasharray="5 3"' if place >= len(COLOURS) else ""
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points)
        if points:
            out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        y = TOP + 8 + 20 * i
        out.append(f'<path d="M{right + 12} {y}h22" stroke="{colour}" stroke-width="2"{dash}/>'
                   f'<text x="{right + 40}" y="{y + 4}">{escaped(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def steps_chart(title, lines):
    def x_of(tau):
        return LEFT + (tau - 1) / (scoring.MOST_RATIO - 1) * (WIDTH - RIGHT - LEFT)

    def y_of(share):
        return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)

    drawn = []
    for name, points in lines:
        path = []
        for (tau, share), after in zip(points, points[1:] + [(scoring.MOST_RATIO, None)]):
            path += [(tau, share), (after[0], share)]
        drawn.append((name, path))
    return frame(title, "tau: times the best time", "share of problems", x_of, y_of,
                 [(t, f"{t:g}") for t in (1, 1.5, 2, 2.5, 3, 3.5, 4)],
                 [(s / 5, f"{s / 5:g}") for s in range(6)], drawn)


def curve_chart(workload, scores, told):
    """The median error over the seeds at each evaluation, by CPU seconds."""
    lines = []
    for name, group in scores.groups.items():
        points = []
        for at in zip(*(r["curve"] for r in group)):
            points.append((statistics.median(p["cpu"] for p in at), statistics.median(map(workload.error, at))))
        lines.append((name, [(x, y) for x, y in points if math.isfinite(y) and y > 0]))
    every = [p for _, points in lines for p in points]
    if not every:
        return None
    most_x = max(x for x, _ in every)
    least, most = min(y for _, y in every), sorted(y for _, y in every)[int(0.9 * (len(every) - 1))]
    most = max(most, 1.2 * least)
    lines = [(n, [(x, min(y, most)) for x, y in points]) for n, points in lines]

    def x_of(x):
        return LEFT + x / most_x * (WIDTH - RIGHT - LEFT)

    def y_of(y):
        return HEIGHT - BOTTOM - math.log(y / least) / math.log(most / least) * (HEIGHT - BOTTOM - TOP)

    ticks = [least * (most / least) ** (i / 5) for i in range(6)]
    return frame(f"{workload.title}, {told}", "CPU seconds of training",
                 "error" if workload.metric == "accuracy" else "loss", x_of, y_of,
                 [(most_x * i / 5, f"{most_x * i / 5:.0f}") for i in range(6)],
                 [(y, f"{y:.3f}") for y in ticks], lines)


# ---- What the results say of how they came about; those until November 2026 name one host and no more.

def hosts_of(result):
    return result.get("hosts") or [h for h in [result.get("host")] if h]


def counted(texts, one, several):
    """"a (2 results), b (1 result)" behind `several`; "a" behind `one` where there is nothing else."""
    counts = collections.Counter(texts)
    if len(counts) == 1:
        return one + next(iter(counts))
    return several + ", ".join(f"{t} ({n} result{'s' if n > 1 else ''})" for t, n in counts.items())


def told_of_hosts(found):
    def told(result):
        hosts = [f"{h.get('cpu', 'unknown processor')}, {h.get('cores', '?')} cores, torch {h.get('torch', '?')}"
                 + (f", kernels {h['kernels']}" if "kernels" in h else "") for h in hosts_of(result)]
        return ", then ".join(dict.fromkeys(hosts)) or "unknown processor"

    return counted(map(told, found), "", "Several machines, so seconds of different results do not compare: ")


def told_of_programs(found):
    def told(result):
        return ", then ".join(f"`{p}`" for p in result.get("programs", [])) or "not recorded"

    return counted(map(told, found), "Build of Ductile, by its hash: ", "Several builds of Ductile, by their hashes: ")


def told_of_load(found):
    numbers = sorted({n for r in found for n in r.get("at_once", [])})
    if not numbers:
        return "trials at a time: not recorded"
    return f"at most {' or '.join(map(str, numbers))} trial{'s' if numbers[-1] > 1 else ''} at a time"


def by_scored_seeds(names, found):
    """Submissions by the seeds that are scored of them; those without one are among the first."""
    groups = {}
    for name in names:
        seeds = sorted({r["seed"] for r in found if r["submission"] == name and r["stage"] != "tuning"})
        groups.setdefault(tuple(seeds), []).append(name)
    without = groups.pop((), [])
    if not groups:
        return {(): without}
    first = next(iter(groups))
    return {**groups, first: [n for n in names if n in groups[first] + without]}


def commands_of(args, found, tried):
    """Those that make these results, by what is there and not by what the report was asked for."""
    stages = {r["stage"] for r in found}
    rulesets = ["fixed"] * ("fixed" in stages) + ["tuned"] * bool(stages & {"tuning", "tuned"})
    numbers = [n for r in found for n in r.get("at_once", [])]
    out = []
    for seeds, names in by_scored_seeds(args.submissions.split(","), found).items():
        words = ["bench/algorithms/sweep.py", "run", "OUT", "--data", "DATA", "--workloads", args.workloads,
                 "--submissions", ",".join(names), "--rulesets", ",".join(rulesets)]
        if seeds:
            words += ["--seeds", str(seeds[-1] - experiment.FIRST_SEED + 1)]
        if "tuned" in rulesets:
            words += ["--trials", str(tried or args.trials), "--draw-seed", str(args.draw_seed)]
        out.append(f"`{shlex.join(words + (['--at-once', str(max(numbers))] if numbers else []))}`")
    return " and ".join(out)


def told_of_seeds(args, found):
    groups = by_scored_seeds(args.submissions.split(","), found)
    told = [(f"{seeds[0]} to {seeds[-1]}", names) for seeds, names in groups.items() if seeds]
    if not told:
        return ""
    if len(told) > 1:
        told = [(f"{seeds} (" + ", ".join(f"`{n}`" for n in names) + ")", names) for seeds, names in told]
    return f"Seeds {' and '.join(seeds for seeds, _ in told)} change initial weights and data order. "


def as_json(found):
    """All results, a line each; "hosts" of a result are places in the list of all hosts."""
    hosts = results.different(h for r in found for h in hosts_of(r))
    lines = []
    for r in found:
        kept = {k: v for k, v in r.items() if k != "host"}
        lines.append(json.dumps({**kept, "hosts": [hosts.index(h) for h in hosts_of(r)]}, sort_keys=True))
    lines = ",\n".join(lines)
    return f'{{"hosts": {json.dumps(hosts, sort_keys=True)}, "results": [\n{lines}\n]}}\n'


def write(args, workloads, submissions, found):
    args.output.parent.mkdir(parents=True, exist_ok=True)

    def chart(kind, svg):
        path = args.output.with_name(f"{args.output.name}_{kind}.svg")
        path.write_text(svg)
        return path.name

    tried = max((r["number"] for r in found if r["stage"] == "tuning"), default=0)
    out = [f"# {args.title}", "", f"{datetime.date.today()}. {commands_of(args, found, tried)}", "",
           f"{told_of_hosts(found)}. {told_of_programs(found)}. One compute thread per trial, {told_of_load(found)}. "
           f"{told_of_seeds(args, found)}"
           "CPU seconds of training are without start and evaluations, core-seconds in all are with them. "
           + (f"Tuned ruleset: {tried} quasi-random points for each submission on another seed, of which the best at "
              "its end is scored. " if tried else "") +
           "All options of all trials: the JSON file beside this page.", ""]
    out += [args.note, ""] if args.note else []
    profiles = {}
    for workload in workloads:
        out += workload_part(workload, submissions, found, profiles)
        for ruleset, told in RULESETS:
            scores = Scores(workload, submissions, found, ruleset)
            svg = curve_chart(workload, scores, told) if ruleset in profiles else None
            if svg:
                out += [f"![Curves]({chart(f'{workload.name}_{ruleset}', svg)})", ""]
    if profiles:
        out += profile_part(profiles, workloads, chart)
    out += settings_part(submissions, found)
    args.output.with_name(args.output.name + ".md").write_text("\n".join(out).rstrip() + "\n")
    args.output.with_name(args.output.name + ".json").write_text(as_json(found))
