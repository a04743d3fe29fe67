"""
The output of the demo: a live table on a terminal, a line a second in a pipe, and the reckoning.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import attrs
from accounting import owner
from nodes import NodeFile
from readings import Reading
from replay import Snapshot
from rich.console import Console
from rich.live import Live
from rich.table import Table

ROOT = "(root)"
COLUMNS = ("published", "received", "lost", "duplicated", "out of order")


def _places(latest: Mapping[str, tuple[Reading, float]]) -> dict[str, tuple[str, float]]:
    """
    An entry per place, the topic less its last level: its readings in words, and when the newest of
    them came.
    """
    found: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for topic, (reading, arrived) in sorted(latest.items()):
        place, _, kind = topic.rpartition("/")
        found[place].append((f"{kind} {reading.value:.4g}", arrived))
    return {
        place: ("  ".join(text for text, _ in entries), max(at for _, at in entries))
        for place, entries in found.items()
    }


@attrs.define(kw_only=True, slots=True)
class Display:
    """
    Shows how the run goes, several times a second on a terminal and once a second in a pipe.
    `look` gives the state of affairs, `ended` the names of nodes that do not run any more.
    """

    console: Console
    files: Sequence[NodeFile]
    look: Callable[[], Snapshot]
    ended: Callable[[], Sequence[str]]
    _begun: float = attrs.field(factory=time.monotonic, init=False)
    _before: tuple[float, int] = attrs.field(default=(0.0, 0), init=False)
    _rate: float = attrs.field(default=0.0, init=False)
    _live: Live | None = attrs.field(default=None, init=False)

    @property
    def interval(self) -> float:
        """
        Seconds between two calls of `show`.
        """
        return 0.25 if self.console.is_terminal else 1.0

    def show(self) -> None:
        """
        Bring what is shown up to date.
        """
        snapshot = self.look()
        if not self.console.is_terminal:
            self.console.print(self._line(snapshot), soft_wrap=True, highlight=False)
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self._live.update(self._table(snapshot), refresh=True)

    def close(self) -> None:
        """
        Leave the last state standing.
        """
        if self._live is not None:
            self._live.stop()

    def _status(self, snapshot: Snapshot) -> str:
        elapsed, total = time.monotonic() - self._begun, snapshot.total
        since, count = self._before
        if elapsed - since >= 0.95:
            self._rate = (total.received - count) / (elapsed - since)
            self._before = (elapsed, total.received)
        parts = [
            f"{elapsed:5.0f} s  published {total.published}  received {total.received}",
            f"unacknowledged {snapshot.issued - total.published}",
            f"{self._rate:.0f} a second",
        ]
        if ended := self.ended():
            parts.append(f"not running: {', '.join(ended)}")
        return "  ".join(parts)

    def _line(self, snapshot: Snapshot) -> str:
        places = sorted(_places(snapshot.latest).items())
        if not places:
            return self._status(snapshot)
        place, (text, _) = places[int(time.monotonic() - self._begun) % len(places)]
        return f"{self._status(snapshot)}  | {place}: {text}"

    def _table(self, snapshot: Snapshot) -> Table:
        table = Table(caption=self._status(snapshot), caption_justify="left")
        table.add_column("node", no_wrap=True)
        table.add_column("place", no_wrap=True)
        table.add_column("readings")
        table.add_column("age", justify="right", no_wrap=True)
        node_of = {file.zone: file.name for file in self.files}
        rows = [
            (owner(node_of, f"{place}/"), place, text, time.monotonic() - at)
            for place, (text, at) in _places(snapshot.latest).items()
        ]
        for zone, place, text, age in sorted(rows):
            table.add_row(node_of[zone], place, text, f"{age:.0f} s")
        return table


def print_reckoning(console: Console, files: Sequence[NodeFile], snapshot: Snapshot) -> None:
    """
    The final account, a line per zone and one for all. The words are the same on a terminal and in
    a pipe. In a pipe two spaces or more separate the columns.
    """
    rows = [(file.zone or ROOT, file.name, snapshot.counts[file.zone]) for file in files]
    rows.append(("all zones", "", snapshot.total))
    heading = f"{'zone':<18}  {'node':<9}" + "".join(f"  {name:>12}" for name in COLUMNS)
    console.print(heading, style="bold", soft_wrap=True, highlight=False)
    for zone, node, count in rows:
        figures = "".join(f"  {figure:>12}" for figure in attrs.astuple(count))
        style = "red" if count.lost else None
        line = f"{zone:<18}  {node:<9}{figures}"
        console.print(line, style=style, soft_wrap=True, highlight=False)
