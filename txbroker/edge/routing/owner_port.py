"""Ports to the owner of a zone, as an edge sees it while they are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from txbroker.core import Run, Sender
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.edge.routing.group_report import GroupReport
from txbroker.edge.routing.publication import Publication
from txbroker.edge.routing.stored_outbox import OutboxEntry
from txbroker.model.log_position import JournalHolder, JournalId
from txbroker.model.zone_cut import ZoneCut


class OutStream(Protocol):
    """A publish stream beside the live one, on one connection."""

    def send(self, entries: Sequence[OutboxEntry]) -> None:
        """Send entries; each entry's number is its sequence."""

    def restart(self) -> None:
        """Restart after a refusal: entries sent from now on may be accepted again."""


class StreamUser(Protocol):
    """The sender of an `OutStream`."""

    def on_accepted(self, sequence: int) -> None:
        """Note that the owner has accepted all entries up to this sequence."""

    def on_refused(self, sequence: int, cut: ZoneCut | None, *, retry: bool) -> None:
        """
        Note that the owner accepted all before this sequence, and refuses the rest until a restart.

        `cut` may name the zone of the topic; `retry`: the entry may be sent again at once.
        """


class OwnerPort(Protocol):
    """The owner of a zone, as an edge sees it while they are connected."""

    def has_credit(self) -> bool:
        """True if more publishes may be sent now."""

    def passes(self, size: int) -> bool:
        """True if a publish of `size` bytes may be sent although those of other clients wait."""

    def publish(self, publication: Publication) -> None:
        """Send a publish; QoS 1/2 are answered by the edge's `on_accepted` or `on_refused`."""

    def publish_run(self, run: Run) -> None:
        """Send many publishes."""

    def sender(self) -> Sender | None:
        """Return the sender of QoS 0; None if QoS 0 has to wait, or other publishes go first."""

    def restart(self, sequence: int, returned: Iterable[Publication]) -> None:
        """
        Restart after a refusal that `returned` these: the next QoS 1/2 publish has this sequence.
        """

    def request_marks(
        self, keys: Iterable[MarkKey], answered: Callable[[dict[MarkKey, int]], None]
    ) -> None:
        """Ask for the marks of these streams; no answer comes if the connection breaks."""

    def open_stream(self, key: MarkKey, user: StreamUser) -> OutStream:
        """Open another publish stream."""

    def add_interest(self, topic_filter: str, request: int, *, retained: bool) -> None:
        """Ask for deliveries, and once for the `retained` messages."""

    def remove_interest(self, topic_filter: str) -> None:
        """Remove an interest: no more deliveries."""

    def sync(self, filters: Iterable[str], claims: Iterable[str]) -> None:
        """Replace the interest, and claim the subtrees that were inherited."""

    def set_low_water(
        self,
        places: dict[JournalId, int],
        kept: Callable[[], None],
        holders: Mapping[JournalId, tuple[JournalHolder, ...]],
    ) -> None:
        """
        Set this edge's low-water marks: its sessions need records above these offsets.

        `kept` is called when the marks are durable at the owner, and never if the connection breaks
        before. `holders` are the sessions that hold back most, for operators.
        """

    def report_group(self, group: str, report: GroupReport) -> None:
        """Report on the members of a group that the owner coordinates."""

    def close(self, reason: str) -> None:
        """Close this connection, which is lost when the call returns."""
