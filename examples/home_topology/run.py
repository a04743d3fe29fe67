"""
A house on six nodes. The script launches them, replays sensor readings through one, reads them at
another, and accounts for every message at the end. `make home` calls this; README.md tells the
rest.

    .venv/bin/python examples/home_topology/run.py --seconds 20
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import attrs
from display import ROOT, Display, print_reckoning
from mapping import MappingError, load_mapping
from nodes import HERE, Home, NodeError, launch_line, prepare, tree
from readings import Reading, SourceError, csv_source, generated_source
from replay import Panel, Publisher, ReplayError, Snapshot, Subscriber, Tally
from rich.console import Console

# `cams` owns no room, `kitchen` one of nine. So nearly every reading goes from the publisher's node
# to a third one, its owner, and from there to the subscriber's.
PUBLISH_AT = "cams"
SUBSCRIBE_AT = "kitchen"
FILTER = "home/#"
PANEL_ZONE = "home/outside/cams"
EXPIRY = 3_600  # seconds for which a made-up reading says something: six of its rows
STALL = 120.0  # seconds without any progress that end a replay: a node may be away for a while


@attrs.frozen(kw_only=True, slots=True)
class Outcome:
    """
    How a run ended: the final account, what is missing, and why it may have ended early. `panel`
    counts the readings that the client of MQTT 5.0 got, and those of them with an expiry.
    """

    snapshot: Snapshot
    lost: list[tuple[str, int]]
    unacknowledged: int
    panel: tuple[int, int]
    trouble: str = ""


class Stop:
    """
    The wish to end: the first signal ends the publishing, a second one the waiting as well.
    """

    def __init__(self) -> None:
        self.publishing = threading.Event()
        self.waiting = threading.Event()

    def listen(self) -> None:
        """
        Have Ctrl-C, SIGTERM and a closed terminal end the run in good order.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        (self.waiting if self.publishing.is_set() else self.publishing).set()


def new_parser(description: str) -> argparse.ArgumentParser:
    """
    Of a command that replays readings; it ends the process with status 2 if its line is wrong.
    """
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    add("--seconds", type=_positive, help="replay for that long (default: to the end, or Ctrl-C)")
    add("--csv", type=Path, help="replay this file (default: generated readings)")
    add(
        "--mapping",
        type=Path,
        default=HERE / "mappings" / "nine-rooms.yaml",
        help="which column goes to which topic (default: %(default)s)",
    )
    add("--groups", help="groups of the mapping to replay, comma-separated, e.g. rooms,weather")
    add("--rate", type=_rate, help="readings a second; 0: no limit (default: 100, file: 0)")
    add("--expiry", type=_whole, help="seconds until a reading expires; 0: never (file: 0)")
    add("--ports-base", type=_port, help="move all ports: MQTT from here, gRPC +10, links +20")
    add("--data", type=Path, help="keep the nodes' data and logs here (default: fresh, removed)")
    return parser


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _rate(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else _positive(text)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65_535 - 25:
        raise argparse.ArgumentTypeError(f"{text!r} leaves no room; use 1024 to 65510")
    return int(text)


def open_readings(options: argparse.Namespace) -> Iterator[Reading]:
    """
    The readings that the options ask for; SourceError or MappingError if there are none such.
    """
    mapping = load_mapping(options.mapping)
    if options.csv:
        source, usual = csv_source(options.csv), mapping.default
    else:
        source, usual = generated_source(), tuple(mapping.groups)
    groups = options.groups.split(",") if options.groups else usual
    for topic in mapping.select(groups, source).values():
        if not topic.startswith("home/"):  # it would never arrive, and be counted as lost
            raise MappingError(f"{mapping.path}: topic {topic!r} must begin with home/")
    return mapping.readings(source, groups)


def expiry_of(options: argparse.Namespace) -> int:
    """
    Seconds until a reading expires, 0 for never: those of a file are old anyway.
    """
    return options.expiry if options.expiry is not None else 0 if options.csv else EXPIRY


def replay(
    home: Home,
    readings: Iterator[Reading],
    rate: float,
    seconds: float | None,
    stop: Stop,
    console: Console,
    *,
    expiry: int = 0,
    is_lasting: bool = False,
) -> Outcome:
    """
    Publish at one node, subscribe at another, show it, and wait until all has arrived.
    ReplayError if the clients cannot even begin. `is_lasting`: see `Subscriber`.
    """
    tally = Tally()
    zones = [file.zone for file in home.files]
    display = Display(
        console=console,
        files=home.files,
        look=lambda: tally.snapshot(zones),
        ended=lambda: [process.file.name for process in home.ended()],
    )
    subscriber = Subscriber(tally, FILTER, is_lasting=is_lasting)
    panel = Panel(f"{PANEL_ZONE}/#")
    publisher = Publisher(tally, expiry=expiry)
    with ExitStack() as cleanup:
        cleanup.callback(subscriber.stop)
        subscriber.start(home[SUBSCRIBE_AT].mqtt)  # first, or the first readings would be missed
        cleanup.callback(panel.stop)
        panel.start(home[SUBSCRIBE_AT].mqtt)
        cleanup.callback(publisher.stop)
        publisher.start(home[PUBLISH_AT].mqtt)
        cleanup.callback(display.close)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(publisher.run, readings, rate, stop.publishing, STALL)
            _watch(running, display, seconds, stop)
        error = running.exception()
        if error is not None and not isinstance(error, ReplayError | SourceError):
            raise error
        unacknowledged = publisher.drain(stop.waiting)
        tally.settle(stop.waiting)
        panel.settle(tally.snapshot(zones).counts[PANEL_ZONE].received, stop.waiting)
        display.show()
    return Outcome(
        snapshot=tally.snapshot(zones),
        lost=tally.lost(),
        unacknowledged=unacknowledged,
        panel=(panel.received, panel.expiring),
        trouble=str(error or ""),
    )


def _watch(running: Future[None], display: Display, seconds: float | None, stop: Stop) -> None:
    """
    Show how the replay goes until it has ended; have it end after `seconds`, or on an error here.
    """
    deadline = time.monotonic() + (seconds or float("inf"))
    try:
        while not running.done():
            display.show()
            left = deadline - time.monotonic()
            if left <= 0:
                stop.publishing.set()
            wait([running], timeout=min(display.interval, left) if left > 0 else None)
    finally:
        stop.publishing.set()


def report(console: Console, home: Home, outcome: Outcome) -> bool:
    """
    Print the account; True if everything that was to be published was, and has arrived.
    """
    console.print()
    print_reckoning(console, home.files, outcome.snapshot)
    received, expiring = outcome.panel
    console.print(
        f"{PANEL_ZONE}: a client of MQTT 5.0 got {received} readings, {expiring} with an expiry",
        soft_wrap=True,
    )
    if outcome.snapshot.foreign:
        console.print(f"{outcome.snapshot.foreign} other messages on {FILTER} are not counted")
    if outcome.lost:
        some = ", ".join(f"{topic} #{number}" for topic, number in outcome.lost[:5])
        console.print(f"lost: {some}{' ...' if len(outcome.lost) > 5 else ''}", soft_wrap=True)
    if outcome.unacknowledged:
        console.print(f"{outcome.unacknowledged} publishes were never acknowledged")
    if outcome.trouble:
        console.print(f"ended early: {outcome.trouble}", soft_wrap=True)
    if not outcome.snapshot.issued:
        console.print("nothing was published")
    return not (outcome.lost or outcome.unacknowledged or outcome.trouble) and bool(
        outcome.snapshot.issued
    )


def introduce(console: Console, home: Home) -> None:
    """
    Print the nodes, how to start one again by hand, and the tree as the root knows it.
    """
    for process in home.processes:
        file = process.file
        console.print(
            f"{file.name:<9} {file.zone or ROOT:<18} mqtt {file.mqtt[0]}:{file.mqtt[1]}  "
            f"grpc {file.grpc}  pid {process.pid}",
            soft_wrap=True,
            highlight=False,
        )
    again = " ".join(launch_line(home["living"]))
    console.print(f"to start one again by hand: {again}", soft_wrap=True, highlight=False)
    console.print(f"\n$ txbroker tree {home['house'].grpc}", highlight=False)
    console.print(tree(home["house"]), markup=False, soft_wrap=True, highlight=False)
    console.print(f"\nreplay through {PUBLISH_AT}, {FILTER} subscribed at {SUBSCRIBE_AT}")


def demonstrate(options: argparse.Namespace, directory: Path, stop: Stop) -> bool:
    """
    The whole run, nodes in `directory`; True if all went well. The errors of `open_readings`,
    `Home.start` and `replay` are the caller's to report, with nothing left running.
    """
    console = Console()
    readings = open_readings(options)
    rate = options.rate if options.rate is not None else (0.0 if options.csv else 100.0)
    with Home(prepare(directory, options.ports_base), directory / "logs") as home:
        if not home.start(stop.publishing):
            console.print("stopped before the nodes were ready")
            return False
        introduce(console, home)
        outcome = replay(
            home, readings, rate, options.seconds, stop, console, expiry=expiry_of(options)
        )
    return report(console, home, outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Exit status: 0 all published readings arrived, 1 something is missing or failed, 2 usage.
    """
    options = new_parser((__doc__ or "").strip().split("\n\n")[0]).parse_args(arguments)
    stop = Stop()
    stop.listen()
    directory = options.data or Path(tempfile.mkdtemp(prefix="txbroker-home-"))
    try:
        good = demonstrate(options, directory, stop)
    except (NodeError, ReplayError, MappingError, SourceError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        good = False
    if options.data is None:
        if good or not (directory / "logs").exists():
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"run.py: the nodes' logs are in {directory / 'logs'}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
