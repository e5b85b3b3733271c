#!/usr/bin/env python3
"""Ratios of the tables that scenarios.py makes, and new rows in place of old ones.

    bench/scheduler/ratios.py PAGE [--merge FILE ...] [--guide]

PAGE is a results page with these tables. --merge takes rows from FILEs of scenarios.py: a row of the
same scenario, load and name is replaced, any other is added to its table, and a scenario that the
page does not have comes after the last one. Then the table of ratios in PAGE, between its two
comments, is made anew; what the targets say of it is printed. --guide prints the table of
docs/guides/simulator.md.
"""
import argparse
import pathlib
import re

BEGIN, END = "<!-- ratios.py: -->", "<!-- end -->"
OWN = ["ductile, budgets", "ductile, nothing declared"]
# (what the guide says, scenario, load, rival)
GUIDE = [
    ("the whole systems, each with its own information", "system", "1", "sia"),
    ("the same information, events and batches for both", "equal", "1", "sia"),
    ("the same, and each job the only one of its application", "equal-unique", "1", "sia"),
    ("Pollux's information and rounds, against Pollux", "published", "1", "pollux, its authors' file"),
    ("Pollux's information and rounds, against Sia", "published", "1", "sia"),
    ("each job the only one of its application, 64 T4", "unique", "1", "sia"),
    ("restarts of 1 s for both", "restart-1", "1", "sia"),
    ("measurements that are off by 3 %", "noise-3", "1", "sia"),
    ("measurements that are off by 10 %", "noise-10", "1", "sia"),
    ("a fixed batch", "fixed-batch", "1", "sia"),
    ("one application only", "one-application", "1", "sia"),
    ("bursts of twenty jobs", "bursts", "1", "sia"),
    ("heavy tails", "heavy-tails", "1", "sia"),
    ("16 T4", "devices-16", "1", "sia"),
    ("256 T4", "devices-256", "1", "sia"),
    ("1,024 T4", "devices-1024", "1", "sia"),
    ("`--device-cost 0.01`", "devices-saved", "1", "sia"),
    ("load of 0.25, 64 T4", "load", "0.25", "sia"),
    ("load of 4, 64 T4", "load", "4", "sia"),
    ("overload, 16 T4", "overload-16", "1", "sia"),
]


def number(text):
    text = text.strip().replace(",", "")
    return float(text) if re.fullmatch(r"[0-9.]+", text) else None


class Page:
    def __init__(self, text):
        self.lines = text.split("\n")

    def tables(self):
        """By scenario: (first line of its rows, line behind the last one)."""
        out, name = {}, None
        for i, line in enumerate(self.lines):
            if found := re.match(r"## ([a-z0-9-]+): ", line):
                name = found[1]
            elif name and line.startswith("| ---"):
                end = i + 1
                while end < len(self.lines) and self.lines[end].startswith("|"):
                    end += 1
                out[name] = (i + 1, end)
                name = None
        return out

    def section(self, name):
        first = next(i for i, line in enumerate(self.lines) if line.startswith(f"## {name}: "))
        return first, self.tables()[name][1]

    def rows(self, name):
        """By load and policy: figures of each half."""
        first, end = self.tables()[name]
        out = {}
        for line in self.lines[first:end]:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            out.setdefault(cells[0], {})[cells[1]] = [
                [number(cell) for cell in cells[2 + 5 * k:7 + 5 * k]]
                for k in range((len(cells) - 2) // 5)]
        return out

    def merge(self, other):
        for name in other.tables():
            first, end = other.section(name)
            if name not in self.tables():
                at = max(end for _, end in self.tables().values())
                self.lines[at:at] = ["", *other.lines[first:end]]
                continue
            first, end = other.tables()[name]
            rows = other.lines[first:end]
            # The head of a scenario may have changed, too.
            mine, theirs = self.section(name), other.section(name)
            until = self.tables()[name][0] - mine[0]
            self.lines[mine[0]:mine[0] + until] = other.lines[theirs[0]:first]
            for row in rows:
                key = [cell.strip() for cell in row.split("|")[1:3]]
                first, end = self.tables()[name]
                same = [i for i in range(first, end)
                        if [c.strip() for c in self.lines[i].split("|")[1:3]] == key]
                if same:
                    self.lines[same[0]] = row
                    continue
                of_load = [i for i in range(first, end)
                           if self.lines[i].split("|")[1].strip() == key[0]]
                self.lines.insert(of_load[-1] + 1 if of_load else end, row)


def rivals_of(rows):
    return {name: figures for name, figures in rows.items()
            if not name.startswith(("ductile", "regional")) and figures[0][1] is not None}


def ratios(rows, own, rival="sia"):
    """Mean JCT and device hours against a rival; p99 and worst rho against the best of the rivals."""
    halves = []
    for half, figures in enumerate(rows[own]):
        other = rows[rival][half]
        best = [min(r[half][k] for r in rivals_of(rows).values()) for k in (1, 4)]
        halves.append([figures[0] / other[0],
                       figures[2] / other[2] if other[2] else None,
                       figures[1] / best[0], figures[4] / best[1]])
    return [list(column) for column in zip(*halves)]


def shown(column):
    return " / ".join("-" if x is None else f"{x:.2f}" for x in column)


def head(page):
    out = ["| scenario | budgets: mean JCT | device hours | p99 | worst rho | "
           "nothing declared: mean JCT | device hours | p99 | worst rho |",
           "| --- |" + " ---: |" * 8]
    spread = {}
    for name in page.tables():
        loads = page.rows(name)
        for load, rows in loads.items():
            if "sia" not in rows or OWN[0] not in rows:
                continue
            of = OWN
            label = f"`{name}`" + (f", load {load}" if len(loads) > 1 else "")
            cells = []
            for own in of:
                columns = ratios(rows, own)
                cells += map(shown, columns)
                for key, column in zip(("mean", "hours", "p99", "rho"), columns):
                    spread.setdefault((key, own.split(", ")[1]), []).extend(
                        (x, label, k) for k, x in enumerate(column))
                for rival, figures in rivals_of(rows).items():
                    for half in range(len(figures)):
                        if rows[own][half][0] > figures[half][0]:
                            print(f"behind {rival}: {label}, {own}, {half}")
            out.append(f"| {label} | " + " | ".join(cells) + " |")
            if "pollux, its authors' file" in rows:
                cells = []
                for own in of:
                    column = [rows[own][h][0] / rows["pollux, its authors' file"][h][0] for h in (0, 1)]
                    cells += [shown(column), "", "", ""]
                out.append(f"| {label}, against Pollux | " + " | ".join(cells) + " |")
            if "regional, budgets" in rows:
                cells = []
                for own in OWN:
                    cells += map(shown, ratios(rows, own.replace("ductile", "regional")))
                out.append(f"| {label}, policy `regional` | " + " | ".join(cells) + " |")
    for (key, own), values in spread.items():
        high = sorted((v for v in values if v[0] > (1.05 if key == "hours" else 1.2)), reverse=True)
        print(f"{key}, {own}: {min(values)[0]:.2f} to {max(values)[0]:.2f}"
              + (f"; above the target in {len({v[1] for v in high})} rows: "
                 + ", ".join(f"{label}[{k}] {x:.2f}" for x, label, k in high)
                 if key in ("hours", "p99", "rho") else ""))
    return out


def guide(page):
    out = []
    for what, name, load, rival in GUIDE:
        rows = page.rows(name)[load]
        cells = []
        for own in OWN:
            columns = ratios(rows, own, rival)
            if rival != "sia":
                columns[1] = [None] * len(columns[1])
            cells += map(shown, columns)
        out.append(f"| {what} | " + " | ".join(cells) + " |")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("--merge", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--guide", action="store_true")
    args = parser.parse_args()
    page = Page(args.page.read_text())
    for file in args.merge:
        page.merge(Page(file.read_text()))
    if args.guide:
        print("\n".join(guide(page)))
        return
    begin, end = page.lines.index(BEGIN), page.lines.index(END)
    page.lines[begin + 1:end] = ["", *head(page), ""]
    args.page.write_text("\n".join(page.lines))


if __name__ == "__main__":
    main()
