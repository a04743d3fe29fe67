"""The core built with sanitizers, out of the tree, and what a process needs to load it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "fuzz"
EXTENSION = BUILD / "compiled.so"
SITE = BUILD / "site"
BATCH = BUILD / "batch"
FOUND = BUILD / "found"

CURRENT, SMALLEST = "current", "smallest"
"""In `BUILD`: the input that a search tries now, and the smallest on which the cores disagreed."""

ATHERIS = "atheris >= 3, < 4"

CORE = ROOT / "txbroker" / "core"
SOURCES = [CORE / "compiled.pyx", *sorted(CORE.glob("native/*"))]
SHIM = Path(__file__).with_name("coverage.cpp")

SANITIZED = [
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fsanitize-coverage=trace-pc,trace-cmp",
    "-D_GLIBCXX_ASSERTIONS",
    "-D_GLIBCXX_SANITIZE_VECTOR",
]
COMMON = ["-std=c++20", "-O1", "-g", "-fPIC", "-fno-omit-frame-pointer"]
SHIM_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden"]


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT)
    if done.returncode:
        sys.exit(f"fuzz: {command[0]} failed")


def keep(data: bytes, suffix: str) -> Path:
    """Where an input is found from now on."""
    FOUND.mkdir(exist_ok=True)
    path = FOUND / (hashlib.sha256(data).hexdigest()[:12] + suffix)
    path.write_bytes(data)
    return path.relative_to(ROOT)


def compiler() -> str:
    """gcc's C++ compiler: the coverage that clang knows is another one."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    return found or sys.exit("fuzz: there is no g++; on Debian: apt-get install g++")


def build() -> None:
    """Build what is not there or older than its sources."""
    BUILD.mkdir(parents=True, exist_ok=True)
    made = EXTENSION.stat().st_mtime if EXTENSION.exists() else 0.0
    if all(source.stat().st_mtime < made for source in [*SOURCES, SHIM, Path(__file__)]):
        return
    code, core, shim = (BUILD / name for name in ("compiled.cpp", "compiled.o", "coverage.o"))
    include = ["-I", str(CORE), "-I", sysconfig.get_path("include")]
    # The module's full name is in what Cython writes, so it has to see the packages.
    _run(sys.executable, "-m", "cython", "-3", "--cplus", str(SOURCES[0]), "-o", str(code))
    _run(compiler(), *COMMON, *SANITIZED, *include, "-c", str(code), "-o", str(core))
    _run(compiler(), *SHIM_FLAGS, *include, "-c", str(SHIM), "-o", str(shim))
    sanitizers = SANITIZED[:1]
    _run(compiler(), "-shared", *sanitizers, str(core), str(shim), "-o", str(EXTENSION))


def install() -> None:
    """Get atheris, which brings libFuzzer, for these processes alone."""
    if not SITE.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(*pip, "--target", str(SITE), ATHERIS)


def environment(*, full_stacks: bool = False) -> dict[str, str]:
    """
    For a Python that loads the sanitized extension.

    Each object of Python has memory of its own, so that one that is read beyond its end, after its
    end, or never let go, is seen. Full stacks say who allocated memory through Python's own code,
    and take ten times as long.
    """
    fast = 0 if full_stacks else 1
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(SITE)]),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(map(_library, ("libasan.so", "libubsan.so", "libstdc++.so"))),
        "ASAN_OPTIONS": "leak_check_at_exit=0:detect_leaks=1:allocator_may_return_null=1"
        f":quarantine_size_mb=64:fast_unwind_on_malloc={fast}",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TXBROKER_FUZZED": str(EXTENSION),
    }


def _library(name: str) -> str:
    asked = [compiler(), f"-print-file-name={name}"]
    found = Path(subprocess.run(asked, capture_output=True, text=True).stdout.strip())
    if not found.is_absolute():
        sys.exit(f"fuzz: {name} is missing; on Debian it comes with g++")
    return str(found.resolve())
