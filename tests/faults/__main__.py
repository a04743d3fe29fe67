"""
The command: `python -m tests.faults [--seed N] [--minutes M] [...]`.

Plays tree after tree, the next seed each, until the time is over or a promise is broken; status 1
and the seed then. As root in a namespace of its own, so that nothing outlives it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from . import clocks, connections, disks
from .cast import draw
from .conditions import LABORATORY
from .conditions import draw as draw_conditions
from .history import summary
from .networks import Namespaces, Network, Relays
from .rounds import DoesNotStart, Play, Result
from .schedule import FAULTS, Round, plan
from .trees import TREES, Tree
from .world import World

INSIDE = "FAULTS_INSIDE"
OF_ROOT = ("damage", "restore", "exchange")
UNSHARE = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def main() -> int:
    """Exit status 0 if nothing was broken."""
    options = parse()
    if options.network != "relays" and INSIDE not in os.environ:
        if can_have_namespaces():
            command = [*UNSHARE, sys.executable, "-m", "tests.faults", *sys.argv[1:]]
            os.execvpe(UNSHARE[0], command, {**os.environ, INSIDE: "yes"})
        if options.network == "namespaces":
            print("no namespaces: this takes root, unshare and /dev/net/tun", file=sys.stderr)
            return 2
    # Clients do write to connections whose end they do not read.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    faults = available(options)
    deadline = time.monotonic() + 60 * options.minutes
    seed = options.seed
    while True:
        is_good = asyncio.run(play(seed, options, faults))
        if not is_good:
            return 1
        if time.monotonic() > deadline:
            return 0
        seed += 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--minutes", type=float, default=0.0, help="default: one tree")
    parser.add_argument("--tree", choices=TREES, help="default: the seed chooses")
    parser.add_argument("--rounds", type=int, default=4, help="of a tree")
    parser.add_argument("--length", type=float, default=20.0, help="of a round, in seconds")
    parser.add_argument("--rate", type=float, default=40.0, help="messages a second")
    parser.add_argument("--at", default="", help="clients are at these nodes only, at first")
    parser.add_argument("--faults", default=",".join(FAULTS), help="only these")
    parser.add_argument("--laboratory", action="store_true", help="fast disks, default topology")
    parser.add_argument("--network", choices=("auto", "namespaces", "relays"), default="auto")
    parser.add_argument("--keep", type=Path, default=Path("var/faults"), help="of what failed")
    options = parser.parse_args()
    options.faults = options.faults.split(",")
    options.at = options.at.split(",") if options.at else []
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; known: {', '.join(FAULTS)}")
    return options


def can_have_namespaces() -> bool:
    """Root, and a kernel and tools that can do it."""
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        return False
    if not shutil.which("unshare") or not shutil.which("nsenter"):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True).returncode == 0


def available(options: argparse.Namespace) -> list[str]:
    """The faults that can be played here; says which are left out, and why."""
    missing: dict[str, str] = {}
    if INSIDE not in os.environ:
        missing |= dict.fromkeys(("unplug", "mute", "deaf", "fill", *OF_ROOT), "not root")
    if disks.compiler() is None:
        missing |= dict.fromkeys(("power", "power-all", "slow", "clock"), "no C compiler")
    left_out = [name for name in options.faults if name in missing]
    for name in left_out:
        print(f"left out: {name} ({missing[name]})")
    return [name for name in options.faults if name not in missing]


async def play(seed: int, options: argparse.Namespace, faults: list[str]) -> bool:
    """One tree; True if all promises were kept."""
    tree = TREES[options.tree or random.Random(seed).choice(sorted(TREES))]
    cast = draw(seed, tree, rate=options.rate, nodes=options.at)
    schedule = plan(seed, tree, cast, faults, rounds=options.rounds, length=options.length)
    folder = Path(tempfile.mkdtemp(prefix="txbroker-faults-"))
    is_inside = INSIDE in os.environ
    network: Network = (Namespaces if is_inside else Relays)(tree.names)
    has_compiler = disks.compiler() is not None
    libraries = (disks.build(folder), clocks.build(folder)) if has_compiler else (None, None)
    conditions = LABORATORY if options.laboratory else draw_conditions(seed)
    print(f"seed {seed} {tree.name}: {conditions}", flush=True)
    world = World(tree, network, folder, *libraries, conditions, mount=is_inside, seed=seed)
    the_play = Play(tree, cast, world, conditions, seed)
    is_good, open_ones = False, dict[str, str]()
    try:
        await the_play.begin()
        is_good = True
        async for result in the_play.rounds(schedule):
            print(line(seed, tree, schedule[result.number - 1], result), flush=True)
            is_good = is_good and not result.violations
            for text in summary(result.violations):
                print(f"    {text}")
            if result.violations:
                running = {name: node.pid for name, node in world.nodes.items() if node.running}
                open_ones = {name: connections.describe(pid) for name, pid in running.items()}
        return is_good
    except DoesNotStart as error:
        print(f"seed {seed} {tree.name} does not start: {error}")
        return False
    finally:
        await the_play.close()
        if not is_good:
            kept = options.keep / f"seed-{seed}-{tree.name}"
            the_play.keep(kept)
            for name, text in open_ones.items():
                (kept / f"{name}.connections.txt").write_text(text + "\n")
            print(f"failed: {replay(seed, tree, options)}\nkept: {kept}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def line(seed: int, tree: Tree, steps: Round, result: Result) -> str:
    """A round, for the terminal."""
    verbs = Counter(step.verb for step in steps if step.verb in FAULTS)
    done = ", ".join(f"{verb} {count}" for verb, count in sorted(verbs.items()))
    tally = result.tally
    seconds = "never" if result.seconds is None else f"{result.seconds:.1f} s"
    verdict = f"{len(result.violations)} VIOLATIONS" if result.violations else "ok"
    return (
        f"seed {seed} {tree.name} round {result.number}: {sum(verbs.values())} faults ({done});"
        f" {tally.published} published, {tally.acknowledged} acknowledged,"
        f" {tally.delivered} delivered; caught up: {seconds}; {verdict}"
    )


def replay(seed: int, tree: Tree, options: argparse.Namespace) -> str:
    """The command that plays the same schedule."""
    words = [f"--seed {seed} --tree {tree.name} --rounds {options.rounds}"]
    words.append(f"--length {options.length:g} --rate {options.rate:g}")
    if options.faults != list(FAULTS):
        words.append(f"--faults {','.join(options.faults)}")
    if options.at:
        words.append(f"--at {','.join(options.at)}")
    if options.laboratory:
        words.append("--laboratory")
    if INSIDE not in os.environ:
        words.append("--network relays")
    return " ".join(["python -m tests.faults", *words])


if __name__ == "__main__":
    sys.exit(main())
