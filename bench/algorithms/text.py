"""The text that gpt_docs trains on: documentation that every Debian machine has, byte by byte."""
import gzip
import hashlib
import pathlib
import random
import struct
import sys

MOST_PER_FILE = 60_000
MOST_IN_ALL = 4_000_000
NAMES = ("README", "NEWS", "FAQ", "TODO", "copyright")


def plain(path):
    raw = gzip.open(path).read() if path.suffix == ".gz" else path.read_bytes()
    raw.decode("utf-8")
    return raw[:MOST_PER_FILE]


def texts(repository, debian):
    """Every text once, in an order that only a fixed seed determines."""
    files = sorted(repository.rglob("*.md")) if repository.is_dir() else []
    files = [f for f in files if "build" not in f.relative_to(repository).parts]
    files += sorted(f for f in debian.rglob("*") if f.is_file() and not f.is_symlink()
                    and (f.name.startswith(NAMES) or f.name.removesuffix(".gz").endswith((".txt", ".md"))))
    seen, out = set(), []
    for file in files:
        try:
            text = plain(file)
        except (OSError, UnicodeDecodeError, EOFError):
            continue
        digest = hashlib.sha256(text).digest()
        if len(text) > 1000 and digest not in seen:
            seen.add(digest)
            out.append(text)
    random.Random(1).shuffle(out)
    size = 0
    for i, text in enumerate(out):
        size += len(text)
        if size > MOST_IN_ALL:
            return out[:i]
    return out


def write(path, parts):
    """Bytes as 16-bit numbers; a zero byte stands between two texts."""
    tokens = b"\0".join(parts)
    path.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))
    return hashlib.sha256(tokens).hexdigest()


def make(args):
    here = pathlib.Path(__file__).resolve().parent.parent.parent
    folder = args.out / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    parts = texts(here, pathlib.Path("/usr/share/doc"))
    held_out = parts[::20]
    training = [t for i, t in enumerate(parts) if i % 20]
    if not held_out or not training:
        print("text: found too few texts", file=sys.stderr)
        return 1
    for name, some in (("train.bin", training), ("val.bin", held_out)):
        print(f"{folder / name}: {sum(map(len, some)):,} bytes of {len(some)} texts, sha256 "
              f"{write(folder / name, some)}")
    return 0
