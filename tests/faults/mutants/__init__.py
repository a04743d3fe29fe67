"""
Planted bugs: a patch each, against txbroker/, which the harness must find.

    python -m tests.faults.mutants [NAME...]     all, or these; status 1 if one was not found

The lines before a patch say what is wrong, and

    breaks: RULE, ...       the rules of `history` one of which must be seen broken
    play: ARGUMENTS         of `python -m tests.faults`, beside seed and minutes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import attrs

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
MINUTES = 5.0
LEFT_OUT = (".git", ".venv", "var", "build", "dist", "node_modules", "*_cache", "__pycache__")


@attrs.frozen(kw_only=True)
class Mutant:
    """One patch."""

    name: str
    file: Path
    text: str
    breaks: tuple[str, ...]
    play: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Verdict:
    """What came of playing with a mutant: the rules that were broken, the last lines printed."""

    is_found: bool
    broken: tuple[str, ...]
    seconds: float
    output: str


def mutants() -> list[Mutant]:
    """All of the folder."""
    return [_read(file) for file in sorted(FOLDER.glob("*.patch"))]


def _read(file: Path) -> Mutant:
    text, fields = [], {"breaks": "", "play": ""}
    for line in file.read_text().splitlines():
        if line.startswith("--- "):
            break
        name, colon, value = line.partition(":")
        if colon and name in fields:
            fields[name] = value
        elif line:
            text.append(line)
    return Mutant(
        name=file.stem,
        file=file,
        text=" ".join(text),
        breaks=tuple(fields["breaks"].replace(",", " ").split()),
        play=tuple(fields["play"].split()),
    )


def applies(mutant: Mutant, tree: Path, *, check: bool) -> str:
    """Apply the patch to a copy of the repository, or only see if that works; what is wrong, if."""
    command = ["git", "apply", "-C1", *(["--check"] if check else []), str(mutant.file)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr.strip() or "git apply failed"


def copy(folder: Path) -> Path:
    """A copy of the tree to change, what was generated included."""
    target = folder / "tree"
    shutil.copytree(ROOT, target, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    return target


def play(mutant: Mutant, tree: Path, *, seed: int, minutes: float = MINUTES) -> Verdict:
    """Play until it is found or the time is over."""
    command = [sys.executable, "-m", "tests.faults", "--seed", str(seed)]
    command += ["--minutes", str(minutes), "--keep", str(tree / "var"), *mutant.play]
    start = time.monotonic()
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    broken = tuple(
        line.partition(":")[0].strip()
        for line in lines
        if line.startswith("    ") and not line.startswith("     ")
    )
    return Verdict(
        is_found=done.returncode == 1 and not set(broken).isdisjoint(mutant.breaks),
        broken=broken,
        seconds=time.monotonic() - start,
        output="\n".join([*lines[-8:], *done.stderr.splitlines()[-8:]]),
    )
