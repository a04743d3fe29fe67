"""
A release in one command: version, changelog, distributions, checks, commit, tag.

    make release VERSION=1.2.3        # wheels for each Python on PATH; PYTHONS="python3.11" for one

The distributions are built from an export of HEAD, so nothing that lies about gets into them. The
checkout changes only when all distributions are built and checked. Nothing is pushed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

VERSION_FILE = Path("txbroker", "__init__.py")
CHANGELOG = Path("CHANGELOG.md")

_VERSION = re.compile(r"^__version__ = \"(.*)\"$", re.MULTILINE)
_UNRELEASED = re.compile(r"^## Unreleased\n(?=(.*?)(?:^## |\Z))", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """The release cannot be made; the text says why in one line."""


def git(root: Path, *arguments: str) -> str:
    """Return what this git command prints."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def numbers(version: str) -> tuple[int, ...]:
    """Return the three numbers of a version."""
    if not re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)", version):
        raise Refused(f"VERSION is {version!r}: three numbers are needed, as in 1.2.3")
    return tuple(int(number) for number in version.split("."))


def check(root: Path, version: str) -> None:
    """Refuse a version that is older or has its tag, a dirty tree, and a changelog without news."""
    found = _VERSION.search((root / VERSION_FILE).read_text())
    assert found is not None
    if git(root, "tag", "--list", f"v{version}"):
        raise Refused(f"the tag v{version} is there already")
    # Equal is allowed: the tree has its first version before the first release.
    if numbers(version) < numbers(found[1]):
        raise Refused(f"{version} is older than {found[1]}")
    if dirty := git(root, "status", "--porcelain"):
        raise Refused(f"the tree has changes that are not committed: {dirty.splitlines()[0]}")
    news = _UNRELEASED.search((root / CHANGELOG).read_text())
    if news is None or not re.search(r"^- ", news[1], re.MULTILINE):
        raise Refused(f"{CHANGELOG} has no entry below Unreleased")


def set_version(root: Path, version: str, date: str) -> None:
    """Write the version, and give what CHANGELOG.md has as unreleased its number and date."""
    file = root / VERSION_FILE
    file.write_text(_VERSION.sub(f'__version__ = "{version}"', file.read_text(), count=1))
    file = root / CHANGELOG
    head = f"## Unreleased\n\n## {version} ({date})\n"
    file.write_text(_UNRELEASED.sub(head, file.read_text(), count=1))


def export(root: Path, place: Path) -> None:
    """Write the files of HEAD there; of an earlier attempt nothing stays beside them."""
    shutil.rmtree(place.parent, ignore_errors=True)
    place.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", place], input=packed.stdout, check=True)


def build(source: Path, version: str, pythons: str) -> list[Path]:
    """Build the sdist, and from it the wheels; check each that this machine can run."""
    run(source, "make", "sdist")
    (sdist,) = (source / "dist").glob("*.tar.gz")
    subprocess.run(["tar", "-xf", sdist, "-C", source.parent], check=True)
    unpacked = source.parent / f"txbroker-{version}"
    # Somebody who has the sdist and a compiler does the same.
    run(unpacked, "make", "home", "SECONDS=5")
    run(unpacked, "make", "wheels", f"PYTHONS={pythons}")
    wheels = sorted((unpacked / "dist").glob("*.whl"))
    runnable = interpreters(pythons)
    run(unpacked, "tests/machines/smoke.sh", str(sdist), *list(runnable.values())[:1])
    for wheel in wheels:
        tag, platform = wheel.stem.split("-")[2::2]
        if tag in runnable and platform.endswith(os.uname().machine):
            run(unpacked, "tests/machines/smoke.sh", str(wheel), runnable[tag])
        else:
            print(f"not run here: {wheel.name}")
    return [sdist, *wheels]


def interpreters(pythons: str) -> dict[str, str]:
    """Return the Pythons of this machine by their wheel tag, in the way of `make wheels`."""
    found = {}
    program = "import sys; print('cp{}{}'.format(*sys.version_info))"
    for python in pythons.split() or ["python3.11", "python3.12", "python3.13", "python3.14"]:
        if shutil.which(python):
            # A name on PATH may be that of a launcher, without the Python.
            done = subprocess.run([python, "-c", program], capture_output=True, text=True)
            if not done.returncode:
                found[done.stdout.strip()] = python
    return found


def run(folder: Path, *command: str) -> None:
    """Run a step of the release there; a step that fails ends the release."""
    print("+", *command, flush=True)
    if subprocess.run(command, cwd=folder).returncode:
        raise Refused(f"failed: {' '.join(command)} (in {folder})")


def release(root: Path, version: str, builder: Callable[[Path], list[Path]]) -> list[Path]:
    """Make the release; return its distributions, which are in dist/ then."""
    check(root, version)
    head = git(root, "rev-parse", "HEAD")
    date = time.strftime("%Y-%m-%d", time.gmtime())
    source = root / "build" / "release" / "source"
    export(root, source)
    set_version(source, version, date)
    built = builder(source)
    # Else the tag would name another tree than the one that was built.
    if git(root, "rev-parse", "HEAD") != head or git(root, "status", "--porcelain"):
        raise Refused("the checkout has changed since the build began")
    (root / "dist").mkdir(exist_ok=True)
    kept = [path.rename(root / "dist" / path.name) for path in built]
    set_version(root, version, date)
    git(root, "commit", "--quiet", "-m", f"release: set version {version}", "-a")
    git(root, "tag", "-a", "-m", f"txbroker {version}", f"v{version}")
    return kept


def main(root: Path, version: str = "", pythons: str = "") -> int:
    """Return the exit status; a refusal is one line."""
    try:
        kept = release(root, version, lambda source: build(source, version, pythons))
    except Refused as refusal:
        print(f"release: {refusal}", file=sys.stderr)
        return 1
    for path in kept:
        print(path)
    print(f"committed and tagged as v{version}; not pushed")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parents[1], *sys.argv[1:]))
