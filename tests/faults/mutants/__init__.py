"""
Planted bugs: a patch each, against txbroker/, which the harness must find.

    python -m tests.faults.mutants [NAME...]     all, or these; status 1 if one was not found

One is found when a rule that it should break is broken, and the same schedule, played without the
patch, breaks none. The lines before a patch say what is wrong, and

    breaks: RULE, ...       the rules of `history` one of which must be seen broken
    play: ARGUMENTS         of `python -m tests.faults`, beside minutes; its seed is the first
"""

from __future__ import annotations

import re
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
    """
    What came of playing: the rules that were broken and by which schedule (a command), if any;
    how long it took until then; the last lines printed.
    """

    status: int
    broken: tuple[str, ...]
    schedule: str
    seconds: float
    output: str

    def shows(self, mutant: Mutant) -> bool:
        """True if something was broken that this mutant breaks."""
        return self.status == 1 and not set(self.broken).isdisjoint(mutant.breaks)


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


def play(tree: Path, keep: Path, *arguments: str) -> Verdict:
    """
    Play in a copy of the repository, with the arguments of `python -m tests.faults`; what failed
    is left in `keep`.
    """
    command = [sys.executable, "-m", "tests.faults", "--keep", str(keep), *arguments]
    start = time.monotonic()
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    failed = re.search(r"^failed: (.+)$", done.stdout, re.MULTILINE)
    return Verdict(
        status=done.returncode,
        broken=tuple(re.findall(r"^ {4}(\w+):", done.stdout, re.MULTILINE)),
        schedule=failed[1] if failed else "",
        seconds=time.monotonic() - start,
        output="\n".join([*done.stdout.splitlines()[-8:], *done.stderr.splitlines()[-8:]]),
    )
