"""
Inputs once more, in a process with the sanitized core: `python -m tests.fuzz.replay FILE ...`.

A file has the bytes that the fuzzer made or, if its name ends with `.steps`, what hypothesis made,
to be read. Exit status 0: nothing is wrong with them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tests.fuzz.steps import Step, steps_of
from tests.fuzz.target import Disagreement, compare, shown
from tests.fuzz.watch import is_something_left


def read(path: Path) -> tuple[int, list[Step]]:
    """How many topics are kept, and what is done."""
    if path.suffix != ".steps":
        return steps_of(path.read_bytes())
    limit, steps = ast.literal_eval(path.read_text())
    return limit, steps


def replay(path: Path, *, is_told: bool) -> None:
    """Try one of them, of which nothing is kept."""
    limit, steps = read(path)
    if is_told:
        print(f"{limit} topics are kept", *map(shown, steps), sep="\n", flush=True)
    try:
        compare(limit, steps)
    except Disagreement as disagreement:
        sys.exit(f"the cores disagree: {disagreement}")


def main() -> None:
    paths = [Path(name) for name in sys.argv[1:]]
    for path in paths:
        replay(path, is_told=len(paths) == 1)
    if is_something_left():
        sys.exit("something is left over")


if __name__ == "__main__":
    main()
