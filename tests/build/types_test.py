#!/usr/bin/python3
"""Fails if two headers define a type of the same name in the same namespace.

Usage: types_test.py SOURCE_FOLDER

A program that contains both has undefined behaviour: the compiler writes functions such as the
destructor once for each type, under one name, and the linker keeps one of them.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

# clang-format puts what is at namespace scope, and nothing else, at the beginning of a line.
NAMESPACE = re.compile(r"^namespace ([\w:]*) ?\{")
END = re.compile(r"^\}  // namespace")
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^;]*)?(?: \{.*)?$")


def types(path):
    """(namespace, name) of each type that the header defines at namespace scope."""
    inside = []
    previous = ""
    for line in path.read_text().splitlines():
        if found := NAMESPACE.match(line):
            inside.append(found[1])
        elif END.match(line):
            inside.pop()
        elif (found := TYPE.match(line)) and not previous.startswith("template <>"):
            yield "::".join(inside), found[1]
        previous = line


def main():
    root = Path(sys.argv[1]) / "src"
    homes = defaultdict(set)
    for path in sorted(root.rglob("*.h")):
        for key in types(path):
            homes[key].add(str(path.relative_to(root)))
    twice = {key: files for key, files in homes.items() if len(files) > 1}
    for (namespace, name), files in sorted(twice.items()):
        print(f"{namespace}::{name} is defined in {' and in '.join(sorted(files))}; rename one of them", file=sys.stderr)
    if not homes:
        print(f"{root}: no type found", file=sys.stderr)
    return 1 if twice or not homes else 0


if __name__ == "__main__":
    sys.exit(main())
