"""Which files a user's program is made of, and whether they are those of a run.

They are the script and what it imports from its folder: what is imported when the job is described, and what an
import statement in one of these files names, in a method, say, that only a worker calls. A run keeps the list,
so a worker reads these files and no others, whatever it has imported by then."""

import ast
import glob
import hashlib
import os
import sys
import sysconfig
import urllib.parse
import warnings

_INSTALLED = ("site-packages", "dist-packages")


def _folder_of(script):
    return os.path.join(os.path.dirname(os.path.realpath(script)), "")


def of(script):
    """The names of the files below the script's folder, with those that this process has imported from there."""
    folder = _folder_of(script)
    is_own = _rule(folder)
    waiting = [path for module in list(sys.modules.values()) if (path := getattr(module, "__file__", None)) and
               path.endswith(".py")]
    script, found = os.path.realpath(script), set()
    waiting.append(script)
    while waiting:
        path = os.path.realpath(waiting.pop())
        while len(path) > len(folder) and not os.path.exists(path):  # in an archive, which is the file then
            path = os.path.dirname(path)
        if not os.path.isfile(path):
            continue
        if path not in found and (path == script or is_own(path)):
            found.add(path)
            waiting += _imported_by(path, folder)
    return sorted(path[len(folder):] for path in found)


def _rule(folder):
    """Tells whether a file is the user's: it lies below the folder, and is not Ductile's, of a Python that is installed
    there, or what pip has put beside the script."""
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    others = {os.path.join(os.path.realpath(path), "")
              for path in (os.path.dirname(os.path.realpath(__file__)), sys.prefix, sys.base_prefix, *paths)} - {folder}
    # A script may itself lie below one of these: that of /usr/src/app does, if Python's prefix is /usr.
    others = tuple(other for other in others if other.startswith(folder))
    beside = set()
    for record in glob.glob(os.path.join(glob.escape(folder), "*.dist-info", "RECORD")):
        with open(record, errors="replace") as file:
            beside.update(line.split(",")[0].split("/")[0] for line in file)

    def is_own(path):
        parts = path[len(folder):].split(os.sep)
        return path.startswith(folder) and not path.startswith(others) and parts[0] not in beside and \
            not any(part in _INSTALLED for part in parts) and os.path.basename(folder[:-1]) not in _INSTALLED

    return is_own


def _imported_by(path, folder):
    """The files that the import statements of a file may mean, if they lie below the folder."""
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # nobody can import it
    for node in ast.walk(tree):
        at = folder
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
            for _ in range(node.level):
                at = os.path.dirname(path if at is folder else at)
        else:
            continue
        for name in names:
            stem = at
            for part in name.split("."):
                stem = os.path.join(stem, part)
                yield from filter(os.path.isfile, (stem + ".py", os.path.join(stem, "__init__.py")))


def described(script, names):
    """A digest of what is in the files, and their names. Raises OSError where one cannot be read."""
    digest = hashlib.sha256()
    for name in names:
        with open(_folder_of(script) + name, "rb") as file:
            content = file.read()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return " ".join([digest.hexdigest()[:32], *(urllib.parse.quote(name) for name in names)])


def are_those(script, source):
    """Whether the files that `source` lists are what they were. A run from before there was a list has the digest alone.
    Raises OSError where it cannot be known now."""
    if script is None:
        return False
    digest, *names = source.split(" ")
    try:
        if not names:
            return described(script, of(script)).split(" ")[0] == digest
        return described(script, [urllib.parse.unquote(name) for name in names]) == source
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return False
