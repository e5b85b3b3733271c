"""The PEP 517 backend of pyproject.toml: `pip wheel .` and `python3 -m build` make Ductile's wheel with CMake, against the
torch of the Python that runs it. It needs what scripts/setup installs, and no network.

Config settings (`--config-settings KEY=VALUE`; several may be given):
  build-dir=DIR   where to build, so that a second time takes seconds; by default in a temporary folder
  ready=1         DIR is built already: take what is there
  cmake-args=...  more arguments of cmake, divided by spaces"""

import base64
import csv
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = ["ductile", "ductile-fleet", "ductile-keeper", "ductile-bench-rank", "ductile-worker"]
TARGETS = ["_base", "_core", *PROGRAMS]


def version():
    with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"project\(ductile VERSION ([0-9.]+)", file.read()).group(1)


def metadata():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    return (f"Metadata-Version: 2.1\nName: ductile\nVersion: {version()}\n"
            "Summary: Elastic, bit-exact training of deep networks\nLicense: Apache-2.0\nRequires-Python: >=3.9\n"
            "Requires-Dist: numpy\nRequires-Dist: torch\nDescription-Content-Type: text/markdown\n\n" + readme)


def tag():
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


# ---- The interface of PEP 517.

def get_requires_for_build_sdist(config_settings=None):
    return []


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_sdist(sdist_directory, config_settings=None):
    """All that git knows of this folder, or, of a folder that was an sdist, all that is in it."""
    base = f"ductile-{version()}"
    name = f"{base}.tar.gz"
    with tarfile.open(os.path.join(sdist_directory, name), "w:gz", format=tarfile.PAX_FORMAT) as out:
        for path in _sources():
            out.add(os.path.join(ROOT, path), f"{base}/{path}", recursive=False)
        _add_text(out, f"{base}/PKG-INFO", metadata())
    return name


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = f"ductile-{version()}.dist-info"
    folder = os.path.join(metadata_directory, info)
    os.makedirs(folder)
    for name, text in _info().items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return info


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    settings = dict(config_settings or {})
    unknown = set(settings) - {"build-dir", "ready", "cmake-args"}
    if unknown:
        raise SystemExit(f"ductile: config setting {sorted(unknown)[0]}: build-dir, ready and cmake-args are known")
    with tempfile.TemporaryDirectory(prefix="ductile-wheel-") as scratch:
        build = os.path.abspath(settings["build-dir"]) if "build-dir" in settings else os.path.join(scratch, "build")
        if not settings.get("ready"):
            _build(build, settings.get("cmake-args", "").split())
        staged = os.path.join(scratch, "staged")
        for component in ("python", "programs"):
            _run("cmake", "--install", build, "--prefix", staged, "--component", component)
        return _pack(staged, wheel_directory)


# ---- Its parts.

def _run(*command, **how):
    try:
        return subprocess.run(command, check=True, **how)
    except FileNotFoundError:
        raise SystemExit(f"ductile: {command[0]} is missing; scripts/setup installs what a build needs") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"ductile: {' '.join(command[:3])} ... failed with {error.returncode}; its messages are above") from None


def _torch():
    """Where CMake finds the torch of this Python. An isolated build hides it, so it is asked for in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    asked = subprocess.run([sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)"], cwd="/",
                           env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if asked.returncode != 0:
        raise SystemExit(f"ductile: {sys.executable} has no torch, which Ductile is built against: install it first "
                         f"({asked.stderr.strip().splitlines()[-1]})")
    return asked.stdout.strip()


def _build(folder, arguments):
    _run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DDUCTILE_TESTS=OFF",
         "-DDUCTILE_BENCH=OFF", f"-DDUCTILE_PYTHON={sys.executable}", f"-DCMAKE_PREFIX_PATH={_torch()}",
         "-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON", "-DDUCTILE_PYTHON_DIR=python", *arguments)
    _run("cmake", "--build", folder, "--target", *TARGETS)


def _sources():
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if listed.returncode == 0 and listed.stdout:
        return [path for path in listed.stdout.decode().split("\0") if path and os.path.lexists(os.path.join(ROOT, path))]
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = sorted(name for name in names if name not in ("build", "runs", "__pycache__", ".git"))
        found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in sorted(files) if name != "PKG-INFO"]
    return found


def _add_text(out, name, text):
    content = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o644
    out.addfile(entry, io.BytesIO(content))


def _info():
    return {"METADATA": metadata(),
            "WHEEL": f"Wheel-Version: 1.0\nGenerator: ductile_build\nRoot-Is-Purelib: false\nTag: {tag()}\n"}


def _pack(staged, wheel_directory):
    """The package at the top of the wheel, programs among its scripts."""
    base = f"ductile-{version()}"
    name = f"{base}-{tag()}.whl"
    packages = [folder for folder, names, _ in os.walk(staged) if "ductile" in names and
                os.path.isfile(os.path.join(folder, "ductile", "__init__.py"))]
    if len(packages) != 1:
        raise SystemExit(f"ductile: the build installs {len(packages)} packages; is {staged} the right folder?")
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as out:
        def add(inside, content, mode):
            entry = zipfile.ZipInfo(inside, time.localtime()[:6])
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            out.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow((inside, f"sha256={digest}", len(content)))

        for folder, into in ((os.path.join(packages[0], "ductile"), "ductile"),
                             (os.path.join(staged, "bin"), f"{base}.data/scripts")):
            for file in sorted(os.listdir(folder)):
                if into != "ductile" and file not in (*PROGRAMS, "ductile-python-worker"):
                    continue
                path = os.path.join(folder, file)
                with open(path, "rb") as source:
                    add(f"{into}/{file}", source.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
        for file, text in _info().items():
            add(f"{base}.dist-info/{file}", text.encode(), 0o644)
        rows.writerow((f"{base}.dist-info/RECORD", "", ""))
        out.writestr(f"{base}.dist-info/RECORD", record.getvalue())
    return name
