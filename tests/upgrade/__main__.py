"""
The command: `python -m tests.upgrade [--seed N] [--plays N] [--steps N]`.

Status 1 with the seed of the first play in which something was lost, doubled or refused.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path

from .play import Play


def run(seed: int, folder: Path, steps: int) -> Play:
    """One play from start to end."""
    with ExitStack() as stack:
        play = Play(seed, folder, stack)
        try:
            play.begin()
            for _ in range(steps):
                play.step()
            play.finish()
        except BaseException:
            print(f"seed {seed}: {' '.join(play.told)}", file=sys.stderr)
            raise
        return play


def main() -> int:
    """Exit status 0 if all plays went well."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--plays", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.plays):
        with tempfile.TemporaryDirectory(prefix="upgrade-") as folder:
            try:
                play = run(seed, Path(folder), options.steps)
            except Exception:
                traceback.print_exc()
                return 1
        again = sum(session.again for session in play.sessions)
        print(f"seed {seed}: ok, {play.number} messages, {again} at QoS 1 again", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
