"""The command: `python -m tests.faults.mutants [NAME...] [--minutes M]`."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from . import MINUTES, ROOT, Mutant, applies, copy, mutants, play

PYTHON_M = 3
"""Words of a schedule's command before its arguments."""


def main() -> int:
    """Exit status 0 if each was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for each, at the most")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    if unknown := set(options.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    return max([0 if one(mutant, options.minutes) else 1 for mutant in chosen], default=0)


def one(mutant: Mutant, minutes: float) -> bool:
    """Play with the patch until it is found, then the same without it; whether both came out."""
    print(f"{mutant.name}: {mutant.text}", flush=True)
    with tempfile.TemporaryDirectory(prefix="txbroker-mutant-") as folder:
        tree = copy(Path(folder))
        if error := applies(mutant, tree, check=False):
            print(f"    does not apply\n{error}", flush=True)
            return False
        found = play(tree, tree / "var", "--minutes", str(minutes), *mutant.play)
    if not found.shows(mutant):
        print(f"    NOT found in {found.seconds:.0f} s\n{found.output}", flush=True)
        return False
    print(f"    found after {found.seconds:.0f} s: {', '.join(found.broken)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="txbroker-mutant-") as folder:
        schedule = shlex.split(found.schedule)[PYTHON_M:]
        control = play(copy(Path(folder)), ROOT / "var" / "faults", *schedule)
    what = "FAILS" if control.status else "passes"
    print(f"    without the patch {found.schedule} {what} in {control.seconds:.0f} s", flush=True)
    if control.status:
        print(control.output, flush=True)
    return not control.status


if __name__ == "__main__":
    sys.exit(main())
