"""
Looks for what is wrong with the compiled core: `make fuzz`, or `python -m tests.fuzz`.

First hypothesis, then the fuzzer; the first thing that is found ends it. Exit status 0: nothing
was. All that this needs and makes is in build/fuzz.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import seeds
from tests.fuzz.build import (
    BATCH,
    BUILD,
    CURRENT,
    ROOT,
    SMALLEST,
    build,
    environment,
    install,
    keep,
)

SHARE = 0.3
"""What hypothesis gets of the time."""

OPTIONS = ["-max_len=1500", "-timeout=60", "-rss_limit_mb=4096", "-detect_leaks=0"]
OPTIONS += ["-print_funcs=0", "-print_final_stats=1", f"-artifact_prefix={BUILD}/artifact-"]


def run(name: str, *arguments: str, log: Path | None = None, full_stacks: bool = False) -> bool:
    """True if a module of this package ends well in a process with the sanitized core."""
    command = [sys.executable, "-m", f"tests.fuzz.{name}", *arguments]
    keys = environment(full_stacks=full_stacks)
    if log is None:
        return subprocess.run(command, cwd=ROOT, env=keys).returncode == 0
    with log.open("wb") as output:
        done = subprocess.run(command, cwd=ROOT, env=keys, stdout=output, stderr=output)
    return done.returncode == 0


def search(name: str, *arguments: str, suffix: str = "") -> None:
    """Run one of the two searches, of inputs with this suffix; exits where it found something."""
    shutil.rmtree(BATCH, ignore_errors=True)
    smallest, current = BUILD / (SMALLEST + suffix), BUILD / (CURRENT + suffix)
    smallest.unlink(missing_ok=True)
    log, begin = BUILD / f"{name}.log", time.monotonic()
    is_good = run(name, *arguments, log=log)
    took = time.monotonic() - begin
    lines = log.read_text(errors="replace").splitlines()
    if is_good:
        told = [line for line in lines if "inputs" in line or "DONE" in line]
        print(f"fuzz: {name}: nothing was found in {took:.0f} s: {' '.join(told[-1:])}")
        return
    print(*lines[-60:], sep="\n")
    found = [smallest if smallest.exists() else current]
    if BATCH.exists():
        found = culprit(sorted(BATCH.iterdir()))
    kept = [keep(path.read_bytes(), suffix) for path in found]
    print(f"fuzz: {name}: something was found after {took:.0f} s; the output is in {log}")
    if len(kept) > 1:
        sys.exit(f"fuzz: it takes several inputs: {' '.join(map(str, kept))}")
    sys.exit(f"fuzz: replay it with: make fuzz INPUT={kept[0]}")


def culprit(paths: list[Path]) -> list[Path]:
    """Which of the inputs that leave something behind does it; all, where no half does it."""
    while len(paths) > 1:
        for half in (paths[: len(paths) // 2], paths[len(paths) // 2 :]):
            if not run("replay", *map(str, half), log=BUILD / "replay.log"):
                paths = half
                break
        else:
            break
    return paths


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="for both together")
    parser.add_argument("--only", choices=("generated", "fuzzer"), help="one of the two")
    parser.add_argument("--input", type=Path, help="try only this file, once")
    parser.add_argument("--seed", default="0", help="the fuzzer's; 0: another one each time")
    options = parser.parse_args(words)
    build()
    if options.input:
        is_good = run("replay", str(options.input.resolve()), full_stacks=True)
        sys.exit(0 if is_good else f"fuzz: {options.input} is still wrong")
    install()
    share = {None: SHARE, "generated": 1, "fuzzer": 0}[options.only]
    seconds = options.minutes * 60
    if share:
        search("generated", str(seconds * share), suffix=".steps")
    if share < 1:
        fuzz(round(seconds * (1 - share)), options.seed)


def fuzz(seconds: int, seed: str) -> None:
    """What is in the corpus from earlier runs is where it begins."""
    corpus, start = BUILD / "corpus", BUILD / "seeds"
    corpus.mkdir(exist_ok=True)
    seeds.write(start)
    limits = (f"-max_total_time={seconds}", f"-seed={seed}")
    search("fuzzer", str(corpus), str(start), *limits, *OPTIONS)


if __name__ == "__main__":
    main()
