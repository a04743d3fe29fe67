"""The command: `python -m tests.faults.mutants [NAME...] [--seed N] [--control]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from . import MINUTES, Mutant, applies, copy, mutants, play


def main() -> int:
    """Exit status 0 if each was found (with --control: if nothing was, without the patches)."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for each, at the most")
    parser.add_argument("--control", action="store_true", help="play the same without the patches")
    options = parser.parse_args()
    known = {mutant.name: mutant for mutant in mutants()}
    if unknown := set(options.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    return max([0 if one(mutant, options) else 1 for mutant in chosen], default=0)


def one(mutant: Mutant, options: argparse.Namespace) -> bool:
    """Play with one; whether it came out as it should."""
    with tempfile.TemporaryDirectory(prefix="txbroker-mutant-") as folder:
        tree = copy(Path(folder))
        error = "" if options.control else applies(mutant, tree, check=False)
        if error:
            print(f"{mutant.name}: does not apply\n{error}", flush=True)
            return False
        verdict = play(mutant, tree, seed=options.seed, minutes=options.minutes)
    is_good = verdict.is_found != options.control
    what = f"found ({', '.join(verdict.broken)})" if verdict.is_found else "NOT found"
    if options.control:
        what = "nothing found, as there is nothing" if is_good else "found WITHOUT the patch"
    print(f"{mutant.name}: {what} after {verdict.seconds:.0f} s: {mutant.text}", flush=True)
    if not is_good:
        print(verdict.output, flush=True)
    return bool(is_good)


if __name__ == "__main__":
    sys.exit(main())
